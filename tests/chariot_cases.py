"""Cases of the conformance check with chariot-v2-kserve.

A `must` is required by the page; a `should` is left open by it, or relied on by clients beyond it.

Source: Chariot, Inference Protocols; Open Inference Protocol for health, ids and errors.
"""

import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tests.chariot_client import PROMPTS, TASKS, Case, EngineClient, checked_json, expect

_NUMBERS: Mapping[str, tuple[str, ...]] = {
    "IMAGE_CLASSIFICATION": ("score",),
    "OBJECT_DETECTION": ("score", "xmin", "ymin", "xmax", "ymax"),
    "ORIENTED_OBJECT_DETECTION": ("score", "cx", "cy", "w", "h", "r"),
    "IMAGE_SEGMENTATION": ("score",),
    "IMAGE_TEXT_TO_TEXT": (),
}
"""Numeric fields of a prediction, by task."""

_CLASSIFY = ("IMAGE_CLASSIFICATION",)
_DETECT = ("OBJECT_DETECTION", "ORIENTED_OBJECT_DETECTION")
_ASK = ("IMAGE_TEXT_TO_TEXT",)

_METADATA = {
    "standard_metadata": {},
    "extended_metadata": [{"key": "altitude", "type": "float", "value": "0.55"}],
}


def _health(engine: EngineClient) -> None:
    paths = ("/ready", "/v2/health/ready", f"/v2/models/{engine.model}/ready", "/v2/health/live")
    replies = {path: engine.send("GET", path).status for path in paths}
    expect(200 in replies.values(), "200 from a health endpoint", replies)


def _v2_health(engine: EngineClient) -> None:
    for path in ("/v2/health/live", "/v2/health/ready", f"/v2/models/{engine.model}/ready"):
        reply = engine.send("GET", path)
        expect(reply.status == 200, f"200 from GET {path}", reply.describe())


def _at(path: str, headers: Mapping[str, str] | None = None) -> Callable[[EngineClient], None]:
    def check(engine: EngineClient) -> None:
        checked_json(engine.infer(engine.body(), f"/v2/models/{engine.model}{path}", headers))

    return check


def _output(engine: EngineClient) -> None:
    (output, *others) = engine.infer_json()["outputs"]
    expect(not others, "one output for one input", f"{1 + len(others)}")
    types = {"name": str, "shape": list, "datatype": str, "data": list}
    kinds = {name: isinstance(output.get(name), type_) for name, type_ in types.items()}
    expect(all(kinds.values()), f"an output with {', '.join(types)}", output)
    expect(output["name"] == "input-image-0", "the input's name", output["name"])


def _column(engine: EngineClient) -> None:
    for shape in ([1, 1], [-1]):
        engine.infer_json({**engine.input(engine.image), "shape": shape})


def _several_inputs(engine: EngineClient) -> None:
    names = ["first", "second", "third"]
    inputs = [engine.input(engine.image, name=name) for name in names]
    output_names = [output.get("name") for output in engine.infer_json(*inputs)["outputs"]]
    expect(output_names == names, f"an output for each of {names}", output_names)


def _two_images(engine: EngineClient) -> None:
    output = engine.infer_json(engine.input(engine.image, engine.other_image))["outputs"][0]
    data, shape = output.get("data"), output.get("shape")
    expect(isinstance(data, list) and len(data) == 2, "data of two elements", data)
    expect(shape in ([2], [2, 1]), "the shape [2]", shape)


def _nested(engine: EngineClient) -> None:
    data = engine.infer_json()["outputs"][0].get("data")
    is_nested = isinstance(data, list) and len(data) == 1 and isinstance(data[0], list)
    expect(is_nested, "data to be one list, of the image's predictions", data)


def _fields(engine: EngineClient) -> str | None:
    if _predictions(engine):
        return None
    return "nothing was found in the picture: no prediction to look at"


def _predictions(engine: EngineClient) -> list[dict[str, Any]]:
    """Return predictions whose fields are those of the task, with a low threshold so that there are some."""
    predictions = engine.predictions(
        **({"score_threshold": 0.01} if engine.task in _DETECT else {})
    )
    texts = ("prompt", "answer") if engine.task in _ASK else ("label",)
    for prediction in predictions:
        expect(isinstance(prediction, dict), "predictions to be objects", prediction)
        for name in texts:
            expect(isinstance(prediction.get(name), str), f"{name} to be a text", prediction)
        for name in _NUMBERS[engine.task]:
            expect(_is_number(prediction.get(name)), f"{name} to be a number", prediction)
        if engine.task == "IMAGE_SEGMENTATION":
            rings = prediction["contour"]
            is_valid = isinstance(rings, list) and all(isinstance(r, list) and r for r in rings)
            is_valid = is_valid and all(
                _is_number(p[axis]) for r in rings for p in r for axis in "xy"
            )
            expect(is_valid, "contour: a list of lists of {x, y}", prediction)
    return predictions


def _ranges(engine: EngineClient) -> None:
    width, height = engine.size_wh
    for prediction in _predictions(engine):
        is_valid = 0 <= prediction.get("score", 0) <= 1
        if engine.task == "OBJECT_DETECTION":
            across = -1 <= prediction["xmin"] <= prediction["xmax"] <= width + 1
            is_valid = (
                is_valid and across and -1 <= prediction["ymin"] <= prediction["ymax"] <= height + 1
            )
        if engine.task == "ORIENTED_OBJECT_DETECTION":
            centre = -0.1 <= prediction["cx"] <= 1.1 and -0.1 <= prediction["cy"] <= 1.1
            is_valid = is_valid and centre and min(prediction["w"], prediction["h"]) >= 0
            is_valid = is_valid and abs(prediction["r"]) <= 2 * math.pi
        points = [point for ring in prediction.get("contour", ()) for point in ring]
        is_valid = is_valid and all(
            -1 <= p["x"] <= width and -1 <= p["y"] <= height for p in points
        )
        expect(
            is_valid, f"scores of 0 to 1, and places in the image of {width} x {height}", prediction
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _threshold(engine: EngineClient) -> None:
    predictions = engine.predictions(score_threshold=0.5)
    low = [
        prediction
        for prediction in predictions
        if isinstance(prediction, dict) and prediction.get("score", 0) < 0.5
    ]
    expect(not low, "no prediction below a score_threshold of 0.5", low)


def _proba(engine: EngineClient) -> None:
    predicted_count, predictions = (
        len(engine.predictions()),
        engine.predictions(action="predict_proba"),
    )
    scores = [
        prediction.get("score") if isinstance(prediction, dict) else None
        for prediction in predictions
    ]
    expect(
        1 <= predicted_count <= len(scores),
        "predict_proba to answer all labels, predict the best",
        scores,
    )
    expect(all(map(_is_number, scores)), "predict_proba to answer label and score", predictions)


def _prompts(engine: EngineClient) -> None:
    predictions = engine.predictions(prompts=PROMPTS)
    prompts = [
        prediction.get("prompt") if isinstance(prediction, dict) else None
        for prediction in predictions
    ]
    expect(prompts == PROMPTS, f"an answer to each of {PROMPTS}", predictions)


def _echo(name: str, *values: Any) -> Callable[[EngineClient], None]:
    def check(engine: EngineClient) -> None:
        for value in values:
            output = engine.infer_json(engine.input(engine.image, **{name: value}))["outputs"][0]
            echoed = (output.get("parameters") or {}).get(name)
            expect(echoed == value, f"parameters.{name} as it was sent: {value}", echoed)

    return check


def _null(engine: EngineClient) -> None:
    tensor = {"parameters": None, **engine.input(engine.image)}
    engine.infer_json(tensor, parameters=None)


def _id(engine: EngineClient, headers: Mapping[str, str], **members: Any) -> None:
    sent_headers = {"Content-Type": "application/json", **headers}
    id_ = checked_json(engine.infer({**engine.body(), **members}, headers=sent_headers)).get("id")
    expect(id_ == "request-7", "the id of the request, request-7", id_)


def _refused(make: Callable[[EngineClient], Any], path: str = "") -> Callable[[EngineClient], None]:
    """Make a check that an invalid request gets a 4xx with a JSON object, and that a valid one then succeeds."""

    def check(engine: EngineClient) -> None:
        reply = engine.infer(make(engine), path)
        try:
            body = json.loads(reply.body)
        except ValueError:
            body = None
        clear = 400 <= reply.status < 500 and isinstance(body, dict) and bool(body)
        expect(clear, "a 4xx with a JSON object that says why", reply.describe())
        engine.infer_json()

    return check


def _without(engine: EngineClient, field: str) -> Any:
    tensor = engine.input(engine.image)
    del tensor[field]
    return {"inputs": [tensor]}


_WRONG: Mapping[str, Callable[[EngineClient], Any]] = {
    "not base64": lambda engine: engine.body("!!!"),
    "not an image": lambda engine: engine.body(b"no image"),
    "half a PNG": lambda engine: engine.body(engine.image[: len(engine.image) // 2]),
    "one bad image of two": lambda engine: {
        "inputs": [engine.input(engine.image), engine.input(b"no image", name="second")]
    },
    "no image at all": lambda engine: engine.body(""),
    "not JSON": lambda _: b'{"inputs": [',
    "no inputs": lambda _: {},
    "inputs that are none": lambda _: {"inputs": []},
    "an input without data": lambda engine: _without(engine, "data"),
}
_ALSO_WRONG: Mapping[str, Callable[[EngineClient], Any]] = {
    "an input without name": lambda engine: _without(engine, "name"),
    "an input without shape": lambda engine: _without(engine, "shape"),
    "an input without datatype": lambda engine: _without(engine, "datatype"),
    "an unknown action": lambda engine: engine.body(action="fly"),
}

CASES: tuple[Case, ...] = (
    Case("a health endpoint", "must", _health),
    Case("the health endpoints of V2", "should", _v2_health),
    Case("/infer/", "must", _at("/infer/")),
    Case("/infer", "must", _at("/infer")),
    Case("a body without Content-Type", "should", _at("/infer/", {})),
    Case("the fields of an output", "must", _output),
    Case("the shapes [1, 1] and [-1]", "must", _column),
    Case("several inputs", "should", _several_inputs),
    Case("two images in data", "should", _two_images),
    Case("a list of predictions for each image", "should", _nested),
    Case("the fields of a prediction", "must", _fields),
    Case("the ranges of a prediction", "should", _ranges),
    Case("predict_proba", "must", _proba, _CLASSIFY),
    Case("prompts", "must", _prompts, _ASK),
    Case("score_threshold", "should", _threshold, _DETECT),
    Case("parameters that are null", "should", _null, tuple(set(TASKS) - set(_ASK))),
    Case("action comes back", "should", _echo("action", "predict")),
    Case("metadata comes back", "should", _echo("metadata", json.dumps(_METADATA))),
    Case(
        "metadata in other forms comes back",
        "should",
        _echo("metadata", json.dumps(_METADATA["extended_metadata"]), _METADATA),
    ),
    Case("the body's id comes back", "should", partial(_id, headers={}, id="request-7")),
    Case(
        "the header's id comes back", "should", partial(_id, headers={"X-Request-ID": "request-7"})
    ),
    *(Case(name, "must", _refused(make)) for name, make in _WRONG.items()),
    *(Case(name, "should", _refused(make)) for name, make in _ALSO_WRONG.items()),
    *(
        Case(
            f"score_threshold {value!r}",
            "should",
            _refused(partial(EngineClient.body, score_threshold=value)),
            _DETECT,
        )
        for value in (7, -0.1, True, "0.5")
    ),
    Case(
        "an unknown model", "must", _refused(EngineClient.body, "/v2/models/m-no-such-model/infer/")
    ),
)
"""All cases, in the order of the report."""

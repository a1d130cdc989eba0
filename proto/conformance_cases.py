"""What an engine that speaks chariot-v2-kserve answers, case by case.

What the page demands is a `must`; what it leaves open, or what clients rely on beyond it, is a `should`.

Source: Chariot, Inference Protocols; Open Inference Protocol for health, ids and errors.
"""

import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from quadriga.proto.conformance import PROMPTS, TASKS, Case, EngineClient, checked_json, expect

_NUMBERS: Mapping[str, tuple[str, ...]] = {
    "IMAGE_CLASSIFICATION": ("score",),
    "OBJECT_DETECTION": ("score", "xmin", "ymin", "xmax", "ymax"),
    "ORIENTED_OBJECT_DETECTION": ("score", "cx", "cy", "w", "h", "r"),
    "IMAGE_SEGMENTATION": ("score",),
    "IMAGE_TEXT_TO_TEXT": (),
}
"""Fields of a prediction that are numbers, by task."""

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
    (output, *more) = engine.infer_json()["outputs"]
    expect(not more, "one output for one input", f"{1 + len(more)}")
    right = {"name": str, "shape": list, "datatype": str, "data": list}
    kinds = {name: isinstance(output.get(name), kind) for name, kind in right.items()}
    expect(all(kinds.values()), f"an output with {', '.join(right)}", output)
    expect(output["name"] == "input-image-0", "the input's name", output["name"])


def _column(engine: EngineClient) -> None:
    for shape in ([1, 1], [-1]):
        engine.infer_json({**engine.input(engine.image), "shape": shape})


def _several_inputs(engine: EngineClient) -> None:
    names = ["first", "second", "third"]
    inputs = [engine.input(engine.image, name=name) for name in names]
    found = [output.get("name") for output in engine.infer_json(*inputs)["outputs"]]
    expect(found == names, f"an output for each of {names}", found)


def _two_images(engine: EngineClient) -> None:
    output = engine.infer_json(engine.input(engine.image, engine.other_image))["outputs"][0]
    data, shape = output.get("data"), output.get("shape")
    expect(isinstance(data, list) and len(data) == 2, "data of two elements", data)
    expect(shape in ([2], [2, 1]), "the shape [2]", shape)


def _nested(engine: EngineClient) -> None:
    data = engine.infer_json()["outputs"][0].get("data")
    right = isinstance(data, list) and len(data) == 1 and isinstance(data[0], list)
    expect(right, "data to be one list, of the image's predictions", data)


def _fields(engine: EngineClient) -> str | None:
    if _predictions(engine):
        return None
    return "nothing was found in the picture: no prediction to look at"


def _predictions(engine: EngineClient) -> list[dict[str, Any]]:
    """Give predictions whose fields are those of the task: as many as there are, to have some."""
    found = engine.predictions(**({"score_threshold": 0.01} if engine.task in _DETECT else {}))
    texts = ("prompt", "answer") if engine.task in _ASK else ("label",)
    for each in found:
        expect(isinstance(each, dict), "predictions to be objects", each)
        for name in texts:
            expect(isinstance(each.get(name), str), f"{name} to be a text", each)
        for name in _NUMBERS[engine.task]:
            expect(_is_number(each.get(name)), f"{name} to be a number", each)
        if engine.task == "IMAGE_SEGMENTATION":
            rings = each["contour"]
            right = isinstance(rings, list) and all(isinstance(r, list) and r for r in rings)
            right = right and all(_is_number(p[axis]) for r in rings for p in r for axis in "xy")
            expect(right, "contour: a list of lists of {x, y}", each)
    return found


def _ranges(engine: EngineClient) -> None:
    width, height = engine.size_wh
    for each in _predictions(engine):
        right = 0 <= each.get("score", 0) <= 1
        if engine.task == "OBJECT_DETECTION":
            across = -1 <= each["xmin"] <= each["xmax"] <= width + 1
            right = right and across and -1 <= each["ymin"] <= each["ymax"] <= height + 1
        if engine.task == "ORIENTED_OBJECT_DETECTION":
            centre = -0.1 <= each["cx"] <= 1.1 and -0.1 <= each["cy"] <= 1.1
            right = right and centre and min(each["w"], each["h"]) >= 0
            right = right and abs(each["r"]) <= 2 * math.pi
        points = [point for ring in each.get("contour", ()) for point in ring]
        right = right and all(-1 <= p["x"] <= width and -1 <= p["y"] <= height for p in points)
        expect(right, f"scores of 0 to 1, and places in the image of {width} x {height}", each)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _threshold(engine: EngineClient) -> None:
    found = engine.predictions(score_threshold=0.5)
    low = [each for each in found if isinstance(each, dict) and each.get("score", 0) < 0.5]
    expect(not low, "no prediction below a score_threshold of 0.5", low)


def _proba(engine: EngineClient) -> None:
    few, all_ = len(engine.predictions()), engine.predictions(action="predict_proba")
    scores = [each.get("score") if isinstance(each, dict) else None for each in all_]
    expect(1 <= few <= len(scores), "predict_proba to answer all labels, predict the best", scores)
    expect(all(map(_is_number, scores)), "predict_proba to answer label and score", all_)


def _prompts(engine: EngineClient) -> None:
    found = engine.predictions(prompts=PROMPTS)
    said = [each.get("prompt") if isinstance(each, dict) else None for each in found]
    expect(said == PROMPTS, f"an answer to each of {PROMPTS}", found)


def _echo(name: str, *values: Any) -> Callable[[EngineClient], None]:
    def check(engine: EngineClient) -> None:
        for value in values:
            output = engine.infer_json(engine.input(engine.image, **{name: value}))["outputs"][0]
            found = (output.get("parameters") or {}).get(name)
            expect(found == value, f"parameters.{name} as it was sent: {value}", found)

    return check


def _null(engine: EngineClient) -> None:
    tensor = {"parameters": None, **engine.input(engine.image)}
    engine.infer_json(tensor, parameters=None)


def _id(engine: EngineClient, headers: Mapping[str, str], **more: Any) -> None:
    given = {"Content-Type": "application/json", **headers}
    found = checked_json(engine.infer({**engine.body(), **more}, headers=given)).get("id")
    expect(found == "request-7", "the id of the request, request-7", found)


def _refused(make: Callable[[EngineClient], Any], path: str = "") -> Callable[[EngineClient], None]:
    """Send what is wrong: a 4xx with a JSON object; and then the engine answers as before."""

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
"""In the order of their report."""

"""The labeling interface of a project of Label Studio: which control takes the model's labels, and predictions as its results.

Source: Label Studio, "Tags" (RectangleLabels, PolygonLabels, Choices, Image); "Import pre-annotated data into Label Studio".
"""

from collections.abc import Mapping, Sequence
from typing import Any
from xml.parsers import expat

import msgspec

from quadriga.extras.label_studio.tasks import region_of
from quadriga.proto.errors import InvalidRequest, Unsupported
from quadriga.quoting import quoted
from quadriga.store.exchange.predictions import label_of, score_of

MAX_CHARACTERS = 1 << 20
"""Maximum length of a labeling interface."""

CONTROLS: Mapping[str, str] = {
    "OBJECT_DETECTION": "RectangleLabels",
    "ORIENTED_OBJECT_DETECTION": "RectangleLabels",
    "IMAGE_SEGMENTATION": "PolygonLabels",
    "IMAGE_CLASSIFICATION": "Choices",
}
"""The tag that takes the predictions of each task."""

_KNOWN = {name.lower(): name for name in (*CONTROLS.values(), "BrushLabels")}
_CHILDREN = {"label", "choice"}


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """A control of the labeling interface, and the image that it is for."""

    tag: str
    """Name of the tag, such as `RectangleLabels`."""
    name: str
    to_name: str
    """Name of the image's tag."""
    data_key: str
    """Key of the image in the data of a task."""
    labels: frozenset[str]
    """Labels as results name them: their aliases, or else their values."""
    can_rotate: bool = True


class _Tag(msgspec.Struct):
    tag: str
    values: dict[str, str]
    labels: set[str]


class _Reader:
    """Collects controls and images from the events of the parser."""

    def __init__(self) -> None:
        self.controls: list[_Tag] = []
        self.images: dict[str, str] = {}
        self._open: list[_Tag | None] = []
        self.parser = expat.ParserCreate()
        self.parser.StartDoctypeDeclHandler = self._refuse_doctype
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end

    def _refuse_doctype(self, *_: Any) -> None:
        raise InvalidRequest("label_config: expected XML without a document type")

    def _start(self, name: str, values: dict[str, str]) -> None:
        tag, control = name.lower(), None
        if tag in _KNOWN:
            control = _Tag(_KNOWN[tag], values, set())
            self.controls.append(control)
        elif tag == "image":
            self.images[values.get("name", "")] = values.get("value", "")
        elif tag in _CHILDREN and (parent := next(filter(None, reversed(self._open)), None)):
            parent.labels.add(values.get("alias") or values.get("value", ""))
        self._open.append(control)

    def _end(self, _: str) -> None:
        self._open.pop()


def find_control(label_config: str, task: str, model: str) -> Control:
    """Return the control of a labeling interface that takes the predictions of a model.

    Args:
        label_config: The labeling interface, XML.
        task: Full name of the model's task.
        model: Name of the model, for messages.

    Raises:
        InvalidRequest: It is no XML, or has no such control; the message names the tag that is missing.
        Unsupported: Label Studio has no control for the task that this server fills.
    """
    wanted = CONTROLS.get(task)
    if wanted is None:
        known = ", ".join(sorted(CONTROLS))
        raise Unsupported(
            f"expected a model of {known} for Label Studio, got {quoted(model, 100)}, of {task}"
        )
    reader = _read(label_config)
    for control in reader.controls:
        image = next((n for n in _names(control) if n in reader.images), None)
        if control.tag != wanted or image is None or not control.values.get("name"):
            continue
        value = reader.images[image]
        if not value.startswith("$"):
            raise InvalidRequest(
                f"label_config: expected the value of the Image {quoted(image, 60)} to be a key of the tasks' data, "
                f"such as $image, got {quoted(value, 60)}"
            )
        return Control(
            tag=wanted,
            name=control.values["name"],
            to_name=image,
            data_key=value[1:],
            labels=frozenset(control.labels),
            can_rotate=control.values.get("canRotate", "true").lower() != "false",
        )
    raise InvalidRequest(_missing(wanted, reader, model))


def _read(label_config: str) -> _Reader:
    if len(label_config) > MAX_CHARACTERS:
        raise InvalidRequest(
            f"label_config: expected at most {MAX_CHARACTERS} characters, got {len(label_config)}"
        )
    reader = _Reader()
    try:
        reader.parser.Parse(label_config.encode(errors="replace"), True)
    except expat.ExpatError as error:
        raise InvalidRequest(f"label_config: expected XML, got: {error}") from error
    return reader


def _names(control: _Tag) -> list[str]:
    return [name.strip() for name in control.values.get("toName", "").split(",")]


def _missing(wanted: str, reader: _Reader, model: str) -> str:
    tags = sorted({f"<{control.tag}>" for control in reader.controls})
    tags += [f"<Image> {quoted(name, 40)}" for name in [*reader.images][:10]]
    hint = ""
    if wanted == "PolygonLabels" and "<BrushLabels>" in tags:
        hint = "; brush masks are not filled, polygons are"
    return (
        f"label_config: a tag <{wanted}> with toName of an <Image> is required for the predictions of "
        f"{quoted(model, 100)}, got {', '.join(tags) or 'no control of images'}{hint}"
    )


class TaskPrediction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A prediction for one task."""

    result: list[dict[str, Any]]
    model_version: str
    """Name and version of the model, as `squares@2`."""
    score: float | None = None
    """Mean score of the results; none without any."""
    left_out: dict[str, int] = {}
    """Predictions that the control cannot take, by the reason."""


def task_prediction(
    predictions: Sequence[Mapping[str, Any]],
    control: Control,
    size_wh: tuple[int, int],
    model_version: str,
) -> TaskPrediction:
    """Return predictions as results of a control; what it cannot take is left out, and counted.

    Of a classifier the best class that the control has is taken.

    Args:
        predictions: Predictions in the form of the wire, pixels of the image.
        control: Control of the labeling interface.
        size_wh: Width and height of the image, pixels.
        model_version: Name and version of the model.
    """
    left_out: dict[str, int] = {}
    results, scores = [], []
    items = (
        sorted(predictions, key=_score, reverse=True) if control.tag == "Choices" else predictions
    )
    for number, item in enumerate(items):
        reason, value = _value(item, control, size_wh)
        if reason:
            left_out[reason] = left_out.get(reason, 0) + 1
            continue
        score = score_of(item)
        results.append(_result(number, control, value, size_wh=size_wh, score=score))
        if score is not None:
            scores.append(score)
        if control.tag == "Choices":
            break
    return TaskPrediction(
        result=results,
        model_version=model_version,
        score=sum(scores) / len(scores) if scores else None,
        left_out=left_out,
    )


def _score(item: Mapping[str, Any]) -> float:
    return score_of(item) or 0.0


def _value(
    item: Mapping[str, Any], control: Control, size_wh: tuple[int, int]
) -> tuple[str, dict[str, Any]]:
    """Return why an item is left out, empty if it is not, and the value of its result."""
    label = label_of(item)
    if label is None:
        return "without a label", {}
    if label not in control.labels:
        return "label not in the labeling interface", {}
    region = region_of(dict(item), size_wh)
    if region is None or region[0] != control.tag:
        return "without a shape of the control", {}
    value = region[1]
    if value.get("rotation") and not control.can_rotate:
        return "turned, and the control has canRotate false", {}
    return "", {**value, control.tag.lower(): [label]}


def _result(
    number: int,
    control: Control,
    value: dict[str, Any],
    size_wh: tuple[int, int],
    score: float | None,
) -> dict[str, Any]:
    width, height = size_wh
    return {
        "id": f"r{number}",
        "type": control.tag.lower(),
        "from_name": control.name,
        "to_name": control.to_name,
        "original_width": width,
        "original_height": height,
        "image_rotation": 0,
        "value": value,
        **({} if score is None else {"score": score}),
    }

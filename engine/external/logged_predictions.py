"""Predictions that a client says a model made: checked as this server's own are, task by task."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from quadriga.proto.errors import InvalidRequest
from quadriga.quoting import quoted
from quadriga.tasks import SHORT_NAMES, full_name
from quadriga.tasks.predictions import (
    Answer,
    Classification,
    Detection,
    OrientedDetection,
    Segment,
)

TENSOR = "TENSOR"

MAX_PREDICTIONS = 10_000
"""Maximum predictions of one inference, as many as a model of this server may make."""

MAX_DEPTH = 32
"""Maximum depth of a prediction's JSON."""

MAX_LABEL_BYTES = 2048
"""Maximum length of a label in UTF-8: databases index no longer texts."""

_FORMS: dict[str, type[msgspec.Struct]] = {
    "IMAGE_CLASSIFICATION": Classification,
    "OBJECT_DETECTION": Detection,
    "ORIENTED_OBJECT_DETECTION": OrientedDetection,
    "IMAGE_SEGMENTATION": Segment,
    "IMAGE_TEXT_TO_TEXT": Answer,
}
_MARKS = (
    ("xmin", "OBJECT_DETECTION"),
    ("cx", "ORIENTED_OBJECT_DETECTION"),
    ("contour", "IMAGE_SEGMENTATION"),
    ("answer", "IMAGE_TEXT_TO_TEXT"),
    ("label", "IMAGE_CLASSIFICATION"),
)
"""Keys by which the task of a prediction is known, the decisive first."""


def read_task(name: str) -> str:
    """Return the full name of a task.

    Raises:
        InvalidRequest: There is no such task.
    """
    task = full_name(name)
    if task not in _FORMS and task != TENSOR:
        raise InvalidRequest(
            f"task: expected one of {', '.join(SHORT_NAMES)}, got {quoted(name, 60)}"
        )
    return task


def task_of(predictions: Sequence[Any]) -> str | None:
    """Return the task that predictions are of; None where they are of none."""
    first = predictions[0] if predictions else None
    if not isinstance(first, Mapping):
        return None
    return next((task for mark, task in _MARKS if mark in first), None)


def check_predictions(predictions: Sequence[Any], task: str, location: str) -> list[Any]:
    """Check the predictions of one image, and return them in the form of a response.

    Boxes may lie outside of the image, as the model said so.

    Raises:
        InvalidRequest: They are not of the task, a number is not finite, or there are too many; the message names the place.
    """
    if len(predictions) > MAX_PREDICTIONS:
        raise InvalidRequest(
            f"{location}: expected at most {MAX_PREDICTIONS} predictions, got {len(predictions)}"
        )
    return [
        _check(prediction, task, f"{location}[{number}]")
        for number, prediction in enumerate(predictions)
    ]


def _check(prediction: Any, task: str, location: str) -> Any:
    if not isinstance(prediction, Mapping):
        raise InvalidRequest(
            f"{location}: expected an object of {task}, got {quoted(prediction, 60)}"
        )
    if task == TENSOR:
        _check_finite(prediction, location)
        return prediction
    try:
        checked = msgspec.convert(prediction, _FORMS[task])
    except msgspec.ValidationError as error:
        text = str(error).replace("`$.", "`").replace("`", "'")
        raise InvalidRequest(f"{location}: expected a prediction of {task}: {text}") from error
    _check_finite(msgspec.to_builtins(checked), location)
    label = getattr(checked, "label", None)
    if label is not None and not 0 < len(label.encode(errors="replace")) <= MAX_LABEL_BYTES:
        raise InvalidRequest(
            f"{location}.label: expected a text of 1 to {MAX_LABEL_BYTES} bytes, got {quoted(label, 60)}"
        )
    if isinstance(checked, Detection) and not (
        checked.xmin <= checked.xmax and checked.ymin <= checked.ymax
    ):
        raise InvalidRequest(
            f"{location}: expected xmin <= xmax and ymin <= ymax, got {checked.xmin:g}, {checked.ymin:g}, "
            f"{checked.xmax:g}, {checked.ymax:g}"
        )
    return checked


def _check_finite(value: Any, location: str, depth: int = 0) -> None:
    """Refuse NaN and infinities, which no database keeps, and what is nested too deeply."""
    if depth > MAX_DEPTH:
        raise InvalidRequest(
            f"{location[:200]}: expected values nested at most {MAX_DEPTH} deep, got more"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequest(f"{location}: expected a finite number, got {value}")
    if isinstance(value, Mapping):
        for key, member in value.items():
            _check_finite(member, f"{location}.{key}", depth + 1)
    elif isinstance(value, list):
        for number, member in enumerate(value):
            _check_finite(member, f"{location}[{number}]", depth + 1)

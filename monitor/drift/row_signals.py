"""The signals of one stored inference that need neither its pixels nor the model."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from quadriga.monitor.drift.samples import Kind
from quadriga.store.schema import INDEXED_CHARACTERS
from quadriga.tasks.predictions import AnyPrediction
from quadriga.tasks.shapes import Shape, directed_area, shape_of

Value = str | float | bool
META = "meta."
"""Before the path of a key of the metadata."""

KINDS: dict[str, Kind] = {
    "label": "categorical", "score": "numeric", "margin": "numeric", "entropy": "numeric",
    "area": "numeric", "aspect": "numeric", "x": "numeric", "y": "numeric", "angle": "numeric",
    "mask_share": "numeric", "latency_ms": "numeric", "bytes_per_pixel": "numeric",
}  # fmt: skip
"""Of signals; all others are told by their values."""

COORDINATES = ("latitude", "longitude")
"""Keys of the metadata, also below others, that are numbers even where there are few."""

_GOLDEN = 0x9E3779B97F4A7C15


class Answered(NamedTuple):
    """What is known of an inference."""

    id: int
    task: str
    predictions: str
    """JSON, as it went over the wire."""
    metadata: str
    """JSON, path to value: see `quadriga.store.metadata.index_paths`. Of texts the beginning counts."""
    latency_ms: float
    width: int | None = None
    """Pixels."""
    height: int | None = None
    bytes: int | None = None
    """Size of the input as received."""


_PLACED = ("area", "aspect", "x", "y")
"""What is told of where a prediction is: shares of the image, and width over height, both in pixels."""

_decoder = msgspec.json.Decoder(list[AnyPrediction])
_flat_decoder = msgspec.json.Decoder(dict[str, Any])


def derived(of: Answered) -> dict[str, Value]:
    """Return the signals of an inference by name; what it has not is not among them."""
    found: dict[str, Value] = {"latency_ms": of.latency_ms}
    wh = (of.width, of.height) if of.width and of.height else None
    if wh is not None:
        found |= {"width": float(wh[0]), "height": float(wh[1])}
        if of.bytes is not None:
            found["bytes_per_pixel"] = of.bytes / (wh[0] * wh[1])
    try:
        predictions = _decoder.decode(of.predictions)
    except msgspec.MsgspecError:  # raw tensors, or what an import brought
        predictions = None
    if predictions is not None:
        found |= _predicted(of, predictions, wh)
    for path, value in _flat_decoder.decode(of.metadata).items():
        if not isinstance(value, dict | list):
            found[META + path] = value[:INDEXED_CHARACTERS] if isinstance(value, str) else value
    return found


def _predicted(
    of: Answered, predictions: Sequence[AnyPrediction], wh: tuple[int, int] | None
) -> dict[str, Value]:
    if of.task == "IMAGE_TEXT_TO_TEXT":
        return _mean("answer_length", [float(len(one.answer or "")) for one in predictions])
    found: dict[str, Value] = {}
    scores = sorted((one.score for one in predictions if one.score is not None), reverse=True)
    if scores:
        found["score"] = scores[0]
    if of.task == "IMAGE_CLASSIFICATION":
        if len(scores) > 1:
            found["margin"] = scores[0] - scores[1]
            found["entropy"] = -sum(one * math.log(one) for one in scores if one > 0)
        return found | _label(max(predictions, key=lambda one: one.score or 0.0, default=None))
    found["predictions"] = float(len(predictions))
    chosen = predictions[_chosen(of.id, len(predictions))] if predictions else None
    found |= _label(chosen)
    if wh is None:
        return found
    if chosen is not None and chosen.cx is not None:
        found["angle"] = chosen.r % math.pi
    shapes = [shape_of(prediction) for prediction in predictions]
    boxes = [box for shape in shapes if (box := _box(shape, *wh)) is not None]
    for at, name in enumerate(_PLACED):
        found |= _mean(name, [box[at] for box in boxes])
    if of.task == "IMAGE_SEGMENTATION":
        covered = sum(directed_area(shape.rings or ()) for shape in shapes)
        found["mask_share"] = covered / (wh[0] * wh[1])
    return found


def _label(one: AnyPrediction | None) -> dict[str, Value]:
    return {} if one is None or one.label is None else {"label": one.label[:INDEXED_CHARACTERS]}


def _chosen(inference_id: int, count: int) -> int:
    """Choose one of several by chance, the same each time."""
    return (inference_id * _GOLDEN % 2**64 >> 32) % count


def _mean(name: str, values: Sequence[float]) -> dict[str, Value]:
    return {name: sum(values) / len(values)} if values else {}


def _box(shape: Shape, width: int, height: int) -> tuple[float, ...] | None:
    """Return where a prediction is, as `_PLACED` has it; None where it is nowhere."""
    box = shape.relative_box(width, height)
    if box is None:
        return None
    w, h, x, y = box
    return (w * h, w * width / (h * height), x, y) if w > 0 and h > 0 else None

"""The signals of one stored inference that need neither its pixels nor the model."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from quadriga.monitor.drift.samples import Kind
from quadriga.store.schema import INDEXED_CHARACTERS
from quadriga.tasks.predictions import AnyPrediction
from quadriga.tasks.shapes import Shape, directed_area, shape_of

SignalValue = str | float | bool
METADATA_PREFIX = "meta."
"""Before the path of a key of the metadata."""

SIGNAL_KINDS: dict[str, Kind] = {
    "label": "categorical", "score": "numeric", "margin": "numeric", "entropy": "numeric",
    "area": "numeric", "aspect": "numeric", "x": "numeric", "y": "numeric", "angle": "numeric",
    "mask_share": "numeric", "latency_ms": "numeric", "bytes_per_pixel": "numeric",
}  # fmt: skip
"""Of signals; all others are told by their values."""

COORDINATES = ("latitude", "longitude")
"""Keys of the metadata, also below others, that are numbers even where there are few."""

_HASH_FACTOR = 0x9E3779B97F4A7C15


class InferenceRow(NamedTuple):
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


_BOX_SIGNALS = ("area", "aspect", "x", "y")
"""What is told of where a prediction is: shares of the image, and width over height, both in pixels."""

_decoder = msgspec.json.Decoder(list[AnyPrediction])
_flat_decoder = msgspec.json.Decoder(dict[str, Any])


def derive_signals(row: InferenceRow) -> dict[str, SignalValue]:
    """Return the signals of an inference by name; what it has not is not among them."""
    signals: dict[str, SignalValue] = {"latency_ms": row.latency_ms}
    wh = (row.width, row.height) if row.width and row.height else None
    if wh is not None:
        signals |= {"width": float(wh[0]), "height": float(wh[1])}
        if row.bytes is not None:
            signals["bytes_per_pixel"] = row.bytes / (wh[0] * wh[1])
    try:
        predictions = _decoder.decode(row.predictions)
    except msgspec.MsgspecError:  # raw tensors, or what an import brought
        predictions = None
    if predictions is not None:
        signals |= _prediction_signals(row, predictions, wh)
    for path, value in _flat_decoder.decode(row.metadata).items():
        if not isinstance(value, dict | list):
            signals[METADATA_PREFIX + path] = (
                value[:INDEXED_CHARACTERS] if isinstance(value, str) else value
            )
    return signals


def _prediction_signals(
    row: InferenceRow, predictions: Sequence[AnyPrediction], wh: tuple[int, int] | None
) -> dict[str, SignalValue]:
    if row.task == "IMAGE_TEXT_TO_TEXT":
        return _mean_signal("answer_length", [float(len(one.answer or "")) for one in predictions])
    signals: dict[str, SignalValue] = {}
    scores = sorted((one.score for one in predictions if one.score is not None), reverse=True)
    if scores:
        signals["score"] = scores[0]
    if row.task == "IMAGE_CLASSIFICATION":
        if len(scores) > 1:
            signals["margin"] = scores[0] - scores[1]
            signals["entropy"] = -sum(one * math.log(one) for one in scores if one > 0)
        return signals | _label_signal(
            max(predictions, key=lambda one: one.score or 0.0, default=None)
        )
    signals["predictions"] = float(len(predictions))
    chosen = predictions[_choose_index(row.id, len(predictions))] if predictions else None
    signals |= _label_signal(chosen)
    if wh is None:
        return signals
    if chosen is not None and chosen.cx is not None:
        signals["angle"] = chosen.r % math.pi
    shapes = [shape_of(prediction) for prediction in predictions]
    boxes = [box for shape in shapes if (box := _relative_box(shape, *wh)) is not None]
    for position, name in enumerate(_BOX_SIGNALS):
        signals |= _mean_signal(name, [box[position] for box in boxes])
    if row.task == "IMAGE_SEGMENTATION":
        covered = sum(directed_area(shape.rings or ()) for shape in shapes)
        signals["mask_share"] = covered / (wh[0] * wh[1])
    return signals


def _label_signal(prediction: AnyPrediction | None) -> dict[str, SignalValue]:
    return (
        {}
        if prediction is None or prediction.label is None
        else {"label": prediction.label[:INDEXED_CHARACTERS]}
    )


def _choose_index(inference_id: int, count: int) -> int:
    """Choose one of several by chance, the same each time."""
    return (inference_id * _HASH_FACTOR % 2**64 >> 32) % count


def _mean_signal(name: str, values: Sequence[float]) -> dict[str, SignalValue]:
    return {name: sum(values) / len(values)} if values else {}


def _relative_box(shape: Shape, width: int, height: int) -> tuple[float, ...] | None:
    """Return where a prediction is, as `_BOX_SIGNALS` has it; None where it is nowhere."""
    box = shape.relative_box(width, height)
    if box is None:
        return None
    w, h, x, y = box
    return (w * h, w * width / (h * height), x, y) if w > 0 and h > 0 else None

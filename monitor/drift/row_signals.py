"""The signals of one stored inference that need neither its pixels nor the model."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from quadriga.monitor.drift.samples import Kind
from quadriga.store.database.schema import INDEXED_CHARACTERS
from quadriga.tasks.predictions import AnyPrediction, Shape, directed_area, shape_of

SignalValue = str | float | bool
METADATA_PREFIX = "meta."
"""Prefix of signals that are metadata keys."""

INPUT_PREFIX = "input."
"""Prefix of signals that are features of tensors."""

SIGNAL_KINDS: dict[str, Kind] = {
    "label": "categorical", "score": "numeric", "margin": "numeric", "entropy": "numeric",
    "area": "numeric", "aspect": "numeric", "x": "numeric", "y": "numeric", "angle": "numeric",
    "mask_share": "numeric", "latency_ms": "numeric", "bytes_per_pixel": "numeric",
}  # fmt: skip
"""Kinds of signals by name; those of all others are inferred from their values."""

COORDINATES = ("latitude", "longitude")
"""Metadata keys, nested ones too, that are numeric even if they have few distinct values."""

_HASH_FACTOR = 0x9E3779B97F4A7C15
"""Factor of Fibonacci hashing: 2**64 over the golden ratio."""


class SignalInputs(NamedTuple):
    """Stored fields of an inference that signals are derived from."""

    id: int
    task: str
    predictions: str
    """Predictions as JSON, in their wire form."""
    metadata: str
    """Metadata as JSON, path to value: see `quadriga.store.records.metadata.index_paths`. Long texts are cut."""
    latency_ms: float
    width: int | None = None
    """Width of the image in pixels."""
    height: int | None = None
    bytes: int | None = None
    """Size of the input as received."""


_BOX_SIGNALS = ("area", "aspect", "x", "y")
"""Signals of the boxes of predictions: area and centre as shares of the image, aspect as width over height in pixels."""

_decoder = msgspec.json.Decoder(list[AnyPrediction])
_flat_decoder = msgspec.json.Decoder(dict[str, Any])


def derive_signals(row: SignalInputs) -> dict[str, SignalValue]:
    """Return the signals of an inference by name, without those that it does not have."""
    signals: dict[str, SignalValue] = {"latency_ms": row.latency_ms}
    wh = (row.width, row.height) if row.width and row.height else None
    if wh is not None:
        signals |= {"width": float(wh[0]), "height": float(wh[1])}
        if row.bytes is not None:
            signals["bytes_per_pixel"] = row.bytes / (wh[0] * wh[1])
    try:
        predictions = _decoder.decode(row.predictions)
    except msgspec.MsgspecError:  # raw tensors, or imported in another form
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
    row: SignalInputs, predictions: Sequence[AnyPrediction], wh: tuple[int, int] | None
) -> dict[str, SignalValue]:
    if row.task == "IMAGE_TEXT_TO_TEXT":
        lengths = [float(len(prediction.answer or "")) for prediction in predictions]
        return _mean_signal("answer_length", lengths)
    scores = sorted(
        (prediction.score for prediction in predictions if prediction.score is not None),
        reverse=True,
    )
    signals: dict[str, SignalValue] = {"score": scores[0]} if scores else {}
    if row.task == "IMAGE_CLASSIFICATION":
        if len(scores) > 1:
            signals["margin"] = scores[0] - scores[1]
            signals["entropy"] = -sum(score * math.log(score) for score in scores if score > 0)
        best = max(predictions, key=lambda prediction: prediction.score or 0.0, default=None)
        return signals | _label_signal(best)
    signals["predictions"] = float(len(predictions))
    # One label per image: several labels of an image would not be independent.
    chosen = predictions[choose_index(row.id, len(predictions))] if predictions else None
    signals |= _label_signal(chosen)
    if wh is not None:
        if chosen is not None and chosen.cx is not None:
            signals["angle"] = chosen.r % math.pi
        signals |= _shape_signals(row.task, [shape_of(item) for item in predictions], wh)
    return signals


def _shape_signals(
    task: str, shapes: Sequence[Shape], wh: tuple[int, int]
) -> dict[str, SignalValue]:
    """Return the means over the shapes of an image, and the share of it that segments cover."""
    boxes = [box for shape in shapes if (box := _relative_box(shape, *wh)) is not None]
    signals: dict[str, SignalValue] = {}
    for name, values in zip(_BOX_SIGNALS, zip(*boxes, strict=True), strict=False):
        signals |= _mean_signal(name, values)
    if task == "IMAGE_SEGMENTATION":
        covered = sum(directed_area(shape.rings or ()) for shape in shapes)
        signals["mask_share"] = covered / (wh[0] * wh[1])
    return signals


def _label_signal(prediction: AnyPrediction | None) -> dict[str, SignalValue]:
    label = None if prediction is None else prediction.label
    return {} if label is None else {"label": label[:INDEXED_CHARACTERS]}


def choose_index(inference_id: int, count: int) -> int:
    """Choose one of `count` predictions or rows pseudo-randomly, the same at each reading."""
    return (inference_id * _HASH_FACTOR % 2**64 >> 32) % count


def _mean_signal(name: str, values: Sequence[float]) -> dict[str, SignalValue]:
    return {name: sum(values) / len(values)} if values else {}


def _relative_box(shape: Shape, width: int, height: int) -> tuple[float, ...] | None:
    """Return the values of `_BOX_SIGNALS` for one shape; None if it has no area."""
    box = shape.relative_box(width, height)
    if box is None:
        return None
    w, h, x, y = box
    return (w * h, w * width / (h * height), x, y) if w > 0 and h > 0 else None

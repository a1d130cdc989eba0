"""Boxes: how detections on the wire become tables, and how far two boxes overlap."""

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from monitor.evaluation.arrays import Doubles, Flags, Integers
from monitor.evaluation.evaluators import Evaluated, decode
from monitor.evaluation.matching import Overlap
from monitor.evaluation.objects import EvaluatedObjects
from monitor.evaluation.state import (
    EvaluatedImage,
    EvaluationError,
    Labels,
    Magnitude,
    Number,
    State,
    Table,
)


class _Predicted(msgspec.Struct, gc=False):
    label: str
    score: Number
    xmin: Number
    ymin: Number
    xmax: Number
    ymax: Number


class _True(msgspec.Struct, gc=False):
    label: str
    xmin: Number
    ymin: Number
    xmax: Number
    ymax: Number
    crowd: bool = False
    difficult: bool = False
    area: Magnitude | None = None


_PREDICTED = msgspec.json.Decoder(list[_Predicted])
_TRUE = msgspec.json.Decoder(list[_True])
_CORNERS = ("xmin", "ymin", "xmax", "ymax")


class Detection:
    """The evaluation of `OBJECT_DETECTION`."""

    def tables(self, images: Sequence[EvaluatedImage], labels: Labels) -> dict[str, Table]:
        """Read boxes; see `Evaluator.tables`.

        Raises:
            EvaluationError: One lacks a field, has a number that is none or huge, or ends before it begins.
        """
        found = [
            decode(_PREDICTED, one.predictions, f"image {one.id!r}: predictions") for one in images
        ]
        there = [
            decode(_TRUE, one.ground_truth, f"image {one.id!r}: ground_truth") for one in images
        ]
        return {
            "predictions": _predictions(images, found, labels),
            "truths": _truths(images, there, labels),
        }

    def evaluate(self, state: State) -> Evaluated:
        """Look into a whole state."""
        return EvaluatedObjects(state, box_overlap(state), parameters={"overlap": "box"})


def _predictions(
    images: Sequence[EvaluatedImage], found: list[list[_Predicted]], labels: Labels
) -> Table:
    flat = list(chain.from_iterable(found))
    table = _boxes(images, "predictions", found, flat, labels)
    return {**table, "score": _numbers(flat, "score")}


def _truths(images: Sequence[EvaluatedImage], there: list[list[_True]], labels: Labels) -> Table:
    flat = list(chain.from_iterable(there))
    table = _boxes(images, "ground_truth", there, flat, labels)
    given = np.array([np.nan if one.area is None else one.area for one in flat], np.float64)
    return {
        **table,
        "area": np.where(np.isnan(given), table["area"], given),
        "crowd": np.array([one.crowd for one in flat], np.bool_),
        "difficult": np.array([one.difficult for one in flat], np.bool_),
    }


def _boxes(
    images: Sequence[EvaluatedImage],
    kind: str,
    objects: Sequence[Sequence[Any]],
    flat: list[Any],
    labels: Labels,
) -> Table:
    """Return the columns that predictions and truths share."""
    corners = np.stack([_numbers(flat, name) for name in _CORNERS], axis=1)
    sides = corners[:, 2:] - corners[:, :2]
    texts = [one.label for one in flat]
    for text in dict.fromkeys(texts):
        labels[text]
    counts = np.array([len(one) for one in objects], np.int64)
    table = {
        "image": np.repeat(np.arange(len(objects)), counts),
        "label": np.fromiter(map(labels.numbers.__getitem__, texts), np.int64, len(flat)),
        "area": sides[:, 0] * sides[:, 1],
        "number": np.arange(len(flat)) - np.repeat(np.cumsum(counts) - counts, counts),
        "box": np.concatenate([corners[:, :2], sides], axis=1),
    }
    wrong = np.flatnonzero((sides < 0).any(axis=1))
    if wrong.size:
        at = int(wrong[0])
        got = ", ".join(map(str, corners[at].tolist()))
        place = f"image {images[table['image'][at]].id!r}: {kind}[{table['number'][at]}]"
        raise EvaluationError(
            f"{place}: expected xmin <= xmax and ymin <= ymax, got {', '.join(_CORNERS)} of {got}"
        )
    return table


def _numbers(objects: list[Any], name: str) -> Doubles:
    return np.fromiter(map(attrgetter(name), objects), np.float64, len(objects))


def box_overlap(state: State) -> Overlap:
    """Return the overlap of boxes: intersection over union; of a crowd, over the prediction.

    Source: `bbIou` of COCO's `maskApi.c`, whose numbers these are.
    """
    found, there = state.tables["predictions"], state.tables["truths"]
    boxes, others = _sides(found["box"]), _sides(there["box"])
    crowd: Flags = there["crowd"]

    def overlap(prediction: Integers, truth: Integers) -> Doubles:
        common = np.ones(len(prediction))
        for low, high in ((0, 2), (1, 3)):
            ends = np.minimum(boxes[high][prediction], others[high][truth])
            side = ends - np.maximum(boxes[low][prediction], others[low][truth])
            common *= np.maximum(side, 0)
        own = boxes[4][prediction]
        whole = np.where(crowd[truth], own, own + others[4][truth] - common)
        return np.divide(common, whole, out=np.zeros_like(common), where=common > 0)

    return overlap


def _sides(box: Doubles) -> tuple[Doubles, ...]:
    """Return left, top, right, bottom and area of boxes (N, 4), xywh."""
    x, y, width, height = np.ascontiguousarray(box.T)
    return x, y, x + width, y + height, width * height

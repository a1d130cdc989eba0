"""Boxes: how detections on the wire become tables, and how far two boxes overlap."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from monitor.evaluation.evaluators import Evaluated, decode
from monitor.evaluation.matching import Doubles, Flags, Integers, Overlap
from monitor.evaluation.objects import EvaluatedObjects
from monitor.evaluation.state import EvaluatedImage, EvaluationError, Labels, State, Table


class _Found(msgspec.Struct, gc=False):
    label: str
    score: float
    xmin: float
    ymin: float
    xmax: float
    ymax: float


class _There(msgspec.Struct, gc=False):
    label: str
    xmin: float
    ymin: float
    xmax: float
    ymax: float
    crowd: bool = False
    difficult: bool = False
    area: float | None = None


_FOUND = msgspec.json.Decoder(list[_Found])
_THERE = msgspec.json.Decoder(list[_There])


class Detection:
    """The evaluation of `OBJECT_DETECTION`."""

    def tables(self, images: Sequence[EvaluatedImage], labels: Labels) -> dict[str, Table]:
        """Read boxes; see `Evaluator.tables`.

        Raises:
            EvaluationError: A box lacks a field, has a number that is none, or ends before it begins.
        """
        found = [
            decode(_FOUND, one.predictions, f"image {one.id!r}: predictions") for one in images
        ]
        there = [
            decode(_THERE, one.ground_truth, f"image {one.id!r}: ground_truth") for one in images
        ]
        predictions = _objects(images, found, labels, "predictions")
        truths = _objects(images, there, labels, "ground_truth")
        flat = list(chain.from_iterable(found))
        known = list(chain.from_iterable(there))
        area = np.array([np.nan if one.area is None else one.area for one in known], np.float64)
        _check(np.isnan(area) | (area >= 0), images, truths, "expected an area of 0 or more")
        return {
            "predictions": {
                **predictions,
                "score": np.array([one.score for one in flat], np.float64),
            },
            "truths": {
                **truths,
                "area": np.where(np.isnan(area), truths["area"], area),
                "crowd": np.array([one.crowd for one in known], bool),
                "difficult": np.array([one.difficult for one in known], bool),
            },
        }

    def evaluate(self, state: State) -> Evaluated:
        """Look into a whole state."""
        return EvaluatedObjects(state, box_overlap(state), parameters={"overlap": "box"})


def _check(good: Flags, images: Sequence[EvaluatedImage], table: Table, expected: str) -> None:
    bad = np.flatnonzero(~good)
    if bad.size:
        at = bad[0]
        place = f"[{table['number'][at]}]"
        raise EvaluationError(f"image {images[table['image'][at]].id!r}: {place}: {expected}")


def _objects(
    images: Sequence[EvaluatedImage], objects: list[list[Any]], labels: Labels, kind: str
) -> Table:
    """Return the columns that predictions and truths share."""
    counts = np.array([len(one) for one in objects], np.int64)
    flat = list(chain.from_iterable(objects))
    corners = np.array(
        [(one.xmin, one.ymin, one.xmax, one.ymax) for one in flat], np.float64
    ).reshape(-1, 4)
    box = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1)
    table = {
        "image": np.repeat(np.arange(len(objects)), counts),
        "label": np.array([labels[one.label] for one in flat], np.int64),
        "area": box[:, 2] * box[:, 3],
        "number": np.arange(len(flat)) - np.repeat(np.cumsum(counts) - counts, counts),
        "box": box,
    }
    good: Flags = np.isfinite(corners).all(axis=1) & (box[:, 2:] >= 0).all(axis=1)
    _check(good, images, table, f"expected {kind} to be boxes")
    return table


def box_overlap(state: State) -> Overlap:
    """Return the overlap of boxes: intersection over union; of a crowd over the prediction."""
    found, there = state.tables["predictions"], state.tables["truths"]
    boxes, others, crowd = found["box"], there["box"], there["crowd"]

    def overlap(prediction: Integers, truth: Integers) -> Doubles:
        a, b = boxes[prediction], others[truth]
        low = np.maximum(a[:, :2], b[:, :2])
        sides = np.minimum(a[:, :2] + a[:, 2:], b[:, :2] + b[:, 2:]) - low
        common = np.where((sides > 0).all(axis=1), sides.prod(axis=1), 0)
        own, whole = a[:, 2] * a[:, 3], b[:, 2] * b[:, 3]
        of = np.where(crowd[truth], own, own + whole - common)
        result: Doubles = np.divide(common, of, out=np.zeros_like(common), where=of > 0)
        return result

    return overlap

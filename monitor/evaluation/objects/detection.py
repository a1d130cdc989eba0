"""Boxes: how detections on the wire become tables, and how far two boxes overlap."""

from collections.abc import Sequence

import msgspec
import numpy as np

from quadriga.monitor.evaluation.evaluators import Evaluated
from quadriga.monitor.evaluation.item_tables import (
    Listed,
    predictions_table,
    read_lists,
    truths_table,
)
from quadriga.monitor.evaluation.objects.matching import Overlap
from quadriga.monitor.evaluation.objects.object_metrics import EvaluatedObjects
from quadriga.monitor.evaluation.state import EvaluatedImage, Labels, Number, State, Table, Truth
from quadriga.tasks.arrays import BoolArray, Float64Array, Int64Array
from quadriga.tasks.shapes import BOX_KEYS, ltwh_to_xyxy


class _Predicted(msgspec.Struct, gc=False):
    label: str
    score: Number
    xmin: Number
    ymin: Number
    xmax: Number
    ymax: Number


class _True(Truth, kw_only=True, gc=False):
    xmin: Number
    ymin: Number
    xmax: Number
    ymax: Number


class Detection:
    """The evaluation of `OBJECT_DETECTION`."""

    def tables(self, images: Sequence[EvaluatedImage], labels: Labels) -> dict[str, Table]:
        """Read boxes; see `Evaluator.tables`."""
        found = read_lists(images, "predictions", list[_Predicted], labels)
        there = read_lists(images, "ground_truth", list[_True], labels)
        return box_tables(found, _boxes(found), there, _boxes(there))

    def evaluate(self, state: State) -> Evaluated:
        """Look into a whole state."""
        return EvaluatedObjects(state, box_overlap(state), "box")


def box_tables(
    found: Listed, boxes: Float64Array, there: Listed, others: Float64Array
) -> dict[str, Table]:
    """Return the tables of objects whose boxes are (N, 4) and (M, 4), xywh."""
    return {
        "predictions": predictions_table(found, boxes[:, 2] * boxes[:, 3], box=boxes),
        "truths": truths_table(there, others[:, 2] * others[:, 3], box=others),
    }


def _boxes(listed: Listed) -> Float64Array:
    """Return boxes (N, 4), xywh."""
    corners = listed.numbers(*BOX_KEYS)
    sides = corners[:, 2:] - corners[:, :2]
    listed.check(
        sides.min(axis=1) >= 0,
        "xmin <= xmax and ymin <= ymax",
        lambda at: f"{', '.join(BOX_KEYS)} of {', '.join(map(str, corners[at].tolist()))}",
    )
    return np.concatenate([corners[:, :2], sides], axis=1)


def box_overlap(state: State) -> Overlap:
    """Return the overlap of boxes: intersection over union; of a crowd, over the prediction.

    Source: `bbIou` of COCO's `maskApi.c`, whose numbers these are.
    """
    found, there = state.tables["predictions"], state.tables["truths"]
    boxes, others = _sides(found["box"]), _sides(there["box"])
    crowd: BoolArray = there["crowd"]

    def overlap(prediction: Int64Array, truth: Int64Array) -> Float64Array:
        common = np.ones(len(prediction))
        for low, high in ((0, 2), (1, 3)):
            ends = np.minimum(boxes[high][prediction], others[high][truth])
            side = ends - np.maximum(boxes[low][prediction], others[low][truth])
            common *= np.maximum(side, 0)
        own = boxes[4][prediction]
        whole = np.where(crowd[truth], own, own + others[4][truth] - common)
        return np.divide(common, whole, out=np.zeros_like(common), where=common > 0)

    return overlap


def _sides(box: Float64Array) -> tuple[Float64Array, ...]:
    """Return left, top, right, bottom and area of boxes (N, 4), xywh."""
    x, y, width, height = np.ascontiguousarray(box.T)
    return *ltwh_to_xyxy(x, y, width, height), width * height

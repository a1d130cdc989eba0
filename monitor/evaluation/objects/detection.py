"""Boxes: how detections on the wire become tables, and how far two boxes overlap."""

from collections.abc import Sequence

import msgspec
import numpy as np

from quadriga.monitor.evaluation.evaluators import TaskMetrics
from quadriga.monitor.evaluation.item_tables import (
    ItemTable,
    annotations_table,
    predictions_table,
    read_item_table,
)
from quadriga.monitor.evaluation.objects.matching import OverlapFunction
from quadriga.monitor.evaluation.objects.object_metrics import ObjectMetrics
from quadriga.monitor.evaluation.state import (
    BoundedNumber,
    EvaluatedImage,
    EvaluationState,
    LabelNumbers,
    Table,
    TrueObject,
)
from quadriga.tasks.arrays import BoolArray, Float64Array, Int64Array
from quadriga.tasks.shapes import BOX_KEYS, ltwh_to_xyxy


class _PredictedBox(msgspec.Struct, gc=False):
    label: str
    score: BoundedNumber
    xmin: BoundedNumber
    ymin: BoundedNumber
    xmax: BoundedNumber
    ymax: BoundedNumber


class _TrueBox(TrueObject, kw_only=True, gc=False):
    xmin: BoundedNumber
    ymin: BoundedNumber
    xmax: BoundedNumber
    ymax: BoundedNumber


class DetectionEvaluator:
    """The evaluation of `OBJECT_DETECTION`."""

    def tables(self, images: Sequence[EvaluatedImage], labels: LabelNumbers) -> dict[str, Table]:
        """Read boxes; see `Evaluator.tables`."""
        found = read_item_table(images, "predictions", list[_PredictedBox], labels)
        there = read_item_table(images, "ground_truth", list[_TrueBox], labels)
        return box_tables(found, _boxes(found), there, _boxes(there))

    def evaluate(self, state: EvaluationState) -> TaskMetrics:
        """Look into a whole state."""
        return ObjectMetrics(state, box_overlap(state), "box")


def box_tables(
    found: ItemTable, boxes: Float64Array, there: ItemTable, others: Float64Array
) -> dict[str, Table]:
    """Return the tables of objects whose boxes are (N, 4) and (M, 4), xywh."""
    return {
        "predictions": predictions_table(found, boxes[:, 2] * boxes[:, 3], box=boxes),
        "truths": annotations_table(there, others[:, 2] * others[:, 3], box=others),
    }


def _boxes(listed: ItemTable) -> Float64Array:
    """Return boxes (N, 4), xywh."""
    corners = listed.numbers(*BOX_KEYS)
    sides = corners[:, 2:] - corners[:, :2]
    listed.check(
        sides.min(axis=1) >= 0,
        "xmin <= xmax and ymin <= ymax",
        lambda at: f"{', '.join(BOX_KEYS)} of {', '.join(map(str, corners[at].tolist()))}",
    )
    return np.concatenate([corners[:, :2], sides], axis=1)


def box_overlap(state: EvaluationState) -> OverlapFunction:
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

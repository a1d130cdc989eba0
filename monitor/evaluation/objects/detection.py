"""Object detection: tables of boxes from the wire, and the overlap of two boxes."""

from collections.abc import Sequence
from typing import ClassVar

import msgspec
import numpy as np

from quadriga.monitor.evaluation.evaluators import TaskMetrics
from quadriga.monitor.evaluation.metric_settings import DEFAULT_SETTINGS, MetricSettings
from quadriga.monitor.evaluation.objects.matching import OverlapFunction, overlap_of
from quadriga.monitor.evaluation.objects.object_metrics import OBJECT_SETTINGS, ObjectMetrics
from quadriga.monitor.evaluation.state import (
    BoundedNumber,
    EvaluatedImage,
    EvaluationState,
    ItemTable,
    LabelNumbers,
    Table,
    TrueObject,
    annotations_table,
    predictions_table,
    read_item_table,
)
from quadriga.tasks.arrays import BoolArray, Float64Array, Int64Array
from quadriga.tasks.predictions import BOX_KEYS


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
    """Evaluates `OBJECT_DETECTION`."""

    settings: ClassVar = OBJECT_SETTINGS

    def tables(self, images: Sequence[EvaluatedImage], labels: LabelNumbers) -> dict[str, Table]:
        """Read boxes; see `Evaluator.tables`."""
        predictions = read_item_table(images, "predictions", list[_PredictedBox], labels)
        annotations = read_item_table(images, "ground_truth", list[_TrueBox], labels)
        return box_tables(predictions, _boxes(predictions), annotations, _boxes(annotations))

    def evaluate(
        self, state: EvaluationState, settings: MetricSettings = DEFAULT_SETTINGS
    ) -> TaskMetrics:
        """Compute metrics of a merged state."""
        return ObjectMetrics(state, box_overlap(state), "box", settings)


def box_tables(
    predictions: ItemTable,
    predicted_boxes: Float64Array,
    annotations: ItemTable,
    true_boxes: Float64Array,
) -> dict[str, Table]:
    """Return the tables of predictions and annotations with boxes (N, 4) and (M, 4), xywh, pixels."""
    return {
        "predictions": predictions_table(
            predictions, predicted_boxes[:, 2] * predicted_boxes[:, 3], box=predicted_boxes
        ),
        "truths": annotations_table(
            annotations, true_boxes[:, 2] * true_boxes[:, 3], box=true_boxes
        ),
    }


def _boxes(items: ItemTable) -> Float64Array:
    """Return boxes float64 (N, 4), xywh, pixels."""
    corners = items.numbers(*BOX_KEYS)
    sides = corners[:, 2:] - corners[:, :2]
    items.check(
        sides.min(axis=1) >= 0,
        "xmin <= xmax and ymin <= ymax",
        lambda row: f"{', '.join(BOX_KEYS)} of {', '.join(map(str, corners[row].tolist()))}",
    )
    return np.concatenate([corners[:, :2], sides], axis=1)


def box_overlap(state: EvaluationState) -> OverlapFunction:
    """Return the overlap of boxes: intersection over union; with a crowd, over the area of the prediction.

    Source: `bbIou` of COCO's `maskApi.c`, with the same numbers.
    """
    predictions, annotations = state.tables["predictions"], state.tables["truths"]
    predicted_sides, true_sides = _sides(predictions["box"]), _sides(annotations["box"])
    crowd: BoolArray = annotations["crowd"]

    def overlap(prediction: Int64Array, annotation: Int64Array) -> Float64Array:
        intersection = np.ones(len(prediction))
        for low, high in ((0, 2), (1, 3)):
            ends = np.minimum(predicted_sides[high][prediction], true_sides[high][annotation])
            side = ends - np.maximum(predicted_sides[low][prediction], true_sides[low][annotation])
            intersection *= np.maximum(side, 0)
        areas = predicted_sides[4][prediction], true_sides[4][annotation]
        return overlap_of(intersection, *areas, crowd[annotation])

    return overlap


def _sides(box: Float64Array) -> tuple[Float64Array, ...]:
    """Return left, top, right, bottom and area of boxes (N, 4), xywh."""
    x, y, width, height = np.ascontiguousarray(box.T)
    return x, y, x + width, y + height, width * height

"""Oriented object detection: tables of boxes from the wire, the overlap of two boxes, COCO's and DOTA's rules."""

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

import msgspec
import numpy as np

from quadriga.monitor.evaluation.arrays import finite_or_none, joint_key, nan_mean, ratio
from quadriga.monitor.evaluation.evaluators import (
    CombinedMetrics,
    EvaluationDetails,
    Headline,
    TaskMetrics,
)
from quadriga.monitor.evaluation.labels.label_counts import weighted_totals
from quadriga.monitor.evaluation.metric_settings import DEFAULT_SETTINGS, MetricSettings
from quadriga.monitor.evaluation.objects.matching import OverlapFunction, near_pairs, overlap_of
from quadriga.monitor.evaluation.objects.object_metrics import OBJECT_SETTINGS, ObjectMetrics
from quadriga.monitor.evaluation.state import (
    BoundedMagnitude,
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
from quadriga.monitor.report.schema import Metric
from quadriga.tasks.arrays import BoolArray, Float64Array, Int64Array
from quadriga.tasks.geometry import (
    convex_intersection_areas,
    polygon_areas,
    relative_to_pixels,
    xywhr_to_corners,
)
from quadriga.tasks.predictions import ORIENTED_BOX_KEYS

_Pair = tuple[BoundedNumber, BoundedNumber]
_AT_ONCE = 4096
"""Maximum number of pairs of boxes that are clipped at once: their corners stay in the cache."""


class _PredictedBox(msgspec.Struct, gc=False):
    label: str
    score: BoundedNumber
    cx: BoundedNumber
    cy: BoundedNumber
    w: BoundedMagnitude
    h: BoundedMagnitude
    r: BoundedNumber


class _TrueBox(TrueObject):
    cx: BoundedNumber | None = None
    cy: BoundedNumber | None = None
    w: BoundedMagnitude | None = None
    h: BoundedMagnitude | None = None
    r: BoundedNumber | None = None
    corners: tuple[_Pair, _Pair, _Pair, _Pair] | None = None


class OrientedDetectionEvaluator:
    """Evaluates `ORIENTED_OBJECT_DETECTION`.

    The tables hold each object as `centre` (N, 2), in pixels of the image, and `corners` (N, 8): x and y
    of four corners, relative to the centre, clockwise on the screen and convex.
    """

    settings: ClassVar = OBJECT_SETTINGS

    def tables(self, images: Sequence[EvaluatedImage], labels: LabelNumbers) -> dict[str, Table]:
        """Read oriented boxes; see `Evaluator.tables`."""
        predictions = read_item_table(images, "predictions", list[_PredictedBox], labels)
        annotations = read_item_table(images, "ground_truth", list[_TrueBox], labels)
        sizes = np.array([(image.width or 0, image.height or 0) for image in images], np.float64)
        boxes = _boxes(predictions, sizes.reshape(-1, 2))
        centre, corners = _shapes(annotations, sizes.reshape(-1, 2))
        predicted_corners = _relative_corners(boxes).reshape(-1, 8)
        return {
            "predictions": predictions_table(
                predictions,
                boxes[:, 2] * boxes[:, 3],
                centre=boxes[:, :2],
                corners=predicted_corners,
            ),
            "truths": annotations_table(
                annotations, polygon_areas(corners), centre=centre, corners=corners.reshape(-1, 8)
            ),
        }

    def evaluate(
        self, state: EvaluationState, settings: MetricSettings = DEFAULT_SETTINGS
    ) -> TaskMetrics:
        """Compute metrics of a merged state, by COCO's rule and by DOTA's."""
        overlap = oriented_overlap(state)
        coco = ObjectMetrics(state, overlap, "oriented box", settings)
        dota_overlap = oriented_overlap(state, crowds=False)
        return CombinedMetrics(
            [coco, DotaMetrics(state, dota_overlap, settings.iou or IOU_THRESHOLDS)]
        )


def oriented_overlap(state: EvaluationState, *, crowds: bool = True) -> OverlapFunction:
    """Return the exact overlap of oriented boxes: intersection over union.

    If `crowds`, the overlap with a crowd is the intersection over the area of the prediction.
    """
    predictions, annotations = state.tables["predictions"], state.tables["truths"]
    predicted_corners, true_corners = (
        table["corners"].reshape(-1, 4, 2) for table in (predictions, annotations)
    )
    predicted_areas, true_areas = polygon_areas(predicted_corners), polygon_areas(true_corners)
    crowd = annotations["crowd"] & crowds

    def overlap(prediction: Int64Array, annotation: Int64Array) -> Float64Array:
        intersection = np.zeros(len(prediction))
        for start in range(0, len(prediction), _AT_ONCE):
            chunk = slice(start, start + _AT_ONCE)
            predicted_rows, true_rows = prediction[chunk], annotation[chunk]
            offset = predictions["centre"][predicted_rows] - annotations["centre"][true_rows]
            intersection[chunk] = _common_areas(
                predicted_corners[predicted_rows] + offset[:, None], true_corners[true_rows]
            )
        areas = predicted_areas[prediction], true_areas[annotation]
        # Rounding may exceed 1.
        iou: Float64Array = np.minimum(overlap_of(intersection, *areas, crowd[annotation]), 1)
        return iou

    return overlap


def _common_areas(first: Float64Array, second: Float64Array) -> Float64Array:
    """Return the intersection areas of pairs (P, 4, 2); only pairs with overlapping upright frames are clipped."""
    frames_meet = (first.min(axis=1) < second.max(axis=1)) & (
        second.min(axis=1) < first.max(axis=1)
    )
    indices = np.flatnonzero(frames_meet.all(axis=1))
    areas = np.zeros(len(first))
    areas[indices] = convex_intersection_areas(first[indices], second[indices])
    return areas


def _boxes(items: ItemTable, sizes: Float64Array) -> Float64Array:
    """Return boxes float64 (N, 5), xywhr, pixels; the sizes of the images are (I, 2)."""
    scale = sizes[items.table["image"]]
    items.check(scale.min(axis=1) > 0, "width and height of the image")
    return relative_to_pixels(items.numbers(*ORIENTED_BOX_KEYS), scale)


def _shapes(items: ItemTable, sizes: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Return centres (N, 2) and corners relative to them (N, 4, 2), from corners or from boxes."""
    has_corners: BoolArray = np.array([item.corners is not None for item in items.rows], bool)
    box_rows = np.flatnonzero(~has_corners)
    box_items = items.take(box_rows)
    boxes = _boxes(box_items, sizes)
    box_items.check(~np.isnan(boxes.sum(axis=1)), "corners, or cx, cy, w, h and r")
    centre, corners = np.zeros((len(has_corners), 2)), np.zeros((len(has_corners), 4, 2))
    centre[box_rows], corners[box_rows] = boxes[:, :2], _relative_corners(boxes)
    quads = np.array([item.corners for item in items.rows if item.corners], np.float64)
    quads = quads.reshape(-1, 4, 2)
    centre[has_corners] = quads.mean(axis=1)
    corners[has_corners] = order_corners(quads - centre[has_corners][:, None])
    return centre, corners


def _relative_corners(boxes: Float64Array) -> Float64Array:
    """Return the corners (N, 4, 2) of boxes (N, 5), xywhr, relative to their centres: small numbers round less."""
    return xywhr_to_corners(boxes * (0, 0, 1, 1, 1))


def order_corners(corners: Float64Array) -> Float64Array:
    """Sort four corners into the order in which they form a convex polygon.

    Args:
        corners: float64 (N, 4, 2), relative to about their middle, in any order.

    Returns:
        Corners clockwise on the screen; a corner within the other three is replaced by its neighbour.
    """
    offset = corners - corners.mean(axis=1, keepdims=True)
    order = np.argsort(np.arctan2(offset[..., 1], offset[..., 0]), axis=1, kind="stable")
    ordered = np.take_along_axis(corners, order[..., None], axis=1)
    previous, following = np.roll(ordered, 1, axis=1), np.roll(ordered, -1, axis=1)
    incoming, outgoing = ordered - previous, following - ordered
    turn = incoming[..., 0] * outgoing[..., 1] - incoming[..., 1] * outgoing[..., 0]
    return np.where((turn < 0)[..., None], previous, ordered)


IOU_THRESHOLDS = (0.5, 0.75)
"""Match thresholds, which the overlap must exceed."""
RULES = ("DOTA VOC07", "DOTA VOC12")
"""Rules of average precision: mean of the best precisions at eleven recalls; area under the best precisions."""
_RECALLS = np.arange(0.0, 1.1, 0.1)
"""Eleven recalls, computed as in the kit: the fourth is slightly above 0.3."""
_BLOCK_PAIRS = 1 << 21
"""Maximum number of predictions times weightings that are counted at once: bounds the memory."""


class DotaMetrics:
    """Metrics of objects by DOTA's rule, which has no crowds: they count as difficult.

    Args:
        state: State with the tables `predictions` (image, label, score) and `truths` (image, label, crowd,
            difficult).
        overlap: Intersection over union of pairs.
        iou: Match thresholds.
    """

    def __init__(
        self,
        state: EvaluationState,
        overlap: OverlapFunction,
        iou: Sequence[float] = IOU_THRESHOLDS,
    ) -> None:
        self._iou = iou
        predictions, annotations = state.tables["predictions"], state.tables["truths"]
        self._labels, self._images = state.labels, len(state.ids)
        ignored = annotations["difficult"] | annotations["crowd"]
        self._annotations = annotations["image"], np.where(ignored, -1, annotations["label"])
        order = np.lexsort((-predictions["score"], predictions["label"]))
        self._images_of_rows = predictions["image"][order]
        self._bounds = np.searchsorted(
            predictions["label"][order], np.arange(len(self._labels) + 1)
        )
        prediction_keys, annotation_keys = (
            joint_key(table["image"], table["label"]) for table in (predictions, annotations)
        )
        pairs = near_pairs(
            {"image": prediction_keys[order]},
            {"image": annotation_keys},
            lambda prediction, matched_object: overlap(order[prediction], matched_object),
            min(iou),
        )
        # Among objects with equal overlap the first counts.
        pairs = pairs.select(np.argsort(-pairs.overlap, kind="stable")[::-1])
        best, matched_object = pairs.last_of_each(len(order))
        near = best > np.array(iou)[:, None]
        skipped = near & np.append(ignored, False)[matched_object]
        self._is_correct = np.stack(
            [_first(near_row, matched_object) for near_row in near & ~skipped]
        )
        self._is_incorrect = ~self._is_correct & ~skipped

    def headlines(self, weights: Float64Array) -> list[Headline]:
        """Compute the mean over labels for each threshold, rule and weighting (B, I)."""
        means = nan_mean(self._precisions(weights))
        return [
            Headline(
                "AP",
                {"rule": rule, "iou": threshold, "label": None},
                means[:, rule_index, threshold_index],
            )
            for threshold_index, threshold in enumerate(self._iou)
            for rule_index, rule in enumerate(RULES)
        ]

    def details(self) -> EvaluationDetails:
        """Compute the average precision of each label."""
        [values] = self._precisions(np.ones((1, self._images)))
        metrics = [
            Metric("AP", finite_or_none(value), {"rule": rule, "iou": threshold, "label": label})
            for label_index, label in enumerate(self._labels)
            for threshold_index, threshold in enumerate(self._iou)
            for rule, value in zip(RULES, values[:, threshold_index, label_index], strict=True)
        ]
        rules = {"rules": RULES, "iou_above": self._iou, "difficult": "ignored"}
        return EvaluationDetails(metrics=metrics, parameters={"dota": rules})

    def _precisions(self, weights: Float64Array) -> Float64Array:
        """Return average precisions (B, R, T, K) of weightings (B, I), NaN without objects."""
        shape = len(RULES), len(self._iou), len(self._labels)
        values = np.full((len(weights), *shape), np.nan)
        actual_counts = weighted_totals(weights, *self._annotations, len(self._labels))
        for label, span in enumerate(pairwise(self._bounds)):
            rows = slice(*span)
            image, is_correct, is_incorrect = (
                self._images_of_rows[rows],
                self._is_correct[:, rows],
                self._is_incorrect[:, rows],
            )
            block_size = max(_BLOCK_PAIRS // max(len(image), 1), 1)
            for start in range(0, len(weights), block_size):
                block = slice(start, start + block_size)
                counts = weights[block][:, image]
                for index in range(len(self._iou)):
                    values[block, :, index, label] = _average_precisions(
                        counts, is_correct[index], is_incorrect[index], actual_counts[block, label]
                    )
        return values


def _first(is_near: BoolArray, matched_object: Int64Array) -> BoolArray:
    """Return (N,) which predictions, by falling score, are the first that match their object."""
    near_indices = np.flatnonzero(is_near)
    _, first = np.unique(matched_object[near_indices], return_index=True)
    is_first = np.zeros(len(is_near), bool)
    is_first[near_indices[first]] = True
    return is_first


def _average_precisions(
    counts: Float64Array,
    is_correct: BoolArray,
    is_incorrect: BoolArray,
    actual_counts: Float64Array,
) -> Float64Array:
    """Return the average precisions (B, 2) of one label by both rules.

    Args:
        counts: How often each prediction counts, (B, D), by falling score.
        is_correct: Whether each prediction is correct, (D,).
        is_incorrect: Whether each prediction is incorrect, (D,); neither if it matches an ignored object.
        actual_counts: Number of objects, (B,).
    """
    true_positives, false_positives = (
        np.cumsum(counts * is_correct, axis=1),
        np.cumsum(counts * is_incorrect, axis=1),
    )
    # Recall rises only at correct predictions, where the best precision is, too.
    true_positives, false_positives = true_positives[:, is_correct], false_positives[:, is_correct]
    precision = true_positives / np.maximum(
        true_positives + false_positives, np.finfo(np.float64).eps
    )
    precision = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    recall = ratio(true_positives, np.broadcast_to(actual_counts[:, None], true_positives.shape))
    padded = np.pad(precision, ((0, 0), (0, 1)))  # for recalls that are never reached
    indices = (recall[:, None] < _RECALLS[:, None]).sum(axis=2)
    eleven = sum(np.take_along_axis(padded, indices, axis=1).T / 11.0)
    area = (np.diff(recall, axis=1, prepend=0) * precision).sum(axis=1)
    return np.where(actual_counts[:, None] > 0, np.stack([eleven, area], axis=1), np.nan)

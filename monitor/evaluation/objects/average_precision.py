"""Average precision and recall over many images, as COCO defines them, and their metrics in a report.

Source: `pycocotools.cocoeval.COCOeval.accumulate` and `summarize`, with the same numbers, but NaN instead of
-1 if there are no objects.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from quadriga.monitor.evaluation.arrays import finite_or_none, index_within_groups, nan_mean
from quadriga.monitor.evaluation.objects.matching import CORRECT, INCORRECT, RankedPredictions
from quadriga.monitor.report.schema import Metric
from quadriga.tasks.arrays import BoolArray, Float64Array, Int64Array

IOU_THRESHOLDS: Float64Array = np.linspace(0.5, 0.95, 10)
RECALLS: Float64Array = np.linspace(0, 1, 101)
AREA_RANGES: Float64Array = np.array(
    [(0, 1e10), (0, 32**2), (32**2, 96**2), (96**2, 1e10)], np.float64
)
"""Ranges of area: all, small, medium and large, in square pixels, both ends included."""

MAX_DETECTIONS = (1, 10, 100)
"""Maximum numbers of predictions that count per image and label."""


class PrecisionCurves(NamedTuple):
    """Precision over recall, per label (K) and threshold (T)."""

    precision: Float64Array
    """Best precision at each of `RECALLS` or above, (K, T, R)."""
    scores: Float64Array
    """Score of the prediction at which the recall is reached, (K, T, R); 0 if it never is."""
    recall: Float64Array
    """Maximum recall, (K, T)."""


def precision_recall_curves(ranking: RankedPredictions) -> PrecisionCurves:
    """Compute precision over recall of each label, at all thresholds, in the first range of area."""
    labels = len(ranking.bounds) - 1
    shape = labels, len(ranking.outcome)
    precision = np.full((*shape, len(RECALLS)), np.nan)
    scores = np.full_like(precision, np.nan)
    recall = np.full(shape, np.nan)
    actual_counts = ranking.actual_counts.sum(axis=1)[:labels].astype(np.int64)
    for label in np.flatnonzero(actual_counts).tolist():
        span = ranking.label_span(label, label + 1)
        outcome = ranking.outcome[:, 0, span]
        precision[label], scores[label], recall[label] = _curve(
            outcome == CORRECT, outcome == INCORRECT, ranking.score[span], int(actual_counts[label])
        )
    return PrecisionCurves(precision, scores, recall)


def _curve(
    is_correct: BoolArray, is_incorrect: BoolArray, score: Float64Array, actual_count: int
) -> tuple[Float64Array, Float64Array, Float64Array | float]:
    """Return precision (T, R), score (T, R) and maximum recall (T,) of predictions, by falling score.

    The best precision from a prediction on is always that of a correct one, so only those are considered.
    """
    thresholds, count = is_correct.shape
    precision = np.zeros((thresholds, len(RECALLS)))
    scores = np.zeros_like(precision)
    if not count:
        return precision, scores, 0.0
    correct_counts = is_correct.sum(axis=1)
    row, columns = np.nonzero(is_correct)
    correct_before = index_within_groups(correct_counts)
    position = np.zeros(
        (thresholds, correct_counts.max() + 1), np.int64
    )  # of the n-th that is right
    position[row, correct_before] = columns
    best = np.zeros(position.shape)
    incorrect_before = np.cumsum(is_incorrect, axis=1)
    hits = correct_before + 1
    best[row, correct_before] = hits / (hits + incorrect_before[row, columns] + np.spacing(1))
    best = np.maximum.accumulate(best[:, ::-1], axis=1)[:, ::-1]
    needed = np.searchsorted(np.arange(actual_count + 1) / actual_count, RECALLS, "left")
    reached = needed <= correct_counts[:, None]
    nth_correct = np.minimum(np.maximum(needed - 1, 0), correct_counts.max())
    precision[reached] = best[:, nth_correct][reached]
    scores[reached] = np.where(needed, score[position[:, nth_correct]], score[0])[reached]
    return precision, scores, correct_counts / actual_count


def average_precisions(
    label: Int64Array, score: Float64Array, is_correct: BoolArray, actual_counts: Int64Array
) -> Float64Array:
    """Return the average precision (K,) of each label at one threshold, NaN without objects.

    Args:
        label: Labels of predictions (N,), without ignored ones.
        score: Scores (N,); equal scores stay in this order.
        is_correct: Whether each prediction is correct, (N,).
        actual_counts: Number of objects of each label, (K,).
    """
    order = np.lexsort((-score, label))
    bounds = np.searchsorted(label[order], np.arange(len(actual_counts) + 1))
    averages = np.full(len(actual_counts), np.nan)
    for label_index in np.flatnonzero(actual_counts):
        indices = order[bounds[label_index] : bounds[label_index + 1]]
        precision, *_ = _curve(
            is_correct[None, indices],
            ~is_correct[None, indices],
            score[indices],
            int(actual_counts[label_index]),
        )
        averages[label_index] = precision.mean()
    return averages


AREA_NAMES = ("all", "small", "medium", "large")
"""Names of `AREA_RANGES`."""

MEAN_IOU = "0.50:0.95"
"""COCO's notation for the mean over its ten thresholds."""

_MAX_CURVES = 2
"""Maximum number of thresholds with a curve for each label."""


class MatchThresholds(NamedTuple):
    """Match thresholds of average precision and recall, with the names that a report gives them."""

    values: Float64Array
    """Thresholds (T,); the first decides which predictions are right where there is only one."""
    ious: list[float]
    """The same as the report names them."""
    mean: str | float
    """Name of the mean over all; the threshold itself if there is one."""
    single: list[int]
    """Positions of the thresholds that have numbers of their own beside the mean."""


COCO_THRESHOLDS = MatchThresholds(
    IOU_THRESHOLDS, IOU_THRESHOLDS.round(2).tolist(), MEAN_IOU, single=[0, 5]
)


def match_thresholds(iou: Sequence[float] | None) -> MatchThresholds:
    """Return the thresholds that were chosen; COCO's for None, or for the same ten."""
    if iou is None or list(iou) == COCO_THRESHOLDS.ious:
        return COCO_THRESHOLDS
    if len(iou) == 1:
        return MatchThresholds(np.array(iou), [*iou], iou[0], single=[])
    name = "/".join(f"{threshold:g}" for threshold in sorted(iou))
    return MatchThresholds(np.array(iou), [*iou], name, single=[*range(len(iou))])


def coco_parameters(thresholds: MatchThresholds) -> list[tuple[str, dict[str, Any]]]:
    """Return the type and the parameters of COCO's numbers, in its order: twelve for its own thresholds."""
    sizes, max_count = AREA_NAMES[1:], MAX_DETECTIONS[-1]
    mean, single = thresholds.mean, [thresholds.ious[index] for index in thresholds.single]
    rows: list[tuple[str, str | float, str, int]] = [
        *(("AP", iou, "all", max_count) for iou in (mean, *single)),
        *(("AP", mean, area, max_count) for area in sizes),
        *(("AR", mean, "all", max_detections) for max_detections in MAX_DETECTIONS),
        *(("AR", mean, area, max_count) for area in sizes),
    ]
    return [(kind, _parameters(iou, area, count, None)) for kind, iou, area, count in rows]


def label_parameters(iou: str | float, label: str) -> dict[str, Any]:
    """Return the parameters of a label's metric."""
    return {**_parameters(iou, "all", MAX_DETECTIONS[-1], label), "n": "objects"}


def _parameters(
    iou: str | float, area: str, max_detections: int, label: str | None
) -> dict[str, Any]:
    return {"rule": "COCO", "iou": iou, "area": area, "max_dets": max_detections, "label": label}


def label_precision_metrics(
    precision_curves: PrecisionCurves,
    labels: list[str],
    actual_counts: Int64Array,
    thresholds: MatchThresholds,
) -> list[Metric]:
    """Return AP of labels (K,), also at single thresholds, and AR; None without objects."""
    precision, mean = precision_curves.precision.mean(axis=2), thresholds.mean  # (K, T)
    values: list[tuple[str, str | float, Float64Array]] = [("AP", mean, precision.mean(axis=1))]
    values += [("AP", thresholds.ious[index], precision[:, index]) for index in thresholds.single]
    values += [("AR", mean, precision_curves.recall.mean(axis=1))]
    return [
        Metric(
            kind,
            finite_or_none(precisions[index]),
            label_parameters(iou, label),
            n=int(actual_counts[index]),
        )
        for kind, iou, precisions in values
        for index, label in enumerate(labels)
    ]


def precision_curve_rows(
    precision_curves: PrecisionCurves, labels: list[str], thresholds: MatchThresholds
) -> list[dict[str, Any]]:
    """Return precision over recall with scores: the mean at each threshold, each label at two at most.

    A score is None if the recall is not reached; mean scores are over the labels that reach it.
    """
    labels_present = np.flatnonzero(~np.isnan(precision_curves.recall[:, 0]))
    if not labels_present.size:
        return []
    precision = precision_curves.precision[labels_present]
    reached = (precision_curves.recall[labels_present, :, None] >= RECALLS) & (precision > 0)
    score = np.where(reached, precision_curves.scores[labels_present], np.nan)
    mean = nan_mean(np.stack([*score], axis=-1))
    rows = [
        _curve_row(None, iou, precision[:, index].mean(axis=0), mean[index])
        for index, iou in enumerate(thresholds.ious)
    ]
    for index, label in enumerate(labels_present):
        for position in (thresholds.single or [0])[:_MAX_CURVES]:
            iou, at = thresholds.ious[position], (index, position)
            rows.append(_curve_row(labels[label], iou, precision[at], score[at]))
    return rows


def _curve_row(
    label: str | None, iou: float, precision: Float64Array, score: Float64Array
) -> dict[str, Any]:
    return {
        "label": label,
        "iou": iou,
        "recall": RECALLS.round(2).tolist(),
        "precision": precision.tolist(),
        "score": [finite_or_none(value) for value in score],
    }

"""Average precision and recall over many images, as COCO defines them, and their metrics in a report.

Source: `pycocotools.cocoeval.COCOeval.accumulate` and `summarize`, with the same numbers, but NaN instead of
-1 if there are no objects. With weighted images, as intervals need them, all twelve numbers are computed for many
weightings at once.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from quadriga.monitor.evaluation.arrays import (
    cumulative_before,
    finite_or_none,
    index_within_groups,
    nan_mean,
    run_starts,
)
from quadriga.monitor.evaluation.objects.matching import (
    CORRECT,
    IGNORED,
    INCORRECT,
    RankedPredictions,
)
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


_AT_ONCE = 1 << 18
"""Maximum number of values of a table processed at once: they fit into the CPU's caches."""

_CACHE_LINE = 8
"""Minimum number of weightings processed at once, a cache line of float64, within `_MAX_VALUES`."""

_MAX_VALUES = 1 << 23
"""Maximum number of values processed at once for a full cache line of weightings."""


class _LabelBlock(NamedTuple):
    """Predictions (n,) of a range of labels (L), as ranked, and the correct ones (E,) at all thresholds and areas.

    A group is a combination of threshold, range of area and label; groups are numbered in this order.
    """

    thresholds: int
    """Number of thresholds (T)."""
    image: Int64Array
    inside: Float64Array
    """1.0 if the prediction's area is inside of the range, else 0.0, (A, n)."""
    label_start: Int64Array
    """First prediction with the same label, (n,)."""
    correct: Int64Array
    """Positions of the correct predictions, (E,), by group and falling score."""
    group: Int64Array
    """Group of each correct prediction, (E,)."""
    early: list[Int64Array]
    """Indices into (E,) of those among the first 1 and the first 10 of their image, over all areas."""
    exception: Int64Array
    """Positions of predictions that count although outside, or do not although inside, (X,), sorted as `correct`."""
    exception_sign: Float64Array
    """1.0 or -1.0, (X,)."""
    exception_span: tuple[Int64Array, Int64Array]
    """Range of the exceptions before each correct prediction within its group, (E,) each."""


def coco_numbers(
    ranking: RankedPredictions,
    weights: Float64Array,
    single: Sequence[int] = COCO_THRESHOLDS.single,
) -> tuple[Float64Array, Float64Array]:
    """Compute COCO's numbers (N, B), in its order, and each label's average precision (K, B). NaN without objects.

    An average precision is the sum, over the correct predictions, of the best precision from there on, times the
    number of the 101 recalls that are reached there. So no lookup per recall is needed, and a weighting costs about
    as much as summing its predictions.

    Args:
        ranking: Outcomes of the predictions.
        weights: Whole numbers of 0 or more, by image, (B, I).
        single: Positions of the match thresholds with an average precision of their own. All other numbers, and those
            of labels, are means over all thresholds.
    """
    shape = len(AREA_RANGES), len(ranking.bounds) - 1, len(weights)
    actual_counts = (ranking.actual_counts @ weights.T).reshape(shape)
    weights_by_image = np.ascontiguousarray(weights.T)
    is_used = weights.max(axis=0, initial=0) > 0
    thresholds = len(ranking.outcome)
    precision = np.zeros((thresholds, len(AREA_RANGES), len(weights)))
    recall = np.zeros_like(precision)
    early = np.zeros((len(MAX_DETECTIONS) - 1, thresholds, len(weights)))
    by_label = np.full(shape[1:], np.nan)
    for start, stop in _spans(ranking.bounds, _AT_ONCE // (4 * max(len(weights), 1))):
        block = _label_block(ranking, start, stop, is_used)
        rows = len(block.correct) + block.inside.size + 1
        columns_at_once = max(1, _AT_ONCE // rows, min(_CACHE_LINE, _MAX_VALUES // rows))
        for first_column in range(0, len(weights), columns_at_once):
            columns_slice = np.s_[..., first_column : first_column + columns_at_once]
            block_numbers = _block_numbers(
                block, weights_by_image[columns_slice], actual_counts[:, start:stop][columns_slice]
            )
            precision[columns_slice] += block_numbers[0].sum(axis=2)
            by_label[start:stop][columns_slice] = block_numbers[0][:, 0].mean(axis=0)
            recall[columns_slice] += block_numbers[1]
            early[columns_slice] += block_numbers[2]
    labels = np.count_nonzero(actual_counts, axis=1)  # (A, B)
    with np.errstate(invalid="ignore"):
        precision /= labels
        recall /= labels
        early /= labels[0]
    numbers = np.array(
        [
            precision[:, 0].mean(axis=0),
            *(precision[index, 0] for index in single),
            *precision[:, 1:].mean(axis=0),
            *early.mean(axis=1),
            *recall.mean(axis=0),
        ]
    )
    return numbers, np.where(actual_counts[0] > 0, by_label, np.nan)


def _spans(bounds: Int64Array, max_predictions: int) -> Iterator[tuple[int, int]]:
    """Divide labels into runs of about `max_predictions` predictions, at least one label each."""
    block_number = bounds[:-1] // max(max_predictions, 1)
    return pairwise([*run_starts(block_number).tolist(), len(block_number)])


def _label_block(
    ranking: RankedPredictions, start_label: int, stop_label: int, is_used: BoolArray
) -> _LabelBlock:
    span = ranking.label_span(start_label, stop_label)
    outcome, outside = ranking.outcome[:, :, span], ranking.outside[:, span]
    image, rank = ranking.image[span], ranking.rank[span]
    bounds = ranking.bounds[start_label : stop_label + 1] - ranking.bounds[start_label]
    is_used_row = is_used[image]
    if not is_used_row.all():
        outcome, outside = outcome[:, :, is_used_row], outside[:, is_used_row]
        image, rank = image[is_used_row], rank[is_used_row]
        bounds = np.append(0, np.cumsum(is_used_row))[bounds]
    label = np.repeat(np.arange(stop_label - start_label), np.diff(bounds))
    correct_cells = np.flatnonzero(outcome == CORRECT)
    exception_cells = np.flatnonzero((outcome == IGNORED) != outside)
    row, correct = np.divmod(correct_cells, max(len(image), 1))
    exception_row, exception = np.divmod(exception_cells, max(len(image), 1))
    group = row * (stop_label - start_label) + label[correct]
    exception_group = exception_row * (stop_label - start_label) + label[exception]
    is_all_areas = row % len(AREA_RANGES) == 0
    return _LabelBlock(
        thresholds=len(outcome),
        image=image,
        inside=(~outside).astype(np.float64),
        label_start=bounds[label],
        correct=correct,
        group=group,
        early=[
            np.flatnonzero((rank[correct] < count) & is_all_areas) for count in MAX_DETECTIONS[:-1]
        ],
        exception=exception,
        exception_sign=np.where(outside[exception_row % len(AREA_RANGES), exception], 1.0, -1.0),
        exception_span=(
            np.searchsorted(exception_group, group),
            np.searchsorted(exception_cells, correct_cells, "right"),
        ),
    )


def _block_numbers(
    block: _LabelBlock, columns: Float64Array, actual_counts: Float64Array
) -> tuple[Float64Array, Float64Array, Float64Array]:
    """Return average precision (T, A, L, B), recall (T, A, B) and recall among the first 1 and 10 (2, T, B).

    Weights are (I, B), numbers of objects (A, L, B); both recalls are summed over labels.
    """
    shape = block.thresholds, *actual_counts.shape
    groups = int(np.prod(shape[:3]))
    row_weights = columns.take(block.image, axis=0)
    actual = np.maximum(actual_counts, 1)  # without objects no prediction is correct
    area, label = np.divmod(block.group % (shape[1] * shape[2]), shape[2])
    group_starts = run_starts(block.group)
    bounds = [*group_starts.tolist(), len(block.group)]
    group_ids = block.group[group_starts]

    hits = row_weights.take(block.correct, axis=0)
    early = np.stack(
        [_sums(hits.take(subset, axis=0), block.group[subset], groups) for subset in block.early]
    )
    early = (early.reshape(-1, *shape)[:, :, 0] / actual[0]).sum(axis=2)
    correct = _running(hits, np.repeat(group_starts, np.diff(bounds)), np.arange(1, len(hits) + 1))
    believed = cumulative_before(row_weights * block.inside[:, :, None]).reshape(-1, shape[-1])
    area_offset = area * (len(row_weights) + 1)
    precision = believed.take(area_offset + block.correct + 1, axis=0)
    precision -= believed.take(area_offset + block.label_start[block.correct], axis=0)
    precision += _running(
        row_weights[block.exception] * block.exception_sign[:, None], *block.exception_span
    )
    precision += np.spacing(1)
    np.divide(correct, precision, out=precision)
    actual = actual.reshape(-1, shape[-1]).take(area * shape[2] + label, axis=0)
    recalls = np.divide(correct, actual, out=correct)
    for span in pairwise(bounds):
        backwards = precision[slice(*span)][::-1]
        np.maximum.accumulate(backwards, axis=0, out=backwards)
    recall = np.zeros((groups, shape[-1]))
    recall[group_ids] = recalls[[stop - 1 for stop in bounds[1:]]]
    average_precision = _sums(precision * _steps(recalls, group_starts), block.group, groups) / len(
        RECALLS
    )
    return average_precision.reshape(shape), recall.reshape(shape).sum(axis=2), early


def _steps(recalls: Float64Array, group_starts: Int64Array) -> Float64Array:
    """Count how many of the 101 recalls are reached by each row (E, B), and not by the row before."""
    reached = recalls * 100
    reached += 1e-9
    np.floor(reached, out=reached)
    reached += reached * 0.01 <= recalls  # as `RECALLS` rounds them
    step_counts = reached.copy()
    step_counts[1:] -= reached[:-1]
    step_counts[group_starts] = reached[group_starts]
    return step_counts


def _running(values: Float64Array, starts: Int64Array, stops: Int64Array) -> Float64Array:
    """Sum ranges of rows (N, B); exact, because the values are whole numbers."""
    sums = cumulative_before(values)
    differences = sums.take(stops, axis=0)
    differences -= sums.take(starts, axis=0)
    return differences


def _sums(values: Float64Array, group: Int64Array, groups: int) -> Float64Array:
    """Sum rows by group; groups are ascending."""
    sums = np.zeros((groups, values.shape[1]))
    group_starts = run_starts(group)
    if group_starts.size:
        sums[group[group_starts]] = np.add.reduceat(values, group_starts, axis=0)
    return sums

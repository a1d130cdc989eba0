"""COCO's numbers with weighted images, for many weightings at once: twelve for its own match thresholds.

An average precision is the sum, over the correct predictions, of the best precision from there on, times the
number of the 101 recalls that are reached there. So no lookup per recall is needed, and a weighting costs about
as much as summing its predictions.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from quadriga.monitor.evaluation.arrays import cumulative_before, run_starts
from quadriga.monitor.evaluation.objects.average_precision import (
    AREA_RANGES,
    COCO_THRESHOLDS,
    MAX_DETECTIONS,
    RECALLS,
)
from quadriga.monitor.evaluation.objects.matching import CORRECT, IGNORED, RankedPredictions
from quadriga.tasks.arrays import BoolArray, Float64Array, Int64Array

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

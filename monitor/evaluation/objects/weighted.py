"""COCO's twelve numbers as if each image were there so many times, for many weightings at once.

An average precision is the sum, over the predictions that are right, of the best precision from there on,
times how many of the 101 recalls are reached there. So nothing is looked up per recall, and a weighting
costs about what adding up its predictions costs.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from quadriga.monitor.evaluation.arrays import cumulative_before, run_starts
from quadriga.monitor.evaluation.objects.average_precision import (
    AREA_RANGES,
    IOU_THRESHOLDS,
    MAX_DETECTIONS,
    RECALLS,
)
from quadriga.monitor.evaluation.objects.matching import CORRECT, IGNORED, RankedPredictions
from quadriga.tasks.arrays import BoolArray, Float64Array, Int64Array

_AT_ONCE = 1 << 18
"""Numbers of one table looked at together: as many as caches hold."""

_FEW = 8
"""Weightings looked at together at least, as a line of the cache holds so many, ..."""

_MOST = 1 << 23
"""... if they are not more numbers than this."""


class _LabelBlock(NamedTuple):
    """Predictions (n,) of some labels (L), as ranked, and the right ones (E,) at all thresholds and areas.

    A group is a threshold, a range of area and a label: groups are numbered in this order.
    """

    image: Int64Array
    inside: Float64Array
    """(A, n) 1 where its own area is inside of the range, else 0."""
    begin: Int64Array
    """(n,) where its label begins."""
    place: Int64Array
    """(E,) of the right ones, by group and falling score."""
    group: Int64Array
    """(E,)."""
    early: list[Int64Array]
    """Which of (E,) are also among the first 1 and 10 of their image, over all areas."""
    odd_place: Int64Array
    """(X,) of those that count although outside, or do not although inside, sorted as `place`."""
    odd: Float64Array
    """(X,) 1 or -1."""
    odd_span: tuple[Int64Array, Int64Array]
    """(E,) the odd ones before it within its group."""


def coco_numbers(
    ranking: RankedPredictions, weights: Float64Array
) -> tuple[Float64Array, Float64Array]:
    """Compute COCO's twelve numbers (12, B), in its order, and each label's average precision (K, B).

    Over weights (B, I) of images, whole numbers of 0 or more; of labels over all thresholds and areas. NaN
    where there is nothing to find.
    """
    shape = len(AREA_RANGES), len(ranking.bounds) - 1, len(weights)
    to_find = (ranking.actual_counts @ weights.T).reshape(shape)
    columns = np.ascontiguousarray(weights.T)
    used = weights.max(axis=0, initial=0) > 0
    precision = np.zeros((len(IOU_THRESHOLDS), len(AREA_RANGES), len(weights)))
    recall = np.zeros_like(precision)
    early = np.zeros((len(MAX_DETECTIONS) - 1, len(IOU_THRESHOLDS), len(weights)))
    by_label = np.full(shape[1:], np.nan)
    for first, after in _spans(ranking.bounds, _AT_ONCE // (4 * max(len(weights), 1))):
        part = _label_block(ranking, first, after, used)
        rows = len(part.place) + part.inside.size + 1
        wide = max(1, _AT_ONCE // rows, min(_FEW, _MOST // rows))
        for low in range(0, len(weights), wide):
            of = np.s_[..., low : low + wide]
            found = _block_numbers(part, columns[of], to_find[:, first:after][of])
            precision[of] += found[0].sum(axis=2)
            by_label[first:after][of] = found[0][:, 0].mean(axis=0)
            recall[of] += found[1]
            early[of] += found[2]
    labels = np.count_nonzero(to_find, axis=1)  # (A, B)
    with np.errstate(invalid="ignore"):
        precision /= labels
        recall /= labels
        early /= labels[0]
    twelve = np.array(
        [
            precision[:, 0].mean(axis=0),
            precision[0, 0],
            precision[5, 0],
            *precision[:, 1:].mean(axis=0),
            *early.mean(axis=1),
            *recall.mean(axis=0),
        ]
    )
    return twelve, np.where(to_find[0] > 0, by_label, np.nan)


def _spans(bounds: Int64Array, most: int) -> Iterator[tuple[int, int]]:
    """Cut labels into runs of about so many predictions, one label at least."""
    number = bounds[:-1] // max(most, 1)
    return pairwise([*run_starts(number).tolist(), len(number)])


def _label_block(
    ranking: RankedPredictions, first: int, after: int, used: BoolArray
) -> _LabelBlock:
    of = ranking.label_span(first, after)
    outcome, outside = ranking.outcome[:, :, of], ranking.outside[:, of]
    image, rank = ranking.image[of], ranking.rank[of]
    bounds = ranking.bounds[first : after + 1] - ranking.bounds[first]
    kept = used[image]
    if not kept.all():
        outcome, outside = outcome[:, :, kept], outside[:, kept]
        image, rank = image[kept], rank[kept]
        bounds = np.append(0, np.cumsum(kept))[bounds]
    label = np.repeat(np.arange(after - first), np.diff(bounds))
    right = np.flatnonzero(outcome == CORRECT)
    odds = np.flatnonzero((outcome == IGNORED) != outside)
    row, place = np.divmod(right, max(len(image), 1))
    odd_row, odd_place = np.divmod(odds, max(len(image), 1))
    group = row * (after - first) + label[place]
    odd_group = odd_row * (after - first) + label[odd_place]
    over_all = row % len(AREA_RANGES) == 0
    return _LabelBlock(
        image,
        (~outside).astype(np.float64),
        bounds[label],
        place,
        group,
        [np.flatnonzero((rank[place] < most) & over_all) for most in MAX_DETECTIONS[:-1]],
        odd_place,
        np.where(outside[odd_row % len(AREA_RANGES), odd_place], 1.0, -1.0),
        (np.searchsorted(odd_group, group), np.searchsorted(odds, right, "right")),
    )


def _block_numbers(
    part: _LabelBlock, columns: Float64Array, to_find: Float64Array
) -> tuple[Float64Array, Float64Array, Float64Array]:
    """Return average precision (T, A, L, B), recall (T, A, B) and that among the first (2, T, B).

    From weights (I, B) and objects to find (A, L, B); both recalls are summed over labels.
    """
    shape = len(IOU_THRESHOLDS), *to_find.shape
    groups = int(np.prod(shape[:3]))
    own = columns.take(part.image, axis=0)
    whole = np.maximum(to_find, 1)  # where it is 0, nothing is right
    area, label = np.divmod(part.group % (shape[1] * shape[2]), shape[2])
    begin = run_starts(part.group)
    bounds = [*begin.tolist(), len(part.group)]
    here = part.group[begin]

    hits = own.take(part.place, axis=0)
    early = np.stack(
        [_sums(hits.take(some, axis=0), part.group[some], groups) for some in part.early]
    )
    early = (early.reshape(-1, *shape)[:, :, 0] / whole[0]).sum(axis=2)
    right = _running(hits, np.repeat(begin, np.diff(bounds)), np.arange(1, len(hits) + 1))
    counted = cumulative_before(own * part.inside[:, :, None]).reshape(-1, shape[-1])
    of_area = area * (len(own) + 1)
    precision = counted.take(of_area + part.place + 1, axis=0)
    precision -= counted.take(of_area + part.begin[part.place], axis=0)
    precision += _running(own[part.odd_place] * part.odd[:, None], *part.odd_span)
    precision += np.spacing(1)
    np.divide(right, precision, out=precision)
    whole = whole.reshape(-1, shape[-1]).take(area * shape[2] + label, axis=0)
    recalls = np.divide(right, whole, out=right)
    for span in pairwise(bounds):
        backwards = precision[slice(*span)][::-1]
        np.maximum.accumulate(backwards, axis=0, out=backwards)
    recall = np.zeros((groups, shape[-1]))
    recall[here] = recalls[[after - 1 for after in bounds[1:]]]
    average = _sums(precision * _steps(recalls, begin), part.group, groups) / len(RECALLS)
    return average.reshape(shape), recall.reshape(shape).sum(axis=2), early


def _steps(recalls: Float64Array, begin: Int64Array) -> Float64Array:
    """Count how many of the 101 recalls are reached by each row (E, B) and not by the one before it."""
    reached = recalls * 100
    reached += 1e-9
    np.floor(reached, out=reached)
    reached += reached * 0.01 <= recalls  # as `RECALLS` rounds them
    steps = reached.copy()
    steps[1:] -= reached[:-1]
    steps[begin] = reached[begin]
    return steps


def _running(values: Float64Array, first: Int64Array, after: Int64Array) -> Float64Array:
    """Sum rows (N, B) from one place to another; whole numbers, so that it is exact."""
    sums = cumulative_before(values)
    found = sums.take(after, axis=0)
    found -= sums.take(first, axis=0)
    return found


def _sums(values: Float64Array, group: Int64Array, groups: int) -> Float64Array:
    """Sum rows by their ascending groups."""
    sums = np.zeros((groups, values.shape[1]))
    begin = run_starts(group)
    if begin.size:
        sums[group[begin]] = np.add.reduceat(values, begin, axis=0)
    return sums

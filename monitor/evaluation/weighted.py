"""COCO's twelve numbers as if each image were there so many times, for many weightings at once.

An average precision is the sum, over the predictions that are right, of the best precision from there on,
times how many of the 101 recalls are reached there. So nothing is looked up per recall, and a weighting
costs about what adding up its predictions costs.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from monitor.evaluation.average_precision import AREAS, MOST, RECALLS, THRESHOLDS
from monitor.evaluation.matching import IGNORED, RIGHT, Doubles, Flags, Integers
from monitor.evaluation.ranked import Ranking

_AT_ONCE = 1 << 18
"""Numbers of one table looked at together: as many as caches hold."""

_WEIGHTS = 1 << 22
"""Weights of images looked at together, for the memory of their copies."""


class _Label(NamedTuple):
    """A label's predictions (n,) by falling score, and the right ones (E,) at every threshold and area."""

    image: Integers
    inside: Doubles
    """(A, n) 1 where its own area is inside of the range, else 0."""
    place: Integers
    """(E,) of the right ones, by threshold, area and falling score."""
    group: Integers
    """(E,) threshold * areas + area."""
    early: list[Integers]
    """Which of (E,) are also among the first 1 and 10 of their image, over all areas."""
    odd_place: Integers
    """(X,) of those that count although outside, or do not although inside, sorted as `place`."""
    odd: Doubles
    """(X,) 1 or -1."""
    odd_span: tuple[Integers, Integers]
    """(E,) the odd ones before it within its group."""


def twelve_numbers(ranking: Ranking, weights: Doubles) -> Doubles:
    """Compute COCO's twelve numbers.

    Args:
        ranking: At COCO's thresholds and ranges of area.
        weights: (B, I) whole numbers, 0 or more.

    Returns:
        (12, B) in COCO's order, NaN where there is nothing to find.
    """
    block = max(1, _WEIGHTS // max(weights.shape[1], 1))
    if len(weights) > block:
        parts = [weights[low : low + block] for low in range(0, len(weights), block)]
        return np.concatenate([twelve_numbers(ranking, part) for part in parts], axis=1)
    shape = len(AREAS), len(ranking.bounds) - 1, len(weights)
    to_find = (ranking.to_find @ weights.T).reshape(shape)
    columns = np.ascontiguousarray(weights.T)
    used = weights.max(axis=0, initial=0) > 0
    precision = np.zeros((len(THRESHOLDS), len(AREAS), len(weights)))
    recall = np.zeros_like(precision)
    early = np.zeros((len(MOST) - 1, len(THRESHOLDS), len(weights)))
    for number in np.flatnonzero(to_find.any(axis=(0, 2))):
        label = _label(ranking, int(number), used)
        wide = max(1, _AT_ONCE // (len(label.place) + label.inside.size + 1))
        for low in range(0, len(weights), wide):
            part = np.s_[..., low : low + wide]
            found = _label_numbers(label, columns[part], to_find[:, number][part])
            precision[part] += found[0]
            recall[part] += found[1]
            early[part] += found[2]
    labels = np.count_nonzero(to_find, axis=1)  # (A, B)
    with np.errstate(invalid="ignore"):
        precision /= labels
        recall /= labels
        early /= labels[0]
    return np.array(
        [
            precision[:, 0].mean(axis=0),
            precision[0, 0],
            precision[5, 0],
            *precision[:, 1:].mean(axis=0),
            *early.mean(axis=1),
            *recall.mean(axis=0),
        ]
    )


def _label(ranking: Ranking, number: int, used: Flags) -> _Label:
    of = ranking.of_label(number)
    kept = np.flatnonzero(used[ranking.image[of]])
    outcome, outside = ranking.outcome[:, :, of], ranking.outside[:, of]
    if len(kept) < outside.shape[1]:
        outcome, outside = outcome[:, :, kept], outside[:, kept]
    count = len(kept)
    right = np.flatnonzero(outcome == RIGHT)
    group, place = np.divmod(right, max(count, 1))
    odds = np.flatnonzero((outcome == IGNORED) != outside)
    odd_group, odd_place = np.divmod(odds, max(count, 1))
    area = odd_group % len(AREAS)
    rank = ranking.rank[of][kept][place]
    return _Label(
        ranking.image[of][kept],
        (~outside).astype(np.float64),
        place,
        group,
        [np.flatnonzero((rank < most) & (group % len(AREAS) == 0)) for most in MOST[:-1]],
        odd_place,
        np.where(outside[area, odd_place], 1.0, -1.0),
        (np.searchsorted(odd_group, group), np.searchsorted(odds, right, "right")),
    )


def _label_numbers(
    label: _Label, columns: Doubles, to_find: Doubles
) -> tuple[Doubles, Doubles, Doubles]:
    """Return average precision and recall (T, A, B), and recall among the first (2, T, B).

    Args:
        label: One.
        columns: (I, B) weights.
        to_find: (A, B) objects.
    """
    groups = len(THRESHOLDS) * len(AREAS)
    shape = len(THRESHOLDS), len(AREAS), columns.shape[1]
    own = columns[label.image]
    area = label.group % len(AREAS)
    right = own[label.place]
    whole = np.maximum(to_find, 1)  # where it is 0, nothing is right
    early = np.stack([_sums(right[some], label.group[some], groups) for some in label.early])
    early = early.reshape(-1, *shape)[:, :, 0] / whole[0]

    counted = np.cumsum(own * label.inside[:, :, None], axis=1)[area, label.place]
    odd = np.zeros((len(label.odd) + 1, shape[-1]))
    np.cumsum(own[label.odd_place] * label.odd[:, None], axis=0, out=odd[1:])
    counted += odd[label.odd_span[1]] - odd[label.odd_span[0]]
    starts = np.flatnonzero(np.diff(label.group, prepend=-1))
    parts = [slice(*span) for span in pairwise([*starts.tolist(), len(right)])]
    for part in parts:
        np.cumsum(right[part], axis=0, out=right[part])
    recalls = right / whole[area]
    precision = right / (counted + np.spacing(1))
    for part in parts:
        backwards = precision[part][::-1]
        np.maximum.accumulate(backwards, axis=0, out=backwards)
    reached = np.floor(recalls * 100 + 1e-9)
    reached += 1 - (reached * 0.01 > recalls)  # the 101 recalls, as RECALLS rounds them
    steps = reached.copy()
    steps[1:] -= reached[:-1]
    steps[starts] = reached[starts]
    average = _sums(precision * steps, label.group, groups) / len(RECALLS)
    recall = np.zeros((groups, shape[-1]))
    recall[label.group[starts]] = recalls[[part.stop - 1 for part in parts]]
    return average.reshape(shape), recall.reshape(shape), early


def _sums(values: Doubles, group: Integers, groups: int) -> Doubles:
    """Sum rows by their ascending groups."""
    sums = np.zeros((groups, values.shape[1]))
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    if starts.size:
        sums[group[starts]] = np.add.reduceat(values, starts, axis=0)
    return sums

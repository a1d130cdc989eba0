"""Which prediction found which object: COCO's greedy rule, for whatever overlap is given.

Within an image and a label, predictions choose by descending score. Each takes the free object that it
overlaps most, at least by the threshold; of equal overlaps the later object; one to be ignored only where
no other is left. A crowd may be taken again and again. All images, labels, thresholds and ranges of area
are matched at once: the n-th predictions of all groups, then the n+1-th.

Source: `pycocotools.cocoeval.COCOeval.evaluateImg`, whose answers these are.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

Overlap = Callable[[Integers, Integers], Doubles]
"""Gives the overlap of pairs, from the positions of predictions (P,) and objects (P,)."""

_ALMOST_ONE = 1 - 1e-10


class Predictions(NamedTuple):
    """What a model found, one element each (N,)."""

    image: Integers
    """Position of the image; the order of images decides between equal scores."""
    label: Integers
    score: Doubles
    area: Doubles
    """Square pixels."""


class Truths(NamedTuple):
    """What is there, one element each (M,)."""

    image: Integers
    label: Integers
    area: Doubles
    crowd: Flags
    """Many objects as one: taken by any number of predictions, missed by none."""
    ignore: Flags
    """Neither found nor missed."""


class Matches(NamedTuple):
    """What became of each prediction and object, per threshold (T) and range of area (A)."""

    order: Integers
    """Positions (D,) of the predictions that count: by image, label and falling score."""
    rank: Integers
    """Place (D,) of each within its image and label, from 0."""
    truth: Integers
    """(T, A, D) position of the object that was taken, -1 for none."""
    ignored: Flags
    """(T, A, D) whether the prediction is neither right nor wrong."""
    truth_ignored: Flags
    """(A, M) whether the object is neither found nor missed."""


def match(
    predictions: Predictions,
    truths: Truths,
    overlap: Overlap,
    *,
    thresholds: Doubles,
    areas: Doubles,
    most: int,
) -> Matches:
    """Match predictions with objects.

    Args:
        predictions: Of any number of images and labels.
        truths: Of the same.
        overlap: Asked once for each pair within an image and a label.
        thresholds: (T,) smallest overlaps.
        areas: (A, 2) least and greatest area, in square pixels, of objects that count.
        most: Predictions of an image and a label that count, those with the highest scores.
    """
    order, rank = _ranked(predictions, most)
    by_group = np.argsort(_groups(truths.image, truths.label), kind="stable")
    prediction, truth = _pairs(predictions, truths, order, by_group)
    overlaps = overlap(order[prediction], truth)
    least = np.minimum(thresholds, _ALMOST_ONE)
    near = overlaps >= least.min(initial=_ALMOST_ONE)
    prediction, truth, overlaps = prediction[near], truth[near], overlaps[near]

    outside = _is_outside(truths.area, areas)
    truth_ignored = outside | truths.crowd | truths.ignore
    taken = np.full((len(least), len(areas), len(order)), -1, np.int64)
    free = np.ones((len(least), len(areas), len(truths.image)), bool)
    # Of a prediction's objects the last that may be taken: by overlap, then position.
    sorting = np.lexsort((truth, overlaps, prediction, rank[prediction]))
    prediction, truth, overlaps = prediction[sorting], truth[sorting], overlaps[sorting]
    starts = np.flatnonzero(np.diff(prediction, prepend=-1))
    ends = np.append(starts[1:], len(prediction))
    steps = np.searchsorted(rank[prediction[starts]], np.arange(rank.max(initial=-1) + 2))
    for first, after in pairwise(steps):
        if first == after:
            continue
        low, high = starts[first], ends[after - 1]
        objects, of = truth[low:high], prediction[starts[first:after]]
        may = (overlaps[low:high] >= least[:, None])[:, None] & free[:, :, objects]
        wanted = np.arange(1, high - low + 1) + np.where(truth_ignored[:, objects], 0, high - low)
        best = np.maximum.reduceat(np.where(may, wanted, 0), starts[first:after] - low, axis=2)
        threshold, area, which = np.nonzero(best)
        found = objects[(best[threshold, area, which] - 1) % (high - low)]
        taken[threshold, area, of[which]] = found
        free[threshold, area, found] = truths.crowd[found]
    padded = np.pad(truth_ignored, ((0, 0), (0, 1)))  # for -1
    ignored = np.where(
        taken >= 0,
        padded[np.arange(len(areas))[:, None], taken],
        _is_outside(predictions.area[order], areas),
    )
    return Matches(order, rank, taken, ignored, truth_ignored)


def _groups(image: Integers, label: Integers) -> Integers:
    """Number images and labels together, in their order."""
    return image << 32 | label


def _ranked(predictions: Predictions, most: int) -> tuple[Integers, Integers]:
    """Sort predictions by image, label and falling score, and cut each group to its first ones."""
    groups = _groups(predictions.image, predictions.label)
    order = np.lexsort((-predictions.score, groups))
    first = np.flatnonzero(np.diff(groups[order], prepend=-1))
    sizes = np.diff(np.append(first, len(order)))
    rank = np.arange(len(order)) - np.repeat(first, sizes)
    kept = rank < most
    return order[kept], rank[kept]


def _pairs(
    predictions: Predictions, truths: Truths, order: Integers, by_group: Integers
) -> tuple[Integers, Integers]:
    """Return each prediction, as its place in `order`, with each object of its image and label."""
    groups = _groups(truths.image, truths.label)[by_group]
    asked = _groups(predictions.image, predictions.label)[order]
    first = np.searchsorted(groups, asked, "left")
    counts = np.searchsorted(groups, asked, "right") - first
    prediction = np.repeat(np.arange(len(order)), counts)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return prediction, by_group[np.repeat(first, counts) + within]


def _is_outside(area: Doubles, areas: Doubles) -> Flags:
    """Tell (A, N) which areas are outside of each range."""
    outside: Flags = (area < areas[:, :1]) | (area > areas[:, 1:])
    return outside

"""Which prediction found which object: COCO's greedy rule, for whatever overlap is given.

Many images, and all labels, thresholds and ranges of area, are matched at once: first pairs that nothing
else competes with, then the n-th predictions of all images and labels, then the n+1-th.

Source: `pycocotools.cocoeval.COCOeval.evaluateImg`, whose answers these are.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy import sparse

from quadriga.monitor.evaluation.arrays import (
    expand_ranges,
    find_keys,
    index_within_runs,
    joint_key,
    run_starts,
)
from quadriga.monitor.evaluation.state import Table
from quadriga.tasks.arrays import BoolArray, Float64Array, Int64Array, UInt8Array

OverlapFunction = Callable[[Int64Array, Int64Array], Float64Array]
"""Gives the overlap of pairs, from the positions of predictions (P,) and objects (P,)."""

INCORRECT, CORRECT, IGNORED = np.arange(3, dtype=np.uint8)
"""Outcomes of a prediction; the ignored ones are neither right nor wrong."""

_ALMOST_ONE = 1 - 1e-10
_AT_ONCE = 1 << 17
"""Pairs looked at together: as many as caches hold."""


class RankedPredictions(NamedTuple):
    """What became of predictions and objects, per threshold (T) and range of area (A).

    Of the predictions only those that count (D,): by label, then by falling score, then by image.
    """

    row: Int64Array
    """Positions of the predictions."""
    image: Int64Array
    label: Int64Array
    score: Float64Array
    rank: Int64Array
    """Place within image and label, from 0."""
    outcome: UInt8Array
    """(T, A, D) `WRONG`, `RIGHT` or `IGNORED`."""
    outside: BoolArray
    """(A, D) whether the prediction's own area is outside of each range."""
    matched_object: Int64Array
    """Position of the object taken at the first threshold and range, -1 for none."""
    object_ignored: BoolArray
    """(A, M) whether the object is neither found nor missed."""
    bounds: Int64Array
    """(K + 1,) where each label begins and ends."""
    actual_counts: sparse.csr_array
    """(A * K, I) objects that count, by range of area and label, in each image."""

    def label_span(self, first: int, after: int) -> slice:
        """Return the places of the predictions of some labels."""
        return slice(int(self.bounds[first]), int(self.bounds[after]))


class OverlapPairs(NamedTuple):
    """Predictions and objects that overlap (P,), by their positions."""

    prediction: Int64Array
    truth: Int64Array
    overlap: Float64Array

    def select(self, which: Int64Array | BoolArray) -> "OverlapPairs":
        """Return some of them."""
        return OverlapPairs(self.prediction[which], self.truth[which], self.overlap[which])

    def last_of_each(self, count: int) -> tuple[Float64Array, Int64Array]:
        """Return the last overlap of each prediction (D,), 0 for none, and its object, -1 for none."""
        overlap, truth = np.zeros(count), np.full(count, -1, np.int64)
        overlap[self.prediction] = self.overlap
        truth[self.prediction] = self.truth
        return overlap, truth

    def overlaps(self) -> OverlapFunction:
        """Return what looks overlaps up: 0 for a pair that is not among these."""
        width = int(self.truth.max(initial=-1)) + 1
        keys = self.prediction * width + self.truth
        order = np.argsort(keys, kind="stable")
        keys, known = np.append(keys[order], -1), np.append(self.overlap[order], 0)

        def overlap(prediction: Int64Array, truth: Int64Array) -> Float64Array:
            asked = np.where(truth < width, prediction * width + truth, -2)
            at = np.searchsorted(keys[:-1], asked)
            return np.where(keys[at] == asked, known[at], 0)

        return overlap


def match_objects(
    predictions: Table,
    truths: Table,
    overlap: OverlapFunction,
    *,
    thresholds: Float64Array,
    areas: Float64Array,
    most: int,
    shape: tuple[int, int],
) -> RankedPredictions:
    """Match predictions with objects.

    Args:
        predictions: `image`, `label`, `score` and `area` of any number of images and labels; the order of
            images decides between equal scores.
        truths: Of the same: `image`, `label`, `area`, `crowd` and `difficult`. A crowd is taken by any
            number of predictions, and missed by none; a difficult one is neither found nor missed.
        overlap: Asked once for each pair within an image and a label.
        thresholds: (T,) smallest overlaps.
        areas: (A, 2) least and greatest area, in square pixels, of objects that count.
        most: Predictions of an image and a label that count, those with the highest scores.
        shape: How many labels (K) and images (I) there are.
    """
    order, rank, by_label = _ranked(predictions, most)
    groups = joint_key(truths["image"], truths["label"])
    by_group = np.argsort(groups, kind="stable")
    asked = joint_key(predictions["image"], predictions["label"])[order]
    first, counts = find_keys(groups[by_group], asked)
    truth_ignored = _outside(truths["area"], areas) | truths["crowd"] | truths["difficult"]
    least = np.minimum(thresholds, _ALMOST_ONE)
    outside = _outside(predictions["area"][order], areas)
    outcome = np.empty((len(least), len(areas), len(order)), np.uint8)
    outcome[:] = np.where(outside, IGNORED, INCORRECT)
    taken = np.full(len(order), -1, np.int64)
    for low, high in _chunks(asked, counts):
        some = by_group[first[low] : first[high - 1] + counts[high - 1]]
        prediction, truth = expand_ranges(first[low:high] - first[low], counts[low:high])
        overlaps = overlap(order[low:high][prediction], some[truth])
        pairs = OverlapPairs(prediction, truth, overlaps).select(
            overlaps >= least.min(initial=_ALMOST_ONE)
        )
        found = _take(
            pairs,
            rank[low:high],
            (truths["crowd"][some], truth_ignored[:, some]),
            least,
            outcome[:, :, low:high],
        )
        taken[low:high] = np.append(some, -1)[found]
    row = order[by_label]
    labels, images = shape
    area, which = np.nonzero(~truth_ignored)
    to_find = sparse.csr_array(
        (np.ones(len(which)), (area * labels + truths["label"][which], truths["image"][which])),
        shape=(len(areas) * labels, images),
    )
    label = predictions["label"][row]
    return RankedPredictions(
        row,
        predictions["image"][row],
        label,
        predictions["score"][row],
        rank[by_label],
        outcome[:, :, by_label],
        outside[:, by_label],
        taken[by_label],
        truth_ignored,
        np.searchsorted(label, np.arange(labels + 1)),
        to_find,
    )


def near_pairs(
    predictions: Table, truths: Table, overlap: OverlapFunction, least: float
) -> OverlapPairs:
    """Return the pairs within an image, of any labels, that overlap at least so much."""
    order = np.argsort(predictions["image"], kind="stable")
    by_image = np.argsort(truths["image"], kind="stable")
    asked, images = predictions["image"][order], truths["image"][by_image]
    first, counts = find_keys(images, asked)
    found = [OverlapPairs(order[:0], by_image[:0], np.zeros(0))]
    for low, high in _chunks(asked, counts):
        prediction, truth = expand_ranges(first[low:high], counts[low:high])
        prediction, truth = order[low:high][prediction], by_image[truth]
        overlaps = overlap(prediction, truth)
        found.append(OverlapPairs(prediction, truth, overlaps).select(overlaps >= least))
    return OverlapPairs(*(np.concatenate(column) for column in zip(*found, strict=True)))


def _take(
    pairs: OverlapPairs,
    rank: Int64Array,
    truths: tuple[BoolArray, BoolArray],
    least: Float64Array,
    outcome: UInt8Array,
) -> Int64Array:
    """Let predictions (D,) choose, write what became of them; return what each took first, or -1.

    Args:
        pairs: All there are.
        rank: (D,).
        truths: Which are crowds (M,), and which are ignored (A, M).
        least: (T,) smallest overlaps.
        outcome: (T, A, D) what becomes of those that take nothing; written to.
    """
    crowd, ignored = truths
    verdict = np.where(ignored, IGNORED, CORRECT)
    first = np.full(len(rank), -1, np.int64)
    alone = (np.bincount(pairs.prediction)[pairs.prediction] == 1) & (
        np.bincount(pairs.truth)[pairs.truth] == 1
    )
    prediction, truth, overlaps = pairs.select(alone)
    takes = overlaps >= least[:, None]
    outcome[:, :, prediction] = np.where(
        takes[:, None], verdict[:, truth], outcome[:, :, prediction]
    )
    first[prediction[takes[0]]] = truth[takes[0]]

    pairs = pairs.select(~alone)
    free = np.ones((len(least), len(ignored), len(crowd)), bool)
    # Of a prediction's objects the last that may be taken: by overlap, then position.
    prediction, truth, overlaps = pairs.select(
        np.lexsort((pairs.truth, pairs.overlap, pairs.prediction, rank[pairs.prediction]))
    )
    begin = run_starts(prediction)
    ends = np.append(begin[1:], len(prediction))
    steps = np.searchsorted(
        rank[prediction[begin]], np.arange(rank[prediction].max(initial=-1) + 2)
    )
    for start, after in pairwise(steps):
        if start == after:
            continue
        low, high = begin[start], ends[after - 1]
        objects, of = truth[low:high], prediction[begin[start:after]]
        may = (overlaps[low:high] >= least[:, None])[:, None] & free[:, :, objects]
        wanted = np.arange(1, high - low + 1) + np.where(ignored[:, objects], 0, high - low)
        best = np.maximum.reduceat(np.where(may, wanted, 0), begin[start:after] - low, axis=2)
        threshold, area, which = np.nonzero(best)
        found = objects[(best[threshold, area, which] - 1) % (high - low)]
        outcome[threshold, area, of[which]] = verdict[area, found]
        free[threshold, area, found] = crowd[found]
        here = (threshold == 0) & (area == 0)
        first[of[which[here]]] = found[here]
    return first


def _chunks(groups: Int64Array, pairs: Int64Array) -> Iterator[tuple[int, int]]:
    """Cut sorted groups (D,) between them, so that `pairs` (D,) of each part are not many."""
    begin = run_starts(groups)
    before = (np.cumsum(pairs + 8) - pairs)[begin]
    cuts = begin[run_starts(before // _AT_ONCE)]
    return pairwise([*cuts.tolist(), len(groups)])


def _ranked(predictions: Table, most: int) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Sort predictions, and cut each image and label to its first ones.

    Returns:
        Their positions (D,) by image, label and falling score; the rank of each within image and label; and
        the places in these, by label, then falling score, then image.
    """
    by_image = _sorted(np.arange(len(predictions["image"])), predictions["image"])
    by_score = by_image[np.argsort(-predictions["score"][by_image], kind="stable")]
    by_label = _sorted(by_score, predictions["label"])
    order = _sorted(by_label, predictions["image"])
    rank = index_within_runs(joint_key(predictions["image"], predictions["label"])[order])
    kept = rank < most
    place = np.empty(len(order), np.int64)
    place[order] = np.where(kept, np.cumsum(kept) - 1, -1)
    by_label = place[by_label]
    return order[kept], rank[kept], by_label[by_label >= 0]


def _sorted(order: Int64Array, numbers: Int64Array) -> Int64Array:
    """Sort further by whole numbers of 0 or more, in digits of 16 bits, which NumPy sorts by counting."""
    for shift in range(0, int(numbers.max(initial=0)).bit_length(), 16):
        digits = (numbers[order] >> shift).astype(np.uint16)
        order = order[np.argsort(digits, kind="stable")]
    return order


def _outside(area: Float64Array, areas: Float64Array) -> BoolArray:
    """Tell (A, N) which areas are outside of each range."""
    outside: BoolArray = (area < areas[:, :1]) | (area > areas[:, 1:])
    return outside

"""Matching of predictions and objects by COCO's greedy rule, for any overlap.

Many images, and all labels, thresholds and ranges of area, are matched at once: first pairs without
competitors, then the n-th predictions of all images and labels, then the n+1-th.

Source: `pycocotools.cocoeval.COCOeval.evaluateImg`, with the same results.
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
"""Returns the overlap of pairs, given the positions of predictions (P,) and objects (P,)."""

INCORRECT, CORRECT, IGNORED = np.arange(3, dtype=np.uint8)
"""Outcomes of a prediction; ignored ones are neither correct nor incorrect."""

_ALMOST_ONE = 1 - 1e-10
_AT_ONCE = 1 << 17
"""Maximum number of pairs matched at once: they fit into the CPU's caches."""


class RankedPredictions(NamedTuple):
    """Outcomes of predictions and objects, per threshold (T) and range of area (A).

    Predictions are those that count (D,): by label, then by falling score, then by image.
    """

    row: Int64Array
    """Positions of the predictions."""
    image: Int64Array
    label: Int64Array
    score: Float64Array
    rank: Int64Array
    """Rank within image and label, from 0."""
    outcome: UInt8Array
    """`INCORRECT`, `CORRECT` or `IGNORED`, (T, A, D)."""
    outside: BoolArray
    """Whether the prediction's area is outside of each range, (A, D)."""
    matched_object: Int64Array
    """Position of the object matched at the first threshold and range, (D,), -1 for none."""
    object_ignored: BoolArray
    """Whether the object counts neither as found nor as missed, (A, M)."""
    bounds: Int64Array
    """Position at which each label begins, and the end, (K + 1,)."""
    actual_counts: sparse.csr_array
    """Number of objects that count, by range of area and label, in each image, (A * K, I)."""

    def label_span(self, start_label: int, stop_label: int) -> slice:
        """Return the positions of the predictions of a range of labels."""
        return slice(int(self.bounds[start_label]), int(self.bounds[stop_label]))


class OverlapPairs(NamedTuple):
    """Predictions and objects that overlap (P,), by their positions."""

    prediction: Int64Array
    truth: Int64Array
    overlap: Float64Array

    def select(self, selection: Int64Array | BoolArray) -> "OverlapPairs":
        """Return the pairs at these positions, or where the mask is true."""
        return OverlapPairs(
            self.prediction[selection], self.truth[selection], self.overlap[selection]
        )

    def last_of_each(self, count: int) -> tuple[Float64Array, Int64Array]:
        """Return the overlap and the object of the last pair of each prediction (D,); 0 and -1 without one."""
        overlap, matched_object = np.zeros(count), np.full(count, -1, np.int64)
        overlap[self.prediction] = self.overlap
        matched_object[self.prediction] = self.truth
        return overlap, matched_object

    def overlaps(self) -> OverlapFunction:
        """Return a function that looks up overlaps, 0 for other pairs."""
        width = int(self.truth.max(initial=-1)) + 1
        keys = self.prediction * width + self.truth
        order = np.argsort(keys, kind="stable")
        keys, overlaps = np.append(keys[order], -1), np.append(self.overlap[order], 0)

        def overlap(prediction: Int64Array, truth: Int64Array) -> Float64Array:
            query = np.where(truth < width, prediction * width + truth, -2)
            position = np.searchsorted(keys[:-1], query)
            return np.where(keys[position] == query, overlaps[position], 0)

        return overlap


def overlap_of(
    intersection: Float64Array | Int64Array,
    predicted_area: Float64Array | Int64Array,
    true_area: Float64Array | Int64Array,
    crowd: BoolArray,
) -> Float64Array:
    """Return the overlap of pairs (P,): intersection over union; with a crowd, over the area of the prediction."""
    union = predicted_area + true_area - intersection
    area = np.where(crowd, predicted_area, union)
    return np.divide(intersection, area, out=np.zeros(len(area)), where=intersection > 0)


def match_objects(
    predictions: Table,
    truths: Table,
    overlap: OverlapFunction,
    *,
    thresholds: Float64Array,
    areas: Float64Array,
    max_detections: int,
    shape: tuple[int, int],
) -> RankedPredictions:
    """Match predictions with objects.

    Args:
        predictions: Table with `image`, `label`, `score` and `area`, of any number of images and labels; the
            order of images decides between equal scores.
        truths: Table of objects with `image`, `label`, `area`, `crowd` and `difficult`. A crowd may match any
            number of predictions, and is never missed; a difficult object is neither found nor missed.
        overlap: Called once for each pair within an image and a label.
        thresholds: Match thresholds, (T,).
        areas: Minimum and maximum area of objects that count, (A, 2), square pixels.
        max_detections: Number of predictions that count per image and label, those with the highest scores.
        shape: Number of labels (K) and of images (I).
    """
    order, rank, by_label = _ranked(predictions, max_detections)
    object_ignored = _outside(truths["area"], areas) | truths["crowd"] | truths["difficult"]
    minimum_overlaps = np.minimum(thresholds, _ALMOST_ONE)
    outside = _outside(predictions["area"][order], areas)
    outcome = np.empty((len(minimum_overlaps), len(areas), len(order)), np.uint8)
    outcome[:] = np.where(outside, IGNORED, INCORRECT)
    matched_objects = np.full(len(order), -1, np.int64)
    min_overlap = minimum_overlaps.min(initial=_ALMOST_ONE)
    groups, true_groups = (
        joint_key(table["image"], table["label"]) for table in (predictions, truths)
    )
    for chunk, objects, pairs in _candidate_chunks(
        (groups[order], true_groups), order, overlap, min_overlap
    ):
        chosen = _match_greedily(
            pairs,
            rank[chunk],
            (truths["crowd"][objects], object_ignored[:, objects]),
            minimum_overlaps=minimum_overlaps,
            outcome=outcome[:, :, chunk],
        )
        matched_objects[chunk] = np.append(objects, -1)[chosen]
    row = order[by_label]
    labels, images = shape
    label = predictions["label"][row]
    return RankedPredictions(
        row=row,
        image=predictions["image"][row],
        label=label,
        score=predictions["score"][row],
        rank=rank[by_label],
        outcome=outcome[:, :, by_label],
        outside=outside[:, by_label],
        matched_object=matched_objects[by_label],
        object_ignored=object_ignored,
        bounds=np.searchsorted(label, np.arange(labels + 1)),
        actual_counts=_count_objects(truths, ~object_ignored, labels, images),
    )


def _candidate_chunks(
    groups: tuple[Int64Array, Int64Array],
    order: Int64Array,
    overlap: OverlapFunction,
    min_overlap: float,
) -> Iterator[tuple[slice, Int64Array, OverlapPairs]]:
    """Yield chunks of the predictions in `order` (D,), with the objects of the same groups.

    Args:
        groups: Groups of the predictions in `order`, ascending, and those of the objects (M,).
        order: Positions of the predictions, (D,).
        overlap: See `match_objects`.
        min_overlap: Smallest overlap.

    Returns:
        The place of each chunk in `order`, the positions of its objects, and the pairs that overlap by
        `min_overlap` or more, by their places in the chunk and among its objects.
    """
    prediction_groups, true_groups = groups
    objects_by_group = np.argsort(true_groups, kind="stable")
    first, counts = find_keys(true_groups[objects_by_group], prediction_groups)
    for start, stop in _chunks(prediction_groups, counts):
        objects = objects_by_group[first[start] : first[stop - 1] + counts[stop - 1]]
        prediction, truth = expand_ranges(first[start:stop] - first[start], counts[start:stop])
        overlaps = overlap(order[start:stop][prediction], objects[truth])
        pairs = OverlapPairs(prediction, truth, overlaps).select(overlaps >= min_overlap)
        yield slice(start, stop), objects, pairs


def _count_objects(
    truths: Table, is_counted: BoolArray, labels: int, images: int
) -> sparse.csr_array:
    """Return the number of objects that count (A, M), by range of area and label, in each image, (A * K, I)."""
    area, objects = np.nonzero(is_counted)
    rows = area * labels + truths["label"][objects]
    return sparse.csr_array(
        (np.ones(len(objects)), (rows, truths["image"][objects])),
        shape=(len(is_counted) * labels, images),
    )


def near_pairs(
    predictions: Table, truths: Table, overlap: OverlapFunction, min_overlap: float
) -> OverlapPairs:
    """Return the pairs within an image, of any labels, with an overlap of `min_overlap` or more."""
    order = np.argsort(predictions["image"], kind="stable")
    groups = predictions["image"][order], truths["image"]
    chunks = [OverlapPairs(order[:0], order[:0], np.zeros(0))]
    for chunk, objects, pairs in _candidate_chunks(groups, order, overlap, min_overlap):
        near, truth = order[chunk][pairs.prediction], objects[pairs.truth]
        chunks.append(OverlapPairs(near, truth, pairs.overlap))
    return OverlapPairs(*(np.concatenate(column) for column in zip(*chunks, strict=True)))


def _match_greedily(
    pairs: OverlapPairs,
    rank: Int64Array,
    truths: tuple[BoolArray, BoolArray],
    minimum_overlaps: Float64Array,
    outcome: UInt8Array,
) -> Int64Array:
    """Match predictions (D,) greedily; return the object of each at the first threshold and range, or -1.

    Args:
        pairs: All pairs of predictions and objects with a label in common.
        rank: Rank of each prediction within image and label, (D,).
        truths: Which objects are crowds, (M,), and which are ignored, (A, M).
        minimum_overlaps: Match thresholds, (T,).
        outcome: Outcomes of unmatched predictions, (T, A, D); those of matched ones are written to it.
    """
    crowd, ignored = truths
    verdict = np.where(ignored, IGNORED, CORRECT)
    first_match = np.full(len(rank), -1, np.int64)
    is_sole_pair = (np.bincount(pairs.prediction)[pairs.prediction] == 1) & (
        np.bincount(pairs.truth)[pairs.truth] == 1
    )
    prediction, truth, overlaps = pairs.select(is_sole_pair)
    is_match = overlaps >= minimum_overlaps[:, None]
    outcome[:, :, prediction] = np.where(
        is_match[:, None], verdict[:, truth], outcome[:, :, prediction]
    )
    first_match[prediction[is_match[0]]] = truth[is_match[0]]

    pairs = pairs.select(~is_sole_pair)
    is_free = np.ones((len(minimum_overlaps), len(ignored), len(crowd)), bool)
    # A prediction takes its last free object, ordered by overlap, then by position.
    prediction, truth, overlaps = pairs.select(
        np.lexsort((pairs.truth, pairs.overlap, pairs.prediction, rank[pairs.prediction]))
    )
    group_starts = run_starts(prediction)
    group_ends = np.append(group_starts[1:], len(prediction))
    rank_bounds = np.searchsorted(
        rank[prediction[group_starts]], np.arange(rank[prediction].max(initial=-1) + 2)
    )
    for start, stop in pairwise(rank_bounds):
        if start == stop:
            continue
        low, high = group_starts[start], group_ends[stop - 1]
        objects, predictions = truth[low:high], prediction[group_starts[start:stop]]
        may_match = (overlaps[low:high] >= minimum_overlaps[:, None])[:, None] & is_free[
            :, :, objects
        ]
        preference = np.arange(1, high - low + 1) + np.where(ignored[:, objects], 0, high - low)
        best = np.maximum.reduceat(
            np.where(may_match, preference, 0), group_starts[start:stop] - low, axis=2
        )
        threshold, area, group_index = np.nonzero(best)
        matched = objects[(best[threshold, area, group_index] - 1) % (high - low)]
        outcome[threshold, area, predictions[group_index]] = verdict[area, matched]
        is_free[threshold, area, matched] = crowd[matched]
        is_first_setting = (threshold == 0) & (area == 0)
        first_match[predictions[group_index[is_first_setting]]] = matched[is_first_setting]
    return first_match


def _chunks(groups: Int64Array, pairs: Int64Array) -> Iterator[tuple[int, int]]:
    """Divide sorted groups (D,) into chunks with a bounded number of `pairs` (D,); no group is cut."""
    group_starts = run_starts(groups)
    work_before = (np.cumsum(pairs + 8) - pairs)[group_starts]
    cuts = group_starts[run_starts(work_before // _AT_ONCE)]
    return pairwise([*cuts.tolist(), len(groups)])


def _ranked(predictions: Table, max_detections: int) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Sort predictions, and keep the `max_detections` first ones of each image and label.

    Returns:
        Positions (D,) of predictions by image, label and falling score; the rank of each within image and label;
        and indices into these, by label, then falling score, then image.
    """
    image, label, score = predictions["image"], predictions["label"], predictions["score"]
    by_label = _sorted(np.lexsort((image, -score)), label)
    order = _sorted(by_label, image)
    rank = index_within_runs(joint_key(image, label)[order])
    is_kept = rank < max_detections
    order, rank = order[is_kept], rank[is_kept]
    place = np.full(len(score), -1)
    place[order] = np.arange(len(order))
    by_label = place[by_label]
    return order, rank, by_label[by_label >= 0]


def _sorted(order: Int64Array, numbers: Int64Array) -> Int64Array:
    """Sort an order stably by whole numbers of 0 or more, in their smallest type: NumPy sorts those of 16 bits by digits."""
    keys = numbers[order].astype(np.min_scalar_type(numbers.max(initial=0)))
    return order[np.argsort(keys, kind="stable")]


def _outside(area: Float64Array, areas: Float64Array) -> BoolArray:
    """Return (A, N) which areas are outside of each range."""
    outside: BoolArray = (area < areas[:, :1]) | (area > areas[:, 1:])
    return outside

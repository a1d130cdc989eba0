"""Masks as bits: exact areas and overlaps of regions, counted in pixels, for many images at once.

A mask is kept within its frame alone, line by line, 64 pixels to a word. Its lines are the rows of the
image where it comes from contours, the columns where it comes from COCO's runs; two masks are compared
only if their lines are the same.
"""

from typing import NamedTuple

import numpy as np

from quadriga.monitor.evaluation.arrays import expand_ranges, find_keys, run_starts
from quadriga.tasks.arrays import BoolArray, Float64Array, Int32Array, Int64Array, UInt64Array
from quadriga.tasks.contours import fill

_LINES = 1 << 20
"""Lines of pairs that are compared at once: bounds the memory."""


class Masks(NamedTuple):
    """Regions of images (N,)."""

    frame: Int64Array
    """(N, 4) first line and the one after the last, first pixel of a line and the one after the last."""
    area: Int64Array
    """Pixels."""
    start: Int64Array
    """Position of the first of its words."""
    words: UInt64Array
    """Bit 0 of a word is its first pixel. A line's words begin at a multiple of 64 pixels of the image."""


class Contours(NamedTuple):
    """Regions of one image (N,) as rings of points."""

    points: Int32Array
    """(P, 2) of all rings: x and y of pixels."""
    sizes: Int64Array
    """(R,) points of each ring."""
    rings: Int64Array
    """(N,) rings of each region."""


class PixelRuns(NamedTuple):
    """Regions as runs of pixels (R,), counted down the columns: x * height + y."""

    region: Int64Array
    """Position of the region; ascending."""
    start: Int64Array
    """Ascending within a region."""
    end: Int64Array
    """The pixel after the last; a run may go on in the next column."""


def from_contours(contours: Contours, width: int, height: int) -> Masks:
    """Make masks of the contours of one image by the rule of `quadriga.tasks.contours`, cut off at its edges."""
    frame = _frames(contours, width, height)
    stride = _stride(frame)
    sizes = (frame[:, 1] - frame[:, 0]) * stride
    ends = np.cumsum(sizes)
    words = np.zeros(int(sizes.sum()), "<u8")
    # Crops begin where a word does.
    corner = np.stack([frame[:, 2] & ~63, frame[:, 0]], axis=1).astype(np.int32)
    region_of_ring = np.repeat(np.arange(len(frame)), contours.rings)
    points = contours.points - np.repeat(corner[region_of_ring], contours.sizes, axis=0)
    outlines = np.split(points, np.cumsum(contours.sizes)[:-1])
    ring_ends = np.cumsum(contours.rings)
    for region in np.flatnonzero(sizes).tolist():
        rows = (
            words[ends[region] - sizes[region] : ends[region]]
            .view(np.uint8)
            .reshape(-1, stride[region] * 8)
        )
        rings = [
            ring
            for ring in outlines[ring_ends[region] - contours.rings[region] : ring_ends[region]]
            if len(ring)
        ]
        mask = fill(rings, int(frame[region, 3] - corner[region, 0]), len(rows))
        bits = np.packbits(mask, axis=1, bitorder="little")
        rows[:, : bits.shape[1]] = bits
    pixels = np.append(0, np.cumsum(np.bitwise_count(words), dtype=np.int64))
    area = pixels[ends] - pixels[ends - sizes]
    return Masks(frame, area, ends - sizes, words.astype(np.uint64, copy=False))


def _frames(contours: Contours, width: int, height: int) -> Int64Array:
    """Return (N, 4) the frames of contours within their image."""
    frame = np.zeros((len(contours.rings), 4), np.int64)
    rings = np.append(0, np.cumsum(contours.rings))
    points = np.append(0, np.cumsum(contours.sizes))[rings]
    has_points = np.flatnonzero(np.diff(points))
    if has_points.size:
        lower = np.minimum.reduceat(contours.points, points[has_points])[:, ::-1]
        upper = np.maximum.reduceat(contours.points, points[has_points])[:, ::-1]
        frame[has_points, ::2] = np.maximum(lower, 0)
        frame[has_points, 1::2] = np.minimum(upper.astype(np.int64) + 1, (height, width))
        outside = (frame[:, 1::2] <= frame[:, ::2]).any(axis=1)
        frame[outside] = 0
    return frame


def from_runs(runs: PixelRuns, height: Int64Array) -> Masks:
    """Make masks of runs, which do not meet within a region, of images of such heights (N,)."""
    count = len(height)
    length = runs.end - runs.start
    region, line, first_pixel, end = _cut_into_lines(runs, height)
    bounds = np.searchsorted(region, np.arange(count + 1))
    nonempty = np.flatnonzero(np.diff(bounds))
    first_run = bounds[nonempty]
    area = np.zeros(count, np.int64)
    frame = np.zeros((count, 4), np.int64)
    if nonempty.size:
        area[nonempty] = np.add.reduceat(length, np.searchsorted(runs.region, nonempty))
        frame[nonempty, 0] = line[first_run]
        frame[nonempty, 1] = line[bounds[nonempty + 1] - 1] + 1
        frame[nonempty, 2] = np.minimum.reduceat(first_pixel, first_run)
        frame[nonempty, 3] = np.maximum.reduceat(end, first_run)
    stride = _stride(frame)
    sizes = (frame[:, 1] - frame[:, 0]) * stride
    start = np.cumsum(sizes) - sizes
    word = start[region] + (line - frame[region, 0]) * stride[region]
    word_offset = word * 64 - (frame[region, 2] & ~63)
    boundaries = np.stack([word_offset + first_pixel, word_offset + end], axis=1).ravel()
    return Masks(frame, area, start, _between(boundaries, int(sizes.sum())))


def mask_overlaps(
    predictions: Masks, truths: Masks, images: tuple[Int64Array, Int64Array], crowd: BoolArray
) -> tuple[Int64Array, Int64Array, Float64Array]:
    """Find all pairs of masks of one image that share a pixel, whatever their labels.

    Args:
        predictions: (P,)
        truths: (T,)
        images: (P,) and (T,) numbers of the images, both ascending.
        crowd: (T,) whether a truth is a crowd.

    Returns:
        Positions of both, and the overlap: intersection over union; of a crowd over the prediction.
    """
    prediction, truth = expand_ranges(*find_keys(images[1], images[0]))
    predicted_frames, true_frames = predictions.frame[prediction], truths.frame[truth]
    frames_meet = (
        np.maximum(predicted_frames, true_frames)[:, ::2]
        < np.minimum(predicted_frames, true_frames)[:, 1::2]
    ).all(axis=1)
    prediction, truth = prediction[frames_meet], truth[frames_meet]
    intersection = _common(predictions, truths, prediction, truth)
    prediction, truth, intersection = (
        values[intersection > 0] for values in (prediction, truth, intersection)
    )
    predicted_area = predictions.area[prediction]
    union = predicted_area + truths.area[truth] - intersection
    return prediction, truth, intersection / np.where(crowd[truth], predicted_area, union)


def _common(
    first: Masks, second: Masks, first_rows: Int64Array, second_rows: Int64Array
) -> Int64Array:
    """Count the pixels that pairs of masks share; their frames meet."""
    first_frames, second_frames = first.frame[first_rows], second.frame[second_rows]
    line_range = np.stack(
        [
            np.maximum(first_frames[:, 0], second_frames[:, 0]),
            np.minimum(first_frames[:, 1], second_frames[:, 1]),
        ]
    )
    word_range = np.stack(
        [
            np.maximum(first_frames[:, 2], second_frames[:, 2]) >> 6,
            (np.minimum(first_frames[:, 3], second_frames[:, 3]) + 63) >> 6,
        ]
    )
    common = np.zeros(len(first_rows), np.int64)
    # By falling width, so that the pairs that have an n-th word in a line are the first ones.
    order = np.argsort(word_range[0] - word_range[1], kind="stable")
    chunk_index = np.cumsum((line_range[1] - line_range[0])[order]) // _LINES
    for chunk in np.split(order, np.flatnonzero(np.diff(chunk_index)) + 1):
        count = line_range[1, chunk] - line_range[0, chunk]
        pair, line = expand_ranges(np.zeros_like(count), count)
        word_positions = []
        for masks, frame, rows in (
            (first, first_frames[chunk], first_rows[chunk]),
            (second, second_frames[chunk], second_rows[chunk]),
        ):
            stride = _stride(frame)
            skipped = (
                (line_range[0, chunk] - frame[:, 0]) * stride
                + word_range[0, chunk]
                - (frame[:, 2] >> 6)
            )
            word_positions.append((masks.start[rows] + skipped)[pair] + line * stride[pair])
        shared = np.zeros(len(pair), np.int64)
        width = (word_range[1, chunk] - word_range[0, chunk])[pair]
        for word in range(width.max(initial=0)):
            pair_count = len(width) - int(np.searchsorted(width[::-1], word, "right"))
            shared_words = (
                first.words[word_positions[0][:pair_count] + word]
                & second.words[word_positions[1][:pair_count] + word]
            )
            shared[:pair_count] += np.bitwise_count(shared_words)
        if len(chunk):
            common[chunk] = np.add.reduceat(shared, np.cumsum(count) - count)
    return common


def _cut_into_lines(
    runs: PixelRuns, height: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """Cut runs where a column ends; return region, line, first pixel and the one after the last."""
    line_length = height[runs.region]
    line, first = np.divmod(runs.start, line_length)
    last_line, last = np.divmod(runs.end - 1, line_length)
    pieces = last_line - line + 1
    if (pieces == 1).all():
        return runs.region, line, first, last + 1
    run_index, lines = expand_ranges(line, pieces)
    begins = np.where(lines == line[run_index], first[run_index], 0)
    ends = np.where(lines == last_line[run_index], last[run_index] + 1, line_length[run_index])
    return runs.region[run_index], lines, begins, ends


def _stride(frame: Int64Array) -> Int64Array:
    """Return the words of a line."""
    return ((frame[:, 3] + 63) >> 6) - (frame[:, 2] >> 6)


def _between(boundaries: Int64Array, count: int) -> UInt64Array:
    """Return words whose bits are set from each first to each second of `turns`, which ascend."""
    words = np.zeros(count + 1, np.uint64)  # the last region may end at the last bit
    if not boundaries.size:
        return words[:-1]
    word = boundaries >> 6
    bit = np.left_shift(np.uint64(1), (boundaries & 63).astype(np.uint64))
    word_starts = run_starts(word)
    words[word[word_starts]] = np.bitwise_xor.reduceat(bit, word_starts)
    for shift in (1, 2, 4, 8, 16, 32):
        words ^= words << np.uint64(shift)
    # Where a word ends inside, the next begins inside.
    inside = np.bitwise_xor.accumulate(words >> np.uint64(63)).astype(bool)
    words[1:][inside[:-1]] ^= np.uint64((1 << 64) - 1)
    return words[:-1]

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
    of_ring = np.repeat(np.arange(len(frame)), contours.rings)
    points = contours.points - np.repeat(corner[of_ring], contours.sizes, axis=0)
    outlines = np.split(points, np.cumsum(contours.sizes)[:-1])
    after = np.cumsum(contours.rings)
    for at in np.flatnonzero(sizes).tolist():
        rows = words[ends[at] - sizes[at] : ends[at]].view(np.uint8).reshape(-1, stride[at] * 8)
        rings = [ring for ring in outlines[after[at] - contours.rings[at] : after[at]] if len(ring)]
        mask = fill(rings, int(frame[at, 3] - corner[at, 0]), len(rows))
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
    some = np.flatnonzero(np.diff(points))
    if some.size:
        low = np.minimum.reduceat(contours.points, points[some])[:, ::-1]
        high = np.maximum.reduceat(contours.points, points[some])[:, ::-1]
        frame[some, ::2] = np.maximum(low, 0)
        frame[some, 1::2] = np.minimum(high.astype(np.int64) + 1, (height, width))
        outside = (frame[:, 1::2] <= frame[:, ::2]).any(axis=1)
        frame[outside] = 0
    return frame


def from_runs(runs: PixelRuns, height: Int64Array) -> Masks:
    """Make masks of runs, which do not meet within a region, of images of such heights (N,)."""
    count = len(height)
    length = runs.end - runs.start
    region, line, first, end = _cut_into_lines(runs, height)
    bounds = np.searchsorted(region, np.arange(count + 1))
    has = np.flatnonzero(np.diff(bounds))
    at = bounds[has]
    area = np.zeros(count, np.int64)
    frame = np.zeros((count, 4), np.int64)
    if has.size:
        area[has] = np.add.reduceat(length, np.searchsorted(runs.region, has))
        frame[has, 0] = line[at]
        frame[has, 1] = line[bounds[has + 1] - 1] + 1
        frame[has, 2] = np.minimum.reduceat(first, at)
        frame[has, 3] = np.maximum.reduceat(end, at)
    stride = _stride(frame)
    sizes = (frame[:, 1] - frame[:, 0]) * stride
    start = np.cumsum(sizes) - sizes
    word = start[region] + (line - frame[region, 0]) * stride[region]
    before = word * 64 - (frame[region, 2] & ~63)
    turns = np.stack([before + first, before + end], axis=1).ravel()
    return Masks(frame, area, start, _between(turns, int(sizes.sum())))


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
    one, other = predictions.frame[prediction], truths.frame[truth]
    meet = (np.maximum(one, other)[:, ::2] < np.minimum(one, other)[:, 1::2]).all(axis=1)
    prediction, truth = prediction[meet], truth[meet]
    common = _common(predictions, truths, prediction, truth)
    prediction, truth, common = (of[common > 0] for of in (prediction, truth, common))
    own = predictions.area[prediction]
    union = own + truths.area[truth] - common
    return prediction, truth, common / np.where(crowd[truth], own, union)


def _common(one: Masks, other: Masks, mine: Int64Array, its: Int64Array) -> Int64Array:
    """Count the pixels that pairs of masks share; their frames meet."""
    a, b = one.frame[mine], other.frame[its]
    lines = np.stack([np.maximum(a[:, 0], b[:, 0]), np.minimum(a[:, 1], b[:, 1])])
    words = np.stack([np.maximum(a[:, 2], b[:, 2]) >> 6, (np.minimum(a[:, 3], b[:, 3]) + 63) >> 6])
    common = np.zeros(len(mine), np.int64)
    # By falling width, so that the pairs that have an n-th word in a line are the first ones.
    order = np.argsort(words[0] - words[1], kind="stable")
    parts = np.cumsum((lines[1] - lines[0])[order]) // _LINES
    for of in np.split(order, np.flatnonzero(np.diff(parts)) + 1):
        count = lines[1, of] - lines[0, of]
        pair, line = expand_ranges(np.zeros_like(count), count)
        places = []
        for masks, frame, at in ((one, a[of], mine[of]), (other, b[of], its[of])):
            stride = _stride(frame)
            skipped = (lines[0, of] - frame[:, 0]) * stride + words[0, of] - (frame[:, 2] >> 6)
            places.append((masks.start[at] + skipped)[pair] + line * stride[pair])
        shared = np.zeros(len(pair), np.int64)
        width = (words[1, of] - words[0, of])[pair]
        for word in range(width.max(initial=0)):
            wide = len(width) - int(np.searchsorted(width[::-1], word, "right"))
            both = one.words[places[0][:wide] + word] & other.words[places[1][:wide] + word]
            shared[:wide] += np.bitwise_count(both)
        if len(of):
            common[of] = np.add.reduceat(shared, np.cumsum(count) - count)
    return common


def _cut_into_lines(
    runs: PixelRuns, height: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """Cut runs where a column ends; return region, line, first pixel and the one after the last."""
    long = height[runs.region]
    line, first = np.divmod(runs.start, long)
    last_line, last = np.divmod(runs.end - 1, long)
    pieces = last_line - line + 1
    if (pieces == 1).all():
        return runs.region, line, first, last + 1
    of, lines = expand_ranges(line, pieces)
    begins = np.where(lines == line[of], first[of], 0)
    ends = np.where(lines == last_line[of], last[of] + 1, long[of])
    return runs.region[of], lines, begins, ends


def _stride(frame: Int64Array) -> Int64Array:
    """Return the words of a line."""
    return ((frame[:, 3] + 63) >> 6) - (frame[:, 2] >> 6)


def _between(turns: Int64Array, count: int) -> UInt64Array:
    """Return words whose bits are set from each first to each second of `turns`, which ascend."""
    words = np.zeros(count + 1, np.uint64)  # the last region may end at the last bit
    if not turns.size:
        return words[:-1]
    word = turns >> 6
    bit = np.left_shift(np.uint64(1), (turns & 63).astype(np.uint64))
    at = run_starts(word)
    words[word[at]] = np.bitwise_xor.reduceat(bit, at)
    for shift in (1, 2, 4, 8, 16, 32):
        words ^= words << np.uint64(shift)
    # Where a word ends inside, the next begins inside.
    inside = np.bitwise_xor.accumulate(words >> np.uint64(63)).astype(bool)
    words[1:][inside[:-1]] ^= np.uint64((1 << 64) - 1)
    return words[:-1]

"""Masks as bits: exact areas and overlaps of regions, counted in pixels, for many images at once.

Only the frame around a mask is stored, line by line, 64 pixels to a word. Lines are the rows of the image for
masks from contours, and the columns for masks from COCO's runs; two masks can be compared only if their lines
have the same direction.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from quadriga.monitor.evaluation.arrays import expand_ranges, find_keys, run_starts
from quadriga.monitor.evaluation.objects.matching import overlap_of
from quadriga.tasks.arrays import BoolArray, Float64Array, Int64Array, UInt64Array
from quadriga.tasks.geometry import Ring, fill

_LINES = 1 << 20
"""Maximum number of lines that are compared at once: bounds the memory."""


class Masks(NamedTuple):
    """Masks of regions (N,), of any number of images."""

    frame: Int64Array
    """First line and line after the last, first pixel of a line and pixel after the last, (N, 4)."""
    area: Int64Array
    """Area in pixels, (N,)."""
    start: Int64Array
    """Position of the first word of each mask, (N,)."""
    words: UInt64Array
    """Words of all masks. Bit 0 of a word is its first pixel; lines begin at a multiple of 64 pixels of the image."""


class PixelRuns(NamedTuple):
    """Regions as runs of pixels (R,), counted down the columns: x * height + y."""

    region: Int64Array
    """Position of the region; ascending."""
    start: Int64Array
    """First pixel, ascending within a region."""
    end: Int64Array
    """Pixel after the last; a run may continue in the next column."""


def from_contours(regions: Sequence[Sequence[Ring]], width: int, height: int) -> Masks:
    """Convert regions of one image, each some rings of points, to masks by the rule of `quadriga.tasks.geometry`.

    Rings have one point at least; masks are cropped to the image.
    """
    frames = [_frame(outlines, width, height) for outlines in regions]
    frame = np.array(frames, np.int64).reshape(-1, 4)
    stride = _stride(frame)
    sizes = (frame[:, 1] - frame[:, 0]) * stride
    ends = np.cumsum(sizes)
    words = np.zeros(int(sizes.sum()), "<u8")
    # Crops are aligned to words.
    corners = np.stack([frame[:, 2] & ~63, frame[:, 0]], axis=1).astype(np.int32)
    for region in np.flatnonzero(sizes).tolist():
        rows = words[ends[region] - sizes[region] : ends[region]].view(np.uint8)
        rows = rows.reshape(-1, stride[region] * 8)
        outlines = [ring - corners[region] for ring in regions[region]]
        mask = fill(outlines, int(frame[region, 3] - corners[region, 0]), len(rows))
        bits = np.packbits(mask, axis=1, bitorder="little")
        rows[:, : bits.shape[1]] = bits
    pixels = np.append(0, np.cumsum(np.bitwise_count(words), dtype=np.int64))
    area = pixels[ends] - pixels[ends - sizes]
    return Masks(frame, area, ends - sizes, words.astype(np.uint64, copy=False))


def _frame(outlines: Sequence[Ring], width: int, height: int) -> tuple[int, int, int, int]:
    """Return the frame of rings, cropped to their image; all 0 if nothing of them is in it."""
    if outlines:
        points = np.concatenate(outlines)
        (left, top), (right, bottom) = points.min(axis=0).tolist(), points.max(axis=0).tolist()
        top, bottom = max(top, 0), min(bottom + 1, height)
        left, right = max(left, 0), min(right + 1, width)
        if top < bottom and left < right:
            return top, bottom, left, right
    return 0, 0, 0, 0


def from_runs(runs: PixelRuns, height: Int64Array) -> Masks:
    """Convert runs, disjoint within a region, to masks; `height` is that of each region's image, (N,)."""
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
    """Find all pairs of masks of one image that share a pixel, of any labels.

    Args:
        predictions: Masks of predictions (P,).
        truths: Masks of annotations (T,).
        images: Numbers of the images, (P,) and (T,), both ascending.
        crowd: Whether an annotation is a crowd, (T,).

    Returns:
        Positions of both, and the overlap: intersection over union; with a crowd, over the area of the prediction.
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
    areas = predictions.area[prediction], truths.area[truth]
    return prediction, truth, overlap_of(intersection, *areas, crowd[truth])


def _common(
    first: Masks, second: Masks, first_rows: Int64Array, second_rows: Int64Array
) -> Int64Array:
    """Count the pixels that pairs of masks share; their frames overlap."""
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
    # Sorted by falling width, so that the pairs with an n-th word in their lines come first.
    order = np.argsort(word_range[0] - word_range[1], kind="stable")
    chunk_index = np.cumsum((line_range[1] - line_range[0])[order]) // _LINES
    for chunk in np.split(order, np.flatnonzero(np.diff(chunk_index)) + 1):
        count = line_range[1, chunk] - line_range[0, chunk]
        pair, line = expand_ranges(np.zeros_like(count), count)
        start_line, start_word = line_range[0, chunk], word_range[0, chunk]
        word_positions = []
        for masks, frame, rows in (
            (first, first_frames[chunk], first_rows[chunk]),
            (second, second_frames[chunk], second_rows[chunk]),
        ):
            stride = _stride(frame)
            skipped = (start_line - frame[:, 0]) * stride + start_word - (frame[:, 2] >> 6)
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
    """Cut runs at the ends of columns; return region, line, first pixel and pixel after the last."""
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
    """Return the number of words of a line, for each frame."""
    return ((frame[:, 3] + 63) >> 6) - (frame[:, 2] >> 6)


def _between(boundaries: Int64Array, count: int) -> UInt64Array:
    """Return words whose bits are set between each pair of `boundaries`, which are ascending."""
    words = np.zeros(count + 1, np.uint64)  # the last region may end at the last bit
    if not boundaries.size:
        return words[:-1]
    word = boundaries >> 6
    bit = np.left_shift(np.uint64(1), (boundaries & 63).astype(np.uint64))
    word_starts = run_starts(word)
    words[word[word_starts]] = np.bitwise_xor.reduceat(bit, word_starts)
    for shift in (1, 2, 4, 8, 16, 32):
        words ^= words << np.uint64(shift)
    # If a word ends inside of a run, the next one begins inside of it.
    inside = np.bitwise_xor.accumulate(words >> np.uint64(63)).astype(bool)
    words[1:][inside[:-1]] ^= np.uint64((1 << 64) - 1)
    return words[:-1]

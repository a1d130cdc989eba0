"""COCO's segmentations as runs of pixels, by its own rules: run lengths, plain or as text, and polygons.

Source: pycocotools 2.0, `maskApi.c`: rleFrString, rleFrPoly and rleMerge, with the same pixels.
"""

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np

from quadriga.monitor.evaluation.arrays import expand_ranges
from quadriga.monitor.evaluation.pixels.masks import Masks, PixelRuns, from_runs
from quadriga.monitor.evaluation.state import EvaluationError
from quadriga.store.exchange.coco import Segmentation
from quadriga.tasks.arrays import BoolArray, Float64Array, Int64Array

_FIRST_CHARACTER, _MOST_CHARACTERS = 48, 12
_SUBPIXELS = 5
_FARTHEST = 1 << 24
"""Maximum distance of a polygon from its image, in pixels."""

_PIXEL_BITS = 40
_PIXEL = (1 << _PIXEL_BITS) - 1

NameSegmentation = Callable[[int], str]
"""Names a segmentation, for messages."""


def masks_from_segmentations(
    segmentations: Sequence[Segmentation | None], sizes: Int64Array, name_of: NameSegmentation
) -> Masks:
    """Convert segmentations to masks; see `runs_from_segmentations`."""
    return from_runs(runs_from_segmentations(segmentations, sizes, name_of), sizes[:, 1])


def runs_from_segmentations(
    segmentations: Sequence[Segmentation | None], sizes: Int64Array, name_of: NameSegmentation
) -> PixelRuns:
    """Convert segmentations (N,) to runs; `sizes` are width and height of their images, (N, 2)."""
    polygons: dict[int, list[list[float]]] = {}
    texts: dict[int, bytes] = {}
    lists: dict[int, list[int]] = {}
    for index, (segmentation, (width, height)) in enumerate(
        zip(segmentations, sizes.tolist(), strict=True)
    ):
        if isinstance(segmentation, list):
            polygons[index] = segmentation
        elif segmentation is None or segmentation.size != (height, width):
            actual = (
                "none"
                if segmentation is None
                else f"one of {segmentation.size[0]} x {segmentation.size[1]}"
            )
            raise EvaluationError(
                f"{name_of(index)}: expected a segmentation of {height} x {width}, height and width of"
                f" the image, got {actual}"
            )
        elif isinstance(segmentation.counts, str):
            texts[index] = segmentation.counts.encode()
        else:
            lists[index] = segmentation.counts
    by_counts = _runs_of_counts(texts, lists, sizes, name_of)
    indices = np.array([*polygons], np.int64)
    by_polygons = from_polygons(
        [*polygons.values()], sizes[indices], lambda region: name_of(indices[region])
    )
    region = np.append(by_counts.region, indices[by_polygons.region])
    order = np.argsort(region, kind="stable")
    start, end = (
        np.append(pixels_of_counts, pixels_of_polygons)[order]
        for pixels_of_counts, pixels_of_polygons in zip(by_counts[1:], by_polygons[1:], strict=True)
    )
    return PixelRuns(region[order], start, end)


def _runs_of_counts(
    texts: dict[int, bytes],
    lists: dict[int, list[int]],
    sizes: Int64Array,
    name_of: NameSegmentation,
) -> PixelRuns:
    """Convert run lengths, compressed or as lists, by the index of their segmentation; `sizes` are those of all."""
    indices = np.array([*texts, *lists], np.int64)

    def name_of_region(region: int) -> str:
        return name_of(indices[region])

    lengths, counts = counts_of_texts([*texts.values()], name_of_region)
    runs = from_counts(
        np.append(lengths, np.fromiter(chain.from_iterable(lists.values()), np.int64)),
        np.append(counts, np.array([len(numbers) for numbers in lists.values()], np.int64)),
        sizes[indices].prod(axis=1),
        name_of_region,
    )
    return runs._replace(region=indices[runs.region])


def counts_of_texts(texts: list[bytes], name_of: NameSegmentation) -> tuple[Int64Array, Int64Array]:
    """Decode compressed run lengths, one text per mask: the run lengths of all, and the number of each (N,)."""
    codes = np.frombuffer(b"".join(texts), np.uint8) - np.uint8(_FIRST_CHARACTER)
    bounds = np.append(0, np.cumsum([len(text) for text in texts], dtype=np.int64))
    ends = np.flatnonzero(codes < 32)  # other characters continue in the next one
    counts = np.diff(np.searchsorted(ends, bounds))
    sizes = np.diff(ends, prepend=-1)
    last = bounds[1:][np.diff(bounds) > 0] - 1
    wrong = np.concatenate(
        [np.flatnonzero(codes > 63), last[codes[last] > 31], ends[sizes > _MOST_CHARACTERS]]
    )
    if wrong.size:
        at = int(np.searchsorted(bounds, wrong[0], "right")) - 1
        raise EvaluationError(f"{name_of(at)}: expected counts to be COCO's compressed run lengths")
    values = (codes[ends] & 31).astype(np.int64)
    values -= (values & 16) << 1
    # The last character has the highest bits.
    for nth in range(1, int(sizes.max(initial=1))):
        more = np.flatnonzero(sizes > nth)
        values[more] = values[more] << 5 | codes[ends[more] - nth] & 31
    return _from_differences(values, counts), counts


def _from_differences(values: Int64Array, counts: Int64Array) -> Int64Array:
    """Undo COCO's differences: all run lengths but the first three are stored minus the last but one."""
    start = np.repeat(np.cumsum(counts) - counts, counts)
    index_in_region = np.arange(len(values)) - start
    sums = np.empty_like(values)
    sums[::2], sums[1::2] = np.cumsum(values[::2]), np.cumsum(values[1::2])
    first = np.minimum(start + 2 - index_in_region % 2, len(values) - 1)
    return np.where(index_in_region == 0, values, sums - sums[first] + values[first])


def from_counts(
    lengths: Int64Array, counts: Int64Array, pixels: Int64Array, name_of: NameSegmentation
) -> PixelRuns:
    """Convert run lengths to runs.

    Args:
        lengths: Numbers of pixels alternately outside and inside, of all regions.
        counts: Number of run lengths of each region, (N,).
        pixels: Number of pixels of each region's image, which is their sum, (N,).
        name_of: Names a region, for messages.
    """
    region, number = expand_ranges(np.zeros_like(counts), counts)
    for index in np.flatnonzero((lengths < 0) | (lengths > pixels[region])).tolist():
        name, max_count = name_of(int(region[index])), pixels[region[index]]
        raise EvaluationError(f"{name}: expected counts of 0 to {max_count}, got {lengths[index]}")
    ends = np.cumsum(counts)
    sums = np.append(0, np.cumsum(lengths))
    base = sums[ends - counts]
    total = sums[ends] - base
    for region_index in np.flatnonzero(total != pixels).tolist():
        raise EvaluationError(
            f"{name_of(region_index)}: expected counts to sum to {pixels[region_index]} pixels, got {total[region_index]}"
        )
    inside = np.flatnonzero((number % 2 == 1) & (lengths > 0))
    end = sums[1:][inside] - base[region[inside]]
    return PixelRuns(region[inside], end - lengths[inside], end)


def from_polygons(
    polygons: Sequence[Sequence[Sequence[float]]], sizes: Int64Array, name_of: NameSegmentation
) -> PixelRuns:
    """Fill regions (N,), each a union of polygons x, y, x, y ...; the sizes of their images are (N, 2)."""
    region = np.repeat(
        np.arange(len(polygons)), [len(region_polygons) for region_polygons in polygons]
    )
    all_polygons = list(chain.from_iterable(polygons))
    numbers = np.array([len(ring) for ring in all_polygons], np.int64)
    for index in np.flatnonzero((numbers < 6) | (numbers % 2 == 1)):
        raise EvaluationError(
            f"{name_of(region[index])}: expected polygons of three pairs of x and y or more,"
            f" got {numbers[index]} numbers"
        )
    points = np.fromiter(chain.from_iterable(all_polygons), np.float64).reshape(-1, 2)
    for point in np.flatnonzero(~(np.abs(points) < _FARTHEST).all(axis=1)):
        index = np.searchsorted(np.cumsum(numbers // 2), point, "right")
        raise EvaluationError(
            f"{name_of(region[index])}: expected points near the image, got {points[point].tolist()}"
        )
    polygon, turns = _turns(points, numbers // 2, sizes[region])
    keys = np.sort(polygon << _PIXEL_BITS | turns)
    start, end = (keys & _PIXEL).reshape(-1, 2).T
    return _union(region[keys[::2] >> _PIXEL_BITS], start, end)


def _turns(
    points: Float64Array, counts: Int64Array, sizes: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return the crossings of polygons' edges with the columns: polygon and pixel, down the columns.

    Corners are rounded to a fifth of a pixel, an edge steps from one to the next along its longer side,
    and it crosses a column where it passes the column's middle.
    """
    corners = (_SUBPIXELS * points + 0.5).astype(np.int64)
    polygon = np.repeat(np.arange(len(counts)), counts)
    next_corner = np.arange(1, len(points) + 1)
    ends = np.cumsum(counts)
    next_corner[ends - 1] = ends - counts
    start, stop = corners, corners[next_corner]
    is_steep = (np.abs(stop - start) * (-1, 1)).sum(axis=1) > 0
    axis = is_steep.astype(np.int64)[:, None]
    is_reversed = np.take_along_axis(start > stop, axis, 1)
    start, stop = np.where(is_reversed, stop, start), np.where(is_reversed, start, stop)
    # Columns whose middle an edge passes.
    from_x, to_x = np.sort(np.stack([start[:, 0], stop[:, 0]]), axis=0)
    from_x = np.maximum((from_x + _SUBPIXELS // 2) // _SUBPIXELS, 0)
    to_x = np.minimum((to_x + _SUBPIXELS // 2) // _SUBPIXELS, sizes[polygon, 0])
    column_counts = np.maximum(to_x - from_x, 0)
    edge, column = expand_ranges(from_x, column_counts)
    middle = column * _SUBPIXELS + _SUBPIXELS // 2
    steps = np.take_along_axis(stop - start, axis, 1)[:, 0]
    slope = np.take_along_axis(stop - start, 1 - axis, 1)[:, 0] / np.maximum(steps, 1)
    height = sizes[polygon[edge], 1]
    y = np.where(
        is_steep[edge],
        _crossing(start[edge], slope[edge], steps[edge], middle),
        _lower(start[edge], slope[edge], middle),
    )
    row = np.ceil(np.clip((y + 0.5) / _SUBPIXELS - 0.5, 0, height)).astype(np.int64)
    return polygon[edge], column * height + row


def _lower(start: Int64Array, slope: Float64Array, middle: Int64Array) -> Int64Array:
    """Return the smaller y of the two steps of a flat edge beside the middle of a column."""
    step = middle - start[:, 0]
    left_y = (start[:, 1] + slope * step + 0.5).astype(np.int64)
    right_y = (start[:, 1] + slope * (step + 1) + 0.5).astype(np.int64)
    return np.minimum(left_y, right_y)


def _crossing(
    start: Int64Array, slope: Float64Array, steps: Int64Array, middle: Int64Array
) -> Int64Array:
    """Return the y of the last step of a steep edge before the middle of a column."""

    def is_past(step: Int64Array) -> BoolArray:
        x = (start[:, 0] + slope * step + 0.5).astype(np.int64)
        past: BoolArray = (x > middle) != (slope < 0)
        return past

    distance = (middle + 0.5 - start[:, 0]) / np.where(slope == 0, 1, slope)
    step = np.clip(np.floor(distance).astype(np.int64), 0, steps - 1)
    step -= is_past(step)  # the division may have rounded up
    step += ~is_past(step + 1)
    y: Int64Array = start[:, 1] + step
    return y


def _union(region: Int64Array, start: Int64Array, end: Int64Array) -> PixelRuns:
    """Merge runs that overlap or touch."""
    nonempty = end > start
    region, start, end = region[nonempty], start[nonempty], end[nonempty]
    # At the same pixel, starts sort before ends.
    starts, ends = (region << _PIXEL_BITS | pixel << 1 for pixel in (start, end))
    events = np.sort(np.concatenate([starts, ends | 1]))
    is_end = events & 1
    level = np.cumsum(1 - 2 * is_end)
    starts = events[(level == 1) & (is_end == 0)]
    ends = events[level == 0]
    return PixelRuns(starts >> _PIXEL_BITS, (starts & _PIXEL) >> 1, (ends & _PIXEL) >> 1)

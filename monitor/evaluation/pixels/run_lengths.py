"""COCO's segmentations as runs of pixels, by its own rules: run lengths, plain or as text, and polygons.

Source: pycocotools 2.0, `maskApi.c`: rleFrString, rleFrPoly and rleMerge, whose pixels these are.
"""

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np

from quadriga.monitor.evaluation.arrays import ranges
from quadriga.monitor.evaluation.pixels.masks import Masks, Runs, from_runs
from quadriga.monitor.evaluation.state import EvaluationError
from quadriga.store.exchange.coco import Segmentation
from quadriga.tasks.arrays import BoolArray, Float64Array, Int64Array

_FIRST_CHARACTER, _MOST_CHARACTERS = 48, 12
_SUBPIXELS = 5
_FARTHEST = 1 << 24
"""Pixels that a polygon may lie outside of its image."""

_PIXEL_BITS = 40
_PIXEL = (1 << _PIXEL_BITS) - 1

Where = Callable[[int], str]
"""Names a segmentation, for messages."""


def masks_of(
    segmentations: Sequence[Segmentation | None], sizes: Int64Array, where: Where
) -> Masks:
    """Read segmentations as masks; see `runs_of`."""
    return from_runs(runs_of(segmentations, sizes, where), sizes[:, 1])


def runs_of(segmentations: Sequence[Segmentation | None], sizes: Int64Array, where: Where) -> Runs:
    """Read segmentations (N,) of images whose widths and heights are (N, 2), as runs."""
    polygons: list[tuple[int, list[list[float]]]] = []
    texts: list[tuple[int, bytes]] = []
    plain: list[tuple[int, list[int]]] = []
    for at, (one, (width, height)) in enumerate(zip(segmentations, sizes.tolist(), strict=True)):
        if isinstance(one, list):
            polygons.append((at, one))
        elif one is None or one.size != (height, width):
            got = "none" if one is None else f"one of {one.size[0]} x {one.size[1]}"
            raise EvaluationError(
                f"{where(at)}: expected a segmentation of {height} x {width}, height and width of"
                f" the image, got {got}"
            )
        elif isinstance(one.counts, str):
            texts.append((at, one.counts.encode()))
        else:
            plain.append((at, one.counts))
    lengths, counts = counts_of_texts([text for _, text in texts], lambda at: where(texts[at][0]))
    of = np.array([at for at, _ in (*texts, *plain)], np.int64)
    by_counts = from_counts(
        np.append(lengths, np.fromiter(chain.from_iterable(one for _, one in plain), np.int64)),
        np.append(counts, np.array([len(one) for _, one in plain], np.int64)),
        sizes[of].prod(axis=1),
        lambda at: where(of[at]),
    )
    of_polygons = np.array([at for at, _ in polygons], np.int64)
    by_polygons = from_polygons(
        [one for _, one in polygons], sizes[of_polygons], lambda at: where(of_polygons[at])
    )
    region = np.append(of[by_counts.region], of_polygons[by_polygons.region])
    order = np.argsort(region, kind="stable")
    start, end = (
        np.append(one, other)[order]
        for one, other in zip(by_counts[1:], by_polygons[1:], strict=True)
    )
    return Runs(region[order], start, end)


def counts_of_texts(texts: list[bytes], where: Where) -> tuple[Int64Array, Int64Array]:
    """Read compressed run lengths, each text the `counts` of a mask: those of all, and how many (N,) each has."""
    codes = np.frombuffer(b"".join(texts), np.uint8) - np.uint8(_FIRST_CHARACTER)
    bounds = np.append(0, np.cumsum([len(text) for text in texts], dtype=np.int64))
    ends = np.flatnonzero(codes < 32)  # any other character goes on in the next
    counts = np.diff(np.searchsorted(ends, bounds))
    sizes = np.diff(ends, prepend=-1)
    last = bounds[1:][np.diff(bounds) > 0] - 1
    wrong = np.concatenate(
        [np.flatnonzero(codes > 63), last[codes[last] > 31], ends[sizes > _MOST_CHARACTERS]]
    )
    if wrong.size:
        at = int(np.searchsorted(bounds, wrong[0], "right")) - 1
        raise EvaluationError(f"{where(at)}: expected counts to be COCO's compressed run lengths")
    values = (codes[ends] & 31).astype(np.int64)
    values -= (values & 16) << 1
    # The last character has the highest bits.
    for nth in range(1, int(sizes.max(initial=1))):
        more = np.flatnonzero(sizes > nth)
        values[more] = values[more] << 5 | codes[ends[more] - nth] & 31
    return _from_differences(values, counts), counts


def _from_differences(values: Int64Array, counts: Int64Array) -> Int64Array:
    """Undo that all run lengths but the first three are written less the last but one."""
    start = np.repeat(np.cumsum(counts) - counts, counts)
    nth = np.arange(len(values)) - start
    sums = np.empty_like(values)
    sums[::2], sums[1::2] = np.cumsum(values[::2]), np.cumsum(values[1::2])
    first = np.minimum(start + 2 - nth % 2, len(values) - 1)
    return np.where(nth == 0, values, sums - sums[first] + values[first])


def from_counts(lengths: Int64Array, counts: Int64Array, pixels: Int64Array, where: Where) -> Runs:
    """Turn run lengths into runs.

    Args:
        lengths: Of pixels outside and inside by turns, of all regions.
        counts: (N,) how many each region has.
        pixels: (N,) of the image of each, which they fill.
        where: Names a region.
    """
    region, number = ranges(np.zeros_like(counts), counts)
    for at in np.flatnonzero((lengths < 0) | (lengths > pixels[region])).tolist():
        name, most = where(int(region[at])), pixels[region[at]]
        raise EvaluationError(f"{name}: expected counts of 0 to {most}, got {lengths[at]}")
    ends = np.cumsum(counts)
    sums = np.append(0, np.cumsum(lengths))
    base = sums[ends - counts]
    given = sums[ends] - base
    for at in np.flatnonzero(given != pixels).tolist():
        raise EvaluationError(
            f"{where(at)}: expected counts to sum to {pixels[at]} pixels, got {given[at]}"
        )
    inside = np.flatnonzero((number % 2 == 1) & (lengths > 0))
    end = sums[1:][inside] - base[region[inside]]
    return Runs(region[inside], end - lengths[inside], end)


def from_polygons(
    polygons: Sequence[Sequence[Sequence[float]]], sizes: Int64Array, where: Where
) -> Runs:
    """Fill regions (N,), each the union of polygons x, y, x, y ..., of images whose sizes are (N, 2)."""
    region = np.repeat(np.arange(len(polygons)), [len(of) for of in polygons])
    flat = list(chain.from_iterable(polygons))
    numbers = np.array([len(one) for one in flat], np.int64)
    for at in np.flatnonzero((numbers < 6) | (numbers % 2 == 1)):
        raise EvaluationError(
            f"{where(region[at])}: expected polygons of three pairs of x and y or more,"
            f" got {numbers[at]} numbers"
        )
    points = np.fromiter(chain.from_iterable(flat), np.float64).reshape(-1, 2)
    for point in np.flatnonzero(~(np.abs(points) < _FARTHEST).all(axis=1)):
        at = np.searchsorted(np.cumsum(numbers // 2), point, "right")
        raise EvaluationError(
            f"{where(region[at])}: expected points near the image, got {points[point].tolist()}"
        )
    polygon, turns = _turns(points, numbers // 2, sizes[region])
    keys = np.sort(polygon << _PIXEL_BITS | turns)
    start, end = (keys & _PIXEL).reshape(-1, 2).T
    return _union(region[keys[::2] >> _PIXEL_BITS], start, end)


def _turns(
    points: Float64Array, counts: Int64Array, sizes: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return where polygons are entered or left, going down the columns: polygon and pixel.

    Corners are rounded to a fifth of a pixel, an edge steps from one to the next along its longer side,
    and a column is entered where an edge passes its middle.
    """
    corners = (_SUBPIXELS * points + 0.5).astype(np.int64)
    polygon = np.repeat(np.arange(len(counts)), counts)
    following = np.arange(1, len(points) + 1)
    ends = np.cumsum(counts)
    following[ends - 1] = ends - counts
    low, high = corners, corners[following]
    steep = (np.abs(high - low) * (-1, 1)).sum(axis=1) > 0
    along = steep.astype(np.int64)[:, None]
    back = np.take_along_axis(low > high, along, 1)
    low, high = np.where(back, high, low), np.where(back, low, high)
    # The columns whose middle an edge passes.
    from_x, to_x = np.sort(np.stack([low[:, 0], high[:, 0]]), axis=0)
    from_x = np.maximum((from_x + _SUBPIXELS // 2) // _SUBPIXELS, 0)
    to_x = np.minimum((to_x + _SUBPIXELS // 2) // _SUBPIXELS, sizes[polygon, 0])
    crossed = np.maximum(to_x - from_x, 0)
    edge, column = ranges(from_x, crossed)
    middle = column * _SUBPIXELS + _SUBPIXELS // 2
    steps = np.take_along_axis(high - low, along, 1)[:, 0]
    slope = np.take_along_axis(high - low, 1 - along, 1)[:, 0] / np.maximum(steps, 1)
    height = sizes[polygon[edge], 1]
    y = np.where(
        steep[edge],
        _crossing(low[edge], slope[edge], steps[edge], middle),
        _lower(low[edge], slope[edge], middle),
    )
    row = np.ceil(np.clip((y + 0.5) / _SUBPIXELS - 0.5, 0, height)).astype(np.int64)
    return polygon[edge], column * height + row


def _lower(low: Int64Array, slope: Float64Array, middle: Int64Array) -> Int64Array:
    """Return the smaller y of the two steps of a flat edge on both sides of the middle."""
    step = middle - low[:, 0]
    before = (low[:, 1] + slope * step + 0.5).astype(np.int64)
    after = (low[:, 1] + slope * (step + 1) + 0.5).astype(np.int64)
    return np.minimum(before, after)


def _crossing(
    low: Int64Array, slope: Float64Array, steps: Int64Array, middle: Int64Array
) -> Int64Array:
    """Return the y of the last step of a steep edge before it passes the middle."""

    def is_past(step: Int64Array) -> BoolArray:
        x = (low[:, 0] + slope * step + 0.5).astype(np.int64)
        past: BoolArray = (x > middle) != (slope < 0)
        return past

    distance = (middle + 0.5 - low[:, 0]) / np.where(slope == 0, 1, slope)
    step = np.clip(np.floor(distance).astype(np.int64), 0, steps - 1)
    step -= is_past(step)  # what the division rounded
    step += ~is_past(step + 1)
    y: Int64Array = low[:, 1] + step
    return y


def _union(region: Int64Array, start: Int64Array, end: Int64Array) -> Runs:
    """Put runs together that meet or touch."""
    some = end > start
    region, start, end = region[some], start[some], end[some]
    # At one pixel, beginnings come before ends.
    starts, ends = (region << _PIXEL_BITS | pixel << 1 for pixel in (start, end))
    events = np.sort(np.concatenate([starts, ends | 1]))
    is_end = events & 1
    level = np.cumsum(1 - 2 * is_end)
    starts = events[(level == 1) & (is_end == 0)]
    ends = events[level == 0]
    return Runs(starts >> _PIXEL_BITS, (starts & _PIXEL) >> 1, (ends & _PIXEL) >> 1)

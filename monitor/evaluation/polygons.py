"""COCO's polygons as runs of pixels, by its own rule.

Source: pycocotools 2.0, `maskApi.c`: rleFrPoly and rleMerge, whose pixels these are.
"""

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np

from monitor.evaluation.arrays import Doubles, Flags, Integers, ranges
from monitor.evaluation.masks import Runs
from monitor.evaluation.state import EvaluationError

_SUBPIXELS = 5
_FARTHEST = 1 << 24
"""Pixels that a polygon may lie outside of its image."""

_PIXEL_BITS = 40
_PIXEL = (1 << _PIXEL_BITS) - 1

Where = Callable[[int], str]
"""Names a region, for messages."""


def from_polygons(
    polygons: Sequence[Sequence[Sequence[float]]], sizes: Integers, where: Where
) -> Runs:
    """Fill polygons as COCO does; a region is the union of its polygons.

    Args:
        polygons: (N,) regions, each a list of polygons x, y, x, y ...
        sizes: (N, 2) width and height of the image of each region.
        where: Names a region.

    Raises:
        EvaluationError: A polygon has fewer than three points, or lies far outside.
    """
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


def _turns(points: Doubles, counts: Integers, sizes: Integers) -> tuple[Integers, Integers]:
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


def _lower(low: Integers, slope: Doubles, middle: Integers) -> Integers:
    """Return the smaller y of the two steps of a flat edge on both sides of the middle."""
    step = middle - low[:, 0]
    before = (low[:, 1] + slope * step + 0.5).astype(np.int64)
    after = (low[:, 1] + slope * (step + 1) + 0.5).astype(np.int64)
    return np.minimum(before, after)


def _crossing(low: Integers, slope: Doubles, steps: Integers, middle: Integers) -> Integers:
    """Return the y of the last step of a steep edge before it passes the middle."""

    def is_past(step: Integers) -> Flags:
        x = (low[:, 0] + slope * step + 0.5).astype(np.int64)
        past: Flags = (x > middle) != (slope < 0)
        return past

    distance = (middle + 0.5 - low[:, 0]) / np.where(slope == 0, 1, slope)
    step = np.clip(np.floor(distance).astype(np.int64), 0, steps - 1)
    step -= is_past(step)  # what the division rounded
    step += ~is_past(step + 1)
    y: Integers = low[:, 1] + step
    return y


def _union(region: Integers, start: Integers, end: Integers) -> Runs:
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

"""Slow and plain references for the tests of segmentation: loops over pixels, no shared code."""

import math

import numpy as np


def places(affine, axis, cells):
    """Return the position of each pixel's centre of an axis among cells, and the ends of the image there."""
    scale, shift, pixels = (
        (affine.sx, affine.px, affine.width) if axis == 0 else (affine.sy, affine.py, affine.height)
    )
    k = cells / affine.network_wh[axis]
    first = min(max(shift * k, 0), cells)
    last = max(min((shift + scale * pixels) * k, cells), first)
    return [((at + 0.5) * scale + shift) * k for at in range(pixels)], first, last


def seen(place, cells):
    return -1e-9 <= place < cells - 1e-9


def _two_cells(place, first, last, cells):
    u = place - 0.5
    if last - first >= 1:
        u = min(max(u, first), last - 1)
    else:
        u = min(max((first + last) / 2 - 0.5, 0), cells - 1)
    low = math.floor(u + 1e-9)
    return low, min(low + 1, cells - 1), u - low


def enlarged(maps, affine):
    """Bilinear samples at every pixel of the image, (C, H, W); NaN where the network saw nothing."""
    count, height, width = maps.shape
    xs, *x_ends = places(affine, 0, width)
    ys, *y_ends = places(affine, 1, height)
    result = np.full((count, affine.height, affine.width), np.nan)
    for row, y in enumerate(ys):
        for column, x in enumerate(xs):
            if not (seen(x, width) and seen(y, height)):
                continue
            x0, x1, fx = _two_cells(x, *x_ends, width)
            y0, y1, fy = _two_cells(y, *y_ends, height)
            upper = maps[:, y0, x0] * (1 - fx) + maps[:, y0, x1] * fx
            lower = maps[:, y1, x0] * (1 - fx) + maps[:, y1, x1] * fx
            result[:, row, column] = upper * (1 - fy) + lower * fy
    return result


def components(mask):
    """The 8-connected parts of a mask, as sets of (x, y), by flooding."""
    remaining = {(int(x), int(y)) for y, x in np.argwhere(mask)}
    components_ = []
    while remaining:
        front = [remaining.pop()]
        component = set(front)
        while front:
            x, y = front.pop()
            near = {(x + dx, y + dy) for dx in (-1, 0, 1) for dy in (-1, 0, 1)} & remaining
            remaining -= near
            component |= near
            front.extend(near)
        components_.append(component)
    return components_

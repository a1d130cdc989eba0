"""Network outputs that are maps, sampled at the pixels of the original image.

An output of any resolution covers the network's input; with the affine map of the image, each image pixel has
its position in it. Pixels outside of the network's input (a crop) have no value.
"""

import math
from collections.abc import Iterator
from typing import Any

import cv2
import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.tasks.resize import Affine

Floats = npt.NDArray[np.float32]

_ROUNDING_PX = 1e-6


class PixelRect(msgspec.Struct, frozen=True):
    """A rectangle of whole pixels; right and bottom are the first column and row outside of it."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def empty(self) -> bool:
        """Whether the rectangle has no pixels."""
        return self.left >= self.right or self.top >= self.bottom

    @property
    def size_hw(self) -> tuple[int, int]:
        """Height and width."""
        return self.bottom - self.top, self.right - self.left

    def cut(self, pixels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the view of an array (H, W, ...) inside the rectangle."""
        return pixels[self.top : self.bottom, self.left : self.right]

    def intersection(self, rect: "PixelRect") -> "PixelRect":
        """Return the common rectangle of two; it is empty if they have no common pixel."""
        left, top = max(self.left, rect.left), max(self.top, rect.top)
        right, bottom = min(self.right, rect.right), min(self.bottom, rect.bottom)
        return PixelRect(left, top, max(left, right), max(top, bottom))

    def slices_of(self, frame: "PixelRect") -> tuple[slice, slice]:
        """Return the rows and columns of the rectangle in an array of a frame that holds it."""
        rows = slice(self.top - frame.top, self.bottom - frame.top)
        return rows, slice(self.left - frame.left, self.right - frame.left)

    def tiles(self, height: int, width: int) -> Iterator["PixelRect"]:
        """Yield tiles of at most `height` x `width`, row by row."""
        for top in range(self.top, self.bottom, height):
            for left in range(self.left, self.right, width):
                yield self.intersection(PixelRect(left, top, left + width, top + height))


class _Taps(msgspec.Struct, frozen=True, eq=False):
    """Interpolation along one axis: for each pixel the two cells around its centre, and the share of the second."""

    low: npt.NDArray[np.int64]
    high: npt.NDArray[np.int64]
    share: Floats

    def cut(self) -> tuple[slice, "_Taps"]:
        """Return the range of cells in use, and the taps counted from its start."""
        used = slice(int(self.low[0]), int(self.high[-1]) + 1)
        return used, _Taps(self.low - used.start, self.high - used.start, self.share)


class _Axis(msgspec.Struct, frozen=True):
    """One axis of a grid: `cell = pixel * scale + shift`."""

    scale: float
    shift: float
    pixels: int
    cells: int

    def places(self, start: int, stop: int) -> npt.NDArray[np.float64]:
        """Return the positions of the centres of pixels, in cells."""
        return np.asarray((np.arange(start, stop) + 0.5) * self.scale + self.shift, np.float64)

    def ends(self) -> tuple[float, float]:
        """Return the start and the end of the image, clipped to the cells."""
        first = min(max(_snapped(self.shift), 0.0), self.cells - _ROUNDING_PX)
        last = _snapped(self.shift + self.scale * self.pixels)
        return first, max(min(last, self.cells), first)

    def taps(self, start: int, stop: int) -> _Taps:
        """Return the two cells to mix for each pixel, and the share of the second."""
        first, last = self.ends()
        if last - first < 1:
            first = last = min(max((first + last) / 2 - 0.5, 0.0), self.cells - 1.0)
        else:
            last -= 1
        positions = np.clip(self.places(start, stop) - 0.5, first, last)
        low = np.floor(positions).astype(np.int64)
        return _Taps(low, np.minimum(low + 1, self.cells - 1), (positions - low).astype(np.float32))

    def nearest(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the cell of each pixel."""
        first, last = self.ends()
        indices = np.floor(self.places(start, stop) + _ROUNDING_PX).astype(np.int64)
        return np.asarray(np.clip(indices, math.floor(first), math.ceil(last) - 1))

    def corners(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the cell in which the first edge of each pixel lies, rounded as torch rounds: in float32."""
        first, last = self.ends()
        edges = np.arange(start, stop, dtype=np.float32) * np.float32(self.scale)
        indices = np.floor(edges).astype(np.int64) + math.floor(_snapped(self.shift))
        return np.asarray(np.clip(indices, math.floor(first), math.ceil(last) - 1))


def _axes(grid: Affine) -> tuple[_Axis, _Axis]:
    """Return the axes of the columns and of the rows."""
    width, height = grid.network_wh
    return (
        _Axis(grid.sx, grid.px, grid.width, width),
        _Axis(grid.sy, grid.py, grid.height, height),
    )


def _snapped(position: float) -> float:
    """Return the edge between cells next to a position, if only rounding separates them."""
    nearest_edge = round(position)
    return nearest_edge if abs(position - nearest_edge) < _ROUNDING_PX else position


def grid_of(affine: Affine, cells_hw: tuple[int, ...]) -> Affine:
    """Map the image to the cells (rows, columns) of an output that covers the network's input."""
    height, width = cells_hw
    kx, ky = width / affine.network_wh[0], height / affine.network_wh[1]
    return msgspec.structs.replace(
        affine,
        sx=affine.sx * kx,
        sy=affine.sy * ky,
        px=affine.px * kx,
        py=affine.py * ky,
        network_wh=(width, height),
    )


def visible(grid: Affine) -> PixelRect:
    """Return the pixels of the image whose centres lie in the network's input."""
    width, height = grid.network_wh
    return pixels_in(grid, 0, 0, right=width, bottom=height)


def pixels_in(grid: Affine, left: float, top: float, right: float, bottom: float) -> PixelRect:
    """Return the pixels of the image whose centres lie in a rectangle of the grid."""
    corners = grid.to_image(np.array([left, top, right, bottom], np.float64))
    x1, y1, x2, y2 = np.ceil(corners - 0.5 - _ROUNDING_PX).tolist()
    stops = min(int(x2), grid.width), min(int(y2), grid.height)
    return PixelRect(max(int(x1), 0), max(int(y1), 0), *stops)


def above_zero(cells: Floats, grid: Affine) -> PixelRect:
    """Return a rectangle outside of which no bilinear sample of float32 (h, w) is above zero."""
    left, top, width, height = cv2.boundingRect((cells > 0).astype(np.uint8))
    if not width:
        return PixelRect(0, 0, 0, 0)
    # cells at the edge of the sampled range are repeated beyond it
    far = grid.sx * grid.width + grid.sy * grid.height + sum(grid.network_wh)
    (start_x, stop_x), (start_y, stop_y) = (axis.ends() for axis in _axes(grid))
    return pixels_in(
        grid,
        left=left - 0.5 if left > start_x + 1 else -far,
        top=top - 0.5 if top > start_y + 1 else -far,
        right=left + width + 0.5 if left + width < stop_x - 1 else far,
        bottom=top + height + 0.5 if top + height < stop_y - 1 else far,
    ).intersection(visible(grid))


def cut(maps: Floats, grid: Affine, rect: PixelRect, margin: int = 0) -> tuple[Floats, Affine]:
    """Return the crop of maps (C, h, w) that a rectangle needs, with `margin` more cells, and its grid."""
    x, y = _axes(grid)
    columns, _ = x.taps(rect.left, rect.right).cut()
    rows, _ = y.taps(rect.top, rect.bottom).cut()
    left, top = max(columns.start - margin, 0), max(rows.start - margin, 0)
    crop = maps[:, top : rows.stop + margin, left : columns.stop + margin]
    crop_grid = msgspec.structs.replace(
        grid, px=grid.px - left, py=grid.py - top, network_wh=(crop.shape[2], crop.shape[1])
    )
    return crop, crop_grid


def bilinear(maps: Floats, grid: Affine, rect: PixelRect, upsample: int = 1) -> Floats:
    """Sample float32 (C, h, w) at the centres of a rectangle's pixels, between the four nearest cells.

    Cells beyond the edges of the image, as in a letterbox border, are not used: the outermost cells inside are
    repeated. With `upsample` the maps are first enlarged by that factor, bilinearly.

    Source: PyTorch, interpolate, bilinear with align_corners=False.
    """
    width, height = grid.network_wh
    x, y = _axes(grid_of(grid, (height * upsample, width * upsample)))
    used_columns, columns = x.taps(rect.left, rect.right).cut()
    used_rows, rows = y.taps(rect.top, rect.bottom).cut()
    if upsample == 1:
        return _sample(maps[:, used_rows, used_columns], rows, columns)
    step = 1 / upsample
    fine = Affine(
        sx=step,
        sy=step,
        px=0,
        py=0,
        width=width * upsample,
        height=height * upsample,
        network_wh=(width, height),
    )
    crop_rect = PixelRect(used_columns.start, used_rows.start, used_columns.stop, used_rows.stop)
    return _sample(bilinear(maps, fine, crop_rect), rows, columns)


def nearest(cells: npt.NDArray[Any], grid: Affine, rect: PixelRect) -> npt.NDArray[Any]:
    """Return the cell (h, w) in which the centre of each pixel lies, for a rectangle that is not empty."""
    x, y = _axes(grid)
    rows = cells[y.nearest(rect.top, rect.bottom)]
    return np.take(rows, x.nearest(rect.left, rect.right), axis=1)


def nearest_by_corner(cells: npt.NDArray[Any], grid: Affine, rect: PixelRect) -> npt.NDArray[Any]:
    """Return the cell (h, w) in which the left top corner of each pixel lies, for a rectangle that is not empty.

    Source: PyTorch, interpolate, nearest.
    """
    x, y = _axes(grid)
    rows = cells[y.corners(rect.top, rect.bottom)]
    return np.take(rows, x.corners(rect.left, rect.right), axis=1)


def _sample(maps: Floats, rows: _Taps, columns: _Taps) -> Floats:
    # along the rows first: there are fewer of them as long as an output is smaller than the image
    wide = np.take(maps, columns.low, axis=2)
    step = np.take(maps, columns.high, axis=2)
    step -= wide
    step *= columns.share
    wide += step
    tall = np.take(wide, rows.low, axis=1)
    step = np.take(wide, rows.high, axis=1)
    step -= tall
    step *= rows.share[:, None]
    tall += step
    return tall

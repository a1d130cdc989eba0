"""Preprocessing: decoded image to input tensor, and the map between image pixels and network pixels."""

import functools
import math
from collections.abc import Iterator
from typing import Any

import cv2
import msgspec
import numpy as np
import numpy.typing as npt
import PIL.Image

from quadriga.tasks.image import MAX_PIXELS, Image, ImageError, Samples
from quadriga.tasks.predictions import Size
from quadriga.tasks.specification import INTEGERS, InputSpec

_FILTERS = {
    "nearest": (cv2.INTER_NEAREST, PIL.Image.Resampling.NEAREST),
    "linear": (cv2.INTER_LINEAR, PIL.Image.Resampling.BILINEAR),
    "cubic": (cv2.INTER_CUBIC, PIL.Image.Resampling.BICUBIC),
    "lanczos": (cv2.INTER_LANCZOS4, PIL.Image.Resampling.LANCZOS),
    "area": (cv2.INTER_AREA, PIL.Image.Resampling.BOX),
}
"""OpenCV's and Pillow's constants of each interpolation; Pillow filters while it shrinks."""


class Affine(msgspec.Struct, frozen=True):
    """How one image lies in the network's input: `network = image * s + p`, pixels."""

    sx: float
    """Network pixels per image pixel along x."""
    sy: float
    px: float
    """Position of the image's left edge in the network's input; negative if it was cropped."""
    py: float
    width: int
    """Width of the image, to which boxes are clipped when they are mapped back."""
    height: int
    network_wh: Size
    """Width and height of the network's input for this image."""

    def to_network(self, points: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        """Map points (..., 2) or boxes (..., 4) from image pixels to network pixels, float64."""
        scale, shift = self._columns(points.shape[-1])
        return np.asarray(points * scale + shift, np.float64)

    def to_image(self, points: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        """Map x, y pairs from network pixels to image pixels, unclipped; undoes `to_network`."""
        scale, shift = self._columns(points.shape[-1])
        return np.asarray((points - shift) / scale, np.float64)

    def _columns(self, count: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        pairs = count // 2
        return np.array([self.sx, self.sy] * pairs, float), np.array(
            [self.px, self.py] * pairs, float
        )


def preprocess(image: Image, spec: InputSpec) -> tuple[npt.NDArray[Any], Affine]:
    """Make the input tensor of one image by its specification, and the map from image to network pixels.

    A tensor of integers holds the raw values: `scale`, `mean` and `std` are not applied.
    """
    affine, size_wh = image_placement(image.width, image.height, spec)
    pixels = image.pixels
    if spec.channels == 1 and pixels.shape[2] == 3:
        pixels = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY).astype(np.uint8, copy=False)
    pixels = _fit(_scale(pixels, size_wh, spec), affine, spec)
    tensor = _tensor(pixels.reshape(*pixels.shape[:2], spec.channels), spec)
    if not float(spec.pad_value).is_integer():
        _fill_border(tensor, affine, size_wh, spec=spec)
    return tensor, affine


def plain(spec: InputSpec) -> Image:
    """Make a gray image of the network's size, of the type that `quadriga.tasks.image.decode` returns."""
    kind = np.uint8 if spec.bit_depth == 8 else np.uint16
    shape = (*spec.size_wh[::-1], spec.channels)
    return Image(np.full(shape, _level(114, spec), kind), bit_depth=spec.bit_depth)


def noise(spec: InputSpec, seed: int = 0) -> Image:
    """Make an image of noise like `plain`: each value is random, the same for a seed."""
    image = plain(spec)
    shape, kind = image.pixels.shape, image.pixels.dtype
    pixels = np.random.default_rng(seed).integers(0, 1 << image.bit_depth, shape, kind)
    return msgspec.structs.replace(image, pixels=pixels)


def _level(gray: float, spec: InputSpec) -> int:
    return round(_exact_level(gray, spec))


def _exact_level(gray: float, spec: InputSpec) -> float:
    return gray * ((1 << spec.bit_depth) - 1) / 255


def check_shape(width: int, height: int, spec: InputSpec) -> None:
    """Refuse an image so narrow that it would be scaled to more than `MAX_PIXELS`, with an ImageError."""
    _, (new_w, new_h) = image_placement(width, height, spec)
    if new_w * new_h > max(MAX_PIXELS, width * height):
        raise ImageError(
            f"expected an image that is scaled to at most {MAX_PIXELS} pixels, got {width} x {height},"
            f" which is scaled to {new_w} x {new_h}: its sides differ too much"
        )


def image_placement(width: int, height: int, spec: InputSpec) -> tuple[Affine, Size]:
    """Return the position of an image in the network's input, and its size before it is cropped or padded.

    Source:
        letterbox: Ultralytics 8.4, `data/augment.py` LetterBox and `utils/ops.py` scale_boxes, which
        takes the gain of each axis after rounding. letterbox_topleft: YOLOX,
        `data/data_augment.py` preproc. shortest_crop: torchvision `Resize` and `CenterCrop`; timm's
        `ResizeKeepRatio` where the input is not square; Hugging Face: transformers 4.57,
        `image_transforms.py` center_crop. shortest_longest and shortest_at_least: see `_within`,
        `_at_least` and `_divided`.
    """
    net_w, net_h = spec.size_wh
    left = top = 0
    gain = min(net_w / width, net_h / height)
    match spec.resize:
        case "letterbox" | "letterbox_rect":
            new_w, new_h = max(round(width * gain), 1), max(round(height * gain), 1)
            if spec.resize == "letterbox_rect":
                net_w, net_h = new_w + -new_w % spec.divisor, new_h + -new_h % spec.divisor
            left, top = round((net_w - new_w) / 2 - 0.1), round((net_h - new_h) / 2 - 0.1)
        case "letterbox_topleft":
            size_wh = max(int(width * gain), 1), max(int(height * gain), 1)
            affine = Affine(
                sx=gain, sy=gain, px=0, py=0, width=width, height=height, network_wh=spec.size_wh
            )
            return affine, size_wh
        case "stretch":
            new_w, new_h = net_w, net_h
        case "shortest_crop" | "stretch_crop":
            covers = spec.resize == "shortest_crop"
            new_w, new_h = _cover(width, height, spec) if covers else _uncropped(spec)
            left, top = -_middle(new_w - net_w, spec), -_middle(new_h - net_h, spec)
        case "shortest_longest" | "shortest_at_least":
            sides = _within if spec.resize == "shortest_longest" else _at_least
            new_w, new_h = (_divided(n, spec) for n in sides(width, height, *spec.size_wh))
            net_w, net_h = new_w, new_h
        case "none":
            new_w, new_h = net_w, net_h = width, height
    affine = Affine(
        sx=new_w / width,
        sy=new_h / height,
        px=left,
        py=top,
        width=width,
        height=height,
        network_wh=(net_w, net_h),
    )
    return affine, (new_w, new_h)


def _cover(width: int, height: int, spec: InputSpec) -> Size:
    """Return the size whose shortest side is that of the crop over `crop_fraction`."""
    cover_w, cover_h = _uncropped(spec)
    if cover_w != cover_h:
        gain = max(cover_w / width, cover_h / height)
        return round(width * gain), round(height * gain)
    if width <= height:
        return cover_w, int(cover_w * height / width)
    return int(cover_h * width / height), cover_h


def _uncropped(spec: InputSpec) -> Size:
    """Return the size from which `size_wh` is cropped."""
    # a fraction such as 224 / 232 does not divide exactly
    width, height = (math.floor(side / spec.crop_fraction + 1e-6) for side in spec.size_wh)
    return width, height


def _middle(free: int, spec: InputSpec) -> int:
    """Return the start of a crop, in pixels of the resized image, if it leaves out `free` pixels."""
    return free // 2 if spec.crop_rounds == "down" else round(free / 2)


def _divided(side: int, spec: InputSpec) -> int:
    """Round a side to a multiple of the divisor; the image is resized to it, not padded.

    Source: transformers 4.57, `image_processing_yolos.py` get_size_with_aspect_ratio (down) and
    `image_processing_maskformer.py` get_maskformer_resize_output_image_size (up); PaddleOCR 3,
    `ppocr/data/imaug/operators.py` DetResizeForTest (nearest).
    """
    if spec.divisor_rounds == "down":
        return max(side - side % spec.divisor, 1)
    if spec.divisor_rounds == "nearest":
        return max(round(side / spec.divisor) * spec.divisor, spec.divisor)
    return side + -side % spec.divisor


def _within(width: int, height: int, shortest: int, longest: int) -> Size:
    """Return the size whose shortest side is `shortest`, or less so that no side exceeds `longest`.

    Source: transformers 4.57, `image_transforms.get_size_with_aspect_ratio`.
    """
    small, large = min(width, height), max(width, height)
    short_side, exact = shortest, float(shortest)
    if large / small * shortest > longest:
        exact = longest * small / large
        short_side = round(exact)
    if small == short_side:
        return width, height
    long_side = int(exact * large / small)
    short_side = max(short_side, 1)
    return (short_side, long_side) if width < height else (long_side, short_side)


def _at_least(width: int, height: int, shortest: int, longest: int) -> Size:
    """Return the size of an image that is only enlarged: to the shortest side, then reduced to the longest.

    Source: PaddleOCR 3, `ppocr/data/imaug/operators.py` DetResizeForTest, limit_type "min".
    """
    gain = max(shortest / min(width, height), 1)
    width, height = int(width * gain), int(height * gain)
    if max(width, height) > longest:
        gain = longest / max(width, height)
        width, height = int(width * gain), int(height * gain)
    return max(width, 1), max(height, 1)


def _scale(pixels: Samples, size_wh: Size, spec: InputSpec) -> Samples:
    if size_wh == (pixels.shape[1], pixels.shape[0]):
        return pixels
    bands = pixels.shape[2] if pixels.ndim == 3 else 1
    # Pillow would multiply RGBA by its alpha, and knows no bands beside RGB's of 8 bits
    unknown = pixels.ndim == 3 and (bands != 3 or pixels.dtype != np.uint8)
    if (spec.antialias and unknown) or (bands > 4 and spec.interpolation == "area"):
        scaled = [_scale(band, size_wh, spec) for band in np.moveaxis(pixels, 2, 0)]
        return np.stack(scaled, axis=2).astype(pixels.dtype, copy=False)
    if not spec.antialias:
        resized = cv2.resize(pixels, size_wh, interpolation=_FILTERS[spec.interpolation][0])
        return resized.astype(pixels.dtype, copy=False)
    filter_ = _FILTERS[spec.interpolation][1]
    if pixels.dtype == np.uint8:
        return np.asarray(PIL.Image.fromarray(pixels).resize(size_wh, filter_))
    exact = np.asarray(PIL.Image.fromarray(pixels.astype(np.float32)).resize(size_wh, filter_))
    return np.clip(np.round(exact), 0, 2**spec.bit_depth - 1).astype(np.uint16)


def _fit(pixels: Samples, affine: Affine, spec: InputSpec) -> Samples:
    """Crop the image at the edges of the network's input, and pad it to its size."""
    net_w, net_h = affine.network_wh
    top, left = int(affine.py), int(affine.px)
    pixels = pixels[max(-top, 0) :, max(-left, 0) :][:net_h, :net_w]
    height, width = pixels.shape[:2]
    if (width, height) == (net_w, net_h):
        return pixels
    top, left = max(top, 0), max(left, 0)
    shape = (net_h, net_w, *pixels.shape[2:])
    canvas = np.full(shape, _level(spec.pad_value, spec), pixels.dtype)
    canvas[top : top + height, left : left + width] = pixels
    return canvas


def _fill_border(tensor: npt.NDArray[Any], affine: Affine, size_wh: Size, spec: InputSpec) -> None:
    """Write the normalised border into a tensor of floats, in place, as no pixel can hold the level exactly."""
    level = _exact_level(spec.pad_value, spec) * spec.scale
    planes = tensor if spec.layout == "nchw" else np.moveaxis(tensor, 2, 0)
    top, left = int(max(affine.py, 0)), int(max(affine.px, 0))
    bottom, right = int(affine.py) + size_wh[1], int(affine.px) + size_wh[0]
    for plane, mean, std in zip(planes, spec.mean, spec.std, strict=False):
        border = (level - mean) / std
        plane[:top], plane[bottom:] = border, border
        plane[:, :left], plane[:, right:] = border, border


def _tensor(pixels: Samples, spec: InputSpec) -> npt.NDArray[Any]:
    """Order, normalise and lay out pixels (H, W, C), RGB, gray or bands."""
    swapped = spec.color == "bgr" and spec.channels > 1
    order = [2, 1, 0, *range(3, spec.channels)] if swapped else None
    if spec.dtype in INTEGERS:
        ordered = pixels if order is None else pixels[..., order]
        ordered = ordered.transpose(2, 0, 1) if spec.layout == "nchw" else ordered
        return np.ascontiguousarray(ordered, spec.dtype)
    planes = cv2.split(pixels)
    if order is not None:
        planes = [planes[band] for band in order]
    values = _values(
        np.iinfo(pixels.dtype).max + 1, spec.channels, spec.scale, mean=spec.mean, std=spec.std
    )
    tensor = np.empty((spec.channels, *pixels.shape[:2]), np.float32)
    for plane, table, target in zip(planes, values, tensor, strict=True):
        if plane.dtype == np.uint8:
            cv2.LUT(plane, table, target)  # half the time of arithmetic on each pixel
        else:
            np.take(table[0], plane.astype(np.uint16, copy=False), out=target)
    if spec.layout == "nhwc":
        tensor = np.ascontiguousarray(tensor.transpose(1, 2, 0))
    return tensor.astype(spec.dtype, copy=False)


@functools.lru_cache(maxsize=64)
def _values(
    levels: int, channels: int, scale: float, mean: tuple[float, ...], std: tuple[float, ...]
) -> npt.NDArray[np.float32]:
    """Return the normalised value of each level of each channel, float32 (channels, 1, levels).

    Values are rounded as the libraries round them: after the scale, after the mean and after the division, all in
    float32; Ultralytics and torchvision divide by 255, which is the same number.
    """
    scaled = (np.arange(levels) * scale).astype(np.float32)
    rows = [
        (scaled - np.float32(mean[channel])) / np.float32(std[channel])
        for channel in range(channels)
    ]
    return np.stack(rows)[:, None]


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


_Taps = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Floats]
"""Interpolation along one axis: for each pixel the two cells around its centre, and the share of the second."""


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

    def taps(self, start: int, stop: int) -> tuple[slice, _Taps]:
        """Return the range of cells that pixels use, and their taps, counted from its start."""
        first, last = self.ends()
        if last - first < 1:
            first = last = min(max((first + last) / 2 - 0.5, 0.0), self.cells - 1.0)
        else:
            last -= 1
        positions = np.clip(self.places(start, stop) - 0.5, first, last)
        low = np.floor(positions).astype(np.int64)
        high, share = np.minimum(low + 1, self.cells - 1), (positions - low).astype(np.float32)
        used = slice(int(low[0]), int(high[-1]) + 1)
        return used, (low - used.start, high - used.start, share)

    def nearest(self, start: int, stop: int, *, by_corner: bool) -> npt.NDArray[np.int64]:
        """Return the cell of the centre of each pixel, or that of its first edge, rounded as torch rounds: in float32."""
        first, last = self.ends()
        if by_corner:
            edges = np.arange(start, stop, dtype=np.float32) * np.float32(self.scale)
            indices = np.floor(edges).astype(np.int64) + math.floor(_snapped(self.shift))
        else:
            indices = np.floor(self.places(start, stop) + _ROUNDING_PX).astype(np.int64)
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
    columns, _ = x.taps(rect.left, rect.right)
    rows, _ = y.taps(rect.top, rect.bottom)
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
    used_columns, columns = x.taps(rect.left, rect.right)
    used_rows, rows = y.taps(rect.top, rect.bottom)
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


def nearest(
    cells: npt.NDArray[Any], grid: Affine, rect: PixelRect, *, by_corner: bool = False
) -> npt.NDArray[Any]:
    """Return the cell (h, w) of the centre, or of the left top corner, of each pixel of a rectangle that is not empty.

    Source: by the corner: PyTorch, interpolate, nearest.
    """
    x, y = _axes(grid)
    rows = cells[y.nearest(rect.top, rect.bottom, by_corner=by_corner)]
    return np.take(rows, x.nearest(rect.left, rect.right, by_corner=by_corner), axis=1)


def _sample(maps: Floats, rows: _Taps, columns: _Taps) -> Floats:
    # along the rows first: there are fewer of them as long as an output is smaller than the image
    low, high, share = columns
    wide = np.take(maps, low, axis=2)
    step = np.take(maps, high, axis=2)
    step -= wide
    step *= share
    wide += step
    low, high, share = rows
    tall = np.take(wide, low, axis=1)
    step = np.take(wide, high, axis=1)
    step -= tall
    step *= share[:, None]
    tall += step
    return tall

"""Image files to pixels: accepted formats, limits, and the orientation that a person sees.

OpenCV decodes JPEG, 1.6 times faster than Pillow; Pillow decodes the other formats: it fails on damaged
data and can be kept off stderr. Other bands or bits are read by `quadriga.tasks.multiband`.
"""

import contextlib
import ctypes
import importlib.util
import io
import logging
import os
import re
import struct
import warnings
from typing import Literal

# OpenCV reads both when it is imported. The first is a second wall behind `max_pixels`; without the
# second every damaged file would write to stderr.
os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(1 << 28))
os.environ.setdefault("OPENCV_LOG_LEVEL", "SILENT")

import cv2
import msgspec
import numpy as np
import numpy.typing as npt
from PIL.BmpImagePlugin import BmpImageFile
from PIL.ExifTags import Base as ExifTag
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from quadriga.tasks import multiband
from quadriga.tasks.budget import Budget
from quadriga.tasks.image_formats import (
    ImageError,
    check_jpeg,
    check_png,
    count_parts,
    early_size,
)
from quadriga.tasks.multiband import Samples

Pixels = npt.NDArray[np.uint8]

MAX_PIXELS = 50_000_000
"""Default limit of width times height; images of more than 4 bands may have proportionally fewer."""

PIXELS_PER_PART = 1000
"""Pixels as which a chunk, segment, block or strip of a file counts: about the time that each takes."""
_MIN_PARTS = 1000
"""Parts that any file may have, however few pixels are allowed."""
_FREE_PARTS = 100
"""Parts of a file that do not count: cameras and editors write some twenty."""

_FORMATS: tuple[tuple[re.Pattern[bytes], type[ImageFile], str], ...] = (
    (re.compile(rb"\xff\xd8\xff"), JpegImageFile, "image/jpeg"),
    (re.compile(rb"\x89PNG\r\n\x1a\n"), PngImageFile, "image/png"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), WebPImageFile, "image/webp"),
    (re.compile(rb"II[\x2a\x2b]\x00|MM\x00[\x2a\x2b]"), TiffImageFile, "image/tiff"),
    (re.compile(rb"BM"), BmpImageFile, "image/bmp"),
    (re.compile(rb"GIF8[79]a"), GifImageFile, "image/gif"),
)

_UPRIGHT = 1
_INVERSE_ORIENTATION = {6: 8, 8: 6}
_TURNS: dict[int, tuple[bool, int | None]] = {
    2: (False, 1),
    3: (False, -1),
    4: (False, 0),
    5: (True, None),
    6: (True, 1),
    7: (True, -1),
    8: (True, 0),
}
"""EXIF orientation to (transpose first, then OpenCV's flip code: 0 up-down, 1 left-right, -1 both)."""


# The log must not grow with what clients send: Pillow warns of odd tags.
warnings.filterwarnings("ignore", module=r"PIL\.")
logging.getLogger("PIL").setLevel(logging.CRITICAL)


# Pillow's libtiff writes to stderr; a build that hides the symbol stays loud.
with contextlib.suppress(OSError, AttributeError):
    _extension = importlib.util.find_spec("PIL._imaging")
    ctypes.CDLL(_extension.origin if _extension else None).TIFFSetErrorHandler(None)


class Image(msgspec.Struct, frozen=True, eq=False):
    """A decoded image, upright as a person sees it, unless its orientation was to be ignored."""

    pixels: Samples
    """uint8 (H, W, 3), RGB; for models of other than 1 or 3 channels or 8 bits (H, W, channels), with more
    than 8 bits uint16."""
    mime: str = ""
    """Media type of the file, such as `image/jpeg`."""
    bit_depth: int = 8
    """Bits of a value: `pixels` are 0 to 2**bit_depth - 1."""

    @property
    def width(self) -> int:
        """Width of `pixels`."""
        return int(self.pixels.shape[1])

    @property
    def height(self) -> int:
        """Height of `pixels`."""
        return int(self.pixels.shape[0])

    def rgb(self) -> Pixels:
        """Return a copy for a person to look at: uint8 (H, W, 3), the first three bands, or one repeated."""
        chosen = [0, 1, 2] if self.pixels.shape[2] >= 3 else [0, 0, 0]
        shown = self.pixels if self.pixels.shape[2] == 3 else self.pixels.take(chosen, axis=2)
        return (shown >> (self.bit_depth - 8)).astype(np.uint8, copy=False)


def decode(
    data: bytes,
    *,
    channels: int = 3,
    bit_depth: int = 8,
    exif: Literal["apply", "ignore"] = "apply",
    max_pixels: int = MAX_PIXELS,
    budget: Budget | None = None,
) -> Image:
    """Decode an image file into 8-bit RGB, or into the channels and bits of a model.

    Gray becomes three equal channels; 16 bit keeps the high byte; alpha is dropped without
    compositing, as training pipelines do; the first page or frame is taken. With other `channels`
    than 1 or 3 the file must have as many bands, or gray pages. Bytes after the end of the picture
    are passed over: cameras append previews there.

    Args:
        data: The whole file.
        channels: Channels of the model; 1 gives RGB, too, if `bit_depth` is 8.
        bit_depth: Bit depth of the model; see `quadriga.tasks.multiband.to_depth`.
        exif: Whether the orientation stored in the file turns the picture.
        max_pixels: Maximum pixels by the header, checked before memory is taken.
        budget: Pixels that the request may still decode, of which the image and its parts are taken.

    Raises:
        ImageError: The format is not accepted, the file is damaged, incomplete or too large.
        BudgetError: The image exceeds the budget.
    """
    opener, mime = _recognise(data)
    max_parts = max(max_pixels // PIXELS_PER_PART, _MIN_PARTS)
    # Pages have strips each.
    parts = count_parts(data, mime, max_parts * (4 if channels > 4 else 1))
    max_pixels = max_pixels * 4 // max(channels, 4)
    _check_size(early_size(data, mime), max_pixels, mime)
    try:
        file = opener(io.BytesIO(data))
        size_wh = file.size
    except Exception as error:
        hint = f"; a TIFF has a gray page for each of {channels} bands" if channels > 4 else ""
        raise ImageError(
            f"expected a readable {mime} header, got: {_reason(error)}{hint}"
        ) from error
    _check_size(size_wh, max_pixels, mime)
    if budget is not None:
        counted_parts = max(parts - _FREE_PARTS, 0)
        budget.spend(size_wh[0] * size_wh[1] + counted_parts * PIXELS_PER_PART)
    try:
        if mime == "image/png":
            check_png(data)
            file.load()  # EXIF may stand behind the pixels, where Pillow only looks after them
        orientation = _orientation(file)
        pixels = _stored_pixels(file, data, mime, channels=channels, bit_depth=bit_depth)
    except ImageError:
        raise
    except Exception as error:
        raise ImageError(f"expected a complete {mime} file, got: {_reason(error)}") from error
    is_upright = mime == "image/tiff"  # Pillow turns TIFF while loading it
    if exif == "apply" and not is_upright:
        pixels = orient(pixels, orientation)
    elif exif == "ignore" and is_upright:
        pixels = orient(pixels, _INVERSE_ORIENTATION.get(orientation, orientation))
    return Image(pixels, mime, bit_depth)


def _stored_pixels(
    file: ImageFile, data: bytes, mime: str, *, channels: int, bit_depth: int
) -> Samples:
    """Decode pixels as they are stored, in the channels and bits of a model."""
    is_jpeg = mime == "image/jpeg"
    if channels in (1, 3) and bit_depth <= 8:
        return _decode_jpeg(data) if is_jpeg else _decode_by_pillow(file, mime)
    samples, bits = (
        (_decode_jpeg(data), 8) if is_jpeg else multiband.read_bands(file, data, channels)
    )
    return multiband.to_depth(multiband.to_bands(samples, channels), bits, bit_depth)


def orient(pixels: Samples, orientation: int) -> Samples:
    """Turn stored samples (H, W, bands) upright by their EXIF orientation, 1 to 8.

    Source: Exif 2.32, tag 0x0112.
    """
    transposed, flip = _TURNS.get(orientation, (False, None))
    if pixels.shape[2] != 3:  # OpenCV would drop a single band, and cannot move many
        pixels = pixels.swapaxes(0, 1) if transposed else pixels
        axes = {None: (), 0: (0,), 1: (1,), -1: (0, 1)}[flip]
        return np.ascontiguousarray(np.flip(pixels, axes))
    if transposed:
        pixels = cv2.transpose(pixels).astype(pixels.dtype, copy=False)
    if flip is not None:
        pixels = cv2.flip(pixels, flip).astype(pixels.dtype, copy=False)
    return pixels


def is_image_file(data: bytes) -> bool:
    """Check whether bytes begin as a file of an accepted format; the rest may be damaged."""
    return any(magic.match(data) for magic, *_ in _FORMATS)


def _recognise(data: bytes) -> tuple[type[ImageFile], str]:
    for magic, opener, mime in _FORMATS:
        if magic.match(data):
            return opener, mime
    got = f"{len(data)} bytes that start with {data[:8]!r}" if data else "no bytes"
    raise ImageError(f"expected a JPEG, PNG, WEBP, TIFF, BMP or GIF file, got {got}")


def _reason(error: Exception) -> str:
    """Return the message of a decoder, with the type of error if the message alone means nothing."""
    if isinstance(error, OSError | SyntaxError | ValueError) and str(error):
        return str(error)
    return f"{type(error).__name__} {error}".rstrip()


def _check_size(size_wh: tuple[int, int], max_pixels: int, mime: str) -> None:
    width, height = size_wh
    if not (width > 0 and height > 0 and width * height <= max_pixels):
        raise ImageError(
            f"expected an image of 1 to {max_pixels} pixels, got {mime} of {width} x {height}"
        )


def _orientation(file: ImageFile) -> int:
    """Return the orientation, 1 to 8; unreadable metadata does not make a readable image invalid."""
    try:
        value = file.getexif().get(ExifTag.Orientation, _UPRIGHT)
    except (OSError, SyntaxError, ValueError, TypeError, LookupError, struct.error, Warning):
        return _UPRIGHT
    return int(value) if value in range(1, 9) else _UPRIGHT


def _decode_jpeg(data: bytes) -> Pixels:
    check_jpeg(data)
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    if pixels is None:
        raise ImageError("expected a complete image/jpeg file, got one that cannot be decoded")
    return pixels.astype(np.uint8, copy=False)


def _decode_by_pillow(file: ImageFile, mime: str) -> Pixels:
    if file.mode in multiband.MODES_16_BIT:
        gray, bits = multiband.gray_of_16_bits(file)
        return np.repeat((gray >> (bits - 8)).astype(np.uint8)[..., None], 3, axis=2)
    if file.mode not in multiband.AS_STORED:
        raise ImageError(
            f"expected 1 to 16 bits per channel, gray, RGB or CMYK, got {mime} of mode {file.mode}"
        )
    file.load()
    file.info.pop("transparency", None)  # Pillow would warn that it drops it
    return np.asarray(file if file.mode == "RGB" else file.convert("RGB"))

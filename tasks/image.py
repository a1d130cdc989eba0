"""Image files to pixels: accepted formats, limits, and the orientation that a person sees.

OpenCV decodes JPEG, 1.6 times faster than Pillow; Pillow decodes the other formats: it fails on damaged
data and can be kept off stderr. Other bands or bits are read by `quadriga.tasks.image`.
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
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

import cv2
import msgspec
import numpy as np
import numpy.typing as npt
from PIL import TiffImagePlugin as Tiff
from PIL.BmpImagePlugin import BmpImageFile
from PIL.ExifTags import Base as ExifTag
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from quadriga.tasks.parameters import Budget

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
"""First bytes of each format, Pillow's class that reads its header, and its media type. A new one also needs an end of its
header (`early_size`), and its suffix where files are found: `engine/jobs`, `store/exchange`, the client."""


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


Samples = npt.NDArray[np.unsignedinteger[Any]]
"""uint8 or uint16 (H, W, bands): the samples of a file, or the values that a model takes."""


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
        bit_depth: Bit depth of the model; see `quadriga.tasks.image.to_depth`.
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
    samples, bits = (_decode_jpeg(data), 8) if is_jpeg else read_bands(file, data, channels)
    return to_depth(to_bands(samples, channels), bits, bit_depth)


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
    if file.mode in MODES_16_BIT:
        gray, bits = gray_of_16_bits(file)
        return np.repeat((gray >> (bits - 8)).astype(np.uint8)[..., None], 3, axis=2)
    if file.mode not in AS_STORED:
        raise ImageError(
            f"expected 1 to 16 bits per channel, gray, RGB or CMYK, got {mime} of mode {file.mode}"
        )
    file.load()
    file.info.pop("transparency", None)  # Pillow would warn that it drops it
    return np.asarray(file if file.mode == "RGB" else file.convert("RGB"))


MODES_16_BIT = frozenset({"I;16", "I;16L", "I;16B"})


AS_STORED = {mode: mode for mode in ("L", "LA", "RGB", "RGBA")} | {
    "1": "L",
    "P": "RGB",
    "PA": "RGBA",
    "RGBX": "RGB",
    "CMYK": "RGB",
    "YCbCr": "RGB",
}
"""Pillow's modes of 8 bits, each with the mode that holds all of its bands."""


_ORIENTATION = 0x0112


def read_bands(file: ImageFile, data: bytes, bands: int) -> tuple[Samples, int]:
    """Read all bands of a file, in its own bits.

    The pages of a TIFF are one gray band each, in their order, if `bands` is other than 1 or 3.

    Returns:
        Samples (H, W, bands of the file), RGB first, upright if from a TIFF; and their bits, 8 to 16.

    Raises:
        ImageError: The file has another number of pages, or pixels of a kind that is not read.

    Source: pages as bands: Ultralytics 8.4, `utils/patches.py` imread.
    """
    if isinstance(file, TiffImageFile):
        if bands not in (1, 3) and (pages := _count_pages(file, bands)) > 1:
            if pages != bands:
                got = "more" if pages > bands else pages
                raise ImageError(
                    f"expected a TIFF of {bands} pages of one band each, got {got} pages"
                )
            return _read_pages(file, bands)
        if file.tag_v2.get(Tiff.SAMPLESPERPIXEL, 1) > 4:
            raise ImageError(
                f"expected a TIFF of 1 to 4 samples a pixel, or a page for each of {bands} bands, "
                f"got {file.tag_v2[Tiff.SAMPLESPERPIXEL]} samples"
            )
    return _read_page(file, data)


def to_bands(samples: Samples, bands: int) -> Samples:
    """Turn samples into the bands that a model takes.

    For 1 or 3 bands alpha is dropped, gray repeated, and RGB becomes its luma. Any other number must match.
    """
    stored = samples.shape[2]
    if bands not in (1, 3):
        if stored != bands:
            raise ImageError(f"expected an image of {bands} bands, got one of {stored}")
        return samples
    if stored in (2, 4):
        samples = np.ascontiguousarray(samples[..., : stored - 1])
    if samples.shape[2] == bands:
        return samples
    if bands == 3:
        return np.repeat(samples, 3, axis=2)
    gray = cv2.cvtColor(samples, cv2.COLOR_RGB2GRAY)[..., None]
    return gray.astype(samples.dtype, copy=False)


def to_depth(samples: Samples, bits: int, bit_depth: int) -> Samples:
    """Turn samples of `bits` into a model's values, 0 to 2**bit_depth - 1; uint8 for 8 bits.

    8 bits are spread over the whole range; more than 8 are cut to the highest 8 for a model of 8 bits. Other
    samples are taken as values, such as 12 bits stored in 16.

    Raises:
        ImageError: A value is larger than the model's.
    """
    if bit_depth == 8:
        return samples if bits == 8 else (samples >> (bits - 8)).astype(np.uint8)
    largest = 2**bit_depth - 1
    if bits == 8:
        return np.take(np.round(np.arange(256) * (largest / 255)).astype(np.uint16), samples)
    if (highest := int(samples.max())) > largest:
        raise ImageError(
            f"expected values of at most {largest}, as the model's bit_depth is {bit_depth}, got {highest}"
        )
    return samples


def gray_of_16_bits(file: ImageFile) -> tuple[npt.NDArray[np.uint16], int]:
    """Read gray of 9 to 16 bits: uint16 (H, W), larger is brighter, and the bits; Pillow's own clips."""
    bits, inverted = 16, False
    if isinstance(file, TiffImageFile):
        bits = file.tag_v2.get(Tiff.BITSPERSAMPLE, (16,))[0]
        inverted = file.tag_v2.get(Tiff.PHOTOMETRIC_INTERPRETATION) == 0
    gray = np.asarray(file).astype(np.uint16, copy=False)
    return ((1 << bits) - 1 - gray if inverted else gray), bits


def _kind(file: TiffImageFile) -> tuple[Any, ...]:
    tags = file.tag_v2
    return file.size, file.mode, tags.get(Tiff.BITSPERSAMPLE), tags.get(_ORIENTATION)


def _count_pages(file: TiffImageFile, max_pages: int) -> int:
    first = _kind(file)
    for page in range(1, max_pages + 1):
        try:
            file.seek(page)
        except EOFError:
            file.seek(0)
            return page
        if _kind(file) != first:
            raise ImageError(
                f"expected pages of one size, kind and orientation, {first[0]} {first[1]}, "
                f"got {file.size} {file.mode} in page {page + 1}"
            )
    return max_pages + 1


def _read_pages(file: TiffImageFile, count: int) -> tuple[Samples, int]:
    if file.mode not in {"1", "L", *MODES_16_BIT}:
        raise ImageError(f"expected {count} pages of one band each, got mode {file.mode}")
    samples, bits = _read_page(file, b"")
    pages = np.empty((*samples.shape[:2], count), samples.dtype)
    pages[..., 0] = samples[..., 0]
    for page in range(1, count):
        file.seek(page)
        pages[..., page] = _read_page(file, b"")[0][..., 0]
    return pages, bits


def _read_page(file: ImageFile, data: bytes) -> tuple[Samples, int]:
    if file.mode in MODES_16_BIT:
        gray, bits = gray_of_16_bits(file)
        return gray[..., None], bits
    bits = _bits(file, data)
    fourth = isinstance(file, TiffImageFile) and file.tag_v2.get(Tiff.SAMPLESPERPIXEL) == 4
    if file.mode not in AS_STORED or (bits > 8 and file.mode not in ("RGB", "RGBA")):
        raise ImageError(
            f"expected 1 to 16 bits per channel, gray, RGB or RGBA, got {bits} bits of mode {file.mode}"
        )
    file.load()  # detects damage that OpenCV ignores
    if bits > 8 or (fourth and file.mode == "RGB"):
        return _read_by_opencv(file, data)
    mode = AS_STORED[file.mode]
    if mode == "RGB" and "transparency" in file.info:
        mode = "RGBA"
    elif mode == "L":
        file.info.pop("transparency", None)  # Pillow would warn that it drops it
    return np.atleast_3d(np.asarray(file.convert(mode))), 8


def _bits(file: ImageFile, data: bytes) -> int:
    """Return the bits of a sample, at least 8. Source: PNG, Third Edition, "IHDR Image header"."""
    if isinstance(file, TiffImageFile):
        return int(max(8, *file.tag_v2.get(Tiff.BITSPERSAMPLE, (1,))))
    return 16 if isinstance(file, PngImageFile) and data[24] == 16 else 8


def _read_by_opencv(file: ImageFile, data: bytes) -> tuple[Samples, int]:
    if isinstance(file, TiffImageFile) and file.tag_v2.get(Tiff.PLANAR_CONFIGURATION, 1) != 1:
        raise ImageError("expected a TIFF with the samples of a pixel together, got planes")
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if pixels is None or pixels.ndim != 3 or pixels.shape[1::-1] != file.size:
        raise ImageError("expected a complete image file, got one that cannot be decoded")
    order = cv2.COLOR_BGR2RGB if pixels.shape[2] == 3 else cv2.COLOR_BGRA2RGBA
    size = pixels.itemsize
    return cv2.cvtColor(pixels, order).astype(f"u{size}", copy=False), 8 * size


_JPEG_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]")
"""Marker that ends entropy-coded data: neither a stuffed byte, nor a restart, nor a fill byte."""


_JPEG_START_OF_SCAN, _JPEG_END_OF_IMAGE = 0xDA, 0xD9


_JPEG_MAX_SCANS = 100
"""Maximum scans of a progressive file, which has about ten; each scan is a pass over the whole image."""


_TIFF_STRIPS = frozenset({273, 324})
"""Tags with the place of each strip or tile. Source: TIFF 6.0, sections 8 and 15."""


_TIFF_MAX_PAGES = 65
"""Maximum pages that are read: one for each band of a model, and one more."""


class ImageError(ValueError):
    """The bytes are not a readable image; the message says what was expected and what it got."""


def early_size(data: bytes, mime: str) -> tuple[int, int]:
    """Return width and height in the formats for which Pillow takes memory while it opens a file, else 1 x 1.

    Source: GIF89a, "Logical Screen Descriptor"; RFC 9649, sections 2.5 to 2.7; RFC 6386, section 9.1.
    """
    if mime == "image/gif" and len(data) >= 10:
        width, height = struct.unpack_from("<HH", data, 6)
        return width, height
    if mime == "image/webp" and len(data) >= 30:
        match data[12:16]:
            case b"VP8X":
                bits = int.from_bytes(data[24:30], "little")
                return (bits & 0xFFFFFF) + 1, (bits >> 24) + 1
            case b"VP8L":
                bits = int.from_bytes(data[21:25], "little")
                return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
            case b"VP8 ":
                width, height = struct.unpack_from("<HH", data, 26)
                return width & 0x3FFF, height & 0x3FFF
    return 1, 1


def check_jpeg(data: bytes) -> None:
    """Walk the segments of a JPEG to the end marker of its first image, past the markers inside of segments.

    Raises:
        ImageError: The file is incomplete, or has too many scans.

    Source: ITU-T T.81, B.1.1.
    """
    position, scans = 2, 0
    while match := _JPEG_MARKER.search(data, position):
        marker = data[match.end() - 1]
        if marker == _JPEG_END_OF_IMAGE:
            return
        scans += marker == _JPEG_START_OF_SCAN
        if scans > _JPEG_MAX_SCANS:
            raise ImageError(
                f"expected image/jpeg to have at most {_JPEG_MAX_SCANS} scans, got more"
            )
        position = match.end() + int.from_bytes(data[match.end() : match.end() + 2], "big")
    raise ImageError("expected a complete image/jpeg file, got one that ends before its end marker")


def check_png(data: bytes) -> None:
    """Check every chunk's CRC up to IEND; raises as `check_jpeg`.

    Source: PNG, Third Edition, "Chunk layout".
    """
    view, position = memoryview(data), 8
    while position + 12 <= len(view):
        (length,) = struct.unpack_from(">I", view, position)
        end = position + 8 + length
        if end + 4 > len(view):
            break
        name = bytes(view[position + 4 : position + 8])
        if zlib.crc32(view[position + 4 : end]) != struct.unpack_from(">I", view, end)[0]:
            raise ImageError(f"expected the CRC of PNG chunk {name!r} to match, got damaged data")
        if name == b"IEND":
            return
        position = end + 4
    raise ImageError("expected a complete image/png file, got one that ends before its IEND chunk")


def count_parts(data: bytes, mime: str, limit: int) -> int:
    """Count the parts that a decoder reads one by one besides the pixels: chunks, segments, blocks and strips.

    Damage ends the count, as it ends the decoder's reading.

    Raises:
        ImageError: There are more than the limit; the rest is not counted.
    """
    walk = _WALKS.get(mime)
    parts = 0
    for read in () if walk is None else walk(data):
        parts += read
        if parts > limit:
            raise ImageError(
                f"expected {mime} of at most {limit} chunks, segments, blocks and strips, got more"
            )
    return parts


def _png_parts(data: bytes) -> Iterator[int]:
    position = 8
    while position + 8 <= len(data):
        yield 1
        position += 12 + int.from_bytes(data[position : position + 4], "big")


def _jpeg_parts(data: bytes) -> Iterator[int]:
    """Yield the segments before the first scan, and bytes between them, which Pillow reads one by one."""
    position = 2
    while (start := data.find(b"\xff", position)) >= 0:
        yield start - position + 1
        marker = data[start + 1 : start + 2]
        if marker == b"\xff":
            position = start + 1
        elif marker in (b"\xda", b"\xd9"):
            return
        elif marker in (b"\x00", b"\x01") or b"\xd0" <= marker <= b"\xd8":
            position = start + 2
        else:
            position = start + 2 + int.from_bytes(data[start + 2 : start + 4], "big")
    yield max(len(data) - position, 0)


def _gif_parts(data: bytes) -> Iterator[int]:
    """Yield extensions and their blocks up to the first picture, and bytes between them."""
    flags = data[10] if len(data) > 10 else 0
    position = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
    while position < len(data) and data[position] not in b",;":
        yield 1
        if data[position] != ord("!"):
            position += 1
            continue
        position += 2
        while position < len(data) and data[position]:
            yield 1
            position += 1 + data[position]
        position += 1


def _tiff_parts(data: bytes) -> Iterator[int]:
    """Yield the tags of each page, and its strips or tiles.

    Source: TIFF 6.0, section 2; BigTIFF, which has eight bytes for each number.
    """
    order: Literal["little", "big"] = "little" if data[:2] == b"II" else "big"
    is_big = 43 in data[2:4]
    size, head, entry = (8, 8, 20) if is_big else (4, 2, 12)

    def number(position: int, length: int) -> int:
        return int.from_bytes(data[position : position + length], order)

    page = number(8 if is_big else 4, size)
    for _ in range(_TIFF_MAX_PAGES):
        if not 0 < page < len(data):
            return
        tags = min(number(page, head), len(data) // entry + 1)
        yield tags
        for tag in range(page + head, page + head + tags * entry, entry):
            if number(tag, 2) in _TIFF_STRIPS:
                yield number(tag + 4, size)
        page = number(page + head + tags * entry, size)


_WALKS: dict[str, Callable[[bytes], Iterator[int]]] = {
    "image/png": _png_parts,
    "image/jpeg": _jpeg_parts,
    "image/gif": _gif_parts,
    "image/tiff": _tiff_parts,
}
"""How the parts of a format are found; the decoders of the others read none one by one."""


# OpenCV reads both when it is imported. The first is a second wall behind `max_pixels`; without the
# second every damaged file would write to stderr.
os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(1 << 28))


os.environ.setdefault("OPENCV_LOG_LEVEL", "SILENT")


# The log must not grow with what clients send: Pillow warns of odd tags.
warnings.filterwarnings("ignore", module=r"PIL\.")


logging.getLogger("PIL").setLevel(logging.CRITICAL)


# Pillow's libtiff writes to stderr; a build that hides the symbol stays loud.
with contextlib.suppress(OSError, AttributeError):
    _extension = importlib.util.find_spec("PIL._imaging")
    ctypes.CDLL(_extension.origin if _extension else None).TIFFSetErrorHandler(None)

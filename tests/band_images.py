"""Image files of many bands and bits, for tests: written by Pillow, by OpenCV, or by hand."""

import io
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
import PIL.Image

BAND_TYPES = {np.dtype(np.uint8): 8, np.dtype(np.uint16): 16}


def exif(orientation: int) -> PIL.Image.Exif:
    """Metadata that says nothing but how a picture is turned."""
    tags = PIL.Image.Exif()
    tags[0x0112] = orientation
    return tags


def by_pillow(
    pixels: np.ndarray, kind: str, orientation: int = 1, mode: str | None = None, **options: Any
) -> bytes:
    """Gray of 8 or 16 bits, LA, RGB or RGBA of 8 bits; or converted to another mode of Pillow."""
    buffer = io.BytesIO()
    picture = PIL.Image.fromarray(pixels)
    picture = picture.convert(mode) if mode else picture
    picture.save(buffer, kind, exif=exif(orientation), **options)
    return buffer.getvalue()


def pages(bands: Sequence[np.ndarray], orientation: int = 1, **options: Any) -> bytes:
    """A TIFF of a page for each band."""
    rest = [PIL.Image.fromarray(band) for band in bands[1:]]
    for page in rest:
        page.getexif()[0x0112] = orientation
    return by_pillow(bands[0], "TIFF", orientation, save_all=True, append_images=rest, **options)


def png(pixels: np.ndarray, orientation: int = 1) -> bytes:
    """Gray, LA, RGB or RGBA (H, W, C) of 8 or 16 bits, with its orientation before the pixels."""
    height, width, bands = pixels.shape
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[bands]
    header = struct.pack(">IIBBBBB", width, height, BAND_TYPES[pixels.dtype], kind, 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(row.dtype.newbyteorder(">")).tobytes() for row in pixels)
    turned = exif(orientation).tobytes().removeprefix(b"Exif\0\0")
    data = b"\x89PNG\r\n\x1a\n"
    for name, body in (
        (b"IHDR", header),
        (b"eXIf", turned),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    ):
        data += struct.pack(">I", len(body)) + name + body
        data += struct.pack(">I", zlib.crc32(name + body))
    return data


def by_opencv(extension: str, pixels: np.ndarray) -> bytes:
    """RGB or RGBA of 8 or 16 bits."""
    order = [2, 1, 0, 3][: pixels.shape[2]]
    done, buffer = cv2.imencode(extension, np.ascontiguousarray(pixels[..., order]))
    assert done
    return buffer.tobytes()


def tiff(
    pixels: np.ndarray,
    *,
    photometric: int,
    extra: Sequence[int] = (),
    orientation: int = 1,
    planes: bool = False,
) -> bytes:
    """A little-endian TIFF of one page, (H, W, samples) of 8 or 16 bits, of any number of samples.

    Args:
        pixels: What it holds.
        photometric: 1 for gray, 2 for RGB.
        extra: What the samples beyond those are: 0 nothing named, 1 or 2 alpha.
        orientation: 1 to 8.
        planes: Whether samples stand one after the other, not together.
    """
    height, width, samples = pixels.shape
    body = (pixels.transpose(2, 0, 1) if planes else pixels).tobytes()
    strips = samples if planes else 1
    size = len(body) // strips
    tags = [
        (256, "I", [width]),
        (257, "I", [height]),
        (258, "H", [BAND_TYPES[pixels.dtype]] * samples),
        (259, "H", [1]),
        (262, "H", [photometric]),
        (273, "I", [8 + number * size for number in range(strips)]),
        (274, "H", [orientation]),
        (277, "H", [samples]),
        (278, "I", [height]),
        (279, "I", [size] * strips),
        (284, "H", [2 if planes else 1]),
        *([(338, "H", list(extra))] if extra else []),
    ]
    entries = b""
    for tag, kind, values in tags:
        value = struct.pack(f"<{len(values)}{kind}", *values)
        if len(value) > 4:
            body += b"\0" * (len(body) % 2)
            place, body = 8 + len(body), body + value
            value = struct.pack("<I", place)
        entries += struct.pack("<HHI", tag, {"H": 3, "I": 4}[kind], len(values))
        entries += value.ljust(4, b"\0")
    body += b"\0" * (len(body) % 2)
    ifd = struct.pack("<H", len(tags)) + entries + b"\0" * 4
    return b"II*\0" + struct.pack("<I", 8 + len(body)) + body + ifd

"""Image formats as bytes: size and completeness of a file, checked before a decoder takes memory.

Only the checks that the decoders lack: OpenCV may return the upper half of a JPEG that was cut short, Pillow
does not check the pixel data of PNG, and takes memory for WEBP and GIF while it opens them.
"""

import re
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Literal

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

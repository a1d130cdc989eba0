"""Image formats as bytes: size and completeness of a file, checked before a decoder takes memory.

Only the checks that the decoders lack: OpenCV may return the upper half of a JPEG that was cut short, Pillow
does not check the pixel data of PNG, and takes memory for WEBP and GIF while it opens them.
"""

import re
import struct
import zlib

_JPEG_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]")
"""Marker that ends entropy-coded data: neither a stuffed byte, nor a restart, nor a fill byte."""
_JPEG_START_OF_SCAN, _JPEG_END_OF_IMAGE = 0xDA, 0xD9
_JPEG_MAX_SCANS = 100
"""Maximum scans of a progressive file, which has about ten; each scan is a pass over the whole image."""


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

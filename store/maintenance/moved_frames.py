"""Overwriting of what a journal holds although it has been moved, in segments that a worker still appends to.

The moved part of a segment becomes frames of the same length that change nothing. Nobody has to read it again: the writer
goes on behind it, and a worker appends at the end. So this is safe beside both, and to be repeated after a crash.
"""

import os
import struct
import zlib
from pathlib import Path

from quadriga.store import journal

_NOTHING = b'{"seq":0,"change":{"type":"signals","of":[]}}'
_HEADER = struct.Struct("<IIq")
_SMALLEST = _HEADER.size + len(_NOTHING)


def overwrite_moved(path: Path, end: int) -> int:
    """Overwrite a segment up to an offset at which a frame begins; return the number of bytes."""
    start = _overwritten_until(path, end)
    if end - start < _SMALLEST:  # no frame is as short
        return 0
    payload = _NOTHING.ljust(end - start - _HEADER.size)
    checksum = zlib.crc32(payload, zlib.crc32(struct.pack("<q", 0)))
    frame = _HEADER.pack(len(payload), checksum, 0) + payload
    descriptor = os.open(path, os.O_WRONLY)
    try:
        written = 0
        while written < len(frame):
            written += os.pwrite(descriptor, frame[written:], start + written)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
    return len(frame)


def _overwritten_until(path: Path, end: int) -> int:
    position = 0
    for seq, payload, next_offset in journal.read_frames(path):
        is_next = next_offset - len(payload) - journal.HEADER_BYTES == position
        if seq != 0 or not is_next or next_offset > end or payload.rstrip() != _NOTHING:
            break
        position = next_offset
    return position

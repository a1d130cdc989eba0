"""Overwriting of what a journal holds although it has been moved, in segments that a worker still appends to.

The moved part of a segment becomes frames of the same length that change nothing. Nobody has to read it again: the writer
goes on behind it, and a worker appends at the end. So this is safe beside both, and to be repeated after a crash.
"""

import os
import struct
import sys
import zlib
from pathlib import Path

from quadriga.store.journal import journal

_NOTHING = b'{"seq":0,"change":{"type":"signals","of":[]}}'
_HEADER = struct.Struct("<IIq")
_SMALLEST = _HEADER.size + len(_NOTHING)


def overwrite_moved(path: Path, end: int, start: int = 0, at_once: int = 16 << 20) -> int:
    """Overwrite a part of a segment, or if it is large, its beginning; return the offset up to which it is overwritten.

    Args:
        path: File of the segment.
        end: Offset at which a frame begins, or the file ends.
        start: The same, up to which it is overwritten already.
        at_once: Number of bytes after which the rest is left to the next call.
    """
    start = _overwritten_until(path, end, start)
    stop = end if end - start <= at_once else _frame_after(path, start + at_once, start)
    stop = min(stop, end)
    if stop - start < _SMALLEST:  # no frame is as short
        return stop
    payload = _NOTHING.ljust(stop - start - _HEADER.size)
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
    return stop


def _frame_after(path: Path, position: int, start: int) -> int:
    """Return the offset of the first frame behind a position, and the largest one if none follows."""
    next_offset = sys.maxsize
    for _, _, next_offset in journal.read_frames(path, start):
        if next_offset >= position:
            return next_offset
    return sys.maxsize


def _overwritten_until(path: Path, end: int, start: int) -> int:
    position = start
    for seq, payload, next_offset in journal.read_frames(path, start):
        is_next = next_offset - len(payload) - journal.HEADER_BYTES == position
        if seq != 0 or not is_next or next_offset > end or payload.rstrip() != _NOTHING:
            break
        position = next_offset
    return position

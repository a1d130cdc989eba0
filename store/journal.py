"""The journal: what is appended here is kept, and the writer moves it into the database later.

A folder of segment files. Each worker process appends to a segment of its own, locked (flock) while it
is open; a segment that nobody locks is closed for good. A segment is a row of frames, little-endian:
payload length u32, CRC-32 of what follows u32, seq i64, payload (JSON of an `InferenceRecord` or a
`JournaledChange`, whose first field is the same seq: so a frame is found again behind damage).
"""

import errno
import fcntl
import os
import secrets
import struct
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from quadriga.store.disk import create_once
from quadriga.store.errors import JournalError
from quadriga.store.records import InferenceRecord, JournaledChange, JournaledRecord

JournalEntry = InferenceRecord | JournaledRecord | JournaledChange
SUFFIX = ".journal"
_FRAME = struct.Struct("<IIq")
HEADER_BYTES = _FRAME.size
_SEQ = struct.Struct("<q")  # the last part of a header: what the checksum covers begins with it
_BEGINNING = b'{"seq":'
_CHUNK_BYTES = 1 << 20


class AppendPosition(msgspec.Struct, frozen=True):
    """Where an append ends."""

    segment: str
    end: int
    """Bytes of the segment until there."""
    held_descriptor: int | None = None
    """A descriptor of the segment, to be closed by whoever asked for it: until then it is no closed one."""


class Journal:
    """The appending side, for one worker process, by its number; safe to use from several threads.

    A segment that would grow beyond `segment_bytes` is closed and a new one begun.
    """

    def __init__(self, directory: Path, worker: int, segment_bytes: int = 64 << 20) -> None:
        self.directory = directory
        self._worker = worker
        self._segment_bytes = segment_bytes
        self._encode = msgspec.json.Encoder().encode
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._path = b""
        self._name = ""
        self._size = 0
        self.appended_bytes = 0
        directory.mkdir(parents=True, exist_ok=True)

    def append(
        self, records: Sequence[JournalEntry], *, hold_segment: bool = False
    ) -> AppendPosition:
        """Append all records of a request, in the order of their ids, by one write.

        What returns has survived `kill -9`. With `hold` the segment is held, so that it can be synced.

        Raises:
            JournalError: They could not be appended, as on a full disk; none of them is kept.
        """
        data = self._framed(records)
        held = None
        with self._lock:
            try:
                descriptor = self._segment(len(data))
                held = os.dup(descriptor) if hold_segment else None
                written = os.write(descriptor, data)
                if written != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                self._abandon()
                if held is not None:
                    os.close(held)
                raise JournalError(
                    f"expected the journal to take {len(data)} bytes: {error}"
                ) from error
            self._size += written
            self.appended_bytes += written
            return AppendPosition(self._name, self._size, held)

    def close(self) -> None:
        """Close the open segment; the next append begins a new one."""
        with self._lock:
            self._release()

    def _framed(self, records: Sequence[JournalEntry]) -> bytes:
        frames = []
        for record in records:  # each answered image pays for this: no call that can be spared
            payload = self._encode(record)
            checksum = zlib.crc32(payload, zlib.crc32(_SEQ.pack(record.seq)))
            frames.append(_FRAME.pack(len(payload), checksum, record.seq) + payload)
        return b"".join(frames)

    def _segment(self, size: int) -> int:
        """Return the open segment; a new one where it is full, or is no longer where the writer looks for it.

        That is told by its name: `fstat` costs twice as much, as after it the next write notes a finer time.
        """
        has_room = not self._size or self._size + size <= self._segment_bytes
        if self._descriptor is not None and has_room and os.access(self._path, os.F_OK):
            return self._descriptor
        self._release()
        name = f"{self._worker:04d}-{time.time_ns():020d}{SUFFIX}"
        path, hidden = self.directory / name, self.directory / f".{name}"
        descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Only once locked does it take its name: a segment in sight without a lock is closed.
        hidden.rename(path)
        self._descriptor, self._name, self._size = descriptor, name, 0
        self._path = os.fsencode(path)
        return descriptor

    def _abandon(self) -> None:
        """Cut a torn append and leave the segment.

        The writer may have read whole frames of the torn append already; in a new segment its offset
        cannot point past what is appended next.
        """
        if self._descriptor is not None:
            with suppress(OSError):  # the reader stops at the torn frame as well
                os.ftruncate(self._descriptor, self._size)
            self._release()

    def _release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _checksum(seq: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(_SEQ.pack(seq)))


def clickhouse_position_path(directory: Path) -> Path:
    """Return the file that says how far a journal is sent to ClickHouse; it is there once that began."""
    return directory.parent / "clickhouse.json"


def journal_id(directory: Path) -> str:
    """Return the name that tells this journal from those of other servers; made where missing."""
    return create_once(directory / "id", secrets.token_hex(8).encode()).decode()


def segment_paths(directory: Path) -> list[Path]:
    """Return the segments of a folder, by worker and time."""
    return [directory / name for name in sorted(segment_sizes(directory))]


def segment_sizes(directory: Path) -> dict[str, int]:
    """Return the bytes of each segment by name."""
    found = {}
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith(SUFFIX) and not entry.name.startswith("."):
                with suppress(FileNotFoundError):  # removed since it was listed
                    found[entry.name] = entry.stat().st_size
    return found


def read_frames(path: Path, offset: int = 0) -> Iterator[tuple[int, bytes, int]]:
    """Yield (seq, payload, offset of the next frame) from an offset on.

    Damage is passed over where a valid frame follows; appends are one write each, so it is none that
    is under way. Where none follows this stops: in a segment that is still open that may be an append
    under way, in a closed one it is damage.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:  # finished and removed in the meantime
        return
    with file:
        size = os.fstat(file.fileno()).st_size
        file.seek(offset)
        while len(header := file.read(HEADER_BYTES)) == HEADER_BYTES:
            length, checksum, seq = _FRAME.unpack(header)
            end = offset + HEADER_BYTES + length
            if end <= size:
                payload = file.read(length)
                if _checksum(seq, payload) == checksum:
                    yield seq, payload, end
                    offset = end
                    continue
            found = _find_frame(file, offset + 1, size)
            if found is None:
                return
            offset = file.seek(found)


def _find_frame(file: BinaryIO, start: int, size: int) -> int | None:
    """Return where the first valid frame at or behind `start` begins, if there is one."""
    position = start + HEADER_BYTES
    while position < size:
        file.seek(position)
        chunk = file.read(min(_CHUNK_BYTES, size - position))
        if len(chunk) < len(_BEGINNING):
            return None
        at = chunk.find(_BEGINNING)
        while at >= 0:
            if _is_valid(file, position + at - HEADER_BYTES, size):
                return position + at - HEADER_BYTES
            at = chunk.find(_BEGINNING, at + 1)
        position += len(chunk) - len(_BEGINNING) + 1  # one may end in the next chunk
    return None


def _is_valid(file: BinaryIO, offset: int, size: int) -> bool:
    file.seek(offset)
    length, checksum, seq = _FRAME.unpack(file.read(HEADER_BYTES))
    if offset + HEADER_BYTES + length > size:
        return False
    payload = file.read(length)
    begins = payload.startswith(b"%b%d," % (_BEGINNING, seq))
    return begins and _checksum(seq, payload) == checksum


def is_closed(path: Path) -> bool:
    """Tell whether no process will append to a segment any more."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def latest_seq(directory: Path) -> int:
    """Return the largest id in a journal, 0 where it is empty."""
    return max(
        (seq for path in segment_paths(directory) for seq, _, _ in read_frames(path)), default=0
    )


def lag_bytes(directory: Path, offsets: Mapping[str, int]) -> int:
    """Return how many bytes wait to be moved, given the offset moved so far by segment name."""
    return sum(
        max(size - offsets.get(name, 0), 0) for name, size in segment_sizes(directory).items()
    )

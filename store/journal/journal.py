"""The journal: records are appended to files here, and the writer later commits them to the database.

A folder of segment files. Each worker process appends to a segment of its own, locked (flock) while it
is open; a segment without a lock is closed for good. A segment is a sequence of frames, little-endian:
payload length u32, CRC-32 of the rest u32, seq i64, payload (JSON of an `InferenceRecord` or a
`JournaledChange`, whose first field is the same seq: that is how a frame is found again after damage).
"""

import errno
import fcntl
import os
import secrets
import struct
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from quadriga.store.records.disk import create_once, write_atomically
from quadriga.store.records.errors import JournalError
from quadriga.store.records.ids import LARGEST_ID
from quadriga.store.records.records import InferenceRecord, JournaledChange, JournaledRecord

JournalEntry = InferenceRecord | JournaledRecord | JournaledChange
SUFFIX = ".journal"
_HOLD = "journal.hold"
_TO_CLOSE = "journal.close"
_FRAME = struct.Struct("<IIq")
HEADER_BYTES = _FRAME.size
_SEQ = struct.Struct("<q")  # last part of a header: the checksum covers it and the payload
_BEGINNING = b'{"seq":'
_CHUNK_BYTES = 1 << 20
_READ_BYTES = 1 << 17  # as many frames are read at once


class AppendPosition(msgspec.Struct, frozen=True):
    """End of an append within a segment."""

    segment: str
    end: int
    """Offset behind the append, in bytes of the segment."""
    held_descriptor: int | None = None
    """Descriptor of the segment, to be closed by the caller that requested it; it keeps the segment open."""


class Journal:
    """Appends for one worker process, identified by its number; safe to use from several threads.

    A segment that would grow beyond `segment_bytes` is closed and a new one created.
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
        with suppress(OSError):  # a full disk: the server tries again once an append fails
            directory.mkdir(parents=True, exist_ok=True)

    def append(
        self, entries: Sequence[JournalEntry], *, hold_segment: bool = False
    ) -> AppendPosition:
        """Append all entries of a request, in the order of their ids, by one write.

        Once this returns, the entries survive `kill -9`. With `hold_segment` the position carries a
        descriptor of the segment, so that it can be synced.

        Raises:
            JournalError: The append failed, as on a full disk; none of the entries is stored.
        """
        data = self._framed(entries)
        held_descriptor = None
        with self._lock:
            try:
                descriptor = self._segment(len(data))
                held_descriptor = os.dup(descriptor) if hold_segment else None
                written = os.write(descriptor, data)
                if written != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                self._abandon()
                if held_descriptor is not None:
                    os.close(held_descriptor)
                raise JournalError(
                    f"cannot append {len(data)} bytes to the journal: {error.strerror}"
                ) from error
            self._size += written
            self.appended_bytes += written
            return AppendPosition(self._name, self._size, held_descriptor)

    def close(self) -> None:
        """Close the open segment; the next append creates a new one."""
        with self._lock:
            self._release()

    def close_on_request(self) -> None:
        """Close the open segment if `ask_to_close` names it; to be called now and then, as an idle worker appends nothing."""
        with suppress(FileNotFoundError):
            names = (self.directory.parent / _TO_CLOSE).read_text().split()
            # An append that is slow has no event loop wait for it: the next call closes the segment.
            if self._name in names and self._lock.acquire(blocking=False):
                self._release()
                self._lock.release()

    def _framed(self, entries: Sequence[JournalEntry]) -> bytes:
        frames = []
        for entry in entries:  # on the hot path of every image: avoid calls
            payload = self._encode(entry)
            checksum = zlib.crc32(payload, zlib.crc32(_SEQ.pack(entry.seq)))
            frames.append(_FRAME.pack(len(payload), checksum, entry.seq) + payload)
        return b"".join(frames)

    def _segment(self, size_bytes: int) -> int:
        """Return the open segment, or a new one if it is full or was removed from its folder.

        Removal is checked by path: `fstat` doubles the cost, because the next write then records a finer timestamp.
        """
        has_room = not self._size or self._size + size_bytes <= self._segment_bytes
        if self._descriptor is not None and has_room and os.access(self._path, os.F_OK):
            return self._descriptor
        self._release()
        name = f"{self._worker:04d}-{time.time_ns():020d}{SUFFIX}"
        path, hidden = self.directory / name, self.directory / f".{name}"
        descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Renamed only after locking, because a visible segment without a lock counts as closed.
        hidden.rename(path)
        self._descriptor, self._name, self._size = descriptor, name, 0
        self._path = os.fsencode(path)
        return descriptor

    def _abandon(self) -> None:
        """Truncate an incomplete append and leave the segment.

        The writer may have read whole frames of that append already; in a new segment its offset cannot
        point past the next append.
        """
        if self._descriptor is not None:
            with suppress(OSError):  # readers stop at the incomplete frame as well
                os.ftruncate(self._descriptor, self._size)
            self._release()

    def _release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _checksum(seq: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(_SEQ.pack(seq)))


def clickhouse_position_path(directory: Path) -> Path:
    """Return the path of the file with the position up to which ClickHouse has the journal; created on first use."""
    return directory.parent / "clickhouse.json"


def journal_id(directory: Path) -> str:
    """Return the random id that distinguishes this journal from those of other servers; create it if missing."""
    return create_once(directory / "id", secrets.token_hex(8).encode()).decode()


def segment_paths(directory: Path) -> list[Path]:
    """Return the segments of a folder, by worker and time."""
    return [directory / name for name in sorted(segment_sizes(directory))]


def segment_sizes(directory: Path) -> dict[str, int]:
    """Return the size in bytes of each segment by its name."""
    sizes = {}
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith(SUFFIX) and not entry.name.startswith("."):
                with suppress(FileNotFoundError):  # removed since it was listed
                    sizes[entry.name] = entry.stat().st_size
    return sizes


def read_frames(path: Path, offset: int = 0) -> Iterator[tuple[int, bytes, int]]:
    """Yield (seq, payload, offset of the next frame) from an offset on.

    Damage is skipped if a valid frame follows it; an append under way is one write and therefore never
    followed by one. If none follows, reading stops: the rest of an open segment may be an append under
    way, that of a closed segment is damage.
    """
    try:
        file = path.open("rb", buffering=_READ_BYTES)
    except FileNotFoundError:  # committed and removed in the meantime
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
            next_offset = _find_frame(file, offset + 1, size)
            if next_offset is None:
                return
            offset = file.seek(next_offset)


def _find_frame(file: BinaryIO, start: int, size: int) -> int | None:
    """Return the offset of the first valid frame at or after `start`, or None."""
    position = start + HEADER_BYTES
    while position < size:
        file.seek(position)
        chunk = file.read(min(_CHUNK_BYTES, size - position))
        if len(chunk) < len(_BEGINNING):
            return None
        index = chunk.find(_BEGINNING)
        while index >= 0:
            if _is_valid(file, position + index - HEADER_BYTES, size):
                return position + index - HEADER_BYTES
            index = chunk.find(_BEGINNING, index + 1)
        position += len(chunk) - len(_BEGINNING) + 1  # a match may span two chunks
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
    """Check whether no process appends to a segment any more."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def ask_to_close(directory: Path, names: Iterable[str]) -> None:
    """Ask the workers to close those of their segments that are named, and no others any more; so that the writer removes them."""
    path = directory.parent / _TO_CLOSE
    if text := "\n".join(sorted(names)):
        write_atomically(path, text.encode())
    else:
        path.unlink(missing_ok=True)


@contextmanager
def hold_segments(directory: Path) -> Iterator[None]:
    """Keep the writer from removing segments meanwhile, for who copies the journal and the database; several may do so at once.

    A process that dies lets go of them.
    """
    with (directory.parent / _HOLD).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


def are_segments_held(directory: Path) -> bool:
    """Check whether somebody holds the segments."""
    try:
        file = (directory.parent / _HOLD).open("rb")
    except OSError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def latest_seq(directory: Path, until: int = LARGEST_ID) -> int:
    """Return the largest id in a journal, up to a limit; 0 if there is none."""
    ids = (seq for path in segment_paths(directory) for seq, _, _ in read_frames(path))
    return max((seq for seq in ids if seq <= until), default=0)


def lag_bytes(directory: Path, offsets: Mapping[str, int]) -> int:
    """Return how many bytes of the journal are not committed, given the committed offset by segment."""
    return sum(
        max(size - offsets.get(name, 0), 0) for name, size in segment_sizes(directory).items()
    )

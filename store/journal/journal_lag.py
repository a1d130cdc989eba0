"""Journal lag: the bytes of the journal that are not in the database, read without the database, and when they are moved.

The writer publishes its offsets in a file beside the journal after each commit; workers read it. It moves what is in the
journal soon if somebody waits for it, else a few times a second: a transaction costs as much as dozens of records, so the
records of a quarter of a second share one. Whoever waits for what is in the journal, as for a change or for the durability
`database`, asks for it by another file.
"""

import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path

import msgspec

from quadriga.store.journal import journal
from quadriga.store.records.disk import write_atomically
from quadriga.store.records.errors import NotReadyError
from quadriga.store.records.ids import IMPORT_WORKER, worker_of
from quadriga.store.records.records import is_change

GATHER_S = 0.25
"""Time from one commit to the next, as long as nobody asks for it."""

GATHER_BYTES = 256 << 10
"""Bytes of the journal that do not wait any longer, as their transaction is large enough."""

SAMPLE_INTERVAL_S = 0.1
LARGEST_LIMIT_BYTES = 1 << 30
SMALLEST_LIMIT_BYTES = 1 << 20
_FILE = "journal.offsets"
_WANTED = "journal.wanted"
_MAX_LOOKED_AT = 1000  # frames of a segment in which the first id of a worker is searched
_IMPORTED = f"{IMPORT_WORKER:04d}-"


def write_offsets(directory: Path, offsets: Mapping[str, int]) -> None:
    """Publish the committed offset of each segment by name; errors as for `write_atomically`."""
    write_atomically(directory.parent / _FILE, msgspec.json.encode(offsets))


def read_offsets(directory: Path) -> dict[str, int]:
    """Return the published offsets, none if the file is missing or invalid."""
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((directory.parent / _FILE).read_bytes(), type=dict[str, int])
    return {}


def count_waiting(directory: Path) -> tuple[int, int]:
    """Return how many inferences, and changes of inferences, of a journal are not in the database.

    They are counted from the offsets that the writer published last, so some may be committed nevertheless.
    """
    offsets = read_offsets(directory)
    are_changes = [
        is_change(payload)
        for path in journal.segment_paths(directory)
        for _, payload, _ in journal.read_frames(path, offsets.get(path.name, 0))
    ]
    return are_changes.count(False), are_changes.count(True)


def oldest_waiting_id(directory: Path) -> int | None:
    """Return the oldest id at the front of what waits in the segments of workers; None if nothing waits.

    What is appended later has newer ids, but for those that were given out a moment before. Imports, and inferences that
    were made elsewhere, have ids of all times, and do not count. The writer publishes offsets after its commits: what does
    not wait can be read.
    """
    offsets = read_offsets(directory)
    firsts = (
        _first_own_id(path, offsets.get(path.name, 0))
        for path in journal.segment_paths(directory)
        if not path.name.startswith(_IMPORTED)
    )
    return min((first for first in firsts if first is not None), default=None)


def wait_until_moved(
    directory: Path, committed: Callable[[], Mapping[str, int]], timeout_s: float
) -> None:
    """Wait until the database has all that is in a journal at present.

    Args:
        directory: Journal of the workers.
        committed: Reads from the database how far each segment was moved.
        timeout_s: Maximum wait.

    Raises:
        NotReadyError: It takes longer.
    """
    waiting = journal.segment_sizes(directory)
    deadline = time.monotonic() + timeout_s
    while True:
        offsets = committed()
        waiting = {
            name: size
            for name, size in waiting.items()
            if offsets.get(name, 0) < size and (directory / name).exists()
        }
        if not waiting:
            return
        if time.monotonic() > deadline:
            lag = sum(size - offsets.get(name, 0) for name, size in waiting.items())
            raise NotReadyError(
                f"the journal is not committed after {timeout_s:g} s: {lag} bytes are waiting"
            )
        ask_for_commit(directory)
        time.sleep(0.01)


def _first_own_id(path: Path, offset: int) -> int | None:
    """Return the first id from an offset on that a worker gave out, among the next frames."""
    frames = islice(journal.read_frames(path, offset), _MAX_LOOKED_AT)
    return next((seq for seq, *_ in frames if worker_of(seq) != IMPORT_WORKER), None)


def ask_for_commit(journal_directory: Path) -> None:
    """Ask the writer to move at once what was appended before; where that fails, it does so a little later."""
    with suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT
        os.close(os.open(journal_directory.parent / _WANTED, flags, 0o644))


class CommitPace:
    """Says when to commit; for one writer."""

    def __init__(self, journal_directory: Path) -> None:
        self._path = os.fsencode(journal_directory.parent / _WANTED)
        self._due_s = 0.0

    def is_due(self, waiting_bytes: int) -> bool:
        """Check whether to commit now, given the bytes of the journal that wait, looked up after `take_request`."""
        return waiting_bytes >= GATHER_BYTES or (
            waiting_bytes > 0 and time.monotonic() >= self._due_s
        )

    def take_request(self) -> bool:
        """Check whether somebody asked for a commit since the last call.

        What it is about was appended before, so it is seen by whoever looks into the journal after this.
        """
        try:
            os.unlink(self._path)  # noqa: PTH108 - as bytes, 25 times a second
        except FileNotFoundError:
            return False
        return True

    def note_commit(self) -> None:
        """Begin to gather anew."""
        self._due_s = time.monotonic() + GATHER_S


def default_limit_bytes(directory: Path) -> int:
    """Return the default limit of the lag in bytes: 1 GiB, or 10 % of the disk space without the journal."""
    waiting = journal.lag_bytes(directory, {})
    folder = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    free = shutil.disk_usage(folder).free
    return max(SMALLEST_LIMIT_BYTES, min(LARGEST_LIMIT_BYTES, (free + waiting) // 10))


class JournalLag:
    """Lag in bytes, sampled at most every `SAMPLE_INTERVAL_S`; safe to use from several threads."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._bytes = 0
        self._until = 0.0
        self._lock = threading.Lock()

    def bytes(self) -> int:
        """Return the last sampled lag."""
        now_s = time.monotonic()
        if now_s >= self._until and self._lock.acquire(blocking=False):
            try:
                with suppress(OSError):  # keeps the last sample
                    self._bytes = journal.lag_bytes(self._directory, read_offsets(self._directory))
                self._until = now_s + SAMPLE_INTERVAL_S
            finally:
                self._lock.release()
        return self._bytes

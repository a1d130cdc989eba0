"""Which blobs are needed: those of a row that keeps its input, and those of what is journaled only."""

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path

import sqlalchemy as sa

from quadriga.store import journal
from quadriga.store.blobs.interface import Blobs
from quadriga.store.database import ReaderPool, execute, journal_offsets
from quadriga.store.ids import time_ms

SWEEP_BATCH = 500  # blobs looked up by one statement
REMOVALS_AT_ONCE = 8  # how many blobs a sweep removes at once
MAX_TIME_SHARE = 0.2  # of the time, what a sweep may take
FIRST_SWEEP_DELAY_S = 60.0
SWEEP_INTERVAL_S = 3600.0  # between the sweeps of `keep_swept`, the first of which comes earlier
SELECT_UNREFERENCED = (
    " WITH blob (hash) AS (VALUES {}) SELECT hash FROM blob WHERE NOT EXISTS"
    " (SELECT 1 FROM inference AS i WHERE i.input_hash = blob.hash AND i.input_kept = 1)"
)
"""Of some hashes, those that no row keeps."""

_log = logging.getLogger(__name__)


def committed_until(connection: sa.Connection, journal_directory: Path) -> float:
    """Return the moment until which all that was journaled is in the database, in seconds since 1970.

    It is that of the first record which waits, now where none does. What is read from the same
    connection afterwards holds every record journaled before.
    """
    until = time.time()
    offsets = journal_offsets(connection, journal.journal_id(journal_directory))
    for path in journal.segment_paths(journal_directory):
        for seq, _, _ in islice(journal.read_frames(path, offsets.get(path.name, 0)), 1):
            until = min(until, time_ms(seq) / 1000)
    return until


def remove_unreferenced(
    connection: sa.Connection, blobs: Blobs, keys: Iterable[str], journal_directory: Path
) -> int:
    """Remove those of some blobs that nothing needs any more; returns how many.

    To be called once what needed them is gone for good, after the commit. A blob is left to the
    sweep if it was put within the grace before now, or before the first record that waits in the
    journal: that record, or one behind it, may need it. So are all in an object store, for which a
    writer would wait too long. Other servers that share database and blobs have their own journals:
    what waits there for longer than the grace is not seen.
    """
    if not blobs.is_local:
        return 0
    remaining, removed = iter(keys), 0
    while step := list(dict.fromkeys(islice(remaining, SWEEP_BATCH))):
        as_of = committed_until(connection, journal_directory)
        for key in _unreferenced(connection, step):
            removed += blobs.delete(key, as_of)
    return removed


def sweep(blobs: Blobs, readers: ReaderPool, journal_directory: Path) -> Iterator[int]:
    """Remove blobs that nothing needs, such as those put just before a crash, step by step.

    Yields after every `STEP` blobs looked at how many of them were removed; the caller decides when
    to go on, and closes the iterator to stop. No list of all blobs is held, no read transaction is
    open while blobs are removed. A `NotReadyError` where the database or the object store does not
    answer.
    """
    found = blobs.entries()
    while step := list(islice(found, SWEEP_BATCH)):
        before = time.time() - blobs.grace_s
        keys = [blob.key for blob in step if blob.put_at < before]
        removed = 0
        if keys:
            with readers.snapshot() as connection:
                as_of = committed_until(connection, journal_directory)
                unneeded = _unreferenced(connection, keys)
            with ThreadPoolExecutor(REMOVALS_AT_ONCE) as pool:
                removed = sum(pool.map(partial(blobs.delete, as_of=as_of), unneeded))
        yield removed


def sweep_periodically(
    blobs: Blobs,
    url: str,
    journal_directory: Path,
    stop: threading.Event,
    every_s: float = SWEEP_INTERVAL_S,
) -> None:
    """Sweep again and again until `stop` is set, for a thread; failures are logged and end one sweep."""
    readers = ReaderPool(url, connections=1)
    pause_s = min(FIRST_SWEEP_DELAY_S, every_s)
    while not stop.wait(pause_s):
        pause_s = every_s
        try:
            removed = 0
            began = time.monotonic()
            for step in sweep(blobs, readers, journal_directory):
                removed += step
                if stop.wait(min((time.monotonic() - began) * (1 / MAX_TIME_SHARE - 1), 60.0)):
                    break
                began = time.monotonic()
            if removed:
                _log.info("%d images that nothing needed are removed", removed)
        except Exception as error:  # noqa: BLE001 - whatever fails may not end all sweeps
            _log.warning("the sweep of images ends before its time: %s", error)
    readers.close()


def _unreferenced(connection: sa.Connection, keys: Sequence[str]) -> list[str]:
    statement = SELECT_UNREFERENCED.format(", ".join(["(?)"] * len(keys)))
    return [key for (key,) in execute(connection, statement, tuple(keys))]

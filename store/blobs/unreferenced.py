"""Removal of blobs that nothing references: no row stores them as its input and no journaled record waits."""

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import compress, islice
from pathlib import Path

import sqlalchemy as sa

from quadriga.store.blobs.interface import Blobs
from quadriga.store.database.damaged_files import damaged_files
from quadriga.store.database.database import ReaderPool, execute, journal_offsets
from quadriga.store.database.sizes import StoredSize, write_size
from quadriga.store.journal import journal
from quadriga.store.records.ids import time_ms

SWEEP_BATCH = 500  # blobs looked up by one statement
REMOVALS_AT_ONCE = 8  # parallel removals of a sweep
MAX_TIME_SHARE = 0.2  # share of the time that a sweep may be busy
FIRST_SWEEP_DELAY_S = 60.0
SWEEP_INTERVAL_S = 3600.0  # between two sweeps of `sweep_periodically`; the first comes earlier
SELECT_UNREFERENCED = (
    " WITH blob (hash) AS (VALUES {}) SELECT hash FROM blob WHERE NOT EXISTS"
    " (SELECT 1 FROM inference AS i WHERE i.input_hash = blob.hash AND i.input_kept = 1)"
)
"""Selects those of the given hashes that no row references."""

_log = logging.getLogger(__name__)


def committed_until(connection: sa.Connection, journal_directory: Path) -> float:
    """Return the time until which the journal is fully committed to the database, in seconds since 1970.

    This is the time of the first record that is not committed, or the current time. Whatever is read from
    the same connection afterwards includes every record journaled before it.
    """
    committed_until_s = time.time()
    offsets = journal_offsets(connection, journal.journal_id(journal_directory))
    for path in journal.segment_paths(journal_directory):
        for seq, _, _ in islice(journal.read_frames(path, offsets.get(path.name, 0)), 1):
            committed_until_s = min(committed_until_s, time_ms(seq) / 1000)
    return committed_until_s


def remove_unreferenced(
    connection: sa.Connection, blobs: Blobs, keys: Iterable[str], journal_directory: Path
) -> int:
    """Remove those of the given blobs that nothing references any more; return how many.

    To be called once the rows that referenced them are deleted and committed. A blob is left to the
    sweep if it was put within the grace period, counted back from now or from the first uncommitted
    record of the journal: that record, or a later one, may reference it. All blobs of an object store
    are left to the sweep as well, because the writer would wait too long for it. Other servers that share
    the database and the blobs have their own journals: records that wait there for longer than the
    grace period are not seen.
    """
    if not blobs.is_local:
        return 0
    remaining, removed = iter(keys), 0
    while batch := list(dict.fromkeys(islice(remaining, SWEEP_BATCH))):
        as_of = committed_until(connection, journal_directory)
        for key in unreferenced(connection, batch):
            removed += blobs.delete(key, as_of)
    return removed


def sweep(
    blobs: Blobs, readers: ReaderPool, journal_directory: Path
) -> Iterator[tuple[int, list[int]]]:
    """Remove unreferenced blobs, such as those put just before a crash, batch by batch.

    Yields after each `SWEEP_BATCH` of blobs how many of them were removed, and the bytes of each that stays; the caller
    decides when to continue, and closes the iterator to stop. Neither a list of all blobs is held in memory nor a read
    transaction open while blobs are removed. Raises a `NotReadyError` if the database or the object store
    does not answer.
    """
    entries = blobs.entries()
    while batch := list(islice(entries, SWEEP_BATCH)):
        put_before = time.time() - blobs.grace_s
        keys = [blob.key for blob in batch if blob.put_at < put_before]
        removed_keys: set[str] = set()
        if keys:
            with readers.snapshot() as connection:
                as_of = committed_until(connection, journal_directory)
                unneeded = unreferenced(connection, keys)
            with ThreadPoolExecutor(REMOVALS_AT_ONCE) as pool:
                are_removed = pool.map(partial(blobs.delete, as_of=as_of), unneeded)
                removed_keys = set(compress(unneeded, are_removed))
        yield len(removed_keys), [blob.size for blob in batch if blob.key not in removed_keys]


def sweep_periodically(
    blobs: Blobs,
    url: str,
    journal_directory: Path,
    stop: threading.Event,
    interval_s: float = SWEEP_INTERVAL_S,
) -> None:
    """Sweep repeatedly until `stop` is set, as the body of a thread; a failure is logged and ends one sweep.

    A sweep that saw all blobs leaves their number and bytes beside the journal, for metrics.
    """
    readers = ReaderPool(url, connections=1)
    pause_s = min(FIRST_SWEEP_DELAY_S, interval_s)
    while not stop.wait(pause_s):
        pause_s = interval_s
        if damaged_files(url):  # its records may yet be salvaged, and refer to images
            continue
        try:
            removed = count = size_bytes = 0
            started_s = time.monotonic()
            for removed_in_batch, sizes in sweep(blobs, readers, journal_directory):
                removed += removed_in_batch
                count, size_bytes = count + len(sizes), size_bytes + sum(sizes)
                if stop.wait(min((time.monotonic() - started_s) * (1 / MAX_TIME_SHARE - 1), 60.0)):
                    break
                started_s = time.monotonic()
            else:
                size = StoredSize(bytes=size_bytes, count=count, measured_at=time.time())
                write_size(journal_directory.parent, "images", size)
            if removed:
                _log.info("%d unreferenced images are removed", removed)
        except Exception as error:  # noqa: BLE001 - whatever fails may not end all sweeps
            _log.warning("the sweep of unreferenced images is interrupted: %s", error)
    readers.close()


def unreferenced(connection: sa.Connection, keys: Sequence[str]) -> list[str]:
    """Return those of some blobs that no row references; at most `SWEEP_BATCH`."""
    statement = SELECT_UNREFERENCED.format(", ".join(["(?)"] * len(keys)))
    return [key for (key,) in execute(connection, statement, tuple(keys))]

"""Which blobs are needed: those of a row that keeps its input, and those of what is journaled only."""

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import sqlalchemy as sa

from store import journal
from store.blobs import Blobs
from store.database import Readers, journal_offsets, run
from store.ids import milliseconds

STEP = 500
"""Blobs looked up by one statement."""

UNREFERENCED = (
    " WITH blob (hash) AS (VALUES {}) SELECT hash FROM blob WHERE NOT EXISTS"
    " (SELECT 1 FROM inference AS i WHERE i.input_hash = blob.hash AND i.input_kept = 1)"
)
"""Of some hashes, those that no row keeps."""


def moved_until(connection: sa.Connection, journal_directory: Path) -> float:
    """Return the moment until which all that was journaled is in the database, in seconds since 1970.

    It is that of the first record which waits, now where none does. What is read from the same
    connection afterwards holds every record journaled before.
    """
    until = time.time()
    offsets = journal_offsets(connection, journal.identity(journal_directory))
    for path in journal.segments(journal_directory):
        for seq, _, _ in islice(journal.frames(path, offsets.get(path.name, 0)), 1):
            until = min(until, milliseconds(seq) / 1000)
    return until


def remove_unreferenced(
    connection: sa.Connection, blobs: Blobs, keys: Iterable[str], journal_directory: Path
) -> int:
    """Remove those of some blobs that nothing needs any more; returns how many.

    To be called once what needed them is gone for good, after the commit. A blob is left to the sweep
    if it was put within the grace before now, or before the first record that waits in the
    journal: that record, or one behind it, may need it.

    Args:
        connection: To read from.
        blobs: Where they are.
        keys: Of the blobs.
        journal_directory: Of this server. A server that shares database and blobs has its own: what
            waits there for longer than the grace is not seen.
    """
    remaining, removed = iter(keys), 0
    while step := list(dict.fromkeys(islice(remaining, STEP))):
        as_of = moved_until(connection, journal_directory)
        for key in _unreferenced(connection, step):
            removed += blobs.delete(key, as_of)
    return removed


def sweep(blobs: Blobs, readers: Readers, journal_directory: Path) -> Iterator[int]:
    """Remove blobs that nothing needs, such as those put just before a crash, step by step.

    Yields after every `STEP` blobs looked at how many of them were removed; the caller decides when to go
    on, and closes the iterator to stop. No list of all blobs is held, no read transaction is open while
    blobs are removed.

    Raises:
        NotReadyError: The database or the object store does not answer.
    """
    found = blobs.listed()
    while step := list(islice(found, STEP)):
        before = time.time() - blobs.grace_s
        keys = [blob.key for blob in step if blob.put_at < before]
        removed = 0
        if keys:
            with readers.snapshot() as connection:
                as_of = moved_until(connection, journal_directory)
                unneeded = _unreferenced(connection, keys)
            removed = sum(blobs.delete(key, as_of) for key in unneeded)
        yield removed


def _unreferenced(connection: sa.Connection, keys: Sequence[str]) -> list[str]:
    statement = UNREFERENCED.format(", ".join(["(?)"] * len(keys)))
    return [key for (key,) in run(connection, statement, tuple(keys))]

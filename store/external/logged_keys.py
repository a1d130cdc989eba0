"""Ids of inferences that were made elsewhere: each key of a sender has one id, whoever asks, and however often.

A SQLite file of the data folder, which all workers of a server share. A sender that repeats a key gets the id of the
first time, and nothing is stored again, also after `kill -9` between any two steps: an id is claimed before its record
is journaled, and confirmed afterwards. A claim without its confirmation is journaled again under the same id, which the
writer stores once.

The id has the time at which the inference was made, and the worker's number of imports, as no worker gives it out. Its
counter follows from the key, so that another server with its own file finds the same id for the same key and time.
"""

import os
import sqlite3
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

from quadriga.store.records.disk import lock, translate_disk_errors
from quadriga.store.records.errors import ChangeError, JournalError
from quadriga.store.records.ids import COUNTER_BITS, EPOCH_MS, IMPORT_WORKER, TIME_SHIFT, IdSource

FILE = "logged-keys.db"

REMEMBERED_DAYS = 7.0
"""Days for which a key is remembered."""

MAX_SPREAD_MS = 100
"""Milliseconds over which inferences of one time are spread at most: 4,096 of them have one millisecond."""

_TRIES_PER_MS = 2

_COUNTER = (1 << COUNTER_BITS) - 1
_WORKER = IMPORT_WORKER << COUNTER_BITS
_BUSY_S = 10.0
_FORGOTTEN_AT_ONCE = 2000
_TABLES = """
CREATE TABLE IF NOT EXISTS claim (
    digest BLOB PRIMARY KEY, seq INTEGER NOT NULL UNIQUE, at_s INTEGER NOT NULL, stored INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS claim_at ON claim (at_s);
"""


class Claim(NamedTuple):
    """The id of a key."""

    seq: int
    is_stored: bool
    """Whether the record is journaled already."""


class ClaimRequest(NamedTuple):
    """A key whose id is wanted."""

    digest: bytes
    time_ms: int | None
    """Milliseconds since 1970 at which the inference was made; None for now."""


def key_digest(*parts: str) -> bytes:
    """Return the 16 bytes that stand for a key: its parts are its team, its model, and what the sender says."""
    return blake3(b"\0".join(part.encode(errors="surrogatepass") for part in parts)).digest(16)


def random_digest() -> bytes:
    """Return a digest for an inference without a key, which no sender repeats."""
    return os.urandom(16)


class LoggedKeys:
    """The keys of one data folder; safe to use from several threads and processes.

    Args:
        data_directory: The data folder.
        ids: Ids of inferences without a time.
        is_synced: Whether claims survive a loss of power.
    """

    def __init__(self, data_directory: Path, ids: IdSource, *, is_synced: bool = False) -> None:
        self._path = data_directory / FILE
        self._lock_path = data_directory / f"{FILE}.lock"
        self._ids = ids
        self._is_synced = is_synced

    @contextmanager
    def claimed(self, requests: Sequence[ClaimRequest]) -> Iterator[list[Claim]]:
        """Claim the ids of some keys for the context; at its end without an exception they count as stored.

        No other worker claims meanwhile.

        Raises:
            JournalError: The file cannot be written, as on a full disk; nothing may be acknowledged.
            ChangeError: There are too many inferences of one time.
        """
        with self._alone(), self._open() as connection:
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                claims = [self._claim(connection, request) for request in requests]
            yield claims
            new = [(claim.seq,) for claim in claims if not claim.is_stored]
            if new:
                with connection:
                    connection.execute("BEGIN IMMEDIATE")
                    connection.executemany("UPDATE claim SET stored = 1 WHERE seq = ?", new)
                    self._forget(connection)

    def find(self, digest: bytes) -> Claim | None:
        """Return the id of a key; None for an unknown one. Raises as `claimed`."""
        if not self._path.exists():
            return None
        with self._alone(), self._open() as connection:
            return _claim_of(connection, digest)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with translate_disk_errors("keep the key of an inference"):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with lock(self._lock_path):
                yield

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Open the file, which begins anew if it is damaged or was removed."""
        try:
            connection = self._connect()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise JournalError(f"cannot keep the key of an inference: {error}") from error
            self._path.replace(self._path.with_name(f"{FILE}.damaged"))
            connection = self._connect()
        try:
            yield connection
        except sqlite3.Error as error:
            raise JournalError(f"cannot keep the key of an inference: {error}") from error
        finally:
            connection.close()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)
        try:
            # One process at a time writes, under the lock: a journal of SQLite's own beside the file suffices.
            connection.execute(f"PRAGMA synchronous = {'FULL' if self._is_synced else 'OFF'}")
            connection.execute("PRAGMA journal_mode = TRUNCATE")
            connection.executescript(_TABLES)
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def _claim(self, connection: sqlite3.Connection, request: ClaimRequest) -> Claim:
        known = _claim_of(connection, request.digest)
        if known is not None:
            return known
        if request.time_ms is None:
            seq = self._ids.next()
        else:
            seq = _free_id(connection, request.digest, request.time_ms)
        row = (request.digest, seq, int(time.time()), 0)
        connection.execute("INSERT INTO claim VALUES (?, ?, ?, ?)", row)
        return Claim(seq, is_stored=False)

    def _forget(self, connection: sqlite3.Connection) -> None:
        """Remove some keys that are older than `REMEMBERED_DAYS`."""
        before_s = int(time.time() - REMEMBERED_DAYS * 86_400)
        connection.execute(
            "DELETE FROM claim WHERE digest IN (SELECT digest FROM claim WHERE at_s < ? LIMIT ?)",
            (before_s, _FORGOTTEN_AT_ONCE),
        )


def _claim_of(connection: sqlite3.Connection, digest: bytes) -> Claim | None:
    row = connection.execute("SELECT seq, stored FROM claim WHERE digest = ?", (digest,)).fetchone()
    return None if row is None else Claim(int(row[0]), bool(row[1]))


def _free_id(connection: sqlite3.Connection, digest: bytes, time_ms: int) -> int:
    """Return the id of a key and a time: the first that is free among those that follow from the key.

    Raises:
        ChangeError: None is free within `MAX_SPREAD_MS`.
    """
    for attempt in range(MAX_SPREAD_MS * _TRIES_PER_MS):
        milliseconds = time_ms - EPOCH_MS + attempt // _TRIES_PER_MS
        counter = zlib.crc32(digest, attempt) & _COUNTER
        seq = milliseconds << TIME_SHIFT | _WORKER | counter
        if connection.execute("SELECT 1 FROM claim WHERE seq = ?", (seq,)).fetchone() is None:
            return seq
    raise ChangeError(
        "expected the times of inferences to be as fine as milliseconds, got too many of one time"
    )

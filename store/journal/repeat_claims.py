"""Ids of inferences whose requests may be sent again: the first to come claims its ids, repetitions get the same.

One file of SQLite in the data folder, which all workers of a server share and which outlives them. The writer then stores
one of several records with the same id and name. A claim is forgotten after `WINDOW_S`, once `KEPT_CLAIMS` newer ones
are there: a clock that jumps forgets none of the last ones.
"""

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from quadriga.store.records.errors import JournalError, KeyReusedError

FILE = "repeats.db"
WINDOW_S = 3600.0
"""Seconds for which a claim is kept at least."""

KEPT_CLAIMS = 100_000
"""Number of the newest claims that are kept, however old they seem."""

BUSY_TIMEOUT_S = 5.0
"""Maximum wait for other workers that write claims."""

_PRUNE_EVERY = 1000
_PRUNED_AT_ONCE = 5000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS claim (
    number INTEGER PRIMARY KEY, name BLOB NOT NULL UNIQUE, fingerprint BLOB NOT NULL, seq INTEGER NOT NULL,
    claimed_at REAL NOT NULL
)
"""

_log = logging.getLogger(__name__)


class RepeatClaims:
    """Claims of one data folder; safe to use from several threads and processes. The file is made at the first claim."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._process = 0
        self._until_prune = 0

    def claim(
        self,
        names: Sequence[bytes],
        fingerprint: bytes,
        new_id: Callable[[], int],
        *,
        durable: bool = False,
    ) -> list[int]:
        """Return the id of each name: the one that was claimed before, or a new one.

        Args:
            names: Names of the inferences.
            fingerprint: Digest of the request.
            new_id: Makes an id.
            durable: Whether the claims survive a loss of power on return; else they survive `kill -9`.

        Raises:
            KeyReusedError: A name was claimed by a request with another fingerprint.
            JournalError: Nothing can be claimed, as on a full disk.
        """
        with self._lock:
            try:
                return self._claim(names, fingerprint, new_id, durable=durable)
            except (sqlite3.OperationalError, OSError) as error:
                self._close()
                reason = getattr(error, "strerror", None) or error  # without the folder's path
                raise JournalError(f"cannot note an idempotency key: {reason}") from error
            except sqlite3.DatabaseError as error:  # the file is damaged
                self._close()
                self._set_aside(error)
                raise JournalError("cannot note an idempotency key: try again") from error

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._close()

    def _claim(
        self,
        names: Sequence[bytes],
        fingerprint: bytes,
        new_id: Callable[[], int],
        *,
        durable: bool,
    ) -> list[int]:
        connection = self._open()
        connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            known = self._known(connection, names, fingerprint)
            now_s = time.time()
            missing = [name for name in names if name not in known]
            known |= {name: new_id() for name in missing}
            rows = [(name, fingerprint, known[name], now_s) for name in missing]
            connection.executemany(
                "INSERT INTO claim (name, fingerprint, seq, claimed_at) VALUES (?, ?, ?, ?)", rows
            )
            self._until_prune -= len(rows)
            if self._until_prune < 0:
                self._prune(connection, now_s)
        return [known[name] for name in names]

    def _known(
        self, connection: sqlite3.Connection, names: Sequence[bytes], fingerprint: bytes
    ) -> dict[bytes, int]:
        known: dict[bytes, int] = {}
        for name in names:
            claim = connection.execute(
                "SELECT fingerprint, seq FROM claim WHERE name = ?", (name,)
            ).fetchone()
            if claim is not None:
                other, known[name] = claim
                if other != fingerprint:
                    raise KeyReusedError(
                        "expected an Idempotency-Key of its own for each request, got one that was used with another "
                        "request"
                    )
        return known

    def _prune(self, connection: sqlite3.Connection, now_s: float) -> None:
        """Forget old claims; more of them than are made meanwhile."""
        connection.execute(
            "DELETE FROM claim WHERE number IN (SELECT number FROM claim ORDER BY number LIMIT ?) AND claimed_at < ? "
            "AND number <= (SELECT max(number) FROM claim) - ?",
            (_PRUNED_AT_ONCE, now_s - WINDOW_S, KEPT_CLAIMS),
        )
        self._until_prune = _PRUNE_EVERY

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None and self._process == os.getpid():
            return self._connection
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = connection = sqlite3.connect(
            self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        self._process = os.getpid()
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(_SCHEMA)
        return connection

    def _close(self) -> None:
        if self._connection is not None and self._process == os.getpid():
            with suppress(sqlite3.Error):
                self._connection.close()
        self._connection = None

    def _set_aside(self, error: Exception) -> None:
        """Rename a damaged file, so that a new one begins; what it knew is lost."""
        _log.error("%s is damaged (%s): kept as %s.damaged", FILE, error, FILE)
        for suffix in ("", "-wal", "-shm"):
            with suppress(OSError):
                path = self._path.with_name(self._path.name + suffix)
                path.rename(path.with_name(f"{path.name}.damaged"))

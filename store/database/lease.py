"""The lease of a data folder: numbers for the workers of its server, which are part of every id, so that no two servers give out the same.

A lease belongs to a data folder, by the id of its journal. The writer renews it in the database, and its file remembers
it, so that the server may start again while the database is away. A copy of a data folder has the same journal and
another place; while the server of one is seen to renew the lease, that of the other is refused.
"""

import hashlib
import logging
import socket
import time
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa

from quadriga.store.database.database import clock_ms, execute, lock_tables, upsert
from quadriga.store.journal import journal
from quadriga.store.records.disk import write_atomically
from quadriga.store.records.errors import StoreError
from quadriga.store.records.ids import (
    IMPORT_WORKER,
    LEASE_FILE,
    RememberedLease,
    boot_id,
    read_lease,
    steady_ms,
)

RENEW_S = 5.0
"""How often a server renews its lease."""

SEEN_S = 3 * RENEW_S
"""A server that renewed its lease within that time may be running."""

WATCH_S = 2.5 * RENEW_S
"""How long a server that may be running is watched."""

EXPIRE_S = 86_400.0
"""After that time without a renewal a number may be given to another server."""

_CLOCK_CHANGE_MS = 1000
_log = logging.getLogger(__name__)


class Lease:
    """The lease of one server; for the thread of the writer.

    Args:
        data_directory: Data folder of the server.
        url: The database.
        workers: How many numbers are needed.
        run: Id of this run of the server, for the workers that wait for their numbers.
    """

    def __init__(self, data_directory: Path, url: str, workers: int, *, run: str) -> None:
        self._directory = data_directory
        self._database = _location_hash(sa.make_url(url))
        self._workers = workers
        self._run = run
        self._numbers: list[int] = []
        self._offset_ms: int | None = None
        self._due_s = 0.0

    def hold(self, engine: sa.Engine) -> None:
        """Claim the numbers, or renew them if that is due, and leave them and the database's clock for the workers.

        Raises:
            StoreError: Another server has them, or runs on a copy of the data folder.
        """
        if time.monotonic() < self._due_s:
            return
        statement = "UPDATE worker_number SET seen_ms = ? WHERE owner = ? AND place = ?"
        with engine.begin() as connection:
            before_ms, now_ms = steady_ms(), clock_ms(connection)
            offset_ms = now_ms - (before_ms + steady_ms()) // 2
            renewed = execute(connection, statement, (now_ms, self._owner, self._place)).rowcount
        if not self._numbers or renewed < len(self._numbers):
            self._numbers = self._claim(engine)
        is_measured = engine.dialect.name != "sqlite"  # that has no clock of its own
        if is_measured and abs(offset_ms - (self._offset_ms or 0)) > _CLOCK_CHANGE_MS:
            self._offset_ms = offset_ms
        location = (self._owner, self._database, self._run)
        lease = RememberedLease(*location, self._numbers, boot_id(), self._offset_ms)
        with suppress(OSError):  # a full disk, which moving the journal may free; it is tried again
            self._write(lease)
        self._due_s = time.monotonic() + RENEW_S

    def remember(self) -> None:
        """Go on with the numbers that the data folder remembers, as the database does not answer."""
        last = self._remembered()
        if self._numbers or last is None or len(last.numbers) < self._workers:
            return
        numbers = last.numbers[: self._workers]
        with suppress(OSError):
            self._write(msgspec.structs.replace(last, run=self._run, numbers=numbers))
            self._numbers = numbers
            _log.warning("the database is away: the worker numbers are those of the last run")

    def release(self, engine: sa.Engine) -> None:
        """Note that no server runs on the data folder any more; the numbers stay with it."""
        statement = "UPDATE worker_number SET place = '' WHERE owner = ? AND place = ?"
        # Without the database others see after a while that the lease is not renewed.
        with suppress(sa.exc.DBAPIError, OSError), engine.begin() as connection:
            execute(connection, statement, (self._owner, self._place))
        self._due_s = 0.0

    @cached_property
    def _owner(self) -> str:
        return journal.journal_id(self._directory / "journal")

    @cached_property
    def _place(self) -> str:
        """The data folder itself, which no copy is: its inode, on this machine since its start."""
        status = self._directory.stat()
        return f"{boot_id() or time.time_ns()}:{status.st_dev}:{status.st_ino}"

    def _claim(self, engine: sa.Engine) -> list[int]:
        """Claim numbers: those in use or of the last run, else free ones, else the longest expired.

        Raises:
            StoreError: Another server has one in use, or too few are left.
        """
        self._refuse_copy(engine)
        with engine.begin() as connection:
            lock_tables(connection)
            now_ms = clock_ms(connection)
            statement = "SELECT number, owner, host, seen_ms FROM worker_number ORDER BY seen_ms"
            rows = execute(connection, statement).all()
            own = sorted(row.number for row in rows if row.owner == self._owner)
            taken = {
                row.number: row.host
                for row in rows
                if row.owner != self._owner and now_ms - row.seen_ms <= EXPIRE_S * 1000
            }
            last = self._remembered()
            in_use = self._numbers or ([] if last is None else last.numbers)
            if lost := taken.keys() & {*in_use}:
                (self._directory / LEASE_FILE).unlink(missing_ok=True)
            # Workers do not change their numbers while they run.
            if lost and (self._numbers or (last is not None and last.run == self._run)):
                number = min(lost)
                raise StoreError(
                    f"worker number {number} belongs to another server, on {taken[number]}, which writes the same"
                    " database: this one was away for more than a day; start it again, and it gets others"
                )
            by_age = {row.number: None for row in rows}
            free = (number for number in range(IMPORT_WORKER) if number not in by_age)
            candidates = dict.fromkeys([*in_use, *own, *free, *by_age])
            numbers = [number for number in candidates if number not in taken][: self._workers]
            if len(numbers) < self._workers:
                raise StoreError(
                    f"expected {self._workers} free worker numbers of {IMPORT_WORKER}, got {len(numbers)}: "
                    "too many servers wrote the database within a day"
                )
            claim = (self._owner, self._place, socket.gethostname(), now_ms)
            claimed = sorted({*numbers, *own})  # those that are not used any more wait a day, too
            upsert(connection, "worker_number", [(number, *claim) for number in claimed])
        return numbers

    def _refuse_copy(self, engine: sa.Engine) -> None:
        """Watch a server that may be running on a copy of the data folder.

        Raises:
            StoreError: It is running.
        """
        before = self._seen_elsewhere(engine)
        if before is None:
            return
        # Not to be trusted without the database.
        (self._directory / LEASE_FILE).unlink(missing_ok=True)
        _log.warning(
            "the data folder was in use at another place or on %s a moment ago: waiting %g s to see whether it still is",
            before.host,
            WATCH_S,
        )
        time.sleep(WATCH_S)
        after = self._seen_elsewhere(engine)
        if after is not None and after.seen_ms != before.seen_ms:
            raise StoreError(
                f"the data folder is a copy of one that a server on {after.host} runs on, with the same database: "
                "stop that server, or begin with an empty data folder"
            )

    def _seen_elsewhere(self, engine: sa.Engine) -> sa.Row[Any] | None:
        """Return the last sign of a server on another place with the same journal, if it is recent."""
        statement = (
            "SELECT host, seen_ms FROM worker_number WHERE owner = ? AND place NOT IN ('', ?) AND seen_ms > ?"
            " ORDER BY seen_ms DESC LIMIT 1"
        )
        with engine.begin() as connection:
            since_ms = clock_ms(connection) - round(SEEN_S * 1000)
            return execute(connection, statement, (self._owner, self._place, since_ms)).first()

    def _remembered(self) -> RememberedLease | None:
        """Return the lease of the last run, if it is of this folder and this database."""
        last = read_lease(self._directory)
        is_right = last is not None and (last.owner, last.database) == (self._owner, self._database)
        return last if is_right else None

    def _write(self, lease: RememberedLease) -> None:
        """Write the file for the workers, unless it stands there."""
        if lease != read_lease(self._directory):
            data = msgspec.json.encode(lease)
            write_atomically(self._directory / LEASE_FILE, data, is_synced=True)


def _location_hash(url: sa.URL) -> str:
    """Return a hash of where a database is, which says nothing of users and passwords."""
    is_file = url.get_backend_name() == "sqlite"
    database = str(Path(url.database or "").resolve()) if is_file else url.database
    location = [url.get_backend_name(), url.host, url.port, database, url.query.get("host")]
    return hashlib.sha256(msgspec.json.encode(location)).hexdigest()[:16]

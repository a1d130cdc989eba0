"""Worker numbers, which are part of every id: claimed in the database, so that no two servers give out the same.

A number belongs to a data folder, by the id of its journal. The writer claims numbers for the workers of its server and
renews them while it runs. A file of the data folder remembers them, so that the server may start again while the
database is away. A copy of a data folder has the same owner and another place; while the server of one is seen to renew
the numbers, that of the other is refused.
"""

import hashlib
import logging
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import msgspec
import sqlalchemy as sa

from quadriga.store.database.database import clock_ms, execute, lock_tables, upsert
from quadriga.store.journal import journal
from quadriga.store.records.clock import (
    ClockReference,
    boot_id,
    read_reference,
    reference_path,
    steady_ms,
)
from quadriga.store.records.disk import write_atomically
from quadriga.store.records.errors import StoreError
from quadriga.store.records.ids import IMPORT_WORKER

RENEW_S = 5.0
"""How often a server renews its numbers."""

SEEN_S = 3 * RENEW_S
"""A server that renewed its numbers within that time may be running."""

WATCH_S = 2.5 * RENEW_S
"""How long a server that may be running is watched."""

EXPIRE_S = 86_400.0
"""After that time without a sign of its server a number may be given to another one."""

_CLOCK_CHANGE_MS = 1000
_CLOCK_INTERVAL_MS = 60_000
_FILE = "worker-numbers.json"
_log = logging.getLogger(__name__)


class RememberedNumbers(msgspec.Struct, frozen=True):
    """The file of the data folder: the numbers of its workers, in their order."""

    owner: str
    database: str
    """Hash of the database's location."""
    run: str
    """Id of the run of the server in which they were last confirmed."""
    numbers: list[int]


class HeldNumber(NamedTuple):
    """A row of the database: a number and the server that holds it."""

    number: int
    owner: str
    place: str
    host: str
    seen_ms: int


def read_numbers(data_directory: Path) -> RememberedNumbers | None:
    """Return the numbers that a data folder remembers; None if there are none."""
    with suppress(OSError, msgspec.MsgspecError):
        data = (data_directory / _FILE).read_bytes()
        return msgspec.json.decode(data, type=RememberedNumbers)
    return None


class WorkerNumbers:
    """The numbers of one server's workers; for the thread of the writer.

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
        self._due_s = 0.0

    def hold(self, engine: sa.Engine) -> None:
        """Claim the numbers, or renew them if that is due.

        Raises:
            StoreError: Another server has them, or runs on a copy of the data folder.
        """
        if time.monotonic() < self._due_s:
            return
        self._measure_clock(engine)
        if not self._renew(engine):
            self._numbers = self._claim(engine)
        with suppress(OSError):  # a full disk, which moving the journal may free; it is tried again
            self._write(self._numbers)
        self._due_s = time.monotonic() + RENEW_S

    def remember(self) -> None:
        """Confirm the numbers that the data folder remembers, as the database does not answer."""
        remembered = self._remembered()
        if remembered is None or len(remembered) < self._workers:
            return
        last = read_numbers(self._directory)
        if last is not None and last.run != self._run:
            self._write(remembered)
            _log.warning("the database is away: the worker numbers are those of the last run")

    def release(self, engine: sa.Engine) -> None:
        """Note that no server runs on the data folder any more; the numbers stay with it."""
        if self._numbers:
            statement = "UPDATE worker_number SET place = '' WHERE owner = ? AND place = ?"
            with engine.begin() as connection:
                execute(connection, statement, (self._owner, self._place))
            self._due_s = 0.0

    def _measure_clock(self, engine: sa.Engine) -> None:
        """Leave the database's clock for the workers, where it is not this machine's."""
        if engine.dialect.name == "sqlite":
            return
        before_ms = steady_ms()
        with engine.begin() as connection:
            begun_ms = steady_ms()
            database_ms = clock_ms(connection)
        middle_ms = (begun_ms + steady_ms()) // 2
        previous = read_reference(self._directory)
        reference = ClockReference(boot_id(), database_ms - middle_ms, before_ms)
        if (
            previous is None
            or abs(previous.offset_ms - reference.offset_ms) > _CLOCK_CHANGE_MS
            or before_ms - previous.measured_ms > _CLOCK_INTERVAL_MS
        ):
            with suppress(OSError):  # as for the numbers
                write_atomically(reference_path(self._directory), msgspec.json.encode(reference))

    @cached_property
    def _owner(self) -> str:
        return journal.journal_id(self._directory / "journal")

    @cached_property
    def _place(self) -> str:
        """The data folder itself, which no copy is: its inode, on this machine since its start."""
        status = self._directory.stat()
        return f"{boot_id() or time.time_ns()}:{status.st_dev}:{status.st_ino}"

    def _renew(self, engine: sa.Engine) -> bool:
        """Renew the numbers; False if the database does not have them as claimed here."""
        if not self._numbers:
            return False
        statement = "UPDATE worker_number SET seen_ms = ? WHERE owner = ? AND place = ?"
        with engine.begin() as connection:
            values = (clock_ms(connection), self._owner, self._place)
            renewed = execute(connection, statement, values).rowcount
        return renewed == len(self._numbers)

    def _claim(self, engine: sa.Engine) -> list[int]:
        self._refuse_copies(engine)
        with engine.begin() as connection:
            lock_tables(connection)
            now_ms = clock_ms(connection)
            numbers = self._choose(_claims(connection), now_ms)
            execute(connection, "DELETE FROM worker_number WHERE owner = ?", (self._owner,))
            host = socket.gethostname()
            rows = [(number, self._owner, self._place, host, now_ms) for number in numbers]
            upsert(connection, "worker_number", rows)
        return numbers

    def _refuse_copies(self, engine: sa.Engine) -> None:
        """Watch a server that may be running on a copy of the data folder.

        Raises:
            StoreError: It is running.
        """
        before = self._seen_elsewhere(engine)
        if before is None:
            return
        (self._directory / _FILE).unlink(missing_ok=True)  # not to be trusted without the database
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

    def _seen_elsewhere(self, engine: sa.Engine) -> HeldNumber | None:
        """Return the last sign of a server on another place with the same owner, if it is recent."""
        with engine.begin() as connection:
            now_ms = clock_ms(connection)
            others = [
                claim
                for claim in _claims(connection).values()
                if claim.owner == self._owner and claim.place not in ("", self._place)
            ]
        latest = max(others, key=lambda claim: claim.seen_ms, default=None)
        return latest if latest and now_ms - latest.seen_ms < SEEN_S * 1000 else None

    def _choose(self, claims: Mapping[int, HeldNumber], now_ms: int) -> list[int]:
        """Choose numbers: those of the last run, else free ones, else the longest expired.

        Raises:
            StoreError: Another server has one of the first, or no number is left.
        """
        taken = {
            number: claim
            for number, claim in claims.items()
            if claim.owner != self._owner and now_ms - claim.seen_ms <= EXPIRE_S * 1000
        }
        wanted = self._numbers or self._remembered() or []
        for number in wanted:
            if number in taken:
                self._refuse(taken[number], now_ms)
        numbers = [*islice(self._candidates(wanted, claims, taken), self._workers)]
        if len(numbers) < self._workers:
            raise StoreError(
                f"expected {self._workers} free worker numbers of {IMPORT_WORKER}, got {len(numbers)}: "
                "too many servers wrote the database within a day"
            )
        return numbers

    def _candidates(
        self, wanted: list[int], claims: Mapping[int, HeldNumber], taken: Mapping[int, HeldNumber]
    ) -> Iterator[int]:
        own = (number for number, claim in claims.items() if claim.owner == self._owner)
        free = (number for number in range(IMPORT_WORKER) if number not in claims)
        expired = sorted(claims.keys() - taken.keys(), key=lambda number: claims[number].seen_ms)
        return iter(dict.fromkeys(chain(wanted, own, free, expired)))

    def _refuse(self, claim: HeldNumber, now_ms: int) -> None:
        seconds = max(now_ms - claim.seen_ms, 0) // 1000
        text = (
            f"worker number {claim.number} belongs to another server, on {claim.host}, seen {seconds} s ago, which"
            " writes the same database"
        )
        (self._directory / _FILE).unlink(missing_ok=True)
        raise StoreError(
            f"{text}: this one was away for more than a day; start it again, and it gets others"
        )

    def _remembered(self) -> list[int] | None:
        """Return the numbers of the last run, if they are right for this database and these settings."""
        last = read_numbers(self._directory)
        if last is None or (last.owner, last.database) != (self._owner, self._database):
            return None
        return last.numbers[: self._workers]

    def _write(self, numbers: list[int]) -> None:
        """Write the file for the workers, unless it stands there."""
        content = RememberedNumbers(self._owner, self._database, self._run, numbers)
        if read_numbers(self._directory) != content:
            write_atomically(self._directory / _FILE, msgspec.json.encode(content), is_synced=True)


def _claims(connection: sa.Connection) -> dict[int, HeldNumber]:
    statement = "SELECT number, owner, place, host, seen_ms FROM worker_number ORDER BY number"
    return {row[0]: HeldNumber(*row) for row in execute(connection, statement)}


def _location_hash(url: sa.URL) -> str:
    """Return a hash of where a database is, which says nothing of users and passwords."""
    is_file = url.get_backend_name() == "sqlite"
    database = str(Path(url.database or "").resolve()) if is_file else url.database
    location = [url.get_backend_name(), url.host, url.port, database, url.query.get("host")]
    return hashlib.sha256(msgspec.json.encode(location)).hexdigest()[:16]

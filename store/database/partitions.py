"""Partitions of PostgreSQL's tables, one a month, by id, which is the time; SQLite has none."""

import logging
import re
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import sqlalchemy as sa

from quadriga.store.database.database import execute, lock_tables
from quadriga.store.records.errors import MissingPartitionError, NotReadyError, QueryTimeoutError
from quadriga.store.records.ids import smallest_id_at, time_ms

PARTITIONED_TABLES = ("inference", "meta_num", "meta_str", "pred", "signal")
_SUFFIX = re.compile(r"inference_y(\d{4})m(\d{2})", re.ASCII)
_FORGET_TRUTH = (  # what is said of inferences or requests of which none will come any more
    "DELETE FROM truth AS t USING truth AS latest, {table} AS g"
    " WHERE g.seq >= ? AND g.seq < ? AND latest.id = g.truth_id"
    " AND latest.join_on IN ('id', 'request_id')"
    " AND t.join_on = latest.join_on AND t.value = latest.value AND t.id <= latest.id"
    " AND NOT EXISTS (SELECT 1 FROM ground_truth AS other"
    " WHERE other.truth_id = t.id AND (other.seq < ? OR other.seq >= ?))"
)
_LINK_TABLES = ("ground_truth", "other_truth")
_AHEAD = timedelta(days=7)  # partitions are made so long before they are needed
_KNOWN_S = 60.0
"""Seconds for which it is known that a month has its partitions, which their owner may drop."""

_AWAY_S = 5.0
"""Seconds for which a database that did not answer is not asked again."""

_log = logging.getLogger(__name__)


class Month(NamedTuple):
    """A partition of each of the tables."""

    suffix: str
    start_id: int  # the smallest id that it can hold
    stop_id: int  # the smallest id behind it


def create_partitions(connection: sa.Connection, seqs: Iterable[int]) -> None:
    """Make the partitions that ids fall into, and those of the days to come, and commit that.

    Where the user of the connection may not make any, they have to be there, see `make_months`.

    Raises:
        MissingPartitionError: They are not there.
    """
    if connection.dialect.name == "sqlite":
        return
    created: set[tuple[int, int]] = connection.info.get("partitions", set())
    now_utc = datetime.now(UTC)
    soon = now_utc + _AHEAD
    of_ids = {_month(time_ms(seq)) for seq in seqs}
    needed = of_ids | {(soon.year, soon.month)}
    if needed <= created:
        return
    if may_change_tables(connection):
        lock_tables(connection)
        for year, month in sorted(needed - created):
            _make_partitions(connection, _bounds(year, month))
        connection.commit()
    else:
        needed -= _missing_partitions(connection, needed - created, of_ids)
    # Others are dropped.
    lasting = {month for month in needed if month >= (now_utc.year, now_utc.month)}
    connection.info["partitions"] = created | lasting


def make_months(
    connection: sa.Connection, count: int, first: tuple[int, int] | None = None
) -> list[str]:
    """Make the partitions of months, for servers whose user may make none; commit that and return the months.

    Args:
        connection: A connection of the owner of the tables.
        count: Number of months.
        first: Year and number of the first month; None for the present one.
    """
    if connection.dialect.name == "sqlite":
        return []
    year, month = first or (datetime.now(UTC).year, datetime.now(UTC).month)
    numbers = range(12 * year + month - 1, 12 * year + month - 1 + count)
    months = [(number // 12, number % 12 + 1) for number in numbers]
    lock_tables(connection)
    for year_and_month in months:
        _make_partitions(connection, _bounds(*year_and_month))
    connection.commit()
    return [_month_text(year_and_month) for year_and_month in months]


def has_partitions(connection: sa.Connection, month: tuple[int, int]) -> bool:
    """Check whether a year's month has its partitions, or gets them as soon as rows need them."""
    if connection.dialect.name == "sqlite" or may_change_tables(connection):
        return True
    return _are_there(connection, month)


def may_change_tables(connection: sa.Connection) -> bool:
    """Check whether the user of a connection owns the tables of PostgreSQL, and may make further ones."""
    may: bool | None = connection.info.get("may_change_tables")
    if may is None:
        may = connection.exec_driver_sql(
            "SELECT pg_has_role(relowner, 'USAGE') AND has_schema_privilege(relnamespace, 'CREATE')"
            " FROM pg_class WHERE oid = 'inference'::regclass"
        ).scalar_one()
        connection.info["may_change_tables"] = may
    return may


def list_months(connection: sa.Connection) -> list[Month]:
    """Return the partitions that the tables have, oldest first."""
    if connection.dialect.name == "sqlite":
        return []
    names = connection.exec_driver_sql(
        "SELECT c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid"
        " WHERE i.inhparent = 'inference'::regclass ORDER BY c.relname"
    )
    matches = (_SUFFIX.fullmatch(name) for (name,) in names)
    return [_bounds(int(match[1]), int(match[2])) for match in matches if match]


def drop_month(connection: sa.Connection, month: Month) -> bool:
    """Drop a partition of each table, and what hangs on its inferences in other tables.

    False where others read or write it for longer than they may be kept waiting, and where the user of the connection
    may not drop it: then rows are removed one by one.
    """
    if not may_change_tables(connection):
        return False
    window = (month.start_id, month.stop_id)
    try:
        with connection.begin_nested():
            execute(connection, "SET LOCAL lock_timeout = '500ms'")
            for table in PARTITIONED_TABLES:
                execute(connection, f"DROP TABLE {table}_{month.suffix}")
            for table in _LINK_TABLES:
                execute(connection, _FORGET_TRUTH.format(table=table), window * 2)
            for table in ("metadata_change", "feedback", *_LINK_TABLES):
                execute(connection, f"DELETE FROM {table} WHERE seq >= ? AND seq < ?", window)
            repeated = "DELETE FROM repeated_id WHERE first_seq >= ? AND first_seq < ?"
            execute(connection, repeated, window)
            execute(connection, "SET LOCAL lock_timeout = '5s'")
    except sa.exc.OperationalError as error:
        if getattr(error.orig, "sqlstate", None) != "55P03":  # lock_not_available
            raise
        return False
    return True


class PastMonths:
    """Says whether inferences of a time can be stored; safe to use from several threads.

    PostgreSQL may have no partition of a past month, and the server's user may not make it: an inference of that month
    would keep all others waiting in the journal. The present month is not looked at: without it nothing can be stored.

    Args:
        snapshot: Opens a connection that reads the database.
    """

    def __init__(self, snapshot: Callable[[], AbstractContextManager[sa.Connection]]) -> None:
        self._snapshot = snapshot
        self._known_until_s: dict[tuple[int, int], float] = {}
        self._away_until_s = 0.0

    def has_place(self, milliseconds_since_1970: int) -> bool:
        """Check whether inferences of a time can be stored, as far as the database answers."""
        month, now = _month(milliseconds_since_1970), datetime.now(UTC)
        if month >= (now.year, now.month):
            return True
        if time.monotonic() < max(self._known_until_s.get(month, 0.0), self._away_until_s):
            return True
        try:
            with self._snapshot() as connection:
                is_there = has_partitions(connection, month)
        except (NotReadyError, QueryTimeoutError):
            self._away_until_s = time.monotonic() + _AWAY_S
            return True
        if is_there:
            self._known_until_s[month] = time.monotonic() + _KNOWN_S
        return is_there


def _make_partitions(connection: sa.Connection, month: Month) -> None:
    """Make one partition of each table; attaching it keeps no reader waiting."""
    for table in PARTITIONED_TABLES:
        name = f"{table}_{month.suffix}"
        if execute(connection, "SELECT to_regclass(?)", (name,)).scalar() is None:
            execute(connection, f"CREATE TABLE {name} (LIKE {table} INCLUDING ALL)")
            values = f"FOR VALUES FROM ({month.start_id}) TO ({month.stop_id})"
            execute(connection, f"ALTER TABLE {table} ATTACH PARTITION {name} {values}")


def _missing_partitions(
    connection: sa.Connection, months: set[tuple[int, int]], of_ids: set[tuple[int, int]]
) -> set[tuple[int, int]]:
    """Return the months without partitions, with a warning of each; raise a MissingPartitionError if an id is of one."""
    missing = set()
    warned: set[tuple[int, int]] = connection.info.setdefault("missing_partitions", set())
    for month in sorted(months):
        if _are_there(connection, month):
            continue
        text = (
            f"the database has no partition of {_month_text(month)}, and the server's user may not make it: "
            "quadriga migrate --months, as the owner of the tables"
        )
        if month in of_ids:
            raise MissingPartitionError(text)
        if month not in warned:
            _log.warning(text)
        warned.add(month)
        missing.add(month)
    return missing


def _are_there(connection: sa.Connection, month: tuple[int, int]) -> bool:
    names = [f"{table}_{_bounds(*month).suffix}" for table in PARTITIONED_TABLES]
    return all(execute(connection, "SELECT to_regclass(?)", (name,)).scalar() for name in names)


def _month_text(year_and_month: tuple[int, int]) -> str:
    return "{:04d}-{:02d}".format(*year_and_month)


def _month(milliseconds_since_1970: int) -> tuple[int, int]:
    moment = datetime.fromtimestamp(milliseconds_since_1970 / 1000, UTC)
    return moment.year, moment.month


def _bounds(year: int, month: int) -> Month:
    start = datetime(year, month, 1, tzinfo=UTC)
    end = datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
    start_id, stop = (smallest_id_at(round(at.timestamp() * 1000)) for at in (start, end))
    return Month(f"y{year:04d}m{month:02d}", start_id, stop)

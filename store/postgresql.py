"""What PostgreSQL needs: COPY, partitions by id, which is the time, and statements bounded in time.

Several servers may write one database, each from a journal of its own.
"""

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from typing import Any

import sqlalchemy as sa

from store.errors import StoreError
from store.ids import first_at, milliseconds
from store.schema import PARTITIONED, Month

_SETTINGS = {
    "application_name": "quadriga",
    "client_encoding": "utf8",
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 2,
}
_EVERY = "-c timezone=UTC -c jit=off -c search_path=public"
_READING = (
    "-c default_transaction_read_only=on -c plan_cache_mode=force_generic_plan"
    " -c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off"
    " -c max_parallel_workers_per_gather=0"
)
"""A statement asked often is planned once, for any values: it goes along indexes, in loops."""

_RECYCLE_S = 300
"""A plan lasts no longer, should tables grow without being analyzed."""

_ARRAYS = {int: "bigint[]", float: "double precision[]", str: "text[]"}
_LASTING = "-c synchronous_commit=on"
"""The journal's segments are removed once they are committed, so a commit must outlive PostgreSQL."""

_SUFFIX = re.compile(r"inference_y(\d{4})m(\d{2})", re.ASCII)
_FORGET_TRUTH = (  # what is said of inferences or requests of which none will come any more
    "DELETE FROM truth AS t USING truth AS latest, ground_truth AS g"
    " WHERE g.seq >= %s AND g.seq < %s AND latest.id = g.truth_id"
    " AND latest.join_on IN ('id', 'request_id')"
    " AND t.join_on = latest.join_on AND t.value = latest.value AND t.id <= latest.id"
    " AND NOT EXISTS (SELECT 1 FROM ground_truth AS other"
    " WHERE other.truth_id = t.id AND (other.seq < %s OR other.seq >= %s))"
)
_AHEAD = timedelta(days=7)
"""Partitions are made so long before they are needed."""


def open_writer(url: sa.URL) -> sa.Engine:
    """Open the database for writing.

    Raises:
        StoreError: The driver is not installed.
    """
    return sa.create_engine(
        _with_driver(url),
        pool_size=1,
        max_overflow=0,
        connect_args={
            **_SETTINGS,
            "options": f"{_EVERY} {_LASTING} -c lock_timeout=5s",
            "prepare_threshold": None,  # plans depend on the values
        },
    )


class Source:
    """Where readers get their connections from."""

    def __init__(self, url: sa.URL, connections: int, timeout_s: float) -> None:
        options = f"{_EVERY} {_READING} -c statement_timeout={round(timeout_s * 1000)}"
        self.engine = sa.create_engine(
            _with_driver(url),
            pool_size=connections,
            max_overflow=0,
            pool_timeout=timeout_s,
            pool_recycle=_RECYCLE_S,
            isolation_level="REPEATABLE READ",  # the statements of one answer see one state
            connect_args={**_SETTINGS, "options": options},
        )

    @staticmethod
    def has_database() -> bool:
        """Tell that there is one: asking it shows whether that is true."""
        return True

    @staticmethod
    def prepare(connection: sa.Connection) -> None:
        """Do nothing: the server keeps the clock."""

    @staticmethod
    def is_timeout(error: sa.exc.DBAPIError) -> bool:
        """Tell whether a statement was ended by the clock."""
        return getattr(error.orig, "sqlstate", None) == "57014"


def lock(connection: sa.Connection) -> None:
    """Keep other servers from changing tables until the end of the transaction."""
    connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext('quadriga'))")


def check_in_place(connection: sa.Connection) -> None:
    """Do nothing: a connection to a database that is gone fails by itself."""


def make_durable(_: sa.Connection) -> None:
    """Do nothing: a commit is on the disk."""


def stored(connection: sa.Connection, seqs: list[int]) -> Iterable[int]:
    """Return those ids that have a row; as one array, for the driver reads each placeholder by itself."""
    return connection.exec_driver_sql(
        "SELECT seq FROM inference WHERE seq = ANY(%s) AND seq BETWEEN %s AND %s",
        (seqs, min(seqs), max(seqs)),  # the range tells the partitions
    ).scalars()


def insert(
    connection: sa.Connection, table: str, columns: Sequence[str], rows: list[tuple[Any, ...]]
) -> None:
    """Insert many rows by COPY; errors are SQLAlchemy's, as those of any statement."""
    driver: Any = connection.connection.driver_connection
    error_type = connection.dialect.loaded_dbapi.Error
    statement = f"COPY {table} ({', '.join(columns)}) FROM STDIN"
    try:
        with driver.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)
    except error_type as error:
        raise sa.exc.DBAPIError.instance(
            statement, None, error, error_type, dialect=connection.dialect
        ) from error


def delete(
    connection: sa.Connection, table: str, columns: Sequence[str], rows: list[tuple[Any, ...]]
) -> None:
    """Delete many rows by key, in one statement; the id is the last column."""
    arrays = ", ".join(f"%s::{_ARRAYS[type(value)]}" for value in rows[0])
    condition = " AND ".join(f"t.{column} = d.{column}" for column in columns)
    seqs = [row[-1] for row in rows]
    connection.exec_driver_sql(
        f"DELETE FROM {table} AS t USING unnest({arrays}) AS d ({', '.join(columns)})"
        f" WHERE {condition} AND t.seq BETWEEN %s AND %s",  # tells the partitions
        (*(list(column) for column in zip(*rows, strict=True)), min(seqs), max(seqs)),
    )


def take_turn(connection: sa.Connection, *, alone: bool) -> None:
    """Lock until the end of the transaction: alone, or together with those that are not alone."""
    shared = "" if alone else "_shared"
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock{shared}(hashtext('quadriga rows'))")


def make_room(connection: sa.Connection, seqs: Iterable[int]) -> None:
    """Make the partitions that ids fall into, and those of the days to come, and commit that."""
    made: set[tuple[int, int]] = connection.info.get("partitions", set())
    now = datetime.now(UTC)
    soon = now + _AHEAD
    needed = {_month(milliseconds(seq)) for seq in seqs} | {(soon.year, soon.month)}
    if needed <= made:
        return
    lock(connection)
    for year, month in sorted(needed - made):
        _make_partitions(connection, _bounds(year, month))
    connection.commit()
    lasting = {month for month in needed if month >= (now.year, now.month)}  # others are dropped
    connection.info["partitions"] = made | lasting


def months(connection: sa.Connection) -> list[Month]:
    """Return the partitions that the tables have, oldest first."""
    names = connection.exec_driver_sql(
        "SELECT c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid"
        " WHERE i.inhparent = 'inference'::regclass ORDER BY c.relname"
    )
    found = (_SUFFIX.fullmatch(name) for (name,) in names)
    return [_bounds(int(match[1]), int(match[2])) for match in found if match]


def drop_month(connection: sa.Connection, month: Month) -> bool:
    """Drop a partition of each table, and what hangs on its inferences in other tables.

    Returns:
        False where others read or write it for longer than they may be kept waiting.
    """
    window = (month.first, month.after)
    try:
        with connection.begin_nested():
            connection.exec_driver_sql("SET LOCAL lock_timeout = '500ms'")
            for table in PARTITIONED:
                connection.exec_driver_sql(f"DROP TABLE {table}_{month.suffix}")
            connection.exec_driver_sql(_FORGET_TRUTH, window * 2)
            for table in ("metadata_change", "feedback", "ground_truth"):
                connection.exec_driver_sql(
                    f"DELETE FROM {table} WHERE seq >= %s AND seq < %s", window
                )
            connection.exec_driver_sql("SET LOCAL lock_timeout = '5s'")
    except sa.exc.OperationalError as error:
        if getattr(error.orig, "sqlstate", None) != "55P03":  # lock_not_available
            raise
        return False
    return True


def _make_partitions(connection: sa.Connection, month: Month) -> None:
    """Make one partition of each table; attaching it keeps no reader waiting."""
    for table in PARTITIONED:
        name = f"{table}_{month.suffix}"
        found = connection.exec_driver_sql("SELECT to_regclass(%s)", (name,)).scalar()
        if found is None:
            connection.exec_driver_sql(f"CREATE TABLE {name} (LIKE {table} INCLUDING ALL)")
            connection.exec_driver_sql(
                f"ALTER TABLE {table} ATTACH PARTITION {name} "
                f"FOR VALUES FROM ({month.first}) TO ({month.after})"
            )


def _month(milliseconds_since_1970: int) -> tuple[int, int]:
    moment = datetime.fromtimestamp(milliseconds_since_1970 / 1000, UTC)
    return moment.year, moment.month


def _bounds(year: int, month: int) -> Month:
    start = datetime(year, month, 1, tzinfo=UTC)
    end = datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
    return Month(f"y{year:04d}m{month:02d}", _first(start), _first(end))


def _first(moment: datetime) -> int:
    return first_at(round(moment.timestamp() * 1000))


def _with_driver(url: sa.URL) -> sa.URL:
    if find_spec("psycopg") is None:
        raise StoreError(
            "expected psycopg for a postgresql URL, got none: pip install quadriga[postgres]"
        )
    return url.set(drivername="postgresql+psycopg")

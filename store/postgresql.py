"""What PostgreSQL needs: COPY, partitions by id, which is the time, and statements bounded in time.

Several servers may write one database, each from a journal of its own.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from typing import Any

import sqlalchemy as sa

from store.errors import StoreError
from store.ids import first_at, milliseconds
from store.schema import PARTITIONED

_SETTINGS = {
    "application_name": "quadriga",
    "client_encoding": "utf8",
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "prepare_threshold": None,  # plans depend on the values, and poolers between keep none
}
_EVERY = "-c timezone=UTC -c jit=off -c search_path=public"
_ARRAYS = {int: "bigint[]", float: "double precision[]", str: "text[]"}
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
        connect_args={**_SETTINGS, "options": f"{_EVERY} -c lock_timeout=5s"},
    )


class Source:
    """Where readers get their connections from."""

    def __init__(self, url: sa.URL, connections: int, timeout_s: float) -> None:
        options = f"{_EVERY} -c statement_timeout={round(timeout_s * 1000)}"
        self.engine = sa.create_engine(
            _with_driver(url),
            pool_size=connections,
            max_overflow=0,
            pool_timeout=timeout_s,
            isolation_level="REPEATABLE READ",  # the statements of one answer see one state
            connect_args={
                **_SETTINGS,
                "options": f"{options} -c default_transaction_read_only=on",
            },
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


def insert(
    connection: sa.Connection, table: str, columns: Sequence[str], rows: list[tuple[Any, ...]]
) -> None:
    """Insert many rows by COPY."""
    driver: Any = connection.connection.driver_connection
    with (
        driver.cursor() as cursor,
        cursor.copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN") as copy,
    ):
        for row in rows:
            copy.write_row(row)


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
    soon = datetime.now(UTC) + _AHEAD
    months = {_month(milliseconds(seq)) for seq in seqs} | {(soon.year, soon.month)}
    if months <= made:
        return
    lock(connection)
    for year, month in sorted(months - made):
        start = datetime(year, month, 1, tzinfo=UTC)
        end = datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
        _make_partitions(connection, f"y{year:04d}m{month:02d}", _first(start), _first(end))
    connection.commit()
    connection.info["partitions"] = made | months


def _make_partitions(connection: sa.Connection, suffix: str, first: int, after: int) -> None:
    """Make one partition of each table; attaching it keeps no reader waiting."""
    for table in PARTITIONED:
        name = f"{table}_{suffix}"
        found = connection.exec_driver_sql("SELECT to_regclass(%s)", (name,)).scalar()
        if found is None:
            connection.exec_driver_sql(f"CREATE TABLE {name} (LIKE {table} INCLUDING ALL)")
            connection.exec_driver_sql(
                f"ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ({first}) TO ({after})"
            )


def _month(milliseconds_since_1970: int) -> tuple[int, int]:
    moment = datetime.fromtimestamp(milliseconds_since_1970 / 1000, UTC)
    return moment.year, moment.month


def _first(moment: datetime) -> int:
    return first_at(round(moment.timestamp() * 1000))


def _with_driver(url: sa.URL) -> sa.URL:
    if find_spec("psycopg") is None:
        raise StoreError(
            "expected psycopg for a postgresql URL, got none: pip install quadriga[postgres]"
        )
    return url.set(drivername="postgresql+psycopg")

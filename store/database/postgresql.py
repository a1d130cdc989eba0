"""What PostgreSQL needs: settings, statements bounded in time, COPY; see also `quadriga.store.database.partitions`.

Several servers may write one database, each from a journal of its own.
"""

from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import sqlalchemy as sa

from quadriga.store.records.errors import StoreError

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

_RECYCLE_S = 300  # a plan lasts no longer, should tables grow without being analyzed
_CANCEL_S = 2.0
_ARRAYS = {int: "bigint[]", float: "double precision[]", str: "text[]"}
_LASTING = "-c synchronous_commit=on"
"""The journal's segments are removed once they are committed, so a commit must outlive PostgreSQL."""


def open_writer(url: sa.URL) -> sa.Engine:
    """Open the database for writing; a StoreError where the driver is not installed."""
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


class PostgresqlSource:
    """Source of the connections of readers."""

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
    def interrupt(connection: sa.Connection) -> None:
        """End the statement that a connection runs, from another thread."""
        driver: Any = connection.connection.driver_connection
        with suppress(Exception):  # a connection that is lost runs no statement
            driver.cancel_safe(timeout=_CANCEL_S)

    @staticmethod
    def is_timeout(error: sa.exc.DBAPIError) -> bool:
        """Tell whether a statement was ended by the clock."""
        return getattr(error.orig, "sqlstate", None) == "57014"


def stored_ids(connection: sa.Connection, seqs: list[int]) -> list[int]:
    """Return those ids that have a row; as one array, for the driver reads each placeholder by itself."""
    rows = connection.exec_driver_sql(
        "SELECT seq FROM inference WHERE seq = ANY(%s) AND seq BETWEEN %s AND %s",
        (seqs, min(seqs), max(seqs)),  # the range tells the partitions
    )
    return list(rows.scalars())


def copy_rows(
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


def delete_rows(
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


def _with_driver(url: sa.URL) -> sa.URL:
    if find_spec("psycopg") is None:
        raise StoreError("a postgresql URL needs psycopg: pip install 'quadriga[postgres]'")
    return url.set(drivername="postgresql+psycopg")

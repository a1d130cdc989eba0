"""Opening a database by its URL, SQLite or PostgreSQL, migrating its tables, and running SQL.

SQL is written once, with `?` for bound values; the differences between the two databases are in
`quadriga.store.database.sqlite`, `quadriga.store.database.postgresql` and `quadriga.store.query.sql.dialects`.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial
from types import ModuleType
from typing import Any

import sqlalchemy as sa

from quadriga.store.database import compatibility, postgresql, sqlite
from quadriga.store.database.compatibility import Revisions
from quadriga.store.database.postgresql import PostgresqlSource
from quadriga.store.database.schema import COLUMNS, key_columns
from quadriga.store.database.schema_check import check_schema
from quadriga.store.database.sqlite import SqliteSource
from quadriga.store.records.errors import (
    NotReadyError,
    OtherVersionError,
    QueryCancelledError,
    QueryTimeoutError,
    StoreError,
)
from quadriga.store.records.redaction import without_secrets

_BACKENDS: dict[str, ModuleType] = {"sqlite": sqlite, "postgresql": postgresql}
_SOURCES: dict[str, type[SqliteSource | PostgresqlSource]] = {
    "sqlite": SqliteSource,
    "postgresql": PostgresqlSource,
}
_AWAY = ("25006", "42501", "42P01")
"""SQLSTATEs of a database that takes no writes, as after a failover, and of a revoked privilege or dropped table."""

_CHANGED = "0A000"
"""SQLSTATE of a cached plan whose columns changed their types; a new connection plans anew."""

_TOO_LARGE = "54000"  # SQLSTATE of a value too large for an index; PostgreSQL calls it operational
REVISION = "2027.10"  # last migration, whose tables this code reads and writes
_LOCK_TIMEOUT = "55P03"  # SQLSTATE of a lock that others held for too long
_LOCK_WAIT_MS, _LOCK_PAUSE_S = 2000, 1.0
"""How long a migration waits for a lock, as those who come after it wait for that, too; and how long it then leaves them."""

_RECHECK_S = 5.0
"""How often a connection of readers looks whether the tables are still those of a version that it may read."""

_log = logging.getLogger(__name__)
_AT_ONCE = 1000  # values bound by one statement of `execute_in`


def open_writer(url: str) -> sa.Engine:
    """Open a database for writing; raise a StoreError if the URL is neither SQLite nor PostgreSQL."""
    parsed = _parsed(url)
    engine: sa.Engine = _BACKENDS[parsed.get_backend_name()].open_writer(parsed)
    return engine


@contextmanager
def writer_engine(url: str) -> Iterator[sa.Engine]:
    """Open a database for writing, as `open_writer`, and close it at the end."""
    engine = open_writer(url)
    try:
        yield engine
    finally:
        engine.dispose()


def execute(
    connection: sa.Connection, statement: str, values: Sequence[Any] = ()
) -> sa.CursorResult[*tuple[Any, ...]]:
    """Execute SQL with `?` for each bound value; a list of tuples executes it for each of them."""
    return connection.exec_driver_sql(_with_placeholders(connection, statement), values)


def fetch_all(
    connection: sa.Connection, statement: str, values: Sequence[Any] = ()
) -> list[tuple[Any, ...]]:
    """Return all rows of a statement, as `execute`, within a `ReaderPool.snapshot`.

    SQLAlchemy's result objects take as long as SQLite takes for a page, so this asks the driver directly.
    """
    statement = _with_placeholders(connection, statement)
    dialect: Any = connection.dialect
    driver: Any = connection.connection.driver_connection
    try:
        rows: list[tuple[Any, ...]] = driver.execute(statement, values).fetchall()
    except dialect.loaded_dbapi.Error as error:
        if dialect.is_disconnect(error, driver, None):
            # The statement fails as well, which makes SQLAlchemy drop its other connections.
            execute(connection, "SELECT 1")
        raise sa.exc.DBAPIError.instance(
            statement, None, error, dialect.loaded_dbapi.Error, dialect=dialect
        ) from error
    return rows


def _with_placeholders(connection: sa.Connection, statement: str) -> str:
    return statement if connection.dialect.name == "sqlite" else statement.replace("?", "%s")


def execute_in(
    connection: sa.Connection,
    statement: str,
    values: Collection[Any],
    leading_values: Sequence[Any] = (),
) -> list[Any]:
    """Execute SQL with `({})` in chunks of `values`, bound after `leading_values`; return all rows."""
    rows: list[Any] = []
    remaining = list(values)
    for start in range(0, len(remaining), _AT_ONCE):
        chunk = remaining[start : start + _AT_ONCE]
        text = statement.format(placeholders(chunk))
        result = execute(connection, text, (*leading_values, *chunk))
        if result.returns_rows:
            rows += result.fetchall()
    return rows


def stored_ids(connection: sa.Connection, seqs: Collection[int]) -> set[int]:
    """Return those of the ids that have a row."""
    if seqs and connection.dialect.name == "postgresql":
        return set(postgresql.stored_ids(connection, [*seqs]))
    rows = execute_in(connection, "SELECT seq FROM inference WHERE seq IN ({})", seqs)
    return {seq for (seq,) in rows}


def insert(connection: sa.Connection, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
    """Insert many rows, none of which exists yet."""
    columns = COLUMNS[table]
    ordered = sorted(rows)  # so that neighbours in the index are written together
    if ordered and connection.dialect.name == "postgresql":
        postgresql.copy_rows(connection, table, columns, ordered)
    elif ordered:
        statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({placeholders(columns)})"
        execute(connection, statement, ordered)


def upsert(connection: sa.Connection, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows, or update all but the key columns of existing ones."""
    if not rows:
        return
    columns, keys = COLUMNS[table], key_columns(table)
    column_list, key_list = ", ".join(columns), ", ".join(keys)
    assignments = ", ".join(f"{column} = excluded.{column}" for column in columns[len(keys) :])
    action = f"UPDATE SET {assignments}" if assignments else "NOTHING"
    statement = f"INSERT INTO {table} ({column_list}) VALUES ({placeholders(columns)})"
    execute(connection, f"{statement} ON CONFLICT ({key_list}) DO {action}", rows)


def delete(connection: sa.Connection, table: str, rows: Collection[tuple[Any, ...]]) -> None:
    """Delete rows by their key values, all of one type per column."""
    columns = key_columns(table)
    if rows and connection.dialect.name == "postgresql":
        postgresql.delete_rows(connection, table, columns, sorted(rows))
    elif rows:
        condition = " AND ".join(f"{column} = ?" for column in columns)
        execute(connection, f"DELETE FROM {table} WHERE {condition}", sorted(rows))


def lock_rows(connection: sa.Connection, *, exclusive: bool) -> None:
    """Wait for write transactions of other servers, at the beginning of a write transaction.

    Transactions that only add rows run side by side. One that changes or removes rows, or states what rows
    are joined to, runs exclusively: it sees everything added before it, and everything added later sees it.
    """
    if connection.dialect.name == "postgresql":  # SQLite allows one write transaction at a time
        shared = "" if exclusive else "_shared"
        execute(connection, f"SELECT pg_advisory_xact_lock{shared}(hashtext('quadriga rows'))")


def lock_tables(connection: sa.Connection) -> None:
    """Prevent other servers from changing tables until the end of the transaction."""
    if connection.dialect.name == "postgresql":
        execute(connection, "SELECT pg_advisory_xact_lock(hashtext('quadriga'))")


def lock_repeated(connection: sa.Connection) -> None:
    """Wait for transactions of other servers that add inferences of requests with idempotency keys; they see each other's."""
    if connection.dialect.name == "postgresql":
        execute(connection, "SELECT pg_advisory_xact_lock(hashtext('quadriga repeated'))")


def check_in_place(connection: sa.Connection) -> None:
    """Raise a NotReadyError if the file that a writer has open is no longer at its path: commits would be lost."""
    if connection.dialect.name == "sqlite":  # a lost connection to a server fails by itself
        sqlite.check_in_place(connection)


def make_durable(connection: sa.Connection) -> None:
    """Sync committed data to the disk if commits do not; raise an OSError if the disk fails."""
    if connection.dialect.name == "sqlite":
        sqlite.make_durable(connection)


def migrate(url: str) -> Revisions:
    """Migrate the tables, as `upgrade`; safe to repeat. Returns the revision that the database had before."""
    with writer_engine(url) as engine:
        return upgrade(engine)


def make_tables(url: str) -> None:
    """Make the tables of a new database; leave one that has tables as it is.

    Raises:
        StoreError: The tables are those of another version, whose servers may run.
    """
    with writer_engine(url) as engine:
        with engine.connect() as connection:
            revisions = compatibility.compare(connection, REVISION)
        if revisions.database is None:
            upgrade(engine)
        elif revisions.database != REVISION and not revisions.is_newer:
            raise StoreError(
                f"expected the database at revision {REVISION}, got {revisions.database} (quadriga migrate)"
            )


def upgrade(engine: sa.Engine) -> Revisions:
    """Migrate the tables of an open database, unless a newer version did; return the revision that it had before.

    Servers that write it wait meanwhile. What reads it is not kept waiting for longer than a moment: if others read a table
    for long, this tries again until they do not.

    Raises:
        StoreError: The tables are those of a version that this code does not know and may not use, or changed since.
    """
    is_waiting = False
    while True:
        try:
            return _upgrade(engine)
        except sa.exc.OperationalError as error:
            if _state(error) != _LOCK_TIMEOUT:
                raise
        if not is_waiting:
            _log.warning("the tables are changed once nobody reads or writes them for long")
        is_waiting = True
        time.sleep(_LOCK_PAUSE_S)


def _upgrade(engine: sa.Engine) -> Revisions:
    with engine.connect() as connection:
        if connection.dialect.name == "postgresql":
            execute(connection, f"SET LOCAL lock_timeout = '{_LOCK_WAIT_MS}ms'")
        lock_tables(connection)
        revisions = compatibility.compare(connection, REVISION)
        compatibility.check_not_too_old(revisions.database)
        if revisions.database != REVISION and not revisions.is_newer:
            lock_rows(connection, exclusive=True)  # see `check_revision`
            _migrate(connection)
        check_schema(connection, REVISION, may_have_more=revisions.is_newer)
        connection.commit()
        return revisions


def _migrate(connection: sa.Connection) -> None:
    from alembic import command  # noqa: PLC0415 - slow to load, rarely needed
    from alembic.util import CommandError  # noqa: PLC0415 - as above

    config = compatibility.migrations_config()
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise StoreError(f"this version cannot read the database: {error}") from error


def compare_revision(url: str) -> Revisions:
    """Compare the revision of a database with that of this version; nothing is changed or made.

    Raises:
        StoreError: The revision is one that this version does not know and may not run on, or of a version before 0.2.0.
    """
    path = sqlite.database_path(_parsed(url))
    if path is not None and not path.exists():
        return Revisions(None, REVISION)
    with writer_engine(url) as engine, engine.connect() as connection:
        revisions = compatibility.compare(connection, REVISION)
    compatibility.check_not_too_old(revisions.database)
    return revisions


def check_revision(connection: sa.Connection) -> None:
    """Check within a transaction that this code may use the tables, as another version may have changed them.

    A connection remembers the revision that was right: then this is one short statement. A writer calls it after
    `lock_rows`, which migrations wait for and keep others waiting by: until its transaction ends, nothing changes.

    Raises:
        OtherVersionError: It may not, or not yet.
    """
    right = connection.info.get("revision")
    if right is not None and compatibility.marked_revision(connection) == right:
        return
    try:
        revisions = compatibility.compare(connection, REVISION)
        if revisions.database != REVISION and not revisions.is_newer:
            raise OtherVersionError(
                f"expected the database at revision {REVISION}, got {revisions.database}"
            )
        check_schema(connection, REVISION, may_have_more=revisions.is_newer)
    except OtherVersionError:
        raise
    except StoreError as error:
        raise OtherVersionError(str(error)) from error
    connection.info["revision"] = revisions.database


@contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Begin a transaction that writes single rows, if this code may use the tables; see `check_revision`."""
    with engine.begin() as connection:
        lock_rows(connection, exclusive=False)
        check_revision(connection)
        yield connection


def clock_ms(connection: sa.Connection) -> int:
    """Return the time of the database's clock, in milliseconds since 1970; of SQLite's that is our own."""
    if connection.dialect.name == "sqlite":
        return time.time_ns() // 1_000_000
    statement = "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"
    return int(execute(connection, statement).scalar_one())


def journal_offsets(connection: sa.Connection, journal_id: str) -> dict[str, int]:
    """Return the committed offset of each segment of a journal."""
    statement = 'SELECT segment, "offset" FROM journal_offset WHERE segment >= ? AND segment < ?'
    # The slash is followed by 0 in ASCII.
    rows = execute(connection, statement, (f"{journal_id}/", f"{journal_id}0"))
    return {segment.partition("/")[2]: int(offset) for segment, offset in rows}


class Cancellation:
    """Ends the queries of a client that left, now or later; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._interrupts: list[Callable[[], object]] = []
        self.is_cancelled = False

    def cancel(self) -> None:
        """End the running queries, and refuse later ones; it may wait for the database."""
        with self._lock:  # so that no interrupted connection goes on to somebody else meanwhile
            self.is_cancelled = True
            for interrupt in self._interrupts:
                interrupt()

    @contextmanager
    def interrupting(self, interrupt: Callable[[], object]) -> Iterator[None]:
        """Call `interrupt` if the queries are cancelled before the end of this context.

        Raises:
            QueryCancelledError: They are cancelled already.
        """
        with self._lock:
            if self.is_cancelled:
                raise QueryCancelledError
            self._interrupts.append(interrupt)
        try:
            yield
        finally:
            with self._lock:
                self._interrupts.remove(interrupt)


class ReaderPool:
    """Pool of read-only connections with a timeout for each use; safe to use from several threads.

    If all `connections` are in use, threads wait for a free one for up to `timeout_s`.
    """

    def __init__(self, url: str, connections: int = 8, timeout_s: float = 5.0) -> None:
        parsed = _parsed(url)
        self._location = parsed.database
        self._timeout_s = timeout_s
        self._source = _SOURCES[parsed.get_backend_name()](parsed, connections, timeout_s)
        self._cancellation = Cancellation()  # of nobody

    def cancelled_by(self, cancellation: Cancellation) -> "ReaderPool":
        """Return a view of this pool, with the same connections, whose queries end when they are cancelled."""
        view = copy(self)
        view._cancellation = cancellation  # noqa: SLF001 - it is one of these
        return view

    def has_database(self) -> bool:
        """Check whether the database exists."""
        return bool(self._source.has_database())

    @contextmanager
    def snapshot(self) -> Iterator[sa.Connection]:
        """Yield a connection that sees one state of the database.

        Raises:
            NotReadyError: The database does not exist yet, or its tables are not of a version that this code may read.
            QueryTimeoutError: No connection was free in time, or the query took too long.
            QueryCancelledError: The cancellation of this view was called.
        """
        if not self.has_database():
            raise NotReadyError(
                "database not found: a server creates it, by default in its --data folder",
                detail=str(self._location),
            )
        try:
            with self._source.engine.connect() as connection:
                self._begin(connection)
                try:
                    with self._cancellation.interrupting(
                        partial(self._source.interrupt, connection)
                    ):
                        yield connection
                    connection.commit()  # a rollback would make the driver drop its prepared plans
                except sa.exc.DBAPIError:
                    connection.invalidate()
                    raise
                finally:
                    if self._cancellation.is_cancelled:  # it may be interrupted late
                        connection.invalidate()
        except sa.exc.TimeoutError as error:
            raise QueryTimeoutError(
                f"no database connection became free within {self._timeout_s:g} s"
            ) from error
        except sa.exc.DBAPIError as error:
            if not is_unavailable(error) and _state(error) != _CHANGED:
                raise
            raise self._translate(error) from error

    def _begin(self, connection: sa.Connection) -> None:
        """Begin a transaction, and check now and then that the tables may still be read."""
        self._source.prepare(connection)
        connection.begin()
        if time.monotonic() < connection.info.get("recheck_s", 0.0):
            return
        try:
            check_revision(connection)
        except UnicodeDecodeError as error:
            raise NotReadyError("cannot read the database: it is damaged") from error
        connection.info["recheck_s"] = time.monotonic() + _RECHECK_S

    def close(self) -> None:
        """Close all connections."""
        self._source.engine.dispose()

    def _translate(self, error: sa.exc.DBAPIError) -> StoreError:
        if self._source.is_timeout(error):
            if self._cancellation.is_cancelled:
                return QueryCancelledError()
            return QueryTimeoutError(
                f"the query took longer than {self._timeout_s:g} s; narrow it, "
                'for example by {"ts": {"ge": "-24h"}}'
            )
        return _unanswered(error)


@contextmanager
def translate_database_errors() -> Iterator[None]:
    """Translate errors of the database into a `NotReadyError`."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        raise _unanswered(error) from error


def _unanswered(error: sa.exc.DBAPIError) -> NotReadyError:
    """Return the error of a database that does not answer; the driver's text names its host or file."""
    return NotReadyError("the database does not answer", detail=str(error.orig))


def placeholders(values: Collection[Any]) -> str:
    """Return a comma-separated `?` for each value."""
    return ", ".join("?" * len(values))


def is_unavailable(error: Exception) -> bool:
    """Check whether an error is a failure of the database, not of a statement or its values.

    A damaged file raises SQLite's plain DatabaseError; wrong statements and values raise its subclasses.
    PostgreSQL is more precise by its SQLSTATE.
    """
    state = _state(error)
    if state in (*_AWAY, _TOO_LARGE):
        return state != _TOO_LARGE
    unavailable = sa.exc.OperationalError | sa.exc.InterfaceError
    return isinstance(error, unavailable) or type(error) is sa.exc.DatabaseError


def _state(error: Exception) -> str | None:
    return getattr(getattr(error, "orig", None), "sqlstate", None)


def _parsed(url: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):  # their texts have parts of the URL
        shown = repr(without_secrets(url)) if "://" in url else "a text without ://"
        raise StoreError(f"expected a sqlite or postgresql URL, got {shown}") from None
    allowed = ("sqlite", "sqlite+pysqlite", "postgresql", "postgresql+psycopg")
    if parsed.drivername not in allowed:
        raise StoreError(f"expected a sqlite or postgresql URL, got one of {parsed.drivername!r}")
    if parsed.host is not None and "@" in parsed.host:  # errors about the host would show the rest
        raise StoreError("expected @ in the password of the database URL to be written %40")
    return parsed

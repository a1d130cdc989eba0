"""Opens the database that a URL names, and brings its tables up to date: SQLite or PostgreSQL.

SQL is written once, with `?` for bound values; what the two say differently stands in `quadriga.store.sqlite`,
`quadriga.store.postgresql` and `quadriga.store.query.dialects`.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import sqlalchemy as sa

from quadriga.store import postgresql, sqlite
from quadriga.store.errors import NotReadyError, QueryTimeoutError, StoreError
from quadriga.store.postgresql import PostgresqlSource
from quadriga.store.schema import COLUMNS, key_columns
from quadriga.store.sqlite import SqliteSource

_BACKENDS: dict[str, ModuleType] = {"sqlite": sqlite, "postgresql": postgresql}
_SOURCES: dict[str, type[SqliteSource | PostgresqlSource]] = {
    "sqlite": SqliteSource,
    "postgresql": PostgresqlSource,
}
_AWAY = ("25006", "42501", "42P01")
"""A database that takes no writes, as after a failover; a privilege or a table that was taken away."""

_CHANGED = "0A000"
"""What a plan was kept for has columns of other types now; a new connection plans anew."""

_TOO_LARGE = "54000"  # a value that no index takes, though PostgreSQL calls it an operational error
REVISION = "2026.11"  # of the tables that this code reads and writes: the last migration's
_AT_ONCE = 1000  # values bound by one statement of `run_in`


def open_writer(url: str) -> sa.Engine:
    """Open a database to write it; a StoreError where the URL is none of SQLite or PostgreSQL."""
    parsed = _parsed(url)
    engine: sa.Engine = _BACKENDS[parsed.get_backend_name()].open_writer(parsed)
    return engine


@contextmanager
def writer_engine(url: str) -> Iterator[sa.Engine]:
    """Open a database to write it, as `open_writer`, and close it in the end."""
    engine = open_writer(url)
    try:
        yield engine
    finally:
        engine.dispose()


def execute(
    connection: sa.Connection, text: str, values: Sequence[Any] = ()
) -> sa.CursorResult[*tuple[Any, ...]]:
    """Execute SQL with `?` for each bound value; a list of tuples executes it for each of them."""
    return connection.exec_driver_sql(_with_placeholders(connection, text), values)


def fetch_all(
    connection: sa.Connection, text: str, values: Sequence[Any] = ()
) -> list[tuple[Any, ...]]:
    """Return all rows of SQL, as `run`, within a `Readers.snapshot`.

    What SQLAlchemy does for a result takes as long as SQLite takes for a page; here the driver is asked.
    """
    text = _with_placeholders(connection, text)
    dialect: Any = connection.dialect
    driver: Any = connection.connection.driver_connection
    try:
        rows: list[tuple[Any, ...]] = driver.execute(text, values).fetchall()
    except dialect.loaded_dbapi.Error as error:
        if dialect.is_disconnect(error, driver, None):
            execute(
                connection, "SELECT 1"
            )  # fails, and SQLAlchemy forgets its other connections too
        raise sa.exc.DBAPIError.instance(
            text, None, error, dialect.loaded_dbapi.Error, dialect=dialect
        ) from error
    return rows


def _with_placeholders(connection: sa.Connection, text: str) -> str:
    return text if connection.dialect.name == "sqlite" else text.replace("?", "%s")


def execute_in(
    connection: sa.Connection, text: str, values: Collection[Any], before: Sequence[Any] = ()
) -> list[Any]:
    """Execute SQL with `({})` for many values, some at a time, behind those of `before`; return all rows."""
    rows: list[Any] = []
    remaining = list(values)
    for start in range(0, len(remaining), _AT_ONCE):
        some = remaining[start : start + _AT_ONCE]
        found = execute(connection, text.format(placeholders(some)), (*before, *some))
        if found.returns_rows:
            rows += found
    return rows


def stored_ids(connection: sa.Connection, seqs: Collection[int]) -> set[int]:
    """Return those ids that have a row already."""
    if seqs and connection.dialect.name == "postgresql":
        return set(postgresql.stored_ids(connection, [*seqs]))
    found = execute_in(connection, "SELECT seq FROM inference WHERE seq IN ({})", seqs)
    return {seq for (seq,) in found}


def insert(connection: sa.Connection, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
    """Insert many rows, none of which is there yet."""
    columns = COLUMNS[table]
    ordered = sorted(rows)  # neighbours in the index together
    if ordered and connection.dialect.name == "postgresql":
        postgresql.copy_rows(connection, table, columns, ordered)
    elif ordered:
        text = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({placeholders(columns)})"
        execute(connection, text, ordered)


def upsert(connection: sa.Connection, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows, or set all but the key of those that are there."""
    if not rows:
        return
    columns, keys = COLUMNS[table], key_columns(table)
    given, key = ", ".join(columns), ", ".join(keys)
    new = ", ".join(f"{column} = excluded.{column}" for column in columns[len(keys) :])
    then = f"UPDATE SET {new}" if new else "NOTHING"
    text = f"INSERT INTO {table} ({given}) VALUES ({placeholders(columns)})"
    execute(connection, f"{text} ON CONFLICT ({key}) DO {then}", rows)


def delete(connection: sa.Connection, table: str, rows: Collection[tuple[Any, ...]]) -> None:
    """Delete the rows that have these values, the key of the table; each value is one type's."""
    columns = key_columns(table)
    if rows and connection.dialect.name == "postgresql":
        postgresql.delete_rows(connection, table, columns, sorted(rows))
    elif rows:
        condition = " AND ".join(f"{column} = ?" for column in columns)
        execute(connection, f"DELETE FROM {table} WHERE {condition}", sorted(rows))


def lock_rows(connection: sa.Connection, *, exclusive: bool) -> None:
    """Wait, at the beginning of a transaction that writes, for other servers' that write.

    Those that only add rows run side by side. One that changes or removes rows, or states what rows are
    joined to, runs alone: it sees all that was added before it, and is seen by all that is added after.
    """
    if connection.dialect.name == "postgresql":  # of SQLite, one transaction writes at a time
        shared = "" if exclusive else "_shared"
        execute(connection, f"SELECT pg_advisory_xact_lock{shared}(hashtext('quadriga rows'))")


def lock_tables(connection: sa.Connection) -> None:
    """Keep other servers from changing tables until the end of the transaction."""
    if connection.dialect.name == "postgresql":
        execute(connection, "SELECT pg_advisory_xact_lock(hashtext('quadriga'))")


def check_in_place(connection: sa.Connection) -> None:
    """See that what a writer has open still stands at its URL; a NotReadyError if commits are lost."""
    if connection.dialect.name == "sqlite":  # a connection to a server that is gone fails by itself
        sqlite.check_in_place(connection)


def make_durable(connection: sa.Connection) -> None:
    """Bring what is committed to the disk, where commits alone do not; an OSError where the disk fails."""
    if connection.dialect.name == "sqlite":
        sqlite.make_durable(connection)


def migrate(url: str) -> tuple[str | None, str | None]:
    """Bring the tables up to date, as `upgrade`; safe to repeat."""
    with writer_engine(url) as engine:
        return upgrade(engine)


def upgrade(engine: sa.Engine) -> tuple[str | None, str | None]:
    """Bring the tables of an opened database up to date; returns its revisions before and after.

    Raises:
        StoreError: A newer or another version of this code made them.
    """
    with engine.connect() as connection:
        lock_tables(connection)
        before = _revision(connection)
        if before != REVISION:
            _migrate(connection)
        after = _revision(connection)
        connection.commit()
        return before, after


def _migrate(connection: sa.Connection) -> None:
    from alembic import command  # noqa: PLC0415 - slow to load, and seldom needed
    from alembic.config import Config  # noqa: PLC0415 - as above
    from alembic.util import CommandError  # noqa: PLC0415 - as above

    config = Config()
    migrations = Path(__file__).with_name("migrations")
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise StoreError(f"expected a database that this version can read, got: {error}") from error


def journal_offsets(connection: sa.Connection, journal_id: str) -> dict[str, int]:
    """Return how far each segment of a journal is moved."""
    text = 'SELECT segment, "offset" FROM journal_offset WHERE segment >= ? AND segment < ?'
    rows = execute(
        connection, text, (f"{journal_id}/", f"{journal_id}0")
    )  # 0 comes after the slash
    return {segment.partition("/")[2]: int(offset) for segment, offset in rows}


class ReaderPool:
    """Connections that only read, each use bounded in time; safe to use from several threads.

    Beyond `connections`, threads wait for one for as long as a query may take.
    """

    def __init__(self, url: str, connections: int = 8, timeout_s: float = 5.0) -> None:
        parsed = _parsed(url)
        self._named = parsed.database
        self._timeout_s = timeout_s
        self._source = _SOURCES[parsed.get_backend_name()](parsed, connections, timeout_s)

    def has_database(self) -> bool:
        """Tell whether there is a database at all."""
        return bool(self._source.has_database())

    @contextmanager
    def snapshot(self) -> Iterator[sa.Connection]:
        """Give a connection that sees one state of the database.

        Raises:
            NotReadyError: The database is not there yet, or its tables are older than this code.
            QueryTimeoutError: The time was up.
        """
        if not self.has_database():
            raise NotReadyError(
                f"expected the database to be there, got none yet in {self._named}: a server makes it, by "
                "default in its --data"
            )
        try:
            with self._source.engine.connect() as connection:
                self._source.prepare(connection)
                connection.begin()
                if not connection.info.get("is_current"):
                    found = _revision(connection)
                    if found != REVISION:
                        text = f"expected the database at revision {REVISION}, got {found}"
                        raise NotReadyError(text)
                    connection.info["is_current"] = True
                try:
                    yield connection
                    connection.commit()  # a rollback makes the driver forget its plans
                except sa.exc.DBAPIError:
                    connection.invalidate()
                    raise
        except sa.exc.TimeoutError as error:
            raise QueryTimeoutError(
                f"expected a free connection within {self._timeout_s:g} s, got none"
            ) from error
        except sa.exc.DBAPIError as error:
            if not is_unavailable(error) and _state(error) != _CHANGED:
                raise
            raise self._translated(error) from error

    def close(self) -> None:
        """Close all connections."""
        self._source.engine.dispose()

    def _translated(self, error: sa.exc.DBAPIError) -> StoreError:
        if self._source.is_timeout(error):
            return QueryTimeoutError(
                f"expected the query to end within {self._timeout_s:g} s, got no end; narrow it, "
                'for example by {"ts": {"ge": "-24h"}}'
            )
        return NotReadyError(f"expected the database to answer, got: {error.orig}")


@contextmanager
def translate_database_errors() -> Iterator[None]:
    """Do what needs an answer of the database; a `NotReadyError` where there is none."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        raise NotReadyError(f"expected the database to answer, got: {error.orig}") from error


def placeholders(values: Collection[Any]) -> str:
    """Return a `?` for each value."""
    return ", ".join("?" * len(values))


def is_unavailable(error: Exception) -> bool:
    """Tell whether the database itself fails, and not what it was given.

    A damaged file is SQLite's plain DatabaseError; wrong statements and values are its subclasses.
    PostgreSQL says more by its SQLSTATE.
    """
    state = _state(error)
    if state in (*_AWAY, _TOO_LARGE):
        return state != _TOO_LARGE
    away = sa.exc.OperationalError | sa.exc.InterfaceError
    return isinstance(error, away) or type(error) is sa.exc.DatabaseError


def _state(error: Exception) -> str | None:
    return getattr(getattr(error, "orig", None), "sqlstate", None)


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = execute(connection, "SELECT version_num FROM alembic_version").scalar()
    return found


def _parsed(url: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError as error:
        raise StoreError(f"expected a sqlite or postgresql URL, got {url!r}") from error
    known = ("sqlite", "sqlite+pysqlite", "postgresql", "postgresql+psycopg")
    if parsed.drivername not in known:
        raise StoreError(f"expected a sqlite or postgresql URL, got one of {parsed.drivername!r}")
    return parsed

"""Opens the database that a URL names, and brings its tables up to date.

Everything here is SQLite so far; what another database needs differently is this file and the leaves of
`store.query.sql`.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import event

from store.errors import NotReadyError, QueryTimeoutError, StoreError

_WRITER_SETTINGS = (
    "journal_mode=WAL",  # readers never wait for the writer
    "synchronous=NORMAL",  # the journal, not the database, is what was acknowledged
    "foreign_keys=ON",
    "busy_timeout=5000",
    "journal_size_limit=67108864",
    "wal_autocheckpoint=4000",
    "cache_size=-65536",
)
_READER_SETTINGS = ("query_only=ON", "busy_timeout=5000", "mmap_size=1073741824")
_STEPS_BETWEEN_LOOKS_AT_THE_CLOCK = 20_000
_BESIDE = ("-wal", "-shm")
"""What SQLite keeps beside a database that is open."""

_Identity = tuple[int, int] | None
_Files = tuple[_Identity, _Identity]
"""Of a database and of its log."""


def open_writer(url: str) -> sa.Engine:
    """Open a database for the one process that writes it; makes folder and file where missing.

    Raises:
        StoreError: The URL is not one of SQLite.
    """
    path = _path(url)
    path.parent.mkdir(parents=True, exist_ok=True)
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=str(path)),
        poolclass=sa.pool.QueuePool,
        pool_size=1,
        max_overflow=0,
    )

    def note_file(_: object, entry: Any, *__: object) -> None:
        if not path.exists():
            _remove_beside(path)  # SQLite would take what another database left for this one's
            path.touch()
        # Noted before it is opened: whatever happens in between is seen as a replacement.
        entry.info.update(path=path, file=_identity(path))

    def note_beside(connection: Any, entry: Any) -> None:
        _configure(connection, _WRITER_SETTINGS)
        connection.execute("SELECT 1 FROM sqlite_schema").close()  # opens the files beside it
        entry.info["beside"] = {suffix: _identity(_beside(path, suffix)) for suffix in _BESIDE}

    event.listen(engine, "do_connect", note_file)
    event.listen(engine, "connect", note_beside)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    return engine


def check_in_place(connection: sa.Connection) -> None:
    """See that the file that a writer has open is still the one at its path.

    What the old file left beside the path is removed, or SQLite would mix it into the new one.

    Raises:
        NotReadyError: It was removed or replaced; what is committed to it now is lost.
    """
    info = connection.info
    if _identity(info["path"]) != info["file"]:
        for suffix, noted in info["beside"].items():
            if noted == _identity(_beside(info["path"], suffix)):
                _remove_beside(info["path"], suffix)
        raise NotReadyError(
            f"expected {info['path']} to be the database that was opened, got another or none"
        )


def migrate(url: str) -> None:
    """Bring the tables up to date; safe to repeat."""
    engine = open_writer(url)
    try:
        upgrade(engine)
    finally:
        engine.dispose()


def upgrade(engine: sa.Engine) -> None:
    """Bring the tables of an opened database up to date."""
    config = _alembic()
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


class Readers:
    """Connections that only read, each statement bounded in time; safe to use from several threads.

    A database that is replaced is opened anew.

    Args:
        url: As `open_writer`.
        connections: How many threads may read at once; others wait for as long as a query may take.
        timeout_s: What one use of a connection may take.
    """

    def __init__(self, url: str, connections: int = 8, timeout_s: float = 5.0) -> None:
        self._path = _path(url)
        self._timeout_s = timeout_s
        self._files: _Files | None = None
        self._engine = sa.create_engine(
            sa.URL.create(
                "sqlite",
                database=f"file:{self._path.as_posix()}",
                query={"mode": "ro", "uri": "true"},
            ),
            poolclass=sa.pool.QueuePool,
            pool_size=connections,
            max_overflow=0,
            pool_timeout=timeout_s,
        )
        event.listen(self._engine, "do_connect", self._note_files)
        event.listen(self._engine, "connect", _prepare_reader)
        event.listen(self._engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))

    def has_database(self) -> bool:
        """Tell whether there is a database at all."""
        return self._path.exists()

    @contextmanager
    def snapshot(self) -> Iterator[sa.Connection]:
        """Give a connection that sees one state of the database.

        Raises:
            NotReadyError: The database is not there yet, or its tables are older than this code.
            QueryTimeoutError: The time was up.
        """
        if not self.has_database():
            raise NotReadyError("expected the database to be there, got none yet")
        try:
            with self._engine.connect() as connection:
                self._check_files(connection)
                connection.info["deadline"][0] = time.monotonic() + self._timeout_s
                if not connection.info.get("is_current"):
                    _check_revision(connection)
                yield connection
        except sa.exc.TimeoutError as error:
            raise QueryTimeoutError(
                f"expected a free connection within {self._timeout_s:g} s, got none"
            ) from error
        except sa.exc.DatabaseError as error:
            if not is_away(error):
                raise
            raise _translated(error, self._timeout_s) from error

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def _note_files(self, _: object, entry: Any, *__: object) -> None:
        entry.info["files"] = _files(self._path)  # before they are opened, as the writer does

    def _check_files(self, connection: sa.Connection) -> None:
        files, known = _files(self._path), self._files
        if known and files[0] != known[0] and files[1] and files[1] == known[1]:
            raise NotReadyError(
                "expected the writer to open the new database first, got the old log"
            )
        self._files = files
        if connection.info["files"] != files:
            connection.invalidate()  # its next use opens what is there now


def _check_revision(connection: sa.Connection) -> None:
    head = ScriptDirectory.from_config(_alembic()).get_current_head()
    found = MigrationContext.configure(connection).get_current_revision()
    if found != head:
        raise NotReadyError(f"expected the database at revision {head}, got {found}")
    connection.info["is_current"] = True


def is_away(error: Exception) -> bool:
    """Tell whether the database itself fails, and not what it was given.

    A damaged file is SQLite's plain DatabaseError; wrong statements and values are its subclasses.
    """
    return isinstance(error, sa.exc.OperationalError) or type(error) is sa.exc.DatabaseError


def _translated(error: sa.exc.DatabaseError, timeout_s: float) -> StoreError:
    text = str(error.orig)
    if text == "interrupted":
        return QueryTimeoutError(
            f"expected the query to end within {timeout_s:g} s, got no end; narrow it, "
            'for example by {"ts": {"ge": "-24h"}}'
        )
    return NotReadyError(f"expected the database to answer, got: {text}")


def _prepare_reader(connection: Any, entry: Any) -> None:
    _configure(connection, _READER_SETTINGS)
    deadline = entry.info["deadline"] = [0.0]
    connection.set_progress_handler(
        lambda: time.monotonic() > deadline[0], _STEPS_BETWEEN_LOOKS_AT_THE_CLOCK
    )


def _configure(connection: Any, settings: tuple[str, ...]) -> None:
    connection.isolation_level = None  # transactions begin where we say so, around DDL too
    cursor = connection.cursor()
    for setting in settings:
        cursor.execute(f"PRAGMA {setting}")
    cursor.close()


def _identity(path: Path) -> _Identity:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _files(path: Path) -> _Files:
    return _identity(path), _identity(_beside(path, "-wal"))


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _remove_beside(path: Path, *suffixes: str) -> None:
    for suffix in suffixes or _BESIDE:
        _beside(path, suffix).unlink(missing_ok=True)


def _path(url: str) -> Path:
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError as error:
        raise StoreError(f"expected a sqlite URL, got {url!r}") from error
    if parsed.drivername not in {"sqlite", "sqlite+pysqlite"}:
        raise StoreError(f"expected a sqlite URL, got one of {parsed.drivername!r}")
    if not parsed.database or parsed.database == ":memory:":
        raise StoreError("expected a sqlite URL with a file, as sqlite:////data/store.db, got none")
    return Path(parsed.database)


def _alembic() -> Config:
    config = Config()
    migrations = Path(__file__).with_name("migrations")
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    return config

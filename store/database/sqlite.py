"""What SQLite needs: one file that may be removed or replaced under us, and its settings."""

import math
import os
import time
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import event

from quadriga.store.records.disk import sync_path
from quadriga.store.records.errors import NotReadyError, StoreError

_WRITER_SETTINGS = (
    "journal_mode=WAL",  # readers never wait for the writer
    "synchronous=NORMAL",  # the journal, not the database, is what was acknowledged
    "busy_timeout=5000",
    "journal_size_limit=67108864",
    "wal_autocheckpoint=4000",
    "cache_size=-65536",
    "secure_delete=ON",  # what is deleted is overwritten
)
_READER_SETTINGS = ("query_only=ON", "busy_timeout=5000", "mmap_size=2147418112")

_STEPS_BETWEEN_LOOKS_AT_THE_CLOCK = 20_000
_FLOAT32 = Struct("<f")
_POOL: Any = {"poolclass": sa.pool.QueuePool, "max_overflow": 0}
_BESIDE = ("-wal", "-shm")  # what SQLite keeps beside a database that is open
_Identity = tuple[int, int] | None
_Files = tuple[_Identity, _Identity]  # of a database and of its log


def open_writer(url: sa.URL) -> sa.Engine:
    """Open the file for the one process that writes it; makes folder and file where missing."""
    path = _path(url)
    path.parent.mkdir(parents=True, exist_ok=True)
    engine = sa.create_engine(sa.URL.create("sqlite", database=str(path)), pool_size=1, **_POOL)

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
    """See that the file that a writer has open is still the one at its path, as `database.check_in_place`.

    What the old file left beside the path is removed, or SQLite would mix it into the new one.
    """
    info = connection.info
    if _identity(info["path"]) != info["file"]:
        for suffix, noted in info["beside"].items():
            if noted == _identity(_beside(info["path"], suffix)):
                _remove_beside(info["path"], suffix)
        raise NotReadyError(
            f"expected {info['path']} to be the database that was opened, got another or none"
        )


def make_durable(connection: sa.Connection) -> None:
    """Bring the log, which `synchronous=NORMAL` leaves to the system, to the disk.

    SQLite does so with the file itself, before it writes the log anew. We must not: to close a file lets go
    of all locks of this process on it, and another program that looks into the database would then take
    itself for the last one, and remove the log under us.
    """
    path: Path = connection.info["path"]
    with suppress(FileNotFoundError):  # a log is there only until it is moved into the file
        sync_path(_beside(path, "-wal"))
    sync_path(path.parent)


class SqliteSource:
    """Source of the connections of readers."""

    def __init__(self, url: sa.URL, connections: int, timeout_s: float) -> None:
        self._path = _path(url)
        self._paths = str(self._path), str(_beside(self._path, "-wal"))
        self._timeout_s = timeout_s
        self._known: _Files | None = None
        file = f"file:{quote(self._path.as_posix())}"
        url = sa.URL.create("sqlite", database=file, query={"mode": "ro", "uri": "true"})
        self.engine = sa.create_engine(url, pool_size=connections, pool_timeout=timeout_s, **_POOL)
        event.listen(self.engine, "do_connect", self._note_files)
        event.listen(self.engine, "connect", _prepare_reader)
        event.listen(self.engine, "begin", _begin)

    def has_database(self) -> bool:
        """Tell whether the database exists; see `ReaderPool.has_database`."""
        return os.path.exists(self._paths[0])  # noqa: PTH110 - in a third of the time, for each query

    def prepare(self, connection: sa.Connection) -> None:
        """See that a connection reads the file that is there now, and start its clock."""
        files, known_files = self._files(), self._known
        if known_files and files[0] != known_files[0] and files[1] and files[1] == known_files[1]:
            raise NotReadyError(
                "expected the writer to open the new database first, got the old log"
            )
        self._known = files
        if connection.info["files"] != files:
            connection.invalidate()  # its next use opens what is there now
        connection.info["deadline"][0] = time.monotonic() + self._timeout_s

    @staticmethod
    def interrupt(connection: sa.Connection) -> None:
        """End the statement that a connection runs, from another thread."""
        connection.info["deadline"][0] = 0.0  # `prepare` sets it again

    @staticmethod
    def is_timeout(error: sa.exc.DBAPIError) -> bool:
        """Tell whether a statement was ended by the clock."""
        return str(error.orig) == "interrupted"

    def _note_files(self, _: object, entry: Any, *__: object) -> None:
        entry.info["files"] = self._files()  # before they are opened, as the writer does

    def _files(self) -> _Files:
        return _identity(self._paths[0]), _identity(self._paths[1])


def _begin(connection: sa.Connection) -> None:
    driver: Any = connection.connection.driver_connection
    driver.execute("BEGIN")


def _prepare_reader(connection: Any, entry: Any) -> None:
    _configure(connection, _READER_SETTINGS)
    if ("ENABLE_MATH_FUNCTIONS",) not in connection.execute("PRAGMA compile_options").fetchall():
        for function in (math.sin, math.cos, math.radians):
            connection.create_function(function.__name__, 1, function, deterministic=True)
    connection.create_function("float32_at", 2, _float32_at, deterministic=True)
    deadline = entry.info["deadline"] = [0.0]
    connection.set_progress_handler(
        lambda: time.monotonic() > deadline[0], _STEPS_BETWEEN_LOOKS_AT_THE_CLOCK
    )


def _float32_at(data: bytes | None, offset: int) -> float | None:
    """Return the little-endian float32 at an offset; None beyond the end, and where it is no number."""
    if data is None or len(data) < offset + _FLOAT32.size:
        return None
    (number,) = _FLOAT32.unpack_from(data, offset)
    return float(number)


def _configure(connection: Any, settings: tuple[str, ...]) -> None:
    connection.isolation_level = None  # transactions begin where we say so, around DDL too
    cursor = connection.cursor()
    for setting in settings:
        cursor.execute(f"PRAGMA {setting}")
    cursor.close()


def _identity(path: Path | str) -> _Identity:
    try:
        status = os.stat(path)  # noqa: PTH116 - as text where each query asks
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _remove_beside(path: Path, *suffixes: str) -> None:
    for suffix in suffixes or _BESIDE:
        _beside(path, suffix).unlink(missing_ok=True)


def database_path(url: str | sa.URL) -> Path | None:
    """Return the file of a SQLite database; None for a database on a server, and for one without a file."""
    parsed = sa.make_url(url)
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        return None
    return Path(parsed.database)


def sqlite_url(path: Path) -> str:
    """Return the URL of a SQLite database in a file, whatever characters its path has."""
    return f"sqlite:///{quote(str(path.absolute()), safe='/ ')}"


def _path(url: sa.URL) -> Path:
    if not url.database or url.database == ":memory:":
        raise StoreError("a sqlite URL needs a file, as in sqlite:////data/store.db")
    return Path(url.database)

"""What a database keeps of deleted rows: the log of SQLite, the dead rows of PostgreSQL, and the free space of pages."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from quadriga.store.database.database import writer_engine
from quadriga.store.database.partitions import may_change_tables
from quadriga.store.database.schema import COLUMNS
from quadriga.store.database.sqlite import database_path
from quadriga.store.records.errors import StoreError

_TABLES = (
    "inference", "meta_num", "meta_str", "pred", "signal", "rollup", "rollup_sum", "metadata_change",
    "truth", "ground_truth", "other_truth", "repeated_id", "feedback",
)  # fmt: skip


def truncate_log(connection: sa.Connection, busy_ms: int) -> bool:
    """Move SQLite's log into the file and empty it; return whether a reader kept that from being done for so long."""
    driver: Any = connection.connection.driver_connection  # without a transaction
    (before,) = driver.execute("PRAGMA busy_timeout").fetchone()
    driver.execute(f"PRAGMA busy_timeout={busy_ms}")
    try:
        (is_busy, *_) = driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        driver.execute(f"PRAGMA busy_timeout={before}")
    return bool(is_busy)


def vacuum_postgresql(engine: sa.Engine) -> str:
    """Have PostgreSQL clear deleted rows; return why it could not, empty if it could."""
    try:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            if not may_change_tables(connection):  # VACUUM would skip them with a warning
                return (
                    "deleted rows in the files of PostgreSQL, until VACUUM is run by the owner of the tables, who is "
                    "another user, or by PostgreSQL itself later"
                )
            for table in _TABLES:
                if table in COLUMNS:
                    connection.exec_driver_sql(f"VACUUM {table}")
    except sa.exc.DBAPIError as error:
        return (
            "deleted rows in the files of PostgreSQL, until it runs VACUUM itself later: that of the server failed with "
            f"{type(error.orig).__name__}"
        )
    return ""


def vacuum(url: str) -> int:
    """Write a database anew, without what its pages keep of deleted and moved rows; return the bytes that its file lost.

    SQLite needs twice the size of its file on the disk; a server that runs moves nothing into it meanwhile. PostgreSQL clears
    deleted rows beside those who read and write, and gives back no space.

    Raises:
        StoreError: There is no database, the disk has no room, or it is in use.
    """
    path = database_path(url)
    if path is None:
        with writer_engine(url) as engine:
            if failure := vacuum_postgresql(engine):
                raise StoreError(f"VACUUM failed: {failure}")
        return 0
    if not path.is_file():
        raise StoreError(f"expected a database in {path}, found none")
    before = path.stat().st_size
    _check_room(path, 2 * before)
    os.environ["SQLITE_TMPDIR"] = str(path.absolute().parent)  # where there is room
    try:
        with closing(sqlite3.connect(path, timeout=60.0, isolation_level=None)) as connection:
            connection.execute("VACUUM")
            (is_busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error as error:
        raise StoreError(f"VACUUM failed: {error}; stop the server, or repeat it") from error
    if is_busy:
        raise StoreError(
            "VACUUM is done, but its log cannot be emptied while it is read: repeat it"
        )
    return before - path.stat().st_size


def _check_room(path: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(path.absolute().parent).free
    if free_bytes < needed_bytes:
        raise StoreError(
            f"expected {needed_bytes:,} bytes free on the disk of {path}, twice the size of the database, got {free_bytes:,}"
        )

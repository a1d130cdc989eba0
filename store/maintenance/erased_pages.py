"""What a database keeps of deleted rows: pages and log of SQLite, dead rows of PostgreSQL."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from quadriga.store.database.database import check_in_place
from quadriga.store.database.partitions import may_change_tables
from quadriga.store.database.schema import COLUMNS
from quadriga.store.database.sqlite import SECURE_SINCE_CREATION
from quadriga.store.maintenance import page_gaps

_BUSY_MS = 300
"""Time to wait for readers: the journal waits meanwhile, and it is tried again."""

_BUSY = "a reader still reads an older state of the database"
_TABLES = (
    "inference", "meta_num", "meta_str", "pred", "signal", "rollup", "metadata_change", "truth",
    "ground_truth", "other_truth", "repeated_id", "feedback",
)  # fmt: skip


class PageCleaner:
    """Clears what a database keeps of deleted rows, some of it with each call."""

    def __init__(self) -> None:
        self._next_page = 0
        self._failure: str | None = None
        """Why the file could not be written anew, empty if it could; None until it is tried."""

    def clear(self, engine: sa.Engine) -> tuple[str, str, bool]:
        """Clear what is left of deleted rows.

        Returns:
            Why it has to be tried again and why it cannot be done, each empty where it does not apply; and whether
            it has to be called again at once.
        """
        if engine.dialect.name == "sqlite":
            return self._clear_sqlite(engine)
        return "", _vacuum_postgresql(engine), False

    def _clear_sqlite(self, engine: sa.Engine) -> tuple[str, str, bool]:
        failure, next_page = self._failure or "", None
        with engine.connect() as connection:
            check_in_place(connection)
            driver: Any = connection.connection.driver_connection
            driver.execute(f"PRAGMA busy_timeout={_BUSY_MS}")
            try:
                # The log first: a database without a long log is copied faster.
                if _truncate_log(driver):
                    return _BUSY, "", False
                (mark,) = driver.execute("PRAGMA user_version").fetchone()
                if mark != SECURE_SINCE_CREATION and self._failure is None:
                    failure = self._failure = _rewrite(driver)
                    if _truncate_log(driver):
                        return _BUSY, failure, False
                next_page, gap_failure = self._clear_gaps(Path(str(engine.url.database)))
                failure = failure or gap_failure
                is_busy = next_page is None and _truncate_log(driver)
            except _LogInUse:
                return _BUSY, "", False
            finally:
                driver.execute("PRAGMA busy_timeout=5000")
        self._next_page = next_page or 0
        return _BUSY if is_busy else "", failure, next_page is not None

    def _clear_gaps(self, path: Path) -> tuple[int | None, str]:
        with closing(page_gaps.connect(path)) as driver:
            try:
                return page_gaps.clear_gaps(driver, path, self._next_page), ""
            except (page_gaps.GapsRemain, sqlite3.OperationalError) as error:
                raise _LogInUse from error
            except ValueError as error:
                return None, (
                    f"copies of deleted rows within the pages of the database cannot be found, as {error}; run VACUUM "
                    "on the stopped store"
                )


class _LogInUse(Exception):
    """Somebody wrote to the database meanwhile."""


def _truncate_log(driver: Any) -> bool:
    (is_busy, _, _) = driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return bool(is_busy)


def _rewrite(driver: Any) -> str:
    """Write a database anew that a release wrote which left deleted bytes in its pages; return why that failed."""
    try:
        driver.execute("VACUUM")
        driver.execute(f"PRAGMA user_version={SECURE_SINCE_CREATION}")
    except driver.OperationalError as error:
        return (
            "the database was written by an earlier release, whose pages keep bytes of deleted rows, and cannot be "
            f"written anew: {error}; run VACUUM on the stopped store"
        )
    return ""


def _vacuum_postgresql(engine: sa.Engine) -> str:
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

"""What a database keeps of deleted rows: pages and log of SQLite, dead rows of PostgreSQL."""

from typing import Any

import sqlalchemy as sa

from quadriga.store.database import check_in_place
from quadriga.store.schema import COLUMNS
from quadriga.store.sqlite import SECURE_SINCE_CREATION

_BUSY_MS = 1000
_TABLES = (
    "inference", "meta_num", "meta_str", "pred", "signal", "rollup", "metadata_change", "truth",
    "ground_truth", "other_truth", "feedback",
)  # fmt: skip


def clear_deleted(engine: sa.Engine) -> tuple[str, str]:
    """Clear what is left of deleted rows; return why that has to be tried again, and why it cannot be done.

    Each is empty where it does not apply.
    """
    if engine.dialect.name == "sqlite":
        return _clear_sqlite(engine)
    return "", _vacuum_postgresql(engine)


def _clear_sqlite(engine: sa.Engine) -> tuple[str, str]:
    failure = ""
    with engine.connect() as connection:
        check_in_place(connection)
        driver: Any = connection.connection.driver_connection
        driver.execute(f"PRAGMA busy_timeout={_BUSY_MS}")
        try:
            # The log first: a database without a long log is copied faster.
            if _truncate_log(driver):
                return "a reader still reads an older state of the database", ""
            (mark,) = driver.execute("PRAGMA user_version").fetchone()
            if mark != SECURE_SINCE_CREATION:
                failure = _rewrite(driver)
            is_busy = _truncate_log(driver)
        finally:
            driver.execute("PRAGMA busy_timeout=5000")
    return "a reader still reads an older state of the database" if is_busy else "", failure


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
            for table in _TABLES:
                if table in COLUMNS:
                    connection.exec_driver_sql(f"VACUUM {table}")
    except sa.exc.DBAPIError as error:
        return f"VACUUM of the database failed: {type(error.orig).__name__}; its own comes later"
    return ""

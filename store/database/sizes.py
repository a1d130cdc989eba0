"""Sizes of the store that are too expensive to measure whenever metrics are asked for: measured now and then, and left in files.

A size has the time of its measurement, as it is old where the measuring fails: the database is away, or the disk is full.
"""

import logging
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec
import sqlalchemy as sa

from quadriga.store.database.database import ReaderPool
from quadriga.store.records.disk import write_atomically
from quadriga.store.records.errors import StoreError

DATABASE_INTERVAL_S = 60.0
"""Seconds between two measurements of the database."""

RETRY_S = 5.0
"""Seconds until a measurement that failed is tried again."""

Measured = Literal["images", "database"]
_FOLDER = "sizes"
_log = logging.getLogger(__name__)


class StoredSize(msgspec.Struct, frozen=True, kw_only=True):
    """A size as it was at some time."""

    bytes: int
    count: int = 0
    """Number of images."""
    measured_at: float
    """Seconds since 1970."""


def write_size(data_directory: Path, measured: Measured, size: StoredSize) -> None:
    """Leave a size where metrics find it; on a full disk the one before stays."""
    path = data_directory / _FOLDER / f"{measured}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, msgspec.json.encode(size), 0o600)
    except OSError as error:
        _log.warning("the size of the %s cannot be written down: %s", measured, error.strerror)


def read_size(data_directory: Path, measured: Measured) -> StoredSize | None:
    """Return a size as it was measured last; None if it was not, or its file is damaged."""
    with suppress(OSError, msgspec.MsgspecError):
        data = (data_directory / _FOLDER / f"{measured}.json").read_bytes()
        return msgspec.json.decode(data, type=StoredSize)
    return None


def measure_database(readers: ReaderPool) -> StoredSize:
    """Ask PostgreSQL for the size of a database: its tables, indexes and all else that is in it.

    Raises:
        StoreError: It does not answer.
    """
    with readers.snapshot() as connection:
        size_bytes = connection.execute(sa.text("SELECT pg_database_size(current_database())"))
        return StoredSize(bytes=int(size_bytes.scalar_one()), measured_at=time.time())


def measure_periodically(
    url: str,
    data_directory: Path,
    stop: threading.Event,
    interval_s: float = DATABASE_INTERVAL_S,
) -> None:
    """Measure a PostgreSQL again and again until `stop` is set, as the body of a thread."""
    readers = ReaderPool(url, connections=1)
    pause_s = 0.0
    while not stop.wait(pause_s):
        pause_s = min(RETRY_S, interval_s)  # at the start there may be no tables for a moment
        try:
            write_size(data_directory, "database", measure_database(readers))
            pause_s = interval_s
        except (StoreError, sa.exc.DBAPIError) as error:  # the writer says that it is away
            _log.debug("the database cannot be measured: %s", error)
        except Exception:  # noqa: BLE001 - whatever fails may not end all measurements
            _log.exception("the database cannot be measured")
    readers.close()

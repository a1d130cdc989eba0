"""Sizes that are measured now and then, and left in files."""

import threading
import time
from pathlib import Path

import pytest

from quadriga.store.database.database import ReaderPool
from quadriga.store.database.sizes import (
    StoredSize,
    measure_database,
    measure_periodically,
    read_size,
    write_size,
)
from tests.background import in_background, until
from tests.postgres_server import PostgresServer


class StopAfterWaits(threading.Event):
    """An event that is set once it was waited for a number of times."""

    def __init__(self, waits: int) -> None:
        super().__init__()
        self.remaining = waits

    def wait(self, timeout: float | None = None) -> bool:
        self.remaining -= 1
        if self.remaining == 0:
            self.set()
        return super().wait(timeout)


def test_a_size_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_size(tmp_path, "images") is None
    for count in (1, 2):
        size = StoredSize(bytes=count * 100, count=count, measured_at=count * 1000.5)
        write_size(tmp_path, "images", size)
        assert read_size(tmp_path, "images") == size
    assert read_size(tmp_path, "database") is None


def test_what_cannot_be_written_is_said_and_stops_nothing(tmp_path: Path, caplog) -> None:
    (tmp_path / "sizes").write_bytes(b"a file where the folder should be")
    write_size(tmp_path, "images", StoredSize(bytes=1, measured_at=2.0))
    assert "the size of the images cannot be written down" in caplog.text
    assert read_size(tmp_path, "images") is None


def test_a_postgresql_says_how_large_it_is(postgres: PostgresServer, tmp_path: Path) -> None:
    url = postgres.create()
    readers = ReaderPool(url, connections=1)
    size = measure_database(readers)
    readers.close()
    assert size.bytes > 1_000_000
    assert abs(size.measured_at - time.time()) < 60
    with in_background(lambda stop: measure_periodically(url, tmp_path, stop, 0.01)):
        until(lambda: read_size(tmp_path, "database") is not None)
        first = read_size(tmp_path, "database")
        until(lambda: read_size(tmp_path, "database") != first)


@pytest.mark.parametrize("database", ["not_there", "empty"])
def test_a_database_that_cannot_be_measured_is_tried_again(
    postgres: PostgresServer, tmp_path: Path, database: str
) -> None:
    url = postgres.create(migrated=False) if database == "empty" else postgres.url(database)
    stop = StopAfterWaits(4)
    measure_periodically(url, tmp_path, stop, 0.01)
    assert stop.remaining == 0
    assert read_size(tmp_path, "database") is None

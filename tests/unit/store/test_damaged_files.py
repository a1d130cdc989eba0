"""A damaged SQLite file is set aside, and nothing else ever is."""

import os
import re
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from quadriga.store.database import damaged_files as damage
from quadriga.store.database.damaged_files import (
    damaged_files,
    find_damage,
    is_sign_of_damage,
    set_aside_if_damaged,
)
from quadriga.store.database.database import ReaderPool
from quadriga.store.records.errors import NotReadyError, StoreError
from quadriga.store.writing.writer import Writer
from tests.background import in_background, until
from tests.unit.store_harness import StoreHarness


def overwrite(path: Path, start: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(data)


def damage_schema(path: Path) -> None:
    """Overwrite the names of the tables in the texts that made them."""
    data = path.read_bytes()
    for match in re.finditer(rb"CREATE TABLE \w", data):
        overwrite(path, match.end() - 1, b"\xff\xff")


def damage_header(path: Path) -> None:
    overwrite(path, 0, b"\0" * 100)


def damage_pages(path: Path) -> None:
    overwrite(path, 4096, os.urandom(path.stat().st_size - 4096))


def lose_end(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


DAMAGES = [damage_schema, damage_header, damage_pages, lose_end]


def into_file(path: Path) -> None:
    """Move the log into the file, so that it holds everything."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@pytest.mark.parametrize("spoil", DAMAGES, ids=lambda spoil: spoil.__name__)
def test_a_new_database_begins_and_takes_what_the_journal_holds(
    file_store: StoreHarness, record, spoil, caplog, monkeypatch
) -> None:
    monkeypatch.setattr(damage, "_PAUSE_S", 0.01)
    file_store.journal.append([record(1), record(2)])
    file_store.commit_journal()
    path = file_store.root / "store.db"
    into_file(path)
    spoil(path)
    spoiled = path.read_bytes()
    file_store.journal.append([record(3)])
    writer = Writer(file_store.journal_directory, file_store.url)
    with in_background(writer.run):
        until(lambda: damaged_files(file_store.url))
        until(lambda: writer.records_committed)
    writer.close()
    (aside,) = damaged_files(file_store.url)
    assert aside.read_bytes()[: len(spoiled) // 2] == spoiled[: len(spoiled) // 2]
    assert 3 in file_store.stored_ids()  # and what else the open segment still holds
    assert [record.levelname for record in caplog.records].count("CRITICAL") == 1
    assert not (file_store.root / "dead.jsonl").exists()


def test_a_database_that_is_damaged_while_the_writer_works(
    file_store: StoreHarness, record, monkeypatch
) -> None:
    monkeypatch.setattr(damage, "_PAUSE_S", 0.01)
    writer = Writer(file_store.journal_directory, file_store.url)
    with in_background(writer.run):
        file_store.journal.append([record(1)])
        until(lambda: writer.records_committed == 1)
        into_file(file_store.root / "store.db")
        damage_pages(file_store.root / "store.db")
        damage_schema(file_store.root / "store.db")
        number = 1
        while not damaged_files(file_store.url):
            number += 1
            assert number < 3000
            file_store.journal.append([record(number)])
            threading.Event().wait(0.01)
        until(lambda: number in _ids(file_store))
    writer.close()
    assert file_store.stored_ids()[-1] == number


def _ids(store: StoreHarness) -> list[int]:
    try:
        return store.stored_ids()
    except (NotReadyError, sa.exc.DBAPIError):
        return []


def test_readers_of_a_damaged_schema_say_so(file_store: StoreHarness, record) -> None:
    file_store.journal.append([record(1)])
    file_store.commit_journal()
    into_file(file_store.root / "store.db")
    damage_schema(file_store.root / "store.db")
    readers = ReaderPool(file_store.url)
    with pytest.raises(NotReadyError), readers.snapshot():
        pass
    readers.close()


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    path = tmp_path / "healthy.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE t (x INTEGER)")
    return path


def stays(path: Path, *, is_ours: bool = True) -> bool:
    before = path.read_bytes() if path.exists() else None
    assert set_aside_if_damaged(path, is_ours=is_ours) is None
    return (path.read_bytes() if path.exists() else None) == before


def test_a_healthy_database_stays(healthy: Path) -> None:
    assert stays(healthy)


def test_a_busy_database_stays(healthy: Path) -> None:
    with closing(sqlite3.connect(healthy)) as connection:
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        connection.execute("BEGIN EXCLUSIVE")
        assert stays(healthy)


def test_what_is_missing_empty_or_a_folder_stays(tmp_path: Path) -> None:
    assert stays(tmp_path / "missing.db")
    (tmp_path / "empty.db").touch()
    assert stays(tmp_path / "empty.db")
    (tmp_path / "folder.db").mkdir()
    assert set_aside_if_damaged(tmp_path / "folder.db", is_ours=True) is None


def test_a_file_of_others_stays(tmp_path: Path) -> None:
    path = tmp_path / "photo.jpg"
    path.write_bytes(b"\xff\xd8 a photo that somebody named by mistake" * 1000)
    assert find_damage(path)
    assert stays(path, is_ours=False)
    url = f"sqlite:///{path}"
    writer = Writer(tmp_path / "data" / "journal", url)
    with in_background(writer.run) as stop:
        stop.wait(0.5)
    writer.close()
    assert path.exists()
    assert damaged_files(url) == []


def test_damage_that_is_gone_at_the_second_look_was_none(healthy: Path, monkeypatch) -> None:
    answers = iter(["malformed", None])
    monkeypatch.setattr(damage, "find_damage", lambda _: next(answers))
    monkeypatch.setattr(damage, "_PAUSE_S", 0.0)
    assert stays(healthy)


def database_error(message: str, code: int | None) -> sa.exc.DBAPIError:
    cause = sqlite3.DatabaseError(message)
    if code is not None:
        cause.sqlite_errorcode = code
    return sa.exc.DatabaseError("SELECT 1", None, cause)


@pytest.mark.parametrize(
    ("error", "is_sign"),
    [
        (database_error("database disk image is malformed", sqlite3.SQLITE_CORRUPT), True),
        (database_error("malformed", sqlite3.SQLITE_CORRUPT_INDEX), True),
        (database_error("file is not a database", sqlite3.SQLITE_NOTADB), True),
        (database_error("Could not decode to UTF-8 column 'sql'", None), True),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), True),
        (database_error("database is locked", sqlite3.SQLITE_BUSY), False),
        (database_error("database or disk is full", sqlite3.SQLITE_FULL), False),
        (database_error("disk I/O error", sqlite3.SQLITE_IOERR), False),
        (database_error("attempt to write a readonly database", sqlite3.SQLITE_READONLY), False),
        (database_error("unable to open database file", sqlite3.SQLITE_CANTOPEN), False),
        (OSError(5, "Input/output error"), False),
        (NotReadyError("malformed"), False),
        (StoreError("malformed"), False),
    ],
    ids=lambda value: str(value)[:60],
)
def test_only_signs_of_damage_start_the_search_for_it(error, is_sign) -> None:
    assert is_sign_of_damage(error) is is_sign

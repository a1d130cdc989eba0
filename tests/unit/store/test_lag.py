from pathlib import Path

import pytest

from quadriga.store.journal import journal_lag
from quadriga.store.journal.durability import wait_until_committed
from quadriga.store.journal.journal import Journal, lag_bytes
from quadriga.store.journal.journal_lag import (
    JournalLag,
    default_limit_bytes,
    read_offsets,
    write_offsets,
)
from quadriga.store.records.errors import UnconfirmedError
from quadriga.store.writing.writer import Writer
from tests.background import in_background


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal", 0)


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"a":"b"}', b"[]"])
def test_offsets_that_cannot_be_read_are_none(journal: Journal, content) -> None:
    if content is not None:
        (journal.directory.parent / "journal.offsets").write_bytes(content)
    assert read_offsets(journal.directory) == {}


def test_the_writer_says_what_it_has_committed(journal: Journal, record, database_url) -> None:
    writer = Writer(journal.directory, database_url)
    first = journal.append([record(1)])
    writer.drain()
    assert read_offsets(journal.directory) == {first.segment: first.end}
    journal.append([record(2)])
    waiting = lag_bytes(journal.directory, read_offsets(journal.directory))
    assert waiting == first.end
    assert JournalLag(journal.directory).bytes() == waiting
    journal.close()
    writer.drain()
    assert read_offsets(journal.directory) == {}
    assert JournalLag(journal.directory).bytes() == 0
    writer.close()


def test_offsets_that_could_not_be_written_are_written_later(
    journal: Journal, record, tmp_path: Path
) -> None:
    in_the_way = tmp_path / "journal.offsets"
    in_the_way.mkdir()
    writer = Writer(journal.directory, f"sqlite:///{tmp_path}/store.db")
    position = journal.append([record(1)])
    assert writer.drain() == 1
    assert read_offsets(journal.directory) == {}
    in_the_way.rmdir()
    writer.drain()
    assert read_offsets(journal.directory) == {position.segment: position.end}
    writer.close()


def test_a_wait_ends_with_the_commit(journal: Journal, record, database_url) -> None:
    writer = Writer(journal.directory, database_url)
    position = journal.append([record(1)])
    with pytest.raises(UnconfirmedError, match="may still be stored"):
        wait_until_committed(journal.directory, position, 0.01)
    with in_background(writer.run):
        wait_until_committed(journal.directory, position, 30)
        journal.close()
        wait_until_committed(journal.directory, position, 30)  # also once the segment is removed
    writer.close()


def test_the_lag_is_looked_up_only_now_and_then(journal: Journal, record, monkeypatch) -> None:
    monkeypatch.setattr(journal_lag, "SAMPLE_INTERVAL_S", 3600)
    behind = JournalLag(journal.directory)
    assert behind.bytes() == 0
    position = journal.append([record(1)])
    assert behind.bytes() == 0
    assert JournalLag(journal.directory).bytes() == position.end


@pytest.mark.parametrize(
    ("free", "limit"), [(0, 1 << 20), (100 << 20, 10 << 20), (1 << 40, 1 << 30)]
)
def test_the_limit_follows_the_disk(journal: Journal, monkeypatch, free, limit) -> None:
    class Usage:
        def __init__(self, _: Path) -> None:
            self.free = free

    monkeypatch.setattr(journal_lag.shutil, "disk_usage", Usage)
    assert default_limit_bytes(journal.directory) == limit


def test_offsets_are_replaced_whole(journal: Journal) -> None:
    write_offsets(journal.directory, {"a": 1, "b": 2})
    write_offsets(journal.directory, {"b": 3})
    assert read_offsets(journal.directory) == {"b": 3}

import time
from contextlib import closing
from pathlib import Path

import pytest

from quadriga.store.blobs.files import FileBlobs
from quadriga.store.database.database import ReaderPool, execute
from quadriga.store.journal import journal_lag
from quadriga.store.journal.durability import wait_until_committed
from quadriga.store.journal.journal import Journal
from quadriga.store.journal.journal_lag import GATHER_BYTES, CommitPace, ask_for_commit
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.writing.writer import Writer
from tests.background import in_background, until

A_MINUTE = 60.0


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal", 0)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def gathers_for_a_minute(monkeypatch) -> None:
    monkeypatch.setattr(journal_lag, "GATHER_S", A_MINUTE)
    monkeypatch.setattr("quadriga.store.writing.writer.CLEANUP_INTERVAL_S", A_MINUTE)


def stored(url: str) -> int:
    with closing(ReaderPool(url)) as readers, readers.snapshot() as connection:
        return int(execute(connection, "SELECT count(*) FROM inference").scalar_one())


def test_the_first_record_does_not_wait_and_the_next_ones_gather(tmp_path: Path) -> None:
    pace = CommitPace(tmp_path / "journal")
    assert not pace.is_due(0)
    assert pace.is_due(1)
    pace.note_commit()
    assert not pace.is_due(1)
    assert pace.is_due(GATHER_BYTES)
    until(lambda: pace.is_due(1))
    assert not pace.is_due(0)


def test_a_request_is_taken_once_however_often_it_is_made(tmp_path: Path) -> None:
    pace = CommitPace(tmp_path / "journal")
    assert not pace.take_request()
    for _ in range(2):
        ask_for_commit(tmp_path / "journal")
    assert pace.take_request()
    assert not pace.take_request()


def test_to_ask_where_there_is_no_folder_does_nothing(tmp_path: Path) -> None:
    ask_for_commit(tmp_path / "gone" / "journal")
    assert not (tmp_path / "gone").exists()
    assert not CommitPace(tmp_path / "gone" / "journal").take_request()


@pytest.mark.usefixtures("gathers_for_a_minute")
def test_records_of_one_gathering_share_a_transaction(journal: Journal, record, url: str) -> None:
    writer = Writer(journal.directory, url)
    journal.append([record(1)])
    with in_background(writer.run):
        until(lambda: writer.records_committed == 1)
        for seq in range(2, 10):
            journal.append([record(seq)])
        time.sleep(0.3)
        assert stored(url) == 1
        journal.append([record(10, metadata={"note": "x" * GATHER_BYTES})])  # enough for a commit
        until(lambda: stored(url) == 10)
    writer.close()


@pytest.mark.usefixtures("gathers_for_a_minute")
def test_whoever_waits_for_the_database_does_not_wait_for_the_pace(
    journal: Journal, record, url: str
) -> None:
    writer = Writer(journal.directory, url)
    with in_background(writer.run):
        for seq in range(1, 5):
            position = journal.append([record(seq)])
            wait_until_committed(journal.directory, position, 30)
            assert stored(url) == seq
    writer.close()


@pytest.mark.usefixtures("gathers_for_a_minute")
def test_whoever_waits_for_the_journal_does_not_wait_for_the_pace(
    journal: Journal, record, url: str, tmp_path: Path
) -> None:
    writer = Writer(journal.directory, url)
    reader = InferenceReader(url, journal.directory, FileBlobs(tmp_path / "blobs"))
    with in_background(writer.run):
        for seq in range(1, 5):
            journal.append([record(seq)])
            reader.wait_for_journal()
            assert stored(url) == seq
    reader.close()
    writer.close()

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from quadriga.engine.assembly import opened_store
from quadriga.engine.assembly.opened_store import assign_number, latest_id
from quadriga.engine.config.settings import Settings
from quadriga.store.blobs.files import FileBlobs
from quadriga.store.database.database import writer_engine
from quadriga.store.database.lease import Lease
from quadriga.store.journal.journal import Journal
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.errors import JournalError
from quadriga.store.records.ids import Clock, IdSource, smallest_id_at, time_ms
from tests.background import in_background
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import run_statements, store_entries


@pytest.fixture
def inferences(tmp_path: Path) -> Iterator[InferenceReader]:
    """A store at a restart: record 7 in the database, 5 in the journal."""
    directory, url = tmp_path / "journal", f"sqlite:///{tmp_path}/store.db"
    store_entries(url, directory, [make_record(7)])
    journal = Journal(directory, 0)
    journal.append([make_record(5)])
    journal.close()
    inferences = InferenceReader(url, directory, FileBlobs(tmp_path / "blobs"))
    yield inferences
    inferences.close()


def test_a_start_waits_for_a_database_that_comes_back(
    inferences: InferenceReader, tmp_path: Path
) -> None:
    (tmp_path / "store.db").rename(tmp_path / "kept")
    (tmp_path / "store.db").touch()

    def come_back() -> None:
        time.sleep(0.3)
        (tmp_path / "kept").rename(tmp_path / "store.db")

    thread = threading.Thread(target=come_back)
    thread.start()
    assert latest_id(inferences, tmp_path / "journal") == 7
    thread.join()


def test_a_start_goes_on_without_a_database_that_stays_away(
    inferences: InferenceReader, tmp_path: Path, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(opened_store, "LATEST_ID_TIMEOUT_S", 0.2)
    url = f"sqlite:///{tmp_path}/store.db"
    run_statements(url, ("UPDATE alembic_version SET version_num = 'other'", ()))
    assert latest_id(inferences, tmp_path / "journal") == 5
    assert "the newest stored is unknown: this version cannot read the database" in caplog.text


def test_a_worker_does_not_follow_ids_that_the_clock_has_not_reached(
    inferences: InferenceReader, tmp_path: Path, caplog
) -> None:
    now_ms = time.time_ns() // 1_000_000
    stored, future = (smallest_id_at(now_ms + ahead_ms) for ahead_ms in (20_000, 400 * 86_400_000))
    url = f"sqlite:///{tmp_path}/store.db"
    store_entries(url, tmp_path / "journal", [make_record(stored), make_record(future)])
    settings = Settings(data=str(tmp_path))
    ids = IdSource(clock=Clock(tmp_path))
    assign_number(ids, inferences, settings, 2, lambda: None, run_id="")
    new_id = ids.next()
    assert time_ms(stored) < time_ms(new_id) < time_ms(stored) + 1000
    assert (new_id >> 12 & 1023, new_id & 4095) == (2, 2048)
    assert "are stored, which the clock has not reached" in caplog.text


def test_a_worker_waits_for_the_number_that_is_claimed_in_its_run(
    inferences: InferenceReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened_store, "LATEST_ID_TIMEOUT_S", 0.1)
    url = f"sqlite:///{tmp_path}/store.db"
    settings = Settings(data=str(tmp_path), database=url, workers=2)
    ids = IdSource(clock=Clock(Path(settings.data)))
    waiting = threading.Event()

    def assign(_) -> None:
        assign_number(ids, inferences, settings, 1, waiting.set, run_id="this run")

    with writer_engine(url) as engine, in_background(assign):
        Lease(tmp_path, url, 2, run="last run").hold(engine)
        assert waiting.wait(30)
        with pytest.raises(JournalError, match="cannot give an id"):
            ids.next()
        Lease(tmp_path, url, 2, run="this run").hold(engine)
    assert ids.next() >> 12 & 1023 == 1

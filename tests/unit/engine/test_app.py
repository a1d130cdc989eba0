import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from quadriga.engine import app
from quadriga.engine.app import latest_id
from quadriga.store.blobs.files import FileBlobs
from quadriga.store.inferences import InferenceReader
from quadriga.store.journal import Journal
from tests.unit.store.conftest import make_record
from tests.unit.store.place import fill, run_statements


@pytest.fixture
def inferences(tmp_path: Path) -> Iterator[InferenceReader]:
    """A store at a restart: record 7 in the database, 5 in the journal."""
    directory, url = tmp_path / "journal", f"sqlite:///{tmp_path}/store.db"
    fill(url, directory, [make_record(7)])
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
    monkeypatch.setattr(app, "LATEST_ID_TIMEOUT_S", 0.2)
    url = f"sqlite:///{tmp_path}/store.db"
    run_statements(url, ("UPDATE alembic_version SET version_num = 'other'", ()))
    assert latest_id(inferences, tmp_path / "journal") == 5
    assert "the newest stored is unknown: expected the database at revision" in caplog.text

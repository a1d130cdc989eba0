"""Records to store, made as the pipeline makes them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command

from quadriga.store.database import database
from quadriga.store.records.records import InferenceRecord, InputReference, ModelReference
from tests.unit.store_harness import StoreHarness

Record = Callable[..., InferenceRecord]


def make_record(seq: int = 1, **fields: Any) -> InferenceRecord:
    values: dict[str, Any] = {
        "request_id": f"request-{seq}",
        "image_no": 0,
        "model": ModelReference("shapes-detector", "1", "ab" * 32),
        "task": "OBJECT_DETECTION",
        "action": "predict",
        "latency_ms": 4.2,
        "input": InputReference("image", "blake3:" + "0" * 64, 640, 480, "image/jpeg"),
        "predictions": [{"label": "circle", "score": 0.98, "xmin": 1}],
        "metadata": {},
    }
    return InferenceRecord(seq=seq, **(values | fields))


@pytest.fixture(scope="session")
def record() -> Record:
    return make_record


@pytest.fixture
def file_store(tmp_path: Path) -> Iterator[StoreHarness]:
    """A store whose database is a file of SQLite that does not exist yet."""
    store = StoreHarness(tmp_path, f"sqlite:///{tmp_path}/store.db")
    yield store
    store.close()


@pytest.fixture
def other_store(tmp_path: Path) -> Iterator[StoreHarness]:
    """A second store beside `store`, on SQLite."""
    root = tmp_path / "other"
    root.mkdir()
    store = StoreHarness(root, f"sqlite:///{root}/store.db")
    yield store
    store.close()


def migrate_to(url: str, revision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Migrate a database to a revision that is not the last."""
    upgrade = command.upgrade
    with monkeypatch.context() as patched:
        patched.setattr(command, "upgrade", lambda config, _: upgrade(config, revision))
        patched.setattr(database, "check_schema", lambda *_, **__: None)
        database.migrate(url)

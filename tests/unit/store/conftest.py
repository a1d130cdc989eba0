"""Records to store, made as the pipeline makes them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quadriga.store.records import InferenceRecord, InputReference, ModelReference
from tests.unit.store.exchange_place import ExchangePlace
from tests.unit.store.journal_place import JournalPlace

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
def file_place(tmp_path: Path) -> Iterator[JournalPlace]:
    """A place whose database is a file that is not there yet."""
    place = JournalPlace(tmp_path, f"sqlite:///{tmp_path}/store.db")
    yield place
    place.journal.close()


@pytest.fixture
def store(tmp_path: Path, database_url: str):
    made = ExchangePlace(tmp_path, database_url)
    yield made
    made.inferences.close()


@pytest.fixture
def other(tmp_path: Path):
    (tmp_path / "other").mkdir()
    made = ExchangePlace(tmp_path / "other", f"sqlite:///{tmp_path}/other/store.db")
    yield made
    made.inferences.close()

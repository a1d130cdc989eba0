"""Metadata keys beyond those that are indexed: found all the same, and they cost no memory."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quadriga.store.blobs.files import FileBlobs
from quadriga.store.database.database import writer_engine
from quadriga.store.database.rows import NameIds
from quadriga.store.database.schema import KeyType
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.records import (
    Deletion,
    InferenceRecord,
    JournaledChange,
    MetadataChange,
)
from tests.filter_definition import holds
from tests.unit.store_harness import select_rows, store_entries

METADATA: list[dict[str, Any]] = [
    {"a": 1, "b": "x"},
    {"a": "1", "c": 1.5},
    {"b": "y", "latitude": 10, "longitude": 20},
    {"late": 1, "a": True},
    {"late": "x", "later": {"still": False}},
    {"late": [], "b": "x"},
]
FILTERS: list[dict[str, Any]] = [
    {"meta.late": 1},
    {"meta.late": {"in": [1, "x"]}},
    {"meta.late": {"ge": 0, "lt": 2}},
    {"meta.late": {"contains": "x"}},
    {"meta.late": {"exists": True}},
    {"not": {"meta.late": 1}},
    {"meta.late": {"exists": True}, "meta.b": "x"},
    {"or": [{"meta.late": 1}, {"meta.c": 1.5}]},
    {"meta.later.still": False},
    {"meta.later": {"exists": True}},
    {"meta.nowhere": {"exists": True}},
    {"meta.a": {"exists": True}},
    {"meta.a": True},
    {"meta.b": {"gt": "x"}},
    {"geo": {"near": [10, 20], "within": "1km"}},
]


@pytest.fixture(autouse=True)
def few_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("quadriga.store.database.rows",):
        monkeypatch.setattr(f"{module}.MAX_KEYS", 7)


@pytest.fixture
def stored(database_url: str, tmp_path: Path, record) -> list[InferenceRecord]:
    records = [record(number + 1, metadata=metadata) for number, metadata in enumerate(METADATA)]
    for at in range(3):  # three servers, one after the other
        move(database_url, tmp_path / f"{at}", records[2 * at : 2 * at + 2])
    return records


@pytest.fixture
def inferences(database_url: str, tmp_path: Path) -> Iterator[InferenceReader]:
    made = InferenceReader(database_url, tmp_path / "journal", FileBlobs(tmp_path / "blobs"))
    yield made
    made.close()


def move(url: str, folder: Path, things: list[Any]) -> None:
    assert store_entries(url, folder / "journal", things).records_rejected == 0


def found(inferences: InferenceReader, where: dict[str, Any]) -> list[int]:
    return [
        int(inference.id)
        for inference in inferences.query(QueryRequest(where, order="ts")).inferences
    ]


@pytest.mark.parametrize("where", FILTERS)
def test_keys_beyond_the_budget_are_found_without_an_index(stored, inferences, where) -> None:
    assert found(inferences, where) == [record.seq for record in stored if holds(where, record)]


def test_they_are_not_named_in_the_database(stored, database_url: str) -> None:
    paths = {path for (path,) in select_rows(database_url, "SELECT path FROM meta_key")}
    assert paths == {"a", "b", "c", "latitude", "longitude", ""}


def test_a_new_type_of_a_known_path_is_indexed(stored, database_url: str) -> None:
    types = select_rows(database_url, "SELECT type FROM meta_key WHERE path = 'a' ORDER BY type")
    assert [type_ for (type_,) in types] == [KeyType.NUM, KeyType.STR, KeyType.BOOL]


def test_they_change_and_go_as_others_do(stored, database_url, tmp_path, inferences) -> None:
    changes = (MetadataChange(4, {"late": 2}, ["a"]), Deletion([5]))
    move(database_url, tmp_path / "changes", [
        JournaledChange(100 + at, change) for at, change in enumerate(changes)
    ])  # fmt: skip
    assert found(inferences, {"meta.late": {"ge": 1}}) == [4]
    assert found(inferences, {"meta.a": {"exists": True}}) == [1, 2]
    assert found(inferences, {"meta.late": "x"}) == []


def test_new_keys_cost_the_writer_no_memory(stored, database_url: str) -> None:
    with writer_engine(database_url) as engine, engine.begin() as connection:
        names = NameIds(connection)
        assert {names.key(f"new-{number}", KeyType.NUM, "") for number in range(50)} == {None}
        assert names.key("b", KeyType.NUM, "") is not None
    assert len(select_rows(database_url, "SELECT path FROM meta_key WHERE path >= 'new'")) == 0

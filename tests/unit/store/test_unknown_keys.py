"""Warnings of filters that find nothing: which keys they name, the nearest, and none about keys of others."""

from typing import Any

import msgspec
import pytest

from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.scope import EVERYTHING, Scope
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness, store_entries


@pytest.fixture
def inferences(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    records = [
        make_record(1, team="a", metadata={"run": "v1", "camera_id": "dock", "place": {"floor": 2}}),
        make_record(2, team="b", metadata={"secret_key": 1}),
    ]  # fmt: skip
    store_entries(url, tmp_path / "journal", records)
    harness = StoreHarness(tmp_path, url)
    yield harness.inferences
    harness.close()


UNKNOWN = "no stored inference has the metadata key"


@pytest.mark.parametrize(
    ("where", "scope", "warnings"),
    [
        ("meta.rum=v1", EVERYTHING, [f"{UNKNOWN} 'rum'; did you mean meta.run?"]),
        ("meta.Run=v1", EVERYTHING, [f"{UNKNOWN} 'Run'; did you mean meta.run?"]),
        ("meta.run=ge:5 & meta.run=lt:9", EVERYTHING, []),
        ("meta.rum=ge:5 & meta.rum=lt:9", EVERYTHING, [f"{UNKNOWN} 'rum'; did you mean meta.run?"]),
        ({"or": [{"meta.cameraid": "dock"}, {"meta.zzzzz": 1}]}, EVERYTHING,
         [f"{UNKNOWN} 'cameraid'; did you mean meta.camera_id?", f"{UNKNOWN} 'zzzzz'"]),
        ("meta.place=5", EVERYTHING, []),
        ("meta.place.flor=2", EVERYTHING, [f"{UNKNOWN} 'place.flor'; did you mean meta.place.floor?"]),
        ("meta.run=v2", EVERYTHING, []),
        ("label=nothing", EVERYTHING, []),
        ("std.rum=1", EVERYTHING, []),
        ({"meta." + "x" * 200: 1}, EVERYTHING, [f"{UNKNOWN} '{'x' * 79}"]),
        (" & ".join(f"meta.zzzz{letter}=1" for letter in "abcde"), EVERYTHING,
         [f"{UNKNOWN} 'zzzz{letter}'" for letter in "abcde"]),
        (" & ".join(f"meta.zzzz{letter}=1" for letter in "abcdef"), EVERYTHING,
         [*(f"{UNKNOWN} 'zzzz{letter}'" for letter in "abcde"), "no stored inference has 1 more metadata key of the filter"]),
        (" | ".join(f"meta.zzzz{number:03}=1" for number in range(200)), EVERYTHING,
         [*(f"{UNKNOWN} 'zzzz{number:03}'" for number in range(5)), "no stored inference has 195 more metadata keys of the filter"]),
        # A key of another team is none, and is not told.
        ("meta.secret_key=5", Scope("a"), [f"{UNKNOWN} 'secret_key'"]),
        ("meta.secret_kez=5", Scope("a"), [f"{UNKNOWN} 'secret_kez'"]),
        ("meta.rum=5", Scope("a", ("shapes-detector",)), []),
    ],
)  # fmt: skip
def test_a_key_that_nothing_has_is_named(inferences, where: Any, scope, warnings):
    store = inferences.within(scope)
    assert store.unknown_keys(where) == warnings
    page = store.query(QueryRequest(where))
    assert page.inferences == []
    assert (page.warnings or []) == warnings
    assert (store.count_with_warnings(QueryRequest(where)).warnings or []) == warnings


@pytest.mark.parametrize("request_", [QueryRequest(), QueryRequest("!meta.rum=v1")])
def test_what_finds_something_is_answered_as_before(inferences, request_):
    page = inferences.query(request_)
    assert page.inferences
    assert b"warnings" not in msgspec.json.encode(page)
    assert b"warnings" not in msgspec.json.encode(inferences.count_with_warnings(request_))


def test_nothing_is_said_where_the_database_takes_too_long(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    store_entries(url, tmp_path / "journal", [make_record(1, metadata={"run": "v1"})])
    harness = StoreHarness(tmp_path, url)
    reader = InferenceReader(
        url, harness.journal_directory, harness.blobs, connections=1, timeout_s=0.5
    )
    assert harness.inferences.unknown_keys("meta.rum=v1")
    with reader.snapshot():  # its only connection
        assert reader.unknown_keys("meta.rum=v1") == []
    reader.close()
    harness.close()


def test_a_team_with_more_keys_than_are_indexed_may_have_the_key(tmp_path, monkeypatch):
    monkeypatch.setattr("quadriga.store.database.rows.MAX_KEYS", 2)
    url = f"sqlite:///{tmp_path}/store.db"
    metadata = {f"key{number}": number for number in range(5)}
    store_entries(url, tmp_path / "journal", [make_record(1, metadata=metadata)])
    harness = StoreHarness(tmp_path, url)
    assert harness.inferences.unknown_keys("meta.key4=9 & meta.rum=1") == []
    harness.close()

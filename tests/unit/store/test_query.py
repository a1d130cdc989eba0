"""What queries find, by a table and against a predicate written without SQL; on both databases, in all forms."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadriga.store.blobs.files import FileBlobs
from quadriga.store.database.database import migrate
from quadriga.store.query.filters.forms import parse
from quadriga.store.query.inferences import Count, InferenceReader
from quadriga.store.query.request import QueryRequest, query_from_url
from quadriga.store.query.sql.search import Budget
from quadriga.store.records.ids import smallest_id_at
from quadriga.store.records.records import (
    InferenceRecord,
    InputReference,
    ModelReference,
    timestamp_text,
)
from tests.filter_definition import holds
from tests.filter_text import render
from tests.unit.store.random_filters import BASE_MS, filters, random_records
from tests.unit.store_harness import store_entries

PLANS = (0, 12, 10_000)
"""Everything is wide, some is narrow, everything is narrow."""


class EmptyDatabase(NamedTuple):
    """An empty database and a folder for its journal."""

    url: str
    root: Path


class QueryHarness:
    """Readers, one for each plan, of a database with these records."""

    def __init__(self, database: EmptyDatabase, records: list[InferenceRecord]) -> None:
        self.records = records
        url, root = database
        writer = store_entries(url, root / "journal", records)
        assert (writer.records_committed, writer.records_rejected) == (len(records), 0)
        blobs = FileBlobs(root / "blobs")
        self.readers = [
            InferenceReader(
                url,
                root / "journal",
                blobs,
                narrow_rows=narrow,
                budget=Budget(first_batch_rows=narrow or 50),
            )
            for narrow in PLANS
        ]
        self.hasty = InferenceReader(
            url, root / "journal", blobs, narrow_rows=12, budget=Budget(40, 1, 7)
        )

    def close(self) -> None:
        for reader in (*self.readers, self.hasty):
            reader.close()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def database_kind(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def database(database_kind: str, request, tmp_path_factory) -> Iterator[EmptyDatabase]:
    yield from new_database(database_kind, request, tmp_path_factory)


@pytest.fixture(scope="module")
def other_database(database_kind: str, request, tmp_path_factory) -> Iterator[EmptyDatabase]:
    yield from new_database(database_kind, request, tmp_path_factory)


def new_database(database_kind: str, request, tmp_path_factory) -> Iterator[EmptyDatabase]:
    root = tmp_path_factory.mktemp("place")
    if database_kind == "sqlite":
        migrate(f"sqlite:///{root}/store.db")
        yield EmptyDatabase(f"sqlite:///{root}/store.db", root)
        return
    server = request.getfixturevalue("postgres")
    url = server.create()
    yield EmptyDatabase(url, root)
    server.drop(url)


def as_json(where: Any) -> QueryRequest:
    return QueryRequest(where)


def as_text(where: Any) -> QueryRequest:
    return QueryRequest(render(parse(where, 0)))


def as_url(where: Any) -> QueryRequest:
    return query_from_url(urlencode({"q": render(parse(where, 0))}))


FORMS = (as_json, as_text, as_url)


def found(
    inferences: InferenceReader, request: QueryRequest, order: str = "-ts", limit: int = 1000
) -> list[int]:
    """Walk all pages."""
    ids: list[int] = []
    cursor = None
    while True:
        page_request = QueryRequest(request.where, order, limit, cursor)  # type: ignore[arg-type]
        page = inferences.query(page_request)
        ids += [int(inference.id) for inference in page.inferences]
        assert len(page.inferences) == limit or page.partial == (page.cursor is not None)
        cursor = page.cursor
        if cursor is None:
            return ids


LONG = "x" * 300
HASH = "cafe1234" + 56 * "0"
TABLE_RECORDS: list[dict[str, Any]] = [
    {"metadata": {"camera": "north", "altitude": 120.5, "location": {"floor": 2, "tags": ["a"]}}},
    {"metadata": {"camera": "North", "altitude": 2, "night": True}},
    {"metadata": {"camera": LONG + "a", "altitude": "120.5", "night": 1}},
    {"metadata": {"camera": LONG + "b", "altitude": (1 << 53) + 1, "night": None}},
    {"metadata": {"location.floor": 2.0, 'odd "key".\\': "é", "camera": "\U0001f600"}},
    {"metadata": {}, "predictions": [{"label": "circle", "score": 0.9}, {"label": "circle", "score": 0.4}]},
    {"metadata": {}, "predictions": [{"label": "circle", "score": 0.3}, {"label": "square", "score": 0.8}]},
    {"metadata": {}, "predictions": [{"label": "circle"}], "latency_ms": 0.001},
    {"metadata": {}, "predictions": {"label": "circle", "score": 0.9}, "action": "embed",
     "model": ModelReference("Ships", "2", HASH), "task": "ORIENTED_OBJECT_DETECTION"},
    {"metadata": {}, "predictions": [{"label": "neg", "score": -0.5}], "input": InputReference("x"), "request_id": "r",
     "model": ModelReference("Ships", "10", ""), "task": "TENSOR"},
    {"metadata": {"latitude": 51.5, "longitude": -0.12}, "status": 500, "standard": {"stage": {"decode_ms": 1.5}, "protocol": "v2"},
     "predictions": [{"label": "ship", "score": 0.5, "xmin": 10, "ymin": 20, "xmax": 30, "ymax": 30},
                     {"label": "ship", "score": 0.6, "xmin": 1, "ymin": 1, "xmax": 2, "ymax": 2}]},
    {"metadata": {"latitude": -17, "longitude": 180}, "input": InputReference("x", None, 200, 100),
     "predictions": [{"label": "ship", "score": 0.5, "cx": 0.25, "cy": 0.5, "w": 0.1, "h": 0.1, "r": 1.5}]},
    {"metadata": {"latitude": 89.9, "longitude": 100.0}, "task": "IMAGE_SEGMENTATION",
     "predictions": [{"label": "a\0b", "score": 0.5, "contour": [[{"x": 1, "y": 2}, {"x": 5, "y": 2}], [{"x": 3, "y": 9}]]}]},
    {"metadata": {"latitude": "51.5", "longitude": 0}, "predictions": [{"prompt": "?", "answer": "two ships"}, {"prompt": "!", "answer": "no"}]},
]  # fmt: skip

FILTERS: list[tuple[Any, str]] = [
    ({}, "0123456789abcd"),
    ({"or": []}, ""),
    ({"not": {"or": []}}, "0123456789abcd"),
    ({"meta.camera": "north"}, "0"),
    ({"meta.camera": {"ne": "north"}}, "123456789abcd"),
    ({"meta.camera": {"gt": "North"}}, "0234"),
    ({"meta.camera": {"lt": "\uffff"}}, "0123"),
    ({"meta.camera": {"gt": "\uffff"}}, "4"),
    ({"meta.camera": LONG + "a"}, "2"),
    ({"meta.camera": LONG}, ""),
    ({"meta.camera": {"gt": LONG + "a"}}, "34"),
    ({"meta.camera": {"ge": LONG[:256], "lt": LONG + "b"}}, "2"),
    ({"meta.camera": {"contains": "xb"}}, "3"),
    ({"meta.camera": {"contains": "orth"}}, "01"),
    ({"meta.camera": {"in": ["north", LONG + "b", 3, True]}}, "03"),
    ({"meta.camera": {"in": []}}, ""),
    ({"meta.altitude": {"ge": 2}}, "013"),
    ({"meta.altitude": {"ge": 2.0, "lt": 120.5}}, "1"),
    ({"and": [{"meta.altitude": {"ge": 2}}, {"and": [{"meta.altitude": {"lt": 120.5}}]}]}, "1"),
    ({"meta.altitude": {"ge": 2, "lt": "2"}}, ""),
    ({"not": {"meta.altitude": {"ge": 2, "lt": 120.5}}}, "023456789abcd"),
    ({"meta.altitude": {"gt": 1 << 53}}, "3"),
    ({"meta.altitude": 1 << 53}, ""),
    ({"meta.altitude": (1 << 53) + 1}, "3"),
    ({"meta.altitude": "120.5"}, "2"),
    ({"meta.altitude": {"in": [2.0, "120.5"]}}, "12"),
    ({"meta.night": True}, "1"),
    ({"meta.night": {"ne": False}}, "0123456789abcd"),
    ({"meta.night": 1}, "2"),
    ({"not": {"meta.night": 1}}, "013456789abcd"),
    ({"meta.night": {"gt": 0}}, "2"),
    ({"meta.night": {"exists": True}}, "12"),
    ({"meta.night": {"exists": False}}, "03456789abcd"),
    ({"meta.location": {"exists": True}}, "0"),
    ({"meta.location.tags": {"exists": True}}, "0"),
    ({"meta.location.floor": 2}, "04"),
    ({'meta.odd "key".\\': {"ge": "e"}}, "4"),
    ({"meta.unknown": 1}, ""),
    ({"not": {"meta.unknown": 1}}, "0123456789abcd"),
    ({"label": "circle", "meta.camera": {"exists": False}}, "567"),
    ({"label": {"ne": "circle"}}, "89abcd"),
    ({"label": {"in": ["square", "circle", "none"]}, "meta.camera": {"exists": False}}, "567"),
    ({"label": {"in": ["square", "circle"]}}, "01234567"),
    ({"label": {"name": "neg", "score": {"lt": 0}}}, "9"),
    ({"label": {"in": []}}, ""),
    ({"label": "unknown"}, ""),
    ({"best": "square"}, "6"),
    ({"best": {"in": ["square", "circle"]}}, "01234567"),
    ({"best": {"ne": "circle"}}, "89abcd"),
    ({"best": "unknown"}, ""),
    ({"label": {"name": "circle", "score": {"ge": 0.9}}}, "012345"),
    ({"label": {"name": "circle", "score": {"gt": 0.9}}}, "01234"),
    ({"label": {"name": "circle", "score": {"lt": 0.5}}}, "56"),
    ({"label": {"name": "circle", "score": {"gt": 0.3, "lt": 0.5}}}, "5"),
    ({"label": {"name": "circle", "score": 0.4}}, "5"),
    ({"label": {"name": "circle", "score": {"ge": -5}}}, "0123456"),
    ({"model": "shapes-detector"}, "01234567abcd"),
    ({"model": "SHIPS:2"}, "8"),
    ({"model": "m-ships"}, "89"),
    ({"model": {"in": ["ships", "shapes-detector:1"]}}, "0123456789abcd"),
    ({"model": {"ne": "ships"}}, "01234567abcd"),
    ({"model": "ships:1"}, ""),
    ({"model": "ships@1"}, ""),
    ({"model": {"exists": True}}, "0123456789abcd"),
    ({"task": "detection"}, "01234567abd"),
    ({"task": "Oriented"}, "8"),
    ({"task": {"in": ["OBJECT_DETECTION", "tensor"]}}, "012345679abd"),
    ({"action": "embed"}, "8"),
    ({"action": {"contains": "pre"}}, "012345679abcd"),
    ({"request_id": "r"}, "9"),
    ({"request_id": {"in": ["r", "s"]}}, "9"),
    ({"latency_ms": 0.001}, "7"),
    ({"latency_ms": {"ge": 4.2}}, "012345689abcd"),
    ({"input.hash": {"exists": False}}, "9b"),
    ({"input.hash": {"ne": "x"}}, "0123456789abcd"),
    ({"input.hash": "blake3:" + "0" * 64}, "012345678acd"),
    ({"id": str(smallest_id_at(BASE_MS + 3))}, "3"),
    ({"id": {"in": [str(smallest_id_at(BASE_MS + 3)), str(smallest_id_at(BASE_MS + 5)), "9" * 19]}}, "35"),
    ({"id": {"ge": "9" * 19}}, ""),
    ({"ts": timestamp_text(BASE_MS + 4)}, "4"),
    ({"ts": {"gt": timestamp_text(BASE_MS + 4), "le": timestamp_text(BASE_MS + 6)}}, "56"),
    ({"ts": {"in": [timestamp_text(BASE_MS), timestamp_text(BASE_MS + 9)]}}, "09"),
    ({"not": {"ts": {"ge": timestamp_text(BASE_MS + 1)}}}, "0"),
    ({"ts": {"lt": "2026-02-02T02:40:00.0035Z"}}, "0123"),
    ({"ts": {"ge": "2026-02-02T02:40:00.0035Z"}}, "456789abcd"),
    ({"ts": {"ge": "2100-01-01T00:00:00Z"}}, ""),
    ({"ts": {"le": "2100-01-01T00:00:00Z"}}, "0123456789abcd"),
    ({"ts": {"lt": "1950-01-01T00:00:00Z"}}, ""),
    ({"ts": {"gt": timestamp_text(BASE_MS + 6), "lt": timestamp_text(BASE_MS + 2)}}, ""),
    ({"or": [{"meta.camera": "north"}, {"label": {"name": "square"}}, {"id": str(smallest_id_at(BASE_MS))}]}, "06"),
    ({"or": [{"meta.camera": "north"}, {"meta.altitude": {"ge": 0}}]}, "013"),
    ({"or": [{"meta.camera": "north", "meta.altitude": {"gt": 1}}, {"request_id": "r"}]}, "09"),
    ({"and": [{"not": {"not": {"meta.night": True}}}, {"or": [{"meta.altitude": 2}]}]}, "1"),
    ({"status": 500}, "a"),
    ({"status": {"lt": 500}, "task": "segmentation"}, "c"),
    ({"version": {"in": ["2", "10"]}}, "89"),
    ({"model.sha256": HASH}, "8"),
    ({"model.sha256": "CAFE1234"}, "8"),
    ({"model.sha256": "cafe12340"}, "8"),
    ({"model.sha256": "cafe12341"}, ""),
    ({"model.sha256": HASH + "0"}, ""),
    ({"model.sha256": "afe12340"}, ""),
    ({"model.sha256": {"ne": "cafe1234"}}, "012345679abcd"),
    ({"model.sha256": {"in": ["00000000", HASH]}}, "8"),
    ({"model.sha256": {"in": []}}, ""),
    ({"model": "ships", "model.sha256": {"exists": False}}, "9"),
    ({"model": "ships", "model.sha256": {"exists": True}}, "8"),
    ({"predictions": {"ge": 2}}, "56ad"),
    ({"predictions": {"exists": False}}, "8"),
    ({"answer": "no"}, "d"),
    ({"answer": {"contains": "ship"}}, "d"),
    ({"answer": {"in": ["no", "yes"], "ne": "two"}}, "d"),
    ({"answer": {"exists": True}}, "d"),
    ({"std.protocol": "v2"}, "a"),
    ({"std.stage.decode_ms": {"gt": 1, "lt": 2}}, "a"),
    ({"std.stage": {"exists": True}}, "a"),
    ({"box": {"width": 20}}, "ab"),
    ({"box": {"area": {"gt": 100}}}, "ab"),
    ({"box": {"cx": {"ge": 20, "le": 50}, "height": 10}}, "ab"),
    ({"box": {"width": {"lt": 5}}}, "ac"),
    ({"box": {"height": 7, "width": 4, "cx": 3, "cy": 5.5}}, "c"),
    ({"label": {"name": "ship", "area": {"le": 200}, "score": {"ge": 0.55}}}, "a"),
    ({"label": {"name": "ship", "area": {"gt": 1}, "score": {"ge": 0.55}}}, ""),
    ({"label": {"name": "ship", "n": 2}}, "a"),
    ({"label": {"name": "ship", "n": {"lt": 2}}, "meta.latitude": {"exists": True}}, "bcd"),
    ({"label": {"name": "ship", "n": {"ge": 1}, "score": {"lt": 0.55}}}, "ab"),
    ({"label": {"name": "ship", "n": {"ge": 2}, "score": {"lt": 0.55}}}, ""),
    ({"label": {"name": {"in": ["ship", "square"]}, "score": {"ge": 0.6}}}, "6a"),
    ({"box": {"n": {"ge": 2}}}, "56ad"),
    ({"label": {"name": "a\ufffdb"}}, "c"),
    ({"label": {"name": "a\ufffdb", "width": {"gt": 1}}}, "c"),
    ({"geo": {"exists": True}}, "abc"),
    ({"geo": {"near": [51.5, -0.12], "within": "0m"}}, "a"),
    ({"geo": {"near": [51.5, -0.13], "within": "1km"}}, "a"),
    ({"geo": {"near": [51.5, -0.13], "within": "0.5km"}}, ""),
    ({"geo": {"near": [-17, -179.99], "within": "2km"}}, "b"),
    ({"geo": {"near": [89.9, -80], "within": "23km"}}, "c"),
    ({"geo": {"near": [89.9, -80], "within": "22km"}}, ""),
    ({"geo": {"near": [0, 0], "within": "20100km"}}, "abc"),
    ({"geo": {"box": [51, -1, 52, 1]}}, "a"),
    ({"geo": {"box": [-20, 170, 0, -170]}}, "b"),
    ({"geo": {"box": [-20, -180, 0, -170]}}, "b"),
    ({"geo": {"box": [-90, -180, 90, 180]}}, "abc"),
    ({"geo": {"polygon": [[51, -1], [52, -1], [52, 1]]}}, "a"),
    ({"geo": {"polygon": [[51, -1], [51, 1], [52, 1]]}}, ""),
    ({"geo": {"polygon": [[-20, 175], [-10, 175], [-10, -175], [-20, -175]]}}, "b"),
    ({"geo": {"polygon": [[80, 0], [80, 120], [80, -120]]}}, "c"),
    ({"geo": {"polygon": [[-80, 0], [-80, 120], [-80, -120]]}}, ""),
    ({"geo": {"polygon": [[0, 0], [0, 120], [0, -120]]}}, "ac"),
    ({"not": {"geo": {"box": [0, -180, 90, 180]}}, "meta.latitude": {"exists": True}}, "bd"),
    ({"ground_truth": {"exists": True}}, ""),
    ({"ground_truth.review": {"ne": "approved"}, "meta.latitude": {"exists": True}}, "abcd"),
    ({"ground_truth.label": {"ne": "ship"}, "meta.latitude": {"exists": True}}, "abcd"),
    ({"feedback": {"exists": True}}, ""),
]  # fmt: skip


@pytest.fixture(scope="module")
def table(database: EmptyDatabase, record) -> Iterator[QueryHarness]:
    stored = QueryHarness(database, [
        record(smallest_id_at(BASE_MS + number), **fields) for number, fields in enumerate(TABLE_RECORDS)
    ])  # fmt: skip
    yield stored
    stored.close()


@pytest.mark.parametrize(("where", "ids"), FILTERS)
def test_a_filter_finds(table: QueryHarness, where: Any, ids: str) -> None:
    expected = [smallest_id_at(BASE_MS + int(digit, 16)) for digit in ids]
    for inferences, form in zip(table.readers, FORMS, strict=True):
        request = form(where)
        assert found(inferences, request, "ts") == expected
        assert found(inferences, request, "-ts", limit=1) == expected[::-1]
        assert inferences.count(request) == Count(len(expected), is_exact=True)


@pytest.mark.parametrize("kind", ["and", "or"])
def test_the_largest_filters_can_be_asked(table: QueryHarness, kind: str) -> None:
    deep: dict[str, Any] = {"meta.camera": {"in": [str(n) for n in range(1000)]}}
    for _ in range(14):
        deep = {kind: [{"not": {"label": "circle"}}, deep]}
    many = {kind: [{"meta.camera": {"in": [str(n) for n in range(50)]}}] * 100 + [
        {"label": {"name": "circle", "score": {"lt": 0.5}}}] * 100}  # fmt: skip
    times = {"not": {"ts": {"in": [timestamp_text(n) for n in range(1000)]}}}
    labels = {"label": {"in": [str(n) for n in range(1000)]}}
    ring = [[(n % 7) * 10, n - 50] for n in range(100)]
    places = {kind: [{"geo": {"polygon": ring}}] * 20}
    for inferences in table.readers:
        for where in (deep, many, times, labels, places):
            inferences.query(QueryRequest(where, count="exact"))


# What follows compares with plain Python.


@pytest.fixture(scope="module")
def random_store(other_database: EmptyDatabase, record) -> Iterator[QueryHarness]:
    stored = QueryHarness(
        other_database, [record(**fields) for fields in random_records(random.Random(20))]
    )
    yield stored
    stored.close()


@settings(max_examples=40)
@given(where=filters, order=st.sampled_from(["ts", "-ts"]), limit=st.integers(50, 120))
def test_every_plan_finds_what_the_predicate_holds_for(
    random_store: QueryHarness, where: Any, order: str, limit: int
) -> None:
    expected = sorted(
        (record.seq for record in random_store.records if holds(where, record)),
        reverse=order == "-ts",
    )
    for inferences, form in zip(random_store.readers, FORMS, strict=True):
        assert found(inferences, form(where), order, limit) == expected
    assert random_store.readers[0].count(QueryRequest(where)).count == len(expected)
    assert found(random_store.hasty, QueryRequest(where), order, limit) == expected

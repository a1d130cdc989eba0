"""What comes before and after an inference among the matches of a filter, as its pages say."""

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quadriga.store.browsing import neighbours
from quadriga.store.browsing.neighbours import (
    Neighbours,
    NeighboursRequest,
    Surroundings,
    find_neighbours,
    find_surroundings,
)
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import QueryRequest, request_from_url
from quadriga.store.query.sql.search import Budget
from quadriga.store.records.errors import NotFoundError, QueryError
from quadriga.store.records.scope import Scope
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness

FILTERS: list[Any] = [
    {},
    {"meta.camera": "north"},
    {"meta.altitude": {"ge": 10, "lt": 60}},
    {"not": {"meta.camera": "north"}},
    {"or": [{"meta.camera": "east"}, {"label": "star"}]},
    {"label": {"name": "star", "score": {"ge": 0.5}}},
    {"latency_ms": {"gt": 5}},
    {"meta.camera": "nowhere"},
]


@pytest.fixture
def reader(database_url: str, tmp_path: Path) -> Iterator[InferenceReader]:
    chance, store = random.Random(1), StoreHarness(tmp_path, database_url)
    store.commit(
        *(
            make_record(
                seq << 24,
                team="b" if seq % 3 == 0 else "a",
                metadata={"camera": chance.choice(["north", "east"]), "altitude": chance.random() * 100},
                predictions=[{"label": chance.choice(["star", "ring"]), "score": chance.random()}],
                latency_ms=chance.random() * 10,
            )
            for seq in range(1, 60)
        )
    )  # fmt: skip
    yield store.inferences
    store.close()


@pytest.mark.parametrize("where", FILTERS, ids=str)
def test_neighbours_are_those_of_the_pages(reader: InferenceReader, where: Any) -> None:
    everything = [one.id for one in reader.query(QueryRequest()).inferences]
    for order in ("-ts", "ts"):
        matches = [one.id for one in reader.query(QueryRequest(where, order=order)).inferences]
        for inference_id in everything:
            seq = int(inference_id)
            before = [m for m in matches if (int(m) > seq if order == "-ts" else int(m) < seq)]
            after = [m for m in matches if (int(m) < seq if order == "-ts" else int(m) > seq)]
            expected = Neighbours(next(reversed(before), None), next(iter(after), None))
            request = NeighboursRequest(where, order=order)
            assert find_neighbours(reader, inference_id, request) == expected


@pytest.mark.parametrize("where", FILTERS, ids=str)
def test_several_neighbours_are_those_of_the_pages(reader: InferenceReader, where: Any) -> None:
    for order in ("-ts", "ts"):
        matches = [one.id for one in reader.query(QueryRequest(where, order=order)).inferences]
        for number in (1, 2, 3, 30, 57, 58, 59):
            seq = number << 24
            before = [m for m in matches if (int(m) > seq if order == "-ts" else int(m) < seq)]
            after = [m for m in matches if (int(m) < seq if order == "-ts" else int(m) > seq)]
            expected = Surroundings(before[:-4:-1], after[:3], partial=False)
            request = NeighboursRequest(where, order=order)
            assert find_surroundings(reader, str(seq), request, 3) == expected


def test_where_several_take_too_long_there_is_the_nearest(
    reader: InferenceReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "_SHORT", Budget(rows=5, seconds=-1, first_batch_rows=5))
    matches = {"and": [{"latency_ms": {"ge": 0}}, {"not": {"id": {"in": [str(n << 24) for n in range(24, 36) if n != 30]}}}]}  # fmt: skip
    answer = find_surroundings(reader, str(30 << 24), NeighboursRequest(matches), 3)
    assert answer == Surroundings([str(36 << 24)], [str(23 << 24)], partial=False)
    reader.budget = Budget(rows=5, first_batch_rows=5)
    nothing = NeighboursRequest({"latency_ms": {"gt": 100}})
    answer = find_surroundings(reader, str(30 << 24), nothing, 3)
    assert answer == Surroundings([], [], partial=True)


def test_neighbours_are_of_the_own_team_alone(reader: InferenceReader) -> None:
    of_a = reader.within(Scope("a"))
    request = NeighboursRequest()
    assert find_neighbours(of_a, str(2 << 24), request) == Neighbours(str(4 << 24), str(1 << 24))
    assert find_neighbours(of_a, str(59 << 24), request).previous is None
    for missing in (3 << 24, 60 << 24):
        with pytest.raises(NotFoundError, match=f"inference not found: {missing}"):
            find_neighbours(of_a, str(missing), request)


def test_a_side_that_was_not_searched_to_its_end_is_partial(reader: InferenceReader) -> None:
    reader.budget = Budget(rows=5, first_batch_rows=5)
    where = {"latency_ms": {"gt": 100}}
    result = find_neighbours(reader, str(20 << 24), NeighboursRequest(where))
    assert result == Neighbours(None, None, partial=True)
    at_the_end = NeighboursRequest({"and": [{"latency_ms": {"gt": 100}}, {"id": str(59 << 24)}]})
    assert not find_neighbours(reader, str(59 << 24), at_the_end).partial


def test_the_url_has_the_filter_and_the_order() -> None:
    assert request_from_url("order=ts", NeighboursRequest).order == "ts"
    assert request_from_url("meta.camera=north", NeighboursRequest).where == '"meta.camera"=north'


@pytest.mark.parametrize(
    ("url", "inference_id", "message"),
    [
        ("order=up", str(1 << 24), "expected order (-ts, ts), got: Invalid enum value 'up'"),
        ("limit=1", str(1 << 24), "expected limit to name one of id"),
        ("cursor=x", str(1 << 24), "expected cursor to name one of id"),
        ("colour=red", str(1 << 24), "expected colour to name one of id"),
        ("", "x", "expected an id as a string of digits, got 'x'"),
    ],
)
def test_a_bad_request_is_refused_with_its_reason(
    reader: InferenceReader, url: str, inference_id: str, message: str
) -> None:
    with pytest.raises(QueryError, match=re.escape(message)):
        find_neighbours(reader, inference_id, request_from_url(url, NeighboursRequest))

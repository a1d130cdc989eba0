"""What to label next: the order, its reasons, what has truth, and what a caller may not see."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quadriga.store.browsing import label_queue
from quadriga.store.browsing.label_queue import (
    LabelQueueRequest,
    find_label_queue,
)
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import request_from_url
from quadriga.store.records.errors import NotFoundError, QueryError
from quadriga.store.records.records import JournaledChange, TruthStatement
from quadriga.store.records.scope import Scope
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness

FIRST = 700_000_000_000


def scored(**scores: float) -> list[dict[str, Any]]:
    return [{"label": label, "score": score} for label, score in scores.items()]


RECORDS = [
    make_record(FIRST + 1, team="a", predictions=scored(star=0.9, ring=0.8)),
    make_record(FIRST + 2, team="a", predictions=scored(star=0.6, ring=0.1)),
    make_record(FIRST + 3, team="b", predictions=scored(star=0.3)),
    make_record(FIRST + 4, team="a", predictions=[]),
    make_record(FIRST + 5, team="a", predictions=scored(ring=0.1), status=500),
    make_record(FIRST + 6, team="a", predictions=scored(ring=0.2, star=0.15)),
    make_record(FIRST + 7, team="a", task="TENSOR", predictions={"shape": [1]}),
]


@pytest.fixture
def store(database_url: str, tmp_path: Path) -> Iterator[StoreHarness]:
    harness = StoreHarness(tmp_path, database_url)
    harness.commit(*RECORDS)
    state_truth(harness, FIRST + 6)
    yield harness
    harness.close()


def state_truth(store: StoreHarness, seq: int) -> None:
    statement = TruthStatement("id", str(seq), [{"label": "star"}], "mara", task="OBJECT_DETECTION")
    store.commit(JournaledChange(FIRST + 100 + seq % 100, statement))


def order_of(reader: InferenceReader, **request: Any) -> list[int]:
    queue = find_label_queue(reader, LabelQueueRequest(**request))
    return [int(one.id) - FIRST for one in queue.inferences]


def test_the_lowest_best_score_comes_first_nothing_found_in_the_middle_and_truth_and_failures_not_at_all(
    store,
):
    queue = find_label_queue(store.inferences, LabelQueueRequest())
    found = [(int(one.id) - FIRST, one.reason, one.value, one.labels) for one in queue.inferences]
    assert found == [
        (3, "score", 0.3, ["star"]),
        (4, "nothing", None, []),
        (2, "score", 0.6, ["star", "ring"]),
        (1, "score", 0.9, ["star", "ring"]),
        (7, "nothing", None, []),
    ]
    assert (queue.considered, queue.partial) == (5, False)


def test_the_lowest_margin_comes_first_and_what_has_no_second_label_last(store):
    queue = find_label_queue(store.inferences, LabelQueueRequest(by="margin")).inferences
    assert [int(one.id) - FIRST for one in queue] == [1, 2, 3, 4, 7]
    assert [one.reason for one in queue] == ["margin", "margin", "alone", "nothing", "nothing"]
    assert queue[0].value == pytest.approx(0.1)


def test_at_random_the_order_stays_the_same(store):
    order = order_of(store.inferences, by="random")
    assert sorted(order) == [1, 2, 3, 4, 7]
    assert order == order_of(store.inferences, by="random")


@pytest.mark.parametrize("by", ["score", "margin", "random"])
def test_each_inference_follows_the_one_before_until_none_does(store, by):
    whole, seen = order_of(store.inferences, by=by), []
    while following := order_of(
        store.inferences, by=by, limit=1, after=str(FIRST + seen[-1]) if seen else None
    ):
        seen += following
    assert seen == whole


def test_what_somebody_else_labels_meanwhile_is_left_out(store):
    assert order_of(store.inferences) == [3, 4, 2, 1, 7]
    state_truth(store, FIRST + 2)
    assert order_of(store.inferences, after=str(FIRST + 3)) == [4, 1, 7]
    assert order_of(store.inferences, after=str(FIRST + 2)) == [1, 7]


def test_a_filter_of_alternatives_stays_one_condition(store):
    assert order_of(store.inferences, where="label=ring | label=star") == [3, 2, 1]
    assert order_of(store.inferences, where={"label": "ring"}) == [2, 1]


def test_a_team_has_its_own_alone(store):
    reader = store.inferences.within(Scope(team="b"))
    assert order_of(reader) == [3]
    with pytest.raises(NotFoundError):
        order_of(reader, after=str(FIRST + 1))


def test_only_so_many_of_the_newest_are_put_in_order(store, monkeypatch):
    monkeypatch.setattr(label_queue, "CONSIDERED", 3)
    queue = find_label_queue(store.inferences, LabelQueueRequest())
    assert [int(one.id) - FIRST for one in queue.inferences] == [4, 7]  # the third failed
    assert queue.partial


@pytest.mark.parametrize(
    "query", ["by=age", "limit=0", "limit=101", "limit=all", "after=x", "q=((("]
)
def test_what_is_no_request_is_refused(store, query):
    with pytest.raises(QueryError):
        find_label_queue(store.inferences, request_from_url(query, LabelQueueRequest))

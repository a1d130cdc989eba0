"""The id that a second server answered for a request leads to the inference that is stored, until that goes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from quadriga.store.query.request import QueryRequest
from quadriga.store.records.errors import NotFoundError
from quadriga.store.records.ids import LARGEST_ID, smallest_id_at
from quadriga.store.records.records import (
    IDEMPOTENCY_KEY,
    Deletion,
    Feedback,
    InputReference,
    JournaledChange,
    ModelReference,
    TruthStatement,
)
from quadriga.store.records.scope import Scope
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness, run_statements

FIRST = smallest_id_at(1_795_460_000_000) | 1 << 12
SECOND = FIRST + (5 << 22) + 4096
THIRD = SECOND + 4096
CHANGE = FIRST + (1 << 40)
"""Id of the first change, which comes after the inferences."""

NAME = "5" * 32
CIRCLE, STAR = [{"label": "circle"}], [{"label": "star"}]
LEADS = "SELECT seq, first_seq FROM repeated_id ORDER BY seq"
OTHER_IMAGE = InputReference("image", "blake3:" + "9" * 64, 640, 480, "image/jpeg")


def repeated(seq: int, **fields: Any) -> Any:
    """Return the record of a request with an idempotency key, as one of several servers makes it."""
    standard = {IDEMPOTENCY_KEY: NAME}
    return make_record(seq, **({"standard": standard, "request_id": "one"} | fields))


def stated(number: int, seq: int, annotations: Any, **fields: Any) -> JournaledChange:
    statement = TruthStatement("id", str(seq), annotations, task="OBJECT_DETECTION", **fields)
    return JournaledChange(CHANGE + number, statement)


@pytest.fixture
def servers(tmp_path: Path, postgres) -> Iterator[list[StoreHarness]]:
    """The stores of three servers that share a database."""
    url = postgres.create()
    servers = [StoreHarness(tmp_path / name, url) for name in "abc"]
    yield servers
    for server in servers:
        server.close()
    postgres.drop(url)


@pytest.fixture
def led(store: StoreHarness) -> StoreHarness:
    """A store with an inference that a second id leads to, on each database."""
    store.commit(repeated(FIRST), make_record(FIRST + 1, team="quality"))
    lead(store, SECOND, FIRST)
    lead(store, THIRD, FIRST + 1)
    return store


def lead(store: StoreHarness, seq: int, first_seq: int) -> None:
    run_statements(store.url, ("INSERT INTO repeated_id VALUES (?, ?)", (seq, first_seq)))


def test_each_acknowledged_id_finds_the_inference_that_is_stored(
    servers: list[StoreHarness],
) -> None:
    first, second, third = servers
    second.commit(repeated(SECOND, latency_ms=5.0), make_record(THIRD + 1))  # the first to be moved
    first.commit(repeated(FIRST, latency_ms=4.0))
    third.commit(repeated(THIRD, latency_ms=6.0))
    assert second.stored_ids() == [SECOND, THIRD + 1]
    assert first.rows(LEADS) == [(FIRST, SECOND), (THIRD, SECOND)]
    for server in servers:
        for seq in (FIRST, SECOND, THIRD):
            inference = server.inferences.get(str(seq))
            assert (inference.id, inference.latency_ms) == (str(SECOND), 5.0)
            assert server.inferences.get_committed(str(seq)).id == str(SECOND)
    before = first.all_rows()
    for server in servers:
        server.recommit_journal()
    assert first.all_rows() == before


def test_an_id_leads_to_a_record_of_the_same_batch(servers: list[StoreHarness]) -> None:
    """A server whose file of claims was lost answers with two ids itself."""
    servers[0].commit(stated(0, SECOND, CIRCLE), repeated(FIRST), repeated(SECOND))
    assert servers[0].rows(LEADS) == [(SECOND, FIRST)]
    assert servers[0].ground_truth(SECOND) == CIRCLE


@pytest.mark.parametrize(
    "fields",
    [
        {"input": OTHER_IMAGE},
        {"standard": {IDEMPOTENCY_KEY: "6" * 32}},
        {"standard": {}},
        {"request_id": "two"},
    ],
    ids=["another image", "another key", "no key", "another request"],
)
def test_an_id_of_another_request_leads_nowhere(
    servers: list[StoreHarness], fields: dict[str, Any]
) -> None:
    servers[0].commit(repeated(FIRST))
    servers[1].commit(repeated(SECOND, **fields))
    assert servers[0].rows(LEADS) == []
    assert servers[1].inferences.get(str(SECOND)).id == str(SECOND)


def test_no_id_leads_to_a_record_that_has_its_own_id_by_chance(servers: list[StoreHarness]) -> None:
    first, second, _ = servers
    first.commit(make_record(FIRST, request_id="other"), make_record(SECOND, request_id="other"))
    second.commit(repeated(FIRST), repeated(THIRD))
    (new_id,) = set(first.stored_ids()) - {FIRST, SECOND}
    assert first.rows(LEADS) == []
    second.recommit_journal()
    assert first.rows(LEADS) == [(THIRD, new_id)]  # and not the id that another record has
    servers[2].commit(repeated(SECOND))
    assert first.rows(LEADS) == [(THIRD, new_id)]
    assert first.inferences.get(str(SECOND)).request_id == "other"


def test_an_id_that_waits_in_the_journal_is_found_by_itself_until_it_is_moved(
    servers: list[StoreHarness],
) -> None:
    first, second, _ = servers
    first.commit(repeated(FIRST))
    second.journal.append([repeated(SECOND)])
    assert second.inferences.get(str(SECOND)).id == str(SECOND)
    with pytest.raises(NotFoundError):
        first.inferences.get(str(SECOND))
    second.writer.drain()
    assert {server.inferences.get(str(SECOND)).id for server in servers} == {str(FIRST)}


def test_ground_truth_that_came_before_the_second_record_is_of_the_first(
    servers: list[StoreHarness],
) -> None:
    first, second, third = servers
    first.commit(repeated(FIRST), stated(0, FIRST, STAR))
    third.commit(stated(1, SECOND, CIRCLE), stated(2, SECOND, STAR, expected=7))  # that is refused
    assert first.ground_truth(FIRST) == STAR
    second.commit(repeated(SECOND))
    assert first.ground_truth(FIRST) == CIRCLE
    assert first.rows("SELECT join_on, value FROM truth ORDER BY id") == [
        ("id", str(FIRST)),
        ("id", str(FIRST)),
        ("", str(FIRST)),
    ]
    before = first.all_rows()
    for server in (third, second):
        server.recommit_journal()
    assert first.all_rows() == before
    first.commit(JournaledChange(CHANGE + 3, Deletion([FIRST])))
    assert (first.rows("SELECT id FROM truth"), first.rows(LEADS)) == ([], [])


def test_ground_truth_that_comes_later_is_of_the_first(led: StoreHarness) -> None:
    led.commit(stated(0, SECOND, CIRCLE))
    assert led.ground_truth(FIRST) == led.ground_truth(SECOND) == CIRCLE
    led.commit(stated(1, SECOND, STAR, expected=CHANGE), stated(2, SECOND, CIRCLE, expected=CHANGE))
    assert led.ground_truth(FIRST) == STAR
    without_task = TruthStatement("id", str(SECOND), [])
    led.commit(JournaledChange(CHANGE + 3, without_task))
    assert led.ground_truth(FIRST) == []
    assert led.rows("SELECT task FROM truth ORDER BY id DESC LIMIT 1") == [("OBJECT_DETECTION",)]
    before = led.all_rows()
    led.recommit_journal()
    assert led.all_rows() == before


@pytest.mark.parametrize("scope", [Scope("quality"), Scope(models=("shapes-*",))])
def test_an_id_leads_to_what_a_scope_admits(led: StoreHarness, scope: Scope) -> None:
    assert led.inferences.within(scope).get(str(THIRD)).id == str(FIRST + 1)


@pytest.mark.parametrize("scope", [Scope("other"), Scope("quality", ("x",))])
def test_an_id_leads_nowhere_beyond_a_scope(led: StoreHarness, scope: Scope) -> None:
    with pytest.raises(NotFoundError):
        led.inferences.within(scope).get(str(THIRD))


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"id": str(SECOND)}, [FIRST]),
        ({"id": {"in": [str(SECOND)]}}, [FIRST]),
        ({"id": {"in": [str(FIRST), str(SECOND), str(THIRD), "5"]}}, [FIRST, FIRST + 1]),
        ({"id": {"ne": str(SECOND)}}, [FIRST + 1]),
        ({"not": {"id": {"in": [str(THIRD)]}}}, [FIRST]),
        ({"or": [{"id": str(SECOND)}, {"id": str(FIRST + 1)}]}, [FIRST, FIRST + 1]),
        ({"and": [{"id": str(SECOND)}, {"status": 500}]}, []),
        ({"and": [{"id": str(SECOND)}, {"id": str(THIRD)}]}, []),
        ({"id": {"gt": str(FIRST)}}, [FIRST + 1]),
        ({"id": {"ge": str(SECOND)}}, []),  # it is a time, of which nothing is stored
        ({"id": {"exists": True}}, [FIRST, FIRST + 1]),
        ({"id": str(10**19 - 1)}, []),
    ],
    ids=json.dumps,
)
def test_a_filter_by_an_id_finds_the_inference_that_it_leads_to(
    led: StoreHarness, where: Any, expected: list[int]
) -> None:
    assert led.page_ids(where=where, order="ts") == expected
    assert led.inferences.count(QueryRequest(where=where)).count == len(expected)
    assert [seq for batch in led.inferences.matching_ids(where) for seq in batch] == expected


@pytest.mark.parametrize("scope", [Scope("other"), Scope("quality", ("x",))])
def test_a_filter_by_an_id_finds_nothing_beyond_a_scope(led: StoreHarness, scope: Scope) -> None:
    page = led.inferences.within(scope).query(QueryRequest(where={"id": str(THIRD)}))
    assert page.inferences == []


def test_an_id_that_is_found_costs_no_further_look(led: StoreHarness) -> None:
    statements: list[str] = []

    def note(*arguments: Any) -> None:
        statements.append(arguments[2])

    led.inferences.get(str(FIRST))
    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        led.inferences.get(str(FIRST))
        of_found = len(statements)
        assert led.inferences.get(str(SECOND)).id == str(FIRST)
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    assert not any("repeated_id" in statement for statement in statements[:of_found])
    assert any("repeated_id" in statement for statement in statements[of_found:])


def test_an_id_leads_nowhere_once_the_inference_is_gone(led: StoreHarness) -> None:
    led.commit(JournaledChange(CHANGE, Feedback(FIRST, "thumbs", 1.0)))
    led.commit(JournaledChange(CHANGE + 1, Deletion([FIRST])))
    for seq in (SECOND, LARGEST_ID, 10**19 - 1):
        with pytest.raises(NotFoundError):
            led.inferences.get(str(seq))
    assert led.rows(LEADS) == [(THIRD, FIRST + 1)]


def test_what_an_older_version_left_leads_nowhere(led: StoreHarness) -> None:
    """It removes an inference, and not the ids that lead to it; then the second record may come again."""
    led.execute(f"DELETE FROM inference WHERE seq = {FIRST}")
    with pytest.raises(NotFoundError):
        led.inferences.get(str(SECOND))
    led.commit(make_record(SECOND, model=ModelReference("second", "1", "ab")))
    led.commit(stated(0, SECOND, CIRCLE))
    assert led.inferences.get(str(SECOND)).model.name == "second"
    assert led.ground_truth(SECOND) == CIRCLE

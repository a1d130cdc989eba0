"""What readers keep between queries, plans and ids of names, while the tables under them change."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from quadriga.store.database import open_writer
from quadriga.store.errors import NotReadyError, QueryError
from quadriga.store.ids import smallest_id_at
from quadriga.store.inferences import InferenceReader, QueryRequest
from quadriga.store.partitions import drop_month, list_months
from quadriga.store.query.search import Budget
from tests.postgres_server import PostgresServer
from tests.unit.store.exchange_place import ExchangePlace

DAY_MS = 86_400_000
JANUARY, MARCH = smallest_id_at(1_767_225_600_000), smallest_id_at(1_767_225_600_000 + 65 * DAY_MS)
WHERE = {"meta.x": {"ge": 1}}


@pytest.fixture
def gres(tmp_path: Path, postgres: PostgresServer) -> Iterator[ExchangePlace]:
    made = ExchangePlace(tmp_path, postgres.create())
    yield made
    made.inferences.close()
    postgres.drop(made.url)


@pytest.fixture
def engine(gres: ExchangePlace) -> Iterator[sa.Engine]:
    made = open_writer(sa.make_url(gres.url))
    yield made
    made.dispose()


def ids(place: ExchangePlace, where: object = WHERE, order: str = "-ts") -> list[int]:
    page = place.inferences.query(QueryRequest(where=where, order=order))
    return [int(one.id) for one in page.inferences]


def kept_plans(place: ExchangePlace) -> int:
    """Ask often enough that plans are kept, and return how many are."""
    for _ in range(8):
        ids(place)
    with place.inferences.snapshot() as connection:
        found = connection.exec_driver_sql("SELECT count(*) FROM pg_prepared_statements")
        return found.scalar_one()


def test_a_kept_plan_sees_months_that_come_and_go(gres, engine, record) -> None:
    gres.add(record(JANUARY, metadata={"x": 1}))
    assert kept_plans(gres) > 0
    gres.add(record(MARCH, metadata={"x": 2}))
    assert ids(gres) == [MARCH, JANUARY]
    assert kept_plans(gres) > 0
    with engine.begin() as connection:
        assert drop_month(connection, list_months(connection)[0])
    assert ids(gres) == [MARCH]


def test_other_types_of_columns_are_planned_anew(gres, engine, record) -> None:
    gres.add(record(JANUARY, metadata={"x": 1}))
    kept_plans(gres)
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE inference ALTER input_name TYPE varchar(999)")
    with pytest.raises(NotReadyError, match="cached plan"):
        ids(gres)
    assert ids(gres) == [JANUARY]


def test_of_connections_that_broke_one_query_tells(gres, engine, record) -> None:
    gres.add(record(JANUARY, metadata={"x": 1}))
    with gres.inferences.snapshot() as first, gres.inferences.snapshot() as second:
        pids = [one.exec_driver_sql("SELECT pg_backend_pid()").scalar() for one in (first, second)]
    for _ in pids:
        assert ids(gres) == [JANUARY]  # each knows the names
    with engine.begin() as connection:
        for pid in pids:
            connection.exec_driver_sql("SELECT pg_terminate_backend(%s, 5000)", (pid,))
    with pytest.raises(NotReadyError):
        ids(gres)
    assert ids(gres) == [JANUARY]


def test_what_is_refused_is_refused_again(gres, record) -> None:
    gres.add(*(record(JANUARY + n, metadata={"x": "same"}) for n in range(200)))
    made = InferenceReader(
        gres.url, gres.journal, gres.blobs, narrow_rows=0, budget=Budget(unbounded_rows=3)
    )
    for _ in range(3):
        with pytest.raises(QueryError, match="an index or a time bounds"):
            made.query(QueryRequest(where={"meta.x": {"contains": "am"}}, limit=5))
    assert len(made.query(QueryRequest(where={"meta.x": {"gt": "s"}}, limit=5)).inferences) == 5
    made.close()


def test_a_key_has_values_of_another_type_later(store: ExchangePlace, record) -> None:
    text = {"meta.x": "one"}
    store.add(record(1, metadata={"x": 1}))
    assert (ids(store), ids(store, text)) == ([1], [])
    store.add(record(2, metadata={"x": "one"}), record(3, metadata={"x": True}))
    assert (ids(store), ids(store, text)) == ([1], [2])
    assert ids(store, {"meta.x": {"exists": True}}) == [3, 2, 1]


def test_a_label_is_found_once_there_is_one(store: ExchangePlace, record) -> None:
    either = {"label": {"name": {"in": ["cat", "dog"]}}}
    store.add(record(1, predictions=[{"label": "cat", "score": 0.5}]))
    assert ids(store, either) == [1]
    store.add(record(2, predictions=[{"label": "dog", "score": 0.5}]))
    assert ids(store, either) == [2, 1]

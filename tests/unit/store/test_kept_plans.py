"""What readers keep between queries, plans and ids of names, while the tables under them change."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from quadriga.store.database.database import open_writer
from quadriga.store.database.partitions import drop_month, list_months
from quadriga.store.records.errors import NotReadyError
from quadriga.store.records.ids import smallest_id_at
from tests.postgres_server import PostgresServer
from tests.unit.store_harness import StoreHarness

DAY_MS = 86_400_000
JANUARY, MARCH = smallest_id_at(1_767_225_600_000), smallest_id_at(1_767_225_600_000 + 65 * DAY_MS)
WHERE = {"meta.x": {"ge": 1}}


@pytest.fixture
def postgres_store(tmp_path: Path, postgres: PostgresServer) -> Iterator[StoreHarness]:
    store = StoreHarness(tmp_path, postgres.create())
    yield store
    store.close()
    postgres.drop(store.url)


@pytest.fixture
def engine(postgres_store: StoreHarness) -> Iterator[sa.Engine]:
    engine = open_writer(sa.make_url(postgres_store.url))
    yield engine
    engine.dispose()


def ids(store: StoreHarness, where: object = WHERE, order: str = "-ts") -> list[int]:
    return store.page_ids(where=where, order=order)


def kept_plans(store: StoreHarness) -> int:
    """Query often enough that PostgreSQL prepares plans; return their number."""
    for _ in range(8):
        ids(store)
    with store.inferences.snapshot() as connection:
        result = connection.exec_driver_sql("SELECT count(*) FROM pg_prepared_statements")
        return result.scalar_one()


def test_a_kept_plan_sees_months_that_come_and_go(postgres_store, engine, record) -> None:
    postgres_store.add(record(JANUARY, metadata={"x": 1}))
    assert kept_plans(postgres_store) > 0
    postgres_store.add(record(MARCH, metadata={"x": 2}))
    assert ids(postgres_store) == [MARCH, JANUARY]
    assert kept_plans(postgres_store) > 0
    with engine.begin() as connection:
        assert drop_month(connection, list_months(connection)[0])
    assert ids(postgres_store) == [MARCH]


def test_other_types_of_columns_are_planned_anew(postgres_store, engine, record) -> None:
    postgres_store.add(record(JANUARY, metadata={"x": 1}))
    kept_plans(postgres_store)
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE inference ALTER input_name TYPE varchar(999)")
    with pytest.raises(NotReadyError, match="does not answer") as caught:
        ids(postgres_store)
    assert "cached plan" in caught.value.detail
    with pytest.raises(NotReadyError, match=r"unexpected inference\.input_name character varying"):
        ids(postgres_store)  # planned anew, and not a table of this revision
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE inference ALTER input_name TYPE text")
    assert ids(postgres_store) == [JANUARY]


def test_of_connections_that_broke_one_query_tells(postgres_store, engine, record) -> None:
    postgres_store.add(record(JANUARY, metadata={"x": 1}))
    with (
        postgres_store.inferences.snapshot() as first,
        postgres_store.inferences.snapshot() as second,
    ):
        pids = [
            connection_.exec_driver_sql("SELECT pg_backend_pid()").scalar()
            for connection_ in (first, second)
        ]
    for _ in pids:
        assert ids(postgres_store) == [JANUARY]  # each knows the names
    with engine.begin() as connection:
        for pid in pids:
            connection.exec_driver_sql("SELECT pg_terminate_backend(%s, 5000)", (pid,))
    with pytest.raises(NotReadyError):
        ids(postgres_store)
    assert ids(postgres_store) == [JANUARY]


def test_a_key_has_values_of_another_type_later(store: StoreHarness, record) -> None:
    text = {"meta.x": "one"}
    store.add(record(1, metadata={"x": 1}))
    assert (ids(store), ids(store, text)) == ([1], [])
    store.add(record(2, metadata={"x": "one"}), record(3, metadata={"x": True}))
    assert (ids(store), ids(store, text)) == ([1], [2])
    assert ids(store, {"meta.x": {"exists": True}}) == [3, 2, 1]


def test_a_label_is_found_once_there_is_one(store: StoreHarness, record) -> None:
    either = {"label": {"name": {"in": ["cat", "dog"]}}}
    store.add(record(1, predictions=[{"label": "cat", "score": 0.5}]))
    assert ids(store, either) == [1]
    store.add(record(2, predictions=[{"label": "dog", "score": 0.5}]))
    assert ids(store, either) == [2, 1]

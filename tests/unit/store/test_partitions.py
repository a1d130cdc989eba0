"""Partitions of PostgreSQL's tables: which months are made, and what a user does who may make none."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from quadriga.store.blobs.files import FileBlobs
from quadriga.store.database.database import ReaderPool, open_writer
from quadriga.store.database.partitions import (
    PastMonths,
    create_partitions,
    drop_month,
    has_partitions,
    list_months,
    make_months,
    may_change_tables,
)
from quadriga.store.exchange.import_files import read
from quadriga.store.exchange.imports import Importer
from quadriga.store.maintenance.vacuum import vacuum_postgresql
from quadriga.store.records.errors import MissingPartitionError, QueryError
from quadriga.store.records.ids import smallest_id_at, time_ms
from tests.postgres_server import PostgresServer

ROLE = "partition_test"


def id_in(year: int, month: int) -> int:
    return smallest_id_at(round(datetime(year, month, 15, tzinfo=UTC).timestamp() * 1000))


@pytest.fixture
def owner(postgres: PostgresServer) -> Iterator[sa.Engine]:
    """A database without partitions, opened by the owner of its tables."""
    url = postgres.create()
    engine = open_writer(url)
    yield engine
    engine.dispose()
    postgres.drop(url)


@pytest.fixture
def other(owner: sa.Engine) -> Iterator[sa.Engine]:
    """The same database, opened by a user who may read and write rows."""
    with owner.begin() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {ROLE} LOGIN")
        connection.exec_driver_sql(
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {ROLE}"
        )
        connection.exec_driver_sql(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {ROLE}")
    engine = open_writer(owner.url.set(username=ROLE).render_as_string(hide_password=False))
    yield engine
    engine.dispose()
    with owner.begin() as connection:
        connection.exec_driver_sql(f"DROP OWNED BY {ROLE}")
        connection.exec_driver_sql(f"DROP ROLE {ROLE}")


def months_of(engine: sa.Engine) -> list[str]:
    with engine.connect() as connection:
        return [month.suffix for month in list_months(connection)]


@pytest.mark.parametrize(
    ("first", "count", "made"),
    [
        ((2031, 1), 1, ["2031-01"]),
        ((2030, 12), 1, ["2030-12"]),
        ((2030, 11), 4, ["2030-11", "2030-12", "2031-01", "2031-02"]),
        ((2030, 12), 14, ["2030-12", *(f"2031-{month:02}" for month in range(1, 13)), "2032-01"]),
    ],
)
def test_months_are_made_from_the_first_on(owner: sa.Engine, first, count, made) -> None:
    with owner.connect() as connection:
        assert make_months(connection, count, first) == made
        assert make_months(connection, count, first) == made  # they are there
    assert months_of(owner) == [f"y{text.replace('-', 'm')}" for text in made]


def test_without_a_first_month_it_is_this_one(owner: sa.Engine) -> None:
    before = f"{datetime.now(UTC):%Y-%m}"
    with owner.connect() as connection:
        months = make_months(connection, 2)
    assert months[0] in {before, f"{datetime.now(UTC):%Y-%m}"}
    assert len(months_of(owner)) == 2


def test_sqlite_has_no_months(tmp_path) -> None:
    engine = open_writer(f"sqlite:///{tmp_path}/store.db")
    with engine.connect() as connection:
        assert make_months(connection, 3) == []
        assert has_partitions(connection, (2025, 5))
    engine.dispose()


def test_a_user_who_may_make_no_partition_needs_those_of_the_rows(
    owner: sa.Engine, other: sa.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    may, june = id_in(2025, 5), id_in(2025, 6)
    with owner.connect() as connection:
        assert may_change_tables(connection)
        assert has_partitions(connection, (2025, 6))  # as soon as it is needed
        make_months(connection, 1, (2025, 5))
    with other.connect() as connection:
        assert not may_change_tables(connection)
        assert has_partitions(connection, (2025, 5))
        assert not has_partitions(connection, (2025, 6))
        for _ in range(3):
            create_partitions(connection, [may])
            with pytest.raises(MissingPartitionError, match=r"2025-06.*quadriga migrate --months"):
                create_partitions(connection, [may, june])
        (warning,) = caplog.records  # of the days to come, once
        assert "no partition of" in warning.getMessage()
        with owner.connect() as owning:
            make_months(owning, 1, (2025, 6))
        connection.rollback()  # as each batch has a transaction of its own
        create_partitions(connection, [may, june])
    assert months_of(owner) == ["y2025m05", "y2025m06"]


def test_a_month_to_come_that_is_missing_is_looked_for_again(
    owner: sa.Engine, other: sa.Engine
) -> None:
    """A row without a partition would be taken for a wrong one, and set aside."""
    now = datetime.now(UTC)
    with owner.connect() as connection:
        make_months(connection, 1, (2025, 5))
    with other.connect() as connection:
        create_partitions(connection, [id_in(2025, 5)])
        for _ in range(2):
            with pytest.raises(MissingPartitionError):
                create_partitions(connection, [id_in(now.year, now.month)])


def test_an_import_is_refused_before_it_keeps_others_waiting(
    owner: sa.Engine, other: sa.Engine, tmp_path: Path
) -> None:
    line = {"model": {"name": "m", "version": "1"}, "task": "OBJECT_DETECTION", "predictions": []}
    lines = [
        {"id": str(id_in(2025, month)), "input": {"name": "a.png"}, **line} for month in (5, 6)
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))
    url = other.url.render_as_string(hide_password=False)

    def import_lines() -> int:
        importer = Importer(tmp_path / "journal", url, FileBlobs(tmp_path), "inferences", None)
        return importer.run(read(tmp_path / "in.jsonl")).inferences

    with owner.connect() as connection:
        make_months(connection, 1, (2025, 5))
    with pytest.raises(QueryError, match=r"line 2: the database has no partition .* 2025-06: q"):
        import_lines()
    with owner.connect() as connection:
        make_months(connection, 1, (2025, 6))
        assert import_lines() == 2
        assert connection.exec_driver_sql("SELECT count(*) FROM inference").scalar() == 2


def test_a_database_that_is_away_takes_any_time_and_is_not_asked_for_each(tmp_path: Path) -> None:
    pool = ReaderPool(f"sqlite:///{tmp_path}/none.db")
    snapshots = []
    months = PastMonths(lambda: snapshots.append(1) or pool.snapshot())
    assert all(months.has_place(time_ms(id_in(2025, month))) for month in (5, 6, 5))
    assert len(snapshots) == 1
    pool.close()


def test_a_user_who_does_not_own_the_tables_neither_drops_nor_vacuums(
    owner: sa.Engine, other: sa.Engine
) -> None:
    with owner.connect() as connection:
        make_months(connection, 1, (2025, 5))
    with other.begin() as connection:
        assert not drop_month(connection, list_months(connection)[0])
    assert months_of(owner) == ["y2025m05"]
    assert "by the owner of the tables" in vacuum_postgresql(other)
    assert vacuum_postgresql(owner) == ""
    with owner.begin() as connection:
        assert drop_month(connection, list_months(connection)[0])
    assert months_of(owner) == []

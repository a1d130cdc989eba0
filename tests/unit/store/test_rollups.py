import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from quadriga.store.database.database import execute, migrate, writer_engine
from quadriga.store.database.partitions import create_partitions
from quadriga.store.database.rollups import (
    ALL_TIME,
    HOUR,
    MINUTE_MS,
    PERIODS,
    Tally,
    cover,
    decode_counts,
    latency_bucket,
    rows_of,
    subtract,
)
from quadriga.store.database.rows import NameIds, RowBatch
from quadriga.store.journal.journal import Journal
from quadriga.store.records.ids import smallest_id_at
from quadriga.store.records.records import InputReference, JournaledRecord, ModelReference
from tests.background import at_once
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import check_sums, commit_journal, run_statements

START_MS = 1_780_000_020_000  # a whole minute in 2026
assert START_MS % MINUTE_MS == 0


def journaled(seq: int, **fields) -> JournaledRecord:
    """Return a record as the writer reads it from the journal."""
    return msgspec.json.decode(
        msgspec.json.encode(make_record(seq, **fields)), type=JournaledRecord
    )


def seq(minute: int, number: int = 0) -> int:
    return smallest_id_at(START_MS + minute * MINUTE_MS) + number


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    with writer_engine(database_url) as engine:
        with engine.connect() as connection:
            create_partitions(connection, [seq(0)])
        yield engine


def add(engine: sa.Engine, records: list[JournaledRecord]) -> None:
    with engine.begin() as connection:
        rows = RowBatch(NameIds(connection))
        for record in records:
            rows.add(record)
        rows.insert(connection)


def stored(engine: sa.Engine) -> dict[tuple, dict]:
    """Return what is counted, by model's version and minute from the start on; all longer periods have the sums of it."""
    check_sums(engine.url.render_as_string(hide_password=False))
    with engine.connect() as connection:
        rows = execute(
            connection,
            "SELECT k.version, r.minute, r.n, r.errors, r.latency, r.labels, r.kept_bytes"
            " FROM rollup AS r JOIN model AS k ON k.id = r.model_id WHERE r.n > 0 OR kept_bytes > 0",
        ).all()
        names = dict(execute(connection, "SELECT id, name FROM label").all())
    return {
        (version, minute - START_MS // MINUTE_MS): {
            "n": n,
            "errors": errors,
            "latency": decode_counts(latency),
            "labels": {names[label]: number for label, number in decode_counts(labels).items()},
            "kept_bytes": inputs_kept,
        }
        for version, minute, n, errors, latency, labels, inputs_kept in rows
    }


def test_inferences_are_counted_by_model_and_minute(engine: sa.Engine) -> None:
    other = ModelReference("shapes-detector", "2", "cd" * 32)
    reference = InputReference(
        "image", "blake3:" + "1" * 64, 1, 1, "image/png", kept=True, bytes=700
    )
    unknown = InputReference("image", "blake3:" + "2" * 64, 1, 1, "image/png", kept=True)
    two = [{"label": "circle", "score": 0.5}, {"label": "circle"}, {"label": "square"}]
    add(engine, [
        journaled(seq(0, 1), latency_ms=1.0, input=reference),
        journaled(seq(0, 2), latency_ms=1.0, predictions=two, input=reference),
        journaled(seq(0, 3), latency_ms=0, predictions=[], status=500, input=unknown),
        journaled(seq(1), predictions={"raw": [1]}, status=499),
    ])  # fmt: skip
    add(engine, [journaled(seq(0, 4), model=other), journaled(seq(0, 5), latency_ms=1.0)])
    plain = {
        "n": 1,
        "errors": 0,
        "latency": {latency_bucket(4200): 1},
        "labels": {},
        "kept_bytes": 0,
    }
    assert stored(engine) == {
        ("1", 0): {
            "n": 4,
            "errors": 1,
            "latency": {latency_bucket(1000): 3, -1: 1},
            "labels": {"circle": 4, "square": 1},
            "kept_bytes": 1401,
        },
        ("1", 1): plain,
        ("2", 0): plain | {"labels": {"circle": 1}},
    }


def test_what_is_subtracted_leaves_the_rest(engine: sa.Engine) -> None:
    rest = [journaled(seq(n, 1), latency_ms=n) for n in range(3)]
    gone = [journaled(seq(n, 2), latency_ms=n, status=500) for n in range(3)]
    add(engine, rest)
    before = stored(engine)
    add(engine, gone)
    assert stored(engine) != before
    with engine.begin() as connection:
        subtract(connection, [record.seq for record in gone] + [12345])
    assert stored(engine) == before


def test_servers_that_count_at_once_lose_nothing(engine: sa.Engine, database_url: str) -> None:
    add(engine, [journaled(seq(0))])  # the model has its id
    servers, rounds = 3, 8

    def serve(server: int) -> None:
        with writer_engine(database_url) as own:
            for turn in range(rounds):
                numbers = [1 + server * 100 + turn * 2 + n for n in (0, 1)]
                add(own, [journaled(seq(minute, n)) for n in numbers for minute in (1, 0)])

    at_once([partial(serve, server) for server in range(servers)])
    expected_count = servers * rounds * 2
    counted = {
        key: (tally_fields["n"], tally_fields["labels"])
        for key, tally_fields in stored(engine).items()
    }
    assert counted == {
        ("1", 0): (expected_count + 1, {"circle": expected_count + 1}),
        ("1", 1): (expected_count, {"circle": expected_count}),
    }


@given(
    st.lists(st.integers(0, 10**11), min_size=1, max_size=60),
    st.sampled_from([0.01, 0.5, 0.9, 0.95, 0.99, 1.0]),
)
def test_a_quantile_is_within_one_percent(latencies_us: list[int], quantile: float) -> None:
    tally = Tally()
    for latency in latencies_us:
        tally.count(200, latency)
    exact = sorted(latencies_us)[max(math.ceil(quantile * len(latencies_us)), 1) - 1]
    assert tally.latency_ms(quantile) == pytest.approx(exact / 1000, rel=0.01, abs=0)


def test_nothing_counted_has_no_latency() -> None:
    assert Tally().latency_ms(0.5) is None


@given(st.lists(st.tuples(st.sampled_from([200, 500]), st.integers(0, 10**7))), st.integers(0, 9))
def test_tallies_add_up_and_come_apart(counted: list[tuple[int, int]], at: int) -> None:
    parts = [Tally(), Tally()]
    for number, (status, latency) in enumerate(counted):
        parts[number >= at].count(status, latency)
        parts[number >= at].count_label(status, 2)
    total = Tally()
    for part in parts:
        total.add(part)
    assert (total.n, sum(total.latency.values())) == (len(counted), len(counted))
    total.add(parts[1], -1)
    assert total == parts[0]


def test_the_journal_moved_again_counts_once(database_url: str, tmp_path: Path, record) -> None:
    journal = Journal(tmp_path / "journal", 0)
    journal.append([record(seq(0, n)) for n in range(3)])
    for _ in range(2):
        commit_journal(database_url, tmp_path / "journal")
        with writer_engine(database_url) as engine:
            assert [tally_fields["n"] for tally_fields in stored(engine).values()] == [3]
        run_statements(database_url, ("DELETE FROM journal_offset", ()))
    journal.close()


def test_a_migration_sums_what_an_older_version_counted(
    engine: sa.Engine, database_url: str
) -> None:
    other = ModelReference("shapes-detector", "2", "cd" * 32)
    for minute in (0, 59, 60, 3000, 4000):
        add(engine, [
            journaled(seq(minute), latency_ms=minute), journaled(seq(minute, 1), model=other, status=500),
        ])  # fmt: skip
    run_statements(
        database_url,
        ("DROP TABLE rollup_sum", ()),
        ("DELETE FROM schema_compatibility WHERE revision = '2027.10'", ()),
        ("UPDATE alembic_version SET version_num = '2027.09'", ()),
    )
    migrate(database_url)
    assert sum(counts["n"] for counts in stored(engine).values()) == 10


minutes = st.integers(0, 10**6)
period_of = {rows_of(period): period for period in (1, *PERIODS)}


@given(
    minutes, minutes | st.just(ALL_TIME), st.sampled_from([(0, 0), (1, 0), (60, 0), (10_080, 5760)])
)
def test_the_longest_periods_make_up_a_time(first: int, after: int, group: tuple[int, int]) -> None:
    width, offset = group
    spans = [(period_of[rows], *bounds) for rows, *bounds in cover(first, after, width, offset)]
    for period, start, stop in spans:
        assert start % period == stop % period == width % period == 0
    bounds = sorted(span[1:] for span in spans)
    assert [stop for _, stop in bounds[:-1]] == [start for start, _ in bounds[1:]]
    assert not bounds or (bounds[0][0], bounds[-1][1]) == (first, after)
    assert bool(bounds) == (first < after)
    counted = [sum((b - a) // p for p, a, b in spans if p == period) for period in (1, HOUR)]
    if not width:
        assert counted[0] <= 118
        assert counted[1] <= 46

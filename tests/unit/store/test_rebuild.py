import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quadriga.store.blobs.files import FileBlobs
from quadriga.store.database.database import writer_engine
from quadriga.store.database.rollups import decode_counts
from quadriga.store.database.rows import NameIds
from quadriga.store.maintenance import rebuild as module
from quadriga.store.maintenance.rebuild import RebuildProgress, rebuild
from quadriga.store.maintenance.retention import RetentionCleaner
from quadriga.store.records.ids import smallest_id_at
from quadriga.store.records.records import (
    Deletion,
    InferenceRecord,
    InputReference,
    MetadataChange,
    ModelReference,
    RetentionRule,
)
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness, check_sums

START_MS = 1_780_000_020_000
MINUTE_MS = 60_000
TABLES = {
    "meta_num": "SELECT k.path, k.type, d.val, d.seq FROM meta_num AS d JOIN meta_key AS k ON k.id = d.key",
    "meta_str": "SELECT k.path, k.type, d.val, d.seq FROM meta_str AS d JOIN meta_key AS k ON k.id = d.key",
    "pred": "SELECT k.name, d.band, d.score, d.seq, d.worst, d.n FROM pred AS d JOIN label AS k ON k.id = d.label",
}


def records(first: int, number: int) -> list[InferenceRecord]:
    """Return records that differ in all that is derived from them."""
    rnd = random.Random(first)
    made_records = []
    for n in range(first, first + number):
        predictions = [
            rnd.choice([{"label": label, "score": rnd.random()}, {"label": label}])
            for label in rnd.choices("abc", k=rnd.randrange(4))
        ]
        metadata = {"n": rnd.randrange(5), "s": rnd.choice("xy") * 300, "d": {"t": True, "l": []}}
        if rnd.random() < 0.5:
            metadata |= {"latitude": rnd.uniform(-90, 90), "longitude": rnd.uniform(-180, 180)}
        made_records.append(
            make_record(
                smallest_id_at(START_MS + (n % 7) * MINUTE_MS) + n,
                model=ModelReference("shapes-detector", str(n % 2), "ab" * 32),
                predictions=predictions,
                metadata=metadata,
                status=rnd.choice([200, 500]),
                latency_ms=rnd.choice([0, rnd.uniform(0, 100)]),
                input=InputReference(
                    "i", None, kept=rnd.random() < 0.5, bytes=rnd.choice([None, 9])
                ),
            )
        )
    return made_records


def everything(store: StoreHarness) -> dict[str, Any]:
    """Return all that is derived, by names, as ids may differ."""
    contents: dict[str, Any] = {
        table: sorted(store.rows(statement)) for table, statement in TABLES.items()
    }
    names = {row[0]: row[1] for row in store.rows("SELECT id, name FROM label")}
    counts = store.rows(
        "SELECT k.version, r.minute, r.n, r.errors, r.kept_bytes, r.latency, r.labels"
        " FROM rollup AS r JOIN model AS k ON k.id = r.model_id WHERE r.n > 0 OR kept_bytes > 0"
    )
    contents["rollup"] = sorted(
        (
            *rest,
            decode_counts(latency),
            sorted((names[label], n) for label, n in decode_counts(labels).items()),
        )
        for *rest, latency, labels in counts
    )
    return contents


def damage(store: StoreHarness) -> None:
    """Take rows away, add wrong ones, and change others."""
    first_id, other = smallest_id_at(START_MS) + 7, smallest_id_at(START_MS) + 99_999_999
    minute = START_MS // MINUTE_MS
    for statement in (
        "DELETE FROM meta_num WHERE val < 2",
        "DELETE FROM pred WHERE label = 1",
        "UPDATE pred SET n = n + 3, worst = 7",
        f"INSERT INTO meta_num (key, val, seq) VALUES (1, 77.5, {first_id}), (1, 77.5, {other})",
        f"INSERT INTO meta_str (key, val, seq) VALUES (1, 'wrong', {first_id}), (9, '', {other})",
        f"INSERT INTO pred (label, band, seq, score, worst, n) VALUES (2, 50, {first_id}, 5.5, 0, 1),"
        f" (1, 0, {other}, -1e999, 0, 1)".replace("-1e999", MINUS_INFINITY[store.url[:6]]),
        f"DELETE FROM rollup WHERE minute < {minute + 2}",
        f"UPDATE rollup SET n = n + 1, labels = '{{}}', kept_bytes = 5 WHERE minute > {minute + 4}",
        f"INSERT INTO rollup VALUES (1, {minute + 5000}, 5, 0, '{{}}', '{{}}', 0)",
    ):
        store.execute(statement)


MINUS_INFINITY = {"sqlite": "-9e999", "postgr": "'-infinity'"}


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[StoreHarness]:
    """Another store, to compare with."""
    store = StoreHarness(tmp_path / "fresh", f"sqlite:///{tmp_path}/fresh.db")
    yield store
    store.close()


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEP_ROWS", 23)
    monkeypatch.setattr(module, "MINUTES_AT_ONCE", 3)


def ignore(_: RebuildProgress) -> None:
    """Show nothing."""


def test_what_is_damaged_is_derived_again(store: StoreHarness, fresh: StoreHarness) -> None:
    entries = records(0, 120)
    store.commit(*entries)
    fresh.commit(*entries)
    assert everything(store) == everything(fresh)
    damage(store)
    steps: list[RebuildProgress] = []
    rebuild(store.url, store.root / "rebuild", steps.append)
    check_sums(store.url)
    assert everything(store) == everything(fresh)
    assert [step.table for step in steps if step.after == module._FIRST[step.table]] == [
        "meta_num", "meta_str", "pred", "rollup"
    ]  # fmt: skip
    rebuild(store.url, store.root / "rebuild", ignore)
    assert everything(store) == everything(fresh)


def test_it_is_done_while_others_write(store: StoreHarness, fresh: StoreHarness) -> None:
    before, later = records(0, 100), records(1000, 150)
    store.commit(*before)
    damage(store)
    entries: list[Any] = [before[0]]
    for number, record_ in enumerate(later):
        entries.append(record_)
        if number % 10 == 5:
            gone = [before[number // 10].seq, later[number - 3].seq]
            entries.append(store.sequenced(Deletion(gone)))
            target = later[number - 1].seq
            change = MetadataChange(target, {"n": number, "new": "text"}, ["s"])
            entries.append(store.sequenced(change))

    def write() -> None:
        for record_ in entries:
            store.commit(record_)

    thread = threading.Thread(target=write)
    thread.start()
    while thread.is_alive():
        rebuild(store.url, store.root / "rebuild", ignore)
    thread.join()
    rebuild(store.url, store.root / "rebuild", ignore)
    fresh.commit(*before, *entries)
    assert everything(store) == everything(fresh)


class Interrupted(Exception):
    """What stops a rebuild half way."""


def test_what_was_interrupted_goes_on(store: StoreHarness, fresh: StoreHarness) -> None:
    entries = records(0, 100)
    store.commit(*entries)
    fresh.commit(*entries)
    damage(store)
    state, seen = store.root / "state" / "rebuild", list[RebuildProgress]()

    def interrupt(progress: RebuildProgress) -> None:
        seen.append(progress)
        raise Interrupted

    while not seen or state.exists():
        try:
            rebuild(store.url, state, interrupt)
        except Interrupted:
            continue
    assert [(one.table, one.after) for one in seen].count(("pred", module._FIRST["pred"])) == 1
    assert everything(store) == everything(fresh)


@pytest.mark.parametrize("state", [b"", b"{}", b"\xc1"])
def test_a_state_that_is_none_of_it_begins_anew(store: StoreHarness, state: bytes) -> None:
    store.commit(*records(0, 10))
    right = everything(store)
    damage(store)
    (store.root / "rebuild").write_bytes(state)
    rebuild(store.url, store.root / "rebuild", ignore)
    assert everything(store) == right


def test_counts_outlive_the_rows_that_retention_removed(store: StoreHarness) -> None:
    store.commit(*records(0, 70))
    store.commit_changes(RetentionRule("shapes-detector", None, 1))
    right = everything(store)["rollup"]
    upkeep = RetentionCleaner(FileBlobs(store.root / "blobs"), store.root / "journal")
    with writer_engine(store.url) as engine:
        with engine.connect() as connection:
            names = NameIds(connection)
        while upkeep.run_step(engine, names, START_MS + 86_400_000 + 3 * MINUTE_MS):
            pass
    store.commit_changes(RetentionRule("shapes-detector"))
    store.execute(f"UPDATE rollup SET n = 99 WHERE minute = {START_MS // MINUTE_MS + 4}")
    rebuild(store.url, store.root / "rebuild", ignore)
    counted = everything(store)["rollup"]
    rollup_keys = [[row[:4] for row in rows] for rows in (counted, right)]
    assert rollup_keys[0] == rollup_keys[1]

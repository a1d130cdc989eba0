import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from quadriga.store.blobs.files import FileBlobs
from quadriga.store.blobs.interface import blob_key
from quadriga.store.database.database import execute, open_writer
from quadriga.store.database.partitions import list_months
from quadriga.store.database.rollups import kept_size
from quadriga.store.database.rows import NameIds
from quadriga.store.maintenance import retention
from quadriga.store.maintenance.retention import RetentionCleaner
from quadriga.store.records.ids import smallest_id_at
from quadriga.store.records.records import (
    InferenceRecord,
    InputReference,
    JournaledChange,
    ModelReference,
    RetentionRule,
)
from quadriga.store.writing.writer import Writer
from tests.background import in_background, until
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness, check_sums

NOW_MS = round(datetime(2026, 6, 30, 12, 0, 30, tzinfo=UTC).timestamp() * 1000)
MINUTE_MS, DAY_MS = 60_000, 86_400_000
OTHER = ModelReference("other", "1", "cd" * 32)
DERIVED = ("meta_num", "meta_str", "pred")


class RetentionHarness(StoreHarness):
    """A store whose maintenance is run step by step."""

    def __init__(self, root: Path, url: str) -> None:
        super().__init__(root, url)
        self.blobs = FileBlobs(root / "blobs", grace_s=0)
        self.engine = open_writer(url)
        self._record_count = 0

    def record(self, days: float, content: bytes | None = None, **fields: Any) -> InferenceRecord:
        """Return a record of so many days ago; its input is stored where it has content."""
        self._record_count += 1
        if content is not None:
            fields["input"] = InputReference(
                "image", self.blobs.put(content), 1, 1, "image/png", kept=True, bytes=len(content)
            )
        seq = smallest_id_at(NOW_MS - round(days * DAY_MS)) + self._record_count
        return make_record(seq, **{"metadata": {"n": self._record_count, "s": "x"}} | fields)

    def set_rule(self, model: str, inputs: float | None, inferences: float | None) -> None:
        self._record_count += 1
        rule = RetentionRule(model, inputs, inferences)
        self.commit(JournaledChange(smallest_id_at(NOW_MS) + self._record_count, rule))

    def run_maintenance(self, cleaner: RetentionCleaner | None = None, now_ms: int = NOW_MS) -> int:
        """Run maintenance until nothing remains to be removed; return the number of steps."""
        cleaner, steps = cleaner or self.cleaner(), 0
        with self.engine.connect() as connection:
            names = NameIds(connection)
        while cleaner.run_step(self.engine, names, now_ms):
            steps += 1
            assert steps < 1000
        return steps

    def cleaner(self, max_input_bytes: int = 0) -> RetentionCleaner:
        return RetentionCleaner(self.blobs, self.journal_directory, max_input_bytes)

    def inputs_by_id(self) -> dict[int, bool]:
        """Return the ids of the inferences, and for each whether its input is kept."""
        rows = self.rows("SELECT seq, input_kept FROM inference")
        return {seq: bool(has_input) for seq, has_input in rows}

    def kept_bytes(self) -> int:
        """Return the bytes counted by the rollups, after a check that the rows add up to them."""
        check_sums(self.url)
        ((counted,),) = self.rows("SELECT coalesce(sum(kept_bytes), 0) FROM rollup")
        rows = self.rows("SELECT input_kept, input_bytes FROM inference")
        assert counted == sum(kept_size(*row) for row in rows)
        return int(counted)

    def close(self) -> None:
        self.engine.dispose()
        super().close()


@pytest.fixture
def store(database_url: str, tmp_path: Path) -> Iterator[RetentionHarness]:
    store = RetentionHarness(tmp_path, database_url)
    yield store
    store.close()


def test_without_rules_everything_is_kept(store: RetentionHarness) -> None:
    store.commit(store.record(400, b"old"), store.record(0, b"new"))
    store.set_rule("shapes-detector", None, None)
    assert store.run_maintenance() == 0
    assert list(store.inputs_by_id().values()) == [True, True]


def test_inputs_go_first_and_inferences_later(store: RetentionHarness) -> None:
    old, middle, new = (store.record(days, f"{days}".encode()) for days in (31, 8, 6))
    others = store.record(31, b"others", model=OTHER)
    unkept = store.record(31)
    store.commit(old, middle, new, others, unkept)
    store.set_rule("shapes-detector", 7, 30)
    store.run_maintenance()
    assert store.inputs_by_id() == {middle.seq: False, new.seq: True, others.seq: True}
    there = [
        store.blobs.get(record_.input.hash) is not None for record_ in (old, middle, new, others)
    ]
    assert there == [False, False, True, True]
    assert store.kept_bytes() == len("6") + len("others")
    for table in DERIVED:
        seqs = {seq for (seq,) in store.rows(f"SELECT seq FROM {table}")}
        assert seqs == {middle.seq, new.seq, others.seq}
    assert store.rows("SELECT sum(n) FROM rollup") == [(5,)]  # what was served


def test_a_rule_applies_to_past_and_future(store: RetentionHarness) -> None:
    first, second = store.record(3), store.record(0.5)
    store.commit(first, second)
    store.set_rule("shapes-detector", None, 5)
    store.run_maintenance()
    assert store.inputs_by_id().keys() == {first.seq, second.seq}
    store.set_rule("shapes-detector", 1, 2)
    store.run_maintenance()
    assert store.inputs_by_id().keys() == {second.seq}
    store.run_maintenance(now_ms=NOW_MS + 2 * DAY_MS)
    assert store.inputs_by_id() == {}
    late = store.record(10)
    store.commit(late)
    store.run_maintenance()
    assert store.inputs_by_id() == {}


def test_inferences_take_their_inputs_along(store: RetentionHarness) -> None:
    store.commit(store.record(3, b"input"))
    store.set_rule("shapes-detector", None, 2)
    store.run_maintenance()
    assert store.inputs_by_id() == {}
    assert store.kept_bytes() == 0
    assert store.blobs.get(blob_key(b"input")) is None


def test_nothing_is_removed_before_its_minute_is_over(store: RetentionHarness) -> None:
    minute = (NOW_MS - DAY_MS) // MINUTE_MS * MINUTE_MS
    before = store.record((NOW_MS - minute + 1) / DAY_MS)
    after = store.record((NOW_MS - minute) / DAY_MS)
    store.commit(before, after)
    store.set_rule("shapes-detector", None, 1)
    store.run_maintenance()
    assert store.inputs_by_id().keys() == {after.seq}


def test_bytes_stay_as_long_as_one_inference_keeps_them(store: RetentionHarness) -> None:
    old, new = store.record(2, b"same"), store.record(0, b"same")
    store.commit(old, new)
    store.set_rule("shapes-detector", 1, None)
    store.run_maintenance()
    assert store.inputs_by_id() == {old.seq: False, new.seq: True}
    assert store.blobs.get(blob_key(b"same")) == b"same"


def test_steps_are_small(store: RetentionHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "STEP_ROWS", 3)
    store.commit(*(store.record(2, f"{n}".encode()) for n in range(10)))
    store.set_rule("shapes-detector", 1, 1)
    steps = store.run_maintenance()
    assert 4 + 4 <= steps <= 11
    assert store.inputs_by_id() == {}


def test_beyond_a_size_the_oldest_inputs_go(store: RetentionHarness) -> None:
    records = [
        store.record(days, bytes([days]) * 100, model=model)
        for days, model in [(9, OTHER), (8, make_record().model), (7, OTHER), (1, OTHER)]
    ]
    store.commit(*reversed(records))
    assert store.run_maintenance(store.cleaner(400)) == 0
    store.run_maintenance(store.cleaner(399))
    assert [store.inputs_by_id()[record_.seq] for record_ in records] == [False, True, True, True]
    store.run_maintenance(store.cleaner(120))
    assert [store.inputs_by_id()[record_.seq] for record_ in records] == [False, False, False, True]
    assert store.kept_bytes() == 100
    assert [store.blobs.get(record_.input.hash) is None for record_ in records] == [
        True,
        True,
        True,
        False,
    ]


def test_an_input_of_unknown_size_goes_too(store: RetentionHarness) -> None:
    unknown = InputReference("image", store.blobs.put(b"x"), 1, 1, "image/png", kept=True)
    store.commit(store.record(2, input=unknown))
    store.set_rule("shapes-detector", 1, None)
    store.run_maintenance()
    assert list(store.inputs_by_id().values()) == [False]
    assert store.kept_bytes() == 0


def test_a_wrong_size_is_put_right(store: RetentionHarness) -> None:
    store.commit(store.record(2), store.record(3, b"input"))
    store.set_rule("shapes-detector", 1, None)
    with store.engine.begin() as connection:
        execute(connection, "UPDATE rollup SET kept_bytes = 1000")
    store.run_maintenance()
    assert store.kept_bytes() == 0


def test_what_is_said_of_removed_inferences_goes_too(store: RetentionHarness) -> None:
    old, new = store.record(3), store.record(0)
    store.commit(old, new)
    with store.engine.begin() as connection:
        for number, seq in enumerate((old.seq, new.seq)):
            execute(
                connection,
                "INSERT INTO truth (id, join_on, value, source, annotations) VALUES (?, 'id', ?, '', '[]')",
                (number, str(seq)),
            )
            execute(
                connection, "INSERT INTO ground_truth (seq, truth_id) VALUES (?, ?)", (seq, number)
            )
            execute(connection, "INSERT INTO signal (seq, picture) VALUES (?, ?)", (seq, b"1234"))
            execute(
                connection,
                "INSERT INTO feedback (id, seq, kind, comment, source) VALUES (?, ?, 'thumbs', '', '')",
                (number, seq),
            )
            execute(
                connection,
                "INSERT INTO metadata_change (id, seq, change, before) VALUES (?, ?, '{}', '{}')",
                (number, seq),
            )
    store.set_rule("shapes-detector", None, 1)
    store.run_maintenance()
    for table in ("ground_truth", "feedback", "metadata_change", "signal"):
        assert store.rows(f"SELECT seq FROM {table}") == [(new.seq,)]


def test_the_writer_keeps_up_by_itself(
    store: RetentionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "CHECK_INTERVAL_S", 0.05)
    monkeypatch.setattr(time, "time_ns", lambda: NOW_MS * 10**6)
    store.writer.close()
    store.writer = Writer(store.journal_directory, store.url, store.cleaner())
    records = [store.record(days) for days in (3, 0)]
    rule = JournaledChange(smallest_id_at(NOW_MS), RetentionRule("shapes-detector", 1, 1))
    with in_background(store.writer.run):
        store.journal.append([*records, rule])
        until(lambda: store.inputs_by_id().keys() == {records[1].seq})
    assert store.inputs_by_id().keys() == {records[1].seq}


def test_a_fault_of_the_upkeep_stops_no_inference(
    store: RetentionHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store.set_rule("shapes-detector", 1, 1)
    store.writer.close()
    cleaner = store.cleaner()
    monkeypatch.setattr(cleaner, "run_step", lambda *_: 1 / 0)
    store.writer = Writer(store.journal_directory, store.url, cleaner)
    with in_background(store.writer.run):
        for _ in range(3):
            store.journal.append([store.record(0)])
            time.sleep(0.1)
    assert len(store.inputs_by_id()) == 3
    assert "retention failed" in caplog.text


def names_of_months(engine: sa.Engine) -> list[str]:
    with engine.connect() as connection:
        return [month.suffix for month in list_months(connection)]


on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


@on_postgresql
def test_a_month_that_is_past_is_dropped_at_once(store: RetentionHarness, monkeypatch) -> None:
    monkeypatch.setattr(retention, "STEP_ROWS", 1)
    april = [store.record(75 + n / 100, f"{n % 3}".encode()) for n in range(20)]
    may = [store.record(45), store.record(44, model=OTHER)]
    new = store.record(0)
    store.commit(*april, *may, new)
    with store.engine.begin() as connection:
        for number, record_ in enumerate([april[0], new]):
            execute(
                connection,
                "INSERT INTO truth (id, join_on, value, source, annotations) VALUES (?, 'id', ?, '', '[]')",
                (number, str(record_.seq)),
            )
            values = (record_.seq, number)
            execute(connection, "INSERT INTO ground_truth (seq, truth_id) VALUES (?, ?)", values)
        for number, record_ in ((7, april[1]), (8, new)):
            execute(
                connection,
                "INSERT INTO truth (id, join_on, value, source, annotations, task)"
                " VALUES (?, 'request_id', ?, '', '[]', 'TENSOR')",
                (number, record_.request_id),
            )
            values = (record_.seq, number)
            execute(connection, "INSERT INTO other_truth (seq, truth_id) VALUES (?, ?)", values)
            values = (new.seq + number, record_.seq)
            execute(connection, "INSERT INTO repeated_id (seq, first_seq) VALUES (?, ?)", values)
    before = names_of_months(store.engine)
    assert before[:3] == ["y2026m04", "y2026m05", "y2026m06"]
    store.set_rule("shapes-detector", None, 20)
    steps = store.run_maintenance()
    assert store.inputs_by_id().keys() == {may[1].seq, new.seq}
    assert names_of_months(store.engine) == before[1:]  # May holds what another model keeps
    assert steps == 20 + 1 + 1  # inputs, April, the one of May
    assert store.rows("SELECT id FROM truth ORDER BY id") == [(1,), (8,)]
    assert store.rows("SELECT seq FROM ground_truth") == [(new.seq,)]
    assert store.rows("SELECT seq FROM other_truth") == [(new.seq,)]
    assert store.rows("SELECT first_seq FROM repeated_id") == [(new.seq,)]
    assert store.rows("SELECT sum(n) FROM rollup") == [(23,)]
    late = store.record(75)
    store.commit(late)  # its month is made again
    assert late.seq in store.inputs_by_id()
    assert store.writer.records_rejected == 0


@on_postgresql
def test_a_month_that_is_read_is_left_for_now(store: RetentionHarness) -> None:
    store.commit(store.record(75), store.record(0))
    store.set_rule("shapes-detector", None, 20)
    with store.engine.connect() as connection:
        (first, *_) = list_months(connection)
    reader = open_writer(store.url)
    with reader.connect() as connection:
        execute(connection, "SELECT 1 FROM inference WHERE seq = 1")
        execute(connection, f"SELECT 1 FROM inference_{first.suffix}")
        store.run_maintenance()  # row by row then
        assert len(store.inputs_by_id()) == 1
        assert first.suffix in names_of_months(store.engine)
    reader.dispose()
    store.run_maintenance()
    assert first.suffix not in names_of_months(store.engine)

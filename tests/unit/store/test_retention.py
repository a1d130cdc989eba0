import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from quadriga.store.blobs.files import FileBlobs
from quadriga.store.blobs.interface import blob_key
from quadriga.store.database import execute, open_writer
from quadriga.store.ids import smallest_id_at
from quadriga.store.journal import Journal
from quadriga.store.maintenance import retention
from quadriga.store.maintenance.retention import RetentionCleaner
from quadriga.store.partitions import list_months
from quadriga.store.records import (
    InferenceRecord,
    InputReference,
    JournaledChange,
    ModelReference,
    RetentionRule,
)
from quadriga.store.rollups import kept_size
from quadriga.store.rows import NameIds
from quadriga.store.writer import Writer
from tests.background import in_background, until
from tests.unit.store.conftest import make_record

NOW_MS = round(datetime(2026, 6, 30, 12, 0, 30, tzinfo=UTC).timestamp() * 1000)
MINUTE_MS, DAY_MS = 60_000, 86_400_000
OTHER = ModelReference("other", "1", "cd" * 32)
DERIVED = ("meta_num", "meta_str", "pred")


class Kept:
    """A store whose upkeep is asked for step by step."""

    def __init__(self, url: str, root: Path) -> None:
        self.url = url
        self.directory = root / "journal"
        self.journal = Journal(self.directory, 0)
        self.blobs = FileBlobs(root / "blobs", grace_s=0)
        self.writer = Writer(self.directory, url)
        self.engine = open_writer(url)
        self._number = 0

    def record(self, days: float, content: bytes | None = None, **fields: Any) -> InferenceRecord:
        """Make a record of so many days ago, its input kept if it is given."""
        self._number += 1
        if content is not None:
            fields["input"] = InputReference(
                "image", self.blobs.put(content), 1, 1, "image/png", kept=True, bytes=len(content)
            )
        seq = smallest_id_at(NOW_MS - round(days * DAY_MS)) + self._number
        return make_record(seq, **{"metadata": {"n": self._number, "s": "x"}} | fields)

    def add(self, *records: InferenceRecord) -> None:
        self.journal.append(records)
        self.writer.drain()

    def rule(self, model: str, inputs: float | None, inferences: float | None) -> None:
        self._number += 1
        rule = RetentionRule(model, inputs, inferences)
        self.journal.append([JournaledChange(smallest_id_at(NOW_MS) + self._number, rule)])
        self.writer.drain()

    def work(self, upkeep: RetentionCleaner | None = None, now_ms: int = NOW_MS) -> int:
        """Do all that is to be done, and return in how many steps."""
        upkeep, steps = upkeep or self.upkeep(), 0
        with self.engine.connect() as connection:
            names = NameIds(connection)
        while upkeep.run_step(self.engine, names, now_ms):
            steps += 1
            assert steps < 1000
        return steps

    def upkeep(self, max_input_bytes: int = 0) -> RetentionCleaner:
        return RetentionCleaner(self.blobs, self.directory, max_input_bytes)

    def rows(self, statement: str, *values: Any) -> list[tuple]:
        with self.engine.connect() as connection:
            return [tuple(row) for row in execute(connection, statement, values)]

    def inferences(self) -> dict[int, bool]:
        """Return whether its input is kept, of each inference."""
        return {seq: bool(kept) for seq, kept in self.rows("SELECT seq, input_kept FROM inference")}

    def kept_bytes(self) -> int:
        """Return what the rollups say, which equals the sum over the rows."""
        ((counted,),) = self.rows("SELECT coalesce(sum(kept_bytes), 0) FROM rollup")
        rows = self.rows("SELECT input_kept, input_bytes FROM inference")
        assert counted == sum(kept_size(*row) for row in rows)
        return int(counted)

    def close(self) -> None:
        self.engine.dispose()
        self.writer.close()
        self.journal.close()


@pytest.fixture
def kept(database_url: str, tmp_path: Path) -> Iterator[Kept]:
    kept = Kept(database_url, tmp_path)
    yield kept
    kept.close()


def test_without_rules_everything_is_kept(kept: Kept) -> None:
    kept.add(kept.record(400, b"old"), kept.record(0, b"new"))
    kept.rule("shapes-detector", None, None)
    assert kept.work() == 0
    assert list(kept.inferences().values()) == [True, True]


def test_inputs_go_first_and_inferences_later(kept: Kept) -> None:
    old, middle, new = (kept.record(days, f"{days}".encode()) for days in (31, 8, 6))
    others = kept.record(31, b"others", model=OTHER)
    unkept = kept.record(31)
    kept.add(old, middle, new, others, unkept)
    kept.rule("shapes-detector", 7, 30)
    kept.work()
    assert kept.inferences() == {middle.seq: False, new.seq: True, others.seq: True}
    there = [kept.blobs.get(one.input.hash) is not None for one in (old, middle, new, others)]
    assert there == [False, False, True, True]
    assert kept.kept_bytes() == len("6") + len("others")
    for table in DERIVED:
        seqs = {seq for (seq,) in kept.rows(f"SELECT seq FROM {table}")}
        assert seqs == {middle.seq, new.seq, others.seq}
    assert kept.rows("SELECT sum(n) FROM rollup") == [(5,)]  # what was served


def test_a_rule_applies_to_past_and_future(kept: Kept) -> None:
    first, second = kept.record(3), kept.record(0.5)
    kept.add(first, second)
    kept.rule("shapes-detector", None, 5)
    kept.work()
    assert kept.inferences().keys() == {first.seq, second.seq}
    kept.rule("shapes-detector", 1, 2)
    kept.work()
    assert kept.inferences().keys() == {second.seq}
    kept.work(now_ms=NOW_MS + 2 * DAY_MS)
    assert kept.inferences() == {}
    late = kept.record(10)
    kept.add(late)
    kept.work()
    assert kept.inferences() == {}


def test_inferences_take_their_inputs_along(kept: Kept) -> None:
    kept.add(kept.record(3, b"input"))
    kept.rule("shapes-detector", None, 2)
    kept.work()
    assert kept.inferences() == {}
    assert kept.kept_bytes() == 0
    assert kept.blobs.get(blob_key(b"input")) is None


def test_nothing_is_removed_before_its_minute_is_over(kept: Kept) -> None:
    minute = (NOW_MS - DAY_MS) // MINUTE_MS * MINUTE_MS
    before = kept.record((NOW_MS - minute + 1) / DAY_MS)
    after = kept.record((NOW_MS - minute) / DAY_MS)
    kept.add(before, after)
    kept.rule("shapes-detector", None, 1)
    kept.work()
    assert kept.inferences().keys() == {after.seq}


def test_bytes_stay_as_long_as_one_inference_keeps_them(kept: Kept) -> None:
    old, new = kept.record(2, b"same"), kept.record(0, b"same")
    kept.add(old, new)
    kept.rule("shapes-detector", 1, None)
    kept.work()
    assert kept.inferences() == {old.seq: False, new.seq: True}
    assert kept.blobs.get(blob_key(b"same")) == b"same"


def test_steps_are_small(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "STEP_ROWS", 3)
    kept.add(*(kept.record(2, f"{n}".encode()) for n in range(10)))
    kept.rule("shapes-detector", 1, 1)
    steps = kept.work()
    assert 4 + 4 <= steps <= 11
    assert kept.inferences() == {}


def test_beyond_a_size_the_oldest_inputs_go(kept: Kept) -> None:
    records = [
        kept.record(days, bytes([days]) * 100, model=model)
        for days, model in [(9, OTHER), (8, make_record().model), (7, OTHER), (1, OTHER)]
    ]
    kept.add(*reversed(records))
    assert kept.work(kept.upkeep(400)) == 0
    kept.work(kept.upkeep(399))
    assert [kept.inferences()[one.seq] for one in records] == [False, True, True, True]
    kept.work(kept.upkeep(120))
    assert [kept.inferences()[one.seq] for one in records] == [False, False, False, True]
    assert kept.kept_bytes() == 100
    assert [kept.blobs.get(one.input.hash) is None for one in records] == [True, True, True, False]


def test_an_input_of_unknown_size_goes_too(kept: Kept) -> None:
    unknown = InputReference("image", kept.blobs.put(b"x"), 1, 1, "image/png", kept=True)
    kept.add(kept.record(2, input=unknown))
    kept.rule("shapes-detector", 1, None)
    kept.work()
    assert list(kept.inferences().values()) == [False]
    assert kept.kept_bytes() == 0


def test_a_wrong_size_is_put_right(kept: Kept) -> None:
    kept.add(kept.record(2), kept.record(3, b"input"))
    kept.rule("shapes-detector", 1, None)
    with kept.engine.begin() as connection:
        execute(connection, "UPDATE rollup SET kept_bytes = 1000")
    kept.work()
    assert kept.kept_bytes() == 0


def test_what_is_said_of_removed_inferences_goes_too(kept: Kept) -> None:
    old, new = kept.record(3), kept.record(0)
    kept.add(old, new)
    with kept.engine.begin() as connection:
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
    kept.rule("shapes-detector", None, 1)
    kept.work()
    for table in ("ground_truth", "feedback", "metadata_change", "signal"):
        assert kept.rows(f"SELECT seq FROM {table}") == [(new.seq,)]


def test_the_writer_keeps_up_by_itself(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "CHECK_INTERVAL_S", 0.05)
    monkeypatch.setattr(time, "time_ns", lambda: NOW_MS * 10**6)
    kept.writer.close()
    kept.writer = Writer(kept.directory, kept.url, kept.upkeep())
    records = [kept.record(days) for days in (3, 0)]
    rule = JournaledChange(smallest_id_at(NOW_MS), RetentionRule("shapes-detector", 1, 1))
    with in_background(kept.writer.run):
        kept.journal.append([*records, rule])
        until(lambda: kept.inferences().keys() == {records[1].seq})
    assert kept.inferences().keys() == {records[1].seq}


def test_a_fault_of_the_upkeep_stops_no_inference(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept.rule("shapes-detector", 1, 1)
    kept.writer.close()
    upkeep = kept.upkeep()
    monkeypatch.setattr(upkeep, "run_step", lambda *_: 1 / 0)
    kept.writer = Writer(kept.directory, kept.url, upkeep)
    with in_background(kept.writer.run):
        for _ in range(3):
            kept.journal.append([kept.record(0)])
            time.sleep(0.1)
    assert len(kept.inferences()) == 3
    assert "retention failed" in caplog.text


def names_of_months(engine: sa.Engine) -> list[str]:
    with engine.connect() as connection:
        return [month.suffix for month in list_months(connection)]


on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


@on_postgresql
def test_a_month_that_is_past_is_dropped_at_once(kept: Kept, monkeypatch) -> None:
    monkeypatch.setattr(retention, "STEP_ROWS", 1)
    april = [kept.record(75 + n / 100, f"{n % 3}".encode()) for n in range(20)]
    may = [kept.record(45), kept.record(44, model=OTHER)]
    new = kept.record(0)
    kept.add(*april, *may, new)
    with kept.engine.begin() as connection:
        for number, one in enumerate([april[0], new]):
            execute(
                connection,
                "INSERT INTO truth (id, join_on, value, source, annotations) VALUES (?, 'id', ?, '', '[]')",
                (number, str(one.seq)),
            )
            values = (one.seq, number)
            execute(connection, "INSERT INTO ground_truth (seq, truth_id) VALUES (?, ?)", values)
    before = names_of_months(kept.engine)
    assert before[:3] == ["y2026m04", "y2026m05", "y2026m06"]
    kept.rule("shapes-detector", None, 20)
    steps = kept.work()
    assert kept.inferences().keys() == {may[1].seq, new.seq}
    assert names_of_months(kept.engine) == before[1:]  # May holds what another model keeps
    assert steps == 20 + 1 + 1  # inputs, April, the one of May
    assert kept.rows("SELECT id FROM truth") == [(1,)]
    assert kept.rows("SELECT seq FROM ground_truth") == [(new.seq,)]
    assert kept.rows("SELECT sum(n) FROM rollup") == [(23,)]
    late = kept.record(75)
    kept.add(late)  # its month is made again
    assert late.seq in kept.inferences()
    assert kept.writer.records_rejected == 0


@on_postgresql
def test_a_month_that_is_read_is_left_for_now(kept: Kept) -> None:
    kept.add(kept.record(75), kept.record(0))
    kept.rule("shapes-detector", None, 20)
    with kept.engine.connect() as connection:
        (first, *_) = list_months(connection)
    reader = open_writer(kept.url)
    with reader.connect() as connection:
        execute(connection, "SELECT 1 FROM inference WHERE seq = 1")
        execute(connection, f"SELECT 1 FROM inference_{first.suffix}")
        kept.work()  # row by row then
        assert len(kept.inferences()) == 1
        assert first.suffix in names_of_months(kept.engine)
    reader.dispose()
    kept.work()
    assert first.suffix not in names_of_months(kept.engine)

"""A clock that jumps is seen, and its ids stay within a minute of the clock that is followed."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from quadriga.store.database.database import writer_engine
from quadriga.store.database.lease import Lease
from quadriga.store.database.rows import NameIds
from quadriga.store.maintenance.retention import RetentionCleaner
from quadriga.store.records.ids import (
    CONFIRM_MS,
    LEASE_FILE,
    MAX_LEAD_MS,
    Clock,
    IdSource,
    RememberedLease,
    boot_id,
    read_lease,
    steady_ms,
    time_ms,
)
from quadriga.store.records.records import RetentionRule
from tests.unit.store_harness import StoreHarness

START_MS = 1_795_460_000_000
STEADY_MS = 5_000_000
DAY_MS = 86_400_000
YEAR_AHEAD = 400 * DAY_MS
HOUR_MS = 3_600_000


class Machine:
    """A machine whose clock tests set; time passes when they say so."""

    def __init__(self) -> None:
        self.passed_ms = 0
        self.wrong_by_ms = 0

    def now_ms(self) -> int:
        return START_MS + self.passed_ms + self.wrong_by_ms

    def true_ms(self) -> int:
        return START_MS + self.passed_ms

    def steady_ms(self) -> int:
        return STEADY_MS + self.passed_ms


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(time, "time_ns", lambda: machine.now_ms() * 1_000_000)
    monkeypatch.setattr(time, "clock_gettime_ns", lambda _: machine.steady_ms() * 1_000_000)
    return machine


def leave_reference(data: Path, machine: Machine, wrong_by_ms: int = 0) -> None:
    """Leave the time of a database as the writer does."""
    offset_ms = machine.true_ms() + wrong_by_ms - machine.steady_ms()
    lease = RememberedLease("", "", "", [], boot_id(), offset_ms)
    (data / LEASE_FILE).write_bytes(msgspec.json.encode(lease))


@pytest.mark.parametrize("wrong_by_ms", [YEAR_AHEAD, 61_000])
def test_a_clock_that_is_ahead_for_a_moment_is_not_followed(
    machine: Machine, wrong_by_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    followed = Clock()
    assert followed.now_ms() == START_MS
    machine.wrong_by_ms, machine.passed_ms = wrong_by_ms, 500
    assert followed.now_ms() == machine.true_ms()
    assert (followed.jumps, followed.ahead_ms) == (1, wrong_by_ms)
    machine.wrong_by_ms, machine.passed_ms = 0, 1000
    assert followed.now_ms() == machine.true_ms()
    assert (followed.jumps, followed.ahead_ms) == (1, 0)
    expected = [
        f"this machine's clock is +{wrong_by_ms // 1000} s from what it was a moment ago, and ids do not follow it",
        "this machine's clock is followed again",
    ]
    assert [record.getMessage() for record in caplog.records] == expected


@pytest.mark.parametrize("wrong_by_ms", [0, 59_000, -59_000])
def test_a_clock_that_is_set_by_less_than_a_minute_is_followed(
    machine: Machine, wrong_by_ms: int
) -> None:
    followed = Clock()
    followed.now_ms()
    machine.wrong_by_ms = wrong_by_ms
    assert (followed.now_ms(), followed.jumps) == (machine.now_ms(), 0)


def test_a_clock_that_stays_ahead_is_followed_after_a_minute(machine: Machine) -> None:
    followed = Clock()
    followed.now_ms()
    machine.wrong_by_ms = HOUR_MS
    for passed_ms, is_followed in ((0, False), (CONFIRM_MS - 1, False), (CONFIRM_MS, True)):
        machine.passed_ms = passed_ms
        assert (followed.now_ms() == machine.now_ms()) == is_followed
    assert followed.jumps == 1


def test_a_clock_that_goes_on_jumping_is_not_followed(machine: Machine) -> None:
    followed = Clock()
    followed.now_ms()
    for hours in range(1, 10):
        machine.passed_ms += CONFIRM_MS - 1
        machine.wrong_by_ms = hours * HOUR_MS
        assert followed.now_ms() == machine.true_ms()
    assert followed.jumps == 9


def test_a_clock_that_steps_back_is_followed_at_once(machine: Machine) -> None:
    followed = Clock()
    followed.now_ms()
    machine.wrong_by_ms = -HOUR_MS
    assert (followed.now_ms(), followed.jumps) == (machine.now_ms(), 1)


@pytest.mark.parametrize("wrong_by_ms", [YEAR_AHEAD, -YEAR_AHEAD])
@pytest.mark.parametrize("is_wrong_from_the_start", [True, False])
def test_the_clock_of_the_database_is_followed_for_as_long_as_the_own_is_wrong(
    machine: Machine, tmp_path: Path, wrong_by_ms: int, *, is_wrong_from_the_start: bool
) -> None:
    followed = Clock(tmp_path)
    leave_reference(tmp_path, machine)
    if not is_wrong_from_the_start:
        followed.now_ms()
    machine.wrong_by_ms = wrong_by_ms
    for _ in range(3):
        assert followed.now_ms() == machine.true_ms()
        machine.passed_ms += 2 * CONFIRM_MS
        leave_reference(tmp_path, machine)
    machine.passed_ms += HOUR_MS  # the database is away
    assert followed.now_ms() == machine.true_ms()
    machine.wrong_by_ms = 0
    assert (followed.now_ms(), followed.ahead_ms) == (machine.true_ms(), 0)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[1]",
        b'{"owner":"","database":"","run":"","numbers":[0]}',
        b'{"owner":"","database":"","run":"","numbers":[0],"boot_id":"other","offset_ms":1}',
    ],
)
def test_a_file_of_another_start_of_the_machine_is_passed_over(
    machine: Machine, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / LEASE_FILE).write_bytes(content)
    assert Clock(tmp_path).now_ms() == START_MS


def test_the_writer_leaves_the_clock_of_a_server_and_none_of_a_file(
    database_url: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    (data / "journal").mkdir(parents=True)
    with writer_engine(database_url) as engine:
        Lease(data, database_url, 1, run="run").hold(engine)
    lease = read_lease(data)
    assert lease is not None
    assert (lease.offset_ms is not None) == database_url.startswith("postgresql")
    if lease.offset_ms is not None:
        difference_ms = lease.offset_ms + steady_ms() - time.time_ns() // 1_000_000
        assert abs(difference_ms) < MAX_LEAD_MS


def test_a_clock_that_was_ahead_for_one_inference_hides_none(
    machine: Machine, file_store: StoreHarness, record
) -> None:
    ids = IdSource(0)
    for wrong_by_ms in (0, YEAR_AHEAD, 0):
        machine.wrong_by_ms = wrong_by_ms
        machine.passed_ms += 1000
        file_store.commit(*(record(ids.next()) for _ in range(3)))
    machine.passed_ms += 1000
    seqs = file_store.page_ids(where={"ts": {"lt": "now"}}, order="ts")
    assert len(seqs) == 9
    assert seqs == sorted(file_store.stored_ids())
    assert [time_ms(seq) - START_MS for seq in seqs[::3]] == [1000, 2000, 3000]
    assert ids.clock_counters() == {"clock_jumps_total": 1, "clock_ahead_seconds": 0}


def test_a_worker_whose_clock_jumps_takes_no_other_with_it(
    machine: Machine, tmp_path: Path, file_store: StoreHarness, record
) -> None:
    right, wrong = IdSource(0, clock=Clock(tmp_path)), IdSource(1, clock=Clock(tmp_path))
    for _ in range(20):
        machine.passed_ms += 30_000
        leave_reference(tmp_path, machine)
        machine.wrong_by_ms = YEAR_AHEAD
        wrong_id = wrong.next()
        machine.wrong_by_ms = 0
        file_store.commit(record(wrong_id), record(right.next(floor=wrong_id)))
        newest = time_ms(file_store.inferences.latest_seq())
        assert abs(newest - machine.true_ms()) <= MAX_LEAD_MS
    machine.passed_ms += 1000
    assert len(file_store.page_ids(where={"ts": {"lt": "now"}})) == 40
    assert wrong.clock_counters()["clock_jumps_total"] > 0
    assert right.clock_counters() == {"clock_jumps_total": 0, "clock_ahead_seconds": 0}


def test_ids_that_step_back_repeat_none(machine: Machine) -> None:
    machine.wrong_by_ms = 120_000
    ids = IdSource(0)
    given = []
    for wrong_by_ms in (120_000, 0):
        machine.wrong_by_ms = wrong_by_ms
        for _ in range(180):  # the second time through what the first has reached
            machine.passed_ms += 1000
            given += [ids.next() for _ in range(3)]
            lead_ms = time_ms(given[-1]) - machine.true_ms() - wrong_by_ms
            assert lead_ms <= MAX_LEAD_MS
        machine.passed_ms -= 180_000 * (wrong_by_ms > 0)
    assert len(set(given)) == len(given)
    overlapping = {time_ms(seq) for seq in given[:540]} & {time_ms(seq) for seq in given[540:]}
    assert overlapping


def test_retention_waits_a_day_for_a_clock_that_jumped_ahead(
    machine: Machine, file_store: StoreHarness, record
) -> None:
    file_store.commit(record(IdSource(0).next()))
    file_store.commit_changes(RetentionRule("shapes-detector", None, 90))
    cleaner = RetentionCleaner(file_store.blobs, file_store.journal_directory)
    engine = file_store.writer._engine
    with engine.connect() as connection:
        names = NameIds(connection)
    for days, count in ((0, 1), (0.5, 1), (1.5, 0)):
        machine.wrong_by_ms, machine.passed_ms = YEAR_AHEAD * (days > 0), round(days * DAY_MS)
        cleaner._due = 0.0
        cleaner.step(engine, names, set())
        assert len(file_store.rows("SELECT seq FROM inference")) == count


@pytest.fixture(autouse=True)
def _log_level(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.WARNING, "quadriga.store.records.ids")
    return

"""Crashes of models: who is refused, for how long, and what ends it."""

import signal
import subprocess
import sys
import threading

import pytest

from quadriga.engine.measures import shared_counts
from quadriga.engine.measures.shared_counts import SharedCounts
from quadriga.engine.models.runners import crash_record
from quadriga.engine.models.runners.crash_record import (
    RUNNING,
    CrashRecord,
    RunMark,
    RunsInFlight,
    blame,
    describe_exit,
    runs_in_flight,
)

FPE = -int(signal.SIGFPE)


@pytest.fixture
def clock(monkeypatch):
    """Move the time of the record by hand."""

    class Clock:
        now_s = 1000.0

    monkeypatch.setattr(crash_record.time, "monotonic", lambda: Clock.now_s)
    return Clock


def test_one_crash_refuses_nothing_and_the_second_refuses_that_version_alone(clock):
    record = CrashRecord()
    assert record.count("m", "1", "SIGFPE") is None
    clock.now_s += 200
    refusal = record.count("m", "1", "SIGFPE")
    assert refusal is not None
    assert refusal.seconds == 60
    assert refusal.reason == (
        "model 'm' version 1 ended its process 2 times within 5 minutes, last: SIGFPE; it is refused for 60 s, "
        "or until it is loaded again"
    )
    assert record.refusal("m", "1") == refusal
    assert record.refusal("m", "2") is None
    assert record.refusal("other", "1") is None
    assert [model.name for model in record.refused()] == ["m"]


def test_crashes_far_apart_refuse_nothing(clock):
    record = CrashRecord()
    for _ in range(5):
        assert record.count("m", "1", "SIGSEGV") is None
        clock.now_s += 301


def test_a_refusal_ends_and_the_next_crash_doubles_it_up_to_half_an_hour(clock):
    record = CrashRecord()
    record.count("m", "1", "SIGFPE")
    lengths = []
    for _ in range(8):
        refusal = record.count("m", "1", "SIGFPE")
        lengths.append(refusal.seconds)
        clock.now_s += refusal.seconds
        assert record.refusal("m", "1") is None
        clock.now_s += 400  # outside of the window, yet on probation
    assert lengths == [60, 120, 240, 480, 960, 1800, 1800, 1800]
    clock.now_s += 3601
    assert record.count("m", "1", "SIGFPE") is None, "an hour without a crash starts anew"


def test_a_load_forgets_all_versions_of_that_model(clock):
    record = CrashRecord()
    for version in ("1", "1", "2", "2"):
        record.count("m", version, "SIGFPE")
    record.count("other", "1", "SIGFPE")
    record.forget("m")
    assert record.refused() == []
    assert record.count("m", "1", "SIGFPE") is None
    assert record.count("other", "1", "SIGFPE") is not None


def test_another_process_sees_it_at_once():
    record = CrashRecord()
    assert record.refusal("m", "1") is None
    code = (
        "from quadriga.engine.models.runners.crash_record import CrashRecord\n"
        f"record = CrashRecord({record.descriptor})\n"
        "record.count('m', '1', 'SIGFPE'); record.count('m', '1', 'SIGFPE')\n"
    )
    subprocess.run(
        [sys.executable, "-c", code], pass_fds=[record.descriptor], check=True, timeout=60
    )
    assert "SIGFPE" in record.refusal("m", "1").reason


def test_two_threads_at_once_lose_no_crash():
    record = CrashRecord()

    def count():
        for number in range(25):
            record.count(f"m-{number}", "1", "SIGFPE")

    threads = [threading.Thread(target=count) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(CrashRecord(record.descriptor).refused()) == 25


def test_a_record_that_was_left_half_written_counts_as_empty():
    record = CrashRecord()
    record.count("m", "1", "SIGFPE")
    record._memory[8:20] = b"\xc1" * 12
    record._memory[0:4] = b"\x09\0\0\0"
    assert CrashRecord(record.descriptor).refused() == []
    assert CrashRecord(record.descriptor).count("m", "1", "SIGFPE") is None


def test_there_is_room_for_many_models_with_long_names():
    record = CrashRecord()
    for number in range(300):
        name = f"{number:03}" + "n" * 125
        record.count(name, "9" * 31, "SIGSEGV")
        record.count(name, "9" * 31, "SIGSEGV")
    assert len(record.refused()) == 256


def test_the_model_that_ran_alone_is_blamed():
    record = CrashRecord()
    runs = [RunsInFlight("m", "1", 2, "a")]
    assert (
        blame(runs, record, FPE) == " while it ran model 'm' version 1 (2 requests, the last 'a')"
    )
    assert "refused for 60 s" in blame(runs, record, FPE)
    assert record.refusal("m", "1") is not None


def test_of_models_that_ran_together_none_is_refused_but_all_are_suspected():
    record = CrashRecord()
    for is_isolated in (False, True, False):
        runs = [
            RunsInFlight("bad", "1", 1, "poison", is_isolated),
            RunsInFlight("innocent", "1"),
        ]
        text = blame(runs, record, FPE)
    assert text == (
        " while it ran model 'bad' version 1 (request 'poison'), model 'innocent' version 1, any of which may be "
        "the cause"
    )
    assert record.refused() == []
    assert record.needs_own_process("innocent", "1")
    assert not record.needs_own_process("third", "1")


def test_models_in_processes_of_their_own_that_ran_together_when_the_worker_ended_twice_are_refused():
    record = CrashRecord()
    runs = [RunsInFlight(name, "1", is_isolated=True) for name in ("bad", "beside")]
    assert "refused" not in blame(runs, record, FPE)
    text = blame(runs, record, FPE)
    assert "model 'bad' version 1 ended its process 2 times" in text
    assert {model.name for model in record.refused()} == {"bad", "beside"}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_model_is_blamed_for_a_signal_from_outside(number):
    record = CrashRecord()
    for _ in range(3):
        text = blame([RunsInFlight("m", "1")], record, -int(number))
    assert text == " while it ran model 'm' version 1"
    assert record.refused() == []
    assert not record.needs_own_process("m", "1")


def test_a_crash_outside_of_models_is_said_to_be_one():
    assert blame([], CrashRecord(), FPE) == " while it ran no model"


def mark_of(counts, model="m", version="1"):
    return RunMark(counts.row((RUNNING, model, version), (RUNNING, "other", "other")))


def test_runs_that_did_not_end_are_read_by_another_process_with_the_last_request():
    counts = SharedCounts(3, 2)
    worker = SharedCounts(3, 1, counts.descriptor)
    mark = mark_of(worker, "shapes", "3")
    mark.begin("long-ago")
    mark.end()
    assert runs_in_flight(counts, 1) == []
    mark.begin("first")
    mark.begin("poison-7")
    mark_of(worker, "other").note_isolation(is_isolated=True)
    mark_of(worker, "other").begin()
    assert runs_in_flight(counts, 0) == []
    assert runs_in_flight(counts, 1) == [
        RunsInFlight("shapes", "3", 2, "poison-7"),
        RunsInFlight("other", "1", is_isolated=True),
    ]


def test_a_run_that_waits_for_another_process_does_not_count():
    counts = SharedCounts()
    mark = mark_of(counts)
    with mark.running():
        with mark.paused():
            assert runs_in_flight(counts, 0) == []
        assert runs_in_flight(counts, 0) == [RunsInFlight("m", "1")]
    assert runs_in_flight(counts, 0) == []


@pytest.mark.parametrize("request_id", ["x" * 300, "\N{SNOWMAN}\udcff" * 60])
def test_names_and_ids_of_any_length_and_script_fit(request_id):
    counts = SharedCounts()
    mark_of(counts, "n" * 128, "9" * 31).begin(request_id)
    (run,) = runs_in_flight(counts, 0)
    assert (run.model, run.version) == ("n" * 128, "9" * 31)
    assert run.request_id[:2] in ("xx", "\N{SNOWMAN}?")
    assert len(run.request_id.encode()) <= 82


def test_runs_of_many_threads_are_counted():
    counts = SharedCounts()

    def run():
        for _ in range(1000):
            with mark_of(counts).running():
                pass

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert runs_in_flight(counts, 0) == []


def test_models_without_a_row_of_their_own_are_known(monkeypatch):
    monkeypatch.setattr(shared_counts, "MAX_ROWS", 1 + shared_counts.OTHER_ROWS)
    counts = SharedCounts()
    assert [mark_of(counts, name).is_shared for name in ("a", "b", "a", "c")] == [
        False, True, False, True,
    ]  # fmt: skip


def test_an_exit_is_described_by_its_signal():
    assert describe_exit(FPE) == "SIGFPE"
    assert describe_exit(1) == "status 1"
    assert describe_exit(-200) == "signal 200"

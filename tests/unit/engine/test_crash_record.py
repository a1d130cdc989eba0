"""Crashes of models: who is refused, for how long, and what ends it."""

import signal
import subprocess
import sys
import threading

import pytest

from quadriga.engine.models.runners import crash_record
from quadriga.engine.models.runners.crash_record import CrashRecord, blame, describe_exit
from quadriga.engine.models.runners.native_runs import NativeRun

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
    runs = [NativeRun("m", "1", "a"), NativeRun("m", "1", "")]
    assert blame(runs, record, FPE) == " while it ran model 'm' version 1 (request 'a')"
    assert "refused for 60 s" in blame(runs, record, FPE)
    assert record.refusal("m", "1") is not None


def test_of_models_that_ran_together_none_is_refused_but_all_are_suspected():
    record = CrashRecord()
    runs = [NativeRun("bad", "1", "poison"), NativeRun("innocent", "1", "")]
    for _ in range(5):
        text = blame(runs, record, FPE)
    assert text == (
        " while it ran model 'bad' version 1, model 'innocent' version 1 (request 'poison'), any of which may be "
        "the cause"
    )
    assert record.refused() == []
    assert record.needs_own_process("innocent", "1")
    assert not record.needs_own_process("third", "1")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_model_is_blamed_for_a_signal_from_outside(number):
    record = CrashRecord()
    for _ in range(3):
        text = blame([NativeRun("m", "1", "")], record, -int(number))
    assert text == " while it ran model 'm' version 1"
    assert record.refused() == []
    assert not record.needs_own_process("m", "1")


def test_a_crash_outside_of_models_is_said_to_be_one():
    assert blame([], CrashRecord(), FPE) == " while it ran no model"


def test_an_exit_is_described_by_its_signal():
    assert describe_exit(FPE) == "SIGFPE"
    assert describe_exit(1) == "status 1"
    assert describe_exit(-200) == "signal 200"

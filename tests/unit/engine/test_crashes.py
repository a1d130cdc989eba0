"""Runs in flight and crashes of models: who is refused, for how long, and what ends it."""

import signal
import subprocess
import sys
import threading

import pytest

from quadriga.engine.measures import shared_counts
from quadriga.engine.measures.shared_counts import SharedCounts
from quadriga.engine.models.runners import crashes
from quadriga.engine.models.runners.crashes import (
    ModelRuns,
    blame,
    count_refused,
    describe_exit,
    forget_crashes,
)

FPE = -int(signal.SIGFPE)


@pytest.fixture
def clock(monkeypatch):
    """Move the time of crashes by hand."""

    class Clock:
        now_s = 1000

    monkeypatch.setattr(crashes.time, "monotonic_ns", lambda: int(Clock.now_s * 1_000_000_000))
    return Clock


@pytest.fixture
def counts():
    return SharedCounts()


def runs_of(counts, model="m", version="1"):
    return ModelRuns(counts, model, version)


def test_one_crash_refuses_nothing_and_the_second_refuses_that_version_alone(clock, counts):
    runs = runs_of(counts)
    assert runs.count_crash("SIGFPE") is None
    clock.now_s += 200
    refusal = runs.count_crash("SIGFPE")
    assert refusal is not None
    assert refusal.seconds == 60
    assert refusal.reason == (
        "model 'm' version 1 ended its process 2 times within 5 minutes, last: SIGFPE; it is refused for 60 s, "
        "or until it is loaded again"
    )
    assert runs_of(counts).refusal() == refusal
    assert runs_of(counts, "m", "2").refusal() is None
    assert runs_of(counts, "other").refusal() is None
    assert count_refused(counts) == 1


def test_crashes_far_apart_refuse_nothing(clock, counts):
    for _ in range(5):
        assert runs_of(counts).count_crash("SIGSEGV") is None
        clock.now_s += 301


def test_a_refusal_ends_and_the_next_crash_doubles_it_up_to_half_an_hour(clock, counts):
    runs = runs_of(counts)
    runs.count_crash("SIGFPE")
    refusals = []
    for _ in range(8):
        refusals.append(runs.count_crash("SIGFPE"))
        clock.now_s += refusals[-1].seconds
        assert runs.refusal() is None
        assert count_refused(counts) == 0
        clock.now_s += 400  # outside of the window, yet on probation
    lengths = [refusal.seconds for refusal in refusals]
    assert lengths == [60, 120, 240, 480, 960, 1800, 1800, 1800]
    assert "ended its process again, last: SIGFPE; it is refused for 120 s" in refusals[1].reason
    clock.now_s += 3601
    assert runs.count_crash("SIGFPE") is None, "an hour without a crash starts anew"


def test_a_load_forgets_all_versions_of_that_model(clock, counts):
    for version in ("1", "1", "2", "2"):
        runs_of(counts, "m", version).count_crash("SIGFPE")
    runs_of(counts, "other").count_crash("SIGFPE")
    runs_of(counts).suspect()
    forget_crashes(counts, "m")
    assert count_refused(counts) == 0
    assert not runs_of(counts).needs_isolation()
    assert runs_of(counts).count_crash("SIGFPE") is None
    assert runs_of(counts, "other").count_crash("SIGFPE") is not None


def test_another_process_sees_it_at_once():
    counts = SharedCounts(2, 0)
    runs = runs_of(counts)
    assert runs.refusal() is None
    code = (
        "from quadriga.engine.measures.shared_counts import SharedCounts\n"
        "from quadriga.engine.models.runners.crashes import ModelRuns\n"
        f"runs = ModelRuns(SharedCounts(2, 1, {counts.descriptor}), 'm', '1')\n"
        "runs.count_crash('SIGFPE'); runs.count_crash('a run did not end within 60 s')\n"
    )
    subprocess.run(
        [sys.executable, "-c", code], pass_fds=[counts.descriptor], check=True, timeout=60
    )
    assert "last: a run did not end within 60 s;" in runs.refusal().reason


def test_two_threads_at_once_lose_no_crash(counts):
    def count():
        for number in range(25):
            runs_of(counts, f"m-{number}").count_crash("SIGFPE")

    threads = [threading.Thread(target=count) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert count_refused(SharedCounts(1, 0, counts.descriptor)) == 25


def test_the_model_that_ran_alone_is_blamed(counts):
    runs = runs_of(counts)
    runs.begin("first")
    runs.begin("a")
    assert blame(counts, 0, FPE) == " while it ran model 'm' version 1 (2 requests, the last 'a')"
    assert "refused for 60 s" in blame(counts, 0, FPE)
    assert runs.refusal() is not None


def test_of_models_that_ran_together_none_is_refused_but_all_are_suspected(counts):
    bad, innocent = runs_of(counts, "bad"), runs_of(counts, "innocent")
    bad.begin("poison")
    innocent.begin()
    for is_isolated in (False, True, False):
        bad.note_isolation(is_isolated=is_isolated)
        text = blame(counts, 0, FPE)
    assert text == (
        " while it ran model 'bad' version 1 (request 'poison'), model 'innocent' version 1, any of which may be "
        "the cause"
    )
    assert count_refused(counts) == 0
    assert innocent.needs_isolation()
    assert not runs_of(counts, "third").needs_isolation()


def test_models_in_processes_of_their_own_that_ran_together_when_the_worker_ended_twice_are_refused(
    counts,
):
    for name in ("bad", "beside"):
        runs_of(counts, name).note_isolation(is_isolated=True)
        runs_of(counts, name).begin()
    assert "refused" not in blame(counts, 0, FPE)
    assert "model 'bad' version 1 ended its process 2 times" in blame(counts, 0, FPE)
    assert count_refused(counts) == 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_model_is_blamed_for_a_signal_from_outside(number, counts):
    runs_of(counts).begin()
    for _ in range(3):
        text = blame(counts, 0, -int(number))
    assert text == " while it ran model 'm' version 1"
    assert count_refused(counts) == 0
    assert not runs_of(counts).needs_isolation()


def test_a_crash_outside_of_models_is_said_to_be_one(counts):
    assert blame(counts, 0, FPE) == " while it ran no model"


def test_runs_that_did_not_end_are_read_by_another_process_with_the_last_request():
    counts = SharedCounts(3, 2)
    worker = SharedCounts(3, 1, counts.descriptor)
    runs = runs_of(worker, "shapes", "3")
    runs.begin("long-ago")
    runs.end()
    assert blame(counts, 1, -int(signal.SIGKILL)) == " while it ran no model"
    runs.begin("first")
    runs.begin("poison-7")
    runs_of(worker, "other").begin()
    assert blame(counts, 0, -int(signal.SIGKILL)) == " while it ran no model"
    assert blame(counts, 1, -int(signal.SIGKILL)) == (
        " while it ran model 'shapes' version 3 (2 requests, the last 'poison-7'), model 'other' version 1"
    )


def test_a_run_that_waits_for_another_process_does_not_count(counts):
    runs = runs_of(counts)
    nothing, one = " while it ran no model", " while it ran model 'm' version 1"
    with runs.running():
        with runs.paused():
            assert blame(counts, 0, -int(signal.SIGKILL)) == nothing
        assert blame(counts, 0, -int(signal.SIGKILL)) == one
    assert blame(counts, 0, -int(signal.SIGKILL)) == nothing


@pytest.mark.parametrize("request_id", ["x" * 300, "\N{SNOWMAN}\udcff" * 60])
def test_names_and_ids_of_any_length_and_script_fit(request_id, counts):
    runs_of(counts, "n" * 128, "9" * 31).begin(request_id)
    text = blame(counts, 0, -int(signal.SIGKILL))
    start = f" while it ran model '{'n' * 128}' version {'9' * 31} (request '"
    assert text.startswith((f"{start}xx", f"{start}\N{SNOWMAN}?"))
    assert len(text.removeprefix(start).encode()) <= 84


def test_runs_of_many_threads_are_counted(counts):
    def run():
        for _ in range(1000):
            with runs_of(counts).running():
                pass

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert blame(counts, 0, FPE) == " while it ran no model"


def test_models_without_a_row_of_their_own_are_known_and_never_refused(monkeypatch):
    monkeypatch.setattr(shared_counts, "MAX_ROWS", 2 + shared_counts.OTHER_ROWS)
    counts = SharedCounts()
    assert [runs_of(counts, name).is_shared for name in ("a", "b", "a", "c")] == [
        False, True, False, True,
    ]  # fmt: skip
    for name in ("b", "b", "c"):
        assert runs_of(counts, name).count_crash("SIGFPE") is None
    runs_of(counts, "c").suspect()
    assert not runs_of(counts, "b").needs_isolation()


def test_an_exit_is_described_by_its_signal():
    assert describe_exit(FPE) == "SIGFPE"
    assert describe_exit(1) == "status 1"
    assert describe_exit(-200) == "signal 200"

"""Jobs outlive whatever ends their runner, and end in one state."""

import errno
import json
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from quadriga.store.jobs import jobs as jobs_module
from quadriga.store.jobs import runner as runner_module
from quadriga.store.jobs.jobs import Jobs, Progress
from quadriga.store.jobs.runner import MAX_STARTS, JobLimits, JobRun, JobRunner, run_here
from quadriga.store.records.errors import (
    JournalError,
    NotFoundError,
    QueryError,
    StoreError,
    TooManyJobsError,
)
from tests.background import at_once, in_background, until
from tests.unit.http_client import NoStore

WORKS: dict[str, Callable[[JobRun], str]] = {}


def work(run: JobRun) -> str:
    """Do what the test says that this job does."""
    return WORKS[run.job.parameters["work"]](run)


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Jobs:
    monkeypatch.setattr(runner_module, "POLL_INTERVAL_S", 0.005)
    monkeypatch.setattr(runner_module, "PROGRESS_INTERVAL_S", 0.0)
    WORKS.clear()
    WORKS.update(write=write, fail=fail, refuse=refuse, wait=wait)
    return Jobs(tmp_path / "jobs")


def write(run: JobRun) -> str:
    (run.directory / "answer.txt").write_text("42")
    run.report_progress(1, 1)
    run.log("written")
    return "answer.txt"


def fail(_: JobRun) -> str:
    return {}["nothing"]


def refuse(_: JobRun) -> str:
    raise QueryError("expected another, got this")


def wait(run: JobRun) -> str:
    while True:
        run.report_progress(7, None)
        time.sleep(0.005)


def test_a_job_says_its_step_at_once_until_it_has_ended(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the numbers alone are written rarely, and a job that ends keeps its numbers alone."""
    monkeypatch.setattr(runner_module, "PROGRESS_INTERVAL_S", 60.0)
    seen: list[Progress] = []

    def read(run: JobRun) -> str:
        for done, total in ((0, None), (0, 4), (2, 4), (4, 4)):
            run.report_reading(done, total)
            seen.append(jobs.read(run.job.id).progress)
        run.enter_step("writing the report")
        seen.append(jobs.read(run.job.id).progress)
        return write(run)

    WORKS["read"] = read
    with runner(jobs):
        job = jobs.submit("test", {"work": "read"})
        until(lambda: ended(jobs, job.id))
    assert seen == [
        Progress(0, None, "choosing inferences"),
        Progress(0, 4, "reading inferences"),
        Progress(0, 4, "reading inferences"),
        Progress(4, 4, "computing"),
        Progress(4, 4, "writing the report"),
    ]
    assert jobs.read(job.id).progress == Progress(1, 1)


def runner(jobs: Jobs, **limits: float) -> AbstractContextManager[threading.Event]:
    return in_background(
        JobRunner(jobs, {"test": work}, NoStore(), None, limits=JobLimits(**limits)).run
    )


def ended(jobs: Jobs, job_id: str) -> bool:
    return jobs.read(job_id).ended_at is not None


def test_a_job_is_done_and_says_so(jobs: Jobs) -> None:
    job = jobs.submit("test", {"work": "write"})
    assert (job.state, jobs.read(job.id)) == ("queued", job)
    with runner(jobs):
        until(lambda: ended(jobs, job.id))
    job_state = jobs.read(job.id, with_log=True)
    assert (job_state.state, job_state.error, job_state.progress.done) == ("succeeded", None, 1)
    assert job_state.created_at <= job_state.started_at <= job_state.ended_at
    assert job_state.log.endswith(" written\n")
    assert jobs.result(job.id).read_text() == "42"
    assert job_state.result.bytes == 2


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("refuse", "expected another, got this"),
        ("fail", "KeyError: the log of the server has the reason"),
    ],
)
def test_a_job_that_fails_says_why_and_the_next_is_done(jobs: Jobs, kind: str, error: str) -> None:
    first, second = (jobs.submit("test", {"work": name}) for name in (kind, "write"))
    with runner(jobs):
        until(lambda: ended(jobs, second.id))
    job_state = jobs.read(first.id)
    assert (job_state.state, job_state.error) == ("failed", error)
    assert jobs.read(second.id).state == "succeeded"
    with pytest.raises(NotFoundError, match="has no result: it is failed"):
        jobs.result(first.id)


def test_two_runners_divide_the_kinds_and_neither_waits_for_the_other(jobs: Jobs) -> None:
    first, second = (jobs.submit(kind, {"work": "wait"}) for kind in ("slow", "test"))
    slow = JobRunner(jobs, {"slow": work}, NoStore(), None, leave=["test"])
    quick = JobRunner(jobs, {"test": work}, NoStore(), None, leave=["slow"])
    with in_background(slow.run), in_background(quick.run):
        until(lambda: {jobs.read(job.id).state for job in (first, second)} == {"running"})
        for job in (first, second):
            jobs.cancel(job.id)
        until(lambda: ended(jobs, first.id) and ended(jobs, second.id))
    assert {jobs.read(job.id).starts for job in (first, second)} == {1}


def test_jobs_are_done_in_their_order(jobs: Jobs) -> None:
    order = []
    WORKS["note"] = lambda run: order.append(run.job.id) or write(run)
    ids = [jobs.submit("test", {"work": "note"}).id for _ in range(20)]
    with runner(jobs):
        until(lambda: ended(jobs, ids[-1]))
    assert order == ids == [job.id for job in reversed(jobs.all())]


def test_a_running_job_ends_when_it_is_cancelled(jobs: Jobs) -> None:
    job = jobs.submit("test", {"work": "wait"})
    with runner(jobs):
        until(lambda: jobs.read(job.id).progress.done == 7)
        jobs.cancel(job.id)
        until(lambda: ended(jobs, job.id))
    assert jobs.read(job.id).state == jobs.cancel(job.id).state == "cancelled"


def test_a_queued_job_is_cancelled_at_once_and_never_begun(jobs: Jobs) -> None:
    job = jobs.submit("test", {"work": "write"})
    assert jobs.cancel(job.id).state == "cancelled"
    with runner(jobs):
        until(lambda: ended(jobs, job.id))
    assert (jobs.read(job.id).state, jobs.read(job.id).starts) == ("cancelled", 0)


def test_a_job_that_ended_cannot_be_cancelled(jobs: Jobs) -> None:
    job = jobs.submit("test", {"work": "write"})
    with runner(jobs):
        until(lambda: ended(jobs, job.id))
    assert jobs.cancel(job.id).state == "succeeded"


def test_a_job_that_is_interrupted_waits_for_the_next_runner(jobs: Jobs) -> None:
    job = jobs.submit("test", {"work": "wait"})
    with runner(jobs):
        until(lambda: jobs.read(job.id).state == "running")
    assert (jobs.read(job.id).state, jobs.read(job.id).starts) == ("queued", 0)
    WORKS["wait"] = write
    with runner(jobs):
        until(lambda: ended(jobs, job.id))
    assert jobs.read(job.id).state == "succeeded"


@pytest.mark.parametrize(("starts", "state"), [(1, "succeeded"), (MAX_STARTS, "failed")])
def test_a_job_whose_runner_died_is_begun_again_a_few_times(jobs, starts: int, state: str) -> None:
    job = jobs.submit("test", {"work": "write"})
    path = jobs.directory / job.id / "job.json"
    left = json.loads(path.read_bytes()) | {"state": "running", "starts": starts}
    path.write_text(json.dumps(left))
    (path.parent / ".half").mkdir()
    with runner(jobs):
        until(lambda: ended(jobs, job.id))
    assert jobs.read(job.id).state == state
    assert (path.parent / ".half").exists() == (state == "failed")


def test_two_runners_do_each_job_once(jobs: Jobs) -> None:
    done = []

    def slowly(run: JobRun) -> str:
        done.append(run.job.id)
        time.sleep(0.01)
        return write(run)

    WORKS["slowly"] = slowly
    ids = [jobs.submit("test", {"work": "slowly"}).id for _ in range(20)]
    with runner(jobs), runner(jobs):
        until(lambda: all(ended(jobs, job_id) for job_id in ids))
    assert sorted(done) == ids


def test_a_job_that_is_run_here_is_left_alone_by_runners(jobs: Jobs) -> None:
    parameters = {"work": "fail"}
    with runner(jobs), run_here(jobs, "test", parameters, NoStore(), None) as run:
        other = jobs.submit("test", {"work": "write"})
        until(lambda: ended(jobs, other.id))
        job = jobs.read(run.job.id)
        assert (job.state, job.starts, job.parameters) == ("running", 1, parameters)
        run.end("succeeded", result=run.result(write(run)))
    with runner(jobs):
        last = jobs.submit("test", {"work": "write"})
        until(lambda: ended(jobs, last.id))
    assert (jobs.read(job.id).state, jobs.read(job.id).starts) == ("succeeded", 1)
    assert jobs.result(job.id).read_text() == "42"


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError("no")])
def test_a_job_that_is_run_here_and_not_ended_is_removed(jobs: Jobs, error) -> None:
    with (
        pytest.raises((KeyboardInterrupt, ValueError)),
        run_here(jobs, "test", {}, NoStore(), None),
    ):
        raise error
    assert (jobs.ids(), jobs.removed_ids()) == ([], [])


def test_a_job_that_is_run_here_can_be_cancelled(jobs: Jobs) -> None:
    def run_cancelled() -> None:
        with run_here(jobs, "test", {}, NoStore(), None) as run:
            jobs.cancel(run.job.id)
            run.report_progress(1, 2)

    with pytest.raises(StoreError, match="was cancelled"):
        run_cancelled()
    assert jobs.ids() == []


def test_the_end_of_a_job_with_a_webhook_is_told_once(jobs: Jobs) -> None:
    told: list[tuple[str, str]] = []
    is_full = [True]

    def tell(job) -> None:
        if is_full.pop() if is_full else False:
            raise OSError(errno.ENOSPC, "No space left on device")
        told.append((job.id, job.state))

    hook = {"webhook": "https://example.org/end"}
    expected = [
        (jobs.submit("test", hook | {"work": "write"}).id, "succeeded"),
        (jobs.submit("test", hook | {"work": "fail"}).id, "failed"),
        (jobs.cancel(jobs.submit("test", hook | {"work": "write"}).id).id, "cancelled"),
    ]
    jobs.submit("test", {"work": "write"})
    for _ in range(2):
        with in_background(JobRunner(jobs, {"test": work}, NoStore(), None, on_end=tell).run):
            last = jobs.submit("test", {"work": "write"})
            until(lambda last=last: ended(jobs, last.id))
    assert sorted(told) == sorted(expected)


def test_old_jobs_are_removed_with_what_they_made(jobs: Jobs) -> None:
    old, waiting = (jobs.submit("test", {"work": "write"}) for _ in range(2))
    path = jobs.directory / old.id / "job.json"
    left = json.loads(path.read_bytes())
    left |= {"state": "succeeded", "ended_at": "2026-01-01T00:00:00.000Z"}
    path.write_text(json.dumps(left))
    jobs.remove_old(7)
    assert [job.id for job in jobs.all()] == [waiting.id]
    assert [path.name for path in jobs.directory.iterdir() if path.is_dir()] == [waiting.id]


@pytest.mark.parametrize("job_id", ["", "..", "1", "0" * 19 + "-abcd", "../../etc/passwd", "\0"])
def test_what_is_no_job_is_said(jobs: Jobs, job_id: str) -> None:
    for method in (jobs.read, jobs.cancel, jobs.result):
        with pytest.raises(NotFoundError, match="job not found"):
            method(job_id)


@pytest.mark.parametrize("damaged", [b"", b"{}", b'{"id": "\xff"', b"[" * 100_000])
def test_a_job_that_power_took_half_of_stops_no_other(jobs: Jobs, damaged: bytes) -> None:
    broken, next_one = (jobs.submit("test", {"work": "write"}) for _ in range(2))
    (jobs.directory / broken.id / "job.json").write_bytes(damaged)
    with runner(jobs):
        until(lambda: ended(jobs, next_one.id))
    assert [job.id for job in jobs.all()] == [next_one.id]
    with pytest.raises(NotFoundError, match="job not found"):
        jobs.read(broken.id)


def test_a_cancellation_that_cannot_be_noted_is_no_fault_of_ours(jobs: Jobs, monkeypatch) -> None:
    job = jobs.submit("test", {"work": "wait"})

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "touch", full)
    with pytest.raises(JournalError, match="cannot cancel the job: No space left"):
        jobs.cancel(job.id)


def test_a_success_that_cannot_be_noted_at_once_is_no_failure(jobs: Jobs, monkeypatch) -> None:
    job = jobs.submit("test", {"work": "write"})
    left = [OSError(errno.ENOSPC, "No space left on device")]
    write_atomically = jobs_module.write_atomically

    def nearly_full(path: Path, data: bytes) -> None:
        if b'"succeeded"' in data and left:
            raise left.pop()
        write_atomically(path, data)

    monkeypatch.setattr(jobs_module, "write_atomically", nearly_full)
    with runner(jobs):
        until(lambda: ended(jobs, job.id))
    assert (jobs.read(job.id).state, left) == ("succeeded", [])


def test_no_more_jobs_wait_than_may_however_many_ask_at_once(jobs: Jobs) -> None:
    limited = [Jobs(jobs.directory, 5) for _ in range(4)]  # of four workers
    refusals: list[TooManyJobsError] = []

    def submit(number: int) -> None:
        try:
            limited[number % 4].submit("test", {"work": "write"})
        except TooManyJobsError as error:
            refusals.append(error)

    at_once([lambda number=number: submit(number) for number in range(40)])
    assert (len(jobs.ids()), len(refusals)) == (5, 35)
    assert sum(worker.refused for worker in limited) == 35
    assert str(refusals[0]).startswith("expected fewer than 5 waiting jobs, got as many: ")
    assert (refusals[0].status, refusals[0].retry_after_s) == (503, 30)
    assert not [path for path in jobs.directory.iterdir() if path.name.startswith(".1")]
    jobs.submit("test", {"work": "write"})  # a schedule's is not refused
    assert limited[0].waiting_count() == 6
    with runner(jobs):
        until(lambda: limited[0].waiting_count() == 0)
    limited[0].submit("test", {"work": "write"})
    jobs.cancel(jobs.ids()[-1])
    assert limited[1].waiting_count() == 0


def test_a_job_ends_after_its_time_and_what_it_wrote_is_removed(jobs: Jobs) -> None:
    def wait_and_write(run: JobRun) -> str:
        (run.directory / "part").mkdir()
        (run.directory / "part" / "half").write_bytes(b"1")
        return wait(run)

    WORKS["wait_and_write"] = wait_and_write
    job, after = (jobs.submit("test", {"work": name}) for name in ("wait_and_write", "write"))
    with runner(jobs, run_s=0.1):
        until(lambda: ended(jobs, after.id))
    failed = jobs.read(job.id)
    assert failed.state == "failed"
    assert failed.error == "expected the job to end within 0.1 s"
    assert {path.name for path in (jobs.directory / job.id).iterdir()} == {"job.json", "lock"}
    assert jobs.read(after.id).state == "succeeded"


def test_a_job_whose_step_does_not_end_ends_the_process_and_has_failed(jobs, monkeypatch) -> None:
    monkeypatch.setattr(runner_module, "STUCK_GRACE_S", 0.05)
    release, ended_with = threading.Event(), list[int]()

    def hang(run: JobRun) -> str:
        (run.directory / "half").write_bytes(b"1")
        release.wait(30)
        return "half"

    def end_process(status: int) -> None:
        states.append(jobs.read(job.id))
        ended_with.append(status)
        release.set()

    WORKS["hang"] = hang
    states: list[jobs_module.Job] = []
    job = jobs.submit("test", {"work": "hang"})
    limits = JobLimits(run_s=0.1)
    hanging = JobRunner(
        jobs, {"test": work}, NoStore(), None, limits=limits, end_process=end_process
    )
    with in_background(hanging.run):
        until(lambda: ended_with)
    assert ended_with == [1]
    assert states[0].state == "failed"
    assert "got a step that does not end" in states[0].error


def write_for_ever(run: JobRun) -> str:
    with (run.directory / "big.bin").open("wb") as file:
        while True:
            file.write(b"x" * 10_000)
            file.flush()
            run.report_progress(file.tell(), None)


def test_a_job_that_would_pass_the_quota_fails_and_finished_results_stay(jobs: Jobs) -> None:
    WORKS["write_for_ever"] = write_for_ever
    first, greedy, after = (
        jobs.submit("test", {"work": name}) for name in ("write", "write_for_ever", "write")
    )
    with runner(jobs, max_bytes=200_000):
        until(lambda: ended(jobs, after.id))
    failed = jobs.read(greedy.id)
    assert failed.state == "failed"
    assert "all jobs to take at most 200000 bytes, got" in failed.error
    assert 100_000 < failed.progress.done < 210_000
    assert {path.name for path in (jobs.directory / greedy.id).iterdir()} == {"job.json", "lock"}
    assert [jobs.result(job.id).read_text() for job in (first, after)] == ["42", "42"]
    with pytest.raises(NotFoundError, match="has no result: it is failed"):
        jobs.result(greedy.id)


def test_results_of_others_count_for_the_quota_after_a_restart_too(jobs: Jobs) -> None:
    WORKS["write_for_ever"] = write_for_ever
    first = jobs.submit("test", {"work": "write"})
    with runner(jobs):
        until(lambda: ended(jobs, first.id))
    jobs.result(first.id).write_bytes(b"x" * 150_000)
    greedy = jobs.submit("test", {"work": "write_for_ever"})
    with runner(jobs, max_bytes=200_000):
        until(lambda: ended(jobs, greedy.id))
    assert jobs.read(greedy.id).progress.done < 60_000
    assert jobs.result(first.id).stat().st_size == 150_000


def test_without_a_quota_jobs_take_half_of_the_disk(jobs: Jobs, monkeypatch) -> None:
    usage = shutil.disk_usage(jobs.directory.parent)
    free = iter([300_000])
    monkeypatch.setattr(
        runner_module.shutil, "disk_usage", lambda _: usage._replace(free=next(free))
    )
    WORKS["write_for_ever"] = write_for_ever
    greedy = jobs.submit("test", {"work": "write_for_ever"})
    with runner(jobs):
        until(lambda: ended(jobs, greedy.id))
    assert 100_000 < jobs.read(greedy.id).progress.done < 160_000

"""Jobs outlive whatever ends their runner, and end in one state."""

import errno
import json
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from quadriga.store import jobs as jobs_module
from quadriga.store.errors import JournalError, NotFoundError, QueryError
from quadriga.store.jobs import MAX_STARTS, JobRun, JobRunner, Jobs
from tests.background import in_background, until

WORKS: dict[str, Callable[[JobRun], str]] = {}


def work(run: JobRun) -> str:
    """Do what the test says that this job does."""
    return WORKS[run.job.parameters["work"]](run)


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Jobs:
    monkeypatch.setattr(jobs_module, "POLL_INTERVAL_S", 0.005)
    monkeypatch.setattr(jobs_module, "PROGRESS_INTERVAL_S", 0.0)
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


def runner(jobs: Jobs) -> AbstractContextManager[threading.Event]:
    return in_background(JobRunner(jobs, {"test": work}, None, None).run)


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
    [("refuse", "expected another, got this"), ("fail", "KeyError: 'nothing'")],
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


def test_old_jobs_are_removed_with_what_they_made(jobs: Jobs) -> None:
    old, waiting = (jobs.submit("test", {"work": "write"}) for _ in range(2))
    path = jobs.directory / old.id / "job.json"
    left = json.loads(path.read_bytes())
    left |= {"state": "succeeded", "ended_at": "2026-01-01T00:00:00.000Z"}
    path.write_text(json.dumps(left))
    jobs.remove_old(7)
    assert [job.id for job in jobs.all()] == [waiting.id]
    assert [path.name for path in jobs.directory.iterdir()] == [waiting.id]


@pytest.mark.parametrize("job_id", ["", "..", "1", "0" * 19 + "-abcd", "../../etc/passwd", "\0"])
def test_what_is_no_job_is_said(jobs: Jobs, job_id: str) -> None:
    for method in (jobs.read, jobs.cancel, jobs.result):
        with pytest.raises(NotFoundError, match="job not found"):
            method(job_id)


def test_a_job_that_power_took_half_of_stops_no_other(jobs: Jobs) -> None:
    broken, next_one = (jobs.submit("test", {"work": "write"}) for _ in range(2))
    (jobs.directory / broken.id / "job.json").write_bytes(b"")
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

"""Jobs: long work, done one after the other by a process of its own, kept as folders of files.

`<directory>/<id>/` holds `job.json`, `log.txt` and what the job made; a file `cancel` in it asks for its
end. All else is written by the runner alone, and a job whose runner died or was stopped is begun again.
"""

import logging
import os
import re
import secrets
import shutil
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import msgspec

from quadriga.store.blobs.interface import Blobs
from quadriga.store.disk import try_lock, write_atomically
from quadriga.store.errors import NotFoundError, StoreError, translate_disk_errors
from quadriga.store.inferences import InferenceReader
from quadriga.store.records import timestamp_text

KINDS = {
    "baseline": "quadriga.monitor.drift_jobs:run_baseline",
    "drift": "quadriga.monitor.drift_jobs:run_drift",
    "evaluation": "quadriga.monitor.evaluation.job:run_evaluation",
    "export": "quadriga.store.exchange.export:run_export",
}
"""What does the work of a kind: called with a `Run`, returns the name of its result within the folder."""

MAX_STARTS = 5  # a job whose runner died so often has failed
POLL_S = 0.2
TELL_S = 0.5  # how often progress is written
QUERY_S = 20.0  # what one query of a job may take: no longer, or it could not be stopped in time
TIDY_S = 60.0
LOG_TAIL_BYTES = 4096
_ID = re.compile(r"[0-9]{19}-[0-9a-f]{4}", re.ASCII)
_ENDED = ("succeeded", "failed", "cancelled")
_log = logging.getLogger(__name__)


class Progress(msgspec.Struct, frozen=True):
    """How far a job is."""

    done: int = 0
    total: int | None = None  # None where it is not known


class Result(msgspec.Struct, frozen=True):
    """The file that a job made."""

    file: str  # its name within the folder
    bytes: int


class Job(msgspec.Struct, frozen=True):
    """One job, as `job.json` keeps it and the API answers it."""

    id: str  # in the order of submission
    kind: str
    parameters: dict[str, Any]
    created_at: str  # RFC 3339, UTC, as the others
    state: Literal["queued", "running", "succeeded", "failed", "cancelled"] = "queued"
    progress: Progress = Progress()
    starts: int = 0  # how often it was begun
    started_at: str | None = None
    ended_at: str | None = None
    error: str | None = None
    result: Result | None = None
    log: str = ""  # the end of `log.txt`; only where one job is asked for


class _Cancelled(Exception):
    """The job is to end."""


class _Stopped(Exception):
    """The runner is to end."""


class Jobs:
    """The jobs of a data folder; safe to use from several threads and processes.

    What is asked of a job that there is not, or of a result that it has not made, is a `NotFoundError`.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def submit(self, kind: str, parameters: msgspec.Struct | dict[str, Any]) -> Job:
        """Queue a job, its parameters checked; a JournalError where the disk is full."""
        job_id = f"{time.time_ns():019d}-{secrets.token_hex(2)}"
        job = Job(job_id, kind, msgspec.to_builtins(parameters), _now())
        hidden = self.directory / f".{job_id}"
        with translate_disk_errors("keep the job"):
            try:
                hidden.mkdir(parents=True)
                _write(hidden, job)
                hidden.rename(self.directory / job_id)
            except OSError:
                shutil.rmtree(hidden, ignore_errors=True)
                raise
        return job

    def ids(self) -> list[str]:
        """Return the ids of all jobs, in the order of their submission."""
        return sorted(path.name for path in self.directory.glob("*") if _ID.fullmatch(path.name))

    def all(self) -> list[Job]:
        """Return all jobs, the newest first."""
        jobs = []
        for job_id in reversed(self.ids()):
            with suppress(NotFoundError):  # removed since
                jobs.append(self.read(job_id))
        return jobs

    def read(self, job_id: str, *, with_log: bool = False) -> Job:
        """Return one job."""
        folder = self._folder(job_id)
        try:
            job = msgspec.json.decode((folder / "job.json").read_bytes(), type=Job)
        except (FileNotFoundError, msgspec.MsgspecError) as error:
            # The latter where power was lost as it was made.
            raise NotFoundError(f"expected {job_id} to be a job, got none") from error
        if job.state == "queued" and (folder / "cancel").exists():
            job = msgspec.structs.replace(job, state="cancelled")
        return msgspec.structs.replace(job, log=_tail(folder / "log.txt")) if with_log else job

    def cancel(self, job_id: str) -> Job:
        """End a job at its next step; one that has ended stays as it is. Raises as `submit`."""
        if self.read(job_id).state not in _ENDED:
            # It may be removed since, which `read` says.
            with translate_disk_errors("cancel the job"), suppress(FileNotFoundError):
                (self._folder(job_id) / "cancel").touch()
        return self.read(job_id)

    def result(self, job_id: str) -> Path:
        """Return the file that a job made."""
        job = self.read(job_id)
        if job.result is None:
            raise NotFoundError(f"expected job {job_id} to have a result, got it {job.state}")
        return self._folder(job_id) / job.result.file

    def remove_old(self, days: float) -> None:
        """Remove jobs that ended so many days ago, with what they made."""
        limit = timestamp_text(time.time_ns() // 1_000_000 - round(days * 86_400_000))
        for job in self.all():
            if job.ended_at is not None and job.ended_at < limit:
                hidden = self.directory / f".{job.id}"
                self._folder(job.id).rename(hidden)
                shutil.rmtree(hidden, ignore_errors=True)

    def _folder(self, job_id: str) -> Path:
        if not _ID.fullmatch(job_id):
            raise NotFoundError(f"expected {job_id[:80]!r} to be a job, got none")
        return self.directory / job_id


class Run:
    """What the work of a job is handed."""

    def __init__(
        self,
        job: Job,
        directory: Path,
        inferences: InferenceReader,
        blobs: Blobs,
        stop: threading.Event,
    ) -> None:
        self.job = job
        self.directory = directory
        self.inferences = inferences
        self.blobs = blobs
        self._stop = stop
        self._told_at = 0.0

    def tell(self, done: int, total: int | None) -> None:
        """Say how far the work is, at every step: here a job ends that was cancelled."""
        if (self.directory / "cancel").exists():
            raise _Cancelled
        if self._stop.is_set():
            raise _Stopped
        self.job = msgspec.structs.replace(self.job, progress=Progress(done, total))
        if time.monotonic() - self._told_at > TELL_S:
            self._told_at = time.monotonic()
            _write(self.directory, self.job)

    def log(self, text: str) -> None:
        """Add a line to the job's log."""
        with (self.directory / "log.txt").open("a", encoding="utf-8") as file:
            file.write(f"{_now()} {text}\n")

    def note(self, **changes: Any) -> None:
        """Change fields of the job, and keep it."""
        self.job = msgspec.structs.replace(self.job, **changes)
        _write(self.directory, self.job)

    def end(self, state: str, error: str | None = None, result: Result | None = None) -> None:
        """Note that the job has ended, and how."""
        self.note(state=state, ended_at=_now(), error=error, result=result)


def run_jobs(
    jobs: Jobs,
    inferences: InferenceReader,
    blobs: Blobs,
    stop: threading.Event,
    keep_days: float = 7.0,
) -> None:
    """Do the jobs one after the other, as they come, until `stop` is set."""
    ended: set[str] = set()
    tidied_at, failing = -TIDY_S, False
    while not stop.is_set():
        if time.monotonic() - tidied_at > TIDY_S:
            tidied_at = time.monotonic()
            with suppress(OSError):
                jobs.remove_old(keep_days)
        try:
            for job_id in jobs.ids():
                if stop.is_set():
                    break
                if job_id not in ended and _take(jobs, job_id, inferences, blobs, stop):
                    ended.add(job_id)
            failing = False
        except OSError as error:  # as on a full disk
            if not failing:
                _log.warning("the jobs wait: %s", error)
            failing = True
        stop.wait(POLL_S)


def _take(
    jobs: Jobs, job_id: str, inferences: InferenceReader, blobs: Blobs, stop: threading.Event
) -> bool:
    """Do a job, unless another runner does it; tells whether it has ended."""
    directory = jobs.directory / job_id
    try:
        file = try_lock(directory / "lock")
    except FileNotFoundError:  # removed since
        return False
    if file is None:
        return False
    with file:
        try:
            run = Run(jobs.read(job_id), directory, inferences, blobs, stop)
        except NotFoundError as error:
            _log.error("job %s cannot be read: %s", job_id, error)
            return True
        return _do(run)


def _do(run: Run) -> bool:
    if run.job.state in _ENDED:
        if run.job.ended_at is None:  # cancelled before it was begun
            run.note(ended_at=_now())
        return True
    starts = run.job.starts + 1
    run.note(state="running", starts=starts, started_at=_now(), progress=Progress())
    try:
        if starts > MAX_STARTS:
            raise StoreError(f"expected a run that ends, got {MAX_STARTS} whose process died")
        for left in run.directory.glob(".*/"):  # of a run that died
            shutil.rmtree(left, ignore_errors=True)
        module, _, function = KINDS[run.job.kind].partition(":")
        work: Callable[[Run], str] = getattr(import_module(module), function)
        name = work(run)
        result = Result(name, (run.directory / name).stat().st_size)
    except _Stopped:
        run.note(state="queued", starts=run.job.starts - 1)
        return False
    except _Cancelled:
        run.end("cancelled")
    except StoreError as error:
        run.end("failed", str(error))
    except Exception as error:  # noqa: BLE001 - whatever a job does, it may not stop the others
        _log.exception("job %s failed", run.job.id)
        with suppress(OSError):
            run.log(traceback.format_exc())
        run.end("failed", f"{type(error).__name__}: {error}")
    else:
        run.end("succeeded", result=result)
    return True


def _write(directory: Path, job: Job) -> None:
    write_atomically(directory / "job.json", msgspec.json.encode(job))


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


def _now() -> str:
    return timestamp_text(time.time_ns() // 1_000_000)

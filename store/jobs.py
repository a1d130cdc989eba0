"""Jobs: long work that a process of its own does one after the other; each is a folder of files.

`<directory>/<id>/` holds `job.json`, `log.txt` and the job's result; a file `cancel` in it requests its
end. Only the runner writes the other files, and it starts a job again whose earlier runner died or was stopped.
What a job does is handed in: a function for each kind.
"""

import logging
import math
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from pathlib import Path
from typing import Any, Literal

import msgspec

from quadriga.store.blobs.interface import Blobs
from quadriga.store.disk import folder_bytes, lock, try_lock, write_atomically
from quadriga.store.errors import (
    NotFoundError,
    StoreError,
    TooManyJobsError,
    full_text,
    translate_disk_errors,
)
from quadriga.store.inferences import InferenceReader
from quadriga.store.records import timestamp_text
from quadriga.store.scope import EVERYTHING, Scope, Scoped

MAX_STARTS = 5
"""Starts after which a job has failed, as its runner died each time."""

POLL_INTERVAL_S = 0.2
PROGRESS_INTERVAL_S = 0.5
"""Shortest time between two writes of a job's progress."""

QUERY_TIMEOUT_S = 20.0
"""Timeout of one query of a job: with a longer one the job could not be stopped in time."""

CLEANUP_INTERVAL_S = 60.0
MEASURE_INTERVAL_S = 10.0
"""Time between two measurements of the files of other jobs."""

STUCK_GRACE_S = 300.0
"""Time that the step of a job may take longer than the job; then the runner's process is ended."""

LOG_TAIL_BYTES = 4096
_ID = re.compile(r"[0-9]{19}-[0-9a-f]{4}", re.ASCII)
_LASTING_FILES = ("job.json", "log.txt", "lock", "cancel")
_ENDED = ("succeeded", "failed", "cancelled")
_log = logging.getLogger(__name__)


class Progress(msgspec.Struct, frozen=True):
    """Progress of a job."""

    done: int = 0
    total: int | None = None  # None if unknown


class Result(msgspec.Struct, frozen=True):
    """The result of a job: a file."""

    file: str  # its name within the job's folder
    bytes: int


class Job(msgspec.Struct, frozen=True):
    """A job, as in `job.json` and in responses."""

    id: str  # sorts by submission
    kind: str
    parameters: dict[str, Any]
    created_at: str  # RFC 3339, UTC; also the other times
    state: Literal["queued", "running", "succeeded", "failed", "cancelled"] = "queued"
    progress: Progress = Progress()
    starts: int = 0  # number of times that it was started
    started_at: str | None = None
    ended_at: str | None = None
    error: str | None = None
    result: Result | None = None
    log: str = ""  # the end of `log.txt`; empty in a list of jobs
    scope: Scope | msgspec.UnsetType = msgspec.UNSET
    """What the job may see, as the key had it that submitted it; left out for everything."""
    key_id: str | msgspec.UnsetType = msgspec.UNSET
    """Key that submitted the job; left out without one."""

    @property
    def team(self) -> str:
        """The team that the job belongs to; empty for none."""
        return scope_of(self).team


def scope_of(job: Job) -> Scope:
    """Return what a job may see; everything for one of an earlier release."""
    return EVERYTHING if job.scope is msgspec.UNSET else job.scope


class _Cancelled(Exception):
    """The job was cancelled."""


class _Stopped(Exception):
    """The runner is stopping."""


class _LimitReached(Exception):
    """The job reached one of its limits."""


class JobOwner(msgspec.Struct, frozen=True):
    """The key that submits a job."""

    key_id: str
    check: Callable[[int], None]
    """Raises an error if the key may submit no more, given the number of its jobs that have not ended."""


class Jobs:
    """The jobs of a data folder; safe to use from several threads and processes.

    Methods that take a job's id raise a `NotFoundError` if there is no such job, or if it has no result.

    Args:
        directory: Folder of the jobs.
        max_waiting: Maximum number of jobs that have not ended; None for no limit, as for those of schedules.
        owner: Returns who submits a job; None for nobody who has limits.
    """

    def __init__(
        self,
        directory: Path,
        max_waiting: int | None = None,
        *,
        owner: Callable[[], JobOwner | None] = lambda: None,
    ) -> None:
        self._owner = owner
        self.directory = directory
        self._max_waiting = max_waiting
        self._ended: set[str] = set()
        self._scope = EVERYTHING
        self._whole = self
        self.refused = 0
        """Number of jobs that were not accepted, as too many waited."""

    def within(self, scope: Scope) -> "Jobs":
        """Return a view of the jobs that a scope covers; what is submitted there sees no more than the scope."""
        view = copy(self)
        view._scope = scope  # noqa: SLF001 - it is one of these
        return view

    def submit(self, kind: str, parameters: msgspec.Struct | dict[str, Any]) -> Job:
        """Queue a job whose parameters are already checked.

        Raises:
            TooManyJobsError: As many jobs wait as may. What `owner` returns may raise an error of its own.
            JournalError: It cannot be written, for example because the disk is full.
        """
        owner = self._owner()
        job_id = f"{time.time_ns():019d}-{secrets.token_hex(2)}"
        scope = msgspec.UNSET if self._scope.is_everything else self._scope
        job = Job(job_id, kind, msgspec.to_builtins(parameters), _now(), scope=scope)
        if owner is not None:
            job = msgspec.structs.replace(job, key_id=owner.key_id)
        hidden = self.directory / f".{job_id}"
        with translate_disk_errors("store the job"):
            try:
                hidden.mkdir(parents=True)
                _write(hidden, job)
                with lock(self.directory / ".submitting"):
                    self._check_room()
                    if owner is not None:
                        owner.check(self._unended_count_of(owner.key_id))
                    hidden.rename(self.directory / job_id)
            except Exception:
                shutil.rmtree(hidden, ignore_errors=True)
                raise
        return job

    def waiting_count(self) -> int:
        """Return the number of jobs that have not ended."""
        ids = self.ids()
        self._ended.intersection_update(ids)
        count = 0
        for job_id in ids:
            if job_id not in self._ended and self._has_ended(job_id):
                self._ended.add(job_id)
            count += job_id not in self._ended
        return count

    def _unended_count_of(self, key_id: str) -> int:
        """Return the number of jobs of a key that have not ended."""
        count = 0
        for job_id in self.ids():
            if job_id not in self._ended:
                with suppress(NotFoundError):  # removed meanwhile, or damaged
                    job = self._read(job_id)
                    count += job.key_id == key_id and job.state not in _ENDED
        return count

    def _has_ended(self, job_id: str) -> bool:
        try:
            return self._read(job_id).state in _ENDED
        except NotFoundError:  # removed meanwhile, or damaged
            return True

    def _check_room(self) -> None:
        if self._max_waiting is None or self.waiting_count() < self._max_waiting:
            return
        self._whole.refused += 1
        raise TooManyJobsError(
            f"expected fewer than {self._max_waiting} waiting jobs, got as many: wait until some have ended, or cancel "
            "them by POST /api/jobs/{id}/cancel"
        )

    def ids(self) -> list[str]:
        """Return the ids of all jobs, the oldest first."""
        return sorted(path.name for path in self.directory.glob("*") if _ID.fullmatch(path.name))

    def removed_ids(self) -> list[str]:
        """Return the ids of jobs whose removal was interrupted."""
        names = (path.name[1:] for path in self.directory.glob(".*"))
        return sorted(name for name in names if _ID.fullmatch(name))

    def all(self) -> list[Job]:
        """Return all jobs, the newest first."""
        jobs = []
        for job_id in reversed(self.ids()):
            with suppress(NotFoundError):  # removed meanwhile
                jobs.append(self.read(job_id))
        return jobs

    def read(self, job_id: str, *, with_log: bool = False) -> Job:
        """Return one job."""
        job = self._read(job_id)
        if not self._scope.covers(scope_of(job)):
            raise _not_found(job_id)
        log = _tail(self._folder(job_id) / "log.txt") if with_log else ""
        return msgspec.structs.replace(job, log=log)

    def _read(self, job_id: str) -> Job:
        folder = self._folder(job_id)
        try:
            job = msgspec.json.decode((folder / "job.json").read_bytes(), type=Job)
        except (FileNotFoundError, msgspec.MsgspecError) as error:
            # The file may be damaged if power was lost while it was written.
            raise _not_found(job_id) from error
        if job.state == "queued" and (folder / "cancel").exists():
            job = msgspec.structs.replace(job, state="cancelled")
        return job

    def cancel(self, job_id: str) -> Job:
        """Cancel a job: it ends at its next step. A job that has ended is not changed; raises as `submit`."""
        if self.read(job_id).state not in _ENDED:
            # If the job was removed meanwhile, `read` raises.
            with translate_disk_errors("cancel the job"), suppress(FileNotFoundError):
                (self._folder(job_id) / "cancel").touch()
        return self.read(job_id)

    def result(self, job_id: str) -> Path:
        """Return the path of a job's result."""
        job = self.read(job_id)
        if job.result is None:
            raise NotFoundError(f"job {job_id} has no result: it is {job.state}")
        return self._folder(job_id) / job.result.file

    def remove_old(self, days: float) -> None:
        """Remove the folders of jobs that ended more than so many days ago."""
        limit = timestamp_text(time.time_ns() // 1_000_000 - round(days * 86_400_000))
        for job in self.all():
            if job.ended_at is not None and job.ended_at < limit:
                hidden = self.directory / f".{job.id}"
                self._folder(job.id).rename(hidden)
                shutil.rmtree(hidden, ignore_errors=True)

    def _folder(self, job_id: str) -> Path:
        if not _ID.fullmatch(job_id):
            raise NotFoundError(f"job not found: {job_id[:80]!r}")
        return self.directory / job_id


def _not_found(job_id: str) -> NotFoundError:
    return NotFoundError(f"job not found: {job_id}")


class JobLimits(msgspec.Struct, frozen=True):
    """Limits of each job, checked at its steps."""

    run_s: float = math.inf
    """Maximum time of one run of a job."""
    max_bytes: int = 0
    """Maximum bytes of the files of all jobs; 0 is half of what the disk has for them."""


class JobRun:
    """One run of a job: what its work reads from and reports to."""

    def __init__(
        self,
        job: Job,
        directory: Path,
        inferences: InferenceReader,
        blobs: Blobs,
        stop: threading.Event,
        *,
        limits: JobLimits = JobLimits(),  # noqa: B008 - it is immutable
    ) -> None:
        self.job = job
        self.directory = directory
        self.inferences = inferences
        self.blobs = blobs
        self._stop = stop
        self._limits = limits
        self._begun_s = time.monotonic()
        self._progress_written_s = 0.0
        self._measured_s = -MEASURE_INTERVAL_S
        self._others_bytes = 0
        self._limit_bytes = 0

    def report_progress(self, done: int, total: int | None) -> None:
        """Report progress; the work calls it at every step, as only here a job can be cancelled or stopped."""
        if (self.directory / "cancel").exists():
            raise _Cancelled
        if self._stop.is_set():
            raise _Stopped
        if time.monotonic() - self._begun_s > self._limits.run_s:
            raise _LimitReached(self.limit_text())
        self._check_size()
        self.job = msgspec.structs.replace(self.job, progress=Progress(done, total))
        if time.monotonic() - self._progress_written_s > PROGRESS_INTERVAL_S:
            self._progress_written_s = time.monotonic()
            _write(self.directory, self.job)

    def _check_size(self) -> None:
        own_bytes = folder_bytes(self.directory)
        if time.monotonic() - self._measured_s >= MEASURE_INTERVAL_S:
            self._measured_s = time.monotonic()
            jobs = self.directory.parent
            self._others_bytes = folder_bytes(jobs) - own_bytes
            free_bytes = shutil.disk_usage(jobs).free
            self._limit_bytes = (
                self._limits.max_bytes or (self._others_bytes + own_bytes + free_bytes) // 2
            )
        if self._others_bytes + own_bytes > self._limit_bytes:
            raise _LimitReached(
                f"expected the files of all jobs to take at most {self._limit_bytes} bytes, the setting max_job_bytes, "
                f"got {self._others_bytes} of other jobs and {own_bytes} of this one, which were removed"
            )

    def limit_text(self) -> str:
        """Return the reason of a job that took too long."""
        return f"expected the job to end within {self._limits.run_s:g} s, the setting job_timeout_s"

    def remove_files(self) -> None:
        """Remove everything that the work wrote."""
        for path in self.directory.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name not in _LASTING_FILES:
                path.unlink()

    def log(self, text: str) -> None:
        """Add a line to the job's log."""
        with (self.directory / "log.txt").open("a", encoding="utf-8") as file:
            file.write(f"{_now()} {text}\n")

    def update(self, **changes: Any) -> None:
        """Change fields of the job and write it."""
        self.job = msgspec.structs.replace(self.job, **changes)
        _write(self.directory, self.job)

    def end(self, state: str, error: str | None = None, result: Result | None = None) -> None:
        """Write the state in which the job has ended."""
        self.update(state=state, ended_at=_now(), error=error, result=result)


JobWork = Callable[[JobRun], str]
"""Does the work of a job and returns the name of its result within the job's folder."""


class JobRunner:
    """Runs the jobs of a data folder one after the other.

    Args:
        jobs: The jobs.
        kinds: The work of each kind of job.
        inferences: Reads the store, within the scope of each job.
        blobs: The images of the store.
        keep_days: Days after which ended jobs are removed.
        leave: Kinds of jobs that are left to another runner.
        limits: Limits of each job.
        end_process: Ends this process because of a job whose step does not end; its supervisor starts another.
    """

    def __init__(
        self,
        jobs: Jobs,
        kinds: Mapping[str, JobWork],
        inferences: Scoped[InferenceReader],
        blobs: Blobs,
        *,
        keep_days: float = 7.0,
        leave: Collection[str] = (),
        limits: JobLimits = JobLimits(),  # noqa: B008 - it is immutable
        end_process: Callable[[int], object] = os._exit,
    ) -> None:
        self._jobs = jobs
        self._kinds = kinds
        self._inferences = inferences
        self._blobs = blobs
        self._keep_days = keep_days
        self._leave = leave
        self._limits = limits
        self._end_process = end_process

    def run(self, stop: threading.Event) -> None:
        """Run jobs as they are submitted, until `stop` is set."""
        ended: set[str] = set()
        cleaned_up_s, is_failing = -CLEANUP_INTERVAL_S, False
        while not stop.is_set():
            if time.monotonic() - cleaned_up_s > CLEANUP_INTERVAL_S:
                cleaned_up_s = time.monotonic()
                with suppress(OSError):
                    self._jobs.remove_old(self._keep_days)
            try:
                for job_id in self._jobs.ids():
                    if stop.is_set():
                        break
                    if job_id not in ended and self._try_run(job_id, stop):
                        ended.add(job_id)
                is_failing = False
            except OSError as error:  # for example a full disk
                if not is_failing:
                    _log.warning("the jobs wait: %s", error)
                is_failing = True
            stop.wait(POLL_INTERVAL_S)

    def _try_run(self, job_id: str, stop: threading.Event) -> bool:
        """Run a job unless another runner does; return whether this one has nothing more to do with it."""
        directory = self._jobs.directory / job_id
        try:
            lock = try_lock(directory / "lock")
        except FileNotFoundError:  # the job was removed meanwhile
            return False
        if lock is None:
            return False
        with lock:
            try:
                job = self._jobs.read(job_id)
            except NotFoundError as error:
                _log.error("job %s cannot be read: %s", job_id, error)
                return True
            if job.kind in self._leave:
                return True
            inferences = self._inferences.within(scope_of(job))
            run = JobRun(job, directory, inferences, self._blobs, stop, limits=self._limits)
            with self._ending_if_stuck(run):
                return self._run_work(run)

    @contextmanager
    def _ending_if_stuck(self, run: JobRun) -> Iterator[None]:
        """End this process if a step of the job does not end long after the job's time; the job has failed then."""

        def give_up() -> None:
            _log.error("job %s does not end: this process ends instead", run.job.id)
            with suppress(OSError):
                run.remove_files()
                run.end("failed", f"{run.limit_text()}, got a step that does not end")
            self._end_process(1)

        timer = threading.Timer(
            min(self._limits.run_s + STUCK_GRACE_S, threading.TIMEOUT_MAX), give_up
        )
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _run_work(self, run: JobRun) -> bool:
        if run.job.state in _ENDED:
            if run.job.ended_at is None:  # cancelled before it was started
                run.update(ended_at=_now())
            return True
        starts = run.job.starts + 1
        run.update(state="running", starts=starts, started_at=_now(), progress=Progress())
        try:
            if starts > MAX_STARTS:
                raise StoreError(f"the process of the job died {MAX_STARTS} times")
            for leftover in run.directory.glob(".*/"):  # of a runner that died
                shutil.rmtree(leftover, ignore_errors=True)
            name = self._kinds[run.job.kind](run)
            result = Result(name, (run.directory / name).stat().st_size)
        except _Stopped:
            run.update(state="queued", starts=run.job.starts - 1)
            return False
        except _Cancelled:
            run.end("cancelled")
        except _LimitReached as error:
            run.remove_files()
            run.end("failed", str(error))
        except StoreError as error:
            if error.detail:
                _log.error("job %s failed: %s", run.job.id, full_text(error))
            run.end("failed", str(error))
        except Exception as error:  # noqa: BLE001 - no job may stop the others, whatever it raises
            _log.exception("job %s failed", run.job.id)
            reason = error.strerror if isinstance(error, OSError) else None
            log_text = "the log of the server has the reason"
            run.end("failed", f"{type(error).__name__}: {reason or log_text}")
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

"""Runs jobs one after the other, and starts a job again whose earlier runner died or was stopped.

What a job does is handed in: a function for each kind.
"""

import logging
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any

import msgspec

from quadriga.store.blobs.interface import Blobs
from quadriga.store.jobs.jobs import ENDED, Job, Jobs, Progress, Result, scope_of, write_job
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.disk import folder_bytes, translate_disk_errors, try_lock
from quadriga.store.records.errors import NotFoundError, StoreError, full_text
from quadriga.store.records.records import now_text
from quadriga.store.records.scope import Scoped

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

JOB_TIMEOUT_S = 86400.0
"""Maximum time of one run of a job of a server: an evaluation of millions of images takes hours."""

MAX_JOB_BYTES = 0
"""Maximum bytes of the files of all jobs of a server; 0: half of what the disk has for them."""

STUCK_GRACE_S = 300.0
"""Time that the step of a job may take longer than the job; then the runner's process is ended."""

_TOLD_FILE = "told"
"""File of an ended job whose end was told: else it is told again, as after a process that died in between."""

_LASTING_FILES = ("job.json", "log.txt", "lock", "cancel")
_log = logging.getLogger(__name__)


class _Cancelled(Exception):
    """The job was cancelled."""


class _Stopped(Exception):
    """The runner is stopping."""


class _LimitReached(Exception):
    """The job reached one of its limits."""


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
        self.traceparent = ""
        """Context of the trace that the run is part of, for what it leads to; empty for none."""
        self._stop = stop
        self._limits = limits
        self._begun_s = time.monotonic()
        self._progress_written_s = 0.0
        self._measured_s = -MEASURE_INTERVAL_S
        self._others_bytes = 0
        self._limit_bytes = 0

    def report_progress(self, done: int, total: int | None, step: str = "") -> None:
        """Report progress; the work calls it often, as only here a job can be cancelled or stopped.

        Args:
            done: Number of items that are done.
            total: Number of all items; None if unknown.
            step: What the work does now; a change is written at once. Empty where the numbers say it.
        """
        if (self.directory / "cancel").exists():
            raise _Cancelled
        if self._stop.is_set():
            raise _Stopped
        if time.monotonic() - self._begun_s > self._limits.run_s:
            raise _LimitReached(self.limit_text())
        self._check_size()
        progress = Progress(done, total, step or msgspec.UNSET)
        is_other_step = progress.step != self.job.progress.step
        self.job = msgspec.structs.replace(self.job, progress=progress)
        if is_other_step or time.monotonic() - self._progress_written_s > PROGRESS_INTERVAL_S:
            self._progress_written_s = time.monotonic()
            write_job(self.directory, self.job)

    def report_reading(self, done: int, total: int | None) -> None:
        """Report progress of work that chooses inferences, reads them, and then computes from them."""
        is_read = total is not None and done >= total
        step = (
            "choosing inferences"
            if total is None
            else "computing"
            if is_read
            else "reading inferences"
        )
        self.report_progress(done, total, step)

    def enter_step(self, step: str) -> None:
        """Report what the work does now, with the progress so far; as `report_progress`."""
        self.report_progress(self.job.progress.done, self.job.progress.total, step)

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
                f"expected the files of all jobs to take at most {self._limit_bytes} bytes, "
                f"got {self._others_bytes} of other jobs and {own_bytes} of this one, which were removed"
            )

    def limit_text(self) -> str:
        """Return the reason of a job that took too long."""
        return f"expected the job to end within {self._limits.run_s:g} s"

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
            file.write(f"{now_text()} {text}\n")

    def update(self, **changes: Any) -> None:
        """Change fields of the job and write it."""
        job = msgspec.structs.replace(self.job, **changes)
        write_job(self.directory, job)
        self.job = job

    def result(self, name: str) -> Result:
        """Return the result of the job, by the name of its file in the job's folder."""
        return Result(name, (self.directory / name).stat().st_size)

    def end(self, state: str, error: str | None = None, result: Result | None = None) -> None:
        """Write the state in which the job has ended."""
        progress = Progress(self.job.progress.done, self.job.progress.total)
        self.update(state=state, progress=progress, ended_at=now_text(), error=error, result=result)


@contextmanager
def run_here(
    jobs: Jobs,
    kind: str,
    parameters: msgspec.Struct | dict[str, Any],
    inferences: InferenceReader,
    blobs: Blobs,
) -> Iterator[JobRun]:
    """Yield the run of a new job that the caller does itself and ends; a job that is not ended is removed.

    The caller holds its lock from the start: a server beside it runs the job only if this process is killed. Erasures
    wait for its end, as for that of any job.

    Raises:
        StoreError: The job cannot be stored, or was cancelled.
    """
    locks: list[IO[str] | None] = []
    job = jobs.submit(
        kind, parameters, prepare=lambda folder: locks.append(try_lock(folder / "lock"))
    )
    run = JobRun(
        job,
        jobs.directory / job.id,
        inferences,
        blobs,
        stop=threading.Event(),
        limits=JobLimits(max_bytes=sys.maxsize),  # those of the server are not known here
    )
    try:
        with translate_disk_errors("store the job"):
            run.update(state="running", starts=1, started_at=now_text())
        yield run
    except _Cancelled as error:
        raise StoreError(f"the job {job.id} was cancelled") from error
    finally:
        if run.job.state not in ENDED:
            with suppress(OSError):
                jobs.remove(job.id)
        for lock in locks:
            if lock is not None:
                lock.close()


JobWork = Callable[[JobRun], str]
"""Does the work of a job and returns the name of its result within the job's folder."""

JobSpan = Callable[[str, str, str], AbstractContextManager[str]]
"""Records a job, by its kind, id and `traceparent`, while the block runs, to which the context of its span is handed."""


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
        span: Records each job in the trace that it was submitted in; None for no traces.
        on_end: Is told the end of each job that names a webhook; may be told twice.
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
        span: JobSpan | None = None,
        on_end: Callable[[Job], object] = lambda _: None,
    ) -> None:
        self._span = span
        self._on_end = on_end
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
            run = JobRun(job, directory, inferences, self._blobs, stop=stop, limits=self._limits)
            with self._ending_if_stuck(run):
                has_ended = self._run_work(run)
            mark = directory / _TOLD_FILE
            if has_ended and "webhook" in job.parameters and not mark.exists():
                self._on_end(run.job)
                mark.touch()
            return has_ended

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

    def _result(self, run: JobRun) -> Result:
        """Do the work of a job that is noted as started."""
        if run.job.starts > MAX_STARTS:
            raise StoreError(f"the process of the job died {MAX_STARTS} times")
        for leftover in run.directory.glob(".*/"):  # of a runner that died
            shutil.rmtree(leftover, ignore_errors=True)
        job, context = run.job, run.job.traceparent or ""
        span = nullcontext(context) if self._span is None else self._span(job.kind, job.id, context)
        with span as run.traceparent:
            return run.result(self._kinds[run.job.kind](run))

    def _run_work(self, run: JobRun) -> bool:
        if run.job.state in ENDED:
            if run.job.ended_at is None:  # cancelled before it was started
                run.update(ended_at=now_text())
            return True
        starts = run.job.starts + 1
        run.update(state="running", starts=starts, started_at=now_text(), progress=Progress())
        try:
            result = self._result(run)
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

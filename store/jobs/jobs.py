"""Jobs: long work that a process of its own does; each is a folder of files.

`<directory>/<id>/` holds `job.json`, `log.txt` and the job's result; a file `cancel` in it requests its
end. Only the runner that holds `lock`, see `quadriga.store.jobs.runner`, writes the other files, but for
`acknowledged.json`, see `quadriga.monitor.report.acknowledgements`.
"""

import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from quadriga.store.records.disk import lock, translate_disk_errors, write_atomically
from quadriga.store.records.errors import JSON_ERRORS, NotFoundError, TooManyJobsError
from quadriga.store.records.records import now_text, timestamp_text
from quadriga.store.records.scope import EVERYTHING, Scope

LOG_TAIL_BYTES = 4096
_ID = re.compile(r"[0-9]{19}-[0-9a-f]{4}", re.ASCII)
ID_LISTS_FILE = "inferences.jsonl"
"""File of a job whose lines list inferences by `ids`; what is erased is taken out of it, and the job stays."""

EndWebhook = Annotated[str, msgspec.Meta(max_length=2000)] | msgspec.UnsetType
"""URL that is called when a job has ended, as the parameter `webhook` of jobs has it; left out for none."""

JobState = Literal["queued", "running", "succeeded", "failed", "cancelled"]
JOB_STATES: tuple[JobState, ...] = get_args(JobState)
ENDED = ("succeeded", "failed", "cancelled")


class Progress(msgspec.Struct, frozen=True):
    """Progress of a job."""

    done: int = 0
    total: int | None = None  # None if unknown
    step: str | msgspec.UnsetType = msgspec.UNSET
    """What the job does now, such as `reading inferences`; left out where the numbers say it, and once it has ended."""


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
    state: JobState = "queued"
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
    traceparent: str | msgspec.UnsetType = msgspec.UNSET
    """Trace that the job is part of, as W3C's header has it; left out without one."""

    @property
    def team(self) -> str:
        """The team that the job belongs to; empty for none."""
        return scope_of(self).team


def scope_of(job: Job) -> Scope:
    """Return what a job may see; everything for one of an earlier release."""
    return EVERYTHING if job.scope is msgspec.UNSET else job.scope


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
        traceparent: Returns the trace that a job is submitted in; empty for none.
    """

    def __init__(
        self,
        directory: Path,
        max_waiting: int | None = None,
        *,
        owner: Callable[[], JobOwner | None] = lambda: None,
        traceparent: Callable[[], str] = lambda: "",
    ) -> None:
        self._owner = owner
        self._traceparent = traceparent
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

    def submit(
        self,
        kind: str,
        parameters: msgspec.Struct | dict[str, Any],
        *,
        prepare: Callable[[Path], object] = lambda _: None,
    ) -> Job:
        """Queue a job whose parameters are already checked.

        Args:
            kind: Kind of the job.
            parameters: Its parameters.
            prepare: Gets the folder of the job before any runner sees it.

        Raises:
            TooManyJobsError: As many jobs wait as may. What `owner` returns may raise an error of its own.
            JournalError: It cannot be written, for example because the disk is full.
        """
        owner = self._owner()
        job_id = f"{time.time_ns():019d}-{secrets.token_hex(2)}"
        scope = msgspec.UNSET if self._scope.is_everything else self._scope
        job = Job(job_id, kind, msgspec.to_builtins(parameters), now_text(), scope=scope)
        if owner is not None:
            job = msgspec.structs.replace(job, key_id=owner.key_id)
        if traceparent := self._traceparent():
            job = msgspec.structs.replace(job, traceparent=traceparent)
        hidden = self.directory / f".{job_id}"
        with translate_disk_errors("store the job"):
            try:
                hidden.mkdir(parents=True)
                write_job(hidden, job)
                prepare(hidden)
                with lock(self.directory / ".submitting"):
                    self._check_room()
                    if owner is not None:
                        unended = self._unended()
                        owner.check(sum(job.key_id == owner.key_id for job in unended))
                    hidden.rename(self.directory / job_id)
            except Exception:
                shutil.rmtree(hidden, ignore_errors=True)
                raise
        return job

    def waiting_count(self) -> int:
        """Return the number of jobs that have not ended."""
        return sum(1 for _ in self._unended())

    def _unended(self) -> Iterator[Job]:
        """Yield the jobs that have not ended; those that have are remembered, and read no more."""
        ids = self.ids()
        self._ended.intersection_update(ids)
        for job_id in ids:
            if job_id in self._ended:
                continue
            try:
                job = self._read(job_id)
            except NotFoundError:  # removed meanwhile, or damaged
                self._ended.add(job_id)
                continue
            if job.state in ENDED:
                self._ended.add(job_id)
            else:
                yield job

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
        return list(self.newest_first())

    def newest_first(self, before: str = "") -> Iterator[Job]:
        """Yield the jobs that were submitted before one, given by its id, or all; each is read when it is asked for."""
        for job_id in reversed(self.ids()):
            if not before or job_id < before:
                with suppress(NotFoundError):  # removed meanwhile
                    yield self.read(job_id)

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
        except (FileNotFoundError, *JSON_ERRORS) as error:
            # The file may be damaged if power was lost while it was written.
            raise _not_found(job_id) from error
        if job.state == "queued" and (folder / "cancel").exists():
            job = msgspec.structs.replace(job, state="cancelled")
        return job

    def cancel(self, job_id: str) -> Job:
        """Cancel a job: it ends at its next step. A job that has ended is not changed; raises as `submit`."""
        if self.read(job_id).state not in ENDED:
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
                self.remove(job.id)

    def remove(self, job_id: str) -> None:
        """Remove the folder of a job that no runner has."""
        hidden = self.directory / f".{job_id}"
        self._folder(job_id).rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)

    def _folder(self, job_id: str) -> Path:
        if not _ID.fullmatch(job_id):
            raise NotFoundError(f"job not found: {job_id[:80]!r}")
        return self.directory / job_id


def is_job_id(text: str) -> bool:
    """Check whether a text has the form of a job's id."""
    return _ID.fullmatch(text) is not None


def _not_found(job_id: str) -> NotFoundError:
    return NotFoundError(f"job not found: {job_id}")


def write_job(directory: Path, job: Job) -> None:
    """Write the state of a job into its folder."""
    write_atomically(directory / "job.json", msgspec.json.encode(job))


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""

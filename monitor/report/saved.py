"""The stored reports of jobs: each is the result of its job, is stored as long, and has its id."""

import logging
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from msgspec.structs import asdict

from quadriga.monitor.report.drift_texts import changes_in_parts, is_undecided
from quadriga.monitor.report.schema import (
    Data,
    Metric,
    Report,
    ReportedModel,
    Signal,
    Slice,
    sorted_by_effect,
)
from quadriga.quoting import quoted
from quadriga.store.jobs.jobs import Jobs, is_job_id
from quadriga.store.jobs.runner import JobRun
from quadriga.store.records.disk import write_atomically
from quadriga.store.records.errors import (
    JSON_ERRORS,
    DamagedError,
    NotFoundError,
    QueryError,
)
from quadriga.store.records.scope import Scope

REPORT_FILE = "report.json"
PAGE_FILE = "report.html"
"""Page of a report that version 0.2.0 saved; those of later reports are drawn when they are asked for."""

StructT = TypeVar("StructT", bound=msgspec.Struct)


class _Named(msgspec.Struct, frozen=True):
    id: str
    kind: Literal["evaluation", "drift"]
    task: str
    model: ReportedModel
    created: str
    """RFC 3339, UTC."""
    status: Literal["ok", "drift", "insufficient", "error"]


class ReportSummary(_Named, frozen=True, rename={"start": "from", "end": "to"}):
    """A report in the list of reports."""

    n: int
    """Number of images that count."""
    headline: Metric | None
    """First metric of the report."""
    undecided: list[str] = []
    """Signals of a drift comparison that moved by more than matters, with too few independent values to say so, or in a part of
    the images, such as those of one camera."""
    is_scheduled: bool = False
    """Whether a schedule submitted it."""
    filter: Any = None
    """Filter that selected the images, in the form of a query's; None for all of the model."""
    start: str | None = None
    """Time of the oldest image, RFC 3339, UTC; None for files."""
    end: str | None = None
    """Time of the newest image."""


class ReportList(msgspec.Struct, frozen=True):
    """Stored reports: all, or a page of them."""

    reports: list[ReportSummary]
    """Summaries, the newest first."""
    unreadable: list[str] = []
    """Ids of reports whose files are damaged or were written by a newer version, the newest first."""
    cursor: str | msgspec.UnsetType | None = msgspec.UNSET
    """Cursor of the next page, null on the last one; left out where all are listed."""


class _Report(_Named, frozen=True):
    """The fields of a report that a summary needs; decoding skips the others."""

    data: Data
    metrics: list[Metric]
    signals: list[Signal] = []
    slices: list[Slice] = []
    history: list[msgspec.Raw] = []


_log = logging.getLogger(__name__)
_decoder = msgspec.json.Decoder(_Report)
_MAX_SUMMARIES = 10_000
"""Number of summaries in memory, those of removed reports among them, after which all are read again."""


class ReportStore:
    """The reports among the results of jobs.

    Methods that read a report raise `NotFoundError` if it does not exist, or not yet.
    """

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._summaries: dict[str, ReportSummary] = {}
        self._logged: set[str] = set()  # ids of unreadable reports that the log already names

    def within(self, scope: Scope) -> "ReportStore":
        """Return a view of the reports of the jobs that a scope covers."""
        view = copy(self)  # with the same summaries
        view._jobs = self._jobs.within(scope)  # noqa: SLF001 - it is one of these
        return view

    def all(self) -> list[ReportSummary]:
        """Return all reports that can be read, the newest first."""
        return self.read_list().reports

    def read_list(self, limit: int | None = None, cursor: str = "") -> ReportList:
        """Return reports, the newest first; each is decoded once, as it does not change.

        Args:
            limit: Maximum number of reports, with those that cannot be read; None for all.
            cursor: Cursor of the previous page; empty to begin with the newest.

        Raises:
            QueryError: The cursor is not one of a page.
        """
        if cursor and not is_job_id(cursor):
            raise QueryError(f"expected the cursor of a page of reports, got {quoted(cursor, 60)}")
        summaries: dict[str, ReportSummary] = {}
        unreadable: list[str] = []
        following: str | None = None
        last = cursor
        for job in self._jobs.newest_first(cursor):
            if job.result is None or job.result.file != REPORT_FILE:
                continue
            if len(summaries) + len(unreadable) == limit:
                following = last
                break
            last = job.id
            with suppress(NotFoundError):  # removed since
                try:
                    summaries[job.id] = self._summaries.get(job.id) or _summary(
                        self.read(job.id), is_scheduled=job.parameters.get("schedule") is not None
                    )
                except (OSError, *JSON_ERRORS) as error:
                    unreadable.append(job.id)
                    self._log_once(job.id, error)
        if len(self._summaries) > _MAX_SUMMARIES:
            self._summaries.clear()
        self._summaries.update(summaries)
        next_cursor = msgspec.UNSET if limit is None else following
        return ReportList([*summaries.values()], unreadable, next_cursor)

    def _log_once(self, report_id: str, error: Exception) -> None:
        if report_id not in self._logged:
            self._logged.add(report_id)
            _log.warning(
                "report %s cannot be read and is left out of lists: it is damaged, or of a newer version: %s",
                report_id,
                error,
            )

    def read(self, report_id: str) -> bytes:
        """Return the JSON of a report."""
        path = self._path(report_id)
        try:
            return path.read_bytes()
        except FileNotFoundError as error:
            raise NotFoundError(f"report not found: {path.name} was removed") from error

    def decode(self, report_id: str, type_: type[StructT]) -> StructT:
        """Return some fields of a report.

        Raises:
            DamagedError: The report cannot be read.
        """
        try:
            return msgspec.json.decode(self.read(report_id), type=type_)
        except (OSError, *JSON_ERRORS) as error:
            raise DamagedError(
                f"the report {report_id} cannot be read: its file is damaged, or a newer version wrote it",
                detail=str(error),
            ) from error

    def page(self, report_id: str, image_bytes: Callable[[str], bytes | None]) -> bytes:
        """Return the HTML of a report, as it was saved or else drawn from its JSON.

        Args:
            report_id: Id of the report.
            image_bytes: Returns an image by its hash; None if it is not stored.

        Raises:
            DamagedError: The report cannot be read.
        """
        from quadriga.monitor.report.page import render_page  # noqa: PLC0415 - where no page is made it is not loaded

        with suppress(FileNotFoundError):
            return self._path(report_id).with_name(PAGE_FILE).read_bytes()
        return render_page(self.decode(report_id, Report), image_bytes).encode()

    def directory(self, report_id: str) -> Path:
        """Return the folder of a report."""
        return self._path(report_id).parent

    def _path(self, report_id: str) -> Path:
        try:
            self._jobs.read(report_id)
        except NotFoundError as error:  # a report is the result of a job
            raise NotFoundError(f"report not found: {quoted(report_id, 80)}") from error
        path = self._jobs.result(report_id)
        if path.name != REPORT_FILE:
            raise NotFoundError(f"report not found: {report_id} is the id of another job")
        return path


def save_report(run: JobRun, report: Report) -> str:
    """Write a report into the folder of its job, and return its file name."""
    run.enter_step("writing the report")
    write_atomically(run.directory / REPORT_FILE, msgspec.json.encode(report))
    return REPORT_FILE


def _summary(data: bytes, *, is_scheduled: bool) -> ReportSummary:
    fields = asdict(_decoder.decode(data))
    current, metrics = fields.pop("data").current, fields.pop("metrics")
    signals, slices = fields.pop("signals"), fields.pop("slices")
    history = fields.pop("history")
    in_parts = (signal for signal, _, _ in changes_in_parts(signals, slices) if not signal.alarm)
    moved = sorted_by_effect([*filter(is_undecided, signals), *in_parts])
    return ReportSummary(
        **fields,
        n=current.n,
        headline=metrics[0] if metrics else None,
        undecided=[*dict.fromkeys(signal.name for signal in moved)],
        is_scheduled=is_scheduled or bool(history),
        filter=current.filter,
        start=current.start,
        end=current.end,
    )

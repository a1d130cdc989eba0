"""The stored reports of jobs: each is the result of its job, is stored as long, and has its id."""

from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import asdict

from quadriga.monitor.report.schema import Data, Metric, Report, ReportedModel
from quadriga.store.disk import write_atomically
from quadriga.store.errors import NotFoundError, StoreError
from quadriga.store.jobs import JobRun, Jobs

REPORT_FILE = "report.json"
PAGE_FILE = "report.html"


class _Named(msgspec.Struct, frozen=True):
    id: str
    kind: str
    task: str
    model: ReportedModel
    created: str
    """RFC 3339, UTC."""
    status: str


class ReportSummary(_Named, frozen=True):
    """A report in the list of reports."""

    n: int
    """Number of images that count."""
    headline: Metric | None
    """First metric of the report."""


class ReportList(msgspec.Struct, frozen=True):
    """All stored reports."""

    reports: list[ReportSummary]
    """Summaries, the newest first."""


class _Report(_Named, frozen=True):
    """The fields of a report that a summary needs; decoding skips the others."""

    data: Data
    metrics: list[Metric]


_decoder = msgspec.json.Decoder(_Report)


class ReportStore:
    """The reports among the results of jobs.

    Methods that read a report raise `NotFoundError` if it does not exist, or not yet.
    """

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._summaries: dict[str, ReportSummary] = {}

    def all(self) -> list[ReportSummary]:
        """Return all reports, the newest first; each is read once, as it does not change."""
        summaries = {}
        for job in self._jobs.all():
            if job.result is not None and job.result.file == REPORT_FILE:
                with suppress(NotFoundError):  # removed since
                    summaries[job.id] = self._summaries.get(job.id) or _summary(self.read(job.id))
        self._summaries = summaries
        return list(summaries.values())

    def read(self, report_id: str) -> bytes:
        """Return the JSON of a report."""
        return _read(self._path(report_id))

    def page(self, report_id: str) -> bytes:
        """Return the HTML of a report."""
        return _read(self._path(report_id).with_name(PAGE_FILE))

    def _path(self, report_id: str) -> Path:
        path = self._jobs.result(report_id)
        if path.name != REPORT_FILE:
            raise NotFoundError(f"report not found: {report_id} is the id of another job")
        return path


def save_report(run: JobRun, report: Report) -> str:
    """Write a report and its page into the folder of its job, and return the report's file name."""
    from quadriga.monitor.report.page import render_page  # noqa: PLC0415 - it loads matplotlib

    def image_bytes(image: str) -> bytes | None:
        with suppress(StoreError):  # no hash, or no access to the blobs: the page says so
            return run.blobs.get(image)
        return None

    write_atomically(run.directory / PAGE_FILE, render_page(report, image_bytes).encode())
    write_atomically(run.directory / REPORT_FILE, msgspec.json.encode(report))
    return REPORT_FILE


def _summary(data: bytes) -> ReportSummary:
    fields = asdict(_decoder.decode(data))
    current, metrics = fields.pop("data").current, fields.pop("metrics")
    return ReportSummary(**fields, n=current.n, headline=metrics[0] if metrics else None)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise NotFoundError(f"report not found: {path.name} was removed") from error

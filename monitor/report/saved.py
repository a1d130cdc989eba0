"""The reports that jobs made: each is the result of its job, kept as long, and has its id."""

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
    """A report in a list of them."""

    n: int
    """Images that count."""
    headline: Metric | None
    """The first of its metrics."""


class ReportList(msgspec.Struct, frozen=True):
    """All reports that are kept."""

    reports: list[ReportSummary]
    """The newest first."""


class _Report(_Named, frozen=True):
    """What a summary takes from a report; the rest is passed over."""

    data: Data
    metrics: list[Metric]


_decoder = msgspec.json.Decoder(_Report)


class ReportStore:
    """The reports among the results of jobs.

    What is asked of a report that there is not, or not yet, is a `NotFoundError`.
    """

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._known: dict[str, ReportSummary] = {}

    def all(self) -> list[ReportSummary]:
        """Return all reports, the newest first; each is read once, as it does not change."""
        known = {}
        for job in self._jobs.all():
            if job.result is not None and job.result.file == REPORT_FILE:
                with suppress(NotFoundError):  # removed since
                    known[job.id] = self._known.get(job.id) or _summary(self.read(job.id))
        self._known = known
        return list(known.values())

    def read(self, report_id: str) -> bytes:
        """Return the JSON of a report."""
        return _read(self._path(report_id))

    def page(self, report_id: str) -> bytes:
        """Return the HTML of a report."""
        return _read(self._path(report_id).with_name(PAGE_FILE))

    def _path(self, report_id: str) -> Path:
        path = self._jobs.result(report_id)
        if path.name != REPORT_FILE:
            raise NotFoundError(f"expected {report_id} to be a report, got another job's id")
        return path


def save_report(run: JobRun, report: Report) -> str:
    """Write a report and its page into the folder of its job, and return its file's name."""
    from quadriga.monitor.report.page import render_page  # noqa: PLC0415 - it loads much

    def image_bytes(image: str) -> bytes | None:
        with suppress(StoreError):  # no hash, or the images are away: the page says so
            return run.blobs.get(image)
        return None

    write_atomically(run.directory / PAGE_FILE, render_page(report, image_bytes).encode())
    write_atomically(run.directory / REPORT_FILE, msgspec.json.encode(report))
    return REPORT_FILE


def _summary(data: bytes) -> ReportSummary:
    given = asdict(_decoder.decode(data))
    current, metrics = given.pop("data").current, given.pop("metrics")
    return ReportSummary(**given, n=current.n, headline=metrics[0] if metrics else None)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise NotFoundError(f"expected {path.name} to be there, got it removed") from error

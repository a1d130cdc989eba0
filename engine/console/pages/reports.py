"""Pages of reports: all of them, one with its numbers, and the images behind a cell of its confusion matrix."""

from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from urllib.parse import quote, urlencode

import msgspec
from litestar import Response
from litestar.params import FromPath

from quadriga.engine.api.access import caller_scope
from quadriga.engine.api.store_queries import query_string
from quadriga.engine.console.cards import card, told_apart
from quadriga.engine.console.filter_line import (
    INFERENCES_PATH,
    comparison_text,
    field_and_rest,
    joined,
    outcome_line,
    window_filter,
)
from quadriga.engine.console.frame import PAGE_HEADERS, Frame, PageRequest
from quadriga.engine.console.pages.drift_report import (
    images_behind,
    label_comparison,
    slice_comparison,
)
from quadriga.engine.console.services import ConsoleStore, Services
from quadriga.engine.console.texts import words_of_metrics
from quadriga.monitor.report import drift_texts, metric_texts
from quadriga.monitor.report.acknowledgements import read_acknowledgement
from quadriga.monitor.report.cells import CellRequest, cell_page, cell_request_from_url
from quadriga.monitor.report.gallery import Picture, Pictures, ShownImage, shown_images
from quadriga.monitor.report.page import cell_count, counted_unit, page_content, render_page
from quadriga.monitor.report.saved import ReportStore
from quadriga.monitor.report.schema import Confusion, Report, Signal, Slice
from quadriga.store.blobs.thumbnails import WIDTHS
from quadriga.store.query.inferences import InferenceReader, Page
from quadriga.store.records.errors import (
    DamagedError,
    NotFoundError,
    NotReadyError,
    QueryError,
    QueryTimeoutError,
)
from quadriga.store.records.records import REJECTED, StoredInference

REPORTS_PATH = "/console/reports"
SHOWN = 200
"""Reports of a page of the list."""
_IMAGES = 48
_UNREADABLE = "This report cannot be read: its file is damaged, or a newer version wrote it."


def report_pages(services: Services, store: ConsoleStore) -> None:
    """Register the handlers."""
    frame = services.frame
    reports, inferences = store.reports, store.inferences

    @services.page(REPORTS_PATH)
    def show_reports(request: PageRequest) -> Response[bytes]:
        """Show the reports, the newest first, page by page."""
        cursor = request.query_params.get("cursor", "")
        listed = reports.within(caller_scope()).read_list(SHOWN, cursor)
        return frame.page(
            "reports",
            page="reports",
            title="Reports",
            reports=listed.reports,
            unreadable=listed.unreadable,
            cursor=listed.cursor,
        )

    @services.page(REPORTS_PATH + "/{report_id:str}")
    def show_report(report_id: FromPath[str]) -> Response[bytes]:
        """Show the numbers of one report."""
        scope = caller_scope()
        stored = reports.within(scope)
        try:
            report = stored.decode(report_id, Report)
        except DamagedError:  # the log has it from the list of reports
            return frame.page(
                "message",
                status=500,
                page="reports",
                title="Something went wrong",
                sentences=[_UNREADABLE],
                details="",
                request_id="",
            )
        is_drift, data = report.kind == "drift", report.data
        window, before = (
            window_filter(report.model, side) for side in (data.current, data.baseline)
        )
        worst = None if is_drift else metric_texts.worst_slice(report)
        targets = ReportTargets(frame, report, report_id)
        content = page_content(report, stored_pictures(frame, report, inferences.within(scope)))
        return frame.page(
            "report",
            page="reports",
            title=content["headline"] or drift_texts.verdict(report) or report.task,
            report_id=report_id,
            images_line=window.line if is_drift else _with_truth(window.line),
            baseline_line=before.line,
            links_are_whole=window.is_whole and before.is_whole,
            worst_link="" if worst is None else targets.slice(worst),
            acknowledged=read_acknowledgement(stored, report_id) if is_drift else None,
            targets=targets,
            **content,
        )

    @services.page(REPORTS_PATH + "/{report_id:str}/images")
    def show_cell(report_id: FromPath[str], request: PageRequest) -> Response[bytes]:
        """Show the inferences of a cell of the confusion matrix."""
        scope = caller_scope()
        query = query_string(request)
        cells = msgspec.structs.replace(cell_request_from_url(query), limit=_IMAGES)
        stored = reports.within(scope)
        page = cell_page(inferences.within(scope), stored.directory(report_id), cells)
        return frame.page(
            "cell",
            page="reports",
            title="Images behind a cell",
            report_id=report_id,
            truth=cells.truth,
            predicted=cells.predicted,
            counts=_cell_counts(stored, report_id, cells, page),
            cards_=told_apart([card(inference) for inference in page.inferences]),
            cursor=page.cursor,
        )

    @services.page(REPORTS_PATH + "/{report_id:str}/page")
    async def show_whole_report(report_id: FromPath[str], request: PageRequest) -> Response[str]:
        """Show the whole report with links to its inferences and earlier reports, and back to the console.

        With a public URL links lead there, so that those of a copy do, too. Else they have no host: the server cannot know
        that of a proxy before it, nor whether that takes https.
        """
        stored = reports.within(caller_scope())

        def draw(inferences: InferenceReader) -> str:
            report = stored.decode(report_id, Report)
            return render_page(report, inferences.image, f"{frame.public_url}/console")

        page = await store.queries.run(request, draw)
        return Response(page, media_type="text/html", headers=dict(PRINT_HEADERS))


class _Cells(msgspec.Struct, frozen=True):
    """The confusion matrix of a report."""

    confusion: Confusion | None = None


def _cell_counts(stored: ReportStore, report_id: str, cells: CellRequest, page: Page) -> str:
    """Say how many a cell counts, on how many images; empty where it is not one cell, or its report has none."""
    confusion = Confusion()
    with suppress(DamagedError):
        confusion = stored.decode(report_id, _Cells).confusion or confusion
    count = cell_count(confusion, cells.truth, cells.predicted)
    if count is None or page.count is None:
        return ""
    images = metric_texts.format_number(page.count) + ("" if page.count_is_exact else " +")
    unit = counted_unit(confusion)
    if count == 1:
        unit = unit.removesuffix("s")
    return f"{count:,} {unit} on {images} {'image' if images == '1' else 'images'}"


def _with_truth(line: str) -> str:
    """Return the filter of those inferences of a window that are evaluated: with truth which nobody rejected."""
    if not line:
        return ""
    rejected = comparison_text("ground_truth.review", REJECTED)
    return joined([line, comparison_text("ground_truth", True, "exists"), f"!{rejected}"])


PRINT_HEADERS = {
    **PAGE_HEADERS,
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; "
    "sandbox allow-same-origin allow-popups allow-popups-to-escape-sandbox",
}
"""Headers of the page: parts of it come from clients, so a browser may not run or fetch anything. Its links are those of this
origin, as else they would come without the cookie of the session."""


class ReportTargets:
    """Links of the parts of a report within the console; empty where no filter finds what a part is about."""

    def __init__(self, frame: Frame, report: Report, report_id: str) -> None:
        self._frame, self._report, self._report_id = frame, report, report_id

    def inference(self, inference_id: str) -> str:
        """Return the link to an inference."""
        return self._frame.link(f"/console/inferences/{quote(inference_id, safe='')}")

    def report(self, report_id: str) -> str:
        """Return the link to another report."""
        return self._frame.link(f"{REPORTS_PATH}/{quote(report_id, safe='')}")

    def metric_words(self, names: list[str]) -> list[str]:
        """Return the words of the glossary that names of metrics have."""
        return words_of_metrics(names)

    def cell(self, truth: str, predicted: str) -> str:
        """Return the link to the images of a cell of the confusion matrix."""
        query = urlencode({"truth": truth, "predicted": predicted})
        return f"{self.report(self._report_id)}/images?{query}"

    def errors(self, label: str, own: str, counts: dict[str, int]) -> str:
        """Return the link to the inferences whose truth or prediction, `own`, is a label, and the other one of some."""
        field = "predicted" if own == "truth" else "truth"
        values = [field_and_rest(comparison_text(field, other))[1] for other in counts]
        of_report = [comparison_text("report", self._report_id), comparison_text(own, label)]
        return self._list(joined([*of_report, f"{field}=in:{','.join(values)}"]))

    def all_errors(self) -> list[tuple[str, str]]:
        """Return words and link of all inferences with an error of each kind."""
        confusion = self._report.confusion or Confusion()
        lines = {
            words: outcome_line(self._report_id, confusion, words.lower())
            for words in ("Missed", "False positives")
        }
        return [
            (f"{words}: all of them", self._list(line)) for words, line in lines.items() if line
        ]

    def slice(self, part: Slice) -> str:
        """Return the link to the inferences of a slice of an evaluation, which have truth."""
        named_filter = self._report.parameters.get("slices", {}).get(part.by)
        if part.by.startswith("meta.") and part.value is not None:
            of_slice = slice_comparison(part.by, part.value)
        elif isinstance(named_filter, str) and part.value in {"true", "false"}:
            of_slice = f"{'' if part.value == 'true' else '!'}({named_filter})"
        else:
            return ""
        return self._within_window(comparison_text("ground_truth", True, "exists"), of_slice)

    def part(self, part: Slice) -> str:
        """Return the link to the inferences of a slice of a drift report, from where it changed on."""
        comparison = "" if part.value is None else label_comparison(part.by, part.value, self._report.task)  # fmt: skip
        moments = [comparison_text("ts", at, "ge") for metric in part.metrics if (at := metric.parameters.get("at"))]  # fmt: skip
        return self._within_window(comparison, *moments[:1]) if comparison else ""

    def images(self, signal: Signal) -> list[tuple[str, str]]:
        """Return words and link of the images behind a changed signal."""
        behind = images_behind(signal, self._report)
        return [(images.words, self._list(images.line)) for images in behind]

    def _within_window(self, *comparisons: str) -> str:
        window = window_filter(self._report.model, self._report.data.current).line
        return self._list(joined([window, *comparisons])) if window else ""

    def _list(self, line: str) -> str:
        return self._frame.link(INFERENCES_PATH, q=line)


def stored_pictures(frame: Frame, report: Report, inferences: InferenceReader) -> Pictures:
    """Return what shows the images of a report that are still stored; none of them while the database is away."""

    @cache
    def read_stored() -> Mapping[str, StoredInference]:
        ids = {image.inference_id for image in shown_images(report)}
        with suppress(NotFoundError, NotReadyError, QueryError, QueryTimeoutError):
            return inferences.by_id(sorted(filter(str.isdecimal, ids)))
        return {}

    def picture(image: ShownImage, longest_px: int) -> Picture | None:
        inference = read_stored().get(image.inference_id)
        if inference is None:
            return None
        source = inference.input
        size_wh = source.width or 0, source.height or 0
        if not source.kept:
            return Picture(None, *size_wh, note="The image is not kept.")
        width = next(width for width in WIDTHS if width >= longest_px)
        url = frame.link(f"/api/inferences/{inference.id}/input", w=str(width))
        return Picture(url, *size_wh)

    return picture

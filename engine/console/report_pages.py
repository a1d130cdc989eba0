"""Pages of reports: all of them, one with its numbers, and the images behind a cell of its confusion matrix."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec.structs import replace

from quadriga.engine.api.access import caller_scope
from quadriga.engine.api.models import ModelEntry
from quadriga.engine.api.store_queries import query_string
from quadriga.engine.console.cards import card, told_apart
from quadriga.engine.console.charts import IntervalMarks, interval
from quadriga.engine.console.drift_changes import (
    image_links,
    place_links,
    signal_changes,
    undecided_places,
)
from quadriga.engine.console.drift_links import WindowFilter, window_filter
from quadriga.engine.console.evaluation_labels import (
    cell_count,
    confusion_rule,
    counted_unit,
    label_table,
)
from quadriga.engine.console.evaluation_parts import (
    CURVE_SIZE,
    FIRST_SCORE,
    curve_lines,
    slice_rows,
    worst_groups,
)
from quadriga.engine.console.filter_line import comparison_text, joined
from quadriga.engine.console.frame import Frame, PageRequest, opens
from quadriga.engine.console.report_print import report_print_page
from quadriga.engine.console.start_forms import start_choices
from quadriga.engine.console.texts import TEXTS, text
from quadriga.engine.console.word_texts import words_of_metrics
from quadriga.monitor.drift.service import DriftService
from quadriga.monitor.report import change_texts, drift_texts, metric_texts
from quadriga.monitor.report.acknowledgements import read_acknowledgement
from quadriga.monitor.report.cells import CellRequest, cell_page, cell_request_from_url
from quadriga.monitor.report.saved import ReportStore
from quadriga.monitor.report.schema import Confusion, Metric, Report, sorted_by_effect
from quadriga.proto.request import current_caller
from quadriga.store.query.inferences import InferenceReader, Page
from quadriga.store.records.errors import JSON_ERRORS, DamagedError
from quadriga.store.records.records import REJECTED
from quadriga.store.records.scope import Scoped

REPORTS_PATH = "/console/reports"
SHOWN = 200
"""Reports of a page of the list."""
_AXIS_WIDTH = 128
_MAX_LABELS = 30
_HEAT = 5
_IMAGES = 48
_decoder = msgspec.json.Decoder(Report)


class MetricRow(msgspec.Struct, frozen=True):
    """A metric with its interval."""

    name: str
    value: str
    interval: str
    n: str
    marks: IntervalMarks | None
    """Place on an axis from 0 to 1; None for other numbers."""


class MatrixCell(msgspec.Struct, frozen=True):
    """A cell of the confusion matrix."""

    count: int
    heat: str
    """Class of the style sheet: `m` for right ones, `h` for wrong ones, and how many they are."""
    truth: str
    predicted: str
    """Labels as the URL has them; empty for no object and no prediction."""


class MatrixRow(msgspec.Struct, frozen=True):
    """A row of the confusion matrix."""

    name: str
    cells: list[MatrixCell]


def report_pages(
    frame: Frame,
    reports: Scoped[ReportStore],
    inferences: Scoped[InferenceReader],
    models: Callable[[], list[ModelEntry]],
    drift: Scoped[DriftService],
    *,
    options: dict[str, Any],
) -> list[HTTPRouteHandler]:
    """Return the handlers.

    Args:
        frame: Renders the pages.
        reports: The reports.
        inferences: Has the images of cells.
        models: Returns the models that the caller may see.
        drift: Knows the baselines.
        options: Options of the handlers.
    """

    @get(REPORTS_PATH, sync_to_thread=True, need="read", **options)
    def show_reports(request: PageRequest) -> Response[bytes]:
        """Show the reports, the newest first, page by page, and the forms that start some."""
        cursor = request.query_params.get("cursor", "")
        listed = reports.within(caller_scope()).read_list(SHOWN, cursor)
        return frame.page(
            "reports",
            page="reports",
            title=TEXTS["reports"],
            reports=listed.reports,
            unreadable=listed.unreadable,
            cursor=listed.cursor,
            start=start_choices(models(), drift.within(caller_scope()), query_string(request)),
            metric_name=lambda metric: metric_texts.titles([metric])[0],
            metric_value=lambda metric: metric_texts.format_number(metric.value),
        )

    @get(REPORTS_PATH + "/{report_id:str}", sync_to_thread=True, need="read", **options)
    def show_report(report_id: FromPath[str]) -> Response[bytes]:
        """Show the numbers of one report."""
        scope = caller_scope()
        return _report_page(frame, report_id, reports.within(scope), inferences.within(scope))

    @get(REPORTS_PATH + "/{report_id:str}/images", sync_to_thread=True, need="read", **options)
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
            title=TEXTS["images_behind"],
            report_id=report_id,
            truth=cells.truth,
            predicted=cells.predicted,
            counts=_cell_counts(stored, report_id, cells, page),
            cards_=told_apart([card(inference) for inference in page.inferences]),
            cursor=page.cursor,
            to_list=cell_list_link(frame, report_id, cells),
        )

    to_print = report_print_page(frame, reports, REPORTS_PATH + "/{report_id:str}", options)
    return [show_reports, show_report, show_cell, to_print]


def _report_page(
    frame: Frame, report_id: str, stored: ReportStore, inferences: InferenceReader
) -> Response[bytes]:
    """Return the page of one report, or one that says that it cannot be read."""
    try:
        report = _decoder.decode(stored.read(report_id))
    except JSON_ERRORS:  # the log has it from the list of reports
        return frame.page(
            "message",
            status=500,
            page="reports",
            title=TEXTS["failed"],
            sentences=[TEXTS["unreadable_report"]],
            details="",
            request_id="",
        )
    is_drift = report.kind == "drift"
    sentence = change_texts.headline(report) if is_drift else metric_texts.headline(report)
    data = report.data
    windows = [
        window_filter(report.model, data.current),
        window_filter(report.model, data.baseline),
    ]
    shown = report.metrics if is_drift else metric_texts.headlines(report)
    return frame.page(
        "report",
        page="reports",
        title=sentence or drift_texts.verdict(report)
        if is_drift
        else sentence or drift_texts.verdict(report) or report.task,
        r=report,
        report_id=report_id,
        is_moved=report.status == "drift" or bool(drift_texts.undecided_signals(report)),
        images_link=_window_link(frame, windows[0] if is_drift else _with_truth(windows[0])),
        baseline_link=_window_link(frame, windows[1]),
        links_are_whole=all(window.is_whole for window in windows),
        explanation=change_texts.explanation(report) if is_drift else "",
        metrics=_metric_rows(shown),
        signals=sorted_by_effect(report.signals),
        signal_titles=change_texts.signal_titles(signal.name for signal in report.signals),
        places=undecided_places(frame, report),
        changes=signal_changes(report, inferences) if is_drift else [],
        acknowledged=read_acknowledgement(stored, report_id) if is_drift else None,
        may_monitor=opens(current_caller(), "monitor"),
        links_of=partial(image_links, frame),
        places_of=partial(place_links, frame),
        matrix=_matrix(report.confusion),
        matrix_labels=[] if report.confusion is None else report.confusion.labels[:_MAX_LABELS],
        notes=[
            *report.warnings,
            *(_versions_note(report) if is_drift else metric_texts.headline_notes(report)),
        ],
        format_effect=drift_texts.format_effect,
        is_undecided=drift_texts.is_undecided,
        is_maybe_chance=drift_texts.is_maybe_chance,
        rows_text=drift_texts.rows_text,
        metric_words=words_of_metrics(metric_texts.titles(shown)),
        confusion_rule=confusion_rule(report.confusion),
        counted_unit=counted_unit(report.confusion),
        label_table=label_table(report, report_id, frame.link),
        curves=curve_lines(report),
        curve_labels=len({row.get("label") for row in report.curves.get("pr", [])} - {None}),
        curve_iou=next((row.get("iou") for row in report.curves.get("pr", [])), None),
        curve_size=CURVE_SIZE,
        first_score=FIRST_SCORE,
        slices=slice_rows(report, frame.link),
        worst=worst_groups(report, report_id, inferences, frame.link),
        beside=_compare_links(frame, report),
    )


def _versions_note(report: Report) -> list[str]:
    """Say that several versions answered, as what changed may be which of them did."""
    if ", " not in report.model.version:
        return []
    return [text("versions_compared", versions=report.model.version)]


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
    return text(
        "cell_counts",
        n=f"{count:,}",
        unit=unit.removesuffix("s") if count == 1 else unit,
        images=text("on_images", n=images),
    )


def _with_truth(window: WindowFilter) -> WindowFilter:
    """Return the inferences of a window that have truth which nobody rejected: those that are evaluated."""
    if not window.line:
        return window
    rejected = comparison_text("ground_truth.review", REJECTED)
    has_truth = comparison_text("ground_truth", True, "exists")
    return replace(window, line=joined([window.line, has_truth, f"!{rejected}"]))


def _compare_links(frame: Frame, report: Report) -> list[tuple[str, str]]:
    """Return name and link of each model that an evaluation has compared, where both are of one version."""
    own, line = report.model, report.data.current.filter or ""
    return [
        (
            f"{other.name} {other.version}",
            frame.link(
                "/console/compare",
                a=f"{other.name}:{other.version}",
                b=f"{own.name}:{own.version}",
                q=line,
            ),
        )
        for other in (comparison.model for comparison in report.comparisons)
        if isinstance(line, str) and not any("," in model.version for model in (own, other))
    ]


def _window_link(frame: Frame, window: WindowFilter) -> str:
    """Return the link to the inferences of a window; empty without a time, as of files."""
    return frame.link("/console/inferences", q=window.line) if window.line else ""


def cell_list_link(frame: Frame, report_id: str, cells: CellRequest) -> str:
    """Return the link to the page of inferences that finds those of a cell."""
    labels = (("truth", cells.truth), ("predicted", cells.predicted))
    line = joined(
        [
            comparison_text("report", report_id),
            *(comparison_text(field, label) for field, label in labels if label is not None),
        ]
    )
    return frame.link("/console/inferences", q=line)


def _metric_rows(metrics: list[Metric]) -> list[MetricRow]:
    names = metric_texts.titles(metrics)
    return [
        MetricRow(
            name,
            metric_texts.format_number(metric.value),
            metric_texts.format_interval(metric) if metric.ci95 is not None else "",
            metric_texts.sample_size_text(metric),
            marks=interval(metric.value, metric.ci95, _AXIS_WIDTH)
            if metric.value is not None and 0 <= metric.value <= 1
            else None,
        )
        for name, metric in zip(names, metrics, strict=True)
    ]


def _matrix(confusion: Confusion | None) -> list[MatrixRow]:
    """Return the confusion matrix with misses in its last column and false predictions in its last row."""
    if confusion is None or not confusion.labels:
        return []
    labels = confusion.labels[:_MAX_LABELS]
    counts = [row[: len(labels)] for row in confusion.matrix[: len(labels)]]
    misses = [confusion.misses.get(label, 0) for label in labels]
    extra = [confusion.hallucinations.get(label, 0) for label in labels]
    top = max((n for row in (*counts, misses, extra) for n in row), default=0)
    has_misses, has_extra = any(misses), any(extra)
    rows = []
    for number, label in enumerate(labels):
        cells = [
            _cell(n, top, label, predicted, is_right=number == column)
            for column, (n, predicted) in enumerate(zip(counts[number], labels, strict=True))
        ]
        if has_misses:
            cells.append(_cell(misses[number], top, label, "", is_right=False))
        rows.append(MatrixRow(label, cells))
    if has_extra:
        cells = [
            _cell(n, top, "", label, is_right=False) for n, label in zip(extra, labels, strict=True)
        ]
        rows.append(MatrixRow("", cells))
    return rows


def _cell(count: int, top: int, truth: str, predicted: str, *, is_right: bool) -> MatrixCell:
    level = 0 if not count else min(1 + int(count / max(top, 1) * (_HEAT - 1)), _HEAT)
    return MatrixCell(count, f"{'m' if is_right else 'h'}{level}", truth, predicted)

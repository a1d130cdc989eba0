"""Pages of reports: all of them, one with its numbers, and the images behind a cell of its confusion matrix."""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from html import escape
from itertools import pairwise
from typing import Any

import msgspec
from litestar import Response
from litestar.params import FromPath

from quadriga.engine.api.access import caller_scope
from quadriga.engine.api.store_queries import query_string
from quadriga.engine.console.cards import Card, card, told_apart
from quadriga.engine.console.filter_line import comparison_text, field_and_rest, joined
from quadriga.engine.console.frame import Frame, PageRequest, opens
from quadriga.engine.console.pages.drift_report import (
    images_of_slices,
    model_comparisons,
    signal_changes,
    slice_comparison,
    window_filter,
)
from quadriga.engine.console.services import ConsoleStore, Services
from quadriga.engine.console.texts import words_of_metrics
from quadriga.monitor.report import drift_texts, metric_texts
from quadriga.monitor.report.acknowledgements import read_acknowledgement
from quadriga.monitor.report.cells import CellRequest, cell_page, cell_request_from_url
from quadriga.monitor.report.saved import ReportStore
from quadriga.monitor.report.schema import Confusion, Metric, Report, Slice, Worst, sorted_by_effect
from quadriga.proto.request import current_caller
from quadriga.quoting import one_line
from quadriga.store.query.inferences import InferenceReader, Page
from quadriga.store.records.errors import JSON_ERRORS, DamagedError, NotFoundError, QueryError
from quadriga.store.records.records import REJECTED

REPORTS_PATH = "/console/reports"
SHOWN = 200
"""Reports of a page of the list."""
_MAX_LABELS = 30
_IMAGES = 48
_decoder = msgspec.json.Decoder(Report)
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
        return _report_page(frame, report_id, reports.within(scope), inferences.within(scope))

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
            to_list=cell_list_link(frame, report_id, cells),
        )

    @services.page(REPORTS_PATH + "/{report_id:str}/page")
    def show_whole_report(report_id: FromPath[str]) -> Response[bytes]:
        """Show the whole report with links to the console."""
        stored = reports.within(caller_scope()).page(report_id)
        page = with_links(stored, report_id, frame.public_url)
        return Response(page, media_type="text/html", headers=dict(PRINT_HEADERS))


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
            title="Something went wrong",
            sentences=[_UNREADABLE],
            details="",
            request_id="",
        )
    is_drift = report.kind == "drift"
    data = report.data
    window, before = (window_filter(report.model, side) for side in (data.current, data.baseline))
    metrics = report.metrics if is_drift else metric_texts.table_metrics(report)
    metric_names = metric_texts.titles(metrics)
    worst = None if is_drift else metric_texts.worst_slice(report)
    matrix = _matrix(report.confusion)
    return frame.page(
        "report",
        page="reports",
        title=drift_texts.headline(report)
        or metric_texts.headline(report)
        or drift_texts.verdict(report)
        or report.task,
        r=report,
        report_id=report_id,
        is_moved=report.status == "drift" or bool(drift_texts.undecided_signals(report)),
        images_line=window.line if is_drift else _with_truth(window.line),
        baseline_line=before.line,
        links_are_whole=window.is_whole and before.is_whole,
        explanation=drift_texts.explanation(report) or " ".join(metric_texts.findings(report)),
        worst_link="" if worst is None else _slice_link(report, worst, frame.link),
        counts=metric_texts.counts_by_label(report),
        metrics=metrics,
        metric_names=metric_names,
        signals=sorted_by_effect(report.signals),
        signal_titles=drift_texts.signal_titles(signal.name for signal in report.signals),
        places={
            signal.name: images_of_slices(signal, report)
            for signal in drift_texts.maybe_chance_signals(report)
        },
        changes=signal_changes(report, inferences) if is_drift else [],
        acknowledged=read_acknowledgement(stored, report_id) if is_drift else None,
        may_monitor=opens(current_caller(), "monitor"),
        matrix=matrix,
        matrix_top=max((count for row in matrix.values() for count in row.values()), default=0),
        notes=[
            *drift_texts.caveats(report),
            *metric_texts.headline_notes(report),
        ],
        metric_words=words_of_metrics(metric_names),
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


def _matrix(confusion: Confusion | None) -> dict[str, dict[str, int]]:
    """Return the counts of the confusion matrix by truth and prediction.

    An empty label comes last: no prediction, if any object was missed, and no object, if any prediction was false.
    """
    if confusion is None:
        return {}
    labels = confusion.labels[:_MAX_LABELS]
    has_misses = any(confusion.misses.get(label) for label in labels)
    has_extra = labels and any(confusion.hallucinations.get(label) for label in labels)
    return {
        truth: {
            predicted: cell_count(confusion, truth, predicted) or 0
            for predicted in [*labels, *([""] if has_misses and truth else [])]
        }
        for truth in [*labels, *([""] if has_extra else [])]
    }


PRINT_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; "
    "sandbox allow-same-origin allow-popups allow-popups-to-escape-sandbox",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of the page: parts of it come from clients, so a browser may not run or fetch anything. Its links are those of this
origin, as else they would come without the cookie of the session."""
_INFERENCE = re.compile(rb'<a data-inference="([0-9]{1,20})">')
_REPORT = re.compile(rb'<a data-report="([0-9]{1,20}-[0-9a-f]{1,16})">')
_BODY, _FOOTER = b"<body>\n", b"<footer>\n"


def with_links(page: bytes, report_id: str, url: str) -> bytes:
    """Return the page of a report with links to its inferences and earlier reports, and one back to the console at either end.

    Pages that an earlier version wrote have the link back alone.

    Args:
        page: The page as its job wrote it.
        report_id: Id of the report.
        url: URL at which people reach the server, without a slash at its end, so that links of a copy that somebody keeps
            lead there, too. If it is empty, links have no host: the server cannot know that of a proxy before it, nor
            whether that takes https.
    """
    console = escape(f"{url}/console").encode()
    for pattern, path in ((_INFERENCE, b"inferences"), (_REPORT, b"reports")):
        page = pattern.sub(partial(_link, console + b"/" + path), page)
    back = b'<p class="back"><a href="%s/reports/%s">%s</a></p>\n' % (
        console,
        escape(report_id).encode(),
        escape("Back to the report in the console").encode(),
    )
    page = page.replace(_BODY, _BODY + back, 1)
    before, footer, after = page.rpartition(_FOOTER)
    return before + footer + back + after if footer else page


def _link(console_path: bytes, match: re.Match[bytes]) -> bytes:
    return b'<a href="%s/%s">' % (console_path, match[1])


CURVE_SIZE = 320
"""Width and height of the curves, in their own units."""
FIRST_SCORE = 0.5
_MAX_CURVES = 4
_MAX_SLICES = 100
_SHOWN = 6
_REASONS = {
    "miss": "Missed",
    "false_positive": "False",
    "wrong_label": "Wrong label",
}
_CELLS = {"miss": ("predicted", ""), "false_positive": ("truth", "")}
"""Part of a filter that finds all inferences with an error of this kind, beside the report."""


class CurvePoint(msgspec.Struct, frozen=True, array_like=True):
    """A point of a curve with the lowest score that counts there."""

    recall: float
    precision: float
    score: float


class CurveLine(msgspec.Struct, frozen=True, kw_only=True):
    """Precision over recall of a label."""

    name: str
    """Label; empty for the mean of all."""
    line: str
    """Points of the SVG's line."""
    points: str
    """Points as JSON, for the script that moves the score."""
    chosen: CurvePoint | None
    """The point of `FIRST_SCORE`; None if no prediction has so much."""


class SliceRow(msgspec.Struct, frozen=True):
    """A slice with the link to its images."""

    part: Slice
    link: str
    """Empty without a filter for its images."""
    is_worse: bool
    """Whether its interval lies on the bad side of the value of all images."""


class WorstGroup(msgspec.Struct, frozen=True):
    """The worst images by one reason."""

    name: str
    cards: list[Card]
    link: str
    """Link to all inferences with such an error; empty without a filter for them."""


def curve_lines(report: Report) -> list[CurveLine]:
    """Return the curves of the first match threshold: of the labels with the least area, or the mean if there are none.

    Of labels with the same area those with the least metric come first.
    """
    rows = report.curves.get("pr", [])
    thresholds = [row.get("iou") for row in rows]
    rows = [row for row in rows if row.get("iou") == thresholds[0]]
    curves = [(row.get("label"), _points(row)) for row in rows]
    curves = [(label, points) for label, points in curves if len(points) > 1]
    of_labels = [curve for curve in curves if curve[0] is not None]
    values = {metric.parameters.get("label"): metric.value or 0.0 for metric in reversed(report.metrics)}  # fmt: skip
    of_labels.sort(key=lambda curve: (round(_area(curve[1]), 4), values.get(curve[0], 0.0)))
    return [
        CurveLine(
            name="" if label is None else one_line(label, 24),
            line=" ".join(f"{x:.1f},{y:.1f}" for x, y in map(_place, points)),
            points=msgspec.json.encode(points).decode(),
            chosen=_at_score(points, FIRST_SCORE),
        )
        for label, points in (of_labels or curves)[:_MAX_CURVES]
    ]


def _points(row: dict[str, Any]) -> list[CurvePoint]:
    columns = (row.get(name, []) for name in ("recall", "precision", "score"))
    return [
        CurvePoint(round(recall, 4), round(precision, 4), round(score, 4))
        for recall, precision, score in zip(*columns, strict=False)
        if score is not None
    ]


def _area(points: Sequence[CurvePoint]) -> float:
    return sum(
        (after.recall - before.recall) * (after.precision + before.precision) / 2
        for before, after in pairwise(points)
    )


def _place(point: CurvePoint) -> tuple[float, float]:
    return point.recall * CURVE_SIZE, (1 - point.precision) * CURVE_SIZE


def _at_score(points: Sequence[CurvePoint], score: float) -> CurvePoint | None:
    """Return the point with the most recall whose predictions all have at least a score."""
    reached = [point for point in points if point.score >= score]
    return max(reached, key=lambda point: point.recall, default=None)


Link = Callable[..., str]


def slice_rows(report: Report, link: Link) -> list[SliceRow]:
    """Return the slices of an evaluation; `link` makes the link of a path with parameters."""
    if report.kind != "evaluation":
        return []
    overall = report.metrics[0].value if report.metrics else None
    return [_slice_row(report, part, overall, link) for part in report.slices[:_MAX_SLICES]]


def _slice_row(report: Report, part: Slice, overall: float | None, link: Link) -> SliceRow:
    metric = part.metrics[0] if part.metrics else None
    is_worse = False
    if metric is not None and metric.ci95 is not None and overall is not None:
        low, high = metric.ci95
        bad = low if metric_texts.is_less_better(metric) else high
        if bad is not None:
            is_worse = bad > overall if metric_texts.is_less_better(metric) else bad < overall
    return SliceRow(part, _slice_link(report, part, link), is_worse)


def _slice_link(report: Report, part: Slice, link: Link) -> str:
    """Return the link to the inferences of a slice with truth, within the report's window; empty without a filter for them."""
    window = report.data.current
    named_filter = report.parameters.get("slices", {}).get(part.by)
    texts = model_comparisons(report.model) if report.model.name else []
    texts.append(comparison_text("ground_truth", True, "exists"))
    if window.start is not None and window.end is not None:
        texts += [f"ts=ge:{window.start}", f"ts=le:{window.end}"]
    if isinstance(window.filter, str) and window.filter:
        texts.append(f"({window.filter})")
    if part.by.startswith("meta.") and part.value is not None:
        texts.append(slice_comparison(part.by, part.value))
    elif isinstance(named_filter, str) and part.value in {"true", "false"}:
        texts.append(f"({named_filter})" if part.value == "true" else f"!({named_filter})")
    else:
        return ""
    return link("/console/inferences", q=joined(texts)) if report.model.name else ""


def worst_groups(
    report: Report, report_id: str, inferences: InferenceReader, link: Link
) -> list[WorstGroup]:
    """Return the worst images by each reason, of those that are still stored.

    Args:
        report: The evaluation.
        report_id: Its id.
        inferences: What the caller may see.
        link: Makes the link of a path with parameters.
    """
    if report.kind != "evaluation" or not report.worst:
        return []
    by_reason: dict[str, list[Worst]] = {}
    for image in report.worst:
        by_reason.setdefault(image.reason, []).append(image)
    ids = [image.inference_id for images in by_reason.values() for image in images[:_SHOWN]]
    stored = {}
    with suppress(QueryError, NotFoundError):  # of a dataset on a disk: those have no inferences
        stored = inferences.by_id(dict.fromkeys(ids))
    groups = []
    for reason, images in by_reason.items():
        cards = [
            card(stored[image.inference_id])
            for image in images[:_SHOWN]
            if image.inference_id in stored
        ]
        if cards:
            name = _REASONS.get(reason, one_line(reason.replace("_", " ")))
            groups.append(WorstGroup(name, cards, _error_link(reason, report, report_id, link)))
    return groups


def _error_link(reason: str, report: Report, report_id: str, link: Link) -> str:
    if reason not in _CELLS or report.confusion is None:
        return ""
    line = joined([comparison_text("report", report_id), comparison_text(*_CELLS[reason])])
    return link("/console/inferences", q=line)


MAX_ROWS = 300
_METRICS = ("AP", "IOU", "F1", "AveragePrecision")
"""Metrics that labels are put in order by: the first of these that the report has of labels."""


class CountLink(msgspec.Struct, frozen=True):
    """A number of objects or images, and the link to those behind it; empty without a filter for them."""

    count: int
    link: str = ""


class LabelRow(msgspec.Struct, frozen=True):
    """A label with how well it is found; counts are None if the confusion matrix leaves the label out."""

    metric: Metric
    hits: int | None
    lost: CountLink | None
    """How often it was missed, or taken for another label."""
    wrong: CountLink | None
    """How often it was predicted where it is not true."""


class LabelTable(msgspec.Struct, frozen=True):
    """The labels of an evaluation."""

    metric: str
    """Name of the metric that they are in order of."""
    rows: list[LabelRow]
    more: int
    """Number of labels that are left out: the best ones, and those without a value."""
    is_whole: bool
    """Whether the confusion matrix has all labels, so that its sums are those of all."""

    @property
    def has_counts(self) -> bool:
        """Whether the confusion matrix has any of them."""
        return any(row.hits is not None for row in self.rows)


def label_table(report: Report, report_id: str, link: Link) -> LabelTable | None:
    """Return the labels of an evaluation; None for a report without metrics of labels.

    Args:
        report: The report.
        report_id: Its id.
        link: Makes the link of a path with parameters.
    """
    metrics = _label_metrics(report.metrics)
    if report.kind != "evaluation" or not metrics:
        return None
    ordered = sorted(metrics, key=lambda metric: (metric.value is None, metric.value or 0.0))
    confusion = report.confusion or Confusion()
    count = len(confusion.labels)
    return LabelTable(
        one_line(metric_texts.title(metrics[0], of_label=False, short=True)),
        [_label_row(metric, confusion, report_id, link) for metric in ordered[:MAX_ROWS]],
        max(len(ordered) - MAX_ROWS, 0),
        is_whole=bool(confusion.parameters.get("labels", count) == count),
    )


def counted_unit(confusion: Confusion | None) -> str:
    """Return what a confusion matrix counts: objects, images or pixels."""
    return str((confusion or Confusion()).parameters.get("of", "objects"))


def cell_count(confusion: Confusion, truth: str | None, predicted: str | None) -> int | None:
    """Return the count of a cell; empty labels are no object and no prediction. None for several cells, or one that is not there."""
    if truth is None or predicted is None:
        return None
    if not truth:
        return confusion.hallucinations.get(predicted)
    if not predicted:
        return confusion.misses.get(truth)
    labels = confusion.labels
    if truth not in labels or predicted not in labels:
        return None
    return confusion.matrix[labels.index(truth)][labels.index(predicted)]


def confusion_rule(confusion: Confusion | None) -> str:
    """Say from which score and overlap a confusion matrix counts; empty where it counts all alike."""
    parameters: dict[str, Any] = {} if confusion is None else confusion.parameters
    if parameters.get("score") is None or parameters.get("iou") is None:
        return ""
    score, iou = (f"{parameters[name]:.4g}" for name in ("score", "iou"))
    return f"predictions with a score of at least {score}, overlap (IoU) at least {iou}"


def _label_metrics(metrics: Sequence[Metric]) -> list[Metric]:
    """Return a metric of each label: those of the first kind, rule and threshold that labels have."""
    labelled = [metric for metric in metrics if isinstance(metric.parameters.get("label"), str)]
    for kind in _METRICS:
        of_kind = [metric for metric in labelled if metric.type == kind]
        if of_kind:
            return [metric for metric in of_kind if _rule(metric) == _rule(of_kind[0])]
    return []


def _rule(metric: Metric) -> dict[str, Any]:
    return {name: value for name, value in metric.parameters.items() if name not in {"label", "n"}}


def _label_row(metric: Metric, confusion: Confusion, report_id: str, link: Link) -> LabelRow:
    label, labels = metric.parameters["label"], confusion.labels
    if label not in labels:
        return LabelRow(metric, None, None, None)
    place = labels.index(label)
    column = [row[place] for row in confusion.matrix]

    def errors(own: str, field: str, counts: Sequence[int], alone: int) -> CountLink:
        """Return the errors with other labels, and `alone` without one."""
        others = {other: n for other, n in zip(labels, counts, strict=True) if n and other != label}
        others |= {"": alone} if alone else {}
        if not others:
            return CountLink(0)
        values = [field_and_rest(comparison_text(field, other))[1] for other in others]
        of_report = [comparison_text("report", report_id), comparison_text(own, label)]
        line = joined([*of_report, f"{field}=in:{','.join(values)}"])
        return CountLink(sum(others.values()), link("/console/inferences", q=line))

    return LabelRow(
        metric,
        column[place],
        errors("truth", "predicted", confusion.matrix[place], confusion.misses.get(label, 0)),
        errors("predicted", "truth", column, confusion.hallucinations.get(label, 0)),
    )

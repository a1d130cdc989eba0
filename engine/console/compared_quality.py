"""How good two models are on the same images: the newest evaluation that compared them, with its differences by slice."""

from collections.abc import Callable
from contextlib import suppress

import msgspec

from quadriga.engine.console.charts import IntervalMarks, difference_interval
from quadriga.engine.console.drift_links import slice_comparison
from quadriga.engine.console.filter_line import as_part, comparison_text, joined
from quadriga.monitor.report import metric_texts
from quadriga.monitor.report.saved import ReportStore
from quadriga.monitor.report.schema import Comparison, Metric, Report
from quadriga.store.records.errors import JSON_ERRORS, NotFoundError

AXIS_WIDTH = 260
_MAX_REPORTS = 20
"""Evaluations of the second model that are looked through."""

_decoder = msgspec.json.Decoder(Report)
_COLOURS = {"better": "3", "worse": "2"}


class DifferenceRow(msgspec.Struct, frozen=True, kw_only=True):
    """The difference over all images, or those of a slice."""

    name: str
    """Name of the slice; empty for all."""
    link: str
    """Link to the second model's images with truth there, also those that the first did not answer; empty without a filter
    for them."""
    n: int
    """Number of images that both have answered, and that have truth."""
    values: tuple[str, str]
    """The metric of the first and of the second model; empty where a report has no such numbers."""
    difference: str
    interval: str
    verdict: str
    colour: str
    """Class of the style sheet, without its first letter."""
    marks: IntervalMarks | None


class ComparedQuality(msgspec.Struct, frozen=True, kw_only=True):
    """An evaluation that compared the two."""

    report: str
    created: str
    sentence: str
    """Sentence which of the two is better, and where."""
    values: str
    """The first metric of both."""
    metric: str
    rows: list[DifferenceRow]
    notes: list[str]


def find_quality(
    reports: ReportStore,
    first: tuple[str, str],
    second: tuple[str, str],
    *,
    line: str,
    report_id: str,
    link: Callable[..., str],
) -> ComparedQuality | None:
    """Return the newest evaluation of the second model that compared it with the first; None without one.

    Args:
        reports: The reports that the caller may see.
        first: Name and version of the model that the other is compared with.
        second: Name and version.
        line: Filter of the evaluation.
        report_id: The report to show, if it is one of these; empty for the newest.
        link: Makes the link of a path with parameters.
    """
    summaries = [
        summary
        for summary in reports.all()
        if summary.kind == "evaluation"
        and (summary.model.name, summary.model.version) == second
        and report_id in {"", summary.id}
    ]
    for summary in summaries[:_MAX_REPORTS]:
        with suppress(NotFoundError, *JSON_ERRORS):  # removed since, or damaged
            report = _decoder.decode(reports.read(summary.id))
            comparison = _comparison_with(report, first)
            if comparison is not None and _filter_of(report) == line:
                return _quality(summary.id, report, comparison, line=line, link=link)
    return None


def _comparison_with(report: Report, model: tuple[str, str]) -> Comparison | None:
    for comparison in report.comparisons:
        if (comparison.model.name, comparison.model.version) == model and comparison.differences:
            return comparison
    return None


def _filter_of(report: Report) -> object:
    return report.data.current.filter or ""


def _quality(
    report_id: str, report: Report, comparison: Comparison, *, line: str, link: Callable[..., str]
) -> ComparedQuality:
    measured = [("", "", comparison.n, comparison.differences[0], comparison.metrics)]
    for part in comparison.slices:
        if part.differences:
            where = (
                slice_comparison(part.by, part.value)
                if part.by.startswith("meta.") and part.value is not None
                else ""
            )
            name = metric_texts.slice_name(part.by, part.value)
            measured.append((name, where, part.n, part.differences[0], part.metrics))
    reach = _reach([metric for _, _, _, metric, _ in measured])
    evaluated = [
        comparison_text("model", report.model.name),
        comparison_text("version", report.model.version),
        comparison_text("ground_truth", True, "exists"),
        *([f"ts=le:{report.data.current.end}"] if report.data.current.end else []),
        *([as_part(line)] if line else []),
    ]
    rows = []
    for name, where, n, metric, others in measured:
        line_of_row = joined([*evaluated, where] if where else evaluated)
        to_images = link("/console/inferences", q=line_of_row) if where or not name else ""
        rows.append(
            _row(name, to_images, metric, n=n, reach=reach, first=others[0] if others else None)
        )
    return ComparedQuality(
        report=report_id,
        created=report.created,
        sentence=metric_texts.comparison_sentence(report, comparison),
        values=metric_texts.comparison_values(comparison),
        metric=metric_texts.titles([comparison.differences[0]])[0],
        rows=rows,
        notes=report.warnings,
    )


def _row(
    name: str, link: str, metric: Metric, *, n: int, reach: float, first: Metric | None
) -> DifferenceRow:
    values = ("", "")
    if first is not None and first.value is not None and metric.value is not None:
        both = first.value, first.value + metric.value
        values = (metric_texts.format_number(both[0]), metric_texts.format_number(both[1]))
    verdict = metric_texts.difference_verdict(metric)
    return DifferenceRow(
        name=name,
        link=link,
        n=n,
        values=values,
        difference=metric_texts.format_difference(metric),
        interval=metric_texts.format_interval(metric) if metric.ci95 is not None else "",
        verdict=verdict,
        colour=_COLOURS.get(verdict, "r"),
        marks=None
        if metric.value is None
        else difference_interval(metric.value, metric.ci95, reach, AXIS_WIDTH),
    )


def _reach(metrics: list[Metric]) -> float:
    """Return the largest number of all differences and their intervals, so that one axis has room for them."""
    numbers = [
        abs(number)
        for metric in metrics
        for number in (metric.value, *(metric.ci95 or ()))
        if number is not None
    ]
    return max(numbers, default=0.0) or 1.0

"""What the page of an evaluation shows beside its numbers: curves with a score to choose, slices, and the images to look at first."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import msgspec

from quadriga.engine.console.cards import Card, card
from quadriga.engine.console.charts import IntervalMarks, interval
from quadriga.engine.console.drift_links import model_comparisons, slice_comparison
from quadriga.engine.console.filter_line import comparison_text, joined
from quadriga.engine.console.texts import TEXTS
from quadriga.monitor.report import metric_texts
from quadriga.monitor.report.schema import Report, Slice, Worst
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.errors import NotFoundError, QueryError

CURVE_SIZE = 320
"""Width and height of the curves, in their own units."""

FIRST_SCORE = 0.5
_AXIS_WIDTH = 260
_MAX_CURVES = 4
_MAX_SLICES = 100
_SHOWN = 6
_CELLS = {"miss": ("predicted", ""), "false_positive": ("truth", "")}
"""Part of a filter that finds all inferences with an error of this kind, beside the report."""

Link = Callable[..., str]


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


class SliceRow(msgspec.Struct, frozen=True, kw_only=True):
    """A slice with its first metric."""

    name: str
    link: str
    """Link to its images; empty without a filter for them."""
    n: int
    value: str
    interval: str
    marks: IntervalMarks | None
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
            name="" if label is None else metric_texts.one_line(label, 24),
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


def slice_rows(report: Report, link: Link) -> list[SliceRow]:
    """Return the slices of an evaluation; `link` makes the link of a path with parameters."""
    if report.kind != "evaluation":
        return []
    overall = report.metrics[0].value if report.metrics else None
    return [_slice_row(report, part, overall, link) for part in report.slices[:_MAX_SLICES]]


def _slice_row(report: Report, part: Slice, overall: float | None, link: Link) -> SliceRow:
    metric = part.metrics[0] if part.metrics else None
    value = None if metric is None else metric.value
    bounds = None if metric is None else metric.ci95
    is_worse = False
    if metric is not None and bounds is not None and overall is not None:
        low, high = bounds
        bad = low if metric_texts.is_less_better(metric) else high
        if bad is not None:
            is_worse = bad > overall if metric_texts.is_less_better(metric) else bad < overall
    return SliceRow(
        name=metric_texts.slice_name(part.by, part.value),
        link=_slice_link(report, part, link),
        n=part.n,
        value=metric_texts.format_number(value),
        interval="" if metric is None or bounds is None else metric_texts.format_interval(metric),
        marks=interval(value, bounds, _AXIS_WIDTH)
        if value is not None and 0 <= value <= 1
        else None,
        is_worse=is_worse,
    )


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
        where = {"id": {"in": list(dict.fromkeys(ids))}}
        page = inferences.query(QueryRequest(where, limit=len(ids)))
        stored = {inference.id: inference for inference in page.inferences}
    groups = []
    for reason, images in by_reason.items():
        cards = [
            card(stored[image.inference_id])
            for image in images[:_SHOWN]
            if image.inference_id in stored
        ]
        if cards:
            name = TEXTS.get(f"worst_{reason}", metric_texts.one_line(reason.replace("_", " ")))
            groups.append(WorstGroup(name, cards, _error_link(reason, report, report_id, link)))
    return groups


def _error_link(reason: str, report: Report, report_id: str, link: Link) -> str:
    if reason not in _CELLS or report.confusion is None:
        return ""
    line = joined([comparison_text("report", report_id), comparison_text(*_CELLS[reason])])
    return link("/console/inferences", q=line)

"""The labels of an evaluation, the worst first: metric, counts of the confusion matrix, and links to the images behind its errors."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from quadriga.engine.console.charts import IntervalMarks, interval
from quadriga.engine.console.filter_line import comparison_text, field_and_rest, joined
from quadriga.engine.console.texts import text
from quadriga.monitor.report import metric_texts
from quadriga.monitor.report.schema import Confusion, Metric, Report

MAX_ROWS = 300
_AXIS_WIDTH = 128
_METRICS = ("AP", "IOU", "F1", "AveragePrecision")
"""Metrics that labels are put in order by: the first of these that the report has of labels."""

Link = Callable[..., str]


class CountLink(msgspec.Struct, frozen=True):
    """A number of objects or images, and the link to those behind it; empty without a filter for them."""

    count: int
    link: str = ""


class LabelRow(msgspec.Struct, frozen=True, kw_only=True):
    """A label with how well it is found."""

    name: str
    value: str
    interval: str
    marks: IntervalMarks | None
    total: int | None
    """How often it is true; None if the confusion matrix leaves the label out."""
    lost: CountLink | None
    """How often it was missed, or taken for another label."""
    wrong: CountLink | None
    """How often it was predicted where it is not true."""
    recall: str
    precision: str
    """Both as counted in the confusion matrix."""


class LabelTable(msgspec.Struct, frozen=True):
    """The labels of an evaluation."""

    metric: str
    """Name of the metric that they are in order of."""
    rows: list[LabelRow]
    more: int
    """Number of labels that are left out: the best ones, and those without a value."""
    has_counts: bool
    unit: str
    """What the confusion matrix counts: objects, images or pixels."""


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
    counts = _CellCounts(report.confusion, report_id, link)
    rows = [_row(metric, counts) for metric in ordered[:MAX_ROWS]]
    return LabelTable(
        metric_texts.one_line(metric_texts.title(metrics[0], of_label=False, short=True)),
        rows,
        max(len(ordered) - MAX_ROWS, 0),
        any(row.total is not None for row in rows),
        unit=counted_unit(report.confusion),
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
    return text(
        "confusion_rule", score=f"{parameters['score']:.4g}", iou=f"{parameters['iou']:.4g}"
    )


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


class _CellCounts:
    """Counts of the confusion matrix by label, with their links."""

    def __init__(self, confusion: Confusion | None, report_id: str, link: Link) -> None:
        self._confusion = confusion or Confusion()
        self._report_id = report_id
        self._link = link
        labels = self._confusion.labels
        self._place = {label: number for number, label in enumerate(labels)}
        self._is_whole = bool(self._confusion.parameters.get("labels", len(labels)) == len(labels))

    def found(self, label: str) -> int | None:
        """Return how often a label was found as such; None for one that the matrix leaves out."""
        place = self._place.get(label)
        return None if place is None else self._confusion.matrix[place][place]

    def lost(self, label: str) -> CountLink:
        """Return how often a label was missed or taken for another."""
        place = self._place[label]
        row = self._confusion.matrix[place]
        others = {other: row[at] for other, at in self._place.items() if at != place and row[at]}
        if missed := self._confusion.misses.get(label, 0):
            others[""] = missed
        return self._count_link("truth", label, "predicted", others)

    def wrong(self, label: str) -> CountLink:
        """Return how often a label was predicted where it is not true."""
        place = self._place[label]
        column = [row[place] for row in self._confusion.matrix]
        others = {other: column[at] for other, at in self._place.items() if at != place and column[at]}  # fmt: skip
        if extra := self._confusion.hallucinations.get(label, 0):
            others[""] = extra
        return self._count_link("predicted", label, "truth", others)

    def is_whole(self) -> bool:
        """Check whether the matrix has all labels, so that its sums are those of all."""
        return self._is_whole

    def _count_link(self, own: str, label: str, field: str, others: dict[str, int]) -> CountLink:
        if not others:
            return CountLink(0)
        values = [field_and_rest(comparison_text(field, other))[1] for other in others]
        line = joined(
            [
                comparison_text("report", self._report_id),
                comparison_text(own, label),
                f"{field}=in:{','.join(values)}",
            ]
        )
        return CountLink(sum(others.values()), self._link("/console/inferences", q=line))


def _row(metric: Metric, counts: _CellCounts) -> LabelRow:
    label, value = metric.parameters["label"], metric.value
    hits = counts.found(label)
    lost = None if hits is None else counts.lost(label)
    wrong = None if hits is None else counts.wrong(label)
    is_share = value is not None and 0 <= value <= 1
    return LabelRow(
        name=metric_texts.one_line(label),
        value=metric_texts.format_number(value),
        interval="" if metric.ci95 is None else metric_texts.format_interval(metric),
        marks=interval(value, metric.ci95, _AXIS_WIDTH) if is_share and value is not None else None,
        total=None if hits is None or lost is None else hits + lost.count,
        lost=lost,
        wrong=wrong,
        recall=_share(hits, lost) if counts.is_whole() else "",
        precision=_share(hits, wrong) if counts.is_whole() else "",
    )


def _share(hits: int | None, errors: CountLink | None) -> str:
    if hits is None or errors is None or not hits + errors.count:
        return ""
    return f"{hits / (hits + errors.count):.2f}"

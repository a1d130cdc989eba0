"""Charts of an evaluation: bars of labels, sizes, slices and errors, curves, confusion matrices and calibration."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from quadriga.monitor.report.charts import Chart
from quadriga.monitor.report.charts.drawing import (
    FAINT,
    INK,
    LINE_STYLES,
    NARROW,
    PAPER,
    SERIES,
    TRUTH,
    WIDE,
    WRONG,
    draw_interval,
    new_figure,
    set_row_names,
    set_unit_square,
    shorten_text,
    single_axes,
    to_chart,
)
from quadriga.monitor.report.metric_texts import difference_rows, headlines, title
from quadriga.monitor.report.schema import TIME_SLICES, Comparison, Confusion, Metric, Report, Slice
from quadriga.quoting import one_line
from quadriga.tasks.arrays import Float64Array, Int64Array

_MAX_LABELS, _MAX_VALUES = 60, 30
_ROW_HEIGHT = 0.21
"""Height of a bar, in inches."""
_INTERVAL_NOTE = "Bars: 95 % intervals of a bootstrap over images."
_SIZES = ("small", "medium", "large")
_LABEL_CHARTS = (
    ("AP", "Average precision by label"),
    ("IOU", "IoU by label"),
    ("F1", "F1 by label"),
    ("AveragePrecision", "Average precision by label"),
)
"""Metrics with a chart by label; the last two only if there is no average precision of objects."""
_TIDE_NAMES = {
    "Cls": "wrong label",
    "Loc": "poor place",
    "Both": "both wrong",
    "Dupe": "found twice",
    "Bkg": "nothing there",
    "Miss": "not found",
    "FalsePos": "all false positives",
    "FalseNeg": "all false negatives",
}


def label_charts(report: Report) -> list[Chart]:
    """Draw the metrics of each label, best label first."""
    charts: list[Chart] = []
    labelled = [
        metric for metric in report.metrics if isinstance(metric.parameters.get("label"), str)
    ]
    for kind, name in _LABEL_CHARTS:
        metrics = [metric for metric in labelled if metric.type == kind]
        # Only the first rule and threshold is drawn; the table has the others.
        metrics = [
            metric
            for metric in metrics
            if _parameters_without_label(metric) == _parameters_without_label(metrics[0])
        ]
        if metrics and not (kind in {"F1", "AveragePrecision"} and charts):
            charts.append(_label_chart(metrics, f"by-label-{kind.lower()}", name))
    return charts


def _parameters_without_label(metric: Metric) -> dict[str, object]:
    return {key: value for key, value in metric.parameters.items() if key != "label"}


def _label_chart(metrics: list[Metric], name: str, heading: str) -> Chart:
    order = sorted(metrics, key=lambda metric: metric.parameters["label"])
    order.sort(key=lambda metric: (metric.value is None, -(metric.value or 0)))
    half = _MAX_LABELS // 2
    hidden_count = len(order) - _MAX_LABELS
    middle = half if hidden_count > 0 or len(order) <= half else (len(order) + 1) // 2
    panels = [panel for panel in (order[:middle], order[middle:][-half:]) if panel]
    max_rows = max(len(panel) for panel in panels)
    figure = new_figure(0.7 + _ROW_HEIGHT * max_rows, WIDE if len(panels) > 1 else NARROW)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _bars(axes, [shorten_text(metric.parameters["label"]) for metric in panel], panel)
        axes.set_xticks((0, 0.5, 1))
        axes.set(xlim=(0, 1.2), ylim=(max_rows - 0.4, -0.6))
    caption = f"{one_line(title(metrics[0], of_label=False), 80)}, best first."
    if hidden_count > 0:
        caption += (
            f" The best and the worst {half}; the {hidden_count} between them are in the table."
        )
    return to_chart(figure, name, heading, caption)


def _bars(axes: Axes, names: list[str], metrics: Sequence[Metric], color: str = SERIES[0]) -> None:
    """Draw horizontal bars with intervals and values, from top to bottom."""
    axes.barh(
        np.arange(len(names)), [metric.value or 0 for metric in metrics], height=0.66, color=color
    )
    for row, metric in enumerate(metrics):
        low, high = metric.ci95 or (None, None)
        if low is not None and high is not None:
            axes.plot((low, high), (row, row), color=INK, linewidth=1)
        end = max(0, metric.value or 0, high or 0)
        text = "undefined" if metric.value is None else f"{metric.value:.3f}"
        axes.annotate(text, (end, row), (3, 0), textcoords="offset points", va="center", fontsize=7)
    set_row_names(axes, names)
    axes.locator_params(axis="x", nbins=4)


def size_chart(report: Report) -> Chart | None:
    """Draw average precision by the size of the objects."""
    by_area = {
        metric.parameters["area"]: metric
        for metric in reversed(report.metrics)  # the first of each area is the mean over thresholds
        if metric.type == "AP"
        and metric.parameters.get("area") is not None
        and metric.parameters.get("label") is None
    }
    sizes = [size for size in ("all", *_SIZES) if size in by_area]
    if not any(size in by_area for size in _SIZES):
        return None
    figure, axes = single_axes(0.8 + 0.3 * len(sizes))
    _dots(axes, sizes, [by_area[size] for size in sizes])
    caption = f"Small is below 32² pixels, large above 96². {_INTERVAL_NOTE}"
    return to_chart(figure, "by-size", "Average precision by size", caption)


def _dots(axes: Axes, names: list[str], metrics: list[Metric]) -> None:
    """Draw values as dots with their intervals, from top to bottom."""
    for row, metric in enumerate(metrics):
        draw_interval(axes, metric, row, color=SERIES[0])
    set_row_names(axes, names)
    axes.grid(visible=True, axis="x")


def slice_charts(report: Report) -> list[Chart]:
    """Draw the first headline of each slice."""
    by_key: dict[str, list[Slice]] = {}
    for slice_ in report.slices:
        if slice_.metrics:
            by_key.setdefault(slice_.by, []).append(slice_)
    return [
        _slice_chart(report, name, slices, index)
        for index, (name, slices) in enumerate(by_key.items())
    ]


def _slice_chart(report: Report, by: str, slices: list[Slice], number: int) -> Chart:
    hidden_count = len(slices) - _MAX_VALUES
    slices = slices[:_MAX_VALUES]  # the most frequent ones come first
    if by in TIME_SLICES:
        slices = sorted(slices, key=lambda slice_: slice_.value or "")
    figure, axes = single_axes(0.8 + 0.26 * len(slices))
    names = [f"{shorten_text(slice_.value)} (n = {slice_.n:,})" for slice_ in slices]
    name = one_line(f"{title(slices[0].metrics[0], short=True)} by {by}", 80)
    overall = headlines(report)[0].value if headlines(report) else None
    if overall is not None:
        axes.axvline(overall, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
    _dots(axes, names, [slice_.metrics[0] for slice_ in slices])
    caption = f"The dashed line is the whole. {_INTERVAL_NOTE}"
    if hidden_count > 0:
        caption += f" {hidden_count} rarer values are left out."
    return to_chart(figure, f"slice-{number}", name, caption)


def tide_chart(report: Report) -> Chart | None:
    """Draw the average precision lost to each kind of error."""
    costs = {name: report.errors_tide[name] for name in _TIDE_NAMES if name in report.errors_tide}
    if not costs:
        return None
    figure, axes = single_axes(0.8 + 0.3 * len(costs))
    names = [f"{_TIDE_NAMES[name]} ({name})" for name in costs]
    _bars(axes, names, [Metric(name, value) for name, value in costs.items()], WRONG)
    false_rows = [row for row, name in enumerate(costs) if name.startswith("False")]
    if false_rows and false_rows[0]:
        axes.axhline(false_rows[0] - 0.5, color=FAINT, linewidth=0.8)
    high = max([value for value in costs.values() if value is not None], default=0)
    axes.set(xlim=(0, max(0.01, high) * 1.25), xlabel="average precision lost")
    iou = report.parameters.get("tide", {}).get("iou", 0.5)
    caption = (
        f"Average precision at IoU {iou} that would be won if all errors of this one kind were mended (TIDE); "
        "the kinds do not add up."
    )
    return to_chart(figure, "tide", "What the errors cost", caption)


def difference_chart(comparison: Comparison, number: int) -> Chart | None:
    """Draw the differences of the headlines between the report's model and another one."""
    rows = [
        (name, difference)
        for name, metric, difference in difference_rows(comparison)
        if difference is not None
        and abs(metric.value or 0) <= 1  # greater ones need a scale of their own
    ]
    if not rows or not comparison.n:
        return None
    figure, axes = single_axes(0.8 + 0.28 * len(rows))
    axes.axvline(0, color=INK, linewidth=0.9)
    _dots(
        axes, [shorten_text(name, 40) for name, _ in rows], [difference for _, difference in rows]
    )
    reach = max(0.01, *(abs(value) for value in axes.get_xlim()))
    axes.locator_params(axis="x", nbins=5)
    axes.set(xlim=(-reach, reach), xlabel="← less\u2003\u2003more →")
    name = f"This model less {one_line(f'{comparison.model.name} {comparison.model.version}')}"
    caption = "Where the bar of a 95 % interval does not reach the line in the middle, there is a difference."
    return to_chart(figure, f"difference-{number}", name, caption)


_WORST_LABELS = 5
"""Number of labels drawn beside the mean, those with the smallest metric."""
_MAX_PANELS = 3
"""Maximum number of match thresholds with a panel."""
_HEIGHTS = (3.2, 1.2)
"""Heights of the curves and of their legend, in inches."""


class _Line(NamedTuple):
    label: str | None
    x: Float64Array
    y: Float64Array
    number: float
    """Metric of the curve; the area under it if the report has no metric."""


def precision_recall_chart(report: Report) -> Chart | None:
    """Draw precision over recall: the mean of all labels, and the worst labels."""
    panels = []
    all_curves = report.curves.get("pr", [])
    of_labels = [curve for curve in all_curves if curve.get("label") is not None]
    ious = dict.fromkeys(curve.get("iou") for curve in of_labels or all_curves)
    for iou in [*ious][:_MAX_PANELS]:
        curves = [curve for curve in all_curves if curve.get("iou") == iou]
        lines = _lines(report, curves, ("recall", "precision"), ("AP", "AveragePrecision"))
        if lines:
            panels.append(("" if iou is None else f"IoU {iou}", lines))
    if not panels:
        return None
    figure = _figure_for(len(panels))
    rows = figure.subplots(2, len(panels), squeeze=False, height_ratios=_HEIGHTS)
    for curve_axes, name_axes, (name, lines) in zip(*rows, panels, strict=True):
        _draw(curve_axes, name_axes, lines)
        curve_axes.set_title(name)
        set_unit_square(curve_axes, "recall", "precision")
    max_lines = max(len(lines) for _, lines in panels)
    caption = f"The average precision stands beside each name. {_selection_note(max_lines)}"
    return to_chart(figure, "pr", "Precision over recall", caption)


def roc_chart(report: Report) -> Chart | None:
    """Draw the true positive rate over the false positive rate of labels."""
    keys = "false_positive_rate", "true_positive_rate"
    lines = _lines(report, report.curves.get("roc", []), keys, ("ROCAUC",))
    if not lines:
        return None
    figure = _figure_for(1)
    axes, name_axes = figure.subplots(2, 1, height_ratios=_HEIGHTS)
    axes.plot((0, 1), (0, 1), color=FAINT, linewidth=0.8)
    _draw(axes, name_axes, lines)
    set_unit_square(axes, "false positive rate", "true positive rate")
    caption = (
        "Each label against the rest; the area under each curve stands beside its name, and the "
        f"thin diagonal is what guessing gives. {_selection_note(len(lines))}"
    )
    return to_chart(figure, "roc", "Receiver operating characteristic", caption)


def _figure_for(panels: int) -> Figure:
    return new_figure(sum(_HEIGHTS) + 0.5, 3.7 * panels)


def _lines(
    report: Report, curves: Sequence[dict[str, Any]], xy: tuple[str, str], metrics: tuple[str, ...]
) -> list[_Line]:
    """Read the curves that are defined: the mean first, then by metric, rising."""
    lines = []
    for curve in curves:
        x, y = (np.array(curve.get(key, []), np.float64) for key in xy)
        is_defined = np.isfinite(x) & np.isfinite(y)
        if is_defined.any():
            order = np.argsort(x[is_defined], kind="stable")
            x, y = x[is_defined][order], y[is_defined][order]
            number = _metric_of_curve(report, metrics, curve)
            number = float(np.trapezoid(y, x)) if number is None else number
            lines.append(_Line(curve.get("label"), x, y, number))
    return sorted(lines, key=lambda line: (line.label is not None, line.number, line.label or ""))


def _metric_of_curve(report: Report, kinds: tuple[str, ...], curve: dict[str, Any]) -> float | None:
    """Return the value of the metric that belongs to a curve."""
    wanted_parameters = {key: curve.get(key) for key in ("label", "iou")}
    defaults = {"area": "all", "average": "macro", "rule": "COCO"}
    for metric in report.metrics:
        parameters = {"label": None, "iou": None, **defaults} | metric.parameters
        if metric.type in kinds and parameters | wanted_parameters | defaults == parameters:
            return metric.value
    return None


def _draw(axes: Axes, name_axes: Axes, lines: Sequence[_Line]) -> None:
    """Draw the mean and the worst labels, with a legend below."""
    label_lines = [line for line in lines if line.label is not None][:_WORST_LABELS]
    for line, style in zip(label_lines, LINE_STYLES, strict=False):
        axes.plot(line.x, line.y, label=f"{line.number:.2f} {shorten_text(line.label)}", **style)
    for line in lines:
        if line.label is None:
            axes.plot(line.x, line.y, color=INK, linewidth=2.2, label=f"{line.number:.2f} mean")
    name_axes.axis("off")
    name_axes.legend(*axes.get_legend_handles_labels(), loc="upper center", handlelength=2.8)


def _selection_note(count: int) -> str:
    return (
        f"Of the labels the {_WORST_LABELS} with the least are drawn."
        if count > _WORST_LABELS + 1
        else ""
    )


MAX_LABELS = 25
_MAX_NUMBERED = 13
"""Maximum number of rows with which the cells show counts."""
BACKGROUND_NAME = "nothing"


def object_confusion_chart(report: Report) -> Chart | None:
    """Draw the confusion matrix of objects or images."""
    return _chart(report.confusion, "confusion", "What is taken for what")


def pixel_confusion_chart(report: Report) -> Chart | None:
    """Draw the confusion matrix of pixels."""
    return _chart(report.confusion_pixels, "confusion-pixels", "What is taken for what, by pixels")


def _chart(confusion: Confusion | None, name: str, title: str) -> Chart | None:
    """Draw each row as shares of its true label; the background is the last row and column."""
    if confusion is None or not confusion.labels:
        return None
    counts = with_background(confusion)
    total = counts.sum(axis=1, keepdims=True)
    if not total.any():
        return None
    names = [*(shorten_text(label, 18) for label in confusion.labels), f"({BACKGROUND_NAME})"]
    shown_labels = _labels_to_draw(counts)
    cells = np.ix_(shown_labels, shown_labels)
    size = len(shown_labels)
    side = min(6.2, 2.4 + 0.42 * size)
    figure, axes = single_axes(side, side + 0.4)
    _draw_cells(axes, counts[cells], (counts / np.maximum(total, 1))[cells])
    positions, ends = np.arange(size), (-0.5, size - 0.5)
    shown_names = [names[at] for at in shown_labels]
    axes.set(xlim=ends, ylim=ends[::-1], box_aspect=1, xlabel="predicted", ylabel="truth")
    axes.set_xticks(positions, shown_names, rotation=90 if size > 4 else 0)
    axes.set_yticks(positions, shown_names)
    axes.tick_params(length=0)
    axes.hlines(positions[1:] - 0.5, *ends, color=FAINT, linewidth=0.4)
    axes.vlines(positions[1:] - 0.5, *ends, color=FAINT, linewidth=0.4)
    return to_chart(figure, name, title, _caption(len(total) - 1, shown_labels))


def _draw_cells(axes: Axes, counts: Int64Array, shares: Float64Array) -> None:
    for row, column in np.argwhere(counts > 0):
        share = float(shares[row, column])
        color = SERIES[0] if row == column else SERIES[1]
        axes.bar(column, 1, 1, row - 0.5, color=color, alpha=0.08 + 0.92 * share, linewidth=0)
        if len(counts) <= _MAX_NUMBERED:
            text = _short(int(counts[row, column]))
            ink = PAPER if share > 0.5 else INK
            axes.text(column, row, text, color=ink, ha="center", va="center", fontsize=7.5)


def _short(count: int) -> str:
    """Format a count so that it fits into a cell."""
    if count < 100_000:
        return f"{count:,}"
    return f"{count / 1e3:,.0f}k" if count < 10_000_000 else f"{count / 1e6:,.0f}M"


def _caption(labels: int, shown_labels: Int64Array) -> str:
    text = "The fuller a cell, the larger the share of its row; the diagonal is right."
    if labels in shown_labels:
        text += f" The row “({BACKGROUND_NAME})” holds predictions where nothing is, its column what was not found."
    if labels > MAX_LABELS:
        text += (
            f" The {MAX_LABELS} labels with the most errors; {labels - MAX_LABELS} are left out."
        )
    return text


def with_background(confusion: Confusion) -> Int64Array:
    """Return counts int64 (K + 1, K + 1), true label by row; the last row and column are the background."""
    size = len(confusion.labels)
    counts = np.zeros((size + 1, size + 1), np.int64)
    if confusion.matrix:
        counts[:size, :size] = confusion.matrix
    counts[size, :size] = [confusion.hallucinations.get(label, 0) for label in confusion.labels]
    counts[:size, size] = [confusion.misses.get(label, 0) for label in confusion.labels]
    return counts


def _labels_to_draw(counts: Int64Array) -> Int64Array:
    """Return the indices of the labels to draw, those with the most errors if there are too many, and the background."""
    size = len(counts) - 1
    correct = np.diag(counts)
    errors = (counts.sum(axis=0) + counts.sum(axis=1) - 2 * correct)[:size]
    worst = np.sort(np.argsort(-errors, kind="stable")[:MAX_LABELS])
    nothing = [size] if counts[size].any() or counts[:, size].any() else []
    return np.concatenate([worst, np.array(nothing, np.int64)])


def reliability_chart(report: Report) -> Chart | None:
    """Draw accuracy over score, above the number of predictions."""
    curve = _overall_curve(report, "reliability", "edges", "count", "accuracy", "confidence")
    if curve is None or not np.nansum(curve[1]):
        return None
    edges, count, accuracy, confidence = curve
    figure = new_figure(4.4, NARROW)
    accuracy_axes, count_axes = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    accuracy_axes.plot((0, 1), (0, 1), color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    accuracy_axes.bar(
        edges[:-1], accuracy, np.diff(edges), align="edge", color=SERIES[0], alpha=0.35
    )
    accuracy_axes.vlines(confidence, confidence, accuracy, color=WRONG, linewidth=1.6)
    accuracy_axes.plot(confidence, accuracy, "o", color=SERIES[0], markersize=4)
    accuracy_axes.set(ylim=(0, 1.02), ylabel="share that is right")
    count_axes.bar(
        edges[:-1], count, np.diff(edges), align="edge", color=FAINT, edgecolor=INK, linewidth=0.4
    )
    count_axes.set(xlim=(min(0, edges[0]), 1), xlabel="score", ylabel="predictions")
    accuracy_axes.grid(visible=True)
    caption = (
        "Bars: of the predictions with such a score, how many are right. Honest scores lie on the dashed "
        "line; the gap to it is drawn from each dot. Below: how many predictions there are."
    )
    return to_chart(figure, "reliability", "Are the scores honest?", caption)


def score_chart(report: Report) -> Chart | None:
    """Draw histograms of the scores of correct and incorrect predictions."""
    curve = _overall_curve(report, "scores", "edges", "right", "wrong")
    if curve is None or not sum(np.nansum(histogram) for histogram in curve[1:]):
        return None
    edges, *histograms = curve
    figure = new_figure(4.4, NARROW)
    panels = figure.subplots(2, 1, sharex=True)
    styles = ("right", {"color": TRUTH}), ("wrong", {"color": WRONG, "hatch": "////"})
    for axes, histogram, (name, style) in zip(panels, histograms, styles, strict=True):
        axes.bar(edges[:-1], histogram, np.diff(edges), align="edge", **style)
        high = max(1.0, float(np.nanmax(histogram, initial=0)) * 1.05)
        axes.set(ylabel=f"{name} predictions", ylim=(0, high))
        axes.grid(visible=True, axis="y")
    panels[1].invert_yaxis()
    panels[1].set(xlabel="score", xlim=(min(0, edges[0]), max(1, edges[-1])))
    caption = (
        "Right ones upwards, wrong ones (hatched) downwards, each on a scale of its own. The less the two "
        "lie over each other, the better a threshold tells them apart."
    )
    return to_chart(figure, "scores", "Scores of right and of wrong predictions", caption)


def _overall_curve(report: Report, kind: str, *keys: str) -> list[Float64Array] | None:
    """Return columns of the curve over all labels; None without one."""
    for curve in report.curves.get(kind, []):
        if curve.get("label") is None:
            return [np.array(curve.get(key, []), np.float64) for key in keys]
    return None


def evaluation_charts(report: Report) -> Iterator[Chart]:
    """Draw the charts that an evaluation has numbers for."""
    for chart in (
        precision_recall_chart(report),
        roc_chart(report),
        object_confusion_chart(report),
        pixel_confusion_chart(report),
        tide_chart(report),
        size_chart(report),
        reliability_chart(report),
        score_chart(report),
    ):
        if chart is not None:
            yield chart
    yield from slice_charts(report)
    yield from label_charts(report)

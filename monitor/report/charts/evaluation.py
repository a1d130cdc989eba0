"""Charts of an evaluation: bars of labels, sizes, slices and errors, curves, confusion matrices and calibration."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from quadriga.monitor.report.charts.drawing import (
    BELOW,
    LETTER,
    LINE,
    MARGIN,
    MAX_LETTERS,
    NARROW,
    UNIT,
    WIDE,
    Axes,
    Chart,
    draw_chart,
    row_axes,
    shape,
    text,
    ticks,
)
from quadriga.monitor.report.metric_texts import difference_rows, headlines, title
from quadriga.monitor.report.schema import TIME_SLICES, Comparison, Confusion, Metric, Report, Slice
from quadriga.quoting import one_line
from quadriga.tasks.arrays import Float64Array, Int64Array

_MAX_LABELS, _MAX_VALUES = 60, 30
_ROW = 15.1
"""Height of a row of a label."""
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
            charts.append(_label_chart(metrics, name))
    return charts


def _parameters_without_label(metric: Metric) -> dict[str, object]:
    return {key: value for key, value in metric.parameters.items() if key != "label"}


def _label_chart(metrics: list[Metric], heading: str) -> Chart:
    order = sorted(
        metrics,
        key=lambda metric: (metric.value is None, -(metric.value or 0), metric.parameters["label"]),
    )
    half = _MAX_LABELS // 2
    hidden_count = len(order) - _MAX_LABELS
    middle = half if hidden_count > 0 or len(order) <= half else (len(order) + 1) // 2
    panels = [panel for panel in (order[:middle], order[middle:][-half:]) if panel]
    width = NARROW if len(panels) == 1 else WIDE / 2
    drawn = []
    for number, panel in enumerate(panels):
        names = [one_line(metric.parameters["label"], MAX_LETTERS) for metric in panel]
        axes = row_axes(names, (0, 1.2), left=number * width, width=width, row=_ROW)
        _draw_bars(axes, panel, "s0")
        axes.name_x([(0, "0.0"), (0.5, "0.5"), (1, "1.0")])
        drawn.append(axes)
    caption = f"{one_line(title(metrics[0], of_label=False), 80)}, best first."
    if hidden_count > 0:
        caption += (
            f" The best and the worst {half}; the {hidden_count} between them are in the table."
        )
    size_wh = width * len(panels), drawn[0].bottom + BELOW
    return draw_chart(heading, caption, drawn, size_wh)


def _draw_bars(axes: Axes, metrics: Sequence[Metric], style: str) -> None:
    """Draw horizontal bars with intervals and values, from top to bottom."""
    for row, metric in enumerate(metrics):
        low, high = metric.ci95 or (None, None)
        axes.box(style, (0, metric.value or 0), (row + 0.33, row - 0.33))
        if low is not None and high is not None:
            axes.line("ink", [(low, row), (high, row)])
        x, y = axes.place(max(0, metric.value or 0, high or 0), row)
        words = "undefined" if metric.value is None else f"{metric.value:.3f}"
        axes.parts.append(text(x + 3, y + 2.5, words, "start", style="small"))


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
    axes = _dot_axes(sizes, [by_area[size] for size in sizes])
    caption = f"Small is below 32² pixels, large above 96². {_INTERVAL_NOTE}"
    return draw_chart("Average precision by size", caption, [axes])


def _dot_axes(
    names: Sequence[str],
    metrics: Sequence[Metric],
    x: tuple[float, float] | None = None,
    *,
    overall: float | None = None,
) -> Axes:
    """Return axes with the values as dots with their intervals, from top to bottom, between the numbers that they reach.

    A dashed line is the value of all images, if there is one.
    """
    if x is None:
        numbers = [number for metric in metrics for number in _numbers(metric)]
        numbers += [] if overall is None else [overall]
        numbers = numbers or [0.0, 1.0]
        room = 0.05 * (max(numbers) - min(numbers)) or 0.05
        x = min(numbers) - room, max(numbers) + room
    axes = row_axes(names, x)
    for tick, _ in ticks(*x):
        axes.line("thin", [(tick, -0.5), (tick, len(names) - 0.5)])
    axes.name_x(ticks(*x))
    for row, metric in enumerate(metrics):
        low, high = metric.ci95 or (None, None)
        if metric.value is None:
            y = axes.place(0, row)[1] + 2.5
            axes.parts.append(text(axes.left + 3, y, "undefined", "start", style="small"))
            continue
        if low is not None and high is not None:
            axes.line("span", [(low, row), (high, row)])
        axes.dot("s0", metric.value, row)
    if overall is not None:
        axes.line("ink dash", [(overall, -0.5), (overall, len(names) - 0.5)])
    return axes


def _numbers(metric: Metric) -> list[float]:
    """Return the value of a metric and the bounds of its interval, as far as they are known."""
    return [number for number in (metric.value, *(metric.ci95 or ())) if number is not None]


def slice_charts(report: Report) -> list[Chart]:
    """Draw the first headline of each slice."""
    by_key: dict[str, list[Slice]] = {}
    for slice_ in report.slices:
        if slice_.metrics:
            by_key.setdefault(slice_.by, []).append(slice_)
    return [_slice_chart(report, name, slices) for name, slices in by_key.items()]


def _slice_chart(report: Report, by: str, slices: list[Slice]) -> Chart:
    hidden_count = len(slices) - _MAX_VALUES
    slices = slices[:_MAX_VALUES]  # the most frequent ones come first
    if by in TIME_SLICES:
        slices = sorted(slices, key=lambda slice_: slice_.value or "")
    names = [f"{one_line(slice_.value, MAX_LETTERS)} (n = {slice_.n:,})" for slice_ in slices]
    name = one_line(f"{title(slices[0].metrics[0], short=True)} by {by}", 80)
    metrics = [slice_.metrics[0] for slice_ in slices]
    overall = headlines(report)[0].value if headlines(report) else None
    axes = _dot_axes(names, metrics, overall=overall)
    caption = f"The dashed line is the whole. {_INTERVAL_NOTE}"
    if hidden_count > 0:
        caption += f" {hidden_count} rarer values are left out."
    return draw_chart(name, caption, [axes])


def tide_chart(report: Report) -> Chart | None:
    """Draw the average precision lost to each kind of error."""
    costs = {name: report.errors_tide[name] for name in _TIDE_NAMES if name in report.errors_tide}
    if not costs:
        return None
    names = [f"{_TIDE_NAMES[name]} ({name})" for name in costs]
    high = max([value for value in costs.values() if value is not None], default=0)
    reach = 0.0, max(0.01, high) * 1.3
    axes = row_axes(names, reach)
    _draw_bars(axes, [Metric(name, value) for name, value in costs.items()], "wrong")
    false_rows = [row for row, name in enumerate(costs) if name.startswith("False")]
    if false_rows and false_rows[0]:
        axes.line("thin", [(x, false_rows[0] - 0.5) for x in reach])
    axes.name_x(ticks(*reach), "average precision lost")
    iou = report.parameters.get("tide", {}).get("iou", 0.5)
    caption = (
        f"Average precision at IoU {iou} that would be won if all errors of this one kind were mended (TIDE); "
        "the kinds do not add up."
    )
    return draw_chart("What the errors cost", caption, [axes])


def difference_chart(comparison: Comparison) -> Chart | None:
    """Draw the differences of the headlines between the report's model and another one."""
    rows = [
        (name, difference)
        for name, metric, difference in difference_rows(comparison)
        if difference is not None
        and abs(metric.value or 0) <= 1  # greater ones need a scale of their own
    ]
    if not rows or not comparison.n:
        return None
    numbers = [abs(number) for _, difference in rows for number in _numbers(difference)]
    reach = 1.05 * max(0.01, *numbers, 0.0)
    names = [one_line(name, 40) for name, _ in rows]
    axes = _dot_axes(names, [difference for _, difference in rows], (-reach, reach))
    axes.line("ink", [(0, -0.5), (0, len(rows) - 0.5)])
    axes.name_x([], "← less\u2003\u2003more →")
    name = f"This model less {one_line(f'{comparison.model.name} {comparison.model.version}')}"
    caption = "Where the bar of a 95 % interval does not reach the line in the middle, there is a difference."
    return draw_chart(name, caption, [axes])


_WORST_LABELS = 5
"""Number of labels drawn beside the mean, those with the smallest metric."""
_MAX_PANELS = 3
"""Maximum number of match thresholds with a panel."""
_CURVE_WH = 266.4, 230.0
"""Size of the room of a panel's curves, without their legend."""


class _Line(NamedTuple):
    label: str | None
    x: Float64Array
    y: Float64Array
    number: float
    """Metric of the curve; the area under it if the report has no metric."""


def precision_recall_chart(report: Report) -> Chart | None:
    """Draw precision over recall: the mean of all labels, and the worst labels."""
    caption = "The average precision stands beside each name."
    metrics = "AP", "AveragePrecision"
    drawn = _curve_panels(report, "pr", ("recall", "precision"), metrics)
    return _curve_chart("Precision over recall", caption, drawn)


def roc_chart(report: Report) -> Chart | None:
    """Draw the true positive rate over the false positive rate of labels."""
    keys = "false_positive_rate", "true_positive_rate"
    panels = _curve_panels(report, "roc", keys, ("ROCAUC",))
    for axes, _ in panels:
        axes.line("thin", [(0, 0), (1, 1)])
    caption = (
        "Each label against the rest; the area under each curve stands beside its name, and the "
        "thin diagonal is what guessing gives."
    )
    return _curve_chart("Receiver operating characteristic", caption, panels)


def _curve_panels(
    report: Report, kind: str, xy: tuple[str, str], metrics: tuple[str, ...]
) -> list[tuple[Axes, int]]:
    """Draw a panel for each match threshold of a kind of curves; return each with its number of defined curves."""
    panels: list[tuple[Axes, int]] = []
    all_curves = report.curves.get(kind, [])
    of_labels = [curve for curve in all_curves if curve.get("label") is not None]
    ious = dict.fromkeys(curve.get("iou") for curve in of_labels or all_curves)
    for iou in [*ious][:_MAX_PANELS]:
        curves = [curve for curve in all_curves if curve.get("iou") == iou]
        if lines := _lines(report, curves, xy, metrics):
            axes = _curve_axes(len(panels), xy, lines)
            middle = (axes.left + axes.right) / 2
            axes.parts += [] if iou is None else [text(middle, 12, f"IoU {iou}")]
            panels.append((axes, len(lines)))
    return panels


def _curve_chart(heading: str, caption: str, panels: list[tuple[Axes, int]]) -> Chart | None:
    """Return the chart of some panels; None without any."""
    if not panels:
        return None
    count = max(count for _, count in panels)
    caption += " "
    if count > _WORST_LABELS + 1:
        caption += f"Of the labels the {_WORST_LABELS} with the least are drawn."
    width, height = _CURVE_WH
    size_wh = width * len(panels), height + BELOW + LINE * min(count, _WORST_LABELS + 1)
    return draw_chart(heading, caption, [axes for axes, _ in panels], size_wh)


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


def _curve_axes(number: int, xy: tuple[str, str], lines: Sequence[_Line]) -> Axes:
    """Return the axes of a panel with the mean and the worst labels, and a legend below."""
    names = [key.replace("_", " ") for key in xy]
    width, height = _CURVE_WH
    frame = number * width + 40, 18.0, (number + 1) * width - MARGIN, height
    axes = Axes(frame, (0, 1.005), (0, 1.02))
    axes.name_x(UNIT, names[0], has_grid=True)
    axes.name_y(UNIT, has_grid=True)
    axes.parts.append(text(axes.left - 29, (axes.top + axes.bottom) / 2, names[1], is_upright=True))
    label_lines = [line for line in lines if line.label is not None][:_WORST_LABELS]
    mean = [line for line in lines if line.label is None]
    styled = [(f"l{at}", line) for at, line in enumerate(label_lines)]
    for row, (style, line) in enumerate([*styled, *(("mean", line) for line in mean)]):
        axes.line(style, zip(line.x.tolist(), line.y.tolist(), strict=True))
        y = axes.bottom + BELOW + LINE * row
        axes.parts.append(shape("M {:.1f} {:.1f} h 24", style, axes.left, y))
        label = "mean" if line.label is None else one_line(line.label, MAX_LETTERS)
        words = f"{line.number:.2f} {label}"
        axes.parts.append(text(axes.left + 30, y + 3, words, "start"))
    return axes


MAX_LABELS = 25
_MAX_NUMBERED = 13
"""Maximum number of rows with which the cells show counts."""
BACKGROUND_NAME = "nothing"


def _confusion_chart(confusion: Confusion | None, title: str) -> Chart | None:
    """Draw a confusion matrix, each row as shares of its true label; the background is the last row and column."""
    if confusion is None or not confusion.labels:
        return None
    counts = with_background(confusion)
    total = counts.sum(axis=1, keepdims=True)
    if not total.any():
        return None
    shown_labels = _labels_to_draw(counts)
    names = [*(one_line(label, 18) for label in confusion.labels), f"({BACKGROUND_NAME})"]
    shown = [names[at] for at in shown_labels]
    cells = np.ix_(shown_labels, shown_labels)
    axes = _cell_axes(counts[cells], (counts / np.maximum(total, 1))[cells], shown)
    room = LETTER * max(map(len, shown)) + 2 * LINE
    size_wh = axes.right + max(MARGIN, room / 2), axes.bottom + room
    return draw_chart(title, _caption(len(total) - 1, shown_labels), [axes], size_wh)


def _cell_axes(counts: Int64Array, shares: Float64Array, names: Sequence[str]) -> Axes:
    """Draw the cells of a confusion matrix."""
    size, room = len(counts), LETTER * max(map(len, names))
    left, cell = room + 2 * LINE, min(36.0, 364.0 / size)
    frame = left, 6.0, left + cell * size, 6.0 + cell * size
    axes = Axes(frame, (-0.5, size - 0.5), (size - 0.5, -0.5))
    axes.name_rows(names)
    for column, name in enumerate(names):
        x, y = axes.place(column, 0)[0] + 3, axes.bottom + 5
        axes.parts.append(text(x, y, name, "end", is_upright=True))
    middle = (axes.left + axes.right) / 2
    axes.parts.append(text(middle, axes.bottom + room + LINE + 6, "predicted"))
    axes.parts.append(text(MARGIN, (axes.top + axes.bottom) / 2, "truth", is_upright=True))
    for row, column in np.argwhere(counts > 0).tolist():
        share = float(shares[row, column])
        x, y = axes.place(column - 0.5, row - 0.5)
        style = "s0" if row == column else "s1"
        square, opacity = "M {0:.1f} {1:.1f} h {2:.1f} v {2:.1f} h -{2:.1f} Z", 0.08 + 0.92 * share
        axes.parts.append(shape(square, style, x, y, cell, opacity=f"{opacity:.2f}"))
        if size <= _MAX_NUMBERED:
            words = _short(int(counts[row, column]))
            style = "small on" if share > 0.5 else "small"
            axes.parts.append(text(x + cell / 2, y + cell / 2 + 2.5, words, style=style))
    for at in range(size + 1):
        axes.line("thin", [(-0.5, at - 0.5), (size - 0.5, at - 0.5)])
        axes.line("thin", [(at - 0.5, -0.5), (at - 0.5, size - 0.5)])
    return axes


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
    edges, count, accuracy, confidence = (column.tolist() for column in curve)
    reach = min(0.0, edges[0]), 1.0
    upper = Axes((46, 6, NARROW - MARGIN, 176), reach, (0, 1.02))
    upper.name_y(UNIT, "share that is right", has_grid=True)
    upper.name_x([])
    upper.line("ink dash", [(0, 0), (1, 1)])
    lower = Axes((46, 190, NARROW - MARGIN, 246), reach, (0, 1.05 * max(count)))
    lower.name_y(ticks(0, max(count))[::2], "predictions")
    lower.name_x(UNIT, "score")
    for start, end, n, right, score in zip(
        edges, edges[1:], count, accuracy, confidence, strict=False
    ):
        lower.box("faint", (start, end), (0, n))
        if not math.isnan(right):
            upper.box("s0 light", (start, end), (0, right))
        if not math.isnan(right + score):
            upper.line("gap", [(score, score), (score, right)])
            upper.dot("s0", score, right, 2)
    caption = (
        "Bars: of the predictions with such a score, how many are right. Honest scores lie on the dashed "
        "line; the gap to it is drawn from each dot. Below: how many predictions there are."
    )
    return draw_chart("Are the scores honest?", caption, [upper, lower])


def score_chart(report: Report) -> Chart | None:
    """Draw histograms of the scores of correct and incorrect predictions."""
    curve = _overall_curve(report, "scores", "edges", "right", "wrong")
    if curve is None or not sum(np.nansum(histogram) for histogram in curve[1:]):
        return None
    edges, *histograms = (column.tolist() for column in curve)
    reach = min(0.0, edges[0]), max(1.0, edges[-1])
    panels = []
    for name, histogram, top in (("right", histograms[0], 6.0), ("wrong", histograms[1], 126.0)):
        high = max(1.0, max(filter(math.isfinite, histogram), default=0.0) * 1.05)
        heights = (0.0, high) if name == "right" else (high, 0.0)
        axes = Axes((46, top, NARROW - MARGIN, top + 116), reach, heights)
        axes.name_y(ticks(0, high), f"{name} predictions", has_grid=True)
        for start, end, n in zip(edges, edges[1:], histogram, strict=False):
            if n > 0:
                axes.box(name, (start, end), (0, n))
        panels.append(axes)
    panels[1].name_x(ticks(*reach), "score")
    caption = (
        "Right ones upwards, wrong ones downwards, each on a scale of its own. The less the two "
        "lie over each other, the better a threshold tells them apart."
    )
    title = "Scores of right and of wrong predictions"
    return draw_chart(title, caption, panels)


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
        _confusion_chart(report.confusion, "What is taken for what"),
        _confusion_chart(report.confusion_pixels, "What is taken for what, by pixels"),
        tide_chart(report),
        size_chart(report),
        reliability_chart(report),
        score_chart(report),
    ):
        if chart is not None:
            yield chart
    yield from slice_charts(report)
    yield from label_charts(report)

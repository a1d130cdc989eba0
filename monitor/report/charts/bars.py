"""Bar and dot charts of metrics: by label, by size, by slice, by kind of error, and between two models."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from quadriga.monitor.report.charts import Chart
from quadriga.monitor.report.charts.drawing import (
    FAINT,
    INK,
    NARROW,
    SERIES,
    WIDE,
    WRONG,
    draw_interval,
    new_figure,
    set_row_names,
    shorten_text,
    single_axes,
    to_chart,
)
from quadriga.monitor.report.metric_texts import difference_rows, headlines, one_line, title
from quadriga.monitor.report.schema import TIME_SLICES, Comparison, Metric, Report, Slice

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

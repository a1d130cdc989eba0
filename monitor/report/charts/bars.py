"""Numbers side by side: by label, by size, by slice, by kind of error, and one model less another."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from quadriga.monitor.report.charts.drawing import (
    FAINT,
    INK,
    NARROW,
    SERIES,
    WIDE,
    WRONG,
    Chart,
    draw_interval,
    new_figure,
    set_row_names,
    shorten_text,
    single_axes,
    to_chart,
)
from quadriga.monitor.report.metric_texts import difference_rows, headlines, one_line, title
from quadriga.monitor.report.schema import TIME_SLICES, Comparison, Metric, Report, Slice

_MOST_LABELS, _MOST_VALUES = 60, 30
_ROW = 0.21
"""Inches of a bar."""

_INTERVAL = "Bars: 95 % intervals of a bootstrap over images."
_SIZES = ("small", "medium", "large")

_BY_LABEL = (
    ("AP", "Average precision by label"),
    ("IOU", "IoU by label"),
    ("F1", "F1 by label"),
    ("AveragePrecision", "Average precision by label"),
)
"""Pictured where they are there; F1 where no average precision of objects is."""

_TIDE = {
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
    """Draw how good each label is, best first."""
    found: list[Chart] = []
    of_labels = [one for one in report.metrics if isinstance(one.parameters.get("label"), str)]
    for kind, name in _BY_LABEL:
        metrics = [one for one in of_labels if one.type == kind]
        # Of several rules and thresholds the first stands for all; the table has the rest.
        metrics = [one for one in metrics if _rest(one) == _rest(metrics[0])]
        if metrics and not (kind in {"F1", "AveragePrecision"} and found):
            found.append(_by_label(metrics, f"by-label-{kind.lower()}", name))
    return found


def _rest(metric: Metric) -> dict[str, object]:
    return {key: value for key, value in metric.parameters.items() if key != "label"}


def _by_label(metrics: list[Metric], name: str, heading: str) -> Chart:
    order = sorted(metrics, key=lambda one: one.parameters["label"])
    order.sort(key=lambda one: (one.value is None, -(one.value or 0)))
    half = _MOST_LABELS // 2
    left_out = len(order) - _MOST_LABELS
    middle = half if left_out > 0 or len(order) <= half else (len(order) + 1) // 2
    parts = [part for part in (order[:middle], order[middle:][-half:]) if part]
    most = max(len(part) for part in parts)
    sheet = new_figure(0.7 + _ROW * most, WIDE if len(parts) > 1 else NARROW)
    for axes, part in zip(sheet.subplots(1, len(parts), squeeze=False)[0], parts, strict=True):
        _bars(axes, [shorten_text(one.parameters["label"]) for one in part], part)
        axes.set_xticks((0, 0.5, 1))
        axes.set(xlim=(0, 1.2), ylim=(most - 0.4, -0.6))
    caption = f"{one_line(title(metrics[0], of_label=False), 80)}, best first."
    if left_out > 0:
        caption += f" The best and the worst {half}; the {left_out} between them are in the table."
    return to_chart(sheet, name, heading, caption)


def _bars(axes: Axes, names: list[str], metrics: Sequence[Metric], color: str = SERIES[0]) -> None:
    """Draw lying bars with their intervals and numbers, from above."""
    axes.barh(np.arange(len(names)), [one.value or 0 for one in metrics], height=0.66, color=color)
    for at, one in enumerate(metrics):
        low, high = one.ci95 or (None, None)
        if low is not None and high is not None:
            axes.plot((low, high), (at, at), color=INK, linewidth=1)
        end = max(0, one.value or 0, high or 0)
        text = "undefined" if one.value is None else f"{one.value:.3f}"
        axes.annotate(text, (end, at), (3, 0), textcoords="offset points", va="center", fontsize=7)
    set_row_names(axes, names)
    axes.locator_params(axis="x", nbins=4)


def size_chart(report: Report) -> Chart | None:
    """Draw average precision by the size of what is to be found."""
    found = {}
    for one in report.metrics:
        area, label, iou = (one.parameters.get(key) for key in ("area", "label", "iou"))
        if one.type == "AP" and area is not None and label is None and iou == "0.50:0.95":
            found[area] = one
    sizes = [size for size in ("all", *_SIZES) if size in found]
    if not any(size in found for size in _SIZES):
        return None
    sheet, axes = single_axes(0.8 + 0.3 * len(sizes))
    _dots(axes, sizes, [found[size] for size in sizes])
    caption = f"Small is below 32² pixels, large above 96². {_INTERVAL}"
    return to_chart(sheet, "by-size", "Average precision by size", caption)


def _dots(axes: Axes, names: list[str], metrics: list[Metric]) -> None:
    """Draw numbers with their intervals, from above."""
    for at, metric in enumerate(metrics):
        draw_interval(axes, metric, at, color=SERIES[0])
    set_row_names(axes, names)
    axes.grid(visible=True, axis="x")


def slice_charts(report: Report) -> list[Chart]:
    """Draw the first headline over each part of the images."""
    by: dict[str, list[Slice]] = {}
    for one in report.slices:
        if one.metrics:
            by.setdefault(one.by, []).append(one)
    return [_by_slice(report, name, parts, at) for at, (name, parts) in enumerate(by.items())]


def _by_slice(report: Report, by: str, parts: list[Slice], number: int) -> Chart:
    left_out = len(parts) - _MOST_VALUES
    parts = parts[:_MOST_VALUES]  # the most frequent ones come first
    if by in TIME_SLICES:
        parts = sorted(parts, key=lambda one: one.value or "")
    sheet, axes = single_axes(0.8 + 0.26 * len(parts))
    names = [f"{shorten_text(one.value)} (n = {one.n:,})" for one in parts]
    name = one_line(f"{title(parts[0].metrics[0], short=True)} by {by}", 80)
    whole = headlines(report)[0].value if headlines(report) else None
    if whole is not None:
        axes.axvline(whole, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
    _dots(axes, names, [one.metrics[0] for one in parts])
    caption = f"The dashed line is the whole. {_INTERVAL}"
    if left_out > 0:
        caption += f" {left_out} rarer values are left out."
    return to_chart(sheet, f"slice-{number}", name, caption)


def tide_chart(report: Report) -> Chart | None:
    """Draw what each kind of error costs."""
    found = {name: report.errors_tide[name] for name in _TIDE if name in report.errors_tide}
    if not found:
        return None
    sheet, axes = single_axes(0.8 + 0.3 * len(found))
    names = [f"{_TIDE[name]} ({name})" for name in found]
    _bars(axes, names, [Metric(name, value) for name, value in found.items()], WRONG)
    at = [place for place, name in enumerate(found) if name.startswith("False")]
    if at and at[0]:
        axes.axhline(at[0] - 0.5, color=FAINT, linewidth=0.8)
    high = max([value for value in found.values() if value is not None], default=0)
    axes.set(xlim=(0, max(0.01, high) * 1.25), xlabel="average precision lost")
    caption = (
        "Average precision at IoU 0.5 that would be won if all errors of this one kind were mended (TIDE); "
        "the kinds do not add up."
    )
    return to_chart(sheet, "tide", "What the errors cost", caption)


def difference_chart(other: Comparison, number: int) -> Chart | None:
    """Draw by how much the model is better than another one."""
    rows = [
        (name, its)
        for name, one, its in difference_rows(other)
        if its is not None and abs(one.value or 0) <= 1  # greater ones need a scale of their own
    ]
    if not rows or not other.n:
        return None
    sheet, axes = single_axes(0.8 + 0.28 * len(rows))
    axes.axvline(0, color=INK, linewidth=0.9)
    _dots(axes, [shorten_text(name, 40) for name, _ in rows], [its for _, its in rows])
    reach = max(0.01, *(abs(value) for value in axes.get_xlim()))
    axes.locator_params(axis="x", nbins=5)
    axes.set(xlim=(-reach, reach), xlabel="← less\u2003\u2003more →")
    name = f"This model less {one_line(f'{other.model.name} {other.model.version}')}"
    caption = "Where the bar of a 95 % interval does not reach the line in the middle, there is a difference."
    return to_chart(sheet, f"difference-{number}", name, caption)

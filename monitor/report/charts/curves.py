"""Precision-recall and ROC curves."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from quadriga.monitor.report.charts import Chart
from quadriga.monitor.report.charts.drawing import (
    FAINT,
    INK,
    LINE_STYLES,
    new_figure,
    set_unit_square,
    shorten_text,
    to_chart,
)
from quadriga.monitor.report.schema import Report
from quadriga.tasks.arrays import Float64Array

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
    for curve_axes, name_axes, (title, lines) in zip(*rows, panels, strict=True):
        _draw(curve_axes, name_axes, lines)
        curve_axes.set_title(title)
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

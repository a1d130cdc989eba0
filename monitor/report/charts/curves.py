"""Lines from threshold to threshold: precision over recall, and right over wrong alarms."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from quadriga.monitor.report.charts.drawing import (
    FAINT,
    INK,
    LINE_STYLES,
    Chart,
    new_figure,
    set_unit_square,
    shorten_text,
    to_chart,
)
from quadriga.monitor.report.schema import Report
from quadriga.tasks.arrays import Float64Array

_WORST = 5
"""Labels drawn beside the mean."""

_IOUS = (0.5, 0.75)

_HEIGHTS = (3.2, 1.2)
"""Inches of curves and of their names."""


class _Line(NamedTuple):
    label: str | None
    x: Float64Array
    y: Float64Array
    number: float
    """Its metric; where the report has none, the area under the curve."""


def precision_recall_chart(report: Report) -> Chart | None:
    """Draw precision over recall: of all labels together, and of those that are found worst."""
    panels = []
    for iou in (*_IOUS, None):
        of = [one for one in report.curves.get("pr", []) if one.get("iou") == iou]
        found = _lines(report, of, ("recall", "precision"), ("AP", "AveragePrecision"))
        if found:
            panels.append(("" if iou is None else f"IoU {iou}", found))
    if not panels:
        return None
    sheet = _sheet(len(panels))
    rows = sheet.subplots(2, len(panels), squeeze=False, height_ratios=_HEIGHTS)
    for above, below, (title, found) in zip(*rows, panels, strict=True):
        _draw(above, below, found)
        above.set_title(title)
        set_unit_square(above, "recall", "precision")
    most = max(len(found) for _, found in panels)
    caption = f"The average precision stands beside each name. {_which(most)}"
    return to_chart(sheet, "pr", "Precision over recall", caption)


def roc_chart(report: Report) -> Chart | None:
    """Draw the share of a label's images that are found over the share of others taken for it."""
    axes_of = "false_positive_rate", "true_positive_rate"
    found = _lines(report, report.curves.get("roc", []), axes_of, ("ROCAUC",))
    if not found:
        return None
    sheet = _sheet(1)
    axes, below = sheet.subplots(2, 1, height_ratios=_HEIGHTS)
    axes.plot((0, 1), (0, 1), color=FAINT, linewidth=0.8)
    _draw(axes, below, found)
    set_unit_square(axes, "false positive rate", "true positive rate")
    caption = (
        "Each label against the rest; the area under each curve stands beside its name, and the "
        f"thin diagonal is what guessing gives. {_which(len(found))}"
    )
    return to_chart(sheet, "roc", "Receiver operating characteristic", caption)


def _sheet(panels: int) -> Figure:
    return new_figure(sum(_HEIGHTS) + 0.5, 3.7 * panels)


def _lines(
    report: Report, curves: Sequence[dict[str, Any]], xy: tuple[str, str], metrics: tuple[str, ...]
) -> list[_Line]:
    """Read curves that are defined: the mean first, then by their metric, rising."""
    found = []
    for curve in curves:
        x, y = (np.array(curve.get(key, []), np.float64) for key in xy)
        known = np.isfinite(x) & np.isfinite(y)
        if known.any():
            order = np.argsort(x[known], kind="stable")
            x, y = x[known][order], y[known][order]
            number = _number(report, metrics, curve)
            number = float(np.trapezoid(y, x)) if number is None else number
            found.append(_Line(curve.get("label"), x, y, number))
    return sorted(found, key=lambda line: (line.label is not None, line.number, line.label or ""))


def _number(report: Report, kinds: tuple[str, ...], curve: dict[str, Any]) -> float | None:
    """Return the metric that a curve belongs to."""
    of = {key: curve.get(key) for key in ("label", "iou")}
    usual = {"area": "all", "average": "macro", "rule": "COCO"}
    for one in report.metrics:
        given = {"label": None, "iou": None, **usual} | one.parameters
        if one.type in kinds and given | of | usual == given:
            return one.value
    return None


def _draw(axes: Axes, below: Axes, found: Sequence[_Line]) -> None:
    """Draw the mean and the worst labels, with their names below."""
    of_labels = [line for line in found if line.label is not None][:_WORST]
    for line, style in zip(of_labels, LINE_STYLES, strict=False):
        axes.plot(line.x, line.y, label=f"{line.number:.2f} {shorten_text(line.label)}", **style)
    for line in found:
        if line.label is None:
            axes.plot(line.x, line.y, color=INK, linewidth=2.2, label=f"{line.number:.2f} mean")
    below.axis("off")
    below.legend(*axes.get_legend_handles_labels(), loc="upper center", handlelength=2.8)


def _which(count: int) -> str:
    return f"Of the labels the {_WORST} with the least are drawn." if count > _WORST + 1 else ""

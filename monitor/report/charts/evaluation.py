"""Charts of an evaluation: curves, what errors cost, and calibration."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from markupsafe import Markup

from quadriga.monitor.report.charts.drawing import (
    BELOW,
    LINE,
    MARGIN,
    MAX_LETTERS,
    NARROW,
    UNIT,
    Axes,
    Chart,
    draw_chart,
    row_axes,
    shape,
    text,
    ticks,
)
from quadriga.monitor.report.schema import Report
from quadriga.quoting import one_line
from quadriga.tasks.arrays import Float64Array

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


def tide_chart(report: Report) -> Chart | None:
    """Draw the average precision lost to each kind of error."""
    costs = {name: report.errors_tide[name] for name in _TIDE_NAMES if name in report.errors_tide}
    if not costs:
        return None
    names = [f"{_TIDE_NAMES[name]} ({name})" for name in costs]
    high = max([value for value in costs.values() if value is not None], default=0)
    reach = 0.0, max(0.01, high) * 1.3
    axes = row_axes(names, reach)
    for row, value in enumerate(costs.values()):
        axes.box("wrong", (0, value or 0), (row + 0.33, row - 0.33))
        x, y = axes.place(max(0, value or 0), row)
        words = "undefined" if value is None else f"{value:.3f}"
        axes.parts.append(text(x + 3, y + 2.5, words, "start", style="small"))
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


_WORST_LABELS = 4
"""Number of labels drawn beside the mean, those with the smallest metric."""
_MAX_PANELS = 3
"""Maximum number of match thresholds with a panel."""
_CURVE_WH = 266.4, 230.0
"""Size of the room of a panel's curves, without their legend."""


FIRST_SCORE = 0.5
"""Score of which a page tells recall and precision, until its reader moves it."""


class _Line(NamedTuple):
    label: str | None
    x: Float64Array
    y: Float64Array
    scores: Float64Array
    """Lowest score that counts at each point; NaN where it is not known."""
    number: float
    """Metric of the curve; the area under it if the report has no metric."""

    @property
    def name(self) -> str:
        return "mean" if self.label is None else one_line(self.label, MAX_LETTERS)


class _Panel(NamedTuple):
    iou: float | None
    axes: Axes
    drawn: list[tuple[str, _Line]]
    """Lines with the classes of their styles, after `l` and `f`."""
    defined: int
    """Number of defined curves."""


class CurvePoint(msgspec.Struct, frozen=True, array_like=True):
    """A point of a curve with the lowest score that counts there, and its place in the chart."""

    recall: float
    precision: float
    score: float
    x: float
    y: float


class CurveRow(msgspec.Struct, frozen=True):
    """Recall and precision of a label at a score."""

    name: str
    style: str
    """Class of its line in the chart, after `l`."""
    points: list[CurvePoint]
    chosen: CurvePoint | None
    """The point of `FIRST_SCORE`; None if no prediction has so much."""

    @property
    def json(self) -> str:
        """The points, for the script that moves the score."""
        return msgspec.json.encode(self.points).decode()


class ScoreCurves(msgspec.Struct, frozen=True):
    """Precision over recall, with the points of a score on the first panel."""

    chart: Chart
    iou: float | None
    """Match threshold of the first panel."""
    rows: list[CurveRow]


def score_curves(report: Report) -> ScoreCurves | None:
    """Draw precision over recall: the mean of all labels, which has no score of its own, and the worst labels."""
    caption = "The average precision stands beside each name."
    metrics = "AP", "AveragePrecision"
    panels = _curve_panels(report, "pr", ("recall", "precision"), metrics)
    if not panels:
        return None
    of_labels = [(style, line) for style, line in panels[0].drawn if line.label is not None]
    rows = [_curve_row(panels[0].axes, style, line) for style, line in of_labels]
    return ScoreCurves(_curve_chart("Precision over recall", caption, panels), panels[0].iou, rows)


def _curve_row(axes: Axes, style: str, line: _Line) -> CurveRow:
    """Return the row of a line, and draw a dot where it has `FIRST_SCORE`."""
    points = [
        CurvePoint(*(round(number, 4) for number in point), *(round(at, 1) for at in axes.place(*point[:2])))
        for point in zip(line.x.tolist(), line.y.tolist(), line.scores.tolist(), strict=True)
        if not math.isnan(point[2])
    ]  # fmt: skip
    reached = [point for point in points if point.score >= FIRST_SCORE]
    chosen = max(reached, key=lambda point: point.recall, default=None)
    dot = Markup('<circle class="f{}" data-dot="" cx="{}" cy="{}" r="{}"/>')
    place = (0, 0, 0) if chosen is None else (chosen.x, chosen.y, 4)
    axes.parts.append(dot.format(style, *place))
    return CurveRow(line.name, style, points, chosen)


def roc_chart(report: Report) -> Chart | None:
    """Draw the true positive rate over the false positive rate of labels."""
    keys = "false_positive_rate", "true_positive_rate"
    panels = _curve_panels(report, "roc", keys, ("ROCAUC",))
    if not panels:
        return None
    for panel in panels:
        panel.axes.line("thin", [(0, 0), (1, 1)])
    caption = (
        "Each label against the rest; the area under each curve stands beside its name, and the "
        "thin diagonal is what guessing gives."
    )
    return _curve_chart("Receiver operating characteristic", caption, panels)


def _curve_panels(
    report: Report, kind: str, xy: tuple[str, str], metrics: tuple[str, ...]
) -> list[_Panel]:
    """Draw a panel for each match threshold of a kind of curves."""
    panels: list[_Panel] = []
    all_curves = report.curves.get(kind, [])
    of_labels = [curve for curve in all_curves if curve.get("label") is not None]
    ious = dict.fromkeys(curve.get("iou") for curve in of_labels or all_curves)
    for iou in [*ious][:_MAX_PANELS]:
        curves = [curve for curve in all_curves if curve.get("iou") == iou]
        if lines := _lines(report, curves, xy, metrics):
            label_lines = [line for line in lines if line.label is not None][:_WORST_LABELS]
            drawn = [(str(at), line) for at, line in enumerate(label_lines, 1)]
            drawn += [("r", line) for line in lines if line.label is None]
            axes = _curve_axes(len(panels), xy, drawn)
            middle = (axes.left + axes.right) / 2
            axes.parts += [] if iou is None else [text(middle, 12, f"IoU {iou}")]
            panels.append(_Panel(iou, axes, drawn, len(lines)))
    return panels


def _curve_chart(heading: str, caption: str, panels: list[_Panel]) -> Chart:
    """Return the chart of some panels."""
    if max(panel.defined for panel in panels) > _WORST_LABELS + 1:
        caption += f" Of the labels the {_WORST_LABELS} with the least are drawn."
    width, height = _CURVE_WH
    rows = max(len(panel.drawn) for panel in panels)
    size_wh = width * len(panels), height + BELOW + LINE * rows
    return draw_chart(heading, caption, [panel.axes for panel in panels], size_wh)


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
            scores = np.array(curve.get("score", []), np.float64)
            known = scores if len(scores) == len(is_defined) else np.full(len(is_defined), np.nan)
            lines.append(_Line(curve.get("label"), x, y, known[is_defined][order], number))
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


def _curve_axes(number: int, xy: tuple[str, str], drawn: Sequence[tuple[str, _Line]]) -> Axes:
    """Return the axes of a panel with its lines, and a legend below."""
    names = [key.replace("_", " ") for key in xy]
    width, height = _CURVE_WH
    frame = number * width + 40, 18.0, (number + 1) * width - MARGIN, height
    axes = Axes(frame, (0, 1.005), (0, 1.02))
    axes.name_x(UNIT, names[0], has_grid=True)
    axes.name_y(UNIT, has_grid=True)
    axes.parts.append(text(axes.left - 29, (axes.top + axes.bottom) / 2, names[1], is_upright=True))
    for row, (style, line) in enumerate(drawn):
        axes.line(f"l{style}", zip(line.x.tolist(), line.y.tolist(), strict=True))
        y = axes.bottom + BELOW + LINE * row
        axes.parts.append(shape("M {:.1f} {:.1f} h 24", f"l{style}", axes.left, y))
        axes.parts.append(text(axes.left + 30, y + 3, f"{line.number:.2f} {line.name}", "start"))
    return axes


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
            upper.box("f1 light", (start, end), (0, right))
        if not math.isnan(right + score):
            upper.line("gap", [(score, score), (score, right)])
            upper.dot("f1", score, right, 2)
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


def evaluation_charts(report: Report) -> list[Chart]:
    """Draw the charts that an evaluation has numbers for, besides `score_curves`."""
    charts = roc_chart(report), tide_chart(report), reliability_chart(report), score_chart(report)
    return [chart for chart in charts if chart is not None]

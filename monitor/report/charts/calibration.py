"""Charts about scores: the reliability diagram, and the scores of correct and incorrect predictions."""

import numpy as np

from quadriga.monitor.report.charts import Chart
from quadriga.monitor.report.charts.drawing import (
    FAINT,
    INK,
    NARROW,
    SERIES,
    TRUTH,
    WRONG,
    new_figure,
    to_chart,
)
from quadriga.monitor.report.schema import Report
from quadriga.tasks.arrays import Float64Array


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

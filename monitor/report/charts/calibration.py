"""What scores are worth: how often they are right, and which right and wrong answers have."""

import numpy as np

from quadriga.monitor.report.charts.drawing import (
    FAINT,
    INK,
    NARROW,
    SERIES,
    TRUTH,
    WRONG,
    Chart,
    new_figure,
    to_chart,
)
from quadriga.monitor.report.schema import Report
from quadriga.tasks.arrays import Float64Array


def reliability_chart(report: Report) -> Chart | None:
    """Draw how often predictions of a score are right, over how many there are."""
    curve = _whole(report, "reliability", "edges", "count", "accuracy", "confidence")
    if curve is None or not np.nansum(curve[1]):
        return None
    edges, count, accuracy, confidence = curve
    sheet = new_figure(4.4, NARROW)
    above, below = sheet.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    above.plot((0, 1), (0, 1), color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    above.bar(edges[:-1], accuracy, np.diff(edges), align="edge", color=SERIES[0], alpha=0.35)
    above.vlines(confidence, confidence, accuracy, color=WRONG, linewidth=1.6)
    above.plot(confidence, accuracy, "o", color=SERIES[0], markersize=4)
    above.set(ylim=(0, 1.02), ylabel="share that is right")
    below.bar(
        edges[:-1], count, np.diff(edges), align="edge", color=FAINT, edgecolor=INK, linewidth=0.4
    )
    below.set(xlim=(min(0, edges[0]), 1), xlabel="score", ylabel="predictions")
    above.grid(visible=True)
    caption = (
        "Bars: of the predictions with such a score, how many are right. Honest scores lie on the dashed "
        "line; the gap to it is drawn from each dot. Below: how many predictions there are."
    )
    return to_chart(sheet, "reliability", "Are the scores honest?", caption)


def score_chart(report: Report) -> Chart | None:
    """Draw which scores right and wrong predictions have."""
    curve = _whole(report, "scores", "edges", "right", "wrong")
    if curve is None or not sum(np.nansum(side) for side in curve[1:]):
        return None
    edges, *sides = curve
    sheet = new_figure(4.4, NARROW)
    panels = sheet.subplots(2, 1, sharex=True)
    looks = ("right", {"color": TRUTH}), ("wrong", {"color": WRONG, "hatch": "////"})
    for axes, side, (name, look) in zip(panels, sides, looks, strict=True):
        axes.bar(edges[:-1], side, np.diff(edges), align="edge", **look)
        high = max(1.0, float(np.nanmax(side, initial=0)) * 1.05)
        axes.set(ylabel=f"{name} predictions", ylim=(0, high))
        axes.grid(visible=True, axis="y")
    panels[1].invert_yaxis()
    panels[1].set(xlabel="score", xlim=(min(0, edges[0]), max(1, edges[-1])))
    caption = (
        "Right ones upwards, wrong ones (hatched) downwards, each on a scale of its own. The less the two "
        "lie over each other, the better a threshold tells them apart."
    )
    return to_chart(sheet, "scores", "Scores of right and of wrong predictions", caption)


def _whole(report: Report, kind: str, *keys: str) -> list[Float64Array] | None:
    """Return these columns of the curve over all labels."""
    for curve in report.curves.get(kind, []):
        if curve.get("label") is None:
            return [np.array(curve.get(key, []), np.float64) for key in keys]
    return None

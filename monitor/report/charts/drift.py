"""Signals of a drift report: baseline beside current."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from quadriga.monitor.report.charts.drawing import (
    INK,
    SERIES,
    Chart,
    set_row_names,
    shorten_text,
    single_axes,
    to_chart,
)
from quadriga.monitor.report.metric_texts import format_brief, one_line
from quadriga.monitor.report.schema import Report, Signal, sorted_by_effect
from quadriga.tasks.arrays import Float64Array

MAX_SIGNALS = 24
_MOST_LABELS = 16
_BASELINE: dict[str, Any] = {"edgecolor": INK, "facecolor": "none", "linewidth": 1.2}
_CURRENT: dict[str, Any] = {"facecolor": SERIES[1], "alpha": 0.6, "linewidth": 0}


def signal_charts(report: Report) -> list[Chart]:
    """Draw the values of each signal on both sides: those with an alarm first, and not too many."""
    pairs = ((one, _shares(one)) for one in sorted_by_effect(report.signals))
    drawn = [(one, shares) for one, shares in pairs if shares is not None][:MAX_SIGNALS]
    return [_picture(*pair, at) for at, pair in enumerate(drawn)]


def _shares(one: Signal) -> Float64Array | None:
    """Return shares (2, C) of each side; None where a side has no values."""
    counts = np.array([one.histogram.baseline, one.histogram.current], np.float64)
    totals = counts.sum(axis=1, keepdims=True)
    return counts / totals if counts.size and totals.all() else None


def _picture(one: Signal, shares: Float64Array, number: int) -> Chart:
    caption = (
        f"Effect {format_brief(one.effect.value)}; the smallest that matters: {format_brief(one.effect.minimum)}."
        " The outline is the baseline, the filled bars are current."
    )
    if one.kind == "categorical":
        labels = [str(label) for label in one.histogram.edges]
        kept = np.argsort(-shares.max(axis=0), kind="stable")[:_MOST_LABELS]
        sheet, axes = single_axes(1.0 + 0.26 * len(kept))
        new = set(one.new_labels)
        names = [shorten_text(labels[at]) + (" (new)" if labels[at] in new else "") for at in kept]
        _bars(axes, names, shares[:, kept])
        if len(labels) > len(kept):
            caption += f" {len(labels) - len(kept):,} rarer labels are left out."
    else:
        sheet, axes = single_axes(2.4)
        _steps(axes, np.array([float(edge) for edge in one.histogram.edges]), shares)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    title = one_line(one.name) + (" (alarm)" if one.alarm else "")
    return to_chart(sheet, f"signal-{number}", title, caption)


def _steps(axes: Axes, edges: Float64Array, shares: Float64Array) -> None:
    """Draw histograms over each other."""
    axes.stairs(shares[1] * 100, edges, fill=True, label="current", **_CURRENT)
    axes.stairs(shares[0] * 100, edges, label="baseline", color=INK, linewidth=1.2)
    axes.set(xlim=(edges[0], edges[-1]), ylabel="% of values")
    axes.set_ylim(bottom=0)
    axes.locator_params(axis="x", nbins=6)


def _bars(axes: Axes, names: list[str], shares: Float64Array) -> None:
    """Draw a pair of lying bars for each label, from above."""
    places = np.arange(len(names))
    axes.barh(places - 0.2, shares[0] * 100, 0.36, label="baseline", **_BASELINE)
    axes.barh(places + 0.2, shares[1] * 100, 0.36, label="current", **_CURRENT)
    set_row_names(axes, names)
    axes.set_xlabel("% of values")

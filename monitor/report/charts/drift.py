"""Distributions of the signals of a drift report: baseline beside current."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from quadriga.monitor.report.change_texts import signal_title
from quadriga.monitor.report.charts.drawing import (
    INK,
    SERIES,
    Chart,
    set_row_names,
    shorten_text,
    single_axes,
    to_chart,
)
from quadriga.monitor.report.metric_texts import format_brief
from quadriga.monitor.report.schema import Report, Signal, sorted_by_effect
from quadriga.tasks.arrays import Float64Array

MAX_SIGNALS = 24
_MAX_LABELS = 16
_BASELINE: dict[str, Any] = {"edgecolor": INK, "facecolor": "none", "linewidth": 1.2}
_CURRENT: dict[str, Any] = {"facecolor": SERIES[1], "alpha": 0.6, "linewidth": 0}


def signal_charts(report: Report) -> list[Chart]:
    """Draw the values on both sides of the signals with an alarm, up to `MAX_SIGNALS`."""
    alarms = [signal for signal in sorted_by_effect(report.signals) if signal.alarm]
    return _charts(report, alarms, "signal")


def quiet_charts(report: Report) -> list[Chart]:
    """Draw the values of signals without an alarm that are not constant, up to `MAX_SIGNALS`."""
    return _charts(
        report,
        [
            signal
            for signal in sorted_by_effect(report.signals)
            if not signal.alarm and len(signal.histogram.baseline) > 1
        ],
        "quiet",
    )


def _charts(report: Report, signals: list[Signal], prefix: str) -> list[Chart]:
    pairs = ((signal, _shares(signal)) for signal in signals)
    selected = [(signal, shares) for signal, shares in pairs if shares is not None][:MAX_SIGNALS]
    return [
        _signal_chart(signal, shares, f"{prefix}-{index}", signal_title(signal.name, report))
        for index, (signal, shares) in enumerate(selected)
    ]


def _shares(signal: Signal) -> Float64Array | None:
    """Return the shares (2, C) of baseline and current; None if a side has no values."""
    counts = np.array([signal.histogram.baseline, signal.histogram.current], np.float64)
    totals = counts.sum(axis=1, keepdims=True)
    return counts / totals if counts.size and totals.all() else None


def _signal_chart(signal: Signal, shares: Float64Array, name: str, title: str) -> Chart:
    caption = (
        f"Effect {format_brief(signal.effect.value)}; the smallest that matters: {format_brief(signal.effect.minimum)}."
        " The outline is the baseline, the filled bars are current."
    )
    if signal.kind == "categorical":
        labels = [str(label) for label in signal.histogram.edges]
        shown_labels = np.argsort(-shares.max(axis=0), kind="stable")[:_MAX_LABELS]
        figure, axes = single_axes(1.0 + 0.26 * len(shown_labels))
        new_labels = set(signal.new_labels)
        names = [
            shorten_text(labels[index]) + (" (new)" if labels[index] in new_labels else "")
            for index in shown_labels
        ]
        _bars(axes, names, shares[:, shown_labels])
        if len(labels) > len(shown_labels):
            caption += f" {len(labels) - len(shown_labels):,} rarer labels are left out."
    else:
        figure, axes = single_axes(2.4)
        _steps(axes, np.array([float(edge) for edge in signal.histogram.edges]), shares)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    return to_chart(figure, name, title + (" (alarm)" if signal.alarm else ""), caption)


def _steps(axes: Axes, edges: Float64Array, shares: Float64Array) -> None:
    """Draw two histograms over each other."""
    axes.stairs(shares[1] * 100, edges, fill=True, label="current", **_CURRENT)
    axes.stairs(shares[0] * 100, edges, label="baseline", color=INK, linewidth=1.2)
    axes.set(xlim=(edges[0], edges[-1]), ylabel="% of values")
    axes.set_ylim(bottom=0)
    axes.locator_params(axis="x", nbins=6)


def _bars(axes: Axes, names: list[str], shares: Float64Array) -> None:
    """Draw a pair of horizontal bars for each label, from top to bottom."""
    positions = np.arange(len(names))
    axes.barh(positions - 0.2, shares[0] * 100, 0.36, label="baseline", **_BASELINE)
    axes.barh(positions + 0.2, shares[1] * 100, 0.36, label="current", **_CURRENT)
    set_row_names(axes, names)
    axes.set_xlabel("% of values")

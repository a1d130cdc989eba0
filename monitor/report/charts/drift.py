"""Distributions of the signals of a drift report: baseline beside current.

The page around them is the self-contained one or the console's.
"""

from collections.abc import Sequence
from itertools import islice

import numpy as np

from quadriga.monitor.report.charts.drawing import (
    MAX_LETTERS,
    NARROW,
    Axes,
    Chart,
    draw_chart,
    row_axes,
    ticks,
)
from quadriga.monitor.report.drift_texts import readable_signal, signal_title, signals_in_full
from quadriga.monitor.report.metric_texts import format_brief
from quadriga.monitor.report.schema import Report, Signal, sorted_by_effect
from quadriga.quoting import one_line
from quadriga.tasks.arrays import Float64Array

MAX_SIGNALS = 24
_MAX_LABELS = 16
_KEY = (("was", "baseline"), ("now", "current"))
_TOP = 24.0
"""Space above axes for their key."""


def quiet_charts(report: Report) -> list[Chart]:
    """Draw the values on both sides of the signals that are not shown in full, up to `MAX_SIGNALS`; constant ones are left out."""
    shown = {signal.name for signal in signals_in_full(report)}
    drawn = (
        chart_of(signal, report)
        for signal in sorted_by_effect(report.signals)
        if signal.name not in shown and len(signal.histogram.baseline) > 1
    )
    return list(islice((chart for chart in drawn if chart is not None), MAX_SIGNALS))


def chart_of(signal: Signal, report: Report) -> Chart | None:
    """Draw a signal of a report as people read it; None if a side has no values."""
    return signal_chart(readable_signal(signal, report), signal_title(signal.name, report))


def _shares(signal: Signal) -> Float64Array | None:
    """Return the shares (2, C) of baseline and current; None if a side has no values."""
    counts = np.array([signal.histogram.baseline, signal.histogram.current], np.float64)
    totals = counts.sum(axis=1, keepdims=True)
    return counts / totals if counts.size and totals.all() else None


def signal_chart(signal: Signal, title: str) -> Chart | None:
    """Draw the values of a signal on both sides; None if a side has no values."""
    shares = _shares(signal)
    if shares is None:
        return None
    caption = (
        f"Effect {format_brief(signal.effect.value)}; the smallest that matters: {format_brief(signal.effect.minimum)}."
        " The outline is the baseline, the filled bars are current."
    )
    if signal.kind == "categorical":
        labels = [str(label) for label in signal.histogram.edges]
        shown_labels = np.argsort(-shares.max(axis=0), kind="stable")[:_MAX_LABELS]
        new_labels = set(signal.new_labels)
        names = [
            one_line(labels[index], MAX_LETTERS) + (" (new)" if labels[index] in new_labels else "")
            for index in shown_labels
        ]
        axes = _bars(names, shares[:, shown_labels] * 100)
        if len(labels) > len(shown_labels):
            caption += f" {len(labels) - len(shown_labels):,} rarer labels are left out."
    else:
        edges = np.array([float(edge) for edge in signal.histogram.edges])
        axes = _steps(np.clip(edges, -1e300, 1e300), shares * 100)
    title += " (alarm)" if signal.alarm else ""
    axes.key(_KEY, 13)
    return draw_chart(title, caption, [axes])


def _steps(edges: Float64Array, percent: Float64Array) -> Axes:
    """Draw histograms (2, C) over each other."""
    low, high = float(edges[0]), float(edges[-1])
    top = float(percent.max())
    axes = Axes((46.0, _TOP, NARROW - 6, 110.0), (low, high), (0.0, 1.05 * top))
    axes.name_x(ticks(low, high))
    axes.name_y(ticks(0.0, top), "% of values")
    for values, style in zip(percent[::-1].tolist(), ("now", "was"), strict=True):
        sides = np.repeat(edges, 2).tolist()
        axes.line(style, zip(sides, [0.0, *np.repeat(values, 2).tolist(), 0.0], strict=True))
    return axes


def _bars(names: Sequence[str], percent: Float64Array) -> Axes:
    """Draw a pair of horizontal bars for each label, from top to bottom."""
    high = 1.05 * float(percent.max())
    axes = row_axes(names, (0.0, high), top=_TOP)
    axes.name_x(ticks(0.0, high), "% of values")
    for row, (was, now) in enumerate(percent.T.tolist()):
        axes.box("was", (0, was), (row - 0.02, row - 0.38))
        axes.box("now", (0, now), (row + 0.38, row + 0.02))
    return axes

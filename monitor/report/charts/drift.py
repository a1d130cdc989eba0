"""Distributions of the signals of a drift report: baseline beside current.

They are written as SVG: matplotlib would need longer for the picture of one signal than its comparison takes. Their classes are
those of the page around them, the self-contained one or the console's.
"""

import math
from collections.abc import Sequence
from itertools import islice

import numpy as np
from markupsafe import Markup

from quadriga.monitor.report.charts import MAX_LETTERS, Chart
from quadriga.monitor.report.drift_texts import readable_signal, signal_title, signals_in_full
from quadriga.monitor.report.metric_texts import format_brief, one_line
from quadriga.monitor.report.schema import Report, Signal, sorted_by_effect
from quadriga.tasks.arrays import Float64Array

MAX_SIGNALS = 24
_MAX_LABELS = 16
_WIDTH, _TOP, _BELOW = 302.4, 24.0, 33.0
"""Width of a picture, and space above and below its axes, in points of 1/72 inch."""
_LETTER = 4.9
"""About the width of a letter, in points."""
_BASELINE, _CURRENT, _THIN = "was", "now", "thin"
"""Classes of shapes."""
_LEGEND = ((86, _BASELINE), (166, _CURRENT))


def signal_charts(report: Report) -> list[Chart]:
    """Draw the values on both sides of the signals that are shown in full, up to `MAX_SIGNALS`."""
    shown = {signal.name for signal in signals_in_full(report)}
    return _charts(
        report, [s for s in sorted_by_effect(report.signals) if s.name in shown], "signal"
    )


def quiet_charts(report: Report) -> list[Chart]:
    """Draw the values of all other signals that are not constant, up to `MAX_SIGNALS`."""
    shown = {signal.name for signal in signals_in_full(report)}
    return _charts(
        report,
        [
            signal
            for signal in sorted_by_effect(report.signals)
            if signal.name not in shown and len(signal.histogram.baseline) > 1
        ],
        "quiet",
    )


def _charts(report: Report, signals: list[Signal], prefix: str) -> list[Chart]:
    drawn = (
        signal_chart(
            readable_signal(signal, report), f"{prefix}-{index}", signal_title(signal.name, report)
        )
        for index, signal in enumerate(signals)
    )
    return list(islice((chart for chart in drawn if chart is not None), MAX_SIGNALS))


def _shares(signal: Signal) -> Float64Array | None:
    """Return the shares (2, C) of baseline and current; None if a side has no values."""
    counts = np.array([signal.histogram.baseline, signal.histogram.current], np.float64)
    totals = counts.sum(axis=1, keepdims=True)
    return counts / totals if counts.size and totals.all() else None


def signal_chart(signal: Signal, name: str, title: str) -> Chart | None:
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
        height, parts = _bars(names, shares[:, shown_labels] * 100)
        if len(labels) > len(shown_labels):
            caption += f" {len(labels) - len(shown_labels):,} rarer labels are left out."
    else:
        edges = np.array([float(edge) for edge in signal.histogram.edges])
        height, parts = _steps(np.clip(edges, -1e300, 1e300), shares * 100)
    title += " (alarm)" if signal.alarm else ""
    parts += [
        *(_shape("M {:.1f} 6 h 15 v 6 h -15 Z", style, x) for x, style in _LEGEND),
        _text(106, 12, "baseline", "start"),
        _text(186, 12, "current", "start"),
    ]
    svg = Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {:.1f}" width="{:.0f}" height="{:.0f}"'
        ' class="chart" role="img" aria-label="{}. {}">{}</svg>'
    ).format(_WIDTH, height, _WIDTH * 4 / 3, height * 4 / 3, title, caption, Markup("").join(parts))
    return Chart(name, title, caption, svg)


def _steps(edges: Float64Array, percent: Float64Array) -> tuple[float, list[Markup]]:
    """Draw histograms (2, C) over each other; return the height of the picture and its parts."""
    height, left = 173.0, 46.0
    bottom, width = height - _BELOW, _WIDTH - left - 6
    x = left + (edges - edges[0]) / (edges[-1] - edges[0]) * width
    scale = (bottom - _TOP) / (1.05 * percent.max())
    parts = [
        *_x_axis(ticks(edges[0], edges[-1]), edges[0], edges[-1], left, bottom),
        _shape("M {0:.1f} {1:.1f} V {2:.1f}", _THIN, left, _TOP, bottom),
        *(
            _text(left - 4, bottom - tick * scale + 3, text, "end")
            for tick, text in ticks(0.0, float(percent.max()))
        ),
        Markup('<g transform="translate(10 {:.1f}) rotate(-90)">{}</g>').format(
            (_TOP + bottom) / 2, _text(0, 0, "% of values")
        ),
    ]
    for values, style in zip(percent[::-1], (_CURRENT, _BASELINE), strict=True):
        y = bottom - values * scale
        corners = [f"V {top:.1f} H {end:.1f}" for top, end in zip(y, x[1:], strict=True)]
        path = f"M {left:.1f} {bottom:.1f} {' '.join(corners)} V {bottom:.1f}"
        parts.append(_shape("{}", style, path))
    return height, parts


def _bars(names: Sequence[str], percent: Float64Array) -> tuple[float, list[Markup]]:
    """Draw a pair of horizontal bars for each label, from top to bottom; return the picture's height and its parts."""
    row = 18.7
    left = 12 + _LETTER * max(map(len, names))
    bottom = _TOP + row * len(names)
    high = 1.05 * float(percent.max())
    scale = (_WIDTH - left - 6) / high
    parts = _x_axis(ticks(0.0, high), 0.0, high, left, bottom)
    parts.append(_text((left + _WIDTH) / 2, bottom + 27, "% of values"))
    for at, name in enumerate(names):
        top = _TOP + row * at
        parts.append(_text(left - 5, top + row / 2 + 3, name, "end"))
        for values, style, y in ((percent[0], _BASELINE, 2.2), (percent[1], _CURRENT, 9.7)):
            shape = "M {:.1f} {:.1f} h {:.1f} v 6.7 h {:.1f} Z"
            width = values[at] * scale
            parts.append(_shape(shape, style, left, top + y, width, -width))
    return bottom + _BELOW, parts


def _x_axis(
    ticks: Sequence[tuple[float, str]], low: float, high: float, left: float, bottom: float
) -> list[Markup]:
    """Draw the lower axis with its ticks."""
    scale = (_WIDTH - left - 6) / (high - low)
    places = [(left + (tick - low) * scale, text) for tick, text in ticks]
    return [
        _shape("M {:.1f} {:.1f} H {:.1f}", _THIN, left, bottom, _WIDTH - 6),
        *(_shape("M {:.1f} {:.1f} v 3", _THIN, x, bottom) for x, _ in places),
        *(_text(x, bottom + 13, text) for x, text in places),
    ]


def ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Return up to six round numbers between two others, and their texts."""
    span = high - low
    if not 1e-200 < span < 1e300 or span < 1e-12 * max(abs(low), abs(high)):
        return [(value, f"{value:g}") for value in (low, high)]
    step = 10.0 ** math.floor(math.log10(span / 5))
    step *= next(times for times in (1, 2, 5, 10) if span / (step * times) <= 5)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    digits = math.floor(math.log10(max(abs(low), abs(high)))) - math.floor(math.log10(step)) + 1
    return [(at * step, f"{at * step:.{max(digits, 6)}g}") for at in range(first, last + 1)]


def _shape(path: str, style: str, *values: float | str) -> Markup:
    return Markup('<path d="{}" class="{}"/>').format(path.format(*values), style)


def _text(x: float, y: float, text: str, anchor: str = "middle") -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" class="text" text-anchor="{}">{}</text>').format(
        x, y, anchor, text
    )

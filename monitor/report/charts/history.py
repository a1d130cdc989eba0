"""Charts of effects and p-values over consecutive windows."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

import numpy as np

from quadriga.monitor.report.charts.drawing import (
    BELOW,
    LETTER,
    MARGIN,
    MAX_LETTERS,
    NARROW,
    WIDE,
    Axes,
    Chart,
    draw_chart,
    row_axes,
    shape,
    text,
    ticks,
)
from quadriga.monitor.report.drift_texts import signal_title, signal_titles
from quadriga.monitor.report.metric_texts import format_brief
from quadriga.monitor.report.schema import PastSignal, PastWindow, Report, sorted_by_effect
from quadriga.quoting import one_line

MAX_WINDOWS = 100
_MAX_LINES, _MAX_ROWS = 6, 40
_MANY_WINDOWS = 40
"""Number of windows above which markers are small and cells touch."""

_LEVELS = ("> 0.1", "> 0.01", "> 0.001", "> 1e-4", "> 1e-5", "> 1e-6", "less")
_TOO_FEW = len(_LEVELS)
_OPACITIES = np.linspace(0.12, 1, len(_LEVELS)).tolist()


def comparable_windows(report: Report) -> list[PastWindow]:
    """Return the windows to draw, oldest first; none if there is nothing to compare."""
    windows = report.history[-MAX_WINDOWS:]
    return windows if len(windows) > 1 and any(window.signals for window in windows) else []


def effect_charts(report: Report) -> list[Chart]:
    """Draw the effects of signals in each window: signals with alarms first, then those with the largest effects."""
    windows = comparable_windows(report)
    minimums = {item.name: item.effect.minimum for item in report.signals}
    charts: list[Chart] = []
    for name in _rank_signals(report, windows):
        past = [item.signals.get(name) for item in windows]
        if any(item is not None and item.effect is not None for item in past):
            charts.append(_effect_chart(windows, past, minimums.get(name), name=name))
        if len(charts) == _MAX_LINES:
            break
    return charts


def p_value_chart(report: Report) -> Chart | None:
    """Draw the adjusted p-value of each signal in each window."""
    windows = comparable_windows(report)
    if not windows:
        return None
    names = _rank_signals(report, windows)
    shown_names = names[:_MAX_ROWS]
    titles = signal_titles(names)
    past = [[item.signals.get(name) for item in windows] for name in shown_names]
    axes = row_axes(
        [one_line(titles[name], MAX_LETTERS) for name in shown_names],
        (-0.5, len(windows) - 0.5),
        width=WIDE,
        row=14.4,
        top=22.0,
    )
    _draw_cells(axes, [[_level(item) for item in row] for row in past])
    radius = round(min(max(115 / len(windows), 1.1), 2.8), 1)
    for y, row in enumerate(past):
        for x, item in enumerate(row):
            if item is not None and item.alarm:
                axes.diamond("diamond", x, y, radius)
    axes.name_x(_window_names(windows, 7))
    caption = (
        "Signals by row, those that moved most above; windows by column, oldest first. The fuller a cell, "
        "the smaller its adjusted p-value, in steps of ten. A diamond is an alarm; grey cells had too "
        "few values, and what is blank was not compared."
    )
    if len(names) > len(shown_names):
        caption += f" {len(names) - len(shown_names):,} signals that moved less are left out."
    size_wh = WIDE, axes.bottom + BELOW
    return draw_chart("Adjusted p-values over time", caption, [axes], size_wh)


def _rank_signals(report: Report, windows: Sequence[PastWindow]) -> list[str]:
    """Return the names of all signals: alarms first, then by the number of earlier alarms, then by effect."""
    alarms = Counter(name for item in windows for name, past in item.signals.items() if past.alarm)
    past = dict.fromkeys(name for item in reversed(windows) for name in item.signals)
    is_alarm = {
        item.name: item.alarm for item in sorted_by_effect(report.signals) if item.name in past
    }
    return sorted({**is_alarm, **past}, key=lambda name: (not is_alarm.get(name), -alarms[name]))


def _effect_chart(
    windows: Sequence[PastWindow],
    past: Sequence[PastSignal | None],
    minimum: float | None,
    *,
    name: str,
) -> Chart:
    """Draw the effects of one signal."""
    effects = [
        math.nan if signal is None or signal.effect is None else signal.effect for signal in past
    ]
    known = [effect for effect in effects if not math.isnan(effect)]
    low = min(0.0, 1.15 * min(known))
    high = max(1.15 * max(known), 1.6 * (minimum or 0.0), 1e-9)
    frame = 46.0, 24.0, NARROW - MARGIN, 140.0
    axes = Axes(frame, (-0.5, len(windows) - 0.5), (low, high))
    if minimum:
        axes.box("band", (-0.5, len(windows) - 0.5), (0, minimum))
    axes.name_y(ticks(low, high), "effect")
    axes.name_x(_window_names(windows, 4))
    _draw_effects(axes, windows, past, effects)
    shown = [
        ("band", "too small", bool(minimum)),
        ("ink", "too few values", any(s is not None and s.status == "insufficient" for s in past)),
        ("alarm", "alarm", any(s is not None and s.alarm for s in past)),
    ]
    axes.key([(style, words) for style, words, is_there in shown if is_there], 14)
    caption = f"Last {format_brief(None if past[-1] is None else past[-1].effect)}"
    if minimum:
        caption += f"; the smallest that matters: {format_brief(minimum)}"
    return draw_chart(signal_title(name), f"{caption}.", [axes])


def _draw_effects(
    axes: Axes,
    windows: Sequence[PastWindow],
    past: Sequence[PastSignal | None],
    effects: Sequence[float],
) -> None:
    """Draw a mark for each window, and a line that ends where windows are missing, or say too little."""
    gaps, points = _gaps(windows), list[tuple[float, float]]()
    radius = 1.1 if len(past) > _MANY_WINDOWS else 2.0
    marks = []
    for x, (signal, effect) in enumerate(zip(past, effects, strict=True)):
        is_few = signal is not None and signal.status == "insufficient"
        is_alarm = signal is not None and signal.alarm
        points += [(math.nan, math.nan)] if x in gaps else []
        points.append((x, math.nan if is_few else effect))
        marks.append((x, effect, is_few, is_alarm))
    axes.line("l1", points)
    for x, effect, is_few, is_alarm in marks:
        if is_few:
            place = axes.place(x, 0.0 if math.isnan(effect) else effect)
            cross = "M {0:.1f} {1:.1f} m -{2} -{2} l {3} {3} m 0 -{3} l -{3} {3}"
            axes.parts.append(shape(cross, "ink", *place, radius + 0.5, 2 * radius + 1))
        if is_alarm and not math.isnan(effect):
            axes.diamond("alarm", x, effect, radius + 1.5)
        elif not is_few and not math.isnan(effect):
            axes.dot("f1", x, effect, radius)


def _gaps(windows: Sequence[PastWindow]) -> list[int]:
    """Return the indices of windows before which windows are missing."""
    return [
        index
        for index, (window, following) in enumerate(pairwise(windows), 1)
        if window.end and window.end < (following.start or "")
    ]


def _window_names(windows: Sequence[PastWindow], max_names: int) -> list[tuple[float, str]]:
    """Return up to `max_names` windows with their starts, as short as keeps them distinct."""
    starts = [window.start or "" for window in windows]
    days, times = {start[:10] for start in starts}, {start[11:16] for start in starts}
    text_span = (
        slice(11, 16) if len(days) == 1 else slice(0, 10) if len(times) == 1 else slice(5, 16)
    )
    places = np.linspace(0, len(windows) - 1, min(max_names, len(windows))).round().astype(int)
    names = {place: starts[place][text_span].replace("T", " ") for place in places.tolist()}
    return [(place, one_line(name, MAX_LETTERS) if name else "") for place, name in names.items()]


def _level(past: PastSignal | None) -> int:
    """Return the index of a cell's opacity; -1 if nothing was compared."""
    if past is not None and past.status == "insufficient":
        return _TOO_FEW
    if past is None or past.p_adjusted is None:
        return -1
    return min(max(int(-math.log10(max(past.p_adjusted, 1e-99))), 0), len(_LEVELS) - 1)


def _draw_cells(axes: Axes, levels: Sequence[Sequence[int]]) -> None:
    """Draw cells (signals, windows), all cells of a level as one shape, and the legend above them."""
    gap = 0.4 if len(levels[0]) <= _MANY_WINDOWS else 0.0
    x = MARGIN
    for level in range(_TOO_FEW + 1):
        style, words = ("f1", _LEVELS[level]) if level < _TOO_FEW else ("faint", "too few")
        opacity = f"{_OPACITIES[level]:.2f}" if level < _TOO_FEW else "1"
        path = "".join(
            f"M {left + gap:.1f} {top + 0.6:.1f} H {right - gap:.1f} V {bottom - 0.6:.1f} H {left + gap:.1f} Z "
            for row, cells in enumerate(levels)
            for start, end in _runs(cells, level, is_merged=not gap)
            for left, top in [axes.place(start - 0.5, row - 0.5)]
            for right, bottom in [axes.place(end - 0.5, row + 0.5)]
        )
        if path:
            axes.parts.append(shape(path.rstrip(), style, opacity=opacity))
        axes.parts.append(shape("M {:.1f} 6 h 9 v 8 h -9 Z", style, x, opacity=opacity))
        axes.parts.append(text(x + 12, 13, words, "start"))
        x += 20 + LETTER * len(words)
    axes.parts.append(shape("M {:.1f} 10 l 4 4 l 4 -4 l -4 -4 Z", "diamond", x))
    axes.parts.append(text(x + 12, 13, "alarm", "start"))


def _runs(cells: Sequence[int], level: int, *, is_merged: bool) -> Iterator[tuple[int, int]]:
    """Yield start and end of the cells of a level; adjacent ones as one if they are merged."""
    start = 0
    for value, group in groupby(cells):
        end = start + len(list(group))
        if value == level:
            yield from [(start, end)] if is_merged else ((at, at + 1) for at in range(start, end))
        start = end

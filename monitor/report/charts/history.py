"""Windows one after the other: how far each signal moved, and with what p-value."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path

from quadriga.monitor.report.charts.drawing import (
    FAINT,
    INK,
    PAPER,
    SERIES,
    WIDE,
    WRONG,
    Chart,
    set_row_names,
    shorten_text,
    single_axes,
    to_chart,
)
from quadriga.monitor.report.metric_texts import format_brief, one_line
from quadriga.monitor.report.schema import PastSignal, PastWindow, Report, sorted_by_effect
from quadriga.tasks.arrays import BoolArray, Int64Array

MAX_WINDOWS = 100
_MOST_LINES, _MOST_ROWS = 6, 40
_MANY = 40
"""Windows from which on marks are small and cells touch."""

_LEVELS = ("> 0.1", "> 0.01", "> 0.001", "> 1e-4", "> 1e-5", "> 1e-6", "less")
_TOO_FEW = len(_LEVELS)
_FULL = np.linspace(0.12, 1, len(_LEVELS))

_EDGE: dict[str, Any] = {"markeredgecolor": INK, "markeredgewidth": 0.8}


def comparable_windows(report: Report) -> list[PastWindow]:
    """Return the windows that are drawn, oldest first; none where there is nothing to compare."""
    found = report.history[-MAX_WINDOWS:]
    return found if len(found) > 1 and any(one.signals for one in found) else []


def effect_charts(report: Report) -> list[Chart]:
    """Draw how far signals moved in each window: those with alarms first, then the most moved."""
    found = comparable_windows(report)
    least = {one.name: one.effect.minimum for one in report.signals}
    drawn: list[Chart] = []
    for name in _ranked(report, found):
        past = [one.signals.get(name) for one in found]
        if any(one is not None and one.effect is not None for one in past):
            drawn.append(_effects(found, past, least.get(name), (name, len(drawn))))
        if len(drawn) == _MOST_LINES:
            break
    return drawn


def p_value_chart(report: Report) -> Chart | None:
    """Draw the adjusted p-value of each signal in each window."""
    found = comparable_windows(report)
    if not found:
        return None
    names = _ranked(report, found)
    kept = names[:_MOST_ROWS]
    past = [[one.signals.get(name) for one in found] for name in kept]
    sheet, axes = single_axes(1.0 + 0.2 * len(kept), WIDE)
    levels = _cells(axes, np.array([[_level(one) for one in row] for row in past]))
    alarms = np.array([[one is not None and one.alarm for one in row] for row in past])
    y, x = np.nonzero(alarms)
    size = float(np.clip(230 / len(found), 2.2, 5.5))
    marks = axes.plot(x, y, "D", label="alarm", color=PAPER, ms=size, **_EDGE)
    set_row_names(axes, [shorten_text(name) for name in kept])
    axes.set_ylim(len(kept) - 0.5, -0.5)
    _name_windows(axes, found, 7)
    look: dict[str, Any] = {"handlelength": 1.1, "handletextpad": 0.4, "columnspacing": 0.9}
    look["ncols"] = _TOO_FEW + 2
    sheet.legend(handles=[*levels, *marks], loc="outside upper center", **look)
    caption = (
        "Signals by row, those that moved most above; windows by column, oldest first. The fuller a cell, "
        "the smaller its adjusted p-value, in steps of ten. A diamond is an alarm; striped cells had too "
        "few values, and what is blank was not compared."
    )
    if len(names) > len(kept):
        caption += f" {len(names) - len(kept):,} signals that moved less are left out."
    return to_chart(sheet, "heat-map", "Adjusted p-values over time", caption)


def _ranked(report: Report, found: Sequence[PastWindow]) -> list[str]:
    """Return the names of all signals: alarms first, then those with more alarms before, then by effect."""
    alarms = Counter(name for one in found for name, past in one.signals.items() if past.alarm)
    past = dict.fromkeys(name for one in reversed(found) for name in one.signals)
    now = {one.name: one.alarm for one in sorted_by_effect(report.signals) if one.name in past}
    return sorted({**now, **past}, key=lambda name: (not now.get(name), -alarms[name]))


def _effects(
    found: Sequence[PastWindow],
    past: Sequence[PastSignal | None],
    least: float | None,
    named: tuple[str, int],
) -> Chart:
    """Draw one signal; named: its name, and its place among those that are drawn."""
    x = np.arange(len(past))
    values = np.array(
        [np.nan if one is None or one.effect is None else one.effect for one in past], np.float64
    )
    few = np.array([one is not None and one.status == "insufficient" for one in past])
    alarm = np.array([one is not None and one.alarm for one in past])
    sheet, axes = single_axes(2.1)
    if least:
        axes.axhspan(0, least, facecolor=FAINT, alpha=0.45, linewidth=0, label="too small")
    line = np.where(few, np.nan, values)
    gaps = _gaps(found)
    joined = np.insert(x.astype(np.float64), gaps, np.nan), np.insert(line, gaps, np.nan)
    axes.plot(*joined, color=SERIES[0], linewidth=1.2)
    size = 2.2 if len(past) > _MANY else 4.0
    whole: dict[str, Any] = {"clip_on": False, "zorder": 3}
    axes.plot(x, np.where(alarm, np.nan, line), "o", color=SERIES[0], ms=size, **whole)
    if few.any():
        bottom = np.where(np.isnan(values), 0.0, values)[few]
        axes.plot(x[few], bottom, "x", label="too few values", color=INK, ms=size + 1, **whole)
    if alarm.any():
        look = {"color": WRONG, "ms": size + 1.5, **_EDGE, **whole}
        axes.plot(x[alarm], values[alarm], "D", label="alarm", **look)
    low, high = (float(end) for end in (np.nanmin(values), np.nanmax(values)))
    axes.set_ylim(min(0.0, 1.15 * low), max(1.15 * high, 1.6 * (least or 0.0), 1e-9))
    axes.set_ylabel("effect")
    axes.locator_params(axis="y", nbins=5)
    _name_windows(axes, found, 4)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, handlelength=1.4)
    caption = f"Last {format_brief(None if past[-1] is None else past[-1].effect)}"
    if least:
        caption += f"; the smallest that matters: {format_brief(least)}"
    name, number = named
    return to_chart(sheet, f"effect-{number}", one_line(name), f"{caption}.")


def _gaps(found: Sequence[PastWindow]) -> list[int]:
    """Return the windows before which others are missing."""
    return [
        at
        for at, (one, following) in enumerate(pairwise(found), 1)
        if one.end and one.end < (following.start or "")
    ]


def _name_windows(axes: Axes, found: Sequence[PastWindow], most: int) -> None:
    """Write when some of the windows began, as short as they can be told apart."""
    starts = [one.start or "" for one in found]
    days, times = {one[:10] for one in starts}, {one[11:16] for one in starts}
    part = slice(11, 16) if len(days) == 1 else slice(0, 10) if len(times) == 1 else slice(5, 16)
    at = np.unique(np.linspace(0, len(found) - 1, min(most, len(found))).round().astype(int))
    names = [starts[place][part].replace("T", " ") for place in at]
    axes.set_xticks(at, [shorten_text(name) if name else "" for name in names])
    axes.set_xlim(-0.5, len(found) - 0.5)


def _level(past: PastSignal | None) -> int:
    """Return how full a cell is; -1 where nothing was compared."""
    if past is not None and past.status == "insufficient":
        return _TOO_FEW
    if past is None or past.p_adjusted is None:
        return -1
    return int(np.clip(-np.log10(max(past.p_adjusted, 1e-99)), 0, len(_LEVELS) - 1))


def _cells(axes: Axes, levels: Int64Array) -> list[Patch]:
    """Draw cells (signals, windows), all of one level as one shape; return what explains them."""
    handles = []
    for level in range(_TOO_FEW + 1):
        look: dict[str, Any] = {"facecolor": FAINT, "hatch": "////"}
        label = "too few"
        if level < _TOO_FEW:
            look = {"facecolor": SERIES[0], "alpha": float(_FULL[level])}
            label = _LEVELS[level]
        handles.append(Patch(label=label, linewidth=0, **look))
        if (levels == level).any():
            axes.add_patch(PathPatch(_runs(levels == level), linewidth=0, **look))
    rows, columns = levels.shape
    axes.hlines(np.arange(1, rows) - 0.5, -0.5, columns - 0.5, color=PAPER, linewidth=1.2)
    if columns <= _MANY:
        axes.vlines(np.arange(1, columns) - 0.5, -0.5, rows - 0.5, color=PAPER, linewidth=0.8)
    return handles


def _runs(chosen: BoolArray) -> Path:
    """Return rectangles around the cells, those that touch in a row as one."""
    edges = np.diff(np.pad(chosen, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, starts = np.nonzero(edges == 1)
    ends = np.nonzero(edges == -1)[1]
    return Path.make_compound_path(
        *(
            Path([(a, y), (b, y), (b, y + 1), (a, y + 1), (a, y)], closed=True)
            for y, a, b in zip(rows - 0.5, starts - 0.5, ends - 0.5, strict=True)
        )
    )

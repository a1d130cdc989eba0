"""Charts of effects and p-values over consecutive windows."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path

from quadriga.monitor.report.charts import Chart
from quadriga.monitor.report.charts.drawing import (
    FAINT,
    INK,
    PAPER,
    SERIES,
    WIDE,
    WRONG,
    set_row_names,
    shorten_text,
    single_axes,
    to_chart,
)
from quadriga.monitor.report.drift_texts import signal_title, signal_titles
from quadriga.monitor.report.metric_texts import format_brief
from quadriga.monitor.report.schema import PastSignal, PastWindow, Report, sorted_by_effect
from quadriga.tasks.arrays import BoolArray, Float64Array, Int64Array

MAX_WINDOWS = 100
_MAX_LINES, _MAX_ROWS = 6, 40
_MANY_WINDOWS = 40
"""Number of windows above which markers are small and cells touch."""

_LEVELS = ("> 0.1", "> 0.01", "> 0.001", "> 1e-4", "> 1e-5", "> 1e-6", "less")
_TOO_FEW = len(_LEVELS)
_OPACITIES = np.linspace(0.12, 1, len(_LEVELS))

_EDGE: dict[str, Any] = {"markeredgecolor": INK, "markeredgewidth": 0.8}


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
            charts.append(
                _effect_chart(windows, past, minimums.get(name), name=name, number=len(charts))
            )
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
    figure, axes = single_axes(1.0 + 0.2 * len(shown_names), WIDE)
    levels = _draw_cells(axes, np.array([[_level(item) for item in row] for row in past]))
    alarms = np.array([[item is not None and item.alarm for item in row] for row in past])
    y, x = np.nonzero(alarms)
    marker_size = float(np.clip(230 / len(windows), 2.2, 5.5))
    marks = axes.plot(x, y, "D", label="alarm", color=PAPER, ms=marker_size, **_EDGE)
    set_row_names(axes, [shorten_text(titles[name]) for name in shown_names])
    axes.set_ylim(len(shown_names) - 0.5, -0.5)
    _name_windows(axes, windows, 7)
    legend_options: dict[str, Any] = {
        "handlelength": 1.1,
        "handletextpad": 0.4,
        "columnspacing": 0.9,
    }
    legend_options["ncols"] = _TOO_FEW + 2
    figure.legend(handles=[*levels, *marks], loc="outside upper center", **legend_options)
    caption = (
        "Signals by row, those that moved most above; windows by column, oldest first. The fuller a cell, "
        "the smaller its adjusted p-value, in steps of ten. A diamond is an alarm; striped cells had too "
        "few values, and what is blank was not compared."
    )
    if len(names) > len(shown_names):
        caption += f" {len(names) - len(shown_names):,} signals that moved less are left out."
    return to_chart(figure, "heat-map", "Adjusted p-values over time", caption)


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
    number: int,
) -> Chart:
    """Draw the effects of one signal; `number` is its position among the drawn signals."""
    figure, axes = single_axes(2.1)
    if minimum:
        axes.axhspan(0, minimum, facecolor=FAINT, alpha=0.45, linewidth=0, label="too small")
    effects = _draw_effects(axes, windows, past)
    low, high = (float(bound) for bound in (np.nanmin(effects), np.nanmax(effects)))
    axes.set_ylim(min(0.0, 1.15 * low), max(1.15 * high, 1.6 * (minimum or 0.0), 1e-9))
    axes.set_ylabel("effect")
    axes.locator_params(axis="y", nbins=5)
    _name_windows(axes, windows, 4)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, handlelength=1.4)
    caption = f"Last {format_brief(None if past[-1] is None else past[-1].effect)}"
    if minimum:
        caption += f"; the smallest that matters: {format_brief(minimum)}"
    return to_chart(figure, f"effect-{number}", signal_title(name), f"{caption}.")


def _draw_effects(
    axes: Axes, windows: Sequence[PastWindow], past: Sequence[PastSignal | None]
) -> Float64Array:
    """Draw a marker for each window, and a line that ends where windows are missing; return the effects (W,)."""
    x = np.arange(len(past))
    effects = np.array(
        [np.nan if signal is None or signal.effect is None else signal.effect for signal in past],
        np.float64,
    )
    is_insufficient = np.array(
        [signal is not None and signal.status == "insufficient" for signal in past]
    )
    is_alarm = np.array([signal is not None and signal.alarm for signal in past])
    judged = np.where(is_insufficient, np.nan, effects)
    gaps = _gaps(windows)
    axes.plot(
        np.insert(x.astype(np.float64), gaps, np.nan),
        np.insert(judged, gaps, np.nan),
        color=SERIES[0],
        linewidth=1.2,
    )
    size = 2.2 if len(past) > _MANY_WINDOWS else 4.0
    options: dict[str, Any] = {"clip_on": False, "zorder": 3}
    quiet = np.where(is_alarm, np.nan, judged)
    axes.plot(x, quiet, "o", color=SERIES[0], ms=size, **options)
    if is_insufficient.any():
        bottom = np.where(np.isnan(effects), 0.0, effects)[is_insufficient]
        few: dict[str, Any] = {"label": "too few values", "color": INK, "ms": size + 1}
        axes.plot(x[is_insufficient], bottom, "x", **few, **options)
    if is_alarm.any():
        alarms: dict[str, Any] = {"label": "alarm", "color": WRONG, "ms": size + 1.5, **_EDGE}
        axes.plot(x[is_alarm], effects[is_alarm], "D", **alarms, **options)
    return effects


def _gaps(windows: Sequence[PastWindow]) -> list[int]:
    """Return the indices of windows before which windows are missing."""
    return [
        index
        for index, (window, following) in enumerate(pairwise(windows), 1)
        if window.end and window.end < (following.start or "")
    ]


def _name_windows(axes: Axes, windows: Sequence[PastWindow], max_names: int) -> None:
    """Label up to `max_names` windows by their start, as short as keeps them distinct."""
    starts = [window.start or "" for window in windows]
    days, times = {start[:10] for start in starts}, {start[11:16] for start in starts}
    text_span = (
        slice(11, 16) if len(days) == 1 else slice(0, 10) if len(times) == 1 else slice(5, 16)
    )
    positions = np.unique(
        np.linspace(0, len(windows) - 1, min(max_names, len(windows))).round().astype(int)
    )
    names = [starts[position][text_span].replace("T", " ") for position in positions]
    axes.set_xticks(positions, [shorten_text(name) if name else "" for name in names])
    axes.set_xlim(-0.5, len(windows) - 0.5)


def _level(past: PastSignal | None) -> int:
    """Return the index of a cell's opacity; -1 if nothing was compared."""
    if past is not None and past.status == "insufficient":
        return _TOO_FEW
    if past is None or past.p_adjusted is None:
        return -1
    return int(np.clip(-np.log10(max(past.p_adjusted, 1e-99)), 0, len(_LEVELS) - 1))


def _draw_cells(axes: Axes, levels: Int64Array) -> list[Patch]:
    """Draw cells (signals, windows), all cells of a level as one shape; return the legend's handles."""
    handles = []
    for level in range(_TOO_FEW + 1):
        patch_options: dict[str, Any] = {"facecolor": FAINT, "hatch": "////"}
        label = "too few"
        if level < _TOO_FEW:
            patch_options = {"facecolor": SERIES[0], "alpha": float(_OPACITIES[level])}
            label = _LEVELS[level]
        handles.append(Patch(label=label, linewidth=0, **patch_options))
        if (levels == level).any():
            axes.add_patch(
                PathPatch(_cell_rectangles(levels == level), linewidth=0, **patch_options)
            )
    rows, columns = levels.shape
    axes.hlines(np.arange(1, rows) - 0.5, -0.5, columns - 0.5, color=PAPER, linewidth=1.2)
    if columns <= _MANY_WINDOWS:
        axes.vlines(np.arange(1, columns) - 0.5, -0.5, rows - 0.5, color=PAPER, linewidth=0.8)
    return handles


def _cell_rectangles(chosen: BoolArray) -> Path:
    """Return rectangles around the chosen cells; adjacent cells of a row share one."""
    edges = np.diff(np.pad(chosen, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, starts = np.nonzero(edges == 1)
    ends = np.nonzero(edges == -1)[1]
    return Path.make_compound_path(
        *(
            Path([(a, y), (b, y), (b, y + 1), (a, y + 1), (a, y)], closed=True)
            for y, a, b in zip(rows - 0.5, starts - 0.5, ends - 0.5, strict=True)
        )
    )

"""What was taken for what, as a square of cells."""

import numpy as np
from matplotlib.axes import Axes

from quadriga.monitor.report.charts.drawing import (
    FAINT,
    INK,
    PAPER,
    SERIES,
    Chart,
    shorten_text,
    single_axes,
    to_chart,
)
from quadriga.monitor.report.schema import Confusion, Report
from quadriga.tasks.arrays import Float64Array, Int64Array

MAX_LABELS = 25
_NUMBERED = 13
"""Rows up to which the cells hold counts."""

BACKGROUND_NAME = "nothing"


def object_confusion_chart(report: Report) -> Chart | None:
    """Draw what objects or images are taken for."""
    return _chart(report.confusion, "confusion", "What is taken for what")


def pixel_confusion_chart(report: Report) -> Chart | None:
    """Draw what pixels are taken for."""
    return _chart(report.confusion_pixels, "confusion-pixels", "What is taken for what, by pixels")


def _chart(found: Confusion | None, name: str, title: str) -> Chart | None:
    """Draw each row as shares of its truths, with what is nothing at the ends."""
    if found is None or not found.labels:
        return None
    counts = with_background(found)
    total = counts.sum(axis=1, keepdims=True)
    if not total.any():
        return None
    names = [*(shorten_text(label, 18) for label in found.labels), f"({BACKGROUND_NAME})"]
    kept = _kept(counts)
    cells = np.ix_(kept, kept)
    size = len(kept)
    side = min(6.2, 2.4 + 0.42 * size)
    sheet, axes = single_axes(side, side + 0.4)
    _cells(axes, counts[cells], (counts / np.maximum(total, 1))[cells])
    places, ends = np.arange(size), (-0.5, size - 0.5)
    shown_names = [names[at] for at in kept]
    axes.set(xlim=ends, ylim=ends[::-1], box_aspect=1, xlabel="predicted", ylabel="truth")
    axes.set_xticks(places, shown_names, rotation=90 if size > 4 else 0)
    axes.set_yticks(places, shown_names)
    axes.tick_params(length=0)
    axes.hlines(places[1:] - 0.5, *ends, color=FAINT, linewidth=0.4)
    axes.vlines(places[1:] - 0.5, *ends, color=FAINT, linewidth=0.4)
    return to_chart(sheet, name, title, _caption(len(total) - 1, kept))


def _cells(axes: Axes, counts: Int64Array, shares: Float64Array) -> None:
    for row, column in np.argwhere(counts > 0):
        share = float(shares[row, column])
        color = SERIES[0] if row == column else SERIES[1]
        axes.bar(column, 1, 1, row - 0.5, color=color, alpha=0.08 + 0.92 * share, linewidth=0)
        if len(counts) <= _NUMBERED:
            text = _short(int(counts[row, column]))
            ink = PAPER if share > 0.5 else INK
            axes.text(column, row, text, color=ink, ha="center", va="center", fontsize=7.5)


def _short(count: int) -> str:
    """Write a count so that it fits into a cell."""
    if count < 100_000:
        return f"{count:,}"
    return f"{count / 1e3:,.0f}k" if count < 10_000_000 else f"{count / 1e6:,.0f}M"


def _caption(labels: int, kept: Int64Array) -> str:
    said = "The fuller a cell, the larger the share of its row; the diagonal is right."
    if labels in kept:
        said += f" The row “({BACKGROUND_NAME})” holds predictions where nothing is, its column what was not found."
    if labels > MAX_LABELS:
        said += (
            f" The {MAX_LABELS} labels with the most errors; {labels - MAX_LABELS} are left out."
        )
    return said


def with_background(found: Confusion) -> Int64Array:
    """Return counts (K + 1, K + 1) int64, truth by row, the last row and column being nothing."""
    size = len(found.labels)
    counts = np.zeros((size + 1, size + 1), np.int64)
    if found.matrix:
        counts[:size, :size] = found.matrix
    counts[size, :size] = [found.hallucinations.get(label, 0) for label in found.labels]
    counts[:size, size] = [found.misses.get(label, 0) for label in found.labels]
    return counts


def _kept(counts: Int64Array) -> Int64Array:
    """Return the labels to be drawn, those with the most errors if there are too many, and nothing."""
    size = len(counts) - 1
    right = np.diag(counts)
    errors = (counts.sum(axis=0) + counts.sum(axis=1) - 2 * right)[:size]
    worst = np.sort(np.argsort(-errors, kind="stable")[:MAX_LABELS])
    nothing = [size] if counts[size].any() or counts[:, size].any() else []
    return np.concatenate([worst, np.array(nothing, np.int64)])

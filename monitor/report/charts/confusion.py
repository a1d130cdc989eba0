"""Confusion matrices as squares of cells."""

import numpy as np
from matplotlib.axes import Axes

from quadriga.monitor.report.charts import Chart
from quadriga.monitor.report.charts.drawing import (
    FAINT,
    INK,
    PAPER,
    SERIES,
    shorten_text,
    single_axes,
    to_chart,
)
from quadriga.monitor.report.schema import Confusion, Report
from quadriga.tasks.arrays import Float64Array, Int64Array

MAX_LABELS = 25
_MAX_NUMBERED = 13
"""Maximum number of rows with which the cells show counts."""

BACKGROUND_NAME = "nothing"


def object_confusion_chart(report: Report) -> Chart | None:
    """Draw the confusion matrix of objects or images."""
    return _chart(report.confusion, "confusion", "What is taken for what")


def pixel_confusion_chart(report: Report) -> Chart | None:
    """Draw the confusion matrix of pixels."""
    return _chart(report.confusion_pixels, "confusion-pixels", "What is taken for what, by pixels")


def _chart(confusion: Confusion | None, name: str, title: str) -> Chart | None:
    """Draw each row as shares of its true label; the background is the last row and column."""
    if confusion is None or not confusion.labels:
        return None
    counts = with_background(confusion)
    total = counts.sum(axis=1, keepdims=True)
    if not total.any():
        return None
    names = [*(shorten_text(label, 18) for label in confusion.labels), f"({BACKGROUND_NAME})"]
    shown_labels = _labels_to_draw(counts)
    cells = np.ix_(shown_labels, shown_labels)
    size = len(shown_labels)
    side = min(6.2, 2.4 + 0.42 * size)
    figure, axes = single_axes(side, side + 0.4)
    _draw_cells(axes, counts[cells], (counts / np.maximum(total, 1))[cells])
    positions, ends = np.arange(size), (-0.5, size - 0.5)
    shown_names = [names[at] for at in shown_labels]
    axes.set(xlim=ends, ylim=ends[::-1], box_aspect=1, xlabel="predicted", ylabel="truth")
    axes.set_xticks(positions, shown_names, rotation=90 if size > 4 else 0)
    axes.set_yticks(positions, shown_names)
    axes.tick_params(length=0)
    axes.hlines(positions[1:] - 0.5, *ends, color=FAINT, linewidth=0.4)
    axes.vlines(positions[1:] - 0.5, *ends, color=FAINT, linewidth=0.4)
    return to_chart(figure, name, title, _caption(len(total) - 1, shown_labels))


def _draw_cells(axes: Axes, counts: Int64Array, shares: Float64Array) -> None:
    for row, column in np.argwhere(counts > 0):
        share = float(shares[row, column])
        color = SERIES[0] if row == column else SERIES[1]
        axes.bar(column, 1, 1, row - 0.5, color=color, alpha=0.08 + 0.92 * share, linewidth=0)
        if len(counts) <= _MAX_NUMBERED:
            text = _short(int(counts[row, column]))
            ink = PAPER if share > 0.5 else INK
            axes.text(column, row, text, color=ink, ha="center", va="center", fontsize=7.5)


def _short(count: int) -> str:
    """Format a count so that it fits into a cell."""
    if count < 100_000:
        return f"{count:,}"
    return f"{count / 1e3:,.0f}k" if count < 10_000_000 else f"{count / 1e6:,.0f}M"


def _caption(labels: int, shown_labels: Int64Array) -> str:
    text = "The fuller a cell, the larger the share of its row; the diagonal is right."
    if labels in shown_labels:
        text += f" The row “({BACKGROUND_NAME})” holds predictions where nothing is, its column what was not found."
    if labels > MAX_LABELS:
        text += (
            f" The {MAX_LABELS} labels with the most errors; {labels - MAX_LABELS} are left out."
        )
    return text


def with_background(confusion: Confusion) -> Int64Array:
    """Return counts int64 (K + 1, K + 1), true label by row; the last row and column are the background."""
    size = len(confusion.labels)
    counts = np.zeros((size + 1, size + 1), np.int64)
    if confusion.matrix:
        counts[:size, :size] = confusion.matrix
    counts[size, :size] = [confusion.hallucinations.get(label, 0) for label in confusion.labels]
    counts[:size, size] = [confusion.misses.get(label, 0) for label in confusion.labels]
    return counts


def _labels_to_draw(counts: Int64Array) -> Int64Array:
    """Return the indices of the labels to draw, those with the most errors if there are too many, and the background."""
    size = len(counts) - 1
    correct = np.diag(counts)
    errors = (counts.sum(axis=0) + counts.sum(axis=1) - 2 * correct)[:size]
    worst = np.sort(np.argsort(-errors, kind="stable")[:MAX_LABELS])
    nothing = [size] if counts[size].any() or counts[:, size].any() else []
    return np.concatenate([worst, np.array(nothing, np.int64)])

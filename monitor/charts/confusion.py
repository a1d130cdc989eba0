"""What was taken for what, as a square of cells."""

import numpy as np
import numpy.typing as npt

from monitor.charts.drawing import FAINT, INK, PAPER, SERIES, Chart, chart, figure, shown
from monitor.report import Confusion, Report

MOST_LABELS = 25
_NUMBERED = 13
"""Rows up to which the cells hold counts."""

NOTHING = "nothing"

Counts = npt.NDArray[np.int64]


def confusion(report: Report) -> Chart | None:
    """Draw the confusion matrix, each row as shares of its truths, with what is nothing at the ends."""
    if report.confusion is None or not report.confusion.labels:
        return None
    counts = with_background(report.confusion)
    total = counts.sum(axis=1, keepdims=True)
    if not total.any():
        return None
    names = [*(shown(label, 18) for label in report.confusion.labels), f"({NOTHING})"]
    kept = _kept(counts)
    shares = (counts / np.maximum(total, 1))[np.ix_(kept, kept)]
    counts, names = counts[np.ix_(kept, kept)], [names[at] for at in kept]
    size = len(names)
    side = min(6.2, 2.4 + 0.42 * size)
    sheet = figure(side, side + 0.4)
    axes = sheet.subplots()
    for row, column in np.argwhere(counts > 0):
        share = float(shares[row, column])
        color = SERIES[0] if row == column else SERIES[1]
        axes.bar(column, 1, 1, row - 0.5, color=color, alpha=0.08 + 0.92 * share, linewidth=0)
        if size <= _NUMBERED:
            ink = PAPER if share > 0.5 else INK
            axes.text(
                column,
                row,
                f"{counts[row, column]:,}",
                color=ink,
                ha="center",
                va="center",
                fontsize=7.5,
            )
    places = np.arange(size)
    axes.set(
        xlim=(-0.5, size - 0.5),
        ylim=(size - 0.5, -0.5),
        box_aspect=1,
        xlabel="predicted",
        ylabel="truth",
    )
    axes.set_xticks(places, names, rotation=90 if size > 4 else 0)
    axes.set_yticks(places, names)
    axes.tick_params(length=0)
    axes.hlines(places[1:] - 0.5, -0.5, size - 0.5, color=FAINT, linewidth=0.4)
    axes.vlines(places[1:] - 0.5, -0.5, size - 0.5, color=FAINT, linewidth=0.4)
    return chart(sheet, "confusion", "What is taken for what", _caption(len(total) - 1, kept))


def _caption(labels: int, kept: Counts) -> str:
    said = "The fuller a cell, the larger the share of its row; the diagonal is right."
    if labels in kept:
        said += f" The row “({NOTHING})” holds predictions where nothing is, its column what was not found."
    if labels > MOST_LABELS:
        said += (
            f" The {MOST_LABELS} labels with the most errors; {labels - MOST_LABELS} are left out."
        )
    return said


def with_background(found: Confusion) -> Counts:
    """Return counts (K + 1, K + 1) int64, truth by row, the last row and column being nothing."""
    size = len(found.labels)
    counts = np.zeros((size + 1, size + 1), np.int64)
    if found.matrix:
        counts[:size, :size] = found.matrix
    counts[size, :size] = [found.hallucinations.get(label, 0) for label in found.labels]
    counts[:size, size] = [found.misses.get(label, 0) for label in found.labels]
    return counts


def _kept(counts: Counts) -> Counts:
    """Return the labels to be drawn, those with the most errors if there are too many, and nothing."""
    size = len(counts) - 1
    right = np.diag(counts)
    errors = (counts.sum(axis=0) + counts.sum(axis=1) - 2 * right)[:size]
    worst = np.sort(np.argsort(-errors, kind="stable")[:MOST_LABELS])
    nothing = [size] if counts[size].any() or counts[:, size].any() else []
    return np.concatenate([worst, np.array(nothing, np.int64)])

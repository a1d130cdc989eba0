"""One column compared, by its kind: which test, which effect, which picture."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from monitor.drift import kernels, tests
from monitor.drift.decision import Settings
from monitor.drift.dependence import Codes, Place, Units, units
from monitor.drift.permutation import Effort, Sides, dealing, dealing_rows, fitted, p_value
from monitor.drift.samples import Column, Kind
from monitor.report import Effect, Histogram

GRID = 128
"""Values, at most, at which permutations compare distribution functions."""
BINS = 40
"""Of a histogram in a report."""
PSI_BINS = 10
"""Each with an equal share of the baseline."""
_SCORED_LABELS = 32
"""The most frequent labels: by them rows are found alike."""
_TIED = 0.9
"""Share of distinct values below which numbers are tied too often for the p-value of KS."""
_CERTAIN = 20.0
"""Rows expected in each cell, from which the chi-square distribution is trusted."""

Counted = npt.NDArray[np.float32]
"""(B, C)"""
Numbers = npt.NDArray[np.float64]


class Pair(NamedTuple):
    """A column on both sides, with values on both."""

    kind: Kind
    baseline: Column
    current: Column
    places: tuple[Place, Place]
    """Of the values."""


class Found(NamedTuple):
    """What came out."""

    test: str
    statistic: float
    p: float
    effect: Effect
    units: Units
    histogram: Histogram = Histogram()
    table: tests.Counts | None = None
    """(2, C) counts that PSI and its kin are taken from."""


def look(pair: Pair, settings: Settings, effort: Effort) -> Found:
    """Compare a column by the test of its kind.

    Args:
        pair: The column on both sides.
        settings: How.
        effort: For statistics that are cheap to permute.
    """
    if pair.kind == "embedding":
        return _embedding(pair, settings, effort)
    if pair.kind == "categorical":
        return _category(pair, settings, effort)
    return _number(pair, settings, effort)


def _number(pair: Pair, settings: Settings, effort: Effort) -> Found:
    """Compare numbers by Kolmogorov-Smirnov, counts by chi-square; the effect is the same."""
    before, now = pair.baseline.values, pair.current.values
    n = len(before)
    both = np.concatenate([before, now])
    distinct = np.unique(both)
    values = distinct
    if len(distinct) > GRID:
        values = np.unique(np.quantile(both, np.linspace(0, 1, GRID), method="higher"))
    codes = np.searchsorted(values, both)
    scores = (codes / len(values)).astype(np.float32)[:, None]
    exchanged = units((scores[:n], scores[n:]), pair.places)
    if pair.kind == "count":
        cells = tests.pooling(_table(codes, n, len(values)), ordered=True)
        test, found = "chi_square", _chi_square(cells[codes], exchanged, n, effort)
    else:
        test, found = "ks", tests.ks(before, now)
        tied = len(distinct) < len(both) * _TIED
        if tied or exchanged.kind != "rows":
            p = _permuted(_largest_distance, codes, exchanged, n, effort)
            found = found._replace(p=p)
    effect = tests.wasserstein(before, now) / tests.spread(before, now)
    edges = np.unique(np.quantile(before, np.linspace(0, 1, PSI_BINS + 1)[1:-1]))
    return Found(
        test,
        *found,
        Effect("wasserstein_iqr", effect, settings.least_shift),
        exchanged,
        histogram(before, now),
        _table(np.searchsorted(edges, both, "right"), n, len(edges) + 1),
    )


def _category(pair: Pair, settings: Settings, effort: Effort) -> Found:
    """Compare labels by chi-square, the rare ones put together."""
    labels = sorted({*pair.baseline.labels, *pair.current.labels})
    place = {label: at for at, label in enumerate(labels)}
    codes = np.concatenate(
        [
            np.array([place[label] for label in one.labels], np.int64)[one.values]
            for one in (pair.baseline, pair.current)
        ]
    )
    n = len(pair.baseline.values)
    table = _table(codes, n, len(labels))
    frequent = np.argsort(-table.sum(axis=0), kind="stable")[:_SCORED_LABELS]
    scores = (codes[:, None] == frequent).astype(np.float32)
    exchanged = units((scores[:n], scores[n:]), pair.places)
    cells = tests.pooling(table, ordered=False)
    found = _chi_square(cells[codes], exchanged, n, effort)
    counts = [[int(one) for one in side] for side in table]
    return Found(
        "chi_square",
        *found,
        Effect("total_variation", tests.total_variation(table), settings.least_share),
        exchanged,
        Histogram(list(labels), *counts),
        table[:, table.sum(axis=0) > 0],
    )


def _embedding(pair: Pair, settings: Settings, effort: Effort) -> Found:
    """Compare embeddings by energy distance or MMD, with permutations.

    The effect is the distance, less what permutations have on average, as a share of what it would be if the
    sides were two points: at most 1.
    """
    scores = [one.values.astype(np.float32) for one in (pair.baseline, pair.current)]
    exchanged = units((scores[0], scores[1]), pair.places)
    n = len(scores[0])
    apart = kernels.distances(np.concatenate(scores))
    current = np.arange(len(apart)) >= n
    kernel = kernels.kernel_of(apart, settings.kernel)
    scale = 2 * float(kernel.diagonal().mean() - kernel[np.ix_(current, ~current)].mean())
    kernel = kernels.centred(kernel)
    statistic = kernels.between(kernel, current)
    chances = dealing(_quadratic(kernel, exchanged), exchanged)
    p, usual = fitted(chances, effort._replace(most=settings.permutations))
    effect = (chances.there - usual) / scale if scale > 0 else 0.0
    return Found(
        settings.kernel,
        statistic,
        p,
        Effect(f"{settings.kernel}_coefficient", effect, settings.least_distance),
        exchanged,
    )


def histogram(before: Numbers, now: Numbers, bins: int = BINS) -> Histogram:
    """Return counts in bins of equal width; what is far out (0.1 % at each end) is in the outer ones."""
    low, high = np.quantile(np.concatenate([before, now]), [0.001, 0.999])
    edges = np.unique(np.linspace(low, high, bins + 1))
    if len(edges) == 1:
        edges = np.array([low - 0.5, low + 0.5])
    counts = (
        np.bincount(np.searchsorted(edges[1:-1], side, "right"), minlength=len(edges) - 1).tolist()
        for side in (before, now)
    )
    return Histogram(edges.tolist(), *counts)


def _table(codes: Codes, n: int, cells: int) -> tests.Counts:
    """Count (2, C) the first n codes and the others."""
    sides = [np.bincount(one, minlength=cells) for one in (codes[:n], codes[n:])]
    return np.array(sides, np.float64)


def _chi_square(cells: Codes, exchanged: Units, n: int, effort: Effort) -> tests.Test:
    """Compare cells; its distribution is trusted where many rows are expected in each."""
    table = _table(cells, n, int(cells.max()) + 1)
    found = tests.chi_square(table)
    least = table.sum(axis=0).min() * table.sum(axis=1).min() / table.sum()
    if table.shape[1] < 2 or (exchanged.kind == "rows" and least >= _CERTAIN):
        return found
    return found._replace(p=_permuted(_squared_distance, cells, exchanged, n, effort))


def _permuted(
    distance: Callable[[Numbers, Counted], Numbers],
    codes: Codes,
    exchanged: Units,
    n: int,
    effort: Effort,
) -> float:
    """Return a p-value of a statistic of the counts of all rows (C,) and of current ones (B, C)."""
    table = _table(codes, n, int(codes.max()) + 1)
    if exchanged.kind == "rows":
        return p_value(dealing_rows(partial(distance, table.sum(axis=0)), table), effort)
    at = exchanged.of * table.shape[1] + codes
    counts = np.bincount(at, minlength=len(exchanged.current) * table.shape[1])
    per_unit = counts.reshape(-1, table.shape[1]).astype(np.float32)
    if exchanged.even:
        per_unit /= per_unit.sum(axis=1, keepdims=True)
    total = per_unit.sum(axis=0)
    return p_value(dealing(lambda sides: distance(total, sides @ per_unit), exchanged), effort)


def _largest_distance(total: Numbers, now: Counted) -> Numbers:
    """Return the Kolmogorov-Smirnov statistic."""
    below, n = now.cumsum(axis=1), now.sum(axis=1, keepdims=True)
    apart = np.abs(below / n - (total.cumsum() - below) / (total.sum() - n))
    return np.asarray(apart.max(axis=1), np.float64)


def _squared_distance(total: Numbers, now: Counted) -> Numbers:
    """Return the chi-square statistic."""
    expected = total * (now.sum(axis=1, keepdims=True) / total.sum())
    terms = (now - expected) ** 2 * (1 / expected + 1 / (total - expected))
    return np.asarray(terms.sum(axis=1), np.float64)


def _quadratic(kernel: Numbers, exchanged: Units) -> Callable[[Sides], Numbers]:
    """Return the distance of the sides under a centred kernel (P, P)."""
    sizes = np.bincount(exchanged.of)
    if len(sizes) < len(kernel):
        order = np.argsort(exchanged.of, kind="stable")
        starts = np.cumsum(sizes) - sizes
        sums = np.add.reduceat(kernel[order], starts, axis=0)
        kernel = np.add.reduceat(sums[:, order], starts, axis=1)
    if exchanged.even:
        kernel = kernels.centred(kernel / sizes / sizes[:, None])
        sizes = np.ones_like(sizes)
    matrix = kernel.astype(np.float32)
    every = float(sizes.sum())

    def statistic(sides: Sides) -> Numbers:
        n = (sides @ sizes).astype(np.float64)
        form = np.einsum("ij,ij->i", sides @ matrix, sides).astype(np.float64)
        return np.asarray(form * (1 / n + 1 / (every - n)) ** 2, np.float64)

    return statistic

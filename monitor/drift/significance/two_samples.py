"""Statistics of two samples: distances between them, and p-values.

Pure functions of arrays. P-values assume independent rows; those of `permutation` do not. scipy.stats takes most
of a second to load, so it is imported when it is needed.
"""

import warnings
from typing import NamedTuple

import numpy as np

from quadriga.monitor.report.schema import Divergence
from quadriga.tasks.arrays import Float64Array, Int64Array

MIN_EXPECTED = 5.0
"""Minimum expected count of a cell: the chi-square distribution is inexact below, so cells are pooled."""
_MIN_SHARE = 1e-4
"""Share that an empty cell counts as in PSI, whose logarithm would be infinite otherwise."""


class TestResult(NamedTuple):
    """Statistic and p-value of a test."""

    statistic: float
    p: float


def ks(baseline: Float64Array, current: Float64Array) -> TestResult:
    """Test numbers by Kolmogorov-Smirnov: the largest distance of their distribution functions, two-sided.

    The p-value is exact up to 10,000 values on each side, and too large where values are tied.

    Source: scipy.stats.ks_2samp.
    """
    from scipy import stats  # noqa: PLC0415 - slow to load

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the exact one overflowed: asymptotic then
        result = stats.ks_2samp(baseline, current)
    return TestResult(float(result.statistic), float(result.pvalue))


def wasserstein(baseline: Float64Array, current: Float64Array) -> float:
    """Return the Wasserstein distance: how far values have to be moved on average, in their unit.

    Source: scipy.stats.wasserstein_distance.
    """
    pooled = np.sort(np.concatenate([baseline, current]))
    baseline_cdf = np.searchsorted(np.sort(baseline), pooled[:-1], "right") / len(baseline)
    current_cdf = np.searchsorted(np.sort(current), pooled[:-1], "right") / len(current)
    return float((np.abs(baseline_cdf - current_cdf) * np.diff(pooled)).sum())


def spread(baseline: Float64Array, current: Float64Array) -> float:
    """Return the scale of a numeric effect, in the unit of the values, never 0.

    It is the interquartile range of the baseline; if that is 0, the standard deviation of both sides together.
    """
    low, high = np.quantile(baseline, [0.25, 0.75])
    return float(high - low) or float(np.std(np.concatenate([baseline, current]))) or 1.0


def chi_square(table: Float64Array) -> TestResult:
    """Test counts (2, C), baseline first, by chi-square; the expected count of no cell may be 0.

    Source: scipy.stats.chi2_contingency without Yates's correction.
    """
    from scipy.special import chdtrc  # noqa: PLC0415 - slow to load

    if table.shape[1] < 2:
        return TestResult(0.0, 1.0)
    expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0) / table.sum()
    statistic = float(((table - expected) ** 2 / expected).sum())
    return TestResult(statistic, float(chdtrc(table.shape[1] - 1, statistic)))


def pool_cells(table: Float64Array, *, ordered: bool) -> Int64Array:
    """Pool cells until the expected count of each is at least `MIN_EXPECTED` on both sides.

    Args:
        table: (2, C) counts, baseline first.
        ordered: Whether to pool neighbours. Otherwise rare cells are pooled, the rarest first, and the last of
            the pooled cells may stay below the minimum.

    Returns:
        int64 (C,) the new cell of each cell.
    """
    totals = table.sum(axis=0)
    min_total = MIN_EXPECTED * table.sum() / max(float(table.sum(axis=1).min()), 1.0)
    order = np.arange(len(totals)) if ordered else np.argsort(totals, kind="stable")
    remaining = totals[order][::-1].cumsum()[::-1]
    cells = np.zeros(len(totals), np.int64)
    cell, filled = 0, 0.0
    for position, old_cell in enumerate(order):
        is_alone = totals[old_cell] >= min_total and not ordered
        if filled and (is_alone or (filled >= min_total and remaining[position] >= min_total)):
            cell, filled = cell + 1, 0.0
        cells[old_cell] = cell
        filled += totals[old_cell]
    return cells


def total_variation(table: Float64Array) -> float:
    """Return the total variation of counts (2, C): the share of rows that would have to change cells, 0 to 1."""
    shares = table / table.sum(axis=1, keepdims=True)
    return float(np.abs(shares[0] - shares[1]).sum() / 2)


def psi(table: Float64Array) -> Divergence:
    """Return the population stability index of counts (2, C); by chance alone it is (C - 1)(1/n + 1/m) on average."""
    shares = np.maximum(table / table.sum(axis=1, keepdims=True), _MIN_SHARE)
    value = float(((shares[1] - shares[0]) * np.log(shares[1] / shares[0])).sum())
    return Divergence(value, _expected_psi(table))


def jensen_shannon(table: Float64Array) -> Divergence:
    """Return the Jensen-Shannon distance (natural logarithm) of counts (2, C).

    By chance alone it is about the root of an eighth of what PSI is.

    Source: scipy.spatial.distance.jensenshannon.
    """
    shares = table / table.sum(axis=1, keepdims=True)
    middle = shares.mean(axis=0)
    ratio = np.divide(shares, middle, out=np.ones_like(shares), where=shares > 0)
    value = float((shares * np.log(ratio)).sum() / 2)
    return Divergence(max(value, 0.0) ** 0.5, (_expected_psi(table) / 8) ** 0.5)


def _expected_psi(table: Float64Array) -> float:
    """Return the mean of PSI if nothing changed."""
    used = int((table.sum(axis=0) > 0).sum())
    return float((used - 1) * (1 / table.sum(axis=1)).sum())

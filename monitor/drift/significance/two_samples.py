"""Statistics of two samples: how far they are apart, and how likely that is if nothing changed.

Pure functions of arrays. Independent rows are assumed where a p-value is given; `permutation` does
without that. Loading scipy.stats takes most of a second, so that waits until it is needed.
"""

import warnings
from typing import NamedTuple

import numpy as np

from quadriga.monitor.report.schema import Divergence
from quadriga.tasks.arrays import Float64Array, Int64Array

LEAST_EXPECTED = 5.0
"""Cells of which fewer are expected are put together, as the chi-square distribution asks for."""
_LEAST_SHARE = 1e-4
"""What an empty cell counts as in PSI and its kin."""


class Test(NamedTuple):
    """What a test found."""

    statistic: float
    p: float


def ks(baseline: Float64Array, current: Float64Array) -> Test:
    """Compare numbers by the largest distance of their distribution functions, two-sided.

    The p-value is exact up to 10,000 values on each side, and too large where values are tied.

    Source: scipy.stats.ks_2samp.
    """
    from scipy import stats  # noqa: PLC0415 - slow to load

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the exact one overflowed: asymptotic then
        found = stats.ks_2samp(baseline, current)
    return Test(float(found.statistic), float(found.pvalue))


def wasserstein(baseline: Float64Array, current: Float64Array) -> float:
    """Return how far values have to be moved on average, in their unit.

    Source: scipy.stats.wasserstein_distance.
    """
    pooled = np.sort(np.concatenate([baseline, current]))
    before = np.searchsorted(np.sort(baseline), pooled[:-1], "right") / len(baseline)
    now = np.searchsorted(np.sort(current), pooled[:-1], "right") / len(current)
    return float((np.abs(before - now) * np.diff(pooled)).sum())


def spread(baseline: Float64Array, current: Float64Array) -> float:
    """Return the scale of a numeric effect, in the unit of the values, never 0.

    The interquartile range of the baseline; where half of it is one value, the standard deviation of all.
    """
    low, high = np.quantile(baseline, [0.25, 0.75])
    return float(high - low) or float(np.std(np.concatenate([baseline, current]))) or 1.0


def chi_square(table: Float64Array) -> Test:
    """Compare counts (2, C), baseline first; no cell may be expected to be 0.

    Source: scipy.stats.chi2_contingency without Yates's correction.
    """
    from scipy.special import chdtrc  # noqa: PLC0415 - slow to load

    if table.shape[1] < 2:
        return Test(0.0, 1.0)
    expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0) / table.sum()
    statistic = float(((table - expected) ** 2 / expected).sum())
    return Test(statistic, float(chdtrc(table.shape[1] - 1, statistic)))


def pooling(table: Float64Array, *, ordered: bool) -> Int64Array:
    """Put cells together until `LEAST_EXPECTED` are expected in each, on either side.

    Args:
        table: (2, C) counts, baseline first.
        ordered: Put neighbours together. Otherwise rare ones, beginning with the rarest; the last of these
            cells may hold fewer.

    Returns:
        int64 (C,) the new cell of each.
    """
    totals = table.sum(axis=0)
    least = LEAST_EXPECTED * table.sum() / max(float(table.sum(axis=1).min()), 1.0)
    order = np.arange(len(totals)) if ordered else np.argsort(totals, kind="stable")
    left = totals[order][::-1].cumsum()[::-1]
    cells = np.zeros(len(totals), np.int64)
    cell, filled = 0, 0.0
    for at, place in enumerate(order):
        alone = totals[place] >= least and not ordered
        if filled and (alone or (filled >= least and left[at] >= least)):
            cell, filled = cell + 1, 0.0
        cells[place] = cell
        filled += totals[place]
    return cells


def total_variation(table: Float64Array) -> float:
    """Return the share that changed its cell, 0 to 1, of counts (2, C)."""
    shares = table / table.sum(axis=1, keepdims=True)
    return float(np.abs(shares[0] - shares[1]).sum() / 2)


def psi(table: Float64Array) -> Divergence:
    """Return the population stability index of counts (2, C); expected: (C - 1)(1/n + 1/m)."""
    shares = np.maximum(table / table.sum(axis=1, keepdims=True), _LEAST_SHARE)
    value = float(((shares[1] - shares[0]) * np.log(shares[1] / shares[0])).sum())
    return Divergence(value, _noise(table))


def jensen_shannon(table: Float64Array) -> Divergence:
    """Return the Jensen-Shannon distance (natural logarithm) of counts (2, C).

    Source: scipy.spatial.distance.jensenshannon. Expected: the root of an eighth of PSI's.
    """
    shares = table / table.sum(axis=1, keepdims=True)
    middle = shares.mean(axis=0)
    ratio = np.divide(shares, middle, out=np.ones_like(shares), where=shares > 0)
    value = float((shares * np.log(ratio)).sum() / 2)
    return Divergence(max(value, 0.0) ** 0.5, (_noise(table) / 8) ** 0.5)


def _noise(table: Float64Array) -> float:
    used = int((table.sum(axis=0) > 0).sum())
    return float((used - 1) * (1 / table.sum(axis=1)).sum())

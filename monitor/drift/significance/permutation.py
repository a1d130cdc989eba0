"""Permutation tests: p-values of any statistic, valid for any distribution of exchangeable units."""

import sys
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from quadriga.monitor.drift.significance import two_samples
from quadriga.monitor.drift.significance.exchangeable_units import ExchangeableUnits
from quadriga.tasks.arrays import Float32Array, Float64Array, Int64Array

SideMatrix = Float32Array
"""(B, K) matrix with 1 where a unit is current, 0 where it is of the baseline, in each of B permutations."""

Statistic = Callable[[Float32Array], Float64Array]
"""Computes the statistics (B,) of B permutations from a `SideMatrix` of units, or from current counts (B, C)."""


class PermutationBudget(NamedTuple):
    """Number of permutations to make, and their seed."""

    max_permutations: int
    seed: int


class PermutationTest(NamedTuple):
    """An observed statistic, and its distribution under permutations."""

    observed: float
    draw: Callable[[int, np.random.Generator], Float64Array]
    """Returns the statistics (B,) of B random permutations."""


_MIN_EXPECTED_ROWS = 20.0
"""Minimum expected count of each cell for which the chi-square distribution is accurate."""
_CHUNK_VALUES = 4_000_000
"""Maximum number of values in memory at a time."""
_MIN_EXTREME = 10
"""Number of permutations as extreme as the observed statistic after which no more are made."""
_ROUNDING_TOLERANCE = 1e-6
"""Share of the observed statistic by which a permutation may fall short and still count as equally extreme."""


def log_arrangements(units: ExchangeableUnits) -> float:
    """Return the natural logarithm of the number of ways to assign units to the sides."""
    from scipy.special import gammaln  # noqa: PLC0415 - slow to load

    n = np.bincount(units.strata)
    k = np.bincount(units.strata, units.is_current)
    return float((gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)).sum())


def sequential_p_value(test: PermutationTest, budget: PermutationBudget) -> float:
    """Return the share of permutations at least as extreme as the observed statistic, itself included.

    999 permutations are made first, then more until ten are as extreme or the budget is spent.

    Source: Besag and Clifford, Sequential Monte Carlo p-values (1991).
    """
    rng = np.random.default_rng(budget.seed)
    extreme = done = 0
    while done < budget.max_permutations and (done == 0 or extreme < _MIN_EXTREME):
        statistics = test.draw(min(done or 999, budget.max_permutations - done), rng)
        extreme += int((statistics >= test.observed * (1 - _ROUNDING_TOLERANCE)).sum())
        done += len(statistics)
    return (1 + extreme) / (1 + done)


def fitted_p_value(test: PermutationTest, budget: PermutationBudget) -> tuple[float, float]:
    """Return a p-value and the mean of the permutations, for a statistic that is expensive to compute.

    If fewer than ten permutations are as extreme as the observed statistic, the p-value is that of the Pearson
    type III distribution with the mean, variance and skewness of the permutations.

    Source: Minas and Montana, Distance-based analysis of variance: approximate inference (2014).
    """
    from scipy.special import gammaincc, ndtr  # noqa: PLC0415 - slow to load

    statistics = test.draw(budget.max_permutations, np.random.default_rng(budget.seed))
    mean, deviation = float(statistics.mean()), float(statistics.std())
    extreme = int((statistics >= test.observed * (1 - _ROUNDING_TOLERANCE)).sum())
    if extreme >= _MIN_EXTREME or deviation == 0:
        return (1 + extreme) / (1 + len(statistics)), mean
    z = (test.observed - mean) / deviation
    skew = float((((statistics - mean) / deviation) ** 3).mean())
    if skew < 0.05:
        tail = float(ndtr(-z))
    else:
        shape = 4 / skew**2
        tail = float(gammaincc(shape, max(shape + z * shape**0.5, 0.0)))
    return min(max(tail, sys.float_info.min), (1 + _MIN_EXTREME) / (1 + len(statistics))), mean


def permute_rows(statistic: Statistic, table: Float64Array) -> PermutationTest:
    """Permute independent rows; as only their counts (2, C) matter, those are drawn directly."""
    totals = table.sum(axis=0).astype(np.int64)
    n = int(table[1].sum())

    def draw(count: int, rng: np.random.Generator) -> Float64Array:
        current_counts = rng.multivariate_hypergeometric(totals, n, count, method="marginals")
        return statistic(current_counts.astype(np.float32))

    return PermutationTest(float(statistic(table[1:].astype(np.float32))[0]), draw)


def permute_units(statistic: Statistic, units: ExchangeableUnits) -> PermutationTest:
    """Permute units, within their strata."""
    step = max(_CHUNK_VALUES // max(len(units.is_current), 1), 1)

    def draw(count: int, rng: np.random.Generator) -> Float64Array:
        starts = range(0, count, step)
        return np.concatenate(
            [statistic(_draw_sides(units, min(step, count - start), rng)) for start in starts]
        )

    return PermutationTest(float(statistic(units.is_current[None].astype(np.float32))[0]), draw)


def _draw_sides(units: ExchangeableUnits, count: int, rng: np.random.Generator) -> SideMatrix:
    """Assign the units of each stratum to the sides anew, in `count` permutations."""
    sides = np.zeros((count, len(units.is_current)), np.float32)
    by_stratum = np.argsort(units.strata, kind="stable")
    ends = np.flatnonzero(np.diff(units.strata[by_stratum])) + 1
    for unit_indices in np.split(by_stratum, ends):
        current_count = int(units.is_current[unit_indices].sum())
        if current_count in {0, len(unit_indices)}:
            sides[:, unit_indices] = float(current_count > 0)
            continue
        keys = rng.random((count, len(unit_indices)), np.float32)
        chosen_members = np.argpartition(keys, current_count - 1, axis=1)[:, :current_count]
        np.put_along_axis(sides, unit_indices[chosen_members], 1.0, axis=1)
    return sides


def count_table(codes: Int64Array, n: int, cells: int) -> Float64Array:
    """Count the codes (P,) of each side in a table (2, C); the first n are the baseline's."""
    sides = [np.bincount(side, minlength=cells) for side in (codes[:n], codes[n:])]
    return np.array(sides, np.float64)


def chi_square(
    cells: Int64Array, units: ExchangeableUnits, n: int, budget: PermutationBudget
) -> two_samples.TestResult:
    """Test cells (P,), the first n of the baseline, by chi-square, with permutations where its distribution is inexact."""
    table = count_table(cells, n, int(cells.max()) + 1)
    result = two_samples.chi_square(table)
    min_expected = table.sum(axis=0).min() * table.sum(axis=1).min() / table.sum()
    if table.shape[1] < 2 or (units.kind == "rows" and min_expected >= _MIN_EXPECTED_ROWS):
        return result
    return result._replace(
        p=permutation_p_value(_chi_square_statistic, cells, units, n=n, budget=budget)
    )


def permutation_p_value(
    distance: Callable[[Float64Array | Float32Array, Float32Array], Float64Array],
    codes: Int64Array,
    units: ExchangeableUnits,
    n: int,
    budget: PermutationBudget,
) -> float:
    """Return the permutation p-value of a distance between count tables.

    Args:
        distance: Computes (B,) from the counts of all rows (C,) and of the current rows (B, C).
        codes: (P,) cells of the rows, the baseline's first.
        units: Exchangeable units of the rows.
        n: Number of rows of the baseline.
        budget: Number of permutations.
    """
    table = count_table(codes, n, int(codes.max()) + 1)
    if units.kind == "rows":
        return sequential_p_value(permute_rows(partial(distance, table.sum(axis=0)), table), budget)
    cells = units.unit_of_row * table.shape[1] + codes
    counts = np.bincount(cells, minlength=len(units.is_current) * table.shape[1])
    per_unit = counts.reshape(-1, table.shape[1]).astype(np.float32)
    if units.has_equal_weights:
        per_unit /= per_unit.sum(axis=1, keepdims=True)
    total = per_unit.sum(axis=0)
    return sequential_p_value(
        permute_units(lambda sides: distance(total, sides @ per_unit), units), budget
    )


def ks_statistic(pooled: Float64Array | Float32Array, current: Float32Array) -> Float64Array:
    """Return the Kolmogorov-Smirnov statistics (B,) of current counts (B, C) against the remaining ones."""
    below, n = current.cumsum(axis=1), current.sum(axis=1, keepdims=True)
    distances = np.abs(below / n - (pooled.cumsum() - below) / (pooled.sum() - n))
    return np.asarray(distances.max(axis=1), np.float64)


def _chi_square_statistic(
    pooled: Float64Array | Float32Array, current: Float32Array
) -> Float64Array:
    """Return the chi-square statistics (B,) of current counts (B, C) against the remaining ones."""
    expected = pooled * (current.sum(axis=1, keepdims=True) / pooled.sum())
    terms = (current - expected) ** 2 * (1 / expected + 1 / (pooled - expected))
    return np.asarray(terms.sum(axis=1), np.float64)

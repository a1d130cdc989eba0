"""P-values of any statistic, by letting units change sides: exact but for chance, whatever they hold."""

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
"""Computes (B,) from what is current in each permutation: units (B, K), or counts (B, C) of them."""


class PermutationBudget(NamedTuple):
    """How many permutations are made."""

    max_permutations: int
    seed: int


class PermutationTest(NamedTuple):
    """A statistic of what is there, and of what might as well be."""

    observed: float
    draw: Callable[[int, np.random.Generator], Float64Array]
    """Returns the statistic of that many permutations."""


_MIN_EXPECTED_ROWS = 20.0
"""Rows expected in each cell, from which the chi-square distribution is trusted."""
_CHUNK_VALUES = 4_000_000
"""Maximum number of values in memory at a time."""
_MIN_EXTREME = 10
"""Permutations as extreme as what is there, after which no more are needed."""
_ROUNDING_TOLERANCE = 1e-6
"""Share of a statistic by which a permutation may fall short of what is there, and be as extreme."""


def log_arrangements(units: ExchangeableUnits) -> float:
    """Return in how many ways units can be dealt out, as its natural logarithm."""
    from scipy.special import gammaln  # noqa: PLC0415 - slow to load

    n = np.bincount(units.strata)
    k = np.bincount(units.strata, units.is_current)
    return float((gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)).sum())


def sequential_p_value(test: PermutationTest, budget: PermutationBudget) -> float:
    """Return how often a permutation is at least as extreme as what is there, that one included.

    A first thousand; more while fewer than ten of them are. Source: Besag and Clifford,
    Sequential Monte Carlo p-values, 1991.
    """
    rng = np.random.default_rng(budget.seed)
    extreme = done = 0
    while done < budget.max_permutations and (done == 0 or extreme < _MIN_EXTREME):
        drawn = test.draw(min(done or 999, budget.max_permutations - done), rng)
        extreme += int((drawn >= test.observed * (1 - _ROUNDING_TOLERANCE)).sum())
        done += len(drawn)
    return (1 + extreme) / (1 + done)


def fitted_p_value(test: PermutationTest, budget: PermutationBudget) -> tuple[float, float]:
    """Return a p-value, and the mean of permutations, for a statistic that is dear to compute.

    Where fewer than ten permutations are as extreme as what is there, the p-value is that of the Pearson
    type III distribution with their mean, variance and skewness. Source: Minas and Montana, Distance-based
    analysis of variance: approximate inference, 2014.
    """
    from scipy.special import gammaincc, ndtr  # noqa: PLC0415 - slow to load

    drawn = test.draw(budget.max_permutations, np.random.default_rng(budget.seed))
    mean, deviation = float(drawn.mean()), float(drawn.std())
    extreme = int((drawn >= test.observed * (1 - _ROUNDING_TOLERANCE)).sum())
    if extreme >= _MIN_EXTREME or deviation == 0:
        return (1 + extreme) / (1 + len(drawn)), mean
    z = (test.observed - mean) / deviation
    skew = float((((drawn - mean) / deviation) ** 3).mean())
    if skew < 0.05:
        tail = float(ndtr(-z))
    else:
        shape = 4 / skew**2
        tail = float(gammaincc(shape, max(shape + z * shape**0.5, 0.0)))
    return min(max(tail, np.finfo(float).tiny), (1 + _MIN_EXTREME) / (1 + len(drawn))), mean


def permute_rows(statistic: Statistic, table: Float64Array) -> PermutationTest:
    """Let independent rows change sides, of which only counts (2, C) matter."""
    totals = table.sum(axis=0).astype(np.int64)
    n = int(table[1].sum())

    def draw(count: int, rng: np.random.Generator) -> Float64Array:
        dealt = rng.multivariate_hypergeometric(totals, n, count, method="marginals")
        return statistic(dealt.astype(np.float32))

    return PermutationTest(float(statistic(table[1:].astype(np.float32))[0]), draw)


def permute_units(statistic: Statistic, units: ExchangeableUnits) -> PermutationTest:
    """Let units change sides."""
    step = max(_CHUNK_VALUES // max(len(units.is_current), 1), 1)

    def draw(count: int, rng: np.random.Generator) -> Float64Array:
        starts = range(0, count, step)
        return np.concatenate(
            [statistic(_draw_sides(units, min(step, count - at), rng)) for at in starts]
        )

    return PermutationTest(float(statistic(units.is_current[None].astype(np.float32))[0]), draw)


def _draw_sides(units: ExchangeableUnits, count: int, rng: np.random.Generator) -> SideMatrix:
    """Deal the units of each stratum out anew."""
    made = np.zeros((count, len(units.is_current)), np.float32)
    by_stratum = np.argsort(units.strata, kind="stable")
    ends = np.flatnonzero(np.diff(units.strata[by_stratum])) + 1
    for members in np.split(by_stratum, ends):
        taken = int(units.is_current[members].sum())
        if taken in {0, len(members)}:
            made[:, members] = float(taken > 0)
            continue
        keys = rng.random((count, len(members)), np.float32)
        chosen = np.argpartition(keys, taken - 1, axis=1)[:, :taken]
        np.put_along_axis(made, members[chosen], 1.0, axis=1)
    return made


def count_table(codes: Int64Array, n: int, cells: int) -> Float64Array:
    """Count (2, C) the first n codes (P,) and the others."""
    sides = [np.bincount(one, minlength=cells) for one in (codes[:n], codes[n:])]
    return np.array(sides, np.float64)


def chi_square(
    cells: Int64Array, exchanged: ExchangeableUnits, n: int, budget: PermutationBudget
) -> two_samples.TestResult:
    """Compare cells (P,), the first n the baseline's; the distribution is trusted where many are expected in each."""
    table = count_table(cells, n, int(cells.max()) + 1)
    found = two_samples.chi_square(table)
    least = table.sum(axis=0).min() * table.sum(axis=1).min() / table.sum()
    if table.shape[1] < 2 or (exchanged.kind == "rows" and least >= _MIN_EXPECTED_ROWS):
        return found
    return found._replace(p=permutation_p_value(_chi_square_statistic, cells, exchanged, n, budget))


def permutation_p_value(
    distance: Callable[[Float64Array | Float32Array, Float32Array], Float64Array],
    codes: Int64Array,
    exchanged: ExchangeableUnits,
    n: int,
    budget: PermutationBudget,
) -> float:
    """Return a p-value of a statistic of the counts of all rows (C,) and of current ones (B, C).

    Codes (P,) are the cells of the rows, the first n the baseline's.
    """
    table = count_table(codes, n, int(codes.max()) + 1)
    if exchanged.kind == "rows":
        return sequential_p_value(permute_rows(partial(distance, table.sum(axis=0)), table), budget)
    at = exchanged.unit_of_row * table.shape[1] + codes
    counts = np.bincount(at, minlength=len(exchanged.is_current) * table.shape[1])
    per_unit = counts.reshape(-1, table.shape[1]).astype(np.float32)
    if exchanged.has_equal_weights:
        per_unit /= per_unit.sum(axis=1, keepdims=True)
    total = per_unit.sum(axis=0)
    return sequential_p_value(
        permute_units(lambda sides: distance(total, sides @ per_unit), exchanged), budget
    )


def ks_statistic(total: Float64Array | Float32Array, now: Float32Array) -> Float64Array:
    """Return the Kolmogorov-Smirnov statistic."""
    below, n = now.cumsum(axis=1), now.sum(axis=1, keepdims=True)
    apart = np.abs(below / n - (total.cumsum() - below) / (total.sum() - n))
    return np.asarray(apart.max(axis=1), np.float64)


def _chi_square_statistic(total: Float64Array | Float32Array, now: Float32Array) -> Float64Array:
    """Return the chi-square statistic."""
    expected = total * (now.sum(axis=1, keepdims=True) / total.sum())
    terms = (now - expected) ** 2 * (1 / expected + 1 / (total - expected))
    return np.asarray(terms.sum(axis=1), np.float64)

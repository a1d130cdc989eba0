"""P-values of any statistic, by letting units change sides: exact but for chance, whatever they hold."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from quadriga.monitor.drift.significance import two_samples
from quadriga.monitor.drift.significance.exchangeable_units import Units
from quadriga.tasks.arrays import Float32Array, Float64Array, Int64Array

SideMatrix = Float32Array
"""(B, K) matrix with 1 where a unit is current, 0 where it is of the baseline, in each of B permutations."""

Statistic = Callable[[Float32Array], Float64Array]
"""Computes (B,) from what is current in each permutation: units (B, K), or counts (B, C) of them."""


class Effort(NamedTuple):
    """How many permutations are made."""

    most: int
    seed: int


class Chances(NamedTuple):
    """A statistic of what is there, and of what might as well be."""

    there: float
    draw: Callable[[int, np.random.Generator], Float64Array]
    """Returns the statistic of that many permutations."""


_CERTAIN = 20.0
"""Rows expected in each cell, from which the chi-square distribution is trusted."""
_CHUNK = 4_000_000
"""Maximum number of values in memory at a time."""
_ENOUGH = 10
"""Permutations as extreme as what is there, after which no more are needed."""
_ROUNDING = 1e-6
"""Share of a statistic by which a permutation may fall short of what is there, and be as extreme."""


def arrangements(units: Units) -> float:
    """Return in how many ways units can be dealt out, as its natural logarithm."""
    from scipy.special import gammaln  # noqa: PLC0415 - slow to load

    n = np.bincount(units.strata)
    k = np.bincount(units.strata, units.current)
    return float((gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)).sum())


def p_value(chances: Chances, effort: Effort) -> float:
    """Return how often a permutation is at least as extreme as what is there, that one included.

    A first thousand; more while fewer than ten of them are. Source: Besag and Clifford,
    Sequential Monte Carlo p-values, 1991.
    """
    rng = np.random.default_rng(effort.seed)
    extreme = done = 0
    while done < effort.most and (done == 0 or extreme < _ENOUGH):
        drawn = chances.draw(min(done or 999, effort.most - done), rng)
        extreme += int((drawn >= chances.there * (1 - _ROUNDING)).sum())
        done += len(drawn)
    return (1 + extreme) / (1 + done)


def fitted(chances: Chances, effort: Effort) -> tuple[float, float]:
    """Return a p-value, and the mean of permutations, for a statistic that is dear to compute.

    Where fewer than ten permutations are as extreme as what is there, the p-value is that of the Pearson
    type III distribution with their mean, variance and skewness. Source: Minas and Montana, Distance-based
    analysis of variance: approximate inference, 2014.
    """
    from scipy.special import gammaincc, ndtr  # noqa: PLC0415 - slow to load

    drawn = chances.draw(effort.most, np.random.default_rng(effort.seed))
    mean, deviation = float(drawn.mean()), float(drawn.std())
    extreme = int((drawn >= chances.there * (1 - _ROUNDING)).sum())
    if extreme >= _ENOUGH or deviation == 0:
        return (1 + extreme) / (1 + len(drawn)), mean
    z = (chances.there - mean) / deviation
    skew = float((((drawn - mean) / deviation) ** 3).mean())
    if skew < 0.05:
        tail = float(ndtr(-z))
    else:
        shape = 4 / skew**2
        tail = float(gammaincc(shape, max(shape + z * shape**0.5, 0.0)))
    return min(max(tail, np.finfo(float).tiny), (1 + _ENOUGH) / (1 + len(drawn))), mean


def dealing_rows(statistic: Statistic, table: Float64Array) -> Chances:
    """Let independent rows change sides, of which only counts (2, C) matter."""
    totals = table.sum(axis=0).astype(np.int64)
    n = int(table[1].sum())

    def draw(count: int, rng: np.random.Generator) -> Float64Array:
        dealt = rng.multivariate_hypergeometric(totals, n, count, method="marginals")
        return statistic(dealt.astype(np.float32))

    return Chances(float(statistic(table[1:].astype(np.float32))[0]), draw)


def dealing(statistic: Statistic, units: Units) -> Chances:
    """Let units change sides."""
    step = max(_CHUNK // max(len(units.current), 1), 1)

    def draw(count: int, rng: np.random.Generator) -> Float64Array:
        starts = range(0, count, step)
        return np.concatenate(
            [statistic(_sides(units, min(step, count - at), rng)) for at in starts]
        )

    return Chances(float(statistic(units.current[None].astype(np.float32))[0]), draw)


def _sides(units: Units, count: int, rng: np.random.Generator) -> SideMatrix:
    """Deal the units of each stratum out anew."""
    made = np.zeros((count, len(units.current)), np.float32)
    by_stratum = np.argsort(units.strata, kind="stable")
    ends = np.flatnonzero(np.diff(units.strata[by_stratum])) + 1
    for members in np.split(by_stratum, ends):
        taken = int(units.current[members].sum())
        if taken in {0, len(members)}:
            made[:, members] = float(taken > 0)
            continue
        keys = rng.random((count, len(members)), np.float32)
        chosen = np.argpartition(keys, taken - 1, axis=1)[:, :taken]
        np.put_along_axis(made, members[chosen], 1.0, axis=1)
    return made


def counts_of(codes: Int64Array, n: int, cells: int) -> Float64Array:
    """Count (2, C) the first n codes (P,) and the others."""
    sides = [np.bincount(one, minlength=cells) for one in (codes[:n], codes[n:])]
    return np.array(sides, np.float64)


def chi_square(cells: Int64Array, exchanged: Units, n: int, effort: Effort) -> two_samples.Test:
    """Compare cells (P,), the first n the baseline's; the distribution is trusted where many are expected in each."""
    table = counts_of(cells, n, int(cells.max()) + 1)
    found = two_samples.chi_square(table)
    least = table.sum(axis=0).min() * table.sum(axis=1).min() / table.sum()
    if table.shape[1] < 2 or (exchanged.kind == "rows" and least >= _CERTAIN):
        return found
    return found._replace(p=permuted(_squared_distance, cells, exchanged, n, effort))


def permuted(
    distance: Callable[[Float64Array | Float32Array, Float32Array], Float64Array],
    codes: Int64Array,
    exchanged: Units,
    n: int,
    effort: Effort,
) -> float:
    """Return a p-value of a statistic of the counts of all rows (C,) and of current ones (B, C).

    Codes (P,) are the cells of the rows, the first n the baseline's.
    """
    table = counts_of(codes, n, int(codes.max()) + 1)
    if exchanged.kind == "rows":
        return p_value(dealing_rows(partial(distance, table.sum(axis=0)), table), effort)
    at = exchanged.of * table.shape[1] + codes
    counts = np.bincount(at, minlength=len(exchanged.current) * table.shape[1])
    per_unit = counts.reshape(-1, table.shape[1]).astype(np.float32)
    if exchanged.even:
        per_unit /= per_unit.sum(axis=1, keepdims=True)
    total = per_unit.sum(axis=0)
    return p_value(dealing(lambda sides: distance(total, sides @ per_unit), exchanged), effort)


def largest_distance(total: Float64Array | Float32Array, now: Float32Array) -> Float64Array:
    """Return the Kolmogorov-Smirnov statistic."""
    below, n = now.cumsum(axis=1), now.sum(axis=1, keepdims=True)
    apart = np.abs(below / n - (total.cumsum() - below) / (total.sum() - n))
    return np.asarray(apart.max(axis=1), np.float64)


def _squared_distance(total: Float64Array | Float32Array, now: Float32Array) -> Float64Array:
    """Return the chi-square statistic."""
    expected = total * (now.sum(axis=1, keepdims=True) / total.sum())
    terms = (now - expected) ** 2 * (1 / expected + 1 / (total - expected))
    return np.asarray(terms.sum(axis=1), np.float64)

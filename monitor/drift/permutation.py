"""P-values of any statistic, by letting units change sides: exact but for chance, whatever they hold."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.special import gammaincc, gammaln, ndtr

from monitor.drift.dependence import Units

Sides = npt.NDArray[np.float32]
"""(B, K): 1 where a unit is current, 0 where it is of the baseline, in each of B permutations."""

Statistic = Callable[[Sides], npt.NDArray[np.float64]]
"""Returns (B,)."""

_CHUNK = 4_000_000
"""Numbers in memory at a time."""
_ENOUGH = 10
"""Permutations as extreme as what is there, after which no more are needed."""


def arrangements(units: Units) -> float:
    """Return in how many ways units can be dealt out, as its natural logarithm."""
    n = np.bincount(units.strata)
    k = np.bincount(units.strata, units.current)
    return float((gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)).sum())


def p_value(statistic: Statistic, units: Units, *, most: int, seed: int) -> float:
    """Return how often a permutation is at least as extreme as what is there, that one included.

    A first thousand; more, up to `most`, while fewer than ten of them are. Source: Besag and Clifford,
    Sequential Monte Carlo p-values, 1991.
    """
    rng = np.random.default_rng(seed)
    there = _there(statistic, units)
    extreme = done = 0
    while done < most and (done == 0 or extreme < _ENOUGH):
        drawn = permuted(statistic, units, min(done or 999, most - done), rng)
        extreme += int((drawn >= there).sum())
        done += len(drawn)
    return (1 + extreme) / (1 + done)


def fitted(
    statistic: Statistic, units: Units, *, permutations: int, seed: int
) -> tuple[float, float]:
    """Return a p-value and the statistic's mean under permutation, for a statistic dear to compute.

    Where fewer than ten permutations are as extreme as what is there, the p-value is that of the Pearson
    type III distribution with their mean, variance and skewness. Source: Minas and Montana, Distance-based
    analysis of variance: approximate inference, 2014.
    """
    there = _there(statistic, units)
    drawn = permuted(statistic, units, permutations, np.random.default_rng(seed))
    mean, deviation = float(drawn.mean()), float(drawn.std())
    extreme = int((drawn >= there).sum())
    if extreme >= _ENOUGH or deviation == 0:
        return (1 + extreme) / (1 + len(drawn)), mean
    z = (there - mean) / deviation
    skew = float((((drawn - mean) / deviation) ** 3).mean())
    if skew < 0.05:
        tail = float(ndtr(-z))
    else:
        shape = 4 / skew**2
        tail = float(gammaincc(shape, max(shape + z * shape**0.5, 0.0)))
    return min(max(tail, np.finfo(float).tiny), (1 + _ENOUGH) / (1 + len(drawn))), mean


def permuted(
    statistic: Statistic, units: Units, count: int, rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Return the statistic of that many permutations."""
    step = max(_CHUNK // max(len(units.current), 1), 1)
    parts = [statistic(_sides(units, min(step, count - at), rng)) for at in range(0, count, step)]
    return np.concatenate(parts)


def _there(statistic: Statistic, units: Units) -> float:
    """Return the statistic of what is there, less what rounding may take from a permutation like it."""
    found = float(statistic(units.current[None].astype(np.float32))[0])
    return found - 1e-6 * abs(found)


def _sides(units: Units, count: int, rng: np.random.Generator) -> Sides:
    """Deal the units of each stratum out anew."""
    made = np.zeros((count, len(units.current)), np.float32)
    by_stratum = np.argsort(units.strata, kind="stable")
    for members in np.split(by_stratum, np.flatnonzero(np.diff(units.strata[by_stratum])) + 1):
        taken = int(units.current[members].sum())
        if taken == 0 or taken == len(members):
            made[:, members] = float(taken > 0)
            continue
        keys = rng.random((count, len(members)), np.float32)
        chosen = np.argpartition(keys, taken - 1, axis=1)[:, :taken]
        np.put_along_axis(made, members[chosen], 1.0, axis=1)
    return made

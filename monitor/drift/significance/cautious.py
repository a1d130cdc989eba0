"""Changes that are beyond doubt, although the rows depend on each other in a way that permutations cannot follow."""

from typing import NamedTuple

import numpy as np

from quadriga.monitor.drift.significance.exchangeable_units import ExchangeableUnits
from quadriga.tasks.arrays import Float32Array

_SAFETY = 1.5
"""Factor by which the number of independent rows is taken to be smaller than estimated."""
_MIN_INDEPENDENT = 1.5
"""Minimum number of independent rows of a side, less one."""
_MIN_CERTAIN = 40
"""Minimum number of independent rows from which a dependence was estimated, so that the estimate can be relied on."""
_MAX_RATIO = 2.0
"""Ratio of the times of both sides up to which the better estimate stands for both."""


class Dependence(NamedTuple):
    """How much the rows of both sides depend on each other."""

    time: float
    """Number of rows that are worth one independent row; the larger of both sides."""
    n_eff: tuple[float, float]
    """Number of independent rows of baseline and current."""
    is_certain: bool
    """Whether a side has enough rows to tell."""


def find_dependence(units: ExchangeableUnits, n: tuple[int, int]) -> Dependence | None:
    """Return the dependence of so many rows of baseline and current.

    It is None if rows do not depend on each other, and if sources are compared: one may differ for what it is.
    """
    if units.kind == "groups" or (units.kind == "rows" and not units.has_memory):
        return None
    times = [
        max(rows / size, memory.time if memory.is_present else 1.0)
        for rows, size, memory in zip(n, units.n_eff, units.memory, strict=True)
    ]
    longest = max(times)
    is_certain = any(
        rows / time >= _MIN_CERTAIN and time * _MAX_RATIO >= longest
        for rows, time in zip(n, times, strict=True)
    )
    return Dependence(longest, (n[0] / longest, n[1] / longest), is_certain)


def cautious_p_value(scores: tuple[Float32Array, Float32Array], dependence: Dependence) -> float:
    """Return the p-value of a difference of means (P, D) between two sides, which is large unless the change is enormous.

    The number of independent rows is taken to be smaller than estimated, and the dimensions are adjusted by Bonferroni.
    It is 1 if the dependence is not certain.
    """
    from scipy.special import stdtr  # noqa: PLC0415 - slow to load

    counts = [len(rows) / (dependence.time * _SAFETY) for rows in scores]
    freedom = min(counts) - 1
    if freedom < _MIN_INDEPENDENT or not dependence.is_certain:
        return 1.0
    means = [rows.mean(axis=0) for rows in scores]
    variances = [rows.var(axis=0) for rows in scores]
    error = np.sqrt(variances[0] / counts[0] + variances[1] / counts[1])
    varies = error > 0
    if not varies.any():
        return 1.0
    largest = float((np.abs(means[1] - means[0])[varies] / error[varies]).max())
    return float(min(2 * stdtr(freedom, -largest) * varies.sum(), 1.0))

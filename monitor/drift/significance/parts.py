"""Changes in a part of the window: a contiguous run of rows is compared with the baseline, whole windows likewise.

A change that begins late hardly moves the whole window. Rows may depend on each other: each counts as a share of an
independent one. P-values are Welch's, with the larger of both variances, and adjusted by Bonferroni for the parts and
dimensions.
"""

from typing import NamedTuple

import numpy as np

from quadriga.monitor.drift.significance.exchangeable_units import ExchangeableUnits
from quadriga.monitor.drift.significance.memory import MAX_DOUBT, Memory
from quadriga.tasks.arrays import Float32Array, Float64Array, Int64Array

PARTS_SHARE = 0.02
"""Share of alpha that is spent on parts; the rest is for the whole window."""
_MAX_NAMED_P = {"blocks": 0.3, "groups": 0.9}
"""P-value of a part below which rows that depend on each other are not said to be unchanged, by the kind of units.

Parts overlap, so that Bonferroni makes their p-values several times too large, and those of groups are of fewer rows than
were estimated, by `SAFETY`; measured, unchanged windows have such a part in 0 to 2 %.
"""
_LONG_TIME, _FEW_ROWS = 15.0, 50.0
"""Number of rows worth an independent one from which on it is not well known, and of independent rows up to which it is not;
where it is, the p-value has to be smaller."""
MIN_PART_ROWS = 30
"""Minimum number of rows of a part."""
_SHRINK = 0.8
"""Ratio of the lengths of parts that begin or end with the window."""
SAFETY = 1.5
"""Factor by which the number of independent rows is taken to be smaller than estimated."""
_MIN_INDEPENDENT = 1.5
"""Minimum number of independent rows of a side, less one."""
_MIN_CERTAIN = 40
"""Minimum number of independent rows from which a dependence was estimated, so that the estimate can be relied on."""
_MAX_RATIO = 2.0
"""Ratio of the times of both sides up to which the better estimate stands for both."""
_ROUNDING = 1e-12
_MIN_INSIDE_ERRORS = 2.0
"""Standard errors, beyond what the best of all parts has by chance, by which a part has to differ from the rest."""


class Dependence(NamedTuple):
    """How much the rows of both sides depend on each other."""

    time: float
    """Number of rows that are worth one independent row; the larger of both sides."""
    n_eff: tuple[float, float]
    """Number of independent rows of baseline and current."""
    is_certain: bool
    """Whether a side has enough rows to tell."""


class Part(NamedTuple):
    """The part of the window that differs most from the baseline."""

    start: int
    end: int
    """Values of the window from start up to end, excluded."""
    dimension: int
    """Dimension of the scores that differs most."""
    p: float
    """P-value, adjusted for all parts and dimensions."""
    stands_out: bool
    """Whether it differs clearly from the rest of the window, too."""


def independent(n: tuple[int, int]) -> Dependence:
    """Return the dependence of so many independent rows of both sides."""
    return Dependence(1.0, n, is_certain=True)


def find_dependence(
    units: ExchangeableUnits, n: tuple[int, int], memory: tuple[Memory, Memory] | None = None
) -> Dependence:
    """Return the dependence of so many rows of baseline and current, with the memory of the units or another one."""
    times = [
        max(rows / size, side.time if side.is_present or side.errors >= MAX_DOUBT else 1.0)
        for rows, size, side in zip(n, units.n_eff, memory or units.memory, strict=True)
    ]
    longest = max(times) * (SAFETY if units.kind == "groups" else 1.0)
    is_certain = any(
        rows / time >= _MIN_CERTAIN and time * _MAX_RATIO >= longest
        for rows, time in zip(n, times, strict=True)
    )
    return Dependence(longest, (n[0] / longest, n[1] / longest), is_certain)


def whole_p_value(scores: tuple[Float32Array, Float32Array], dependence: Dependence) -> float:
    """Return the p-value of a difference of means (P, D) between both sides; 1 if the dependence is not certain."""
    from scipy.special import stdtr  # noqa: PLC0415 - slow to load

    rows = dependence.time * SAFETY if dependence.time > 1 else 1.0
    freedom = min(map(len, scores)) / rows - 1
    if freedom < _MIN_INDEPENDENT or not dependence.is_certain:
        return 1.0
    t = _t_values(scores, np.array([[0, len(scores[1])]]), rows)
    return float(min(2 * stdtr(freedom, -t.max()) * _varying(scores), 1.0))


def most_changed_part(
    scores: tuple[Float32Array, Float32Array], dependence: Dependence
) -> Part | None:
    """Return the part of the window whose means (P, D) differ most from the baseline; None if the window is too short."""
    from scipy.special import stdtr  # noqa: PLC0415 - slow to load

    bounds = _bounds(len(scores[1]))
    if not len(bounds):
        return None
    t = _t_values(scores, bounds, dependence.time)
    place, dimension = np.unravel_index(int(t.argmax()), t.shape)
    # The variance is at least the baseline's, and as well known.
    freedom = max(len(scores[0]) / dependence.time - 1, 1.0)
    p = 2 * float(stdtr(freedom, -t.max())) * _varying(scores) * len(bounds)
    p = min(p, 1.0) if dependence.is_certain else 1.0
    values = scores[1][:, dimension].astype(np.float64)
    first, last = bounds[place].tolist()
    is_above = values[first:last].mean() >= scores[0][:, dimension].mean()
    start, end = _refined(values if is_above else -values, first, last)
    if (start, end) == (0, len(values)):  # a part of the window is not all of it
        start, end = first, last
    by_chance = (2 * np.log(len(values))) ** 0.5
    errors = _standard_errors(values, start, end) / dependence.time**0.5
    return Part(start, end, int(dimension), p, stands_out=errors >= by_chance + _MIN_INSIDE_ERRORS)


def is_doubted(part: Part, kind: str, dependence: Dependence) -> bool:
    """Check whether rows that depend on each other cannot be said to be unchanged, as a part of the window differs."""
    share = max(dependence.time / _LONG_TIME, _FEW_ROWS / dependence.n_eff[1])
    return part.p < _MAX_NAMED_P[kind] * min(share, 1.0)


def _bounds(n: int) -> Int64Array:
    """Return the parts (K, 2) of a window of n rows: at its begin and end, and within."""
    lengths, length = [], 0.9 * n
    while length >= MIN_PART_ROWS - 0.5:
        lengths.append(round(length))
        length *= _SHRINK
    bounds = [pair for size in lengths for pair in ((n - size, n), (0, size))]
    for share in (4, 8):
        if n // share >= MIN_PART_ROWS:
            starts = range(n // 8, n - n // share - n // 16, n // 8)
            bounds += [(start, start + n // share) for start in starts]
    return np.array(bounds, np.int64).reshape(-1, 2)


def _varying(scores: tuple[Float32Array, Float32Array]) -> int:
    """Return the number of dimensions that vary."""
    low = np.minimum(*(side.min(axis=0) for side in scores))
    return max(int((np.maximum(*(side.max(axis=0) for side in scores)) > low).sum()), 1)


def _t_values(
    scores: tuple[Float32Array, Float32Array], bounds: Int64Array, rows: float
) -> Float64Array:
    """Return Welch's |t| (K, D) of parts (K, 2) against the baseline, with the larger of both variances for the part.

    `rows` of either side count as an independent one.
    """
    baseline, current = (side.astype(np.float64) for side in scores)
    mean, variance = baseline.mean(axis=0), baseline.var(axis=0)
    sizes = np.diff(bounds, axis=1)
    sums, squares = (
        np.diff(np.vstack([np.zeros(moment.shape[1]), moment.cumsum(axis=0)])[bounds], axis=1)[:, 0]
        for moment in (current - mean, (current - mean) ** 2)
    )
    shift = sums / sizes
    largest = np.maximum(squares / sizes - shift**2, variance)
    # Where the baseline is constant, what varies is which row is on which side.
    share = sizes / (sizes + len(baseline))
    between = share * (1 - share) * shift**2
    largest = np.where(variance > _ROUNDING, largest, np.maximum(largest, between))
    error = largest / sizes + np.where(variance > _ROUNDING, variance, largest) / len(baseline)
    t: Float64Array = np.divide(
        np.abs(shift), np.sqrt(error * rows), out=np.zeros_like(shift), where=error > 0
    )
    return t


def _refined(values: Float64Array, start: int, end: int) -> tuple[int, int]:
    """Return where values (P,) are above the rest most clearly, near a part (start, end)."""
    total = np.r_[0.0, (values - values.mean()).cumsum()]
    n = len(values)
    margin = min(MIN_PART_ROWS // 3, n // 8)

    def clearest(starts: Int64Array, ends: Int64Array) -> int:
        sizes = ends - starts
        return int(
            ((total[ends] - total[starts]) / np.sqrt(sizes * (1 - sizes / n) + 1e-9)).argmax()
        )

    for _ in range(3):
        starts = np.arange(end - margin + 1)
        start = clearest(starts, np.full_like(starts, end))
        ends = np.arange(start + margin, n + 1)
        end = start + margin + clearest(np.full_like(ends, start), ends)
    # Chance moves an end by some rows.
    end = end if end < n - max(margin, n // 20) else n
    return (start if start > max(margin, n // 20) or end == n else 0), end


def _standard_errors(values: Float64Array, start: int, end: int) -> float:
    """Return by how many standard errors of independent values a part differs from the rest."""
    inside = np.arange(len(values)) >= start
    inside[end:] = False
    parts = values[inside], values[~inside]
    if not all(map(len, parts)):
        return 0.0
    error = np.sqrt(sum(part.var() / len(part) for part in parts))
    difference = abs(float(parts[0].mean() - parts[1].mean()))
    return difference / error if error > 0 else (np.inf if difference > 0 else 0.0)

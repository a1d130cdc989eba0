"""Changes in a part of the window: a contiguous run of rows is compared with the baseline, whole windows likewise.

A change that begins late hardly moves the whole window. Rows may depend on each other: each counts as a share of an
independent one. P-values are Welch's, with the larger of both variances, and adjusted by Bonferroni for the parts and
dimensions.
"""

from typing import NamedTuple

import numpy as np

from quadriga.monitor.drift.significance.exchangeable_units import ExchangeableUnits
from quadriga.tasks.arrays import Float32Array, Float64Array, Int64Array

PARTS_SHARE = 0.02
"""Share of alpha that is spent on parts; the rest is for the whole window."""
MIN_PART_ROWS = 30
"""Minimum number of rows of a part."""
_SHRINK = 0.8
"""Ratio of the lengths of parts that begin or end with the window."""
_SAFETY = 1.5
"""Factor by which the number of independent rows is taken to be smaller than estimated."""
_MIN_INDEPENDENT = 1.5
"""Minimum number of independent rows of a side, less one."""
_MIN_CERTAIN = 40
"""Minimum number of independent rows from which a dependence was estimated, so that the estimate can be relied on."""
_MAX_RATIO = 2.0
"""Ratio of the times of both sides up to which the better estimate stands for both."""
_MIN_INSIDE_ERRORS = 4.0
"""Standard errors by which a part has to differ from the rest of the window to be named."""


class Dependence(NamedTuple):
    """How much the rows of both sides depend on each other."""

    time: float
    """Number of rows that are worth one independent row; the larger of both sides."""
    n_eff: tuple[float, float]
    """Number of independent rows of baseline and current."""
    is_certain: bool
    """Whether a side has enough rows to tell."""

    @property
    def rows_per_independent(self) -> float:
        """Number of rows that count as an independent one, on the safe side."""
        return 1.0 if self.time <= 1 else self.time * _SAFETY


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


def find_dependence(units: ExchangeableUnits, n: tuple[int, int]) -> Dependence:
    """Return the dependence of so many rows of baseline and current; an uncertain one between sources.

    A source may differ for what it is, not for when it was seen.
    """
    if units.kind == "rows" and not units.has_memory:
        return independent(n)
    times = units.times
    longest = max(times)
    is_certain = units.kind != "groups" and any(
        rows / time >= _MIN_CERTAIN and time * _MAX_RATIO >= longest
        for rows, time in zip(n, times, strict=True)
    )
    return Dependence(longest, (n[0] / longest, n[1] / longest), is_certain)


def whole_p_value(scores: tuple[Float32Array, Float32Array], dependence: Dependence) -> float:
    """Return the p-value of a difference of means (P, D) between both sides; 1 if the dependence is not certain."""
    bounds = np.array([[0, len(scores[1])]])
    return float(min(_p_values(scores, bounds, dependence).min() * _varying(scores), 1.0))


def most_changed_part(
    scores: tuple[Float32Array, Float32Array], dependence: Dependence
) -> Part | None:
    """Return the part of the window whose means (P, D) differ most from the baseline; None if the window is too short."""
    n = len(scores[1])
    bounds = _bounds(n)
    if not len(bounds):
        return None
    p_values = _p_values(scores, bounds, dependence)
    place, dimension = np.unravel_index(int(p_values.argmin()), p_values.shape)
    p = float(min(p_values[place, dimension] * _varying(scores) * len(bounds), 1.0))
    values = scores[1][:, dimension].astype(np.float64)
    start, end = _refined(values, *bounds[place].tolist())
    errors = _standard_errors(values, start, end) / dependence.rows_per_independent**0.5
    return Part(start, end, int(dimension), p, stands_out=errors >= _MIN_INSIDE_ERRORS)


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


def _p_values(
    scores: tuple[Float32Array, Float32Array], bounds: Int64Array, dependence: Dependence
) -> Float64Array:
    """Return the p-values (K, D) of the means of parts (K, 2) against the baseline's, two-sided."""
    from scipy.special import stdtr  # noqa: PLC0415 - slow to load

    baseline, current = (side.astype(np.float64) for side in scores)
    mean, variance = baseline.mean(axis=0), baseline.var(axis=0)
    sizes = np.diff(bounds, axis=1)
    sums, squares = (
        np.diff(np.vstack([np.zeros(moment.shape[1]), moment.cumsum(axis=0)])[bounds], axis=1)[:, 0]
        for moment in (current - mean, (current - mean) ** 2)
    )
    shift = sums / sizes
    largest = np.maximum(squares / sizes - shift**2, variance)
    share = sizes / (sizes + len(baseline))
    # Where both sides are constant, but not equal, what varies is which row is on which side.
    largest = np.where(largest > 1e-12, largest, share * (1 - share) * shift**2)
    rows = dependence.rows_per_independent
    counts = sizes / rows, len(baseline) / rows
    freedom = np.minimum(*counts) - 1
    error = np.sqrt(largest / counts[0] + np.where(variance > 1e-12, variance, largest) / counts[1])
    t = np.divide(np.abs(shift), error, out=np.zeros_like(shift), where=error > 0)
    p_values = 2 * stdtr(np.maximum(freedom, 1.0), -t)
    return np.where((freedom >= _MIN_INDEPENDENT) & dependence.is_certain, p_values, 1.0)


def _refined(values: Float64Array, start: int, end: int) -> tuple[int, int]:
    """Return where a part (start, end) of the values (P,) differs most from the rest, moving each end that is within."""
    total = np.r_[0.0, (values - values.mean()).cumsum()]
    n = len(values)
    margin = min(MIN_PART_ROWS // 3, n // 8)
    is_open = start > 0, end < n
    for _ in range(3):
        if is_open[0]:
            starts = np.arange(margin, end - margin)
            start = int(starts[_contrast(total[end] - total[starts], end - starts, n).argmax()])
        if is_open[1]:
            ends = np.arange(start + margin, n - margin)
            end = int(ends[_contrast(total[ends] - total[start], ends - start, n).argmax()])
    return start, end


def _contrast(sums: Float64Array, sizes: Int64Array, n: int) -> Float64Array:
    """Return how much parts of these sums and sizes differ from the rest of n values whose sum is 0."""
    contrasts: Float64Array = np.abs(sums) / np.sqrt(sizes * (1 - sizes / n))
    return contrasts


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

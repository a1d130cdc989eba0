"""Memory of rows beyond their neighbours: sources that take turns without a key, and rows that were repeated.

The correlation of neighbours, by which blocks are made, sees neither: the row before belongs to another source. So
the correlation over many lags is compared with that over lags half a window away. What only tells sources apart, such as
their levels, is as strong there; memory is not.
"""

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from quadriga.tasks.arrays import Float32Array, Float64Array, Int64Array

BLOCK_CORRELATION_TIMES = 5
"""Length of a block, in integrated correlation times: ten times that in which correlation falls to 1/e."""
_MAX_LAGS = 100
_FAR_TIMES = 4
"""Number of far lags, in near ones: their mean should hardly vary by chance."""
_MIN_ROWS = 40
_MIN_STANDARD_ERRORS = 5.0
"""Excess of the near lags over the far ones, in standard errors, that counts as memory."""
_MIN_SURPLUS_ERRORS, _MIN_SURPLUS_ERRORS_OF_FEW = 2.4, 3.5
"""Surplus of the sum of near correlations over that of far ones, in standard errors, that counts as memory: of many
rows, and of few, which say little of it."""
MAX_DOUBT = 1.5
"""The same surplus of the baseline, from which on rows that pass for independent are not relied on for parts of a window."""
_MANY_ROWS = 500
_MAX_DISTINCT_SHARE = 0.6
_MAX_SHARED = 0.05
"""Values are repeated rows if so few of them are distinct, and so few of the window are in the baseline as well."""


_MAX_SPLITS, _MIN_SEGMENT, _CANDIDATES = 3, 20, 64
"""Changes that are taken out of a window, rows between two of them, and places that are tried first for each."""


class Memory(NamedTuple):
    """What the correlation of rows over many lags says."""

    is_present: bool
    time: float
    """Rows that are worth an independent one, counted over all lags; at least 1."""
    errors: float = 0.0
    """Surplus of the sum of near correlations over that of far ones, in standard errors."""


NO_MEMORY = Memory(is_present=False, time=1.0)


def find_memory(centred: Float64Array, sources: Int64Array, first_lag: int = 1) -> Memory:
    """Return the memory of rows at lags from the first one on.

    Args:
        centred: (P, D), source by source in time order, with the mean of the source subtracted.
        sources: (P,) source of each row; rows of different sources are not compared.
        first_lag: Distance in rows from which on there should be no memory.
    """
    length = int(np.median(np.bincount(sources)[sources])) if len(sources) else 0
    lags = min(length // 8, _MAX_LAGS)
    far_lags = min(length // 2 - first_lag - lags, _FAR_TIMES * lags)
    first_far = length // 2 - far_lags
    if len(centred) < _MIN_ROWS or lags < 2 or far_lags < lags:
        return NO_MEMORY
    total = float((centred**2).sum()) / len(centred)
    if total <= 0:
        return NO_MEMORY
    near, near_pairs = _correlations(centred, sources, range(first_lag, first_lag + lags), total)
    far, far_pairs = _correlations(centred, sources, range(first_far, first_far + far_lags), total)
    dimensions = effective_dimensions(centred)
    # Rows that resemble their neighbours have correlations of larger errors, which resemble their neighbours, too.
    within, _ = _correlations(centred, sources, range(1, first_lag), total)
    inflation = 1.0 + 2.0 * float((within**2).sum())
    pairs = float(near_pairs.mean()) * dimensions / inflation
    near_excess = float((near**2).sum()) * pairs - lags
    far_excess = float((far**2 - inflation / (far_pairs * dimensions)).mean()) * lags * pairs
    noise = math.sqrt(4 * lags * inflation + 8 * max(far_excess, 0.0))
    has_peaks = near_excess - far_excess > _MIN_STANDARD_ERRORS * noise
    # Sources that take turns at random correlate little at each lag, and at all of them.
    surplus = float(near.sum() - far.mean() * lags)
    variance = float((1 / near_pairs).sum() + (1 / far_pairs).mean() * lags**2 / far_lags)
    sum_noise = max(first_lag / BLOCK_CORRELATION_TIMES, 1.0) * math.sqrt(variance / dimensions)
    min_errors = _MIN_SURPLUS_ERRORS if len(centred) >= _MANY_ROWS else _MIN_SURPLUS_ERRORS_OF_FEW
    errors = (surplus - float(far.max())) / sum_noise
    has_surplus = errors > min_errors
    significant = near[near > 2 / np.sqrt(near_pairs * dimensions)]
    time = first_lag + 2.0 * max(float(significant.sum()), surplus)
    return Memory(has_peaks or has_surplus, min(time, len(centred) / 3), errors)


def _correlations(
    centred: Float64Array, sources: Int64Array, lags: range, variance: float
) -> tuple[Float64Array, Float64Array]:
    """Return the correlation of rows (P, D) with those of the same source `lag` later, and the pairs, for each lag."""
    sums, pairs = [], []
    for lag in lags:
        is_same = sources[lag:] == sources[: len(sources) - lag]
        products = np.einsum("ij,ij->i", centred[lag:], centred[: len(centred) - lag])
        sums.append(float(products[is_same].sum()))
        pairs.append(max(int(is_same.sum()), 1))
    counts: Float64Array = np.array(pairs, np.float64)
    correlations: Float64Array = np.array(sums) / counts / variance
    return correlations, counts


def effective_dimensions(centred: Float32Array | Float64Array) -> float:
    """Return how many uncorrelated dimensions of equal variance vary like these rows (P, D)."""
    if centred.shape[1] == 1:
        return 1.0
    covariance = centred.T @ centred
    return float(np.trace(covariance) ** 2 / (covariance**2).sum())


def repeated_rows(
    baseline: Float64Array | Float32Array, current: Float64Array | Float32Array
) -> tuple[Int64Array, Int64Array] | None:
    """Return which rows of both sides are the same row repeated, as codes; None where values are equal by nature.

    Equal values are the same row if a side consists of few distinct values, and those of the window are not in the
    baseline: rounded numbers and counts recur, frames that were sent several times do not.
    """
    sides = [np.ascontiguousarray(side.reshape(len(side), -1)) for side in (baseline, current)]
    keys = [side.view([("", side.dtype)] * side.shape[1]).ravel() for side in sides]
    distinct, codes = np.unique(np.concatenate(keys), return_inverse=True)
    baseline_codes, current_codes = codes[: len(keys[0])], codes[len(keys[0]) :]
    shares = [len(np.unique(side)) / len(side) for side in (baseline_codes, current_codes)]
    shared = np.isin(current_codes, baseline_codes).mean()
    if max(shares) > _MAX_DISTINCT_SHARE or shared > _MAX_SHARED or len(distinct) < _MIN_ROWS:
        return None
    return baseline_codes.astype(np.int64), current_codes.astype(np.int64)


def without_changes(rows: Float32Array) -> Float32Array:
    """Return rows (P, D) in time order without a level that is linear between up to three sudden changes."""
    n = len(rows)
    position = np.arange(n)
    centred = rows.astype(np.float64) - rows.mean(axis=0)
    sums, moments = (
        np.vstack([np.zeros(rows.shape[1]), column.cumsum(axis=0)])
        for column in (centred, centred * position[:, None])
    )

    def explained(starts: Int64Array, ends: Int64Array) -> Float64Array:
        """Return the sum of squares that straight lines over segments explain."""
        size = (ends - starts)[:, None].astype(np.float64)
        total = sums[ends] - sums[starts]
        slope = moments[ends] - moments[starts] - (starts + ends - 1)[:, None] / 2 * total
        squares = total**2 / size + slope**2 * 12 / (size * (size**2 - 1))
        sums_of_dimensions: Float64Array = squares.sum(axis=1)
        return sums_of_dimensions

    def best_split(start: int, end: int, places: Int64Array) -> tuple[float, int]:
        """Return what the best of these places to split a segment explains more, and the place."""
        places = places[(places >= start + _MIN_SEGMENT) & (places <= end - _MIN_SEGMENT)]
        if not len(places):
            return 0.0, start
        starts, ends = np.full_like(places, start), np.full_like(places, end)
        gains = explained(starts, places) + explained(places, ends) - explained(starts, ends)
        return float(gains.max()), int(places[gains.argmax()])

    step = max(n // _CANDIDATES, 1)
    cuts = [0, n]
    for _ in range(_MAX_SPLITS):
        pairs = list(pairwise(cuts))
        splits = [best_split(*pair, np.arange(*pair, step)) for pair in pairs]
        (gain, place), pair = max(zip(splits, pairs, strict=True))
        if gain <= 0:
            break
        cuts.append(best_split(*pair, np.arange(place - step, place + step + 1))[1])
        cuts.sort()
    flat = centred.copy()
    for start, end in pairwise(cuts):
        line = position[start:end] - (start + end - 1) / 2
        flat[start:end] -= centred[start:end].mean(axis=0)
        slope = line @ centred[start:end] / max(float(line @ line), 1.0)
        flat[start:end] -= line[:, None] * slope
    flat[np.abs(flat) < 1e-6 * np.abs(centred).max(initial=0.0)] = 0  # rounding is no memory
    remaining: Float32Array = flat.astype(np.float32)
    return remaining

"""Exchangeable units for permutation tests: rows, blocks of neighbouring rows, or sources.

Rows that resemble each other cannot be permuted one by one; docs/drift-reference.md explains how units are chosen.
"""

import math
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from quadriga.monitor.drift.significance.memory import (
    BLOCK_CORRELATION_TIMES,
    MAX_DOUBT,
    NO_MEMORY,
    Memory,
    effective_dimensions,
    find_memory,
    without_changes,
)
from quadriga.tasks.arrays import BoolArray, Float32Array, Float64Array, Int64Array

_MAX_TIME_RATIO = 3.0
"""Ratio of the window's correlation time to the baseline's above which each side gets blocks of its own length."""
_MIN_CERTAIN_ROWS = 500
"""Minimum number of baseline rows to trust that its correlation time is the shorter one."""
_SEVERAL_DIMENSIONS, _MANY_DIMENSIONS = 2, 8
"""Numbers of uncorrelated dimensions from which blocks are 1.4 times and twice as long."""
_MAX_UNITS = 2_000
"""Maximum number of units: blocks get longer, or sources are put together, to keep permutations fast."""
_QUARTERS = 4
"""Number of segments that a long series is cut into to estimate its correlation."""
_MIN_QUARTERED_ROWS = 160
"""Minimum number of rows of a series to estimate its quarters separately, and to tell a change from memory."""
_MANY_SOURCES, _MANY_TIMES = 8, 3
"""Number of sources from which series have to be so many times longer: with many, one hides what changes in another."""
_MIN_STANDARD_ERRORS = 3.3
"""Minimum of the lag-1 correlation times sqrt(n) to count as significant: 3 standard errors, as the median of four
quarters has a standard error of 1.1/sqrt(n)."""


class Origin(NamedTuple):
    """Sources and runs of the values of one side, in time order."""

    sources: Int64Array
    """(P,) codes of the sources."""
    runs: Int64Array
    """(P,) runs; only rows of the same source and run are neighbours in time."""
    has_sources: bool
    """Whether sources are known."""
    is_sampled: bool = False
    """Whether rows between runs were left out."""


class ExchangeableUnits(NamedTuple):
    """Units that a permutation assigns to the sides anew. Each has one side and one stratum; strata are permuted separately."""

    kind: Literal["rows", "blocks", "groups"]
    unit_of_row: Int64Array
    """(P,) unit of each value; the values of the baseline come first."""
    is_current: BoolArray
    """(K,) whether a unit belongs to the current window."""
    strata: Int64Array
    """(K,) stratum of each unit."""
    n_eff: tuple[float, float]
    """Effective sample sizes of baseline and current."""
    is_comparable: bool = True
    """Whether runs of sampled rows are long enough to form blocks on both sides."""
    has_equal_weights: bool = False
    """Whether each unit weighs the same, whatever the number of its rows. Blocks whose lengths are proportional to
    the correlation time of their side have similar variances, even if only one side is correlated in time."""
    memory: tuple[Memory, Memory] = (NO_MEMORY, NO_MEMORY)
    """Memory of baseline and current across units."""
    steady: "ExchangeableUnits | None" = None
    """The units of the window with its changes taken out; None where that makes no difference."""

    @property
    def has_memory(self) -> bool:
        """Whether units resemble later ones, so that they are not exchangeable."""
        return any(memory.is_present for memory in self.memory)


def exchangeable_units(
    scores: tuple[Float32Array, Float32Array], origins: tuple[Origin, Origin]
) -> ExchangeableUnits:
    """Choose the exchangeable units of a column.

    Args:
        scores: (P, D) features of the values of baseline and current, used to measure correlation.
        origins: Origins of baseline and current; sources have the same codes in both.
    """
    units = _units_as_they_are(scores, origins)
    if units.kind == "groups" or len(scores[1]) < _MIN_QUARTERED_ROWS:
        return units
    if units.kind == "rows" and not units.has_memory:
        return units
    # A change within the window makes early rows resemble each other, as memory does.
    flat = _without_changes(scores[1], origins[1].sources)
    steady = _units_as_they_are((scores[0], flat), origins)
    is_free = steady.kind == "rows" and not steady.has_memory
    if is_free and steady.memory[0].errors < MAX_DOUBT:
        return steady
    return units._replace(steady=steady)


def within_sources(
    scores: tuple[Float32Array, Float32Array], origins: tuple[Origin, Origin]
) -> tuple[Float32Array, Float32Array]:
    """Return scores (P, D) without the levels of the sources that both sides have.

    Which of them a part of the window has is no change: a robot visits one place after another.
    """
    if not all(origin.has_sources for origin in origins):
        return scores
    rows, sources = np.concatenate(scores), np.concatenate([side.sources for side in origins])
    is_shared = np.isin(sources, np.intersect1d(origins[0].sources, origins[1].sources))[:, None]
    flat = rows - np.where(is_shared, _group_means(rows, sources)[sources], rows.mean(axis=0))
    flat[np.abs(flat) < 1e-6 * np.abs(rows).max()] = 0  # rounding is no difference
    return flat[: len(scores[0])], flat[len(scores[0]) :]


def _without_changes(scores: Float32Array, sources: Int64Array) -> Float32Array:
    """Return rows (P, D) without the changes of their level, of each source if it has enough rows."""
    rows = scores - _group_means(scores, sources)[sources]
    counts = np.bincount(sources)
    if counts[counts > 0].min() < _MIN_QUARTERED_ROWS:
        return without_changes(rows)
    for source in np.flatnonzero(counts):
        rows[sources == source] = without_changes(rows[sources == source])
    return rows


def _units_as_they_are(
    scores: tuple[Float32Array, Float32Array], origins: tuple[Origin, Origin]
) -> ExchangeableUnits:
    """Choose the exchangeable units of rows whose changes count as correlation."""
    if origins[0].has_sources and origins[1].has_sources and not _have_shared_sources(*origins):
        return _source_units(scores, origins)
    if _is_constant_in_sources(scores, origins):
        # Stratified by such sources, every permutation would have the same statistic.
        baseline, current = (
            origin._replace(sources=np.zeros_like(origin.sources)) for origin in origins
        )
        origins = (baseline, current)
    baseline_time, current_time = (
        correlation_time(rows, origin) for rows, origin in zip(scores, origins, strict=True)
    )
    if max(baseline_time, current_time) <= 1:
        units = _row_units((len(scores[0]), len(scores[1])))
    elif current_time > _MAX_TIME_RATIO * baseline_time and len(scores[0]) >= _MIN_CERTAIN_ROWS:
        times = baseline_time, current_time
        units = _block_units(
            origins, times, block_times=_block_times(scores[0]), has_equal_weights=True
        )
    else:
        times = (max(baseline_time, current_time),) * 2
        units = _block_units(
            origins, times, block_times=_block_times(scores[0]), has_equal_weights=False
        )
    return units._replace(memory=_memory(scores, origins, units))


def _block_times(scores: Float32Array) -> int:
    """Return the length of blocks in correlation times: what neighbouring blocks share adds up over dimensions."""
    if scores.shape[1] <= _SEVERAL_DIMENSIONS:
        return BLOCK_CORRELATION_TIMES
    dimensions = effective_dimensions(scores - scores.mean(axis=0))
    if dimensions > _MANY_DIMENSIONS:
        return 2 * BLOCK_CORRELATION_TIMES
    is_several = dimensions > _SEVERAL_DIMENSIONS
    return round(1.4 * BLOCK_CORRELATION_TIMES) if is_several else BLOCK_CORRELATION_TIMES


def _memory(
    scores: tuple[Float32Array, Float32Array],
    origins: tuple[Origin, Origin],
    units: ExchangeableUnits,
) -> tuple[Memory, Memory]:
    """Return the memory of both sides across units."""
    units_of_sides = np.split(units.unit_of_row, [len(scores[0])])
    memories = []
    for rows, origin, unit_of_row in zip(scores, origins, units_of_sides, strict=True):
        order = np.lexsort((origin.runs, origin.sources))
        _, sources = np.unique(origin.sources[order], return_inverse=True)
        centred = rows[order].astype(np.float64)
        centred -= _group_means(rows[order], sources)[sources]
        unit_length = -(-len(rows) // len(np.unique(unit_of_row)))
        memories.append(find_memory(centred, sources, unit_length))
    return memories[0], memories[1]


def correlation_time(scores: Float32Array, origin: Origin) -> float:
    """Return the integrated correlation time of rows (P, D): how many rows are worth one independent row.

    It is 1 where neighbours are not significantly correlated. Correlations are medians over the quarters of
    the sources, so that a change in the middle of a window does not count as correlation; the bias that centring
    short segments causes is corrected.
    """
    order = np.lexsort((origin.runs, origin.sources))
    runs, sources = origin.runs[order], origin.sources[order]
    if len(runs) < 3:
        return 1.0
    lengths = np.diff(np.r_[_run_starts(sources), len(sources)])
    has_many_sources = len(lengths) >= _MANY_SOURCES
    min_rows = _MIN_QUARTERED_ROWS * (_MANY_TIMES if has_many_sources else 1)
    segment_counts = np.where(lengths >= min_rows, _QUARTERS, 1)
    segments = _segment_numbers(lengths, segment_counts)
    rows = scores[order] - _group_means(scores[order], segments)[segments]
    quarters = (np.arange(int(segment_counts.sum())) % _QUARTERS)[segments]
    if has_many_sources and segment_counts.max() == 1:
        quarters = segments % _QUARTERS  # of the sources, instead of the quarters of each
    correlation = partial(_lagged_correlation, rows, segments, runs=runs, quarters=quarters)
    first = correlation(lag=1)
    if not first * np.sqrt(len(rows)) >= _MIN_STANDARD_ERRORS:
        return 1.0
    correlations = [first]
    length = len(rows) / int(segment_counts.sum())
    while (
        len(correlations) < max(3 * _integrated_time(correlations, length), 4)
        and len(correlations) < length / 2
    ):
        correlations.append(correlation(lag=len(correlations) + 1))
    return _integrated_time(correlations, length)


def _largest_time(time: float, count: int) -> float:
    """Return an integrated correlation time of so many rows, plus its standard error.

    Source: Sokal, Monte Carlo Methods in Statistical Mechanics (1996), for a sum over three times itself.
    """
    error = math.sqrt(2 * (6 * time + 1) / count) if time > 1 else 0.0
    return time * (1.0 + min(error, 1.0))


def _integrated_time(correlations: list[float], length: float) -> float:
    """Sum the correlations, corrected for the bias of subtracting the mean of `length` rows."""
    measured = np.array(correlations)
    time = 1.0
    for _ in range(3):  # the bias depends on the time: a fixed-point iteration
        bias = min(time / length, 0.5)
        time = max(1.0 + 2.0 * float((measured * (1 - bias) + bias).sum()), 1.0)
    return time


def _run_starts(*codes: Int64Array) -> Int64Array:
    """Return the positions at which any of the codes (P,) changes, and position 0."""
    changed = np.any([np.diff(code) != 0 for code in codes], axis=0)
    return np.flatnonzero(np.r_[True, changed])


def _segment_numbers(lengths: Int64Array, counts: Int64Array) -> Int64Array:
    """Return the segment (P,) of each row if series of these lengths are cut into that many nearly equal segments."""
    ends = lengths.cumsum()
    index_within = np.arange(int(ends[-1])) - np.repeat(ends - lengths, lengths)
    number_within = index_within * np.repeat(counts, lengths) // np.repeat(lengths, lengths)
    return np.repeat(counts.cumsum() - counts, lengths) + number_within


def _group_means(rows: Float32Array, groups: Int64Array) -> Float32Array:
    """Return the mean (G, D) of each group of rows (P, D)."""
    counts = np.maximum(np.bincount(groups), 1)[:, None]
    means: Float32Array = (_group_sums(rows, groups) / counts).astype(np.float32)
    return means


def _group_sums(rows: Float32Array, groups: Int64Array) -> Float64Array:
    """Return the sum (G, D) of each group of rows (P, D)."""
    sums = np.zeros((int(groups.max(initial=-1)) + 1, rows.shape[1]))
    np.add.at(sums, groups, rows)
    return sums


def _lagged_correlation(
    rows: Float32Array, segments: Int64Array, runs: Int64Array, quarters: Int64Array, lag: int
) -> float:
    """Return the correlation of rows with the rows `lag` later: the median over quarters; 0 if there are no pairs.

    Args:
        rows: (P, D), source by source, with the mean of the segment subtracted.
        segments: (P,) segment of each row.
        runs: (P,) run of each row.
        quarters: (P,) which quarter of its source the segment is, 0 to 3.
        lag: Distance in rows.
    """
    follows = (segments[lag:] == segments[:-lag]) & (runs[lag:] == runs[:-lag])
    products = np.einsum("ij,ij->i", rows[lag:], rows[:-lag]) * follows
    pairs = np.bincount(quarters[lag:], follows, _QUARTERS)
    squares = np.bincount(quarters, np.einsum("ij,ij->i", rows, rows), _QUARTERS)
    sums = np.bincount(quarters[lag:], products, _QUARTERS)
    has_pairs = (pairs > 0) & (squares > 0)
    if not has_pairs.any():
        return 0.0
    counts = np.bincount(quarters, minlength=_QUARTERS)[has_pairs]
    return float(np.median(sums[has_pairs] / pairs[has_pairs] / (squares[has_pairs] / counts)))


def _have_shared_sources(baseline: Origin, current: Origin) -> bool:
    """Check whether most rows come from sources that both sides have."""
    shared = np.intersect1d(baseline.sources, current.sources)
    shares = [np.isin(origin.sources, shared).mean() for origin in (baseline, current)]
    return bool(sum(shares) >= 1)


def _is_constant_in_sources(
    scores: tuple[Float32Array, Float32Array], origins: tuple[Origin, Origin]
) -> bool:
    """Check whether the source determines the value: no source has two different values on a side."""
    return all(
        np.allclose(rows, _group_means(rows, origin.sources)[origin.sources], atol=1e-6)
        for rows, origin in zip(scores, origins, strict=True)
    )


def _source_units(
    scores: tuple[Float32Array, Float32Array], origins: tuple[Origin, Origin]
) -> ExchangeableUnits:
    """Make each source a unit; a source that both sides have is one unit on each."""
    design_effect = _design_effect(scores, origins)
    n = (len(scores[0]), len(scores[1]))
    sources = [np.unique(origin.sources, return_inverse=True)[1] for origin in origins]
    counts = [int(side.max(initial=-1)) + 1 for side in sources]
    if sum(counts) == sum(n):
        return _row_units(n)
    sources_per_unit = -(-sum(counts) // _MAX_UNITS)
    sizes = [-(-count // sources_per_unit) for count in counts]
    return ExchangeableUnits(
        kind="groups",
        unit_of_row=np.concatenate(
            [sources[0] // sources_per_unit, sources[1] // sources_per_unit + sizes[0]]
        ),
        is_current=np.repeat([False, True], sizes),
        strata=np.zeros(sum(sizes), np.int64),
        n_eff=(n[0] / design_effect, n[1] / design_effect),
    )


def _row_units(n: tuple[int, int]) -> ExchangeableUnits:
    """Make each row a unit."""
    return ExchangeableUnits(
        kind="rows",
        unit_of_row=np.arange(sum(n)),
        is_current=np.repeat([False, True], n),
        strata=np.zeros(sum(n), np.int64),
        n_eff=n,
    )


def _design_effect(
    scores: tuple[Float32Array, Float32Array], origins: tuple[Origin, Origin]
) -> float:
    """Return how many rows of a source are worth one independent row, on average; at least 1.

    Source: Kish, Survey Sampling (1965), design effect.
    """
    variance_of_sums, sum_of_squares = 0.0, 0.0
    for rows, origin in zip(scores, origins, strict=True):
        centred = rows - rows.mean(axis=0)
        variance_of_sums += float((_group_sums(centred, origin.sources) ** 2).sum())
        sum_of_squares += float((centred**2).sum())
    return max(variance_of_sums / sum_of_squares, 1.0) if sum_of_squares else 1.0


def _block_units(
    origins: tuple[Origin, Origin],
    times: tuple[float, float],
    *,
    block_times: int,
    has_equal_weights: bool,
) -> ExchangeableUnits:
    """Cut each source into blocks of nearly equal length, of so many correlation times of their side."""
    n = [len(origin.sources) for origin in origins]
    min_lengths = [block_times * time for time in times]
    stretch = max(
        sum(count / length for count, length in zip(n, min_lengths, strict=True)) / _MAX_UNITS, 1.0
    )
    units_of_rows, is_current, strata = [], [], []
    unit_count = 0
    is_comparable = True
    for side, origin in enumerate(origins):
        order = np.lexsort((origin.runs, origin.sources))
        sources, runs = origin.sources[order], origin.runs[order]
        starts = _run_starts(sources, runs)
        lengths = np.diff(np.r_[starts, len(order)])
        block_counts = np.maximum(np.round(lengths / (min_lengths[side] * stretch)), 1).astype(
            np.int64
        )
        unit_of_row = np.empty(len(order), np.int64)
        unit_of_row[order] = _segment_numbers(lengths, block_counts) + unit_count
        unit_count += int(block_counts.sum())
        units_of_rows.append(unit_of_row)
        is_current.append(np.full(int(block_counts.sum()), bool(side)))
        strata.append(np.repeat(sources[starts], block_counts))
        typical_length = float(np.median(np.repeat(lengths, lengths)))
        is_comparable &= not (origin.is_sampled and typical_length < min_lengths[side] / 2)
    codes = np.concatenate(strata)
    has_strata = origins[0].has_sources == origins[1].has_sources
    return ExchangeableUnits(
        kind="blocks",
        unit_of_row=np.concatenate(units_of_rows),
        is_current=np.concatenate(is_current),
        strata=codes if has_strata else np.zeros_like(codes),
        n_eff=(n[0] / _largest_time(times[0], n[0]), n[1] / _largest_time(times[1], n[1])),
        is_comparable=is_comparable,
        has_equal_weights=has_equal_weights,
    )

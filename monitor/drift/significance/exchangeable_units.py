"""What may change places between baseline and current, if nothing changed: rows, blocks of rows, sources.

As docs/drift-reference.md has it of rows that resemble each other.
"""

from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from quadriga.tasks.arrays import BoolArray, Float32Array, Float64Array, Int64Array

BLOCK_TIMES = 5
"""Length of a block, in integrated correlation times: ten times that in which correlation falls to 1/e."""
_ALIKE = 3.0
"""Times that a window may remember longer than its baseline before each gets blocks of its own length."""
_CERTAIN_ROWS = 500
"""Of a baseline, from which it is sure that it remembers less."""
_MOST_UNITS = 2_000
"""More are put together, for speed."""
_QUARTERS = 4
_QUARTERED = 40
"""Rows of a series from which its quarters are looked at one by one."""
_SIGNIFICANT = 3.3
"""Standard errors of a lag-1 correlation that is believed; the median of four has 1.1/sqrt(n)."""


class Origin(NamedTuple):
    """Where the values of one side come from, in time order."""

    sources: Int64Array
    """(P,)"""
    runs: Int64Array
    """(P,) rows of a source follow each other only in a run."""
    keyed: bool
    """Sources are known."""
    drawn: bool = False
    """Rows were left out between runs."""


class Units(NamedTuple):
    """What may change places. A unit is on one side, in one stratum; places change within a stratum."""

    kind: Literal["rows", "blocks", "groups"]
    of: Int64Array
    """(P,) the unit of each value, the baseline's first."""
    current: BoolArray
    """(K,)"""
    strata: Int64Array
    """(K,)"""
    n_eff: tuple[float, float]
    """How many independent rows each side is worth."""
    comparable: bool = True
    """Blocks of both sides are alike."""
    even: bool = False
    """Units weigh the same, whatever the number of their rows: blocks that are as long as the memory of their
    side asks for scatter alike, even if one side remembers and the other does not."""


def units(scores: tuple[Float32Array, Float32Array], origins: tuple[Origin, Origin]) -> Units:
    """Find what may change places.

    Args:
        scores: (P, D) of baseline and current: numbers by which resemblance is measured.
        origins: Of baseline and current; sources have the same codes in both.
    """
    if origins[0].keyed and origins[1].keyed and not _shared(*origins):
        return _groups(scores, origins)
    if _constant(scores, origins):
        first, second = (each._replace(sources=np.zeros_like(each.sources)) for each in origins)
        origins = (first, second)
    before, now = (correlation_time(*both) for both in zip(scores, origins, strict=True))
    if max(before, now) <= 1:
        return _rows((len(scores[0]), len(scores[1])))
    if now > _ALIKE * before and len(scores[0]) >= _CERTAIN_ROWS:
        return _blocks(origins, (before, now), even=True)
    return _blocks(origins, (max(before, now), max(before, now)), even=False)


def correlation_time(scores: Float32Array, origin: Origin) -> float:
    """Return the integrated correlation time in rows (P, D): how many say as much as an independent one.

    1 where neighbours are not significantly alike. Each correlation is the median of those in the quarters of
    each source, so that a change in the midst of a window is not taken for memory; what centring them takes
    away is given back.
    """
    order = np.lexsort((origin.runs, origin.sources))
    runs, sources = origin.runs[order], origin.sources[order]
    if len(runs) < 3:
        return 1.0
    lengths = np.diff(np.r_[_starts(sources), len(sources)])
    cut = np.where(lengths >= _QUARTERED, _QUARTERS, 1)
    segments = _parts(lengths, cut)
    rows = scores[order] - _means(scores[order], segments)[segments]
    quarters = (np.arange(int(cut.sum())) % _QUARTERS)[segments]
    correlation = partial(_correlation, rows, segments, runs, quarters)
    first = correlation(1)
    if not first * np.sqrt(len(rows)) >= _SIGNIFICANT:
        return 1.0
    found = [first]
    length = len(rows) / int(cut.sum())
    while len(found) < max(3 * _integrated(found, length), 4) and len(found) < length / 2:
        found.append(correlation(len(found) + 1))
    return _integrated(found, length)


def _integrated(correlations: list[float], length: float) -> float:
    """Sum correlations up, giving back what the mean of `length` rows took away."""
    found = np.array(correlations)
    time = 1.0
    for _ in range(3):
        lost = min(time / length, 0.5)
        time = max(1.0 + 2.0 * float((found * (1 - lost) + lost).sum()), 1.0)
    return time


def _starts(*codes: Int64Array) -> Int64Array:
    """Return the positions at which any of the codes (P,) changes, the first too."""
    changed = np.any([np.diff(one) != 0 for one in codes], axis=0)
    return np.flatnonzero(np.r_[True, changed])


def _parts(lengths: Int64Array, cut: Int64Array) -> Int64Array:
    """Return the number (P,) of the part in which a row lies, if series are cut in nearly equal parts."""
    ends = lengths.cumsum()
    within = np.arange(int(ends[-1])) - np.repeat(ends - lengths, lengths)
    part = within * np.repeat(cut, lengths) // np.repeat(lengths, lengths)
    return np.repeat(cut.cumsum() - cut, lengths) + part


def _means(rows: Float32Array, groups: Int64Array) -> Float32Array:
    """Return the mean (G, D) of each group."""
    counts = np.maximum(np.bincount(groups), 1)[:, None]
    means: Float32Array = (_sums(rows, groups) / counts).astype(np.float32)
    return means


def _sums(rows: Float32Array, groups: Int64Array) -> Float64Array:
    """Return the sum (G, D) of each group."""
    sums = np.zeros((int(groups.max(initial=-1)) + 1, rows.shape[1]))
    np.add.at(sums, groups, rows)
    return sums


def _correlation(
    rows: Float32Array, segments: Int64Array, runs: Int64Array, quarter: Int64Array, lag: int
) -> float:
    """Return the correlation of rows with those `lag` later: the median over quarters, 0 without any.

    Rows (P, D) are less the mean of their segment, source by source; of each there is the segment, the run, and
    which quarter of a source the segment is (P,).
    """
    follows = (segments[lag:] == segments[:-lag]) & (runs[lag:] == runs[:-lag])
    products = np.einsum("ij,ij->i", rows[lag:], rows[:-lag]) * follows
    pairs = np.bincount(quarter[lag:], follows, _QUARTERS)
    squares = np.bincount(quarter, np.einsum("ij,ij->i", rows, rows), _QUARTERS)
    sums = np.bincount(quarter[lag:], products, _QUARTERS)
    used = (pairs > 0) & (squares > 0)
    if not used.any():
        return 0.0
    counts = np.bincount(quarter, minlength=_QUARTERS)[used]
    return float(np.median(sums[used] / pairs[used] / (squares[used] / counts)))


def _shared(baseline: Origin, current: Origin) -> bool:
    """Tell whether most rows are of sources that are on both sides."""
    both = np.intersect1d(baseline.sources, current.sources)
    shares = [np.isin(one.sources, both).mean() for one in (baseline, current)]
    return bool(sum(shares) >= 1)


def _constant(scores: tuple[Float32Array, Float32Array], origins: tuple[Origin, Origin]) -> bool:
    """Tell whether a source says it all: no value differs within one, on either side."""
    return all(
        np.allclose(one, _means(one, origin.sources)[origin.sources], atol=1e-6)
        for one, origin in zip(scores, origins, strict=True)
    )


def _groups(scores: tuple[Float32Array, Float32Array], origins: tuple[Origin, Origin]) -> Units:
    """Let whole sources change places; one that is on both sides is one on each."""
    alike = _likeness(scores, origins)
    n = (len(scores[0]), len(scores[1]))
    sources = [np.unique(origin.sources, return_inverse=True)[1] for origin in origins]
    counts = [int(one.max(initial=-1)) + 1 for one in sources]
    if sum(counts) == sum(n):
        return _rows(n)
    together = -(-sum(counts) // _MOST_UNITS)
    sizes = [-(-count // together) for count in counts]
    return Units(
        "groups",
        np.concatenate([sources[0] // together, sources[1] // together + sizes[0]]),
        np.repeat([False, True], sizes),
        np.zeros(sum(sizes), np.int64),
        (n[0] / alike, n[1] / alike),
    )


def _rows(n: tuple[int, int]) -> Units:
    """Let every row change places."""
    return Units(
        "rows", np.arange(sum(n)), np.repeat([False, True], n), np.zeros(sum(n), np.int64), n
    )


def _likeness(scores: tuple[Float32Array, Float32Array], origins: tuple[Origin, Origin]) -> float:
    """Return how many rows of a source say as much as an independent one, on average, 1 at least."""
    together, apart = 0.0, 0.0
    for rows, origin in zip(scores, origins, strict=True):
        centred = rows - rows.mean(axis=0)
        together += float((_sums(centred, origin.sources) ** 2).sum())
        apart += float((centred**2).sum())
    return max(together / apart, 1.0) if apart else 1.0


def _blocks(origins: tuple[Origin, Origin], times: tuple[float, float], *, even: bool) -> Units:
    """Cut each source into blocks of nearly equal length, in proportion to the memory of its side."""
    n = [len(origin.sources) for origin in origins]
    least = [BLOCK_TIMES * time for time in times]
    stretch = max(sum(count / one for count, one in zip(n, least, strict=True)) / _MOST_UNITS, 1.0)
    of, current, strata = [], [], []
    made = 0
    comparable = True
    for side, origin in enumerate(origins):
        order = np.lexsort((origin.runs, origin.sources))
        sources, runs = origin.sources[order], origin.runs[order]
        starts = _starts(sources, runs)
        lengths = np.diff(np.r_[starts, len(order)])
        cut = np.maximum(np.round(lengths / (least[side] * stretch)), 1).astype(np.int64)
        unit = np.empty(len(order), np.int64)
        unit[order] = _parts(lengths, cut) + made
        made += int(cut.sum())
        of.append(unit)
        current.append(np.full(int(cut.sum()), bool(side)))
        strata.append(np.repeat(sources[starts], cut))
        usual = float(np.median(np.repeat(lengths, lengths)))
        comparable &= not (origin.drawn and usual < least[side] / 2)
    codes = np.concatenate(strata)
    return Units(
        "blocks",
        np.concatenate(of),
        np.concatenate(current),
        codes if origins[0].keyed == origins[1].keyed else np.zeros_like(codes),
        (n[0] / times[0], n[1] / times[1]),
        comparable,
        even,
    )

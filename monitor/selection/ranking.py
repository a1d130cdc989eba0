"""The order of candidates by what speaks for them, and how many of each source are taken."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from quadriga.tasks.arrays import Float64Array, Int64Array, UInt64Array


def mean_percentiles(columns: Sequence[Float64Array]) -> Float64Array:
    """Return for each row the mean of its percentiles in some columns.

    A percentile is the share of the column's finite values that are smaller, equal ones counted half, so that columns of
    any scale weigh the same.

    Args:
        columns: (N,) each, larger is better; what is not finite is missing, and left out of the row's mean.

    Returns:
        (N,) from 0 to 1; -1 for rows without any value.
    """
    count = len(columns[0]) if columns else 0
    sums, numbers = np.zeros(count), np.zeros(count)
    for column in columns:
        has_value = np.isfinite(column)
        values = column[has_value]
        ascending = np.sort(values)
        below = np.searchsorted(ascending, values, side="left")
        up_to = np.searchsorted(ascending, values, side="right")
        sums[has_value] += (below + up_to) / (2 * max(len(values), 1))
        numbers += has_value
    means = np.full(count, -1.0)
    np.divide(sums, numbers, out=means, where=numbers > 0)
    return means


def best_first(merits: Float64Array, keys: UInt64Array) -> Int64Array:
    """Return the rows (N,) by falling merit; equal ones by their keys."""
    return np.lexsort((keys, -merits)).astype(np.int64)


def source_quotas(sources: Int64Array, count: int) -> Int64Array:
    """Share a number of images out among sources as equally as possible.

    A source with fewer candidates than its share gives the rest to the others. Where a remainder is left, one more goes
    to each source whose next candidate comes first.

    Args:
        sources: (N,) codes of the sources of the candidates, from 0, the best candidate first.
        count: Images to share out.

    Returns:
        (S,) images of each source; together `count`, or N if that is less.
    """
    sizes = np.bincount(sources) if len(sources) else np.zeros(0, np.int64)
    count = min(count, len(sources))
    low, high = 0, int(sizes.max(initial=0))
    while low < high:  # the largest level at which not more than `count` are taken
        middle = (low + high + 1) // 2
        if int(np.minimum(sizes, middle).sum()) <= count:
            low = middle
        else:
            high = middle - 1
    quotas = np.minimum(sizes, low).astype(np.int64)
    following = np.flatnonzero(
        places_within(sources) == low
    )  # one row of each source that has more
    quotas[sources[following[: count - int(quotas.sum())]]] += 1
    return quotas


def places_within(sources: Int64Array) -> Int64Array:
    """Return for each row (N,) how many rows of its source come before it."""
    order = np.argsort(sources, kind="stable")
    grouped = sources[order]
    starts = np.flatnonzero(np.r_[True, grouped[1:] != grouped[:-1]]) if len(grouped) else grouped
    lengths = np.diff(np.r_[starts, len(grouped)])
    places = np.empty(len(sources), np.int64)
    places[order] = np.arange(len(sources)) - np.repeat(starts, lengths)
    return places


def within_quotas(
    sources: Int64Array, quotas: Int64Array, factor: int = 1
) -> npt.NDArray[np.bool_]:
    """Check for each row (N,), the best first, whether it is among the first `factor` times the quota of its source."""
    return np.asarray(places_within(sources) < factor * quotas[sources], np.bool_)

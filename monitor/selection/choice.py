"""Chooses the images to label next out of candidates: by uncertainty, drift and diversity, fair to their sources."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from quadriga.monitor.evaluation.arrays import index_within_runs
from quadriga.monitor.selection.diversity import Embedded, Pick, spread_out
from quadriga.tasks.arrays import Float64Array, Int64Array, UInt64Array

Criterion = Literal["uncertainty", "diversity", "drift"]
BAND = 5
"""Diversity chooses among so many times as many images as are asked for: of each source those that come first."""


class SelectionCandidates(NamedTuple):
    """Images that may be chosen, each once."""

    ids: Int64Array
    """(N,) inferences."""
    keys: UInt64Array
    """(N,) numbers drawn from the images and the seed; of equal candidates the lowest comes first."""
    uncertainties: Float64Array
    """(N,) from 0 to 1; NaN if not known."""
    drifts: Float64Array
    """(N,) from 0 to 1; NaN if not known."""
    sources: Int64Array
    """(N,) codes of sources, from 0."""

    def take(self, rows: Int64Array) -> "SelectionCandidates":
        """Return some rows (M,), in their order."""
        columns: list[Any] = [column[rows] for column in self]
        return SelectionCandidates(*columns)


ReadEmbeddings = Callable[[Int64Array], Embedded]
"""Returns the embeddings of those inferences (N,), the best first, that have one of the space that most of them have."""


class Choice(NamedTuple):
    """Chosen images."""

    picks: list[Pick]
    """The chosen ones, the first first; rows are those of the candidates."""
    band: int
    """Number of candidates that diversity chose among."""
    embedded: int
    """Number of these with an embedding."""
    labelled: int
    """Number of labelled images that the chosen ones were kept apart from."""


def choose(
    candidates: SelectionCandidates,
    count: int,
    by: Collection[Criterion],
    read_embeddings: ReadEmbeddings,
) -> Choice:
    """Choose images.

    Candidates are ordered by the mean of their percentiles of uncertainty and drift, and each source gets its share of
    the images. Without diversity the first of each source are taken; with it, of the first `BAND` times as many of each
    source those that are farthest from each other and from labelled images.

    Args:
        candidates: The candidates.
        count: Images to choose; fewer if there are fewer.
        by: What speaks for an image.
        read_embeddings: Called for diversity only, and only for the band.
    """
    columns: list[Float64Array] = []
    columns += [candidates.uncertainties] if "uncertainty" in by else []
    columns += [candidates.drifts] if "drift" in by else []
    columns = columns or [np.full(len(candidates.ids), np.nan)]
    order = best_first(mean_percentiles(columns), candidates.keys)
    ordered = candidates.take(order)
    quotas = source_quotas(ordered.sources, count)
    if "diversity" not in by or not len(order):
        chosen = order[within_quotas(ordered.sources, quotas)]
        return Choice([Pick(row, None, None) for row in chosen.tolist()], 0, 0, 0)
    is_near = within_quotas(ordered.sources, quotas, BAND)
    band = ordered.take(np.flatnonzero(is_near))
    embedded = read_embeddings(band.ids)
    picks = spread_out(band.ids, band.sources, quotas, embedded)
    rows = order[is_near]
    return Choice(
        [pick._replace(row=int(rows[pick.row])) for pick in picks],
        len(band.ids),
        len(embedded.rows),
        len(embedded.labelled_ids),
    )


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
    places = np.empty(len(sources), np.int64)
    places[order] = index_within_runs(sources[order])
    return places


def within_quotas(
    sources: Int64Array, quotas: Int64Array, factor: int = 1
) -> npt.NDArray[np.bool_]:
    """Check for each row (N,), the best first, whether it is among the first `factor` times the quota of its source."""
    return np.asarray(places_within(sources) < factor * quotas[sources], np.bool_)

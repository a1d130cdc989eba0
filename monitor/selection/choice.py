"""Chooses the images to label next out of candidates: by uncertainty, drift and diversity, fair to their sources."""

from collections.abc import Collection
from typing import Literal, NamedTuple, Protocol

import numpy as np

from quadriga.monitor.selection.diversity import Embedded, Pick, spread_out
from quadriga.monitor.selection.ranking import (
    best_first,
    mean_percentiles,
    source_quotas,
    within_quotas,
)
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
        return SelectionCandidates(
            self.ids[rows],
            self.keys[rows],
            self.uncertainties[rows],
            drifts=self.drifts[rows],
            sources=self.sources[rows],
        )


class Embeddings(Protocol):
    """The embeddings of candidates and of labelled images."""

    def max_rows(self, ids: Int64Array) -> int:
        """Return of how many of these inferences the embeddings fit into memory."""

    def read(self, ids: Int64Array) -> Embedded:
        """Return the embeddings of those inferences (N,) that have one of the space that most of them have."""


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
    candidates: SelectionCandidates, count: int, by: Collection[Criterion], embeddings: Embeddings
) -> Choice:
    """Choose images.

    Candidates are ordered by the mean of their percentiles of uncertainty and drift, and each source gets its share of
    the images. Without diversity the first of each source are taken; with it, of the first `BAND` times as many of each
    source those that are farthest from each other and from labelled images.

    Args:
        candidates: The candidates.
        count: Images to choose; fewer if there are fewer.
        by: What speaks for an image.
        embeddings: Read for diversity only, and only of the band.
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
    fitting = embeddings.max_rows(ordered.ids[is_near]) // int(quotas.sum())
    if fitting < BAND:
        is_near = within_quotas(ordered.sources, quotas, max(fitting, 1))
    band = ordered.take(np.flatnonzero(is_near))
    embedded = embeddings.read(band.ids)
    picks = spread_out(band.ids, band.sources, quotas, embedded)
    rows = order[is_near]
    return Choice(
        [pick._replace(row=int(rows[pick.row])) for pick in picks],
        len(band.ids),
        len(embedded.rows),
        len(embedded.labelled_ids),
    )

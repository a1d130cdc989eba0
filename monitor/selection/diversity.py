"""Images that differ from each other and from the labelled ones: k-centre greedy over embeddings.

Source: Gonzalez, "Clustering to minimize the maximum intercluster distance" (1985); Sener, Savarese, "Active learning
for convolutional neural networks: a core-set approach" (2018).
"""

from typing import NamedTuple

import numpy as np

from quadriga.monitor.drift.similarity import cosines_to_distances, unit_vectors
from quadriga.tasks.arrays import BoolArray, Float16Array, Float32Array, Int64Array

_BLOCK_ROWS = 256
"""Number of labelled images whose distances are in memory at once."""

_DIGITS = 5
"""Decimal digits of distances that count; what is nearer to each other than that is equal."""


class Pick(NamedTuple):
    """An image that was chosen."""

    row: int
    distance: float | None
    """Distance to the nearest image that was labelled or chosen before, 0 to 2; None without one to compare with."""
    nearest_id: int | None
    """Inference of that image."""


class Embedded(NamedTuple):
    """Embeddings of one space."""

    rows: Int64Array
    """(M,) rows of the band that have an embedding, ascending."""
    embeddings: Float16Array
    """(M, D), finite, none of length 0."""
    labelled: Float16Array
    """(A, D) of images that have ground truth."""
    labelled_ids: Int64Array
    """(A,) inferences of these."""


def is_usable(embeddings: Float16Array) -> BoolArray:
    """Check which of the embeddings (M, D) have a direction: finite, and not all zero."""
    is_finite = np.isfinite(embeddings).all(axis=1)
    return np.asarray(is_finite & (embeddings != 0).any(axis=1), np.bool_)


def spread_out(
    ids: Int64Array, sources: Int64Array, quotas: Int64Array, embedded: Embedded
) -> list[Pick]:
    """Choose rows of a band one after the other, each the farthest from all that are labelled or chosen.

    The first one, if nothing is labelled, and ones equally far are chosen by their order. Rows without an embedding come
    when no other row of a source with room is left, in their order.

    Args:
        ids: (N,) inferences of the band, the best first.
        sources: (N,) codes of their sources.
        quotas: (S,) images to choose of each source; the band has at least as many.
        embedded: The embeddings.
    """
    left = quotas.copy()
    is_open = np.ones(len(embedded.rows), np.bool_)
    units = unit_vectors(embedded.embeddings)
    distances, nearest_ids = _nearest_labelled(units, embedded)
    own_sources, own_ids = sources[embedded.rows], ids[embedded.rows]
    picks: list[Pick] = []
    while True:
        is_open &= left[own_sources] > 0
        if not is_open.any():
            break
        place = int(np.argmax(np.where(is_open, distances, -1)))
        distance = float(distances[place])
        is_compared = bool(np.isfinite(distance))
        nearest_id = int(nearest_ids[place]) if is_compared else None
        picks.append(Pick(int(embedded.rows[place]), distance if is_compared else None, nearest_id))
        left[own_sources[place]] -= 1
        is_open[place] = False
        _lower(distances, nearest_ids, _rounded(units @ units[place]), int(own_ids[place]))
    has_embedding = np.zeros(len(ids), np.bool_)
    has_embedding[embedded.rows] = True
    for row in np.flatnonzero(~has_embedding).tolist():
        if left[sources[row]] > 0:
            left[sources[row]] -= 1
            picks.append(Pick(row, None, None))
    return picks


def _nearest_labelled(units: Float32Array, embedded: Embedded) -> tuple[Float32Array, Int64Array]:
    """Return the distance (M,) of unit vectors (M, D) to the nearest labelled image, and its id (M,); infinite without any."""
    distances = np.full(len(units), np.inf, np.float32)
    nearest_ids = np.zeros(len(units), np.int64)
    for start in range(0, len(embedded.labelled), _BLOCK_ROWS):
        labelled = unit_vectors(embedded.labelled[start : start + _BLOCK_ROWS])
        to_labelled = _rounded(units @ labelled.T)
        nearest = to_labelled.argmin(axis=1)
        ids = embedded.labelled_ids[start + nearest]
        _lower(distances, nearest_ids, to_labelled[np.arange(len(units)), nearest], ids)
    return distances, nearest_ids


def _lower(
    distances: Float32Array,
    nearest_ids: Int64Array,
    others: Float32Array,
    other_ids: Int64Array | int,
) -> None:
    """Put other distances (M,) with their ids in place where they are smaller."""
    is_nearer = others < distances
    np.copyto(nearest_ids, other_ids, where=is_nearer)
    np.copyto(distances, others, where=is_nearer)


def _rounded(cosines: Float32Array) -> Float32Array:
    """Return the distances of some cosines, rounded so that the order does not depend on how a product was summed."""
    return np.round(cosines_to_distances(cosines), _DIGITS)

"""The semantic score: how much an image resembles its model's baseline, a conformal p-value over embeddings.

The nonconformity of an image is its mean distance to its `NEIGHBOURS` nearest references. Its score is the share of
the references and itself whose mean distance is at least as large; see docs/drift-reference.md.

Source: Vovk, Gammerman, Shafer, "Algorithmic Learning in a Random World", chapter 2; Laxhammar, Falkman,
"Conformal prediction for distribution-independent anomaly detection in streaming vessel data" (2010).
"""

import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from quadriga.monitor.drift.samples import EMBEDDING, DriftError, Sample
from quadriga.monitor.report.schema import Neighbour, Unlike
from quadriga.store.records.disk import write_atomically
from quadriga.tasks.arrays import Float16Array, Float32Array, Float64Array, Int64Array

NEIGHBOURS = 5
"""Number of nearest references whose mean distance counts."""

MIN_REFERENCES, MAX_REFERENCES = 100, 10_000
"""Limits of the number of references; with N of them the smallest score is 1 / (N + 1)."""

MAX_CANDIDATES, MAX_NEIGHBOURS_SHOWN = 36, 3
"""Maximum number of images of a window that are listed, and of neighbours of each."""

UNLIKE_SCORE = 0.05
"""Semantic score up to which an image counts as unlike the baseline: one in twenty does if nothing changed."""

_BLOCK_ROWS = 500
"""Number of rows whose distances to all references are in memory at once."""


class References:
    """Embeddings of a baseline; read-only, so safe to use from several threads.

    Args:
        embeddings: float16 (N, D), finite.
        ids: int64 (N,), ids of their inferences.
        space: Embedding space; embeddings of two spaces are not comparable.
        neighbour_distances: float32 (N, NEIGHBOURS), distances of each reference to its nearest others; None:
            they are computed.
    """

    def __init__(
        self,
        embeddings: Float16Array,
        ids: Int64Array,
        space: str,
        neighbour_distances: Float32Array | None = None,
    ) -> None:
        self.ids = ids
        self.space = space
        self._units = unit_vectors(embeddings)
        if neighbour_distances is None:
            neighbour_distances = _neighbour_distances(self._units, self._units, exclude_self=True)
        self.neighbour_distances = neighbour_distances
        """float32 (N, NEIGHBOURS), distances of each reference to its nearest others, unordered."""
        self._mean_distances = self.neighbour_distances.mean(axis=1)
        self._farthest = self.neighbour_distances.max(axis=1)

    def score(self, embedding: npt.NDArray[np.floating[Any]]) -> float:
        """Return the conformal p-value of an embedding (D,), in (0, 1]; low values are unlike the references.

        It is exact: the new embedding is a candidate neighbour of each reference, too, and replaces the farthest of
        the reference's neighbours where it is nearer.

        Raises:
            DriftError: The embedding is not finite in float16, or of another length.
        """
        distances = self._distances(embedding)
        own_distance = np.partition(distances, NEIGHBOURS - 1)[:NEIGHBOURS].mean()
        changes = np.minimum(distances - self._farthest, 0)
        at_least_as_far = int(
            np.count_nonzero(self._mean_distances + changes / NEIGHBOURS >= own_distance)
        )
        return (1 + at_least_as_far) / (1 + len(self.ids))

    def mean_neighbour_distance(self, embeddings: Float16Array) -> Float32Array:
        """Return the mean distances (M,) of embeddings (M, D) to their nearest references."""
        return np.asarray(
            _neighbour_distances(unit_vectors(embeddings), self._units).mean(axis=1), np.float32
        )

    def scores(self, embeddings: Float16Array) -> Float64Array:
        """Return about the scores (M,) of embeddings (M, D), much faster than one by one.

        The new embeddings are no candidate neighbours of the references here.
        """
        own_distances = self.mean_neighbour_distance(embeddings)
        ascending = np.sort(self._mean_distances)
        nearer = np.searchsorted(ascending, own_distances, side="left")
        scores: Float64Array = (1 + len(ascending) - nearer) / (1 + len(ascending))
        return scores

    def nearest(
        self, embedding: npt.NDArray[np.floating[Any]], count: int
    ) -> tuple[Int64Array, Float32Array]:
        """Find the references nearest to an embedding (D,), nearest first.

        Returns:
            Their ids, int64 (M,), and distances, float32 (M,), from 0 to 2; M is at most `count`.

        Raises:
            DriftError: The embedding is not finite in float16, or of another length.
        """
        distances = self._distances(embedding)
        order = np.argsort(distances, kind="stable")[:count]
        return self.ids[order], distances[order]

    @classmethod
    def read(cls, path: Path) -> "References":
        """Read what `write_references` wrote.

        Raises:
            DriftError: The file does not hold references, or is incomplete.
            OSError: The file cannot be read.
        """
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as saved:
                embeddings, ids, distances = saved["embeddings"], saved["ids"], saved["apart"]
                space = str(saved["space"])
        except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise DriftError(
                f"{path.name}: expected references of a baseline, got: {error}"
            ) from error
        if embeddings.ndim != 2 or distances.shape != (len(embeddings), NEIGHBOURS):
            raise DriftError(
                f"{path.name}: expected the {NEIGHBOURS} nearest of each embedding, got the shapes "
                f"{embeddings.shape} and {distances.shape}"
            )
        return cls(embeddings, ids, space, distances)

    def _distances(self, embedding: npt.NDArray[np.floating[Any]]) -> Float32Array:
        """Return the distances (N,) of an embedding to the references, rounded to float16 as they are."""
        with np.errstate(over="ignore"):
            rounded = np.asarray(embedding).astype(np.float16)
        beyond = np.count_nonzero(~np.isfinite(rounded))
        if rounded.shape != self._units.shape[1:] or beyond:
            raise DriftError(
                f"expected an embedding of {self._units.shape[1]} numbers up to 65504, got the shape "
                f"{rounded.shape} and {beyond} numbers beyond"
            )
        # einsum, not BLAS: that starts threads, which wait for each other where all cores are busy
        return cosines_to_distances(np.einsum("nd,d->n", self._units, unit_vectors(rounded)))


def write_references(
    path: Path, embeddings: npt.NDArray[np.floating[Any]], ids: Int64Array, space: str
) -> int:
    """Write references atomically: readers see the old file or the new one.

    Embeddings that are not finite are left out, and of equal ones all but the first: copies of an image would
    otherwise be its nearest neighbours, at distance 0.

    Args:
        path: Path of the file; its folder exists.
        embeddings: (N, D), any float type; stored as float16.
        ids: (N,), ids of their inferences.
        space: Embedding space.

    Returns:
        The number of references.

    Raises:
        DriftError: There are fewer than `MIN_REFERENCES` or more than `MAX_REFERENCES`.
    """
    with np.errstate(over="ignore"):
        rounded = np.ascontiguousarray(embeddings, np.float16)
    rounded = rounded + np.float16(0)  # -0 is 0
    finite = np.flatnonzero(np.isfinite(rounded).all(axis=1))
    _, first_positions = np.unique(rounded[finite].view(np.uint16), axis=0, return_index=True)
    distinct = finite[np.sort(first_positions)]
    if not MIN_REFERENCES <= len(distinct) <= MAX_REFERENCES:
        raise DriftError(
            f"expected {MIN_REFERENCES} to {MAX_REFERENCES} different embeddings of a baseline, got {len(distinct)}"
        )
    references = References(rounded[distinct], np.asarray(ids, np.int64)[distinct], space)
    file = BytesIO()
    np.savez(
        file,
        embeddings=rounded[distinct],
        ids=references.ids,
        apart=references.neighbour_distances,
        space=np.array(space),
    )
    write_atomically(path, file.getvalue(), is_synced=True)
    return len(distinct)


class Similarity(NamedTuple):
    """How a window's embeddings resemble those of the baseline."""

    unlike: list[Unlike]
    """The images that are farthest from their neighbours in the baseline, least similar first."""
    unlike_share: float | None
    """Share of images with a score of `UNLIKE_SCORE` or less; None without embeddings."""


def least_similar(baseline: Sample, current: Sample, space: str) -> Similarity:
    """Find the images of a window that are farthest from their neighbours in the baseline.

    Args:
        baseline: Sample with embeddings, ordered by inference id.
        current: Sample with embeddings, ordered by inference id.
        space: Embedding space of both.
    """
    baseline_column, current_column = (side.column(EMBEDDING) for side in (baseline, current))
    if (
        baseline_column is None
        or current_column is None
        or len(baseline_column.rows) <= NEIGHBOURS
        or not len(current_column.rows)
    ):
        return Similarity([], None)
    references = References(
        baseline_column.values.astype(np.float16), baseline.order[baseline_column.rows], space
    )
    embeddings, ids = current_column.values.astype(np.float16), current.order[current_column.rows]
    farthest = np.argsort(-references.mean_neighbour_distance(embeddings), kind="stable")
    images = []
    for row in farthest[:MAX_CANDIDATES].tolist():
        near_ids, distances = references.nearest(embeddings[row], MAX_NEIGHBOURS_SHOWN)
        nearest = [
            Neighbour(str(near_id), distance)
            for near_id, distance in zip(near_ids.tolist(), distances.tolist(), strict=True)
        ]
        score = float(references.score(embeddings[row]))
        images.append(Unlike(str(ids[row]), score, nearest=nearest))
    scores = references.scores(embeddings)
    return Similarity(images, float(np.mean(scores <= UNLIKE_SCORE)))


def unit_vectors(embeddings: Float16Array) -> Float32Array:
    """Scale each of the embeddings (..., D) to length 1; those of length 0 stay."""
    units = embeddings.astype(np.float32)
    lengths = np.linalg.norm(units, axis=-1, keepdims=True)
    np.divide(units, lengths, out=units, where=lengths > 0)
    return units


def _neighbour_distances(
    rows: Float32Array, units: Float32Array, *, exclude_self: bool = False
) -> Float32Array:
    """Return the distances (M, NEIGHBOURS) of rows to the nearest unit vectors, unordered.

    Args:
        rows: (M, D), unit vectors.
        units: (N, D), unit vectors.
        exclude_self: Whether `rows` are `units`, so that none counts as a neighbour of itself.
    """
    nearest = np.empty((len(rows), NEIGHBOURS), np.float32)
    for start in range(0, len(rows), _BLOCK_ROWS):
        block = rows[start : start + _BLOCK_ROWS]
        distances = cosines_to_distances(block @ units.T)
        if exclude_self:
            positions = np.arange(len(block))
            distances[positions, start + positions] = np.inf
        nearest[start : start + _BLOCK_ROWS] = np.partition(distances, NEIGHBOURS - 1)[
            :, :NEIGHBOURS
        ]
    return nearest


def cosines_to_distances(cosines: Float32Array) -> Float32Array:
    """Turn cosines of unit vectors into their distances, 0 to 2."""
    return np.asarray(np.sqrt(np.maximum(2 - 2 * cosines, 0)), np.float32)

"""How like its model's baseline one image is: a conformal p-value over the nearest embeddings.

An image is as strange as its mean distance to its `NEIGHBOURS` nearest references. Its score is the share of
all, references and itself, that are at least as strange; see docs/drift-reference.md.

Source: Vovk, Gammerman, Shafer, "Algorithmic Learning in a Random World", chapter 2; Laxhammar, Falkman,
"Conformal prediction for distribution-independent anomaly detection in streaming vessel data" (2010).
"""

import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quadriga.monitor.drift.samples import EMBEDDING, DriftError, Sample
from quadriga.monitor.report.schema import Neighbour, Unlike
from quadriga.store.disk import write_atomically
from quadriga.tasks.arrays import Float16Array, Float32Array, Int64Array

NEIGHBOURS = 5
"""Neighbours of which the mean distance counts."""

MIN_REFERENCES, MAX_REFERENCES = 100, 10_000
"""References; with N of them the least score is 1 / (N + 1)."""

MAX_UNLIKE, MAX_NEIGHBOURS_SHOWN = 12, 3
"""Images of a window that a report shows, and neighbours of each."""

_BLOCK_ROWS = 500
"""Rows whose distances to all are in memory at once."""


class References:
    """Embeddings of a baseline; read-only, and so safe to use from many threads.

    Args:
        embeddings: float16 (N, D), finite.
        ids: int64 (N,), of their inferences.
        space: Which embedding this is; those of two spaces are not comparable.
        apart: float32 (N, NEIGHBOURS), the distances of each to its nearest others; measured if not given.
    """

    def __init__(
        self,
        embeddings: Float16Array,
        ids: Int64Array,
        space: str,
        apart: Float32Array | None = None,
    ) -> None:
        self.ids = ids
        self.space = space
        self._units = _normalise(embeddings)
        self.neighbour_distances = (
            _neighbour_distances(self._units, self._units, exclude_self=True)
            if apart is None
            else apart
        )
        """float32 (N, NEIGHBOURS)."""
        self._mean_distances = self.neighbour_distances.mean(axis=1)
        self._farthest = self.neighbour_distances.max(axis=1)

    def score(self, embedding: npt.NDArray[np.floating[Any]]) -> float:
        """Give the conformal p-value of an embedding (D,), in (0, 1]; low is unlike the references.

        It is exact: the references' neighbours are looked for with the new one among them, which counts where
        it is nearer than the farthest of the old ones.

        Raises:
            DriftError: It is not finite in float16, or of another length.
        """
        distances = self._distances(embedding)
        own_distance = np.partition(distances, NEIGHBOURS - 1)[:NEIGHBOURS].mean()
        changes = np.minimum(distances - self._farthest, 0)
        at_least_as_far = int(
            np.count_nonzero(self._mean_distances + changes / NEIGHBOURS >= own_distance)
        )
        return (1 + at_least_as_far) / (1 + len(self.ids))

    def mean_neighbour_distance(self, embeddings: Float16Array) -> Float32Array:
        """Measure the mean distance (M,) of embeddings (M, D) to their nearest references."""
        return np.asarray(
            _neighbour_distances(_normalise(embeddings), self._units).mean(axis=1), np.float32
        )

    def nearest(
        self, embedding: npt.NDArray[np.floating[Any]], count: int
    ) -> tuple[Int64Array, Float32Array]:
        """Find the references most like an embedding (D,), nearest first.

        Returns:
            Their ids, int64 (M,), and distances, float32 (M,), from 0 to 2; M is `count` or all there are.

        Raises:
            DriftError: As `score`.
        """
        distances = self._distances(embedding)
        order = np.argsort(distances, kind="stable")[:count]
        return self.ids[order], distances[order]

    @classmethod
    def read(cls, path: Path) -> "References":
        """Read what `write_references` wrote.

        Raises:
            DriftError: The file is none of these, or torn.
            OSError: It cannot be read.
        """
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as saved:
                embeddings, ids, apart = saved["embeddings"], saved["ids"], saved["apart"]
                space = str(saved["space"])
        except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise DriftError(f"{path}: expected references of a baseline, got: {error}") from error
        if embeddings.ndim != 2 or apart.shape != (len(embeddings), NEIGHBOURS):
            raise DriftError(
                f"{path}: expected the {NEIGHBOURS} nearest of each embedding, got the shapes "
                f"{embeddings.shape} and {apart.shape}"
            )
        return cls(embeddings, ids, space, apart)

    def _distances(self, embedding: npt.NDArray[np.floating[Any]]) -> Float32Array:
        """Measure float32 (N,), after the rounding that the references have had."""
        with np.errstate(over="ignore"):
            rounded = np.asarray(embedding).astype(np.float16)
        beyond = np.count_nonzero(~np.isfinite(rounded))
        if rounded.shape != self._units.shape[1:] or beyond:
            raise DriftError(
                f"expected an embedding of {self._units.shape[1]} numbers up to 65504, got the shape "
                f"{rounded.shape} and {beyond} numbers beyond"
            )
        # einsum, not BLAS: that starts threads, which wait for each other where all cores are busy
        return _cosines_to_distances(np.einsum("nd,d->n", self._units, _normalise(rounded)))


def write_references(
    path: Path, embeddings: npt.NDArray[np.floating[Any]], ids: Int64Array, space: str
) -> int:
    """Write references; a reader finds the old file or the new one, whole.

    Embeddings that are not finite are left out, and of equal ones all but the first: an image that came
    five times would otherwise have itself for a neighbour.

    Args:
        path: Where to; its folder exists.
        embeddings: (N, D), any float; kept as float16.
        ids: (N,), of their inferences.
        space: Which embedding this is.

    Returns how many there are.

    Raises:
        DriftError: They are fewer than `MIN_REFERENCES` or more than `MAX_REFERENCES`.
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


def least_similar(baseline: Sample, current: Sample, space: str) -> list[Unlike]:
    """Return the images of a window that are farthest from their neighbours in the baseline.

    Both have embeddings of this space, and inferences as their order; where one has none, there are no images.
    """
    baseline_column, current_column = (side.column(EMBEDDING) for side in (baseline, current))
    if (
        baseline_column is None
        or current_column is None
        or len(baseline_column.rows) <= NEIGHBOURS
        or not len(current_column.rows)
    ):
        return []
    references = References(
        baseline_column.values.astype(np.float16), baseline.order[baseline_column.rows], space
    )
    rows, ids = current_column.values.astype(np.float16), current.order[current_column.rows]
    images = []
    for row in np.argsort(-references.mean_neighbour_distance(rows), kind="stable")[
        :MAX_UNLIKE
    ].tolist():
        neighbours = zip(
            *(values.tolist() for values in references.nearest(rows[row], MAX_NEIGHBOURS_SHOWN)),
            strict=True,
        )
        nearest = [Neighbour(str(side), distance) for side, distance in neighbours]
        score = float(references.score(rows[row]))
        images.append(Unlike(str(ids[row]), score, nearest=nearest))
    return images


def _normalise(embeddings: Float16Array) -> Float32Array:
    """Scale embeddings (..., D) to length 1, each by itself; those of length 0 stay."""
    units = embeddings.astype(np.float32)
    lengths = np.linalg.norm(units, axis=-1, keepdims=True)
    np.divide(units, lengths, out=units, where=lengths > 0)
    return units


def _neighbour_distances(
    rows: Float32Array, units: Float32Array, *, exclude_self: bool = False
) -> Float32Array:
    """Measure (M, NEAREST): the distances of rows to the nearest units, or to others where these are they."""
    nearest = np.empty((len(rows), NEIGHBOURS), np.float32)
    for start in range(0, len(rows), _BLOCK_ROWS):
        block = rows[start : start + _BLOCK_ROWS]
        distances = _cosines_to_distances(block @ units.T)
        if exclude_self:
            positions = np.arange(len(block))
            distances[positions, start + positions] = np.inf
        nearest[start : start + _BLOCK_ROWS] = np.partition(distances, NEIGHBOURS - 1)[
            :, :NEIGHBOURS
        ]
    return nearest


def _cosines_to_distances(cosines: Float32Array) -> Float32Array:
    """Turn cosines of unit vectors into their distances, 0 to 2."""
    return np.asarray(np.sqrt(np.maximum(2 - 2 * cosines, 0)), np.float32)

"""The images of a window that are least like its baseline, beside those of the baseline that are nearest."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from monitor.drift.samples import Column, Sample
from monitor.drift.similarity import NEAREST, References
from monitor.report import Neighbour, Unlike

MOST_UNLIKE = 12
SHOWN = 3
"""Neighbours of each."""

_BLOCK = 500


class Embedded(NamedTuple):
    """A side's embeddings."""

    sample: Sample
    column: Column

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """The inferences that have one (N,), as the sample's order."""
        return self.sample.order[self.column.rows]


def unlike(baseline: Embedded, current: Embedded, space: str) -> list[Unlike]:
    """Return the images of the window that are farthest from their neighbours in the baseline.

    Args:
        baseline: Embeddings (N, D).
        current: Embeddings (M, D) of the same space.
        space: Which that is.
    """
    if len(baseline.column.rows) <= NEAREST or not len(current.column.rows):
        return []
    rows = [one.column.values.astype(np.float16) for one in (baseline, current)]
    references = References(rows[0], baseline.ids, space)
    far = np.concatenate(list(_far(rows[0], rows[1])))
    found = []
    for at in np.argsort(-far, kind="stable")[:MOST_UNLIKE].tolist():
        ids, distances = references.nearest(rows[1][at], SHOWN)
        nearest = [
            Neighbour(str(one), distance)
            for one, distance in zip(ids.tolist(), distances.tolist(), strict=True)
        ]
        score = float(references.score(rows[1][at]))
        found.append(Unlike(str(current.ids[at]), score, nearest=nearest))
    return found


def _far(
    baseline: npt.NDArray[np.float16], current: npt.NDArray[np.float16]
) -> Iterator[npt.NDArray[np.float32]]:
    """Yield how far rows are from their neighbours, by the angle, some rows at a time."""
    units = []
    for one in (baseline, current):
        rows = one.astype(np.float32)
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        units.append(rows / np.where(lengths > 0, lengths, 1))
    for start in range(0, len(current), _BLOCK):
        distances = np.sqrt(np.maximum(2 - 2 * (units[1][start : start + _BLOCK] @ units[0].T), 0))
        yield np.partition(distances, NEAREST - 1, axis=1)[:, :NEAREST].mean(axis=1)

"""The images of a window that are least like its baseline, beside those of the baseline that are nearest."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from monitor.drift.kernels import distances
from monitor.drift.samples import Column, Sample
from monitor.report import Neighbour, Unlike

MOST_UNLIKE = 12
NEAREST = 3
NEIGHBOURS = 10
"""Whose mean distance says how far an image is from the baseline."""

_Distances = npt.NDArray[np.float64]


class Embedded(NamedTuple):
    """A side's embeddings."""

    sample: Sample
    column: Column

    @property
    def ids(self) -> list[str]:
        """The inferences that have one, as the sample's order."""
        return [str(one) for one in self.sample.order[self.column.rows].tolist()]


def unlike(baseline: Embedded, current: Embedded) -> list[Unlike]:
    """Return the images of the window that are farthest from their neighbours in the baseline.

    Args:
        baseline: Embeddings (N, D).
        current: Embeddings (M, D) of the same space.
    """
    n = len(baseline.column.rows)
    if n <= NEIGHBOURS or not len(current.column.rows):
        return []
    values = [one.column.values.astype(np.float32) for one in (baseline, current)]
    apart = distances(np.concatenate(values))
    within, between = apart[:n, :n].copy(), apart[n:, :n]
    np.fill_diagonal(within, np.inf)
    usual = np.sort(_to_neighbours(within))
    far = _to_neighbours(between)
    found = []
    for at in np.argsort(-far, kind="stable")[:MOST_UNLIKE].tolist():
        farther = n - int(np.searchsorted(usual, far[at]))
        nearest = np.argsort(between[at], kind="stable")[:NEAREST].tolist()
        neighbours = [Neighbour(baseline.ids[one], float(between[at, one])) for one in nearest]
        score = (farther + 1) / (n + 1)
        found.append(Unlike(current.ids[at], score, nearest=neighbours))
    return found


def _to_neighbours(apart: _Distances) -> _Distances:
    """Return the mean distance (N,) to the nearest few."""
    nearest = np.partition(apart, NEIGHBOURS - 1, axis=1)[:, :NEIGHBOURS]
    return np.asarray(nearest.mean(axis=1), np.float64)

"""Matched predictions by label and falling score: what precision over recall is drawn from."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse

from monitor.evaluation.arrays import Doubles, Flags, Integers
from monitor.evaluation.matching import Matches, Predictions, Truths, is_outside


class Ranking(NamedTuple):
    """Predictions that count (D,), by label, then by falling score, then by image."""

    row: Integers
    """Positions in the table of predictions."""
    image: Integers
    score: Doubles
    rank: Integers
    """Place within image and label, from 0."""
    outcome: npt.NDArray[np.uint8]
    """(T, A, D) see `Matches`."""
    outside: Flags
    """(A, D) whether the prediction's own area is outside of each range."""
    truth: Integers
    """Position of the object taken at the first threshold and range, -1 for none."""
    bounds: Integers
    """(K + 1,) where each label begins and ends."""
    to_find: sparse.csr_array
    """(A * K, I) objects that count, by range of area and label, in each image."""

    def of_labels(self, first: int, after: int) -> slice:
        """Return the places of the predictions of some labels."""
        return slice(int(self.bounds[first]), int(self.bounds[after]))


def rank_matches(
    predictions: Predictions,
    truths: Truths,
    matches: Matches,
    *,
    areas: Doubles,
    shape: tuple[int, int],
) -> Ranking:
    """Rank matched predictions.

    Args:
        predictions: As matched.
        truths: As matched.
        matches: Of them.
        areas: (A, 2) as for `match`.
        shape: How many labels and images there are.
    """
    labels, images = shape
    row = matches.order[matches.by_label]
    area, which = np.nonzero(~matches.truth_ignored)
    objects = sparse.csr_array(
        (np.ones(len(which)), (area * labels + truths.label[which], truths.image[which])),
        shape=(len(areas) * labels, images),
    )
    return Ranking(
        row,
        predictions.image[row],
        predictions.score[row],
        matches.rank[matches.by_label],
        matches.outcome[:, :, matches.by_label],
        is_outside(predictions.area[row], areas),
        matches.truth[matches.by_label],
        np.searchsorted(predictions.label[row], np.arange(labels + 1)),
        objects,
    )

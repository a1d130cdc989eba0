"""Matched predictions by label and falling score: what precision over recall is drawn from."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse

from monitor.evaluation.matching import (
    Doubles,
    Flags,
    Integers,
    Matches,
    Predictions,
    Truths,
    is_outside,
)


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

    def of_label(self, label: int) -> slice:
        """Return the places of a label's predictions."""
        return slice(int(self.bounds[label]), int(self.bounds[label + 1]))


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
    label = predictions.label[matches.order]
    score = predictions.score[matches.order]
    # Where scores are equal the order of `matches` stays: by image.
    sorting = np.argsort(-score, kind="stable")
    sorting = sorting[np.argsort(label[sorting], kind="stable")]
    row = matches.order[sorting]
    area, which = np.nonzero(~matches.truth_ignored)
    objects = sparse.csr_array(
        (np.ones(len(which)), (area * labels + truths.label[which], truths.image[which])),
        shape=(len(areas) * labels, images),
    )
    return Ranking(
        row,
        predictions.image[row],
        score[sorting],
        matches.rank[sorting],
        matches.outcome[:, :, sorting],
        is_outside(predictions.area[row], areas),
        matches.truth[sorting],
        np.searchsorted(label[sorting], np.arange(labels + 1)),
        objects,
    )

"""Which labels of each image have a stored score: some metrics need those of all labels.

A classifier answers its best label by default (action `predict`), or the best few (`top_k`). That says which label it
takes an image for, and how sure it is; not how the other labels rank.
"""

from functools import cached_property

import numpy as np

from quadriga.monitor.evaluation.state import Table
from quadriga.tasks.arrays import Float64Array, Int64Array

_SUM_TOLERANCE = 1e-6
"""How far the sum of probabilities may be from 1, as they are rounded to single precision."""


class StoredScores:
    """The scores (N,) of images, and whether they are those of all labels.

    The model is taken to have the labels that any prediction has. An image has the scores of all of them if it lists
    all, or none at all; or if it lists several whose scores add up to 1, so that those of the others are 0. Where all
    images list one label, and it is the same for all, the model may have this label alone; it does not if an image has
    another true label.

    Args:
        rows: Scores of the model (N,): `image`, `label` and `score`, no label of an image twice.
        true_labels: All true labels, (M,).
        images: Number of images.
    """

    def __init__(self, rows: Table, true_labels: Int64Array, images: int) -> None:
        self._rows, self._images = rows, images
        self._counts = np.bincount(rows["image"], minlength=images)
        self._sums = np.bincount(rows["image"], rows["score"], images)
        labels = np.unique(rows["label"])
        self._is_one_of_several = len(labels) == 1 and not np.isin(true_labels, labels).all()
        self._labels = len(labels) + self._is_one_of_several
        is_sum_of_all = (self._counts > 1) & (np.abs(self._sums - 1) <= _SUM_TOLERANCE)
        self._is_partial = (self._counts > 0) & (self._counts < self._labels) & ~is_sum_of_all

    @cached_property
    def reason(self) -> str:
        """Why metrics that need the scores of all labels have no value; empty if they have one."""
        return self._reason(int(np.count_nonzero(self._is_partial)))

    def reason_of_ranks(self, k: int) -> str:
        """Return why the best `k` labels of each image are not known; empty if they are."""
        is_short = self._is_partial & (self._counts < min(k, self._labels))
        return self._reason(int(np.count_nonzero(is_short)))

    def _reason(self, partial: int) -> str:
        if not partial:
            return ""
        most = int(self._counts[self._is_partial].max())
        stored = "the best label only" if most == 1 else f"the best {most} labels at most"
        verb = "stores" if self._images == 1 else "store"
        return (
            f"{partial:,} of {self._images:,} inferences {verb} {stored}: send action predict_proba"
        )

    def count_undecided(self, score: float) -> int:
        """Return how many images may have more labels of a score or more than they list."""
        least: Float64Array = np.full(self._images, np.inf)
        np.minimum.at(least, self._rows["image"], self._rows["score"])
        return int(np.count_nonzero(self._is_partial & (least >= score)))

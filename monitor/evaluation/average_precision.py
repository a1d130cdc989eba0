"""Average precision and recall over many images, as COCO defines them.

Source: `pycocotools.cocoeval.COCOeval.accumulate` and `summarize`, whose numbers these are; where those say
-1 for "nothing to find", ours are NaN.
"""

from typing import NamedTuple

import numpy as np

from monitor.evaluation.arrays import Doubles, Flags, Integers, nth
from monitor.evaluation.matching import RIGHT, WRONG, Ranking

THRESHOLDS: Doubles = np.linspace(0.5, 0.95, 10)
RECALLS: Doubles = np.linspace(0, 1, 101)
AREAS: Doubles = np.array([(0, 1e10), (0, 32**2), (32**2, 96**2), (96**2, 1e10)], np.float64)
"""All, small, medium and large, in square pixels, both ends included."""

MOST = (1, 10, 100)
"""Predictions of an image and a label that count."""


class Curves(NamedTuple):
    """Precision over recall, per threshold (T), label (K), range of area (A) and most predictions (M)."""

    precision: Doubles
    """(T, R, K, A, M) at each of `RECALLS`, the best that is had at that recall or more."""
    scores: Doubles
    """(T, R, K, A, M) of the prediction at which the recall is reached; 0 where it never is."""
    recall: Doubles
    """(T, K, A, M) in the end."""


def curves(ranking: Ranking) -> Curves:
    """Draw precision over recall for each label.

    Args:
        ranking: At all thresholds and ranges of area.
    """
    thresholds, areas, _ = ranking.outcome.shape
    labels = len(ranking.bounds) - 1
    shape = (labels, areas, len(MOST), thresholds)
    precision = np.full((*shape, len(RECALLS)), np.nan)
    scores = np.full((*shape, len(RECALLS)), np.nan)
    recall = np.full(shape, np.nan)
    to_find = ranking.to_find.sum(axis=1).astype(np.int64).reshape(areas, labels)
    for number in range(labels):
        of = ranking.of_labels(number, number + 1)
        score, rank = ranking.score[of], ranking.rank[of]
        for area in np.flatnonzero(to_find[:, number]):
            outcome = ranking.outcome[:, area, of]
            right, wrong = outcome == RIGHT, outcome == WRONG
            curve, before = None, -1
            for place, most in enumerate(MOST):
                among = rank < most
                if curve is None or among.sum() != before:
                    before = int(among.sum())
                    curve = _curve(
                        right[:, among], wrong[:, among], score[among], int(to_find[area, number])
                    )
                where = number, area, place
                precision[where], scores[where], recall[where] = curve
    return Curves(
        np.moveaxis(precision, (0, 1, 2, 3, 4), (2, 3, 4, 0, 1)),
        np.moveaxis(scores, (0, 1, 2, 3, 4), (2, 3, 4, 0, 1)),
        np.moveaxis(recall, (0, 1, 2, 3), (1, 2, 3, 0)),
    )


def _curve(
    right: Flags, wrong: Flags, score: Doubles, to_find: int
) -> tuple[Doubles, Doubles, Doubles | float]:
    """Return precision (T, R), score (T, R) and the last recall (T,) of predictions by falling score.

    The best precision from some prediction on is that of one that is right, so only those are looked at.
    """
    thresholds, count = right.shape
    precision = np.zeros((thresholds, len(RECALLS)))
    scores = np.zeros_like(precision)
    if not count:
        return precision, scores, 0.0
    found = right.sum(axis=1)
    row, at = np.nonzero(right)
    right_before = nth(found)
    position = np.zeros((thresholds, found.max() + 1), np.int64)  # of the n-th that is right
    position[row, right_before] = at
    best = np.zeros(position.shape)
    wrongs = np.cumsum(wrong, axis=1)
    hits = right_before + 1
    best[row, right_before] = hits / (hits + wrongs[row, at] + np.spacing(1))
    best = np.maximum.accumulate(best[:, ::-1], axis=1)[:, ::-1]
    needed = np.searchsorted(np.arange(to_find + 1) / to_find, RECALLS, "left")
    reached = needed <= found[:, None]
    which = np.minimum(np.maximum(needed - 1, 0), found.max())
    precision[reached] = best[:, which][reached]
    scores[reached] = np.where(needed, score[position[:, which]], score[0])[reached]
    return precision, scores, found / to_find


def average_precisions(label: Integers, score: Doubles, right: Flags, to_find: Integers) -> Doubles:
    """Return the average precision (K,) of each label at one threshold, NaN with nothing to find.

    Args:
        label: (N,) of predictions, none of which is to be ignored.
        score: (N,) of each; of equal ones the earlier comes first.
        right: (N,) whether each is.
        to_find: (K,) objects of each label.
    """
    order = np.lexsort((-score, label))
    bounds = np.searchsorted(label[order], np.arange(len(to_find) + 1))
    averages = np.full(len(to_find), np.nan)
    for number in np.flatnonzero(to_find):
        of = order[bounds[number] : bounds[number + 1]]
        precision, *_ = _curve(right[None, of], ~right[None, of], score[of], int(to_find[number]))
        averages[number] = precision.mean()
    return averages

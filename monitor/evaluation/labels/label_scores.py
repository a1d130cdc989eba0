"""Scores of labels: ROC and precision-recall curves with the areas under them, and which scores are stored at all.

Every image has a score for every label; a score that the model did not give is 0. Equal scores are one step of
a curve, as in scikit-learn.

A classifier answers its best label by default (action `predict`), or the best few (`top_k`). That says which label it
takes an image for, and how sure it is; not how the other labels rank, which some metrics need.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from quadriga.monitor.evaluation.arrays import cumulative_before, nan_mean, ratio
from quadriga.monitor.evaluation.evaluators import Headline
from quadriga.monitor.evaluation.labels.label_counts import label_metrics, weighted_totals
from quadriga.monitor.evaluation.state import Table
from quadriga.monitor.report.schema import Metric
from quadriga.tasks.arrays import BoolArray, Float64Array, Int64Array

_POINTS = 200
"""Maximum number of points of a curve."""

_CURVES = 100
"""Maximum number of labels with a curve, those with the most images; the mean is over all."""

_GRID: Float64Array = np.linspace(0, 1, 101)
_AREAS = "ROCAUC", "AveragePrecision"
_PR = "recall", "precision", "score"
_ROC = "false_positive_rate", "true_positive_rate", "threshold"

_SUM_TOLERANCE = 1e-6
"""How far the sum of probabilities may be from 1, as they are rounded to single precision."""


class RocSteps(NamedTuple):
    """Cumulative counts of a label (S,): images at each score or above, with and without the label."""

    score: Float64Array
    """Distinct scores, falling."""
    true_positives: Int64Array
    false_positives: Int64Array


class LabelScores:
    """All scores of all labels, sorted once, and whether those of all labels are stored.

    The model is taken to have the labels that any prediction has. An image has the scores of all of them if it lists
    all, or none at all; or if it lists several whose scores add up to 1, so that those of the others are 0. Where all
    images list one label, and it is the same for all, the model may have this label alone; it does not if an image has
    another true label.

    Args:
        rows: Scores of the model (N,): `image`, `label` and `score`, no label of an image twice.
        right: Whether the image has the label, (N,).
        truths: Image and label of the true labels, (M,) each.
        shape: Number of images and number of labels.
    """

    def __init__(
        self,
        rows: Table,
        right: BoolArray,
        truths: tuple[Int64Array, Int64Array],
        shape: tuple[int, int],
    ) -> None:
        self._images, self._labels = shape
        self._truths = truths
        order = np.lexsort((-rows["score"], rows["label"]))
        self._image, self._score = rows["image"][order], rows["score"][order]
        self._is_correct = right[order]
        self._bounds = np.searchsorted(rows["label"][order], np.arange(self._labels + 1))
        self._listed = np.bincount(self._image, minlength=self._images)
        known = np.unique(rows["label"])
        is_one_of_several = len(known) == 1 and not np.isin(truths[1], known).all()
        self._known = len(known) + is_one_of_several
        sums = np.bincount(rows["image"], rows["score"], self._images)
        is_sum_of_all = (self._listed > 1) & (np.abs(sums - 1) <= _SUM_TOLERANCE)
        self._is_partial = (self._listed > 0) & (self._listed < self._known) & ~is_sum_of_all

    @cached_property
    def missing(self) -> str:
        """Why metrics that need the scores of all labels have no value; empty if they have one."""
        return self._reason(int(np.count_nonzero(self._is_partial)))

    def reason_of_ranks(self, k: int) -> str:
        """Return why the best `k` labels of each image are not known; empty if they are."""
        is_short = self._is_partial & (self._listed < min(k, self._known))
        return self._reason(int(np.count_nonzero(is_short)))

    def _reason(self, partial: int) -> str:
        if not partial:
            return ""
        most = int(self._listed[self._is_partial].max())
        stored = "the best label only" if most == 1 else f"the best {most} labels at most"
        verb = "stores" if self._images == 1 else "store"
        return (
            f"{partial:,} of {self._images:,} inferences {verb} {stored}: send action predict_proba"
        )

    def count_undecided(self, score: float) -> int:
        """Return how many images may have more labels of a score or more than they list."""
        least: Float64Array = np.full(self._images, np.inf)
        np.minimum.at(least, self._image, self._score)
        return int(np.count_nonzero(self._is_partial & (least >= score)))

    def areas(self, weights: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Compute the area under the ROC curve, and the average precision, of labels (B, K).

        The weights of images are (B, I). Both are NaN if no image has the label, the first also if all images do.
        """
        used = weights.max(axis=0, initial=0) > 0
        per_image = np.concatenate([weights.T, np.zeros((1, len(weights)))])
        total = weights.sum(axis=1)
        actual = weighted_totals(weights, *self._truths, self._labels)
        roc, precision = np.empty(actual.shape), np.empty(actual.shape)
        for label, (low, high) in enumerate(pairwise(self._bounds)):
            selected = low + np.flatnonzero(used[self._image[low:high]])
            sums = per_image, total, actual[:, label]
            roc[:, label], precision[:, label] = self._areas_of_label(selected, *sums)
        return roc, precision

    def _areas_of_label(
        self,
        selected: Int64Array,
        per_image: Float64Array,
        total: Float64Array,
        actual: Float64Array,
    ) -> tuple[Float64Array, Float64Array]:
        """Compute both areas (B,) of one label.

        Args:
            selected: Positions of its scores (N,), falling.
            per_image: Weights (I + 1, B), of which the last are 0.
            total: Sums of all weights, (B,).
            actual: Sums of the weights of images with the label, (B,).
        """
        # One row, at score 0, stands for all images without a score.
        absent = int(np.searchsorted(-self._score[selected], 0.0))
        score = np.insert(self._score[selected], absent, 0.0)
        weights = per_image[np.insert(self._image[selected], absent, self._images)]
        weights[absent] = total - weights.sum(axis=0)
        correct = np.flatnonzero(np.insert(self._is_correct[selected], absent, True))
        own_weights = weights[correct]
        own_absent = int(np.searchsorted(correct, absent))
        own_weights[own_absent] = 0
        own_weights[own_absent] = actual - own_weights.sum(axis=0)
        # First row with the same score as each correct one, and the row after the last one.
        is_start = np.append(True, score[1:] != score[:-1])
        firsts = np.flatnonzero(np.append(is_start, True))
        group = np.cumsum(is_start)[correct] - 1
        start, stop = firsts[group], firsts[group + 1]
        total_before, true_before = cumulative_before(weights), cumulative_before(own_weights)
        true_above = true_before[np.searchsorted(correct, start)]
        true_through = true_before[np.searchsorted(correct, stop)]
        false_above, false_through = (
            total_before[start] - true_above,
            total_before[stop] - true_through,
        )
        negatives = total - actual
        roc = (own_weights * (negatives - (false_above + false_through) / 2)).sum(axis=0)
        precision = np.where(own_weights > 0, ratio(true_through, total_before[stop]), 0.0)
        return ratio(roc, actual * negatives), ratio((own_weights * precision).sum(axis=0), actual)

    def headlines(self, weights: Float64Array) -> list[Headline]:
        """Compute the means of both areas over labels; NaN where scores are missing."""
        return [
            Headline(
                name,
                {"average": "macro"},
                np.full(len(weights), np.nan) if self.missing else nan_mean(area),
                trials_per_image=2.0,
                reason=self.missing,
            )
            for name, area in zip(_AREAS, self.areas(weights), strict=True)
        ]

    def metrics(self, labels: list[str]) -> list[Metric]:
        """Return both areas of each label; without values where scores are missing."""
        areas = dict(zip(_AREAS, self.areas(np.ones((1, self._images))), strict=True))
        actual = np.bincount(self._truths[1], minlength=self._labels)[None]
        return label_metrics(labels, areas, actual, reason=self.missing)

    def steps(self) -> Iterator[tuple[int, RocSteps]]:
        """Yield the cumulative counts of each label that some, but not all images have."""
        actual = np.bincount(self._truths[1], minlength=self._labels)
        for label, (low, high) in enumerate(pairwise(self._bounds)):
            if not 0 < actual[label] < self._images:
                continue
            score, is_correct = self._score[low:high], self._is_correct[low:high]
            unscored = self._images - len(score)
            unscored_positives = int(actual[label] - is_correct.sum())
            zero_index = int(np.searchsorted(-score, 0.0))
            score = np.insert(score, zero_index, 0.0)
            true_positives = np.cumsum(
                np.insert(is_correct.astype(np.int64), zero_index, unscored_positives)
            )
            false_positives = np.cumsum(
                np.insert(
                    1 - is_correct.astype(np.int64), zero_index, unscored - unscored_positives
                )
            )
            is_step_end = np.append(score[1:] != score[:-1], True)
            if not unscored:
                is_step_end[zero_index] = False  # no image has this score
            yield (
                label,
                RocSteps(
                    score[is_step_end], true_positives[is_step_end], false_positives[is_step_end]
                ),
            )


def score_curves(scores: LabelScores, labels: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the curves of labels, first the mean of each kind, with label None; none where scores are missing.

    The mean precision averages the interpolated precision of the labels at 101 recalls.
    """
    steps = {} if scores.missing else dict(scores.steps())
    if not steps:
        return {}
    best_precision, score, true_rates = (np.zeros((len(steps), len(_GRID))) for _ in range(3))
    drawn = sorted(sorted(steps, key=lambda label: -steps[label].true_positives[-1])[:_CURVES])
    pr, roc = [], []
    for row, (label, step) in enumerate(steps.items()):
        recall, false_rate = (
            step.true_positives / step.true_positives[-1],
            step.false_positives / step.false_positives[-1],
        )
        precision = ratio(step.true_positives, step.true_positives + step.false_positives)
        indices = np.searchsorted(recall, _GRID)
        best_precision[row] = np.maximum.accumulate(precision[::-1])[::-1][indices]
        score[row] = step.score[indices]
        rates = np.append(0.0, false_rate), np.append(0.0, recall)
        true_rates[row] = np.interp(_GRID, *rates)
        if label in drawn:
            pr.append(_curve(_PR, labels[label], recall, precision, scores=step.score.tolist()))
            thresholds = [None, *step.score.tolist()]
            roc.append(_curve(_ROC, labels[label], *rates, scores=thresholds))
    mean_score = score.mean(axis=0).tolist()
    mean_pr = _curve(_PR, None, _GRID, best_precision.mean(axis=0), scores=mean_score)
    none = [None] * len(_GRID)
    mean_roc = _curve(_ROC, None, _GRID, true_rates.mean(axis=0), scores=none)
    return {"pr": [mean_pr, *pr], "roc": [mean_roc, *roc]}


def _curve(
    names: tuple[str, str, str],
    label: str | None,
    x: Float64Array,
    y: Float64Array,
    *,
    scores: Sequence[float | None],
) -> dict[str, Any]:
    """Return the points of a curve to keep, under the names of x, y and scores."""
    columns = zip(names, (x.tolist(), y.tolist(), scores), strict=True)
    indices = _thinned(x, y).tolist()
    return {"label": label} | {name: [column[at] for at in indices] for name, column in columns}


def _thinned(x: Float64Array, y: Float64Array) -> Int64Array:
    """Choose the points of a curve to keep: corners, or evenly spaced ones if there are too many."""
    if len(x) <= _POINTS:
        return np.arange(len(x))
    is_straight = np.diff(x[:-1]) * np.diff(y[1:]) == np.diff(x[1:]) * np.diff(y[:-1])
    corners = np.flatnonzero(~np.concatenate([[False], is_straight, [False]]))
    if len(corners) <= _POINTS:
        return corners
    x, y = x[corners], y[corners]
    path_length = np.append(0.0, np.cumsum(np.abs(np.diff(x)) + np.abs(np.diff(y))))
    indices = np.searchsorted(path_length, np.linspace(0, path_length[-1], _POINTS)).clip(
        0, len(x) - 1
    )
    selected: Int64Array = corners[np.unique(indices)]
    return selected

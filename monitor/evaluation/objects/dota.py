"""Average precision of oriented boxes as DOTA's development kit has it, beside COCO's; see docs/evaluation-reference.md.

The kit first leaves out pairs whose upright frames, a pixel wider, lie apart: these overlap by 0, so it
changes nothing. Equal scores, which it leaves open, come in the order of the images and predictions.

Source: DOTA_devkit, `dota_evaluation_task1.py`, `voc_eval` and `voc_ap`.
"""

from itertools import pairwise

import numpy as np

from quadriga.monitor.evaluation.arrays import joined, mean_known, ratio
from quadriga.monitor.evaluation.evaluators import Findings, Headline
from quadriga.monitor.evaluation.labels.label_counts import totals
from quadriga.monitor.evaluation.objects.matching import Overlap, near_pairs
from quadriga.monitor.evaluation.reporting import number
from quadriga.monitor.evaluation.state import State
from quadriga.monitor.report.schema import Metric
from quadriga.tasks.arrays import BoolArray, Float64Array, Int64Array

THRESHOLDS = (0.5, 0.75)
"""What an overlap must be above."""

RULES = ("DOTA VOC07", "DOTA VOC12")
"""The mean of the best precisions at eleven recalls; the area under the best precisions."""

_RECALLS = np.arange(0.0, 1.1, 0.1)
"""As the kit has them: the fourth is a little above 0.3."""

_AT_ONCE = 1 << 21
"""Predictions times weightings that are counted at once."""


class DotaObjects:
    """What a model found, judged by DOTA's rule; a crowd counts as difficult, for the rule knows none.

    Args:
        state: With `predictions` (image, label, score) and `truths` (image, label, crowd, difficult).
        overlap: Intersection over union.
    """

    def __init__(self, state: State, overlap: Overlap) -> None:
        found, there = state.tables["predictions"], state.tables["truths"]
        self._labels, self._images = state.labels, len(state.ids)
        ignored = there["difficult"] | there["crowd"]
        self._there = there["image"], np.where(ignored, -1, there["label"])
        order = np.lexsort((-found["score"], found["label"]))
        self._image = found["image"][order]
        self._bounds = np.searchsorted(found["label"][order], np.arange(len(self._labels) + 1))
        asked, known = (joined(table["image"], table["label"]) for table in (found, there))
        pairs = near_pairs(
            {"image": asked[order]},
            {"image": known},
            lambda prediction, truth: overlap(order[prediction], truth),
            THRESHOLDS[0],
        )
        # Of objects that overlap alike the first counts.
        pairs = pairs.of(np.argsort(-pairs.overlap, kind="stable")[::-1])
        best, truth = pairs.last(len(order))
        near = best > np.array(THRESHOLDS)[:, None]
        skipped = near & np.append(ignored, False)[truth]
        self._right = np.stack([_first(one, truth) for one in near & ~skipped])
        self._wrong = ~self._right & ~skipped

    def headlines(self, weights: Float64Array) -> list[Headline]:
        """Compute the mean over labels for each threshold, rule and weighting (B, I)."""
        means = mean_known(self._precisions(weights))
        return [
            Headline("AP", {"rule": rule, "iou": threshold, "label": None}, means[:, at, of])
            for of, threshold in enumerate(THRESHOLDS)
            for at, rule in enumerate(RULES)
        ]

    def findings(self) -> Findings:
        """Compute the average precision of each label."""
        [values] = self._precisions(np.ones((1, self._images)))
        metrics = [
            Metric("AP", number(value), {"rule": rule, "iou": threshold, "label": label})
            for at, label in enumerate(self._labels)
            for of, threshold in enumerate(THRESHOLDS)
            for rule, value in zip(RULES, values[:, of, at], strict=True)
        ]
        rules = {"rules": RULES, "iou_above": THRESHOLDS, "difficult": "ignored"}
        return Findings(metrics=metrics, parameters={"dota": rules})

    def _precisions(self, weights: Float64Array) -> Float64Array:
        """Return (B, R, T, K) average precisions of weightings (B, I), NaN without objects."""
        shape = len(RULES), len(THRESHOLDS), len(self._labels)
        values = np.full((len(weights), *shape), np.nan)
        to_find = totals(weights, *self._there, len(self._labels))
        for label, span in enumerate(pairwise(self._bounds)):
            of = slice(*span)
            image, right, wrong = self._image[of], self._right[:, of], self._wrong[:, of]
            block = max(_AT_ONCE // max(len(image), 1), 1)
            for first in range(0, len(weights), block):
                some = slice(first, first + block)
                counts = weights[some][:, image]
                for at in range(len(THRESHOLDS)):
                    values[some, :, at, label] = _average_precisions(
                        counts, right[at], wrong[at], to_find[some, label]
                    )
        return values


def _first(near: BoolArray, truth: Int64Array) -> BoolArray:
    """Tell (N,) which predictions, by falling score, are the first near their object."""
    at = np.flatnonzero(near)
    _, first = np.unique(truth[at], return_index=True)
    right = np.zeros(len(near), bool)
    right[at[first]] = True
    return right


def _average_precisions(
    counts: Float64Array, right: BoolArray, wrong: BoolArray, to_find: Float64Array
) -> Float64Array:
    """Return the average precisions (B, 2) of one label by both rules.

    Args:
        counts: (B, D) how often each prediction counts, by falling score.
        right: (D,).
        wrong: (D,).
        to_find: (B,) how many objects there are.
    """
    hits, misses = np.cumsum(counts * right, axis=1), np.cumsum(counts * wrong, axis=1)
    # Only at what is right does recall rise, and from there on is precision best.
    hits, misses = hits[:, right], misses[:, right]
    precision = hits / np.maximum(hits + misses, np.finfo(np.float64).eps)
    precision = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    recall = ratio(hits, np.broadcast_to(to_find[:, None], hits.shape))
    padded = np.pad(precision, ((0, 0), (0, 1)))  # past the end
    at = (recall[:, None] < _RECALLS[:, None]).sum(axis=2)
    eleven = sum(np.take_along_axis(padded, at, axis=1).T / 11.0)
    area = (np.diff(recall, axis=1, prepend=0) * precision).sum(axis=1)
    return np.where(to_find[:, None] > 0, np.stack([eleven, area], axis=1), np.nan)

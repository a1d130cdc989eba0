"""Average precision of oriented boxes as in DOTA's development kit; see docs/evaluation-reference.md.

The kit first skips pairs whose upright frames, a pixel wider, are disjoint: their overlap is 0, so this
changes nothing. Equal scores, whose order the kit does not define, are in the order of images and predictions.

Source: DOTA_devkit, `dota_evaluation_task1.py`, `voc_eval` and `voc_ap`.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from quadriga.monitor.evaluation.arrays import finite_or_none, joint_key, nan_mean, ratio
from quadriga.monitor.evaluation.evaluators import EvaluationDetails, Headline
from quadriga.monitor.evaluation.labels.label_counts import weighted_totals
from quadriga.monitor.evaluation.objects.matching import OverlapFunction, near_pairs
from quadriga.monitor.evaluation.state import EvaluationState
from quadriga.monitor.report.schema import Metric
from quadriga.tasks.arrays import BoolArray, Float64Array, Int64Array

IOU_THRESHOLDS = (0.5, 0.75)
"""Match thresholds, which the overlap must exceed."""

RULES = ("DOTA VOC07", "DOTA VOC12")
"""Rules of average precision: mean of the best precisions at eleven recalls; area under the best precisions."""

_RECALLS = np.arange(0.0, 1.1, 0.1)
"""Eleven recalls, computed as in the kit: the fourth is slightly above 0.3."""

_AT_ONCE = 1 << 21
"""Maximum number of predictions times weightings that are counted at once: bounds the memory."""


class DotaMetrics:
    """Metrics of objects by DOTA's rule, which has no crowds: they count as difficult.

    Args:
        state: State with the tables `predictions` (image, label, score) and `truths` (image, label, crowd,
            difficult).
        overlap: Intersection over union of pairs.
        iou: Match thresholds.
    """

    def __init__(
        self,
        state: EvaluationState,
        overlap: OverlapFunction,
        iou: Sequence[float] = IOU_THRESHOLDS,
    ) -> None:
        self._iou = iou
        predictions, annotations = state.tables["predictions"], state.tables["truths"]
        self._labels, self._images = state.labels, len(state.ids)
        ignored = annotations["difficult"] | annotations["crowd"]
        self._annotations = annotations["image"], np.where(ignored, -1, annotations["label"])
        order = np.lexsort((-predictions["score"], predictions["label"]))
        self._images_of_rows = predictions["image"][order]
        self._bounds = np.searchsorted(
            predictions["label"][order], np.arange(len(self._labels) + 1)
        )
        prediction_keys, annotation_keys = (
            joint_key(table["image"], table["label"]) for table in (predictions, annotations)
        )
        pairs = near_pairs(
            {"image": prediction_keys[order]},
            {"image": annotation_keys},
            lambda prediction, matched_object: overlap(order[prediction], matched_object),
            min(iou),
        )
        # Among objects with equal overlap the first counts.
        pairs = pairs.select(np.argsort(-pairs.overlap, kind="stable")[::-1])
        best, matched_object = pairs.last_of_each(len(order))
        near = best > np.array(iou)[:, None]
        skipped = near & np.append(ignored, False)[matched_object]
        self._is_correct = np.stack(
            [_first(near_row, matched_object) for near_row in near & ~skipped]
        )
        self._is_incorrect = ~self._is_correct & ~skipped

    def headlines(self, weights: Float64Array) -> list[Headline]:
        """Compute the mean over labels for each threshold, rule and weighting (B, I)."""
        means = nan_mean(self._precisions(weights))
        return [
            Headline(
                "AP",
                {"rule": rule, "iou": threshold, "label": None},
                means[:, rule_index, threshold_index],
            )
            for threshold_index, threshold in enumerate(self._iou)
            for rule_index, rule in enumerate(RULES)
        ]

    def details(self) -> EvaluationDetails:
        """Compute the average precision of each label."""
        [values] = self._precisions(np.ones((1, self._images)))
        metrics = [
            Metric("AP", finite_or_none(value), {"rule": rule, "iou": threshold, "label": label})
            for label_index, label in enumerate(self._labels)
            for threshold_index, threshold in enumerate(self._iou)
            for rule, value in zip(RULES, values[:, threshold_index, label_index], strict=True)
        ]
        rules = {"rules": RULES, "iou_above": self._iou, "difficult": "ignored"}
        return EvaluationDetails(metrics=metrics, parameters={"dota": rules})

    def _precisions(self, weights: Float64Array) -> Float64Array:
        """Return average precisions (B, R, T, K) of weightings (B, I), NaN without objects."""
        shape = len(RULES), len(self._iou), len(self._labels)
        values = np.full((len(weights), *shape), np.nan)
        actual_counts = weighted_totals(weights, *self._annotations, len(self._labels))
        for label, span in enumerate(pairwise(self._bounds)):
            rows = slice(*span)
            image, is_correct, is_incorrect = (
                self._images_of_rows[rows],
                self._is_correct[:, rows],
                self._is_incorrect[:, rows],
            )
            block_size = max(_AT_ONCE // max(len(image), 1), 1)
            for start in range(0, len(weights), block_size):
                block = slice(start, start + block_size)
                counts = weights[block][:, image]
                for index in range(len(self._iou)):
                    values[block, :, index, label] = _average_precisions(
                        counts, is_correct[index], is_incorrect[index], actual_counts[block, label]
                    )
        return values


def _first(is_near: BoolArray, matched_object: Int64Array) -> BoolArray:
    """Return (N,) which predictions, by falling score, are the first that match their object."""
    near_indices = np.flatnonzero(is_near)
    _, first = np.unique(matched_object[near_indices], return_index=True)
    is_first = np.zeros(len(is_near), bool)
    is_first[near_indices[first]] = True
    return is_first


def _average_precisions(
    counts: Float64Array,
    is_correct: BoolArray,
    is_incorrect: BoolArray,
    actual_counts: Float64Array,
) -> Float64Array:
    """Return the average precisions (B, 2) of one label by both rules.

    Args:
        counts: How often each prediction counts, (B, D), by falling score.
        is_correct: Whether each prediction is correct, (D,).
        is_incorrect: Whether each prediction is incorrect, (D,); neither if it matches an ignored object.
        actual_counts: Number of objects, (B,).
    """
    true_positives, false_positives = (
        np.cumsum(counts * is_correct, axis=1),
        np.cumsum(counts * is_incorrect, axis=1),
    )
    # Recall rises only at correct predictions, where the best precision is, too.
    true_positives, false_positives = true_positives[:, is_correct], false_positives[:, is_correct]
    precision = true_positives / np.maximum(
        true_positives + false_positives, np.finfo(np.float64).eps
    )
    precision = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    recall = ratio(true_positives, np.broadcast_to(actual_counts[:, None], true_positives.shape))
    padded = np.pad(precision, ((0, 0), (0, 1)))  # for recalls that are never reached
    indices = (recall[:, None] < _RECALLS[:, None]).sum(axis=2)
    eleven = sum(np.take_along_axis(padded, indices, axis=1).T / 11.0)
    area = (np.diff(recall, axis=1, prepend=0) * precision).sum(axis=1)
    return np.where(actual_counts[:, None] > 0, np.stack([eleven, area], axis=1), np.nan)

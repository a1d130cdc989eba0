"""Kinds of errors of an object detector, and the average precision that each kind costs.

The kinds are those of docs/evaluation-reference.md; a prediction has the first that applies.

Source: Bolya et al., TIDE: A General Toolbox for Identifying Object Detection Errors, 2020.
"""

import math
from typing import NamedTuple

import numpy as np

from quadriga.monitor.evaluation.objects.average_precision import average_precisions
from quadriga.monitor.evaluation.objects.matching import (
    CORRECT,
    INCORRECT,
    OverlapPairs,
    RankedPredictions,
)
from quadriga.monitor.evaluation.state import Table
from quadriga.tasks.arrays import BoolArray, Float64Array, Int64Array

BACKGROUND_OVERLAP = 0.1
"""Minimum overlap of a prediction that is not background."""

ERROR_KINDS = ("Cls", "Loc", "Both", "Dupe", "Bkg", "Miss")
_CLS, _LOC, _BOTH, _DUPE, _BKG, _NONE = range(6)


class TideErrors(NamedTuple):
    """Errors of predictions (D,), in the order of the ranking, and of objects (M,)."""

    kind: Int64Array
    """Index in `ERROR_KINDS`, (D,); `len(ERROR_KINDS) - 1` for correct and ignored predictions."""
    target: Int64Array
    """Object that a `Cls` or `Loc` error would match if corrected, (D,), -1 for none."""
    missed: BoolArray
    """Whether no prediction matches the object, (M,)."""
    unaccounted: BoolArray
    """Whether the object is missed, and no error's target: `Miss`, (M,)."""


def classify_errors(
    ranking: RankedPredictions, truths: Table, pairs: OverlapPairs, iou: float
) -> TideErrors:
    """Classify the errors of predictions, matched at the first threshold of the ranking, over all areas.

    Args:
        ranking: Outcomes of the predictions.
        truths: Table of objects.
        pairs: All that overlap by `BACKGROUND_OVERLAP` or more, by position in the ranking and in the table of objects.
        iou: First match threshold of the ranking.
    """
    is_incorrect = ranking.outcome[0, 0] == INCORRECT
    is_taken = np.zeros(len(truths["image"]), bool)
    is_taken[ranking.matched_object[ranking.matched_object >= 0]] = True
    is_counted = ~(truths["crowd"] | truths["difficult"])
    pairs = pairs.select(is_counted[pairs.truth] & is_incorrect[pairs.prediction])
    pairs = pairs.select(np.argsort(pairs.overlap, kind="stable"))
    is_same_label = ranking.label[pairs.prediction] == truths["label"][pairs.truth]

    def best(selection: BoolArray) -> tuple[Float64Array, Int64Array]:
        return pairs.select(selection).last_of_each(len(is_incorrect))

    same_label_overlap, same_label_object = best(is_same_label)
    other_label_overlap, other_label_object = best(~is_same_label)
    taken_overlap, _ = best(is_same_label & is_taken[pairs.truth])
    kind = np.select(
        [
            ~is_incorrect,
            (same_label_overlap >= BACKGROUND_OVERLAP) & (same_label_overlap <= iou),
            other_label_overlap >= iou,
            taken_overlap >= iou,
            np.maximum(same_label_overlap, other_label_overlap) <= BACKGROUND_OVERLAP,
        ],
        [_NONE, _LOC, _CLS, _DUPE, _BKG],
        _BOTH,
    )
    target = np.where(
        kind == _LOC, same_label_object, np.where(kind == _CLS, other_label_object, -1)
    )
    missed = is_counted & ~is_taken
    unaccounted = missed.copy()
    unaccounted[target[target >= 0]] = False
    return TideErrors(kind, target, missed, unaccounted)


def error_costs(
    ranking: RankedPredictions, truths: Table, errors: TideErrors
) -> dict[str, float | None]:
    """Return by how much the mean average precision at the first threshold would rise without each kind of error.

    Of the errors whose target is a missed object, the one with the highest score is corrected; the others are
    removed. `FalsePos` removes all incorrect predictions, `FalseNeg` all missed objects; a label without
    remaining objects and predictions is no longer in the mean. None if there are no objects, or none remain.
    """
    outcome, score, label = ranking.outcome[0, 0], ranking.score, ranking.label
    is_counted, is_correct = outcome <= CORRECT, outcome == CORRECT
    labels = len(ranking.bounds) - 1

    def per_label(objects: BoolArray) -> Int64Array:
        return np.bincount(truths["label"][objects], minlength=labels)

    actual_counts = per_label(~(truths["crowd"] | truths["difficult"]))
    if not actual_counts.any():
        return dict.fromkeys((*ERROR_KINDS, "FalsePos", "FalseNeg"))

    def precision(keep: BoolArray, is_corrected: BoolArray, removed: Int64Array) -> float:
        labeled = np.where(
            is_corrected, truths["label"][errors.target] if len(truths["label"]) else 0, label
        )
        remaining = actual_counts - removed
        averages = average_precisions(
            labeled[keep], score[keep], (is_correct | is_corrected)[keep], remaining
        )
        has_predictions = np.bincount(labeled[keep], minlength=labels) > 0
        in_mean = np.count_nonzero((remaining > 0) | ((actual_counts > 0) & has_predictions))
        return float(np.nansum(averages) / in_mean) if in_mean else math.nan

    nothing, no_objects = np.zeros(len(label), bool), np.zeros(labels, np.int64)
    is_first = _first_of_targets(score, errors)
    precision_now = precision(is_counted, nothing, no_objects)
    precision_without = {}
    for number, kind in enumerate(ERROR_KINDS[:-1]):
        is_kind = errors.kind == number
        is_corrected = is_kind & is_first
        precision_without[kind] = precision(
            is_counted & (~is_kind | is_corrected), is_corrected, no_objects
        )
    precision_without["Miss"] = precision(is_counted, nothing, per_label(errors.unaccounted))
    precision_without["FalsePos"] = precision(is_correct, nothing, no_objects)
    precision_without["FalseNeg"] = precision(is_counted, nothing, per_label(errors.missed))
    return {
        kind: None if math.isnan(value) else max(value - precision_now, 0.0)
        for kind, value in precision_without.items()
    }


def _first_of_targets(score: Float64Array, errors: TideErrors) -> BoolArray:
    """Return (D,) which errors have the highest score among those with the same missed object as target."""
    indices = np.flatnonzero(errors.target >= 0)
    indices = indices[errors.missed[errors.target[indices]]]
    indices = indices[np.lexsort((-indices, score[indices]))]
    best_of_object = np.full(len(errors.missed), -1, np.int64)
    best_of_object[errors.target[indices]] = (
        indices  # among equal indices NumPy keeps the last value
    )
    is_first = np.zeros(len(score), bool)
    is_first[best_of_object[best_of_object >= 0]] = True
    return is_first

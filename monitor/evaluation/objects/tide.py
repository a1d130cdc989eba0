"""Why predictions are wrong and objects missed, and what mending each kind would be worth.

The kinds are those of docs/evaluation-reference.md; of a prediction the first that holds.

Source: Bolya et al., TIDE: A General Toolbox for Identifying Object Detection Errors, 2020.
"""

import math
from typing import NamedTuple

import numpy as np

from quadriga.monitor.evaluation.objects.average_precision import average_precisions
from quadriga.monitor.evaluation.objects.matching import RIGHT, WRONG, Pairs, Ranking
from quadriga.monitor.evaluation.state import Table
from quadriga.tasks.arrays import BoolArray, Float64Array, Int64Array

NEAR = 0.5
FAR = 0.1
"""Least overlaps of a match, and of not being background."""

KINDS = ("Cls", "Loc", "Both", "Dupe", "Bkg", "Miss")
_CLS, _LOC, _BOTH, _DUPE, _BKG, _NONE = range(6)


class Errors(NamedTuple):
    """What is wrong with each prediction and object."""

    kind: Int64Array
    """(D,) place in `KINDS`, `len(KINDS) - 1` for those that are right or ignored; as ranked."""
    target: Int64Array
    """(D,) object that a `Cls` or `Loc` error would have found, -1 for none."""
    missed: BoolArray
    """(M,) objects that no prediction took."""
    unaccounted: BoolArray
    """(M,) those of them that no error would have found: `Miss`."""


def errors(ranking: Ranking, truths: Table, pairs: Pairs) -> Errors:
    """Tell what is wrong, matched first at `NEAR`, over all areas.

    The pairs are all that overlap by `FAR` or more, by place in the ranking and position of the truth.
    """
    wrong = ranking.outcome[0, 0] == WRONG
    taken = np.zeros(len(truths["image"]), bool)
    taken[ranking.truth[ranking.truth >= 0]] = True
    counts = ~(truths["crowd"] | truths["difficult"])
    pairs = pairs.of(counts[pairs.truth] & wrong[pairs.prediction])
    pairs = pairs.of(np.argsort(pairs.overlap, kind="stable"))
    same = ranking.label[pairs.prediction] == truths["label"][pairs.truth]
    own, own_truth = pairs.of(same).last(len(wrong))
    other, other_truth = pairs.of(~same).last(len(wrong))
    used, _ = pairs.of(same & taken[pairs.truth]).last(len(wrong))
    kind = np.select(
        [
            ~wrong,
            (own >= FAR) & (own <= NEAR),
            other >= NEAR,
            used >= NEAR,
            np.maximum(own, other) <= FAR,
        ],
        [_NONE, _LOC, _CLS, _DUPE, _BKG],
        _BOTH,
    )
    target = np.where(kind == _LOC, own_truth, np.where(kind == _CLS, other_truth, -1))
    missed = counts & ~taken
    unaccounted = missed.copy()
    unaccounted[target[target >= 0]] = False
    return Errors(kind, target, missed, unaccounted)


def worth(ranking: Ranking, truths: Table, found: Errors) -> dict[str, float | None]:
    """Return by how much the mean average precision at `NEAR` would rise without each kind of error.

    An error that would have found an object which nothing else took, with the highest score of those, is
    made right; the others are taken out. `FalsePos` takes out all wrong predictions, `FalseNeg` all missed
    objects; a label of which neither objects nor predictions are left is no longer in the mean: there
    is nothing to find. None where there is nothing to find, or nothing is left.
    """
    outcome, score, label = ranking.outcome[0, 0], ranking.score, ranking.label
    counted, right = outcome <= RIGHT, outcome == RIGHT
    labels = len(ranking.bounds) - 1

    def per_label(objects: BoolArray) -> Int64Array:
        return np.bincount(truths["label"][objects], minlength=labels)

    to_find = per_label(~(truths["crowd"] | truths["difficult"]))
    if not to_find.any():
        return dict.fromkeys((*KINDS, "FalsePos", "FalseNeg"))

    def precision(keep: BoolArray, turned: BoolArray, less: Int64Array) -> float:
        labeled = np.where(
            turned, truths["label"][found.target] if len(truths["label"]) else 0, label
        )
        left = to_find - less
        averages = average_precisions(labeled[keep], score[keep], (right | turned)[keep], left)
        answered = np.bincount(labeled[keep], minlength=labels) > 0
        in_mean = np.count_nonzero((left > 0) | ((to_find > 0) & answered))
        return float(np.nansum(averages) / in_mean) if in_mean else math.nan

    none, zero = np.zeros(len(label), bool), np.zeros(labels, np.int64)
    first = _first_of_targets(score, found)
    before = precision(counted, none, zero)
    after = {}
    for number, kind in enumerate(KINDS[:-1]):
        these = found.kind == number
        turned = these & first
        after[kind] = precision(counted & (~these | turned), turned, zero)
    after["Miss"] = precision(counted, none, per_label(found.unaccounted))
    after["FalsePos"] = precision(right, none, zero)
    after["FalseNeg"] = precision(counted, none, per_label(found.missed))
    return {
        kind: None if math.isnan(value) else max(value - before, 0.0)
        for kind, value in after.items()
    }


def _first_of_targets(score: Float64Array, found: Errors) -> BoolArray:
    """Tell (D,) which errors would have found a missed object with the highest score."""
    of = np.flatnonzero(found.target >= 0)
    of = of[found.missed[found.target[of]]]
    of = of[np.lexsort((-of, score[of]))]
    best = np.full(len(found.missed), -1, np.int64)
    best[found.target[of]] = of  # the last one stays
    first = np.zeros(len(score), bool)
    first[best[best >= 0]] = True
    return first

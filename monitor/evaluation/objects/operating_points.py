"""Precision, recall and F1 of objects where only predictions of some score or more are believed."""

from typing import Any

import numpy as np

from quadriga.monitor.evaluation.labels.label_counts import LabelCounts
from quadriga.monitor.evaluation.reporting import finite_or_none
from quadriga.monitor.report.schema import Metric
from quadriga.tasks.arrays import BoolArray, Float64Array, Int64Array

SCORE_THRESHOLD = 0.5
MATCH_OVERLAP = 0.5


def metrics_at_operating_points(
    labels: list[str], label: Int64Array, score: Float64Array, right: BoolArray, to_find: Int64Array
) -> list[Metric]:
    """Return counts and rates at a score of 0.5, at that of the best F1, and each label's best F1.

    Args:
        labels: (K,) names.
        label: (N,) of predictions that count.
        score: (N,)
        right: (N,)
        to_find: (K,) objects of each label.
    """

    def at(least: float, more: dict[str, Any]) -> list[Metric]:
        kept = score >= least
        sides = (np.bincount(label[of], minlength=len(labels)) for of in (kept & right, kept))
        return _rates(labels, [*sides, to_find], {"score": least, "iou": MATCH_OVERLAP}, more)

    metrics = at(SCORE_THRESHOLD, {})
    best, _ = best_f1(score, right, int(to_find.sum()))
    if best is not None:
        metrics += at(best, {"chosen": "best F1"})
    for one in np.flatnonzero(to_find):
        of = label == one
        least, f1 = best_f1(score[of], right[of], int(to_find[one]))
        named = {"label": labels[one], "chosen": "best F1 of the label"}
        metrics.append(Metric("F1", f1, {"score": least, "iou": MATCH_OVERLAP, **named}))
    return metrics


def best_f1(
    score: Float64Array, right: BoolArray, to_find: int
) -> tuple[float | None, float | None]:
    """Return the highest of the scores with the best F1, and that F1; None without predictions."""
    if not len(score):
        return None, None
    order = np.argsort(-score, kind="stable")
    f1 = 2 * np.cumsum(right[order]) / (np.arange(1, len(order) + 1) + to_find)
    falls = np.append(np.diff(score[order]) < 0, True)
    at = np.flatnonzero(falls)[np.argmax(f1[falls])]
    return float(score[order][at]), float(f1[at])


def _rates(
    labels: list[str], sides: list[Int64Array], at: dict[str, Any], more: dict[str, Any]
) -> list[Metric]:
    """Name what is right, answered and true (K,) of each label, and in all (None)."""
    counts = LabelCounts(*(np.append(of.sum(), of)[None].astype(np.float64) for of in sides))
    rates = counts.rates()
    metrics = []
    for column, label in enumerate([None, *labels]):
        right, answered, there = (float(of[0, column]) for of in counts)
        if label is not None and not (answered or there):
            continue
        parameters = {**at, "label": label, **more}
        numbers = {
            "true positives": right,
            "false positives": answered - right,
            "false negatives": there - right,
        }
        metrics += [
            *(
                Metric(kind, finite_or_none(of[0, column]), parameters)
                for kind, of in rates.items()
            ),
            *(Metric("Counts", value, {**parameters, "of": of}) for of, value in numbers.items()),
        ]
    return metrics

"""Precision, recall and F1 of objects where only predictions of some score or more are believed."""

from typing import Any, NamedTuple

import numpy as np

from monitor.evaluation.arrays import Doubles, Flags, Integers
from monitor.evaluation.label_counts import LabelCounts
from monitor.evaluation.reporting import number
from monitor.report import Metric

SCORE = 0.5
IOU = 0.5


class Answers(NamedTuple):
    """Predictions that count (N,), with what there is to find."""

    label: Integers
    score: Doubles
    right: Flags
    to_find: Integers
    """(K,) objects of each label."""


def at_thresholds(answers: Answers, labels: list[str]) -> list[Metric]:
    """Return counts and rates at a score of 0.5, at that of the best F1, and each label's best F1."""
    metrics = _at(answers, labels, SCORE, {})
    best, _ = best_f1(answers.score, answers.right, int(answers.to_find.sum()))
    if best is not None:
        metrics += _at(answers, labels, best, {"chosen": "best F1"})
    for at in np.flatnonzero(answers.to_find):
        of = answers.label == at
        score, f1 = best_f1(answers.score[of], answers.right[of], int(answers.to_find[at]))
        named = {"label": labels[at], "chosen": "best F1 of the label"}
        metrics.append(Metric("F1", f1, {"score": score, "iou": IOU, **named}))
    return metrics


def best_f1(score: Doubles, right: Flags, to_find: int) -> tuple[float | None, float | None]:
    """Return the highest of the scores with the best F1, and that F1; None without predictions."""
    if not len(score):
        return None, None
    order = np.argsort(-score, kind="stable")
    f1 = 2 * np.cumsum(right[order]) / (np.arange(1, len(order) + 1) + to_find)
    falls = np.append(np.diff(score[order]) < 0, True)
    at = np.flatnonzero(falls)[np.argmax(f1[falls])]
    return float(score[order][at]), float(f1[at])


def _at(answers: Answers, labels: list[str], score: float, more: dict[str, Any]) -> list[Metric]:
    """Count what has a score of `score` or more, per label and in all (None)."""
    kept = answers.score >= score
    rows = [
        np.bincount(answers.label[of], minlength=len(labels)) for of in (kept & answers.right, kept)
    ]
    counts = LabelCounts(
        *(np.append(of.sum(), of)[None].astype(np.float64) for of in (*rows, answers.to_find))
    )
    rates = counts.rates()
    metrics = []
    for at, label in enumerate([None, *labels]):
        right, answered, there = (float(column[0, at]) for column in counts)
        if label is not None and not (answered or there):
            continue
        parameters = {"score": score, "iou": IOU, "label": label, **more}
        numbers = {
            "true positives": right,
            "false positives": answered - right,
            "false negatives": there - right,
        }
        metrics += [
            *(Metric(kind, number(values[0, at]), parameters) for kind, values in rates.items()),
            *(Metric("Counts", value, {**parameters, "of": of}) for of, value in numbers.items()),
        ]
    return metrics

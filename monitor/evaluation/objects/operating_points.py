"""Precision, recall and F1 of objects at operating points: only predictions of a score or more count."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from quadriga.monitor.evaluation.arrays import finite_or_none
from quadriga.monitor.evaluation.evaluators import Headline
from quadriga.monitor.evaluation.labels.label_counts import LabelCounts
from quadriga.monitor.report.schema import Metric
from quadriga.tasks.arrays import BoolArray, Float64Array, Int64Array

SCORE_THRESHOLD = 0.5
"""Score of the operating point, unless others are chosen."""


class CountedPredictions(NamedTuple):
    """Predictions that are correct or incorrect at one match threshold, (N,); ignored ones are left out."""

    image: Int64Array
    label: Int64Array
    score: Float64Array
    is_correct: BoolArray


def rates_of_all_labels(
    predictions: CountedPredictions,
    actual_counts: Int64Array,
    weights: Float64Array,
    *,
    scores: Sequence[float],
    iou: float,
) -> list[Headline]:
    """Return precision, recall and F1 of all labels together, from each of some scores on.

    Args:
        predictions: Predictions that count.
        actual_counts: Number of objects of each image, (I,).
        weights: How often each image counts, (B, I).
        scores: Scores from which predictions count.
        iou: Match threshold.
    """
    headlines = []
    for score in scores:
        is_above = predictions.score >= score
        sides = (
            np.bincount(predictions.image[selected], minlength=len(actual_counts))
            for selected in (is_above & predictions.is_correct, is_above)
        )
        counts = LabelCounts(*((weights @ side)[:, None] for side in (*sides, actual_counts)))
        parameters = {"score": score, "iou": iou, "label": None}
        objects = int(actual_counts.sum())
        headlines += [
            Headline(
                name,
                parameters,
                values[:, 0],
                trials_per_image=objects / max(len(actual_counts), 1),
                objects_of_one_label=float(objects) or None,
                objects=objects,
            )
            for name, values in counts.rates().items()
        ]
    return headlines


def metrics_at_operating_points(
    labels: list[str],
    predictions: CountedPredictions,
    actual_counts: Int64Array,
    *,
    scores: Sequence[float] | None,
    iou: float,
) -> list[Metric]:
    """Return counts and rates at some scores, at the score of the best F1, and each label's best F1.

    Args:
        labels: Names of labels, (K,).
        predictions: Predictions that count.
        actual_counts: Number of objects of each label, (K,).
        scores: Scores whose rates of all labels together are headlines, and not repeated; None for 0.5, whose are not.
        iou: Match threshold.
    """
    _, label, score, is_correct = predictions

    def metrics_at(score_threshold: float, extra_parameters: dict[str, Any]) -> list[Metric]:
        is_above = score >= score_threshold
        sides = (
            np.bincount(label[is_counted], minlength=len(labels))
            for is_counted in (is_above & is_correct, is_above)
        )
        return _rates(
            labels,
            [*sides, actual_counts],
            {"score": score_threshold, "iou": iou},
            extra_parameters,
        )

    metrics = [] if scores else metrics_at(SCORE_THRESHOLD, {})
    for chosen in scores or ():
        metrics += [
            metric
            for metric in metrics_at(chosen, {})
            if metric.type == "Counts" or metric.parameters["label"] is not None
        ]
    best_score, _ = best_f1(score, is_correct, int(actual_counts.sum()))
    if best_score is not None:
        metrics += metrics_at(best_score, {"chosen": "best F1"})
    for label_index in np.flatnonzero(actual_counts):
        is_label = label == label_index
        score_threshold, f1 = best_f1(
            score[is_label], is_correct[is_label], int(actual_counts[label_index])
        )
        named = {"label": labels[label_index], "chosen": "best F1 of the label"}
        metrics.append(Metric("F1", f1, {"score": score_threshold, "iou": iou, **named}))
    return metrics


def best_f1(
    score: Float64Array, is_correct: BoolArray, actual_count: int
) -> tuple[float | None, float | None]:
    """Return the highest score with the best F1, and that F1; None without predictions."""
    if not len(score):
        return None, None
    order = np.argsort(-score, kind="stable")
    f1 = 2 * np.cumsum(is_correct[order]) / (np.arange(1, len(order) + 1) + actual_count)
    is_last_of_score = np.append(np.diff(score[order]) < 0, True)
    best_index = np.flatnonzero(is_last_of_score)[np.argmax(f1[is_last_of_score])]
    return float(score[order][best_index]), float(f1[best_index])


def _rates(
    labels: list[str], sides: list[Int64Array], threshold: dict[str, Any], more: dict[str, Any]
) -> list[Metric]:
    """Return metrics of each label, and of all labels (None), from correct, predicted and actual counts (K,)."""
    counts = LabelCounts(*(np.append(side.sum(), side)[None].astype(np.float64) for side in sides))
    rates = counts.rates()
    metrics = []
    for column, label in enumerate([None, *labels]):
        correct, predicted, actual = (float(count[0, column]) for count in counts)
        if label is not None and not (predicted or actual):
            continue
        parameters = {**threshold, "label": label, **more}
        numbers = {
            "true positives": correct,
            "false positives": predicted - correct,
            "false negatives": actual - correct,
        }
        metrics += [
            *(
                Metric(type_, finite_or_none(rate[0, column]), parameters)
                for type_, rate in rates.items()
            ),
            *(
                Metric("Counts", number, {**parameters, "of": kind})
                for kind, number in numbers.items()
            ),
        ]
    return metrics

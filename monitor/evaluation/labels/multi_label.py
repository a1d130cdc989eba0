"""Image classification with any number of true labels: each label is decided by itself, from a score on."""

from typing import NamedTuple

import numpy as np

from quadriga.monitor.evaluation.arrays import joint_key, ratio
from quadriga.monitor.evaluation.evaluators import EvaluationDetails, Headline
from quadriga.monitor.evaluation.labels.label_counts import (
    LabelCounts,
    average_metrics,
    label_metrics,
    without_values,
)
from quadriga.monitor.evaluation.labels.label_scores import LabelScores, score_curves
from quadriga.monitor.evaluation.labels.stored_scores import StoredScores
from quadriga.monitor.evaluation.metric_settings import MetricSettings, warn_unused
from quadriga.monitor.evaluation.state import EvaluationState, Table, with_one_label
from quadriga.monitor.report.schema import Metric
from quadriga.tasks.arrays import BoolArray, Float64Array, Int64Array

SCORE_THRESHOLD = 0.5
"""Minimum score of a label that counts as predicted."""


class _Decisions(NamedTuple):
    """Labels that count as predicted from a score on, and how far they are right."""

    score: float
    rows: tuple[tuple[Int64Array, Int64Array], ...]
    """Image and label of the rows that are correct, predicted and true."""
    wrong: Int64Array
    """Number of wrong decisions on each image, (I,)."""
    f1: Float64Array
    """F1 of each image, (I,)."""


class MultiLabelMetrics:
    """Metrics of images with any number of true labels."""

    def __init__(self, state: EvaluationState, settings: MetricSettings) -> None:
        rows, truths = state.tables["predictions"], state.tables["truths"]
        self._state, self._images, self._labels = state, len(state.ids), len(state.labels)
        self._settings = settings
        self._truths = truths["image"], truths["label"]
        is_correct = np.isin(joint_key(rows["image"], rows["label"]), joint_key(*self._truths))
        shape = self._images, self._labels
        self._stored = StoredScores(rows, truths["label"], self._images)
        self._scores = LabelScores(rows, is_correct, self._truths, shape)
        self._decisions = [
            self._decide(rows, is_correct, score) for score in settings.score or (SCORE_THRESHOLD,)
        ]

    def _decide(self, rows: Table, is_correct: BoolArray, score: float) -> _Decisions:
        is_predicted = rows["score"] >= score
        sides = (
            *(
                (rows["image"][images], rows["label"][images])
                for images in (is_predicted & is_correct, is_predicted)
            ),
            self._truths,
        )
        correct, predicted, actual = (
            np.bincount(images, minlength=self._images) for images, _ in sides
        )
        return _Decisions(
            score,
            sides,
            wrong=predicted + actual - 2 * correct,
            f1=np.nan_to_num(ratio(2 * correct, predicted + actual)),
        )

    def headlines(self, weights: Float64Array) -> list[Headline]:
        """Compute the headlines over weightings (B, I) of the images."""
        return [
            *(
                headline
                for decisions in self._decisions
                for headline in self._decided(decisions, weights)
            ),
            *self._scores.headlines(weights, self._stored.reason),
        ]

    def _decided(self, decisions: _Decisions, weights: Float64Array) -> list[Headline]:
        """Compute the headlines at one score."""
        count = weights.sum(axis=1)
        counts = LabelCounts.from_rows(weights, decisions.rows, self._labels)
        threshold = {"score": decisions.score}
        accuracy = ratio(weights @ (decisions.wrong == 0), count)
        return [
            Headline("Accuracy", {**threshold, "rule": "all labels"}, accuracy, is_share=True),
            Headline(
                "F1",
                {**threshold, "average": "micro"},
                counts.micro()["F1"],
                trials_per_image=2.0,
            ),
            *counts.headlines(**threshold),
            Headline(
                "F1", {**threshold, "average": "samples"}, ratio(weights @ decisions.f1, count)
            ),
            Headline(
                "HammingLoss", threshold, ratio(weights @ decisions.wrong, count * self._labels)
            ),
        ]

    def details(self) -> EvaluationDetails:
        """Compute all other results, over all images."""
        weights = np.ones((1, self._images))
        roc, precision = self._scores.areas(weights)
        areas = {"ROCAUC": roc, "AveragePrecision": precision}
        headline = "F1", "micro"
        metrics: list[Metric] = []
        for decisions in self._decisions:
            counts = LabelCounts.from_rows(weights, decisions.rows, self._labels)
            rates = average_metrics(counts, self._images, score=decisions.score)
            metrics += [
                *(
                    metric
                    for metric in rates
                    if (metric.type, metric.parameters["average"]) != headline
                ),
                *label_metrics(
                    self._state.labels, counts.rates(), counts.actual, score=decisions.score
                ),
            ]
        missing = self._stored.reason
        metrics += without_values(
            label_metrics(self._state.labels, areas, counts.actual),
            {"ROCAUC": missing, "AveragePrecision": missing},
        )
        return EvaluationDetails(
            metrics=metrics,
            curves={} if missing else score_curves(self._scores, self._state.labels),
            badness={"wrong_label": self._decisions[0].wrong.astype(np.float64)},
            names_all_labels=not missing,
            parameters={"multi_label": True, "score": SCORE_THRESHOLD, "absent_score": 0},
            warnings=self._kind_warnings()
            + self._undecided_warnings()
            + warn_unused(
                self._settings,
                ("top_k", "bins"),
                "an image may have several true labels or none, and each label is decided by itself",
            ),
        )

    def _kind_warnings(self) -> list[str]:
        """Say which images make the set multi-label, where others have one label each."""
        single, odd = with_one_label(self._state)
        if self._settings.single_label is not None or not single.ids:
            return []
        return [f"judged as multi-label: {odd}; the setting single_label leaves them out"]

    def _undecided_warnings(self) -> list[str]:
        """Say at which scores labels that are not stored may belong to the predicted ones."""
        return [
            f"labels that are not stored count as not predicted at the score {decisions.score:g}: "
            f"{undecided:,} of {self._images:,} inferences may have more labels of that score than they store"
            for decisions in self._decisions
            if (undecided := self._stored.count_undecided(decisions.score))
        ]

"""Images with any number of true labels: each label is a question of its own, decided at a threshold."""

import numpy as np

from monitor.evaluation.arrays import Doubles, Integers, mean_known, ratio
from monitor.evaluation.evaluators import Findings, Headline
from monitor.evaluation.label_counts import LabelCounts, averaged, per_label
from monitor.evaluation.label_scores import LabelScores, curves
from monitor.evaluation.state import State

THRESHOLD = 0.5
"""Least score of a label that an image is said to have."""


class MultiLabel:
    """A whole state, looked into once."""

    def __init__(self, state: State) -> None:
        rows, truths = state.tables["predictions"], state.tables["truths"]
        self._state, self._images, self._labels = state, len(state.ids), len(state.labels)
        self._truths = truths["image"], truths["label"]
        right = np.isin(_pairs(rows, self._labels), _pairs(truths, self._labels))
        shape = self._images, self._labels
        self._scores = LabelScores(rows, right, self._truths, shape)
        said = rows["score"] >= THRESHOLD
        self._rows = (
            *((rows["image"][of], rows["label"][of]) for of in (said & right, said)),
            self._truths,
        )
        found, answered, true = (np.bincount(of, minlength=self._images) for of, _ in self._rows)
        self._wrong = answered + true - 2 * found
        both = (answered + true).astype(np.float64)
        self._f1 = np.divide(2 * found, both, out=np.zeros(self._images), where=both > 0)

    def headlines(self, weights: Doubles) -> list[Headline]:
        """Compute the headlines over weightings (B, I) of the images."""
        count = weights.sum(axis=1)
        counts = LabelCounts.of(weights, self._rows, self._labels)
        roc, precision = self._scores.areas(weights)
        at = {"score": THRESHOLD}
        rates = counts.rates()
        return [
            Headline(
                "Accuracy", {**at, "rule": "all labels"}, ratio(weights @ (self._wrong == 0), count)
            ),
            Headline("F1", {**at, "average": "micro"}, counts.micro()["F1"]),
            *(
                Headline(name, {**at, "average": "macro"}, counts.macro(values))
                for name, values in rates.items()
            ),
            Headline("F1", {**at, "average": "samples"}, ratio(weights @ self._f1, count)),
            Headline("HammingLoss", at, ratio(weights @ self._wrong, count * self._labels)),
            Headline("ROCAUC", {"average": "macro"}, mean_known(roc)),
            Headline("AveragePrecision", {"average": "macro"}, mean_known(precision)),
        ]

    def findings(self) -> Findings:
        """Compute everything else, over all images."""
        weights = np.ones((1, self._images))
        counts = LabelCounts.of(weights, self._rows, self._labels)
        roc, precision = self._scores.areas(weights)
        areas = {"ROCAUC": roc, "AveragePrecision": precision}
        metrics = [
            *(
                one
                for one in averaged(counts, self._images, score=THRESHOLD)
                if (one.type, one.parameters["average"]) != ("F1", "micro")  # a headline
            ),
            *per_label(self._state.labels, counts.rates(), counts.true, score=THRESHOLD),
            *per_label(self._state.labels, areas, counts.true),
        ]
        return Findings(
            metrics=metrics,
            curves=curves(self._scores, self._state.labels),
            badness={"wrong_label": self._wrong.astype(np.float64)},
            parameters={"multi_label": True, "score": THRESHOLD, "absent_score": 0},
        )


def _pairs(table: dict[str, Integers], labels: int) -> Integers:
    """Number image and label together."""
    return table["image"] * labels + table["label"]

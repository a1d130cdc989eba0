"""Precision, recall, F1 and intersection over union from counts, per label and averaged.

A rate without anything to count is NaN, but for the precision of a label that is there and never answered:
that is 0, as scikit-learn has it.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from quadriga.monitor.evaluation.arrays import ratio
from quadriga.monitor.evaluation.evaluators import Headline
from quadriga.monitor.evaluation.reporting import finite_or_none
from quadriga.monitor.report.schema import Confusion, Metric
from quadriga.tasks.arrays import BoolArray, Float64Array, Int64Array

MAX_LABELS = 1000
"""Of a confusion matrix."""


def weighted_totals(
    weights: Float64Array,
    image: Int64Array,
    group: Int64Array,
    groups: int,
    values: Float64Array | Int64Array | BoolArray | None = None,
) -> Float64Array:
    """Add up rows by group, each as often as its image is there.

    Args:
        weights: (B, I) how often each image is there.
        image: (N,) of each row.
        group: (N,) of each row, below `groups` (G); rows of a negative one are left out.
        groups: How many there are.
        values: (N,) what is added; ones if not given.

    Returns:
        (B, G).
    """
    has_group = group >= 0
    values = np.ones(len(group)) if values is None else values.astype(np.float64)
    matrix = sparse.csr_matrix(
        (values[has_group], (group[has_group], image[has_group])), shape=(groups, weights.shape[1])
    )
    return np.ascontiguousarray((matrix @ weights.T).T)


class LabelCounts(NamedTuple):
    """How often each label is answered, is true, and is both: (B, K) each."""

    correct: Float64Array
    predicted: Float64Array
    actual: Float64Array

    @classmethod
    def from_rows(
        cls,
        weights: Float64Array,
        rows: tuple[tuple[Int64Array, Int64Array], ...],
        labels: int,
        values: Int64Array | None = None,
    ) -> "LabelCounts":
        """Count images and labels that are right, answered and true; the rest as of `totals`."""
        return cls(
            *(
                weighted_totals(weights, *image_and_label, labels, values)
                for image_and_label in rows
            )
        )

    def rates(self) -> dict[str, Float64Array]:
        """Return precision, recall and F1 (B, K) by their names."""
        is_never_predicted = (self.predicted == 0) & (self.actual > 0)
        return {
            "Precision": np.where(is_never_predicted, 0.0, ratio(self.correct, self.predicted)),
            "Recall": ratio(self.correct, self.actual),
            "F1": ratio(2 * self.correct, self.predicted + self.actual),
        }

    def iou(self) -> Float64Array:
        """Return intersection over union (B, K)."""
        return ratio(self.correct, self.predicted + self.actual - self.correct)

    def macro(self, values: Float64Array) -> Float64Array:
        """Average (B,) over the labels that are true or answered at all; there NaN counts 0."""
        present = self.predicted + self.actual > 0
        defined_values = np.where(present & ~np.isnan(values), values, 0.0)
        return ratio(defined_values.sum(axis=1), present.sum(axis=1))

    def headlines(self, **parameters: Any) -> list[Headline]:
        """Return precision, recall and F1, each averaged by `macro`."""
        named = {**parameters, "average": "macro"}
        return [Headline(name, named, self.macro(rate)) for name, rate in self.rates().items()]

    def weighted(self, values: Float64Array) -> Float64Array:
        """Average (B,) over the labels by how often each is true."""
        defined_values = np.where(self.actual > 0, values, 0.0)
        return ratio((self.actual * defined_values).sum(axis=1), self.actual.sum(axis=1))

    def micro(self) -> dict[str, Float64Array]:
        """Return precision, recall and F1 (B,) of all labels together."""
        totals = LabelCounts(*(counts.sum(axis=1, keepdims=True) for counts in self))
        return {name: values[:, 0] for name, values in totals.rates().items()}


def count_confusion(
    labels: list[str], actual: Int64Array, predicted: Int64Array, count: Int64Array, *, unit: str
) -> Confusion:
    """Count what is taken for what, among the `MOST_LABELS` labels that are true most often.

    Args:
        labels: All (K).
        true: (N,) true labels of rows, -1 for nothing.
        answered: (N,) answered ones, likewise.
        count: (N,) how often each row is there.
        unit: What is counted, as the report names it.
    """
    has_label = actual >= 0
    frequency = np.bincount(actual[has_label], count[has_label], len(labels))
    shown = np.sort(np.argsort(-frequency, kind="stable")[:MAX_LABELS])
    size = len(shown) + 1
    position = np.full(len(labels) + 1, -1)
    position[shown], position[-1] = np.arange(len(shown)), len(shown)
    row, column = position[actual], position[predicted]
    is_shown = (row >= 0) & (column >= 0)
    cells = np.bincount(row[is_shown] * size + column[is_shown], count[is_shown], size * size)
    matrix = cells.astype(np.int64).reshape(size, size)
    names = [labels[label] for label in shown]
    hallucinations, misses = (
        {name: count for name, count in zip(names, counts.tolist(), strict=True) if count}
        for counts in (matrix[-1, :-1], matrix[:-1, -1])
    )
    parameters = {"of": unit, "labels": len(labels)}
    return Confusion(
        names, matrix[:-1, :-1].tolist(), hallucinations, misses, parameters=parameters
    )


def label_metrics(
    labels: list[str], values: dict[str, Float64Array], actual: Float64Array, **parameters: Any
) -> list[Metric]:
    """Name numbers (1, K) of labels, each taken over the `true` (1, K) ones."""
    return [
        Metric(name, finite_or_none(value), {**parameters, "label": label}, None, int(count))
        for name, column in values.items()
        for label, value, count in zip(labels, column[0], actual[0], strict=True)
    ]


def average_metrics(counts: LabelCounts, n: int, **parameters: Any) -> list[Metric]:
    """Name rates (1, K) of all labels together, and weighted by how often each is true, over `n` images."""
    weighted = {name: counts.weighted(rate) for name, rate in counts.rates().items()}
    return [
        Metric(name, finite_or_none(found[0]), {**parameters, "average": average}, None, n)
        for average, rates in (("micro", counts.micro()), ("weighted", weighted))
        for name, found in rates.items()
    ]

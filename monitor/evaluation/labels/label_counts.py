"""Metrics from weighted counts: precision, recall, F1 and IoU of labels, confusion, calibration.

A rate with denominator 0 is NaN, except the precision of a label that has images and is never predicted:
that is 0, as in scikit-learn.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from quadriga.monitor.evaluation.arrays import finite_or_none, ratio
from quadriga.monitor.evaluation.evaluators import Headline
from quadriga.monitor.report.schema import Confusion, Metric
from quadriga.tasks.arrays import BoolArray, Float64Array, Int64Array

MAX_LABELS = 1000
"""Maximum number of labels in a confusion matrix."""


def weighted_totals(
    weights: Float64Array,
    image: Int64Array,
    group: Int64Array,
    groups: int,
    values: Float64Array | Int64Array | BoolArray | None = None,
) -> Float64Array:
    """Sum rows by group, weighted by their images.

    Args:
        weights: How often each image counts, (B, I).
        image: Image of each row, (N,).
        group: Group of each row, (N,), below `groups`; rows with a negative group are ignored.
        groups: Number of groups (G).
        values: Summands, (N,); ones if omitted.

    Returns:
        Sums (B, G).
    """
    has_group = group >= 0
    values = np.ones(len(group)) if values is None else values.astype(np.float64)
    matrix = sparse.csr_matrix(
        (values[has_group], (group[has_group], image[has_group])), shape=(groups, weights.shape[1])
    )
    return np.ascontiguousarray((matrix @ weights.T).T)


class LabelCounts(NamedTuple):
    """How often each label is correct, is predicted, and is true: (B, K) each."""

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
        """Count rows (image, label) that are correct, predicted and true; see `weighted_totals`."""
        return cls(
            *(
                weighted_totals(weights, *image_and_label, labels, values)
                for image_and_label in rows
            )
        )

    def rates(self) -> dict[str, Float64Array]:
        """Return precision, recall and F1 (B, K) by name."""
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
        """Average (B,) over the labels that are true or predicted at all; for those NaN counts as 0."""
        return _mean(values, self.predicted + self.actual > 0)

    def headlines(self, **parameters: Any) -> list[Headline]:
        """Return precision, recall and F1, each averaged by `macro`."""
        named = {**parameters, "average": "macro"}
        return [
            Headline(
                name,
                named,
                self.macro(rate),
                trials_per_image=1.0,
                optimistic=_mean(rate, self.actual > 0),
            )
            for name, rate in self.rates().items()
        ]

    def weighted(self, values: Float64Array) -> Float64Array:
        """Average (B,) over labels, weighted by how often each is true."""
        defined_values = np.where(self.actual > 0, values, 0.0)
        return ratio((self.actual * defined_values).sum(axis=1), self.actual.sum(axis=1))

    def micro(self) -> dict[str, Float64Array]:
        """Return precision, recall and F1 (B,) of all labels together."""
        totals = LabelCounts(*(counts.sum(axis=1, keepdims=True) for counts in self))
        return {name: values[:, 0] for name, values in totals.rates().items()}


def _mean(values: Float64Array, is_counted: BoolArray) -> Float64Array:
    """Average (B,) over the labels (B, K) that count; for those NaN counts as 0."""
    defined_values = np.where(is_counted & ~np.isnan(values), values, 0.0)
    return ratio(defined_values.sum(axis=1), is_counted.sum(axis=1))


def count_confusion(
    labels: list[str], actual: Int64Array, predicted: Int64Array, count: Int64Array, *, unit: str
) -> Confusion:
    """Count a confusion matrix of the `MAX_LABELS` labels that are true most often.

    Args:
        labels: All labels (K).
        actual: True labels of rows, (N,), -1 for none.
        predicted: Predicted labels of rows, (N,), -1 for none.
        count: How often each row counts, (N,).
        unit: Unit of the counts, as the report names it.
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
    labels: list[str],
    values: dict[str, Float64Array],
    actual: Float64Array | Int64Array,
    *,
    reason: str = "",
    **parameters: Any,
) -> list[Metric]:
    """Return values (1, K) of labels as metrics, with sample sizes `actual` (1, K); without values if there is a reason."""
    return [
        Metric(
            name,
            None if reason else finite_or_none(value),
            {**parameters, "label": label},
            n=int(count),
            reason=reason,
        )
        for name, column in values.items()
        for label, value, count in zip(labels, column[0], actual[0], strict=True)
    ]


def average_metrics(counts: LabelCounts, n: int, **parameters: Any) -> list[Metric]:
    """Return rates (1, K) averaged over labels, micro and weighted, as metrics over `n` images."""
    weighted = {name: counts.weighted(rate) for name, rate in counts.rates().items()}
    return [
        Metric(name, finite_or_none(value[0]), {**parameters, "average": average}, ci95=None, n=n)
        for average, rates in (("micro", counts.micro()), ("weighted", weighted))
        for name, value in rates.items()
    ]


BINS = 15
RULE = "equal width, upper edge included"
_SCORE_BINS = 20


def are_probabilities(scores: Float64Array) -> bool:
    """Check that all scores are from 0 to 1, up to rounding in single precision."""
    return bool((scores >= -1e-6).all() and (scores <= 1 + 1e-6).all())


class CalibrationBins:
    """Calibration of scores: of predictions with a score of 0.8, 80 % should be correct.

    Predictions (N,) are counted by bins of their scores: image, score, and whether each is correct. Bins have equal
    width and include their upper edge; the first includes 0, too.

    Errors are undefined if the scores are not probabilities.

    Source: Guo et al., On Calibration of Modern Neural Networks, 2017, section 2.
    """

    def __init__(
        self,
        image: Int64Array,
        score: Float64Array,
        is_correct: BoolArray,
        bins: int | None = None,
    ) -> None:
        self._image, self._score, self._is_correct = image, score, is_correct
        self._count = BINS if bins is None else bins
        self._edges = np.linspace(0, 1, self._count + 1)
        self._bin = np.clip(np.searchsorted(self._edges, score) - 1, 0, self._count - 1)
        self._is_defined = are_probabilities(score)

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of the errors in a report."""
        return {"bins": self._count, "rule": RULE}

    def _bins(self, weights: Float64Array) -> tuple[Float64Array, Float64Array, Float64Array]:
        """Return the count, the sum of scores and the number of correct predictions of each bin (B, C)."""
        count, score, correct = (
            weighted_totals(weights, self._image, self._bin, groups=self._count, values=values)
            for values in (None, self._score, self._is_correct)
        )
        return count, score, correct

    def errors(self, weights: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Return the expected and the maximum calibration error (B,), NaN without predictions."""
        if not self._is_defined:
            return np.full(len(weights), np.nan), np.full(len(weights), np.nan)
        count, score, right = self._bins(weights)
        gaps = np.abs(right - score)
        expected = ratio(gaps.sum(axis=1), count.sum(axis=1))
        maximum = np.where(count > 0, ratio(gaps, count), -1.0).max(axis=1)
        return expected, np.where(maximum < 0, np.nan, maximum)

    def noise(self, weights: Float64Array) -> Float64Array:
        """Return how far the gaps of the bins are from those of all images, summed (B,), NaN without predictions."""
        if not self._is_defined:
            return np.full(len(weights), np.nan)
        all_images = np.ones((1, weights.shape[1]))
        gaps, overall_gaps = (
            ratio((right - score).T, count.sum(axis=1)[None].repeat(self._count, axis=0))
            for count, score, right in (self._bins(weights), self._bins(all_images))
        )
        return np.asarray(np.abs(gaps - overall_gaps).sum(axis=0))

    def curves(self, weights: Float64Array) -> dict[str, list[dict[str, Any]]]:
        """Return the reliability diagram and the histograms of scores, over weights (1, I)."""
        curves: dict[str, list[dict[str, Any]]] = {}
        if self._is_defined and len(self._score):
            count, score, right = (values[0] for values in self._bins(weights))
            curve = {
                "label": None,
                "edges": self._edges.tolist(),
                "confidence": [finite_or_none(value) for value in ratio(score, count)],
                "accuracy": [finite_or_none(value) for value in ratio(right, count)],
                "count": count.astype(np.int64).tolist(),
            }
            curves["reliability"] = [curve]
        if len(self._score):
            low, high = min(0.0, self._score.min()), max(1.0, self._score.max())
            edges = np.linspace(low, high, _SCORE_BINS + 1)
            curve = {"label": None, "edges": edges.tolist()}
            for side, is_side in (("right", self._is_correct), ("wrong", ~self._is_correct)):
                curve[side] = np.histogram(self._score[is_side], edges)[0].tolist()
            curves["scores"] = [curve]
        return curves

"""Calibration of scores: of predictions with a score of 0.8, 80 % should be correct.

Bins have equal width and include their upper edge; the first includes 0, too.

Source: Guo et al., On Calibration of Modern Neural Networks, 2017, section 2.
"""

from typing import Any

import numpy as np

from quadriga.monitor.evaluation.arrays import finite_or_none, ratio
from quadriga.monitor.evaluation.labels.label_counts import weighted_totals
from quadriga.tasks.arrays import BoolArray, Float64Array, Int64Array

BINS = 15
RULE = "equal width, upper edge included"
_SCORE_BINS = 20


def are_probabilities(scores: Float64Array) -> bool:
    """Check that all scores are from 0 to 1, up to rounding in single precision."""
    return bool((scores >= -1e-6).all() and (scores <= 1 + 1e-6).all())


class CalibrationBins:
    """Predictions (N,) by bins of their scores: image, score, and whether each is correct.

    Errors are undefined if the scores are not probabilities.
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

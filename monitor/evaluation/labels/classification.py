"""Image classification: one label for each image, or any number of labels.

A set of images is multi-label as soon as one image does not have exactly one true label; then each label is
decided by itself, at a threshold. If all images have one label, the prediction is the label with the highest
score; among equal scores the first in the model's list.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from quadriga.monitor.evaluation.arrays import index_within_runs, joint_key, ratio, run_starts
from quadriga.monitor.evaluation.evaluators import EvaluationDetails, Headline, TaskMetrics
from quadriga.monitor.evaluation.item_tables import read_item_table
from quadriga.monitor.evaluation.labels.calibration import (
    BINS,
    RULE,
    CalibrationBins,
    are_probabilities,
)
from quadriga.monitor.evaluation.labels.label_counts import (
    LabelCounts,
    average_metrics,
    count_confusion,
    label_metrics,
)
from quadriga.monitor.evaluation.labels.label_scores import LabelScores, score_curves
from quadriga.monitor.evaluation.reporting import finite_or_none
from quadriga.monitor.evaluation.state import (
    BoundedNumber,
    EvaluatedImage,
    EvaluationState,
    LabelNumbers,
    Table,
)
from quadriga.monitor.report.schema import Example, Metric
from quadriga.tasks.arrays import BoolArray, Float64Array, Int64Array

SCORE_THRESHOLD = 0.5
"""Minimum score of a label that counts as predicted."""

_MAX_EXAMPLES, _EXAMPLES_PER_CELL = 300, 3
_CALIBRATION = {"bins": BINS, "rule": RULE}
_UNRANKED = np.iinfo(np.int64).max


class _ScoredLabel(msgspec.Struct, frozen=True):
    label: str
    score: BoundedNumber


class _TrueLabel(msgspec.Struct, frozen=True):
    label: str


class ClassificationEvaluator:
    """Evaluates `IMAGE_CLASSIFICATION`.

    Tables: "predictions" with image, label, score and number, the position in the image's list, in the
    order of the list; "truths" with image and label. A label that an image has twice counts once, with
    its higher score.
    """

    def tables(self, images: Sequence[EvaluatedImage], labels: LabelNumbers) -> dict[str, Table]:
        """Read scores and true labels; see `Evaluator.tables`."""
        predictions = read_item_table(images, "predictions", list[_ScoredLabel], labels)
        annotations = read_item_table(images, "ground_truth", list[_TrueLabel], labels)
        scored = {**predictions.table, "score": predictions.numbers("score")[:, 0]}
        return {
            "predictions": _distinct_rows(scored, scored["score"]),
            "truths": _distinct_rows(
                {name: annotations.table[name] for name in ("image", "label")}
            ),
        }

    def evaluate(self, state: EvaluationState) -> TaskMetrics:
        """Compute metrics of a merged state, as single-label or as multi-label classification."""
        truths = np.bincount(state.tables["truths"]["image"], minlength=len(state.ids))
        return SingleLabelMetrics(state) if (truths == 1).all() else MultiLabelMetrics(state)


def _distinct_rows(table: Table, score: Float64Array | None = None) -> Table:
    """Keep one row per image and label, the one with the highest score; among equal scores the first."""
    keys = joint_key(table["image"], table["label"])
    order = np.lexsort((np.zeros(len(keys)) if score is None else -score, keys))
    selected = np.sort(order[run_starts(keys[order])])
    return {name: column[selected] for name, column in table.items()}


class _TopPredictions(NamedTuple):
    """The best prediction and the rank of the true label, for each image (I,)."""

    label: Int64Array
    """Predicted label, -1 without predictions."""
    score: Float64Array
    """Score of the predicted label, 0 without predictions."""
    number: Int64Array
    """Position of the predicted label in the image's list."""
    true_rank: Int64Array
    """Rank of the true label by falling score, from 0; huge if it has no score."""
    true_score: Float64Array


def _top_predictions(rows: Table, is_correct_row: BoolArray, images: int) -> _TopPredictions:
    order = np.lexsort((-rows["score"], rows["image"]))
    image = rows["image"][order]
    rank = index_within_runs(image)
    best = order[rank == 0]
    answered_images = rows["image"][best]
    label, numbers = np.full(images, -1), np.zeros(images, np.int64)
    score, true_score = np.zeros(images), np.zeros(images)
    label[answered_images], score[answered_images] = rows["label"][best], rows["score"][best]
    numbers[answered_images] = rows["number"][best]
    true_rank = np.full(images, _UNRANKED)
    is_correct = is_correct_row[order]
    true_rank[image[is_correct]] = rank[is_correct]
    true_score[image[is_correct]] = rows["score"][order][is_correct]
    return _TopPredictions(label, score, numbers, true_rank=true_rank, true_score=true_score)


class SingleLabelMetrics:
    """Metrics of images with one true label each."""

    def __init__(self, state: EvaluationState) -> None:
        rows = state.tables["predictions"]
        self._state, self._images, self._labels = state, len(state.ids), len(state.labels)
        self._true: Int64Array = state.tables["truths"]["label"]
        is_correct = rows["label"] == self._true[rows["image"]]
        self._best = best = _top_predictions(rows, is_correct, self._images)
        self._is_correct = best.label == self._true
        answered = np.flatnonzero(best.label >= 0)
        self._calibration = CalibrationBins(
            answered, best.score[answered], self._is_correct[answered]
        )
        self._brier = np.full(self._images, np.nan)
        if are_probabilities(rows["score"]):
            squares = (rows["score"] - is_correct) ** 2
            self._brier = np.bincount(rows["image"], squares, self._images)
            self._brier += best.true_rank == _UNRANKED
        all_images = np.arange(self._images)
        shape = self._images, self._labels
        self._scores = LabelScores(rows, is_correct, (all_images, self._true), shape)
        correct_label = np.where(self._is_correct, self._true, -1)
        self._rows = (
            (all_images, correct_label),
            (all_images, best.label),
            (all_images, self._true),
        )

    def headlines(self, weights: Float64Array) -> list[Headline]:
        """Compute the headlines over weightings (B, I) of the images."""
        count = weights.sum(axis=1)
        counts = LabelCounts.from_rows(weights, self._rows, self._labels)
        expected, _ = self._calibration.errors(weights)
        return [
            Headline("Accuracy", {}, ratio(weights @ self._is_correct, count)),
            self._top(5, weights),
            *counts.headlines(),
            *self._scores.headlines(weights),
            Headline("ECE", _CALIBRATION, expected),
            Headline("Brier", {"rule": "sum over labels"}, ratio(weights @ self._brier, count)),
        ]

    def _top(self, k: int, weights: Float64Array) -> Headline:
        """Compute how often the true label is among the best `k`; undefined with `k` labels or fewer."""
        hits = weights @ (self._best.true_rank < k)
        return Headline(
            "TopKAccuracy", {"k": k}, ratio(hits, weights.sum(axis=1) * (self._labels > k))
        )

    def details(self) -> EvaluationDetails:
        """Compute all other results, over all images."""
        weights = np.ones((1, self._images))
        counts = LabelCounts.from_rows(weights, self._rows, self._labels)
        roc, precision = self._scores.areas(weights)
        values = {**counts.rates(), "ROCAUC": roc, "AveragePrecision": precision}
        _, maximum_error = self._calibration.errors(weights)
        top = self._top(3, weights)
        best, image_counts = self._best, np.ones(self._images, np.int64)
        is_wrong = (best.label >= 0) & ~self._is_correct
        margin = np.where(is_wrong, best.score - best.true_score, 0.0)
        confusion = count_confusion(
            self._state.labels, self._true, best.label, image_counts, unit="images"
        )
        metrics = [
            Metric(
                top.type, finite_or_none(top.values[0]), top.parameters, ci95=None, n=self._images
            ),
            *average_metrics(counts, self._images),
            Metric(
                "MCE", finite_or_none(maximum_error[0]), _CALIBRATION, ci95=None, n=self._images
            ),
            *label_metrics(self._state.labels, values, counts.actual),
        ]
        return EvaluationDetails(
            metrics=metrics,
            curves=score_curves(self._scores, self._state.labels)
            | self._calibration.curves(weights),
            confusion=msgspec.structs.replace(confusion, examples=self._examples()),
            badness={"wrong_label": margin, "miss": (best.label < 0).astype(np.float64)},
            parameters={"multi_label": False, "absent_score": 0, "ties": "first in the answer"},
        )

    def _examples(self) -> list[Example]:
        """Choose examples of confusions, from the most frequent ones, highest scores first."""
        best, labels = self._best, [*self._state.labels, None]
        wrong = np.flatnonzero(~self._is_correct)
        cell = self._true[wrong] * (self._labels + 1) + best.label[wrong]
        _, cells, counts = np.unique(cell, return_inverse=True, return_counts=True)
        order = np.lexsort((-best.score[wrong], cells))
        order = order[index_within_runs(cells[order]) < _EXAMPLES_PER_CELL]
        fullest = order[np.argsort(-counts[cells[order]], kind="stable")][:_MAX_EXAMPLES]
        examples = []
        for image in wrong[fullest]:
            prediction_id = None if best.label[image] < 0 else str(best.number[image])
            pair = labels[self._true[image]], labels[best.label[image]]
            examples.append(Example(*pair, self._state.ids[image], "0", prediction_id))
        return examples


class MultiLabelMetrics:
    """Metrics of images with any number of true labels."""

    def __init__(self, state: EvaluationState) -> None:
        rows, truths = state.tables["predictions"], state.tables["truths"]
        self._state, self._images, self._labels = state, len(state.ids), len(state.labels)
        self._truths = truths["image"], truths["label"]
        is_correct = np.isin(joint_key(rows["image"], rows["label"]), joint_key(*self._truths))
        shape = self._images, self._labels
        self._scores = LabelScores(rows, is_correct, self._truths, shape)
        is_predicted = rows["score"] >= SCORE_THRESHOLD
        self._rows = (
            *(
                (rows["image"][images], rows["label"][images])
                for images in (is_predicted & is_correct, is_predicted)
            ),
            self._truths,
        )
        correct, predicted, actual = (
            np.bincount(images, minlength=self._images) for images, _ in self._rows
        )
        self._wrong = predicted + actual - 2 * correct
        self._f1 = np.nan_to_num(ratio(2 * correct, predicted + actual))

    def headlines(self, weights: Float64Array) -> list[Headline]:
        """Compute the headlines over weightings (B, I) of the images."""
        count = weights.sum(axis=1)
        counts = LabelCounts.from_rows(weights, self._rows, self._labels)
        threshold = {"score": SCORE_THRESHOLD}
        accuracy = ratio(weights @ (self._wrong == 0), count)
        return [
            Headline("Accuracy", {**threshold, "rule": "all labels"}, accuracy),
            Headline("F1", {**threshold, "average": "micro"}, counts.micro()["F1"]),
            *counts.headlines(**threshold),
            Headline("F1", {**threshold, "average": "samples"}, ratio(weights @ self._f1, count)),
            Headline("HammingLoss", threshold, ratio(weights @ self._wrong, count * self._labels)),
            *self._scores.headlines(weights),
        ]

    def details(self) -> EvaluationDetails:
        """Compute all other results, over all images."""
        weights = np.ones((1, self._images))
        counts = LabelCounts.from_rows(weights, self._rows, self._labels)
        roc, precision = self._scores.areas(weights)
        areas = {"ROCAUC": roc, "AveragePrecision": precision}
        rates = average_metrics(counts, self._images, score=SCORE_THRESHOLD)
        headline = "F1", "micro"
        metrics = [
            *(
                metric
                for metric in rates
                if (metric.type, metric.parameters["average"]) != headline
            ),
            *label_metrics(
                self._state.labels, counts.rates(), counts.actual, score=SCORE_THRESHOLD
            ),
            *label_metrics(self._state.labels, areas, counts.actual),
        ]
        return EvaluationDetails(
            metrics=metrics,
            curves=score_curves(self._scores, self._state.labels),
            badness={"wrong_label": self._wrong.astype(np.float64)},
            parameters={"multi_label": True, "score": SCORE_THRESHOLD, "absent_score": 0},
        )

"""Image classification: one label for each image, or any number of labels.

A set of images is multi-label as soon as one image does not have exactly one true label, unless the settings leave
such images out; then each label is decided by itself, at a threshold. If all images have one label, the prediction is
the label with the highest score; among equal scores the first in the model's list.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np

from quadriga.monitor.evaluation.arrays import (
    cumulative_before,
    finite_or_none,
    index_within_runs,
    joint_key,
    nan_mean,
    ratio,
    run_starts,
)
from quadriga.monitor.evaluation.evaluators import EvaluationDetails, Headline, TaskMetrics
from quadriga.monitor.evaluation.labels.label_counts import (
    CalibrationBins,
    LabelCounts,
    are_probabilities,
    average_metrics,
    count_confusion,
    label_metrics,
    weighted_totals,
)
from quadriga.monitor.evaluation.metric_settings import (
    DEFAULT_SETTINGS,
    MetricSettings,
    warn_unused,
)
from quadriga.monitor.evaluation.state import (
    BoundedNumber,
    EvaluatedImage,
    EvaluationState,
    LabelNumbers,
    Table,
    read_item_table,
    with_one_label,
)
from quadriga.monitor.report.cells import PairedLabels
from quadriga.monitor.report.schema import Example, Metric
from quadriga.tasks.arrays import BoolArray, Float64Array, Int64Array

_POINTS = 200
"""Maximum number of points of a curve."""

_CURVES = 100
"""Maximum number of labels with a curve, those with the most images; the mean is over all."""

_GRID: Float64Array = np.linspace(0, 1, 101)
_AREAS = "ROCAUC", "AveragePrecision"
_PR = "recall", "precision", "score"
_ROC = "false_positive_rate", "true_positive_rate", "threshold"

_SUM_TOLERANCE = 1e-6
"""How far the sum of probabilities may be from 1, as they are rounded to single precision."""


class RocSteps(NamedTuple):
    """Cumulative counts of a label (S,): images at each score or above, with and without the label."""

    score: Float64Array
    """Distinct scores, falling."""
    true_positives: Int64Array
    false_positives: Int64Array


class LabelScores:
    """All scores of all labels, sorted once, and whether those of all labels are stored.

    Every image has a score for every label; a score that the model did not give is 0. Equal scores are one step of
    a curve, as in scikit-learn.

    A classifier answers its best label by default (action `predict`), or the best few (`top_k`). That says which label it
    takes an image for, and how sure it is; not how the other labels rank, which some metrics need.
    The model is taken to have the labels that any prediction has. An image has the scores of all of them if it lists
    all, or none at all; or if it lists several whose scores add up to 1, so that those of the others are 0. Where all
    images list one label, and it is the same for all, the model may have this label alone; it does not if an image has
    another true label.

    Args:
        rows: Scores of the model (N,): `image`, `label` and `score`, no label of an image twice.
        right: Whether the image has the label, (N,).
        truths: Image and label of the true labels, (M,) each.
        shape: Number of images and number of labels.
    """

    def __init__(
        self,
        rows: Table,
        right: BoolArray,
        truths: tuple[Int64Array, Int64Array],
        shape: tuple[int, int],
    ) -> None:
        self._images, self._labels = shape
        self._truths = truths
        order = np.lexsort((-rows["score"], rows["label"]))
        self._image, self._score = rows["image"][order], rows["score"][order]
        self._is_correct = right[order]
        self._bounds = np.searchsorted(rows["label"][order], np.arange(self._labels + 1))
        self._listed = np.bincount(self._image, minlength=self._images)
        known = np.unique(rows["label"])
        is_one_of_several = len(known) == 1 and not np.isin(truths[1], known).all()
        self._known = len(known) + is_one_of_several
        sums = np.bincount(rows["image"], rows["score"], self._images)
        is_sum_of_all = (self._listed > 1) & (np.abs(sums - 1) <= _SUM_TOLERANCE)
        self._is_partial = (self._listed > 0) & (self._listed < self._known) & ~is_sum_of_all

    @cached_property
    def missing(self) -> str:
        """Why metrics that need the scores of all labels have no value; empty if they have one."""
        return self._reason(int(np.count_nonzero(self._is_partial)))

    def reason_of_ranks(self, k: int) -> str:
        """Return why the best `k` labels of each image are not known; empty if they are."""
        is_short = self._is_partial & (self._listed < min(k, self._known))
        return self._reason(int(np.count_nonzero(is_short)))

    def _reason(self, partial: int) -> str:
        if not partial:
            return ""
        most = int(self._listed[self._is_partial].max())
        stored = "the best label only" if most == 1 else f"the best {most} labels at most"
        verb = "stores" if self._images == 1 else "store"
        return (
            f"{partial:,} of {self._images:,} inferences {verb} {stored}: send action predict_proba"
        )

    def count_undecided(self, score: float) -> int:
        """Return how many images may have more labels of a score or more than they list."""
        least: Float64Array = np.full(self._images, np.inf)
        np.minimum.at(least, self._image, self._score)
        return int(np.count_nonzero(self._is_partial & (least >= score)))

    def areas(self, weights: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Compute the area under the ROC curve, and the average precision, of labels (B, K).

        The weights of images are (B, I). Both are NaN if no image has the label, the first also if all images do.
        """
        used = weights.max(axis=0, initial=0) > 0
        per_image = np.concatenate([weights.T, np.zeros((1, len(weights)))])
        total = weights.sum(axis=1)
        actual = weighted_totals(weights, *self._truths, self._labels)
        roc, precision = np.empty(actual.shape), np.empty(actual.shape)
        for label, (low, high) in enumerate(pairwise(self._bounds)):
            selected = low + np.flatnonzero(used[self._image[low:high]])
            sums = per_image, total, actual[:, label]
            roc[:, label], precision[:, label] = self._areas_of_label(selected, *sums)
        return roc, precision

    def _areas_of_label(
        self,
        selected: Int64Array,
        per_image: Float64Array,
        total: Float64Array,
        actual: Float64Array,
    ) -> tuple[Float64Array, Float64Array]:
        """Compute both areas (B,) of one label.

        Args:
            selected: Positions of its scores (N,), falling.
            per_image: Weights (I + 1, B), of which the last are 0.
            total: Sums of all weights, (B,).
            actual: Sums of the weights of images with the label, (B,).
        """
        # One row, at score 0, stands for all images without a score.
        absent = int(np.searchsorted(-self._score[selected], 0.0))
        score = np.insert(self._score[selected], absent, 0.0)
        weights = per_image[np.insert(self._image[selected], absent, self._images)]
        weights[absent] = total - weights.sum(axis=0)
        correct = np.flatnonzero(np.insert(self._is_correct[selected], absent, True))
        own_weights = weights[correct]
        own_absent = int(np.searchsorted(correct, absent))
        own_weights[own_absent] = 0
        own_weights[own_absent] = actual - own_weights.sum(axis=0)
        # First row with the same score as each correct one, and the row after the last one.
        is_start = np.append(True, score[1:] != score[:-1])
        firsts = np.flatnonzero(np.append(is_start, True))
        group = np.cumsum(is_start)[correct] - 1
        start, stop = firsts[group], firsts[group + 1]
        total_before, true_before = cumulative_before(weights), cumulative_before(own_weights)
        true_above = true_before[np.searchsorted(correct, start)]
        true_through = true_before[np.searchsorted(correct, stop)]
        false_above, false_through = (
            total_before[start] - true_above,
            total_before[stop] - true_through,
        )
        negatives = total - actual
        roc = (own_weights * (negatives - (false_above + false_through) / 2)).sum(axis=0)
        precision = np.where(own_weights > 0, ratio(true_through, total_before[stop]), 0.0)
        return ratio(roc, actual * negatives), ratio((own_weights * precision).sum(axis=0), actual)

    def headlines(self, weights: Float64Array) -> list[Headline]:
        """Compute the means of both areas over labels; NaN where scores are missing."""
        return [
            Headline(
                name,
                {"average": "macro"},
                np.full(len(weights), np.nan) if self.missing else nan_mean(area),
                trials_per_image=2.0,
                reason=self.missing,
            )
            for name, area in zip(_AREAS, self.areas(weights), strict=True)
        ]

    def metrics(self, labels: list[str]) -> list[Metric]:
        """Return both areas of each label; without values where scores are missing."""
        areas = dict(zip(_AREAS, self.areas(np.ones((1, self._images))), strict=True))
        actual = np.bincount(self._truths[1], minlength=self._labels)[None]
        return label_metrics(labels, areas, actual, reason=self.missing)

    def steps(self) -> Iterator[tuple[int, RocSteps]]:
        """Yield the cumulative counts of each label that some, but not all images have."""
        actual = np.bincount(self._truths[1], minlength=self._labels)
        for label, (low, high) in enumerate(pairwise(self._bounds)):
            if not 0 < actual[label] < self._images:
                continue
            score, is_correct = self._score[low:high], self._is_correct[low:high]
            unscored = self._images - len(score)
            unscored_positives = int(actual[label] - is_correct.sum())
            zero_index = int(np.searchsorted(-score, 0.0))
            score = np.insert(score, zero_index, 0.0)
            true_positives = np.cumsum(
                np.insert(is_correct.astype(np.int64), zero_index, unscored_positives)
            )
            false_positives = np.cumsum(
                np.insert(
                    1 - is_correct.astype(np.int64), zero_index, unscored - unscored_positives
                )
            )
            is_step_end = np.append(score[1:] != score[:-1], True)
            if not unscored:
                is_step_end[zero_index] = False  # no image has this score
            yield (
                label,
                RocSteps(
                    score[is_step_end], true_positives[is_step_end], false_positives[is_step_end]
                ),
            )


def score_curves(scores: LabelScores, labels: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the curves of labels, first the mean of each kind, with label None; none where scores are missing.

    The mean precision averages the interpolated precision of the labels at 101 recalls.
    """
    steps = {} if scores.missing else dict(scores.steps())
    if not steps:
        return {}
    best_precision, score, true_rates = (np.zeros((len(steps), len(_GRID))) for _ in range(3))
    drawn = sorted(sorted(steps, key=lambda label: -steps[label].true_positives[-1])[:_CURVES])
    pr, roc = [], []
    for row, (label, step) in enumerate(steps.items()):
        recall, false_rate = (
            step.true_positives / step.true_positives[-1],
            step.false_positives / step.false_positives[-1],
        )
        precision = ratio(step.true_positives, step.true_positives + step.false_positives)
        indices = np.searchsorted(recall, _GRID)
        best_precision[row] = np.maximum.accumulate(precision[::-1])[::-1][indices]
        score[row] = step.score[indices]
        rates = np.append(0.0, false_rate), np.append(0.0, recall)
        true_rates[row] = np.interp(_GRID, *rates)
        if label in drawn:
            pr.append(_curve(_PR, labels[label], recall, precision, scores=step.score.tolist()))
            thresholds = [None, *step.score.tolist()]
            roc.append(_curve(_ROC, labels[label], *rates, scores=thresholds))
    mean_score = score.mean(axis=0).tolist()
    mean_pr = _curve(_PR, None, _GRID, best_precision.mean(axis=0), scores=mean_score)
    none = [None] * len(_GRID)
    mean_roc = _curve(_ROC, None, _GRID, true_rates.mean(axis=0), scores=none)
    return {"pr": [mean_pr, *pr], "roc": [mean_roc, *roc]}


def _curve(
    names: tuple[str, str, str],
    label: str | None,
    x: Float64Array,
    y: Float64Array,
    *,
    scores: Sequence[float | None],
) -> dict[str, Any]:
    """Return the points of a curve to keep, under the names of x, y and scores."""
    columns = zip(names, (x.tolist(), y.tolist(), scores), strict=True)
    indices = _thinned(x, y).tolist()
    return {"label": label} | {name: [column[at] for at in indices] for name, column in columns}


def _thinned(x: Float64Array, y: Float64Array) -> Int64Array:
    """Choose the points of a curve to keep: corners, or evenly spaced ones if there are too many."""
    if len(x) <= _POINTS:
        return np.arange(len(x))
    is_straight = np.diff(x[:-1]) * np.diff(y[1:]) == np.diff(x[1:]) * np.diff(y[:-1])
    corners = np.flatnonzero(~np.concatenate([[False], is_straight, [False]]))
    if len(corners) <= _POINTS:
        return corners
    x, y = x[corners], y[corners]
    path_length = np.append(0.0, np.cumsum(np.abs(np.diff(x)) + np.abs(np.diff(y))))
    indices = np.searchsorted(path_length, np.linspace(0, path_length[-1], _POINTS)).clip(
        0, len(x) - 1
    )
    selected: Int64Array = corners[np.unique(indices)]
    return selected


_HEADLINE_K, _DETAILS_K = 5, 3
_MAX_EXAMPLES, _EXAMPLES_PER_CELL = 300, 3
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

    settings: ClassVar = ("top_k", "score", "bins", "single_label")

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

    def evaluate(
        self, state: EvaluationState, settings: MetricSettings = DEFAULT_SETTINGS
    ) -> TaskMetrics:
        """Compute metrics of a merged state, as single-label or as multi-label classification.

        If the settings say that it is single-label, each image has one true label, as `with_one_label` leaves them.
        """
        is_single = settings.single_label
        if is_single is None:
            truths = np.bincount(state.tables["truths"]["image"], minlength=len(state.ids))
            is_single = bool((truths == 1).all())
        return (SingleLabelMetrics if is_single else MultiLabelMetrics)(state, settings)


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

    def __init__(self, state: EvaluationState, settings: MetricSettings) -> None:
        self._settings = settings
        rows = state.tables["predictions"]
        self._state, self._images, self._labels = state, len(state.ids), len(state.labels)
        self._true: Int64Array = state.tables["truths"]["label"]
        is_correct = rows["label"] == self._true[rows["image"]]
        self._best = best = _top_predictions(rows, is_correct, self._images)
        self._is_correct = best.label == self._true
        answered = np.flatnonzero(best.label >= 0)
        self._calibration = CalibrationBins(
            answered, best.score[answered], self._is_correct[answered], settings.bins
        )
        all_images, shape = np.arange(self._images), (self._images, self._labels)
        self._scores = LabelScores(rows, is_correct, (all_images, self._true), shape)
        self._brier = np.full(self._images, np.nan)
        if are_probabilities(rows["score"]) and not self._scores.missing:
            squares = (rows["score"] - is_correct) ** 2
            self._brier = np.bincount(rows["image"], squares, self._images)
            self._brier += best.true_rank == _UNRANKED
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
            Headline("Accuracy", {}, ratio(weights @ self._is_correct, count), is_share=True),
            *(self._top(k, weights) for k in self._settings.top_k or (_HEADLINE_K,)),
            *counts.headlines(),
            *self._scores.headlines(weights),
            Headline(
                "ECE",
                self._calibration.parameters,
                expected,
                noise=self._calibration.noise(weights),
            ),
            Headline(
                "Brier",
                {"rule": "sum over labels"},
                ratio(weights @ self._brier, count),
                upper=2.0,
                reason=self._scores.missing,
            ),
        ]

    def _top(self, k: int, weights: Float64Array) -> Headline:
        """Compute how often the true label is among the best `k`; undefined with `k` labels or fewer."""
        is_defined = self._labels > k
        reason = self._scores.reason_of_ranks(k) if is_defined else ""
        hits = weights @ (self._best.true_rank < k)
        share = ratio(hits, weights.sum(axis=1) * (is_defined and not reason))
        return Headline("TopKAccuracy", {"k": k}, share, is_share=True, reason=reason)

    def details(self) -> EvaluationDetails:
        """Compute all other results, over all images."""
        weights = np.ones((1, self._images))
        counts = LabelCounts.from_rows(weights, self._rows, self._labels)
        _, maximum_error = self._calibration.errors(weights)
        ranks = () if self._settings.top_k else (_DETAILS_K,)
        best, image_counts = self._best, np.ones(self._images, np.int64)
        is_wrong = (best.label >= 0) & ~self._is_correct
        margin = np.where(is_wrong, best.score - best.true_score, 0.0)
        confusion = count_confusion(
            self._state.labels, self._true, best.label, image_counts, unit="images"
        )
        metrics = [
            *(
                Metric(
                    top.type,
                    finite_or_none(top.values[0]),
                    top.parameters,
                    n=self._images,
                    reason=top.reason,
                )
                for top in (self._top(k, weights) for k in ranks)
            ),
            *average_metrics(counts, self._images),
            Metric(
                "MCE",
                finite_or_none(maximum_error[0]),
                self._calibration.parameters,
                n=self._images,
            ),
            *label_metrics(self._state.labels, counts.rates(), counts.actual),
            *self._scores.metrics(self._state.labels),
        ]
        return EvaluationDetails(
            metrics=metrics,
            curves=score_curves(self._scores, self._state.labels)
            | self._calibration.curves(weights),
            confusion=msgspec.structs.replace(confusion, examples=self._examples()),
            pairs=PairedLabels(np.arange(self._images), self._true, best.label),
            badness={"wrong_label": margin, "miss": (best.label < 0).astype(np.float64)},
            names_all_labels=not self._scores.missing,
            parameters={"multi_label": False, "absent_score": 0, "ties": "first in the answer"},
            warnings=warn_unused(
                self._settings,
                ("score",),
                "each image has one true label, and its prediction is the label with the highest score",
            ),
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
            *self._scores.headlines(weights),
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
        metrics += self._scores.metrics(self._state.labels)
        return EvaluationDetails(
            metrics=metrics,
            curves=score_curves(self._scores, self._state.labels),
            badness={"wrong_label": self._decisions[0].wrong.astype(np.float64)},
            names_all_labels=not self._scores.missing,
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
            if (undecided := self._scores.count_undecided(decisions.score))
        ]

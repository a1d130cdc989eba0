"""Metrics of objects, which boxes, oriented boxes and masks share: COCO's, from tables.

The overlap of two objects, which differs between them, is a parameter.
"""

import math
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np

from quadriga.monitor.evaluation.arrays import finite_or_none, index_within_runs
from quadriga.monitor.evaluation.evaluators import EvaluationDetails, Headline
from quadriga.monitor.evaluation.labels.label_counts import CalibrationBins, LabelCounts
from quadriga.monitor.evaluation.labels.label_counts import count_confusion as confusion_of
from quadriga.monitor.evaluation.metric_settings import DEFAULT_SETTINGS, MetricSettings
from quadriga.monitor.evaluation.objects.average_precision import (
    AREA_NAMES,
    AREA_RANGES,
    MAX_DETECTIONS,
    MEAN_IOU,
    average_precisions,
    coco_numbers,
    coco_parameters,
    label_parameters,
    label_precision_metrics,
    match_thresholds,
    precision_curve_rows,
    precision_recall_curves,
)
from quadriga.monitor.evaluation.objects.matching import (
    CORRECT,
    IGNORED,
    INCORRECT,
    OverlapFunction,
    OverlapPairs,
    match_objects,
    near_pairs,
)
from quadriga.monitor.evaluation.state import EvaluationState, Table, nonzero_counts
from quadriga.monitor.report.cells import PairedLabels
from quadriga.monitor.report.schema import Confusion, Example, Metric
from quadriga.tasks.arrays import BoolArray, Float64Array, Int64Array

_MIN_PREDICTIONS, _LOW_SCORE = 20, 0.05
"""If so many predictions all have a higher score, those with lower ones were probably left out."""
OBJECT_SETTINGS = ("iou", "score", "bins")
"""Names of the `MetricSettings` that metrics of objects have."""


class CountedPredictions(NamedTuple):
    """Predictions that are correct or incorrect at one match threshold, (N,); ignored ones are left out."""

    image: Int64Array
    label: Int64Array
    score: Float64Array
    is_correct: BoolArray


class TideErrors(NamedTuple):
    """Errors of predictions (D,), in the order of the ranking, and of objects (M,)."""

    kind: Int64Array
    """Index in `ERROR_KINDS`, (D,); `len(ERROR_KINDS) - 1` for correct and ignored predictions."""
    target: Int64Array
    """Object that a `Cls` or `Loc` error would match if corrected, (D,), -1 for none."""
    missed: BoolArray
    """Whether no prediction matches the object, (M,)."""
    unaccounted: BoolArray
    """Whether the object is missed, and no error's target: `Miss`, (M,)."""


class ConfusedPairs(NamedTuple):
    """Pairs of prediction and object (N,), -1 for the background, by falling score, missed objects last."""

    prediction: Int64Array
    truth: Int64Array


class ObjectMetrics:
    """Metrics of predicted objects against annotated ones.

    Args:
        state: State with the tables of `quadriga.monitor.evaluation.state`, and columns for the overlap.
        overlap: Overlap of pairs, by the positions of their rows in the two tables; pairs share an image, but
            not always a label. With a crowd: intersection over the area of the prediction.
        kind: Name of the overlap in the report.
        settings: Chosen thresholds.
    """

    def __init__(
        self,
        state: EvaluationState,
        overlap: OverlapFunction,
        kind: str = "box",
        settings: MetricSettings = DEFAULT_SETTINGS,
    ) -> None:
        self.state, self.overlap, self.kind = state, overlap, kind
        self._settings, self._thresholds = settings, match_thresholds(settings.iou)
        self.predictions, self.truths = state.tables["predictions"], state.tables["truths"]
        self.ranking = match_objects(
            self.predictions,
            self.truths,
            overlap,
            thresholds=self._thresholds.values,
            areas=AREA_RANGES,
            max_detections=MAX_DETECTIONS[-1],
            shape=(len(state.labels), len(state.ids)),
        )

    def headlines(self, weights: Float64Array) -> list[Headline]:
        """Compute COCO's numbers for each weighting (B, I), and AP of each label; rates at chosen scores come second."""
        thresholds = self._thresholds
        values, by_label = coco_numbers(self.ranking, weights, thresholds.single)
        counts = self.ranking.actual_counts.sum(axis=1).reshape(len(AREA_NAMES), -1)
        by_area = dict(zip(AREA_NAMES, counts, strict=True))
        first, *overall = (
            self._headline(type_, parameters, values[index], by_area[parameters["area"]])
            for index, (type_, parameters) in enumerate(coco_parameters(thresholds))
        )
        of_labels = (
            self._headline(
                "AP", label_parameters(thresholds.mean, label), by_label[index], counts[0, [index]]
            )
            for index, label in enumerate(self.state.labels)
        )
        return [first, *self._rates(weights), *overall, *of_labels]

    def _rates(self, weights: Float64Array) -> list[Headline]:
        """Compute precision, recall and F1 of all labels together at the chosen scores."""
        predictions = self._counted
        actual_counts = self.ranking.actual_counts[: len(self.state.labels)].sum(axis=0)
        objects = int(actual_counts.sum())
        headlines = []
        for score in self._settings.score or ():
            is_above = predictions.score >= score
            sides = (
                np.bincount(predictions.image[selected], minlength=len(actual_counts))
                for selected in (is_above & predictions.is_correct, is_above)
            )
            counts = LabelCounts(*((weights @ side)[:, None] for side in (*sides, actual_counts)))
            headlines += [
                Headline(
                    name,
                    {"score": score, "iou": self._match_threshold, "label": None},
                    values[:, 0],
                    trials_per_image=objects / max(len(actual_counts), 1),
                    objects_of_one_label=float(objects) or None,
                    objects=objects,
                )
                for name, values in counts.rates().items()
            ]
        return headlines

    @property
    def _match_threshold(self) -> float:
        """The threshold from which a prediction is right, where there is only one: the first."""
        return self._thresholds.ious[0]

    def _has_objects(self) -> BoolArray:
        """Return which labels have objects, (K,)."""
        return np.isin(np.arange(len(self.state.labels)), self.truths["label"])

    @cached_property
    def _counted(self) -> CountedPredictions:
        """The predictions that are right or wrong at the first threshold, of labels that have objects."""
        ranking = self.ranking
        counted = np.flatnonzero(
            (ranking.outcome[0, 0] != IGNORED) & self._has_objects()[ranking.label]
        )
        return CountedPredictions(
            ranking.image[counted],
            ranking.label[counted],
            ranking.score[counted],
            is_correct=ranking.outcome[0, 0, counted] == CORRECT,
        )

    def _headline(
        self, type_: str, parameters: dict[str, Any], values: Float64Array, counts: Float64Array
    ) -> Headline:
        """Return a mean over labels that have so many objects (K,)."""
        present = counts[counts > 0]
        of_one_label = float(len(present) ** 2 / (1 / present).sum()) if len(present) else None
        # Resamples hardly vary if all few objects of a label were found. Over COCO's ten overlaps, some always vary.
        is_bounded = of_one_label is not None and parameters["iou"] != MEAN_IOU
        return Headline(
            type_,
            parameters,
            values,
            trials_per_image=(of_one_label or 0) / len(self.state.ids) if is_bounded else math.inf,
            objects_of_one_label=of_one_label,
            objects=int(counts.sum()),
        )

    def details(self) -> EvaluationDetails:
        """Compute all other results, over all images."""
        labels, ranking, iou = self.state.labels, self.ranking, self._match_threshold
        actual_counts = ranking.actual_counts.sum(axis=1)[: len(labels)].astype(np.int64)
        precision_curves = precision_recall_curves(ranking)
        counted = self._counted
        reliability = CalibrationBins(
            counted.image, counted.score, counted.is_correct, self._settings.bins
        )
        ones = np.ones((1, len(self.state.ids)))
        calibration = zip(("ECE", "MCE"), reliability.errors(ones), strict=True)

        overlapping = near_pairs(
            {"image": ranking.image},
            self.truths,
            lambda prediction, truth: self.overlap(ranking.row[prediction], truth),
            BACKGROUND_OVERLAP,
        )
        errors = self._classify_errors(overlapping)
        overlap = overlapping._replace(prediction=ranking.row[overlapping.prediction]).overlaps()
        min_score = self._settings.score[0] if self._settings.score else MIN_SCORE
        confident = ranking.row[ranking.score >= min_score]
        pairs = self._match_any_label(np.sort(confident), overlap)
        labelled = self._paired_labels(pairs)
        excluded = nonzero_counts(  # from all metrics except the confusion matrix
            unseen_label=int(np.count_nonzero(~self._has_objects()[self.predictions["label"]])),
            over_max_dets=len(self.predictions["label"]) - len(ranking.row),
        )
        return EvaluationDetails(
            metrics=[
                *label_precision_metrics(precision_curves, labels, actual_counts, self._thresholds),
                *self._operating_points(actual_counts),
                *(
                    Metric(kind, finite_or_none(value[0]), {**reliability.parameters, "iou": iou})
                    for kind, value in calibration
                ),
            ],
            curves={
                "pr": precision_curve_rows(precision_curves, labels, self._thresholds),
                **reliability.curves(ones),
            },
            confusion=self._confusion(pairs, labelled, {"iou": iou, "score": min_score}),
            pairs=labelled,
            errors_tide=self._error_costs(errors),
            badness=self._badness(pairs, errors),
            parameters={
                "overlap": self.kind,
                "rule": "COCO",
                "iou": self._thresholds.ious,
                "max_dets": MAX_DETECTIONS[-1],
                "areas_px": dict(zip(AREA_NAMES, AREA_RANGES.tolist(), strict=True)),
                "tide": {"iou": iou, "background_iou": BACKGROUND_OVERLAP},
            },
            excluded=excluded,
            warnings=self._threshold_warnings(),
        )

    def _operating_points(self, actual_counts: Int64Array) -> list[Metric]:
        """Return counts and rates at some scores, at the score of the best F1, and each label's best F1.

        Rates of all labels together at chosen scores are headlines, and not repeated.

        Args:
            actual_counts: Number of objects of each label, (K,).
        """
        labels, (_, label, score, is_correct) = self.state.labels, self._counted
        iou, scores = self._match_threshold, self._settings.score

        def metrics_at(score_threshold: float, **more: str) -> list[Metric]:
            """Return metrics of each label that occurs, and of all labels (None)."""
            is_above = score >= score_threshold
            sides = (
                *(
                    np.bincount(label[is_counted], minlength=len(labels))
                    for is_counted in (is_above & is_correct, is_above)
                ),
                actual_counts,
            )
            counts = LabelCounts(
                *(np.append(side.sum(), side)[None].astype(np.float64) for side in sides)
            )
            rates, metrics = counts.rates(), list[Metric]()
            for column, name in enumerate([None, *labels]):
                correct, predicted, actual = (float(count[0, column]) for count in counts)
                if name is not None and not (predicted or actual):
                    continue
                parameters = {"score": score_threshold, "iou": iou, "label": name, **more}
                numbers = {
                    "true positives": correct,
                    "false positives": predicted - correct,
                    "false negatives": actual - correct,
                }
                metrics += [
                    Metric(type_, finite_or_none(rate[0, column]), parameters)
                    for type_, rate in rates.items()
                ]
                metrics += [
                    Metric("Counts", number, {**parameters, "of": kind})
                    for kind, number in numbers.items()
                ]
            return metrics

        metrics = [] if scores else metrics_at(SCORE_THRESHOLD)
        for chosen in scores or ():
            metrics += [
                metric
                for metric in metrics_at(chosen)
                if metric.type == "Counts" or metric.parameters["label"] is not None
            ]
        best_score, _ = best_f1(score, is_correct, int(actual_counts.sum()))
        if best_score is not None:
            metrics += metrics_at(best_score, chosen="best F1")
        for index in np.flatnonzero(actual_counts):
            is_label = label == index
            best_score, f1 = best_f1(
                score[is_label], is_correct[is_label], int(actual_counts[index])
            )
            named = {"label": labels[index], "chosen": "best F1 of the label"}
            metrics.append(Metric("F1", f1, {"score": best_score, "iou": iou, **named}))
        return metrics

    def _match_any_label(self, rows: Int64Array, overlap: OverlapFunction) -> ConfusedPairs:
        """Match the predictions at these rows, ascending, with objects of any label, at the match threshold."""
        image, no_label = self.predictions["image"][rows], np.zeros(len(rows), np.int64)
        columns = {name: self.predictions[name][rows] for name in ("score", "area")}
        ranking = match_objects(
            columns | {"image": image, "label": no_label},
            self.truths | {"label": np.zeros_like(self.truths["label"])},
            lambda prediction, truth: overlap(rows[prediction], truth),
            thresholds=np.array([self._match_threshold]),
            areas=_ANY_AREA,
            max_detections=max(len(rows), 1),
            shape=(1, len(self.state.ids)),
        )
        is_counted = ranking.outcome[0, 0] != IGNORED
        matched_objects = ranking.matched_object[is_counted]
        is_unmatched: BoolArray = ~ranking.object_ignored[0]
        is_unmatched[matched_objects[matched_objects >= 0]] = False
        missed_objects = np.flatnonzero(is_unmatched)
        return ConfusedPairs(
            np.append(rows[ranking.row[is_counted]], np.full(len(missed_objects), -1)),
            np.append(matched_objects, missed_objects),
        )

    def _paired_labels(self, pairs: ConfusedPairs) -> PairedLabels:
        """Return the labels of pairs, with their images and positions."""

        def of(table: Table, rows: Int64Array) -> list[Int64Array]:
            # The last element is for index -1, the background.
            return [np.append(table[name], -1)[rows] for name in ("image", "label", "number")]

        image, predicted, predicted_item = of(self.predictions, pairs.prediction)
        true_image, true, true_item = of(self.truths, pairs.truth)
        image = np.where(image >= 0, image, true_image)
        return PairedLabels(image, true, predicted, true_item, predicted_item)

    def _confusion(
        self, pairs: ConfusedPairs, labelled: PairedLabels, rule: dict[str, Any]
    ) -> Confusion:
        """Count pairs by their labels, with examples of each cell; `rule` has the thresholds that made the pairs."""
        state, (images, true, predicted, *_) = self.state, labelled
        names = [*state.labels, None]
        examples = []
        for index in _choose_examples(true % len(names) * len(names) + predicted % len(names)):
            ids = (
                str(table["number"][row]) if row >= 0 else None
                for table, row in (
                    (self.truths, pairs.truth[index]),
                    (self.predictions, pairs.prediction[index]),
                )
            )
            labels = names[true[index]], names[predicted[index]]
            examples.append(Example(*labels, state.ids[images[index]], *ids))
        counts = np.ones(len(true), np.int64)
        counted = confusion_of(state.labels, true, predicted, counts, unit="objects")
        rule = rule | {"rule": "all labels of an image, by falling score"}
        return msgspec.structs.replace(
            counted, examples=examples, parameters=counted.parameters | rule
        )

    def _threshold_warnings(self) -> list[str]:
        """Say if predictions with low scores seem to be left out; regions of masks may all have high scores."""
        score = self.predictions["score"]
        if self.kind == "mask" or len(score) < _MIN_PREDICTIONS or score.min() <= _LOW_SCORE:
            return []
        lowest = math.floor(score.min() * 1000) / 1000
        missing = f"none of {len(score):,} predictions has a score below {lowest:g}"
        advice = "what was left out counts as not found: ask the model for scores from 0.001, by the parameter score_threshold"
        return [f"AP and AR are those above a score threshold: {missing}, and {advice}"]

    def _classify_errors(self, pairs: OverlapPairs) -> TideErrors:
        """Classify the errors of predictions, matched at the first threshold, over all areas.

        Args:
            pairs: All that overlap by `BACKGROUND_OVERLAP` or more, by position in the ranking and in the table of objects.
        """
        ranking, truths, iou = self.ranking, self.truths, self._match_threshold
        is_incorrect = ranking.outcome[0, 0] == INCORRECT
        is_taken = np.zeros(len(truths["image"]), bool)
        is_taken[ranking.matched_object[ranking.matched_object >= 0]] = True
        is_counted = ~(truths["crowd"] | truths["difficult"])
        pairs = pairs.select(is_counted[pairs.truth] & is_incorrect[pairs.prediction])
        pairs = pairs.select(np.argsort(pairs.overlap, kind="stable"))
        is_same_label = ranking.label[pairs.prediction] == truths["label"][pairs.truth]

        def best(selection: BoolArray) -> tuple[Float64Array, Int64Array]:
            return pairs.select(selection).last_of_each(len(is_incorrect))

        same_label_overlap, same_label_object = best(is_same_label)
        other_label_overlap, other_label_object = best(~is_same_label)
        taken_overlap, _ = best(is_same_label & is_taken[pairs.truth])
        kind = np.select(
            [
                ~is_incorrect,
                (same_label_overlap >= BACKGROUND_OVERLAP) & (same_label_overlap <= iou),
                other_label_overlap >= iou,
                taken_overlap >= iou,
                np.maximum(same_label_overlap, other_label_overlap) <= BACKGROUND_OVERLAP,
            ],
            [_NONE, _LOC, _CLS, _DUPE, _BKG],
            _BOTH,
        )
        target = np.where(
            kind == _LOC, same_label_object, np.where(kind == _CLS, other_label_object, -1)
        )
        missed = is_counted & ~is_taken
        unaccounted = missed.copy()
        unaccounted[target[target >= 0]] = False
        return TideErrors(kind, target, missed, unaccounted)

    def _error_costs(self, errors: TideErrors) -> dict[str, float | None]:
        """Return by how much the mean average precision at the first threshold would rise without each kind of error.

        Of the errors whose target is a missed object, the one with the highest score is corrected; the others are
        removed. `FalsePos` removes all incorrect predictions, `FalseNeg` all missed objects; a label without
        remaining objects and predictions is no longer in the mean. None if there are no objects, or none remain.
        """
        ranking, truths = self.ranking, self.truths
        outcome, score, label = ranking.outcome[0, 0], ranking.score, ranking.label
        is_counted, is_correct = outcome <= CORRECT, outcome == CORRECT
        labels = len(ranking.bounds) - 1

        def per_label(objects: BoolArray) -> Int64Array:
            return np.bincount(truths["label"][objects], minlength=labels)

        actual_counts = per_label(~(truths["crowd"] | truths["difficult"]))
        if not actual_counts.any():
            return dict.fromkeys((*ERROR_KINDS, "FalsePos", "FalseNeg"))

        def precision(keep: BoolArray, is_corrected: BoolArray, removed: Int64Array) -> float:
            labeled = np.where(
                is_corrected, truths["label"][errors.target] if len(truths["label"]) else 0, label
            )
            remaining = actual_counts - removed
            averages = average_precisions(
                labeled[keep], score[keep], (is_correct | is_corrected)[keep], remaining
            )
            has_predictions = np.bincount(labeled[keep], minlength=labels) > 0
            in_mean = np.count_nonzero((remaining > 0) | ((actual_counts > 0) & has_predictions))
            return float(np.nansum(averages) / in_mean) if in_mean else math.nan

        nothing, no_objects = np.zeros(len(label), bool), np.zeros(labels, np.int64)
        is_first = _first_of_targets(score, errors)
        precision_now = precision(is_counted, nothing, no_objects)
        precision_without = {}
        for number, kind in enumerate(ERROR_KINDS[:-1]):
            is_kind = errors.kind == number
            is_corrected = is_kind & is_first
            precision_without[kind] = precision(
                is_counted & (~is_kind | is_corrected), is_corrected, no_objects
            )
        precision_without["Miss"] = precision(is_counted, nothing, per_label(errors.unaccounted))
        precision_without["FalsePos"] = precision(is_correct, nothing, no_objects)
        precision_without["FalseNeg"] = precision(is_counted, nothing, per_label(errors.missed))
        return {
            kind: None if math.isnan(value) else max(value - precision_now, 0.0)
            for kind, value in precision_without.items()
        }

    def _badness(self, pairs: ConfusedPairs, errors: TideErrors) -> dict[str, Float64Array]:
        """Sum the errors of the confusion matrix by image, predictions weighted by score."""
        rows, truth = pairs.prediction, pairs.truth
        # The last element is for index -1, the background.
        kind = np.full(len(self.predictions["label"]) + 1, -1, np.int64)
        kind[self.ranking.row] = errors.kind
        is_poorly_placed = (kind[rows] == ERROR_KINDS.index("Loc")) & (truth < 0)
        predicted, true = self.predictions["label"], self.truths["label"]
        is_wrong_label = np.append(predicted, -1)[rows] != np.append(true, -1)[truth]

        def per_image(selected: BoolArray) -> Float64Array:
            prediction_rows = rows[selected & (rows >= 0)]
            image, score = (
                self.predictions["image"][prediction_rows],
                self.predictions["score"][prediction_rows],
            )
            return np.bincount(image, score, len(self.state.ids)).astype(np.float64)

        missed = self.truths["image"][truth[rows < 0]]
        return {
            "miss": np.bincount(missed, minlength=len(self.state.ids)).astype(np.float64),
            "false_positive": per_image((truth < 0) & ~is_poorly_placed),
            "wrong_label": per_image((truth >= 0) & is_wrong_label),
            "low_overlap": per_image(is_poorly_placed),
        }


SCORE_THRESHOLD = 0.5
"""Score of the operating point, unless others are chosen."""


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


BACKGROUND_OVERLAP = 0.1
"""Minimum overlap of a prediction that is not background."""
ERROR_KINDS = ("Cls", "Loc", "Both", "Dupe", "Bkg", "Miss")
_CLS, _LOC, _BOTH, _DUPE, _BKG, _NONE = range(6)


def _first_of_targets(score: Float64Array, errors: TideErrors) -> BoolArray:
    """Return (D,) which errors have the highest score among those with the same missed object as target."""
    indices = np.flatnonzero(errors.target >= 0)
    indices = indices[errors.missed[errors.target[indices]]]
    indices = indices[np.lexsort((-indices, score[indices]))]
    best_of_object = np.full(len(errors.missed), -1, np.int64)
    best_of_object[errors.target[indices]] = (
        indices  # among equal indices NumPy keeps the last value
    )
    is_first = np.zeros(len(score), bool)
    is_first[best_of_object[best_of_object >= 0]] = True
    return is_first


MIN_SCORE = 0.3
"""Score from which predictions are in the matrix, unless another one is chosen."""
_EXAMPLES_PER_CELL = 5
_MAX_EXAMPLES = 2000
_ANY_AREA: Float64Array = np.array([[0, np.inf]])


def _choose_examples(cell: Int64Array) -> Int64Array:
    """Choose the first examples of each cell, first those of all cells, then the second ones, and so on."""
    order = np.argsort(cell, kind="stable")
    position = index_within_runs(cell[order])
    is_selected = position < _EXAMPLES_PER_CELL
    return np.sort(
        order[is_selected][np.argsort(position[is_selected], kind="stable")][:_MAX_EXAMPLES]
    )

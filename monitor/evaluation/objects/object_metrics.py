"""Metrics of objects, which boxes, oriented boxes and masks share: COCO's, from tables.

The overlap of two objects, which differs between them, is a parameter.
"""

import math
from functools import cached_property
from typing import Any

import numpy as np

from quadriga.monitor.evaluation.arrays import finite_or_none
from quadriga.monitor.evaluation.evaluators import EvaluationDetails, Headline
from quadriga.monitor.evaluation.labels.calibration import CalibrationBins
from quadriga.monitor.evaluation.metric_settings import DEFAULT_SETTINGS, MetricSettings
from quadriga.monitor.evaluation.objects.average_precision import (
    AREA_NAMES,
    AREA_RANGES,
    MAX_DETECTIONS,
    MEAN_IOU,
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
    OverlapFunction,
    match_objects,
    near_pairs,
)
from quadriga.monitor.evaluation.objects.object_confusion import (
    MIN_SCORE,
    ConfusedPairs,
    match_any_label,
    object_confusion,
    paired_labels,
)
from quadriga.monitor.evaluation.objects.operating_points import (
    CountedPredictions,
    metrics_at_operating_points,
    rates_of_all_labels,
)
from quadriga.monitor.evaluation.objects.tide import (
    BACKGROUND_OVERLAP,
    ERROR_KINDS,
    TideErrors,
    classify_errors,
    error_costs,
)
from quadriga.monitor.evaluation.objects.weighted import coco_numbers
from quadriga.monitor.evaluation.state import EvaluationState, nonzero_counts
from quadriga.monitor.report.schema import Metric
from quadriga.tasks.arrays import BoolArray, Float64Array

_MIN_PREDICTIONS, _LOW_SCORE = 20, 0.05
"""If so many predictions all have a higher score, those with lower ones were probably left out."""

OBJECT_SETTINGS = ("iou", "score", "bins")
"""Names of the `MetricSettings` that metrics of objects have."""


class ObjectMetrics:
    """Metrics of predicted objects against annotated ones.

    Args:
        state: State with the tables of `quadriga.monitor.evaluation.item_tables`, and columns for the overlap.
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
        overall = [
            self._headline(type_, parameters, headline_values, by_area[parameters["area"]])
            for (type_, parameters), headline_values in zip(
                coco_parameters(thresholds), values, strict=True
            )
        ]
        by_label_headlines = [
            self._headline(
                "AP", label_parameters(thresholds.mean, label), label_values, counts[0, [index]]
            )
            for index, (label, label_values) in enumerate(
                zip(self.state.labels, by_label, strict=True)
            )
        ]
        return overall[:1] + self._rates(weights) + overall[1:] + by_label_headlines

    def _rates(self, weights: Float64Array) -> list[Headline]:
        """Compute precision, recall and F1 of all labels together at the chosen scores."""
        if not self._settings.score:
            return []
        actual_counts = self.ranking.actual_counts[: len(self.state.labels)].sum(axis=0)
        return rates_of_all_labels(
            self._counted,
            actual_counts.astype(np.int64),
            weights,
            scores=self._settings.score,
            iou=self._match_threshold,
        )

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
        errors = classify_errors(ranking, self.truths, overlapping, iou)
        overlap = overlapping._replace(prediction=ranking.row[overlapping.prediction]).overlaps()
        min_score = self._settings.score[0] if self._settings.score else MIN_SCORE
        confident = ranking.row[ranking.score >= min_score]
        pairs = match_any_label(self.predictions, self.truths, confident, overlap=overlap, iou=iou)
        excluded = nonzero_counts(  # from all metrics except the confusion matrix
            unseen_label=int(np.count_nonzero(~self._has_objects()[self.predictions["label"]])),
            over_max_dets=len(self.predictions["label"]) - len(ranking.row),
        )
        return EvaluationDetails(
            metrics=[
                *label_precision_metrics(precision_curves, labels, actual_counts, self._thresholds),
                *metrics_at_operating_points(
                    labels, counted, actual_counts, scores=self._settings.score, iou=iou
                ),
                *(
                    Metric(kind, finite_or_none(value[0]), {**reliability.parameters, "iou": iou})
                    for kind, value in calibration
                ),
            ],
            curves={
                "pr": precision_curve_rows(precision_curves, labels, self._thresholds),
                **reliability.curves(ones),
            },
            confusion=object_confusion(self.state, pairs, {"iou": iou, "score": min_score}),
            pairs=paired_labels(self.state, pairs),
            errors_tide=error_costs(ranking, self.truths, errors),
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

    def _threshold_warnings(self) -> list[str]:
        """Say if predictions with low scores seem to be left out; regions of masks may all have high scores."""
        score = self.predictions["score"]
        if self.kind == "mask" or len(score) < _MIN_PREDICTIONS or score.min() <= _LOW_SCORE:
            return []
        lowest = math.floor(score.min() * 1000) / 1000
        missing = f"none of {len(score):,} predictions has a score below {lowest:g}"
        advice = "what was left out counts as not found: send score_threshold 0.001"
        return [f"AP and AR are those above a score threshold: {missing}, and {advice}"]

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

"""Metrics of objects, which boxes, oriented boxes and masks share: COCO's, from tables.

The overlap of two objects, which differs between them, is a parameter.
"""

import numpy as np

from quadriga.monitor.evaluation.evaluators import EvaluationDetails, Headline
from quadriga.monitor.evaluation.labels.calibration import BINS, RULE, CalibrationBins
from quadriga.monitor.evaluation.objects.average_precision import (
    AREA_NAMES,
    AREA_RANGES,
    IOU_THRESHOLDS,
    MAX_DETECTIONS,
    MEAN_IOU,
    coco_parameters,
    label_parameters,
    label_precision_metrics,
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
)
from quadriga.monitor.evaluation.objects.operating_points import metrics_at_operating_points
from quadriga.monitor.evaluation.objects.tide import (
    BACKGROUND_OVERLAP,
    ERROR_KINDS,
    MATCH_OVERLAP,
    TideErrors,
    classify_errors,
    error_costs,
)
from quadriga.monitor.evaluation.objects.weighted import coco_numbers
from quadriga.monitor.evaluation.reporting import finite_or_none
from quadriga.monitor.evaluation.state import EvaluationState, nonzero_counts
from quadriga.monitor.report.schema import Metric
from quadriga.tasks.arrays import BoolArray, Float64Array


class ObjectMetrics:
    """Metrics of predicted objects against annotated ones.

    Args:
        state: State with the tables of `quadriga.monitor.evaluation.item_tables`, and columns for the overlap.
        overlap: Overlap of pairs, by the positions of their rows in the two tables; pairs share an image, but
            not always a label. With a crowd: intersection over the area of the prediction.
        kind: Name of the overlap in the report.
    """

    def __init__(self, state: EvaluationState, overlap: OverlapFunction, kind: str = "box") -> None:
        self.state, self.overlap, self.kind = state, overlap, kind
        self.predictions, self.truths = state.tables["predictions"], state.tables["truths"]
        self.ranking = match_objects(
            self.predictions,
            self.truths,
            overlap,
            thresholds=IOU_THRESHOLDS,
            areas=AREA_RANGES,
            max_detections=MAX_DETECTIONS[-1],
            shape=(len(state.labels), len(state.ids)),
        )

    def headlines(self, weights: Float64Array) -> list[Headline]:
        """Compute COCO's twelve numbers for each weighting (B, I), and each label's average precision."""
        values, by_label = coco_numbers(self.ranking, weights)
        labels = (("AP", label_parameters(MEAN_IOU, label)) for label in self.state.labels)
        named_values = zip([*coco_parameters(), *labels], [*values, *by_label], strict=True)
        return [Headline(*name, headline_values) for name, headline_values in named_values]

    def details(self) -> EvaluationDetails:
        """Compute all other results, over all images."""
        labels, ranking = self.state.labels, self.ranking
        has_objects = np.isin(np.arange(len(labels)), self.truths["label"])
        actual_counts = ranking.actual_counts.sum(axis=1)[: len(labels)].astype(np.int64)
        precision_curves = precision_recall_curves(ranking)
        counted = np.flatnonzero((ranking.outcome[0, 0] != IGNORED) & has_objects[ranking.label])
        is_correct, score = ranking.outcome[0, 0, counted] == CORRECT, ranking.score[counted]
        reliability = CalibrationBins(ranking.image[counted], score, is_correct)
        ones = np.ones((1, len(self.state.ids)))
        calibration = zip(("ECE", "MCE"), reliability.errors(ones), strict=True)

        overlapping = near_pairs(
            {"image": ranking.image},
            self.truths,
            lambda prediction, truth: self.overlap(ranking.row[prediction], truth),
            BACKGROUND_OVERLAP,
        )
        errors = classify_errors(ranking, self.truths, overlapping)
        overlap = overlapping._replace(prediction=ranking.row[overlapping.prediction]).overlaps()
        confident = ranking.row[ranking.score >= MIN_SCORE]
        pairs = match_any_label(self.predictions, self.truths, confident, overlap)
        excluded = nonzero_counts(  # from all metrics except the confusion matrix
            unseen_label=int(np.count_nonzero(~has_objects[self.predictions["label"]])),
            over_max_dets=len(self.predictions["label"]) - len(ranking.row),
        )
        return EvaluationDetails(
            metrics=[
                *label_precision_metrics(precision_curves, labels, actual_counts),
                *metrics_at_operating_points(
                    labels,
                    ranking.label[counted],
                    score,
                    is_correct=is_correct,
                    actual_counts=actual_counts,
                ),
                *(
                    Metric(kind, finite_or_none(value[0]), {"bins": BINS, "rule": RULE, "iou": 0.5})
                    for kind, value in calibration
                ),
            ],
            curves={
                "pr": precision_curve_rows(precision_curves, labels),
                **reliability.curves(ones),
            },
            confusion=object_confusion(self.state, pairs),
            errors_tide=error_costs(ranking, self.truths, errors),
            badness=self._badness(pairs, errors),
            parameters={
                "overlap": self.kind,
                "rule": "COCO",
                "iou": IOU_THRESHOLDS.round(2).tolist(),
                "max_dets": MAX_DETECTIONS[-1],
                "areas_px": dict(zip(AREA_NAMES, AREA_RANGES.tolist(), strict=True)),
                "tide": {"iou": MATCH_OVERLAP, "background_iou": BACKGROUND_OVERLAP},
            },
            excluded=excluded,
        )

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

"""COCO's numbers, from the program that defines them, and from ours."""

import contextlib
import io
from copy import deepcopy
from typing import Any

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from quadriga.monitor.evaluation.objects.average_precision import (
    AREA_RANGES,
    MAX_DETECTIONS,
    coco_numbers,
    precision_recall_curves,
)
from quadriga.monitor.evaluation.objects.matching import OverlapFunction, RankedPredictions
from quadriga.monitor.evaluation.objects.object_metrics import ObjectMetrics
from quadriga.monitor.evaluation.state import EvaluationState
from quadriga.tasks.arrays import Float64Array

Arrays = tuple[Float64Array, Float64Array, Float64Array, Float64Array]
"""Precision, recall, scores and the twelve numbers; NaN where undefined."""


def reference(
    dataset: dict[str, Any],
    results: list[dict[str, Any]],
    kind: str,
    iou: tuple[float, ...] | None = None,
) -> Arrays:
    """Ask pycocotools, of copies as it writes into what it is given. Its labels are in the order of their numbers.

    `kind` is `bbox` or `segm`; `iou` are match thresholds, None for its own.
    """
    dataset, results = deepcopy((dataset, results))
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = dataset
        truth.createIndex()
        if results:
            detections = truth.loadRes(results)
        else:  # it cannot read an empty list
            detections = COCO()
            detections.dataset = {**dataset, "annotations": []}
            detections.createIndex()
        evaluation = COCOeval(truth, detections, kind)
        if iou is not None:
            evaluation.params.iouThrs = np.array(iou)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    precision, recall, scores = (
        np.asarray(evaluation.eval[name]) for name in ("precision", "recall", "scores")
    )
    scores = np.where(precision < 0, np.nan, scores)
    numbers = np.asarray(evaluation.stats)
    precision, recall, numbers = (np.where(a < 0, np.nan, a) for a in (precision, recall, numbers))
    return precision, recall, scores, numbers


def arrays_of(state: EvaluationState, overlap: OverlapFunction) -> Arrays:
    """Compute ours of a state of objects."""
    ranking = ObjectMetrics(state, overlap).ranking
    numbers, _ = coco_numbers(ranking, np.ones((1, len(state.ids))))
    return *curves_of(ranking), numbers[:, 0]


def curves_of(ranking: RankedPredictions) -> tuple[Float64Array, Float64Array, Float64Array]:
    """Draw ours by range of area and most predictions, as pycocotools has precision, recall and scores."""
    ranges, mosts = range(len(AREA_RANGES)), MAX_DETECTIONS
    drawn = [
        [precision_recall_curves(narrowed(ranking, area, most)) for most in mosts]
        for area in ranges
    ]
    precision, scores, recall = (
        np.array([[curve[at] for curve in row] for row in drawn]) for at in range(3)
    )
    precision, scores = (curve.transpose(3, 4, 2, 0, 1) for curve in (precision, scores))
    return precision, recall.transpose(3, 2, 0, 1), scores


def narrowed(ranking: RankedPredictions, area: int, max_detections: int) -> RankedPredictions:
    """Return what matters to curves of one range of area and the first predictions of each image."""
    keep, labels = ranking.rank < max_detections, len(ranking.bounds) - 1
    return ranking._replace(
        score=ranking.score[keep],
        outcome=ranking.outcome[:, area : area + 1, keep],
        bounds=np.append(0, np.cumsum(keep))[ranking.bounds],
        actual_counts=ranking.actual_counts[area * labels : (area + 1) * labels],
    )

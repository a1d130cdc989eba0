"""Confusion matrix of objects: COCO's greedy matching, of all labels of an image at once.

A prediction that matches a crowd or a difficult object does not count. Unmatched predictions, and unmatched
objects, are paired with the background.
"""

from typing import Any, NamedTuple

import msgspec
import numpy as np

from quadriga.monitor.evaluation.arrays import index_within_runs
from quadriga.monitor.evaluation.labels.label_counts import count_confusion as confusion_of
from quadriga.monitor.evaluation.objects.matching import IGNORED, OverlapFunction, match_objects
from quadriga.monitor.evaluation.state import EvaluationState, Table
from quadriga.monitor.report.cells import PairedLabels
from quadriga.monitor.report.schema import Confusion, Example
from quadriga.tasks.arrays import BoolArray, Float64Array, Int64Array

MIN_SCORE = 0.3
"""Score from which predictions are in the matrix, unless another one is chosen."""

_EXAMPLES_PER_CELL = 5
_MAX_EXAMPLES = 2000
_ANY_AREA: Float64Array = np.array([[0, np.inf]])


class ConfusedPairs(NamedTuple):
    """Pairs of prediction and object (N,), -1 for the background, by falling score, missed objects last."""

    prediction: Int64Array
    truth: Int64Array


def match_any_label(
    predictions: Table,
    truths: Table,
    rows: Int64Array,
    overlap: OverlapFunction,
    iou: float,
) -> ConfusedPairs:
    """Match the predictions at these rows with objects of any label, at a match threshold."""
    rows = np.sort(rows)
    image, no_label = predictions["image"][rows], np.zeros(len(rows), np.int64)
    row_labels = {"image": image, "label": no_label}
    ranking = match_objects(
        row_labels | {name: predictions[name][rows] for name in ("score", "area")},
        truths | {"label": np.zeros_like(truths["label"])},
        lambda prediction, truth: overlap(rows[prediction], truth),
        thresholds=np.array([iou]),
        areas=_ANY_AREA,
        max_detections=max(len(rows), 1),
        shape=(1, int(max(image.max(initial=-1), truths["image"].max(initial=-1))) + 1),
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


def paired_labels(state: EvaluationState, pairs: ConfusedPairs) -> PairedLabels:
    """Return the labels of pairs, with their images."""
    predictions, annotations = state.tables["predictions"], state.tables["truths"]
    image = np.where(
        pairs.prediction >= 0,
        np.append(predictions["image"], -1)[pairs.prediction],
        np.append(annotations["image"], -1)[pairs.truth],
    )
    true = np.append(annotations["label"], -1)[pairs.truth]
    return PairedLabels(image, true, np.append(predictions["label"], -1)[pairs.prediction])


def object_confusion(
    state: EvaluationState, pairs: ConfusedPairs, rule: dict[str, Any]
) -> Confusion:
    """Count pairs by their labels, with examples of each cell; `rule` has the thresholds that made the pairs."""
    predictions, annotations = state.tables["predictions"], state.tables["truths"]
    images, true, predicted = paired_labels(state, pairs)
    names = [*state.labels, None]
    examples = []
    for pair_index in _choose_examples(true % len(names) * len(names) + predicted % len(names)):
        prediction, truth = int(pairs.prediction[pair_index]), int(pairs.truth[pair_index])
        ids = (
            str(table["number"][row]) if row >= 0 else None
            for table, row in ((annotations, truth), (predictions, prediction))
        )
        labels = names[true[pair_index]], names[predicted[pair_index]]
        examples.append(Example(*labels, state.ids[images[pair_index]], *ids))
    counts = np.ones(len(true), np.int64)
    counted = confusion_of(state.labels, true, predicted, counts, unit="objects")
    parameters = {**counted.parameters, **rule, "rule": "all labels of an image, by falling score"}
    return msgspec.structs.replace(counted, examples=examples, parameters=parameters)


def _choose_examples(cell: Int64Array) -> Int64Array:
    """Choose the first examples of each cell, first those of all cells, then the second ones, and so on."""
    order = np.argsort(cell, kind="stable")
    position = index_within_runs(cell[order])
    is_selected = position < _EXAMPLES_PER_CELL
    return np.sort(
        order[is_selected][np.argsort(position[is_selected], kind="stable")][:_MAX_EXAMPLES]
    )

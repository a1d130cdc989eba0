"""Which annotations an inference gets in a dataset: its ground truth or its predictions."""

from typing import Any, Literal

from quadriga.store.exchange.predictions import decode_objects, score_of
from quadriga.store.records.records import REJECTED, StoredInference

Annotated = Literal["either", "ground_truth", "predictions"]


def choose_annotations(
    record: StoredInference, annotated: Annotated
) -> tuple[str, list[dict[str, Any]]] | None:
    """Return whose annotations an inference gets, and these; None where it has none such.

    Of the predictions of a classifier only the best one is an annotation.
    """
    if annotated != "predictions" and has_truth(record):
        return "ground_truth", decode_objects(record.ground_truth)
    if annotated == "ground_truth":
        return None
    predictions = decode_objects(record.predictions)
    if record.task == "IMAGE_CLASSIFICATION" and predictions:
        predictions = [max(predictions, key=lambda item: score_of(item) or 0.0)]
    return "predictions", predictions


def has_truth(record: StoredInference) -> bool:
    """Check whether an inference has ground truth that nobody rejected."""
    return record.ground_truth is not None and record.ground_truth_review != REJECTED

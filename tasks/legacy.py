"""Predictions in the shapes of Chariot's engines before chariot-v2-kserve.

Boxes are `[ymin, xmin, ymax, xmax]` in pixels of the image; scores are numbers.

Source: Striveworks, MLServer fork, `mlserver_huggingface/codecs/chariot.py`; Valor's Chariot integration.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from quadriga.tasks.geometry import fill, to_rings
from quadriga.tasks.parameters import ParameterError
from quadriga.tasks.segmentation import background
from quadriga.tasks.specification import ModelSpec

MAX_PIXELS = 4_000_000
"""Maximum pixels of an image whose response has a number for each pixel."""


def legacy(
    predictions: Sequence[Any], action: str, spec: ModelSpec, width: int, height: int
) -> Any:
    """Return the predictions for one image, whose size is in pixels, in the legacy form.

    A classifier gives the best label for `predict`, probabilities by class index for `predict_proba`; a
    detector an object of lists; a segmentation the class of each pixel, rows from the top: 0 for none, or
    the index of the label, counted from 1 unless label 0 is background.

    Raises:
        ParameterError: The image is too large, or the classes are incomplete.
    """
    if spec.task == "IMAGE_CLASSIFICATION":
        return predictions[0].label if action == "predict" else _probabilities(predictions, spec)
    if spec.task == "IMAGE_SEGMENTATION":
        return _classes(predictions, spec, width, height)
    lists = {
        "detection_classes": [prediction.label for prediction in predictions],
        "detection_scores": [prediction.score for prediction in predictions],
    }
    if spec.task == "ORIENTED_OBJECT_DETECTION":
        names = ("cx", "cy", "w", "h", "r")
        boxes = [{name: getattr(prediction, name) for name in names} for prediction in predictions]
        return {**lists, "oriented_detection_boxes": boxes}
    return {
        "num_detections": len(predictions),
        **lists,
        "detection_boxes": [
            [prediction.ymin, prediction.xmin, prediction.ymax, prediction.xmax]
            for prediction in predictions
        ],
    }


def _probabilities(predictions: Sequence[Any], spec: ModelSpec) -> list[float]:
    by_label = {prediction.label: prediction.score for prediction in predictions}
    if len(by_label) != len(spec.labels):
        raise ParameterError(
            f"expected all {len(spec.labels)} classes, of different names, for parameters.output_format "
            f"legacy, got {len(by_label)}"
        )
    return [by_label[label] for label in spec.labels]


def _classes(
    predictions: Sequence[Any], spec: ModelSpec, width: int, height: int
) -> list[list[int]]:
    if width * height > MAX_PIXELS:
        raise ParameterError(
            f"expected an image of at most {MAX_PIXELS} pixels for parameters.output_format legacy, got "
            f"{width} x {height}"
        )
    first = 0 if background(spec) == 0 else 1
    classes = np.zeros((height, width), np.int64)
    for segment in sorted(predictions, key=lambda segment: segment.score):  # the best is on top
        mask = fill(to_rings(segment.contour), width, height)
        classes[mask > 0] = spec.labels.index(segment.label) + first
    rows: list[list[int]] = classes.tolist()
    return rows

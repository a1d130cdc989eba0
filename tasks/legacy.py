"""Predictions in the shapes of Chariot's engines before chariot-v2-kserve.

Boxes are `[ymin, xmin, ymax, xmax]` in pixels of the image; scores are numbers.

Source: Striveworks, MLServer fork, `mlserver_huggingface/codecs/chariot.py`; Valor's Chariot integration.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from quadriga.tasks import TASKS
from quadriga.tasks import parameters as read
from quadriga.tasks.contours import fill, to_rings
from quadriga.tasks.parameters import ParameterError
from quadriga.tasks.segmentation import background
from quadriga.tasks.specification import ModelSpec

FORMATS = ("protocol", "legacy")
"""What `output_format` may be; the first is the default."""

MAX_PIXELS = 4_000_000
"""Of an image whose every pixel is answered as a number."""


def wants_legacy(parameters: Mapping[str, Any], task: str) -> bool:
    """Read `output_format`; raises ParameterError where the task has none but the protocol's."""
    wanted = read.choice(parameters, "output_format", FORMATS) == "legacy"
    if wanted and task not in TASKS:
        raise ParameterError(f"expected parameters.output_format to be protocol for {task}")
    return wanted


def legacy(
    predictions: Sequence[Any], action: str, spec: ModelSpec, width: int, height: int
) -> Any:
    """Write the predictions for one image of so many pixels; a ParameterError where that cannot be.

    For `predict` of a classifier the best label; for `predict_proba` its probabilities by class
    index; for detections an object of lists; for a segmentation the class of each pixel, rows from
    the top: 0 for none, else the index of the label, counted from 1 unless label 0 is background.
    """
    if spec.task == "IMAGE_CLASSIFICATION":
        return predictions[0].label if action == "predict" else _probabilities(predictions, spec)
    if spec.task == "IMAGE_SEGMENTATION":
        return _classes(predictions, spec, width, height)
    lists = {
        "detection_classes": [each.label for each in predictions],
        "detection_scores": [each.score for each in predictions],
    }
    if spec.task == "ORIENTED_OBJECT_DETECTION":
        names = ("cx", "cy", "w", "h", "r")
        boxes = [{name: getattr(each, name) for name in names} for each in predictions]
        return {**lists, "oriented_detection_boxes": boxes}
    return {
        "num_detections": len(predictions),
        **lists,
        "detection_boxes": [[each.ymin, each.xmin, each.ymax, each.xmax] for each in predictions],
    }


def _probabilities(predictions: Sequence[Any], spec: ModelSpec) -> list[float]:
    by_label = {each.label: each.score for each in predictions}
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
    for each in sorted(predictions, key=lambda each: each.score):  # the best is on top
        mask = fill(to_rings(each.contour), width, height)
        classes[mask > 0] = spec.labels.index(each.label) + first
    rows: list[list[int]] = classes.tolist()
    return rows

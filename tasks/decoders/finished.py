"""Families whose graph returns final detections: boxes, scores and classes, without overlaps."""

import msgspec
import numpy as np

from quadriga.tasks.decoders import COLUMNS, NORMALIZED, Candidates
from quadriga.tasks.decoders.reading import (
    finished,
    first,
    fractions_to_pixels,
    named,
    of_first_image,
    plain_name,
)
from quadriga.tasks.geometry import Floats, xywh_to_xyxy
from quadriga.tasks.predictions import OutputError, Outputs, Size


class Table:
    """Decoder of one output, float (detections, columns), a row for each detection.

    Args:
        columns: Names of the columns in their order; see `quadriga.tasks.decoders.is_table`.
    """

    def __init__(self, columns: str) -> None:
        self._slices: dict[str, slice] = {}
        self._width = 0
        for name in columns.split(", "):
            start, self._width = self._width, self._width + COLUMNS[name]
            self._slices[name] = slice(start, self._width)
        (self._box,) = (name for name in self._slices if COLUMNS[name] == 4)

    def __call__(self, outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
        """Read the rows of the first image, whose overlaps the graph has suppressed."""
        array = next(iter(outputs.values()))
        while array.ndim > 2 and len(array) == 1:
            array = array[0]
        rows = first({"table": array}, "detections", self._width)
        if "image" in self._slices:
            rows = of_first_image(rows, self._column(rows, "image"))
        scores = self._column(rows, "score")
        if "objectness" in self._slices:
            scores = scores * self._column(rows, "objectness")
        classes = self._column(rows, "class") if "class" in self._slices else np.zeros_like(scores)
        return finished(self._boxes(rows, size_wh), scores, classes, score_threshold)

    def _column(self, rows: Floats, name: str) -> Floats:
        return np.asarray(rows[:, self._slices[name].start])

    @np.errstate(over="ignore", invalid="ignore")  # reported only above the threshold
    def _boxes(self, rows: Floats, size_wh: Size) -> Floats:
        boxes = rows[:, self._slices[self._box]]
        if "angle" in self._slices:
            return np.concatenate([boxes, rows[:, self._slices["angle"]]], axis=1)
        if self._box.endswith("yxyx"):
            boxes = boxes[:, [1, 0, 3, 2]]
        if self._box.endswith("xywh"):
            boxes = xywh_to_xyxy(boxes)
        return fractions_to_pixels(boxes, size_wh) if NORMALIZED in self._box else boxes


def labelled_boxes(outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
    """Read `boxes`, float (detections, 4), xyxy, pixels, `labels`, int, and `scores`, float.

    RT-DETR, D-FINE and DEIM as their authors export them, with the size of the network's input as a second
    input; and torchvision's detectors, without batch axis, whose labels count from 1. Three outputs of other
    names come in this order.

    Source: RT-DETR, `rtdetrv2_pytorch/tools/export_onnx.py`; torchvision 0.28, `models/detection`.
    """
    if not {"boxes", "labels", "scores"} <= outputs.keys() and len(outputs) == 3:
        outputs = dict(zip(("boxes", "labels", "scores"), outputs.values(), strict=True))
    boxes = named(outputs, "boxes", "detections", 4)
    labels = named(outputs, "labels", len(boxes))
    scores = named(outputs, "scores", len(boxes))
    return finished(boxes, scores, labels, score_threshold)


def efficient_nms(outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
    """Read `num_dets`, `det_boxes` (xyxy, pixels), `det_scores` and `det_classes` of EfficientNMS, or names like these.

    MMYOLO and YOLO-World write `num_dets`, `boxes`, `scores`, `labels`; YOLO-NAS `num_predictions`, `pred_boxes`,
    `pred_scores`, `pred_classes`.

    Source: TensorRT, `plugin/efficientNMSPlugin/README.md`; MMYOLO 0.6, `projects/easydeploy`; super-gradients 3.7,
    `documentation/source/models_export.md`.
    """
    boxes = named(outputs, "det_boxes|boxes|pred_boxes|detection_boxes", "detections", 4)
    scores = named(outputs, "det_scores|scores|pred_scores|detection_scores", len(boxes))
    classes = "det_classes|labels|classes|pred_classes|detection_classes"
    class_ids = named(outputs, classes, len(boxes))
    count = _count(outputs, "num_dets|num_predictions|num_detections", len(boxes))
    return finished(boxes[:count], scores[:count], class_ids[:count], score_threshold)


def tensorflow(outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
    """Read the outputs of TensorFlow's Object Detection API.

    `detection_boxes`, float (detections, 4), are top, left, bottom, right as fractions of the input;
    `detection_scores`, `detection_classes`, which count from 1, and `num_detections` go with them.

    Source: TensorFlow models, `research/object_detection/exporter_lib_v2.py`.
    """
    boxes = named(outputs, "detection_boxes", "detections", 4)
    scores = named(outputs, "detection_scores", len(boxes))
    class_ids = named(outputs, "detection_classes", len(boxes))
    count = _count(outputs, "num_detections", len(boxes))
    boxes = fractions_to_pixels(boxes[:count, [1, 0, 3, 2]], size_wh)
    return finished(boxes, scores[:count], class_ids[:count], score_threshold)


def _count(outputs: Outputs, name: str, row_count: int) -> int:
    """Read how many rows are filled; all of them if the graph lacks that output."""
    name = next((known for known in outputs if plain_name(known) in name.split("|")), "")
    if not name:
        return row_count
    array = outputs[name]
    if array.size != 1:
        raise OutputError(f"expected output {name!r} to hold one number, got {array.shape}")
    count = float(array.reshape(()))
    if not 0 <= count <= row_count:
        raise OutputError(f"expected output {name!r} to be from 0 to {row_count}, got {count:g}")
    return int(count)


def mmdeploy(outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
    """Read `dets`, float (detections, 5): left, top, right, bottom, score, and `labels`, int.

    Source: MMDeploy 1.3, `docs/en/04-supported-codebases/mmdet.md`.
    """
    rows = named(outputs, "dets", "detections", 5)
    labels = named(outputs, "labels", len(rows))
    return finished(rows[:, :4], rows[:, 4], labels, score_threshold)


def mmdeploy_rotated(outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
    """Read `dets`, float (detections, 6): rotated box, pixels and radians, score, and `labels`, int.

    Suppression follows, as in MMRotate. Most graphs have done it already, at a lower overlap; then it drops
    no further box.

    Source: MMDeploy 1.3, `docs/en/04-supported-codebases/mmrotate.md`.
    """
    rows = named(outputs, "dets", "detections", 6)
    labels = named(outputs, "labels", len(rows))
    candidates = finished(rows[:, :5], rows[:, 5], labels, score_threshold)
    return msgspec.structs.replace(candidates, suppress=True)

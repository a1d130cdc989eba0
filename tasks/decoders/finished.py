"""Families whose graph returns final detections: boxes, scores and classes, without overlaps."""

import msgspec
import numpy as np

from quadriga.tasks.decoders import Candidates
from quadriga.tasks.decoders.reading import (
    finished,
    first,
    fractions_to_pixels,
    named,
    of_first_image,
)
from quadriga.tasks.predictions import OutputError, Outputs, Size


def labelled_boxes(outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
    """Read `boxes`, float (detections, 4), xyxy, pixels, `labels`, int, and `scores`, float.

    RT-DETR, D-FINE and DEIM as their authors export them, with the size of the network's input as a second
    input; and torchvision's detectors, without batch axis, whose labels count from 1. Outputs with other
    names are recognised: boxes have four columns, labels are integers.

    Source: RT-DETR, `rtdetrv2_pytorch/tools/export_onnx.py`; torchvision 0.28, `models/detection`.
    """
    if not {"boxes", "labels", "scores"} <= outputs.keys():
        outputs = _by_role(outputs)
    boxes = named(outputs, "boxes", "detections", 4)
    labels = named(outputs, "labels", len(boxes))
    scores = named(outputs, "scores", len(boxes))
    return finished(boxes, scores, labels, score_threshold)


def _by_role(outputs: Outputs) -> Outputs:
    """Name the outputs of torchvision's detectors, which exporters number, by type and shape."""
    roles = {}
    for name, array in outputs.items():
        if array.ndim == 1:
            roles["labels" if np.issubdtype(array.dtype, np.integer) else "scores"] = array
        elif array.ndim == 2 and array.shape[1] == 4:
            roles["boxes"] = array
        else:
            roles[name] = array
    return roles if {"boxes", "labels", "scores"} <= roles.keys() else outputs


def efficient_nms(outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
    """Read `num_dets`, `det_boxes` (xyxy, pixels), `det_scores` and `det_classes` of EfficientNMS.

    Source: TensorRT, `plugin/efficientNMSPlugin/README.md`.
    """
    boxes = named(outputs, "det_boxes", "detections", 4)
    scores = named(outputs, "det_scores", len(boxes))
    class_ids = named(outputs, "det_classes", len(boxes))
    count = _count(outputs, "num_dets", len(boxes))
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
    if name not in outputs:
        return row_count
    array = outputs[name]
    if array.size != 1:
        raise OutputError(f"expected output {name!r} to hold one number, got {array.shape}")
    count = float(array.reshape(()))
    if not 0 <= count <= row_count:
        raise OutputError(f"expected output {name!r} to be from 0 to {row_count}, got {count:g}")
    return int(count)


def ssd(outputs: Outputs, score_threshold: float, size_wh: Size) -> Candidates:
    """Read the first output, float (1, 1, detections, 7): image, class, score, box as fractions.

    The box is left, top, right, bottom. A negative image number ends the list; there is no batch axis.

    Source: OpenVINO operation set, DetectionOutput-8.
    """
    rows = first(outputs, 1, 1, "detections", 7)[0, 0]
    ends = np.flatnonzero(rows[:, 0] < 0)
    rows = of_first_image(rows[: ends[0]] if len(ends) else rows)
    boxes = fractions_to_pixels(rows[:, 3:], size_wh)
    return finished(boxes, rows[:, 2], rows[:, 1], score_threshold)


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

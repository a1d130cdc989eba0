"""Accuracy of an exported model, measured through onnxruntime alone.

A sample is an image with its ground truth; where it comes from, a seed or a file, does not matter.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import onnxruntime  # type: ignore[import-untyped]

from sample_models.training.boxes import (
    BoxSet,
    Overlap,
    average_precision,
    cxcywh_to_xyxy,
    match,
    pairwise_iou,
    suppress,
)
from sample_models.training.oriented_boxes import (
    axis_difference,
    oriented_to_image,
    polygon_iou,
)
from sample_models.training.preprocessing import letterbox, network_to_image, stretch, to_tensor
from sample_models.training.scenes import Image, Scene

Figures = dict[str, Any]

SCORE_THRESHOLD = 0.25
IOU_THRESHOLD = 0.7
ORIENTED_IOU_THRESHOLD = 0.3
"""Lower: a box that is turned or moved a little soon overlaps little with a narrow neighbour."""
MAX_DETECTIONS = 300

_RANKING_THRESHOLD = 0.001


def open_session(path: Path) -> onnxruntime.InferenceSession:
    """Open a model on one CPU thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def scene_boxes(scene: Scene, labels: tuple[str, ...]) -> BoxSet:
    """Return the ground truth of a scene, its shapes as indices into `labels`."""
    boxes = np.array([item.box for item in scene.objects], dtype=np.float64).reshape(-1, 4)
    indices = np.array([labels.index(item.shape) for item in scene.objects], dtype=np.int64)
    return BoxSet(boxes, indices, np.ones(len(boxes)))


def classify(session: onnxruntime.InferenceSession, image: Image) -> int:
    """Classify uint8 (H, W, 3) RGB; gives the class index."""
    graph_input = session.get_inputs()[0]
    tensor = to_tensor(stretch(image, (graph_input.shape[3], graph_input.shape[2]))[None])
    (logits,) = session.run(None, {graph_input.name: tensor})
    return int(np.asarray(logits)[0].argmax())


def detect(session: onnxruntime.InferenceSession, image: Image, score_threshold: float) -> BoxSet:
    """Detect in uint8 (H, W, 3) RGB; gives boxes in pixels of that image, best first."""
    graph_input = session.get_inputs()[0]
    fitted, frame = letterbox(image, (graph_input.shape[3], graph_input.shape[2]))
    (output,) = session.run(None, {graph_input.name: to_tensor(fitted[None])})
    rows = np.asarray(output, dtype=np.float64)[0].T
    labels, scores = rows[:, 4:].argmax(axis=1), rows[:, 4:].max(axis=1)
    keep = scores > score_threshold
    boxes = network_to_image(
        cxcywh_to_xyxy(rows[keep, :4]), frame, (image.shape[1], image.shape[0])
    )
    detections = BoxSet(boxes, labels[keep].astype(np.int64), scores[keep])
    return suppress(detections, IOU_THRESHOLD, MAX_DETECTIONS)


def detect_oriented(
    session: onnxruntime.InferenceSession, image: Image, score_threshold: float
) -> BoxSet:
    """Detect in uint8 (H, W, 3) RGB; gives oriented boxes in pixels of that image, best first."""
    graph_input = session.get_inputs()[0]
    fitted, frame = letterbox(image, (graph_input.shape[3], graph_input.shape[2]))
    (output,) = session.run(None, {graph_input.name: to_tensor(fitted[None])})
    rows = np.asarray(output, dtype=np.float64)[0].T
    labels, scores = rows[:, 4:-1].argmax(axis=1), rows[:, 4:-1].max(axis=1)
    keep = scores > score_threshold
    boxes = oriented_to_image(rows[keep][:, [0, 1, 2, 3, -1]], frame)
    detections = BoxSet(boxes, labels[keep].astype(np.int64), scores[keep])
    return suppress(detections, ORIENTED_IOU_THRESHOLD, MAX_DETECTIONS, polygon_iou)


def segment(session: onnxruntime.InferenceSession, image: Image) -> npt.NDArray[np.uint8]:
    """Segment uint8 (H, W, 3) RGB; gives the class of each pixel of that image, uint8 (H, W)."""
    graph_input = session.get_inputs()[0]
    tensor = to_tensor(stretch(image, (graph_input.shape[3], graph_input.shape[2]))[None])
    (logits,) = session.run(None, {graph_input.name: tensor})
    planes = [
        cv2.resize(plane, image.shape[1::-1], interpolation=cv2.INTER_LINEAR)
        for plane in np.asarray(logits)[0]
    ]
    classes: npt.NDArray[np.uint8] = np.argmax(planes, axis=0).astype(np.uint8)
    return classes


def measure_classifier(
    path: Path, samples: Iterable[tuple[Image, int]], labels: tuple[str, ...]
) -> Figures:
    """Measure accuracy, over all samples and class by class.

    Args:
        path: the ONNX file.
        samples: RGB image and true class index.
        labels: class names.

    Returns:
        `samples`, `accuracy`, `accuracy_per_class` and `mistakes` (counts, truth first).
    """
    session = open_session(path)
    confusion = np.zeros((len(labels), len(labels)), dtype=np.int64)
    for image, label in samples:
        confusion[label, classify(session, image)] += 1
    right = confusion.diagonal()
    return {
        "samples": int(confusion.sum()),
        "accuracy": round(float(right.sum() / confusion.sum()), 4),
        "accuracy_per_class": _by_label(labels, right / np.maximum(confusion.sum(axis=1), 1)),
        "mistakes": {
            f"{labels[true]} taken for {labels[predicted]}": int(confusion[true, predicted])
            for true, predicted in np.argwhere(confusion)
            if true != predicted
        },
    }


def measure_detector(
    path: Path, samples: Iterable[tuple[Image, BoxSet]], labels: tuple[str, ...]
) -> Figures:
    """Measure average precision, and precision and recall at the default thresholds.

    Boxes are compared in pixels of the original image, after the letterbox is undone and
    duplicates are suppressed class by class. Average precision is 101-point interpolated and
    ranks all boxes with a score above 0.001.

    Args:
        path: the ONNX file.
        samples: RGB image and true boxes.
        labels: class names.
    """
    session = open_session(path)
    predictions, truth = [], []
    for image, boxes in samples:
        predictions.append(detect(session, image, _RANKING_THRESHOLD))
        truth.append(boxes)
    return _detection_figures(predictions, truth, labels, pairwise_iou)


def measure_oriented(
    path: Path, samples: Iterable[tuple[Image, BoxSet]], labels: tuple[str, ...]
) -> Figures:
    """Measure as `measure_detector` does, with the polygon IoU of oriented boxes.

    Args:
        path: the ONNX file.
        samples: RGB image and true oriented boxes.
        labels: class names.
    """
    session = open_session(path)
    predictions, truth = [], []
    for image, boxes in samples:
        predictions.append(detect_oriented(session, image, _RANKING_THRESHOLD))
        truth.append(boxes)
    errors = [
        axis_difference(predicted.boxes[hit, 4], true.boxes[index, 4])
        for predicted, true in zip(predictions, truth, strict=True)
        for hit, index in np.argwhere(polygon_iou(predicted.boxes, true.boxes) >= 0.5)
        if predicted.scores[hit] > SCORE_THRESHOLD and predicted.labels[hit] == true.labels[index]
    ]
    return {
        **_detection_figures(predictions, truth, labels, polygon_iou),
        "median_angle_error_deg": round(float(np.degrees(np.median(errors))), 2),
    }


def measure_segmenter(
    path: Path, samples: Iterable[tuple[Image, npt.NDArray[np.uint8]]], labels: tuple[str, ...]
) -> Figures:
    """Measure intersection over union of the pixels of each class, over all images together.

    Logits are upsampled bilinearly to the original image before the class is chosen.

    Args:
        path: the ONNX file.
        samples: RGB image and its true classes, uint8 (H, W), in pixels of that image.
        labels: class names, background first.
    """
    session = open_session(path)
    confusion = np.zeros((len(labels), len(labels)), dtype=np.int64)
    count = 0
    for image, truth in samples:
        count += 1
        pairs = truth.astype(np.int64) * len(labels) + segment(session, image)
        confusion += np.bincount(pairs.ravel(), minlength=confusion.size).reshape(confusion.shape)
    right = confusion.diagonal()
    iou = right / np.maximum(confusion.sum(axis=0) + confusion.sum(axis=1) - right, 1)
    return {
        "samples": count,
        "miou": round(float(iou.mean()), 4),
        "pixel_accuracy": round(float(right.sum() / confusion.sum()), 4),
        "iou_per_class": _by_label(labels, iou),
    }


def _detection_figures(
    predictions: list[BoxSet], truth: list[BoxSet], labels: tuple[str, ...], overlap: Overlap
) -> Figures:
    precision = {
        iou: np.array(
            [
                average_precision(predictions, truth, k, iou_threshold=iou, overlap=overlap)
                for k in range(len(labels))
            ]
        )
        for iou in np.linspace(0.5, 0.95, 10).round(2).tolist()
    }
    return {
        "samples": len(truth),
        "objects": sum(len(true.boxes) for true in truth),
        "map50": round(float(np.nanmean(precision[0.5])), 4),
        "map75": round(float(np.nanmean(precision[0.75])), 4),
        "map50_95": round(float(np.nanmean(list(precision.values()))), 4),
        "ap50_per_class": _by_label(labels, precision[0.5]),
        "at_default_thresholds": _hits(predictions, truth, labels, overlap),
    }


def _hits(
    predictions: list[BoxSet], truth: list[BoxSet], labels: tuple[str, ...], overlap: Overlap
) -> Figures:
    """Return precision and recall at the default score threshold, IoU 0.5."""
    right = shown = true_count = 0
    for predicted, true in zip(predictions, truth, strict=True):
        for label in range(len(labels)):
            sure = predicted.boxes[
                (predicted.labels == label) & (predicted.scores > SCORE_THRESHOLD)
            ]
            real = true.boxes[true.labels == label]
            right += int(match(sure, real, 0.5, overlap).sum())
            shown += len(sure)
            true_count += len(real)
    return {
        "score_threshold": SCORE_THRESHOLD,
        "precision": round(right / max(shown, 1), 4),
        "recall": round(right / max(true_count, 1), 4),
    }


def _by_label(labels: tuple[str, ...], values: npt.NDArray[np.float64]) -> dict[str, float]:
    return {label: round(float(value), 4) for label, value in zip(labels, values, strict=True)}

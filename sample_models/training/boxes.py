"""Overlap, suppression and average precision of boxes, in numpy.

Boxes are axis-aligned unless another overlap is given: see `oriented_boxes.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Boxes = npt.NDArray[np.float64]
Overlap = Callable[[Boxes, Boxes], npt.NDArray[np.float64]]
"""Returns the overlap, 0..1, of each of N boxes with each of M: float64 (N, M)."""


@dataclass(frozen=True)
class BoxSet:
    """The boxes of one image, found or true.

    Attributes:
        boxes: float64 (N, 4), xyxy, pixels of the image; or (N, 5), oriented.
        labels: int64 (N,), class indices.
        scores: float64 (N,); ones for ground truth.
    """

    boxes: Boxes
    labels: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float64]


def cxcywh_to_xyxy(boxes: Boxes) -> Boxes:
    """Turn float64 (N, 4) from centre, width and height into two corners."""
    half = boxes[:, 2:] / 2
    return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)


def pairwise_iou(left: Boxes, right: Boxes) -> npt.NDArray[np.float64]:
    """Return intersection over union of float64 (N, 4) with (M, 4), xyxy: float64 (N, M)."""
    corner_min = np.maximum(left[:, None, :2], right[None, :, :2])
    corner_max = np.minimum(left[:, None, 2:], right[None, :, 2:])
    shared = np.prod(np.clip(corner_max - corner_min, 0, None), axis=2)
    area_left = np.prod(left[:, 2:] - left[:, :2], axis=1)
    area_right = np.prod(right[:, 2:] - right[:, :2], axis=1)
    union = area_left[:, None] + area_right[None, :] - shared
    iou: Boxes = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    return iou


def suppress(
    predictions: BoxSet, iou_threshold: float, max_count: int, overlap: Overlap = pairwise_iou
) -> BoxSet:
    """Keep the best boxes, best first: class by class, none overlaps a better one too much.

    Args:
        predictions: boxes of one image.
        iou_threshold: boxes of one class that overlap more than this are duplicates.
        max_count: largest number of boxes to keep.
        overlap: what counts as overlap.
    """
    order = np.argsort(-predictions.scores, kind="stable")
    boxes, labels = predictions.boxes[order], predictions.labels[order]
    duplicate = overlap(boxes, boxes) > iou_threshold
    duplicate &= labels[:, None] == labels[None, :]
    alive = np.ones(len(order), dtype=bool)
    for index in range(len(order)):
        if alive[index]:
            alive[index + 1 :] &= ~duplicate[index, index + 1 :]
    selected = order[alive][:max_count]
    return BoxSet(
        predictions.boxes[selected], predictions.labels[selected], predictions.scores[selected]
    )


def match(
    predictions: Boxes, truth: Boxes, iou_threshold: float, overlap: Overlap = pairwise_iou
) -> npt.NDArray[np.bool_]:
    """Mark true positives among the found boxes of one class in one image.

    Each found box, best score first, takes the free true box that it overlaps most.

    Args:
        predictions: float64 (N, 4), xyxy, sorted by falling score.
        truth: float64 (M, 4), xyxy.
        iou_threshold: least overlap of a match.
        overlap: what counts as overlap.

    Returns:
        bool (N,).
    """
    free = overlap(predictions, truth)
    hit = np.zeros(len(predictions), dtype=bool)
    for index in range(len(predictions) if len(truth) else 0):
        best = int(free[index].argmax())
        if free[index, best] >= iou_threshold:
            hit[index] = True
            free[:, best] = -1
    return hit


def average_precision(
    predictions: list[BoxSet],
    truth: list[BoxSet],
    label: int,
    iou_threshold: float,
    overlap: Overlap = pairwise_iou,
) -> float:
    """Return the 101-point interpolated average precision of one class, as COCO defines it.

    Args:
        predictions: detections, one set for each image.
        truth: ground truth, in the same order.
        label: class index.
        iou_threshold: least overlap of a match.
        overlap: what counts as overlap.

    Returns:
        0..1, or NaN where no image has the class.
    """
    hits, scores, positives = [], [], 0
    for predicted, true in zip(predictions, truth, strict=True):
        mine = np.flatnonzero(predicted.labels == label)
        mine = mine[np.argsort(-predicted.scores[mine], kind="stable")]
        true_boxes = true.boxes[true.labels == label]
        hits.append(match(predicted.boxes[mine], true_boxes, iou_threshold, overlap))
        scores.append(predicted.scores[mine])
        positives += len(true_boxes)
    if positives == 0:
        return float("nan")
    ranked = np.concatenate(hits)[np.argsort(-np.concatenate(scores), kind="stable")]
    true_positives = np.cumsum(ranked)
    recall = true_positives / positives
    precision = true_positives / np.arange(1, len(ranked) + 1)
    envelope = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0.0)
    points = np.searchsorted(recall, np.linspace(0, 1, 101), side="left")
    return float(envelope[points].mean())

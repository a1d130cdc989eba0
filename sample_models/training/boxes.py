"""Overlap, suppression and average precision of boxes, in numpy.

Boxes are axis-aligned unless another overlap is given: see `oriented_boxes.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Boxes = npt.NDArray[np.float64]
Overlap = Callable[[Boxes, Boxes], npt.NDArray[np.float64]]
"""Gives the overlap, 0..1, of each of N boxes with each of M: float64 (N, M)."""


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
    """Give intersection over union of float64 (N, 4) with (M, 4), xyxy: float64 (N, M)."""
    corner_min = np.maximum(left[:, None, :2], right[None, :, :2])
    corner_max = np.minimum(left[:, None, 2:], right[None, :, 2:])
    shared = np.prod(np.clip(corner_max - corner_min, 0, None), axis=2)
    area_left = np.prod(left[:, 2:] - left[:, :2], axis=1)
    area_right = np.prod(right[:, 2:] - right[:, :2], axis=1)
    union = area_left[:, None] + area_right[None, :] - shared
    iou: Boxes = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    return iou


def suppress(
    found: BoxSet, iou_threshold: float, most: int, overlap: Overlap = pairwise_iou
) -> BoxSet:
    """Keep the best boxes, best first: class by class, none overlaps a better one too much.

    Args:
        found: boxes of one image.
        iou_threshold: boxes of one class that overlap more than this are duplicates.
        most: largest number of boxes to keep.
        overlap: what counts as overlap.
    """
    order = np.argsort(-found.scores, kind="stable")
    boxes, labels = found.boxes[order], found.labels[order]
    duplicate = overlap(boxes, boxes) > iou_threshold
    duplicate &= labels[:, None] == labels[None, :]
    alive = np.ones(len(order), dtype=bool)
    for index in range(len(order)):
        if alive[index]:
            alive[index + 1 :] &= ~duplicate[index, index + 1 :]
    kept = order[alive][:most]
    return BoxSet(found.boxes[kept], found.labels[kept], found.scores[kept])


def match(
    found: Boxes, truth: Boxes, iou_threshold: float, overlap: Overlap = pairwise_iou
) -> npt.NDArray[np.bool_]:
    """Mark true positives among the found boxes of one class in one image.

    Each found box, best score first, takes the free true box that it overlaps most.

    Args:
        found: float64 (N, 4), xyxy, sorted by falling score.
        truth: float64 (M, 4), xyxy.
        iou_threshold: least overlap of a match.
        overlap: what counts as overlap.

    Returns:
        bool (N,).
    """
    free = overlap(found, truth)
    hit = np.zeros(len(found), dtype=bool)
    for index in range(len(found) if len(truth) else 0):
        best = int(free[index].argmax())
        if free[index, best] >= iou_threshold:
            hit[index] = True
            free[:, best] = -1
    return hit


def average_precision(
    found: list[BoxSet],
    truth: list[BoxSet],
    label: int,
    iou_threshold: float,
    overlap: Overlap = pairwise_iou,
) -> float:
    """Give the 101-point interpolated average precision of one class, as COCO defines it.

    Args:
        found: detections, one set for each image.
        truth: ground truth, in the same order.
        label: class index.
        iou_threshold: least overlap of a match.
        overlap: what counts as overlap.

    Returns:
        0..1, or NaN where no image has the class.
    """
    hits, scores, positives = [], [], 0
    for one, true in zip(found, truth, strict=True):
        mine = np.flatnonzero(one.labels == label)
        mine = mine[np.argsort(-one.scores[mine], kind="stable")]
        wanted = true.boxes[true.labels == label]
        hits.append(match(one.boxes[mine], wanted, iou_threshold, overlap))
        scores.append(one.scores[mine])
        positives += len(wanted)
    if positives == 0:
        return float("nan")
    ranked = np.concatenate(hits)[np.argsort(-np.concatenate(scores), kind="stable")]
    true_positives = np.cumsum(ranked)
    recall = true_positives / positives
    precision = true_positives / np.arange(1, len(ranked) + 1)
    envelope = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0.0)
    points = np.searchsorted(recall, np.linspace(0, 1, 101), side="left")
    return float(envelope[points].mean())

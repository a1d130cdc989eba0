"""Boxes as plain arrays: conversions, clipping, overlap and non-maximum suppression.

Boxes are xyxy unless a name says otherwise: left, top, right, bottom, continuous coordinates, y down.
They are float32 as networks answer them, or float64; results are of the same type.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from quadriga.tasks import rotated

Floats = npt.NDArray[np.floating]
Integers = npt.NDArray[np.int64]

_BLOCK = 128
"""Boxes compared at once: their matrix stays in the cache."""


def xywh_to_xyxy(boxes: Floats) -> Floats:
    """Turn centre x, centre y, width, height into corners: float (N, 4) both, in one unit."""
    centre, half = boxes[:, :2], boxes[:, 2:] / 2
    return np.concatenate([centre - half, centre + half], axis=1)


def clip_boxes(boxes: Floats, width: float, height: float) -> Floats:
    """Cut boxes (N, 4) at the edges of an image, 0 and its size; one outside becomes empty."""
    edges = np.array([width, height, width, height], boxes.dtype)
    return np.asarray(np.clip(boxes, 0, edges))


def iou_matrix(boxes: Floats, others: Floats) -> Floats:
    """Intersection over union of each box with each other, (N, 4), xyxy, or (N, 5), xywhr.

    Of rotated boxes the exact polygons count. Gives float (N, M), 0 to 1; 0 where both are empty.
    """
    common = _intersections(boxes, others)
    return ratio(common, _areas(boxes)[:, None] + _areas(others) - common)


def ios_matrix(boxes: Floats, others: Floats) -> Floats:
    """Intersection over the smaller of the two; else as `iou_matrix`."""
    smaller = np.minimum(_areas(boxes)[:, None], _areas(others))
    return ratio(_intersections(boxes, others), smaller)


def _intersections(boxes: Floats, others: Floats) -> Floats:
    if boxes.shape[1] == 5:
        return rotated.intersections(boxes, others)
    x1, y1, x2, y2 = (boxes[:, None, i] for i in range(4))
    u1, v1, u2, v2 = (others[None, :, i] for i in range(4))
    overlap: Floats = np.maximum(np.minimum(x2, u2) - np.maximum(x1, u1), 0)
    overlap *= np.maximum(np.minimum(y2, v2) - np.maximum(y1, v1), 0)
    return overlap


def _areas(boxes: Floats) -> Floats:
    if boxes.shape[1] == 5:
        return np.asarray(boxes[:, 2].astype(np.float64) * boxes[:, 3])
    sides = np.maximum(boxes[:, 2:] - boxes[:, :2], 0)
    return np.asarray(sides[:, 0] * sides[:, 1])


def ratio(parts: npt.NDArray[Any], wholes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Divide, element by element; 0 where there is no whole."""
    shares = np.zeros_like(parts)
    np.divide(parts, wholes, out=shares, where=wholes > 0)
    return shares


Overlapping = Callable[[Integers, Integers], npt.NDArray[np.bool_]]
"""Which box of the first indices overlaps which of the second too much: bool (first, second)."""


def nms(
    boxes: Floats,
    scores: Floats,
    iou_threshold: float,
    class_ids: Integers | None = None,
    limit: int | None = None,
) -> Integers:
    """Keep the best box of each heap: greedy non-maximum suppression.

    By descending score, a box falls if it overlaps a kept one of its class by more than the threshold;
    an overlap of exactly the threshold stays. Equal scores are taken in the order of their index.

    Args:
        boxes: float (N, 4), xyxy, or (N, 5), xywhr.
        scores: float (N,).
        iou_threshold: 0 to 1.
        class_ids: int64 (N,); without them all boxes are of one class.
        limit: Most boxes to keep, whose indices are given by descending score; without it all.

    Source: torchvision `ops.nms` and `ops.batched_nms`; there, classes are kept apart by moving boxes,
    which rounds coordinates, here by comparing the classes.
    """

    def overlapping(rows: Integers, columns: Integers) -> npt.NDArray[np.bool_]:
        over = iou_matrix(boxes[rows], boxes[columns]) > iou_threshold
        if class_ids is not None:
            over &= class_ids[rows][:, None] == class_ids[columns][None, :]
        return over

    return suppress_greedily(scores, overlapping, limit)


def suppress_greedily(
    scores: Floats, overlapping: Overlapping, limit: int | None = None
) -> Integers:
    """Keep by descending score what overlaps nothing kept; as `nms`, for any overlap.

    Works block by block: overlaps as matrices, the greedy part on Python integers used as bit sets.
    """
    order = np.argsort(-scores, kind="stable")
    limit = len(order) if limit is None else limit
    kept = np.empty(0, np.int64)
    for start in range(0, len(order), _BLOCK):
        if len(kept) >= limit:
            break
        block = order[start : start + _BLOCK]
        if len(kept):
            block = block[~overlapping(block, kept).any(axis=1)]
        kept = np.concatenate([kept, block[_survivors(overlapping(block, block))]])
    return kept[:limit]


def suppress_at_once(
    scores: Floats, overlapping: Overlapping, limit: int | None = None
) -> Integers:
    """Keep by descending score what overlaps nothing better, be that kept or not; as `nms`.

    A box in the middle of a row falls, and still takes the next with it: fewer boxes than greedily.

    Source: Bolya et al., "YOLACT: Real-time Instance Segmentation", section 5, Fast NMS.
    """
    order = np.argsort(-scores, kind="stable")
    limit = len(order) if limit is None else limit
    kept = np.empty(0, np.int64)
    for start in range(0, len(order), _BLOCK):
        if len(kept) >= limit:
            break
        block = order[start : start + _BLOCK]
        fallen = np.triu(overlapping(block, block), 1).any(axis=0)
        if start:
            fallen |= overlapping(block, order[:start]).any(axis=1)
        kept = np.concatenate([kept, block[~fallen]])
    return kept[:limit]


def _survivors(over: npt.NDArray[np.bool_]) -> list[int]:
    """Rows that no surviving row before them suppresses; `over` is bool (N, N)."""
    packed = np.packbits(over, axis=1, bitorder="little")
    survivors, fallen = [], 0
    for index, row in enumerate(packed):
        if not fallen >> index & 1:
            survivors.append(index)
            fallen |= int.from_bytes(row.tobytes(), "little")
    return survivors

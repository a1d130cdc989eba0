"""Boxes as plain arrays: conversions, clipping, overlap and non-maximum suppression.

Boxes are xyxy unless a name says otherwise: left, top, right, bottom, continuous coordinates, y down.
They are float32, as networks return them, or float64; results are of the same type.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from quadriga.tasks import rotated

Floats = npt.NDArray[np.floating]
Integers = npt.NDArray[np.int64]

_BLOCK = 128
"""Number of boxes compared at once: their matrix stays in the cache."""


def xywh_to_xyxy(boxes: Floats) -> Floats:
    """Turn centre x, centre y, width, height into corners: float (N, 4) both, in one unit."""
    centre, half = boxes[:, :2], boxes[:, 2:] / 2
    return np.concatenate([centre - half, centre + half], axis=1)


def clip_boxes(boxes: Floats, width: float, height: float) -> Floats:
    """Cut boxes (N, 4) at the edges of an image, 0 and its size; a box outside becomes empty."""
    edges = np.array([width, height, width, height], boxes.dtype)
    return np.asarray(np.clip(boxes, 0, edges))


def iou_matrix(rows: Floats, columns: Floats) -> Floats:
    """Return the intersection over union of pairs of boxes, (N, 4), xyxy, or (N, 5), xywhr: float (N, M).

    Rotated boxes are compared as exact polygons. The values are 0 to 1; 0 if both boxes are empty.
    """
    shared = _intersections(rows, columns)
    return ratio(shared, _areas(rows)[:, None] + _areas(columns) - shared)


def ios_matrix(rows: Floats, columns: Floats) -> Floats:
    """Return the intersection over the area of the smaller box; shapes and values are those of `iou_matrix`."""
    smaller = np.minimum(_areas(rows)[:, None], _areas(columns))
    return ratio(_intersections(rows, columns), smaller)


def _intersections(rows: Floats, columns: Floats) -> Floats:
    if rows.shape[1] == 5:
        return rotated.intersections(rows, columns)
    x1, y1, x2, y2 = (rows[:, None, i] for i in range(4))
    u1, v1, u2, v2 = (columns[None, :, i] for i in range(4))
    overlap: Floats = np.maximum(np.minimum(x2, u2) - np.maximum(x1, u1), 0)
    overlap *= np.maximum(np.minimum(y2, v2) - np.maximum(y1, v1), 0)
    return overlap


def _areas(boxes: Floats) -> Floats:
    if boxes.shape[1] == 5:
        return np.asarray(boxes[:, 2].astype(np.float64) * boxes[:, 3])
    sides = np.maximum(boxes[:, 2:] - boxes[:, :2], 0)
    return np.asarray(sides[:, 0] * sides[:, 1])


def ratio(numerators: npt.NDArray[Any], denominators: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Divide, element by element; 0 where the denominator is 0."""
    ratios = np.zeros_like(numerators)
    np.divide(numerators, denominators, out=ratios, where=denominators > 0)
    return ratios


Overlapping = Callable[[Integers, Integers], npt.NDArray[np.bool_]]
"""Tells which boxes overlap too much: two arrays of indices to bool (first, second)."""


def nms(
    boxes: Floats,
    scores: Floats,
    iou_threshold: float,
    class_ids: Integers | None = None,
    limit: int | None = None,
) -> Integers:
    """Select the best of overlapping boxes: greedy non-maximum suppression.

    By descending score, a box is dropped if it overlaps a selected one of its class by more than the threshold;
    exactly the threshold is allowed. Equal scores are taken in the order of their index.

    Args:
        boxes: float (N, 4), xyxy, or (N, 5), xywhr.
        scores: float (N,).
        iou_threshold: 0 to 1.
        class_ids: int64 (N,); None if all boxes are of one class.
        limit: Maximum boxes to select; None for all.

    Returns:
        Indices of the selected boxes, by descending score.

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
    """Select indices by descending score that overlap no selected one; as `nms`, for any measure of overlap.

    Works block by block: overlaps as matrices, the greedy decision on Python integers used as bit sets.
    """

    def remaining(block: Integers, _: Integers, selected: Integers) -> Integers:
        if len(selected):
            block = block[~overlapping(block, selected).any(axis=1)]
        return block[_survivors(overlapping(block, block))]

    return _select_by_blocks(scores, remaining, limit)


def suppress_at_once(
    scores: Floats, overlapping: Overlapping, limit: int | None = None
) -> Integers:
    """Select indices by descending score that overlap no better one, selected or not; as `nms`.

    A dropped box still drops the next one, so that fewer boxes remain than with the greedy rule.

    Source: Bolya et al., "YOLACT: Real-time Instance Segmentation", section 5, Fast NMS.
    """

    def remaining(block: Integers, better: Integers, _: Integers) -> Integers:
        suppressed = np.triu(overlapping(block, block), 1).any(axis=0)
        if len(better):
            suppressed |= overlapping(block, better).any(axis=1)
        return block[~suppressed]

    return _select_by_blocks(scores, remaining, limit)


def _select_by_blocks(
    scores: Floats,
    remaining: Callable[[Integers, Integers, Integers], Integers],
    limit: int | None,
) -> Integers:
    """Select indices by descending score, at most `limit`.

    `remaining` returns what is selected of a block of indices, given all indices before it, and those of them that
    were selected.
    """
    order = np.argsort(-scores, kind="stable")
    limit = len(order) if limit is None else limit
    selected = np.empty(0, np.int64)
    for start in range(0, len(order), _BLOCK):
        if len(selected) >= limit:
            break
        block = remaining(order[start : start + _BLOCK], order[:start], selected)
        selected = np.concatenate([selected, block])
    return selected[:limit]


def _survivors(over: npt.NDArray[np.bool_]) -> list[int]:
    """Return the rows that no earlier surviving row suppresses; `over` is bool (N, N)."""
    packed = np.packbits(over, axis=1, bitorder="little")
    survivors, suppressed = [], 0
    for index, row in enumerate(packed):
        if not suppressed >> index & 1:
            survivors.append(index)
            suppressed |= int.from_bytes(row.tobytes(), "little")
    return survivors

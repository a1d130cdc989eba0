"""Boxes as plain arrays: conversions, clipping, overlap and non-maximum suppression.

Boxes are xyxy unless a name says otherwise: left, top, right, bottom, continuous coordinates, y down.
"""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

_BLOCK = 128
"""Boxes compared at once: their matrix stays in the cache."""


def xywh_to_xyxy(boxes: Floats) -> Floats:
    """Turn centre and size into corners.

    Args:
        boxes: float32 (N, 4), centre x, centre y, width, height.

    Returns:
        float32 (N, 4), xyxy, same unit.
    """
    centre, half = boxes[:, :2], boxes[:, 2:] / 2
    return np.concatenate([centre - half, centre + half], axis=1)


def xyxy_to_xywh(boxes: Floats) -> Floats:
    """Turn corners into centre and size.

    Args:
        boxes: float32 (N, 4), xyxy.

    Returns:
        float32 (N, 4), centre x, centre y, width, height, same unit.
    """
    low, high = boxes[:, :2], boxes[:, 2:]
    return np.concatenate([(low + high) / 2, high - low], axis=1)


def clip_boxes(
    boxes: npt.NDArray[np.floating], width: float, height: float
) -> npt.NDArray[np.floating]:
    """Cut boxes at the edges of an image; a box outside becomes empty.

    Args:
        boxes: float (N, 4), xyxy, pixels of the image.
        width: Right edge, pixels.
        height: Bottom edge, pixels.

    Returns:
        float (N, 4), xyxy, within [0, width] x [0, height].
    """
    edges = np.array([width, height, width, height], boxes.dtype)
    return np.asarray(np.clip(boxes, 0, edges))


def iou_matrix(boxes: Floats, others: Floats) -> Floats:
    """Overlap of each box with each other: intersection over union.

    Args:
        boxes: float32 (N, 4), xyxy.
        others: float32 (M, 4), xyxy.

    Returns:
        float32 (N, M), 0 to 1; 0 where both boxes are empty.
    """
    x1, y1, x2, y2 = (boxes[:, None, i] for i in range(4))
    u1, v1, u2, v2 = (others[None, :, i] for i in range(4))
    overlap: Floats = np.maximum(np.minimum(x2, u2) - np.maximum(x1, u1), 0)
    overlap *= np.maximum(np.minimum(y2, v2) - np.maximum(y1, v1), 0)
    union = np.maximum(x2 - x1, 0) * np.maximum(y2 - y1, 0)
    union = union + np.maximum(u2 - u1, 0) * np.maximum(v2 - v1, 0)
    union -= overlap
    iou = np.zeros_like(overlap)
    np.divide(overlap, union, out=iou, where=union > 0)
    return iou


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
    Works block by block: overlaps as matrices, the greedy part on Python integers used as bit sets.

    Args:
        boxes: float32 (N, 4), xyxy.
        scores: float32 (N,).
        iou_threshold: 0 to 1.
        class_ids: int64 (N,); without them all boxes are of one class.
        limit: Most boxes to keep; without it all.

    Returns:
        int64 (K,), indices of the kept boxes by descending score.

    Source: torchvision `ops.nms` and `ops.batched_nms`; there, classes are kept apart by moving boxes,
    which rounds coordinates, here by comparing the classes.
    """
    order = np.argsort(-scores, kind="stable")
    limit = len(order) if limit is None else limit
    kept = np.empty(0, np.int64)
    for start in range(0, len(order), _BLOCK):
        if len(kept) >= limit:
            break
        block = order[start : start + _BLOCK]
        if len(kept):
            fallen = _overlapping(boxes, class_ids, block, kept, iou_threshold).any(axis=1)
            block = block[~fallen]
        within = _overlapping(boxes, class_ids, block, block, iou_threshold)
        kept = np.concatenate([kept, block[_survivors(within)]])
    return kept[:limit]


def _overlapping(
    boxes: Floats,
    class_ids: Integers | None,
    rows: Integers,
    columns: Integers,
    iou_threshold: float,
) -> npt.NDArray[np.bool_]:
    """Which of `rows` overlaps which of `columns` too much: bool (rows, columns)."""
    over = iou_matrix(boxes[rows], boxes[columns]) > iou_threshold
    if class_ids is not None:
        over &= class_ids[rows][:, None] == class_ids[columns][None, :]
    return over


def _survivors(over: npt.NDArray[np.bool_]) -> list[int]:
    """Rows that no surviving row before them suppresses; `over` is bool (N, N)."""
    packed = np.packbits(over, axis=1, bitorder="little")
    survivors, fallen = [], 0
    for index, row in enumerate(packed):
        if not fallen >> index & 1:
            survivors.append(index)
            fallen |= int.from_bytes(row.tobytes(), "little")
    return survivors

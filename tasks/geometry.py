"""Boxes as plain arrays: conversions, clipping, overlap and non-maximum suppression.

Boxes are xyxy unless a name says otherwise: left, top, right, bottom, continuous coordinates, y down.
They are float32, as networks return them, or float64; results are of the same type.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from quadriga.tasks.predictions import Point
from quadriga.tasks.specification import Angle

Mask = npt.NDArray[np.uint8]
"""uint8 (H, W), zero outside the region."""


Ring = npt.NDArray[np.int32]
"""int32 (N, 2), x and y of pixels; the last point is joined to the first."""


def rings(mask: Mask, left: int = 0, top: int = 0) -> list[Ring]:
    """Trace the edges of a mask: outer rings, then the rings of holes; an empty mask has none.

    Points in the middle of a horizontal, vertical or diagonal run are left out; the area is the same.
    `left` and `top` are the position of the mask, uint8 (H, W), in the image.

    Source: OpenCV 5.0, findContours; Suzuki and Abe, Topological structural analysis, 1985.
    """
    contours, hierarchy = cv2.findContours(
        mask, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE, offset=(left, top)
    )
    if not contours:
        return []
    order = np.argsort(hierarchy[0, :, 3] >= 0, kind="stable")
    return [contours[index].reshape(-1, 2).astype(np.int32, copy=False) for index in order]


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
        return intersections(rows, columns)
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
    scores: Floats, remaining: Callable[[Integers, Integers, Integers], Integers], limit: int | None
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


Doubles = npt.NDArray[np.float64]


def xywhr_to_corners(boxes: npt.NDArray[np.floating]) -> Doubles:
    """Return the corners, float64 (N, 4, 2), clockwise; the left top one of an upright box comes first."""
    x, y, w, h, r = boxes.astype(np.float64).T
    along = np.stack([np.cos(r) * w, np.sin(r) * w], axis=1) / 2
    across = np.stack([-np.sin(r) * h, np.cos(r) * h], axis=1) / 2
    centre = np.stack([x, y], axis=1)
    corners = (-along - across, along - across, along + across, across - along)
    return np.stack([centre + corner for corner in corners], axis=1)


def relative_to_pixels(
    boxes: npt.NDArray[np.floating], sizes_wh: npt.NDArray[np.floating]
) -> Doubles:
    """Turn boxes (N, 5), xywhr, as fractions of images into pixels; `sizes_wh` (N, 2) are those of the images."""
    scales = np.column_stack([sizes_wh, sizes_wh, np.ones(len(sizes_wh))])
    return np.asarray(boxes * scales, np.float64)


def with_angle(boxes: npt.NDArray[np.floating], angle: Angle) -> Doubles:
    """Describe the same rectangles, float (N, 5), xywhr, with angles in another range.

    `raw` are as they are; `le90` from -pi/2, included, to pi/2 along the longer side, which becomes
    the width; `oc` from 0 to pi/2, included, as OpenCV has it since 4.5.1.

    Source: MMRotate, "Introduction of the rotated box", definitions; OpenCV `minAreaRect`.
    """
    x, y, w, h, r = boxes.astype(np.float64).T
    swapped = np.zeros(len(boxes), bool)
    if angle == "le90":
        swapped = w < h
        r = np.mod(r + swapped * (math.pi / 2) + math.pi / 2, math.pi) - math.pi / 2
        r = np.where(r < math.pi / 2, r, r - math.pi)  # the remainder of -1e-17 is pi
    elif angle == "oc":
        quarters = np.ceil(r / (math.pi / 2)) - 1
        remainder = r - quarters * (math.pi / 2)
        is_low = remainder <= 0  # by rounding
        swapped = np.mod(quarters - is_low, 2) == 1
        r = np.minimum(remainder + is_low * (math.pi / 2), math.pi / 2)
    return np.stack([x, y, np.where(swapped, h, w), np.where(swapped, w, h), r], axis=1)


def unscaled(boxes: npt.NDArray[np.floating], sx: float, sy: float) -> Doubles:
    """Undo a scaling of the axes of rotated boxes, float (N, 5), xywhr, by `sx` and `sy`.

    If the two differ a rectangle becomes a parallelogram: the result is the rectangle of its area along its
    longer side. If they are equal the rotation stays as it is.
    """
    x, y, w, h, r = boxes.astype(np.float64).T
    cos, sin = np.cos(r), np.sin(r)
    width, height = w * np.hypot(cos / sx, sin / sy), h * np.hypot(sin / sx, cos / sy)
    area = w * h / (sx * sy)
    wide = width >= height
    # rotation of the longer side: cross and dot product of its old and its new direction
    cross = np.where(wide, cos * sin * (1 / sy - 1 / sx), cos * sin * (1 / sx - 1 / sy))
    dot = np.where(wide, cos**2 / sx + sin**2 / sy, sin**2 / sx + cos**2 / sy)
    leading = np.where(wide, width, height)
    shares = np.divide(area, leading, out=np.zeros_like(area), where=leading > 0)
    sides = np.where(wide, width, shares), np.where(wide, shares, height)
    return np.stack([x / sx, y / sy, *sides, r + np.arctan2(cross, dot)], axis=1)


def probiou_matrix(rows: npt.NDArray[np.floating], columns: npt.NDArray[np.floating]) -> Doubles:
    """Return the similarity of rotated boxes, (N, 5) and (M, 5), as normal distributions: float64 (N, M).

    The similarity is 1 less the Hellinger distance, 0 to 1.

    Source: Llerena et al., "Gaussian Bounding Boxes and Probabilistic Intersection-over-Union";
    the small number as in Ultralytics 8.4, `utils/metrics.py` batch_probiou.
    """
    eps = 1e-7
    x1, y1, a1, b1, c1 = (column[:, None] for column in _distributions(rows))
    x2, y2, a2, b2, c2 = (column[None, :] for column in _distributions(columns))
    a, b, c = a1 + a2, b1 + b2, c1 + c2
    dx, dy = x1 - x2, y1 - y2
    joint = a * b - c**2
    offset_term = (a * dy**2 + b * dx**2 - 2 * c * dx * dy) / (joint + eps) / 4
    separate = np.maximum(a1 * b1 - c1**2, 0) * np.maximum(a2 * b2 - c2**2, 0)
    shape_term = np.log(joint / (4 * np.sqrt(separate) + eps) + eps) / 2
    distance = np.clip(offset_term + shape_term, eps, 100)
    return np.asarray(1 - np.sqrt(1 - np.exp(-distance) + eps))


def _distributions(boxes: npt.NDArray[np.floating]) -> tuple[Doubles, ...]:
    """Return means and covariances of boxes: x, y, variance of x, variance of y, covariance, each (N,)."""
    x, y, w, h, r = boxes.astype(np.float64).T
    cos, sin = np.cos(r), np.sin(r)
    along, across = w**2 / 12, h**2 / 12
    var_x, var_y = along * cos**2 + across * sin**2, along * sin**2 + across * cos**2
    return x, y, var_x, var_y, (along - across) * cos * sin


def intersections(boxes: npt.NDArray[np.floating], clips: npt.NDArray[np.floating]) -> Doubles:
    """Return the exact common area of pairs of rotated boxes, (N, 5) and (M, 5): float64 (N, M)."""
    corners, clip_corners = xywhr_to_corners(boxes), xywhr_to_corners(clips)
    low, high = corners.min(axis=1)[:, None], corners.max(axis=1)[:, None]
    meet = ((low < clip_corners.max(axis=1)) & (clip_corners.min(axis=1) < high)).all(axis=2)
    rows, columns = np.nonzero(meet)
    areas = np.zeros(meet.shape)
    areas[rows, columns] = convex_intersection_areas(corners[rows], clip_corners[columns])
    return areas


def convex_intersection_areas(polygons: Doubles, clips: Doubles) -> Doubles:
    """Return the common area of pairs of convex polygons, in the square of their unit: float64 (P,).

    `polygons` are float64 (P, K, 2), corners in either direction; `clips` float64 (P, L, 2),
    clockwise on the screen; a degenerate polygon has no area.

    Source: Sutherland and Hodgman, "Reentrant Polygon Clipping".
    """
    centre = clips.mean(axis=1, keepdims=True)  # small numbers are rounded less
    polygons, clips = polygons - centre, clips - centre
    for edge in range(clips.shape[1]):
        start, end = clips[:, edge], clips[:, (edge + 1) % clips.shape[1]]
        polygons = _cut(polygons, start, end - start)
    return polygon_areas(polygons)


def polygon_areas(polygons: Doubles) -> Doubles:
    """Return the areas of polygons (P, K, 2), corners in either direction, in the square of their unit: float64 (P,)."""
    following = np.roll(polygons, -1, axis=1)
    cross = polygons[..., 0] * following[..., 1] - polygons[..., 1] * following[..., 0]
    # add corner by corner: the rounding of NumPy's own sum would depend on the largest polygon of the batch
    return np.asarray(np.abs(sum(cross.T)) / 2)


def _cut(polygons: Doubles, start: Doubles, direction: Doubles) -> Doubles:
    """Cut polygons (P, K, 2) at one line each, and keep the right side; shorter polygons repeat a corner."""
    away = polygons - start[:, None]
    side = direction[:, None, 0] * away[..., 1] - direction[:, None, 1] * away[..., 0]
    inside = side >= 0
    following = np.roll(side, -1, axis=1)
    crosses = inside != np.roll(inside, -1, axis=1)
    share = np.divide(side, side - following, out=np.zeros_like(side), where=crosses)[..., None]
    crossing = polygons + share * (np.roll(polygons, -1, axis=1) - polygons)
    count = polygons.shape[1]
    points = np.stack([polygons, crossing], axis=2).reshape(len(polygons), 2 * count, 2)
    stays = np.stack([inside, crosses], axis=2).reshape(len(polygons), 2 * count)
    corner_counts = stays.sum(axis=1, keepdims=True)
    order = np.argsort(~stays, axis=1, kind="stable")
    columns = np.minimum(
        np.arange(max(int(np.max(corner_counts, initial=1)), 1)), np.maximum(corner_counts - 1, 0)
    )
    cut = np.take_along_axis(points, np.take_along_axis(order, columns, axis=1)[..., None], axis=1)
    return np.where(corner_counts[..., None] > 0, cut, 0)


_MIN_CORNERS, _FEW_POINTS = 3, 4


def simplify(ring: Ring, epsilon_px: float) -> Ring:
    """Drop points so that no point of the ring is further than `epsilon_px` from the result.

    At least three points remain, and all of a ring of up to four: if fewer would remain, epsilon is halved.

    Source: OpenCV 5.0, approxPolyDP; Douglas and Peucker, 1973.
    """
    if len(ring) <= _FEW_POINTS:
        return ring
    epsilon = min(epsilon_px, float(np.ptp(ring, axis=0).max()))
    while epsilon > min(epsilon_px, 1.0) / 4:
        fewer = cv2.approxPolyDP(ring.reshape(-1, 1, 2), epsilon, closed=True).reshape(-1, 2)
        if len(fewer) >= _MIN_CORNERS:
            return fewer.astype(np.int32, copy=False)
        epsilon /= 2
    return ring


def to_points(ring: Ring) -> list[Point]:
    """Turn a ring into points."""
    return [Point(x, y) for x, y in ring.astype(np.float64).tolist()]


def to_rings(contour: Sequence[Sequence[Point]]) -> list[Ring]:
    """Turn rings of points into arrays, each point rounded to its pixel; empty rings are left out."""
    return [
        np.rint([(point.x, point.y) for point in ring]).astype(np.int32) for ring in contour if ring
    ]


def fill(outlines: Sequence[Ring], width: int, height: int) -> Mask:
    """Return the mask that a set of rings covers, uint8 (height, width) of 0 and 1; see `paint`."""
    mask = np.zeros((height, width), np.uint8)
    paint(mask, outlines, 1)
    return mask


def paint(canvas: npt.NDArray[np.uint8 | np.int32], outlines: Sequence[Ring], value: int) -> None:
    """Write a value to the pixels that a set of rings covers, in place.

    `canvas` is uint8 or int32 (H, W); rings are cut off at its edges.
    """
    if outlines:
        cv2.fillPoly(canvas, list(outlines), (value,))

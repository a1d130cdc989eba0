"""Rotated boxes as plain arrays: corners, angles, intersections.

Boxes are xywhr: centre x, centre y, width, height, rotation; radians, clockwise on the screen, y
down. A box of rotation 0 has its width along x.
"""

import math

import numpy as np
import numpy.typing as npt

from quadriga.tasks.specification import Angle

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

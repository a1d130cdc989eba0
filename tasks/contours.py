"""Masks to rings of points and back: OpenCV's contours, and the rule of the pixels that they cover.

The points of a ring are centres of pixels: (x, y) is the pixel in column x and row y. A set of rings
covers the pixels that lie on a ring or inside an odd number of rings; an outer ring runs through the
outermost pixels of a region, the ring of a hole through the pixels of the region around the hole.
So `fill(rings(mask))` is the mask again, every pixel of it. A ring around a single pixel, or a line of
pixels, has one or two points. Pixels that touch at a corner belong together.

In the continuous coordinates of boxes, the centre of the pixel (x, y) is (x + 0.5, y + 0.5).
"""

from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

from quadriga.tasks.predictions import Point

Mask = npt.NDArray[np.uint8]
"""uint8 (H, W), zero outside the region."""
Ring = npt.NDArray[np.int32]
"""int32 (N, 2), x and y of pixels; the last point is joined to the first."""

_MIN_CORNERS, _FEW_POINTS = 3, 4


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

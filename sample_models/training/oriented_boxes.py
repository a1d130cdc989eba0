"""Oriented boxes: corners, overlap as polygons, and the way back to the image.

A box is cx, cy, w, h and an angle in radians, y down, clockwise positive as seen; w is the side
along the angle.
"""

import cv2
import numpy as np
import numpy.typing as npt

from sample_models.training.boxes import Boxes
from sample_models.training.preprocessing import Letterbox


def oriented_to_corners(boxes: Boxes) -> npt.NDArray[np.float64]:
    """Turn float64 (N, 5) into the four corners, clockwise as seen: float64 (N, 4, 2), x and y."""
    cos, sin = np.cos(boxes[:, 4]), np.sin(boxes[:, 4])
    along = np.stack([cos, sin], axis=1) * boxes[:, 2:3] / 2
    across = np.stack([-sin, cos], axis=1) * boxes[:, 3:4] / 2
    signs = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)])[None, :, :, None]
    corners: npt.NDArray[np.float64] = (
        boxes[:, None, :2] + signs[:, :, 0] * along[:, None] + signs[:, :, 1] * across[:, None]
    )
    return corners


def polygon_iou(left: Boxes, right: Boxes) -> npt.NDArray[np.float64]:
    """Return intersection over union of float64 (N, 5) with (M, 5) as polygons: float64 (N, M)."""
    iou = np.zeros((len(left), len(right)))
    left_corners = oriented_to_corners(left).astype(np.float32)
    right_corners = oriented_to_corners(right).astype(np.float32)
    away = np.linalg.norm(left[:, None, :2] - right[None, :, :2], axis=2)
    reach = np.hypot(left[:, 2], left[:, 3])[:, None] + np.hypot(right[:, 2], right[:, 3])[None]
    for i, j in np.argwhere(away < reach / 2):
        shared, _ = cv2.intersectConvexConvex(left_corners[i], right_corners[j])
        union = np.prod(left[i, 2:4]) + np.prod(right[j, 2:4]) - shared
        iou[i, j] = shared / union if union > 0 else 0
    return iou


def axis_difference(
    left: npt.NDArray[np.float64], right: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return the angle between two axes, 0..pi/2; half a turn makes no difference."""
    difference: npt.NDArray[np.float64] = np.abs((left - right + np.pi / 2) % np.pi - np.pi / 2)
    return difference


def oriented_to_network(boxes: Boxes, frame: Letterbox) -> Boxes:
    """Map boxes from pixels of the image to pixels of the network; the angle stays."""
    scale = np.array([*frame.gain_xy, *frame.gain_xy, 1.0])
    mapped: Boxes = boxes * scale + np.array([*frame.offset_xy, 0, 0, 0])
    return mapped


def oriented_to_image(boxes: Boxes, frame: Letterbox) -> Boxes:
    """Map boxes from pixels of the network to the image, unclipped; the angle stays."""
    scale = np.array([*frame.gain_xy, *frame.gain_xy, 1.0])
    mapped: Boxes = (boxes - np.array([*frame.offset_xy, 0, 0, 0])) / scale
    return mapped

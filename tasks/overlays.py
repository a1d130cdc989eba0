"""Segments laid over an image: a translucent fill, with open holes, and an outline along every ring."""

import cv2
import msgspec
import numpy as np

from quadriga.tasks.contours import Mask, fill, rings, to_rings
from quadriga.tasks.image import Pixels
from quadriga.tasks.predictions import Segment

Color = tuple[int, int, int]
Box = tuple[int, int, int, int]
"""Left, top, right, bottom, whole pixels of the canvas, all included."""

_FILL = 0.38
"""Share of the colour in the fill; the image below stays visible."""


class Overlay(msgspec.Struct, frozen=True, eq=False):
    """A segment at the scale of the canvas."""

    mask: Mask
    """uint8 (H, W), the size of the box."""
    box: Box


def overlay_of(segment: Segment, image_wh: tuple[int, int], scale: float) -> Overlay | None:
    """Prepare a segment for a canvas, enlarged by `scale`; None if the segment lies outside of the image."""
    outlines = to_rings(segment.contour)
    if not outlines:
        return None
    points = np.concatenate(outlines)
    low = np.maximum(points.min(axis=0), 0)
    high = np.minimum(points.max(axis=0) + 1, image_wh)
    if (low >= high).any():
        return None
    width, height = (high - low).tolist()
    mask = fill([ring - low.astype(np.int32) for ring in outlines], width, height)
    left, top, right, bottom = (round(edge * scale) for edge in [*low.tolist(), *high.tolist()])
    if scale != 1:
        # nearest: enlarged pixels stay squares
        size_wh = right - left, bottom - top
        mask = cv2.resize(mask, size_wh, interpolation=cv2.INTER_NEAREST).astype(np.uint8)
    return Overlay(mask, (left, top, right - 1, bottom - 1))


def tint(canvas: Pixels, overlay: Overlay, color: Color) -> None:
    """Mix a colour into the pixels of the segment, in place."""
    left, top, right, bottom = overlay.box
    crop = canvas[top : bottom + 1, left : right + 1]
    inside = overlay.mask > 0
    below = crop[inside].astype(np.float32)
    crop[inside] = np.rint(below * (1 - _FILL) + np.multiply(color, _FILL)).astype(np.uint8)


def outline(canvas: Pixels, overlay: Overlay, color: Color, line_px: int) -> None:
    """Draw along the edges, in place, over a dark rim that shows on a background of the same colour."""
    lines = rings(overlay.mask, *overlay.box[:2])
    for ink, thickness in (((0, 0, 0), line_px + 2), (color, line_px)):
        cv2.polylines(
            canvas, lines, isClosed=True, color=ink, thickness=thickness, lineType=cv2.LINE_AA
        )

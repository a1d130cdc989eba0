"""Geometry of datasets: contours as one closed line, oriented boxes from corners, what lies in the image."""

import math
from collections.abc import Sequence

from quadriga.tasks.predictions import ORIENTED_BOX_KEYS, XY

_EXACT_DIGITS = 9  # of a pixel; what fractions and percents of an image lose is below
_RECTANGLE_PX = 1e-6


def bridged(rings: Sequence[Sequence[XY]]) -> list[XY]:
    """Return one closed line that goes along each ring and back to the first: filled by even-odd, it is the same.

    A line of a single ring is the ring.
    """
    opened = [_without_repeated_end(ring) for ring in rings if ring]
    if len(opened) < 2:
        return opened[0] if opened else []
    start = opened[0][0]
    return [point for ring in opened for point in (*ring, ring[0], start)]


def unbridged(line: Sequence[XY]) -> list[list[XY]]:
    """Return the rings of a line as `bridged` makes it; of any other line, the line itself as one ring."""
    rings: list[list[XY]] = []
    position = 0
    closings = {index for index in range(len(line) - 1) if line[index + 1] == line[0]}
    ends_of: dict[XY, list[int]] = {}
    for index in sorted(closings, reverse=True):
        ends_of.setdefault(line[index], []).append(index)
    while position < len(line):
        ends = ends_of.get(line[position], [])
        while ends and ends[-1] <= position:
            ends.pop()
        if not ends:
            return [list(line)]
        rings.append(list(line[position : ends[-1]]))
        position = ends[-1] + 2
    return rings


def _without_repeated_end(ring: Sequence[XY]) -> list[XY]:
    points = list(ring)
    while len(points) > 1 and points[-1] == points[0]:
        points.pop()
    return points


def oriented_box(corners: Sequence[XY], width: int, height: int) -> dict[str, float]:
    """Return the oriented box of four corners in turn: of a rectangle itself, else the smallest one around.

    Args:
        corners: Four corners, pixels.
        width: Width of the image, pixels.
        height: Height of the image, pixels.
    """
    if _is_rectangle(corners):
        (x0, y0), (x1, y1), (x2, y2), _ = corners
        w, h = math.hypot(x1 - x0, y1 - y0), math.hypot(x2 - x1, y2 - y1)
        centre = (x0 + x2) / 2, (y0 + y2) / 2
        angle = math.atan2(y1 - y0, x1 - x0) if w else math.atan2(x1 - x2, y2 - y1)
    else:
        centre, w, h, angle = _smallest_rectangle(corners)
    return xywhr_json(centre[0] / width, centre[1] / height, w / width, h / height, angle)


def xywhr_json(*values: float) -> dict[str, float]:
    """Return an oriented box in the form of the wire: centre and sides as fractions of the image, rotation in radians."""
    return dict(zip(ORIENTED_BOX_KEYS, (round(value, 12) for value in values), strict=True))


def _is_rectangle(corners: Sequence[XY]) -> bool:
    """Check whether corners, clockwise on the screen, have a common centre and equal diagonals."""
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = corners
    size = max(1.0, *(abs(value) for corner in corners for value in corner))
    tolerance = _RECTANGLE_PX * size / 1000 + _RECTANGLE_PX
    is_parallelogram = abs(x0 + x2 - x1 - x3) <= tolerance and abs(y0 + y2 - y1 - y3) <= tolerance
    diagonals = math.hypot(x2 - x0, y2 - y0) - math.hypot(x3 - x1, y3 - y1)
    turn = (x1 - x0) * (y2 - y1) - (y1 - y0) * (x2 - x1)
    return is_parallelogram and abs(diagonals) <= tolerance and turn >= 0


def _smallest_rectangle(corners: Sequence[XY]) -> tuple[XY, float, float, float]:
    """Return the centre, the sides and the rotation of the smallest rectangle around points.

    One of its sides lies along an edge between two of them.
    """
    best = ((0.0, 0.0), math.inf, math.inf, 0.0)
    pairs = [(a, b) for a in corners for b in corners if a != b] or [((0.0, 0.0), (1.0, 0.0))]
    for (x0, y0), (x1, y1) in pairs:
        angle = math.atan2(y1 - y0, x1 - x0)
        if not -math.pi / 4 <= angle < math.pi / 4:
            continue  # the same rectangle with the other side along
        cosine, sine = math.cos(angle), math.sin(angle)
        along = [x * cosine + y * sine for x, y in corners]
        across = [y * cosine - x * sine for x, y in corners]
        w, h = max(along) - min(along), max(across) - min(across)
        if w * h < best[1] * best[2]:
            u, v = (max(along) + min(along)) / 2, (max(across) + min(across)) / 2
            best = ((u * cosine - v * sine, u * sine + v * cosine), w, h, angle)
    return best if math.isfinite(best[1]) else _upright_rectangle(corners)


def _upright_rectangle(corners: Sequence[XY]) -> tuple[XY, float, float, float]:
    xs, ys = zip(*corners, strict=True)
    w, h = max(xs) - min(xs), max(ys) - min(ys)
    return (min(xs) + w / 2, min(ys) + h / 2), w, h, 0.0


def clamped(value: float, limit: float) -> float:
    """Return a coordinate, or the nearest one from 0 to a limit."""
    return min(max(value, 0.0), limit)


def pixels(fraction: float, size: int) -> float:
    """Return a coordinate in pixels from a fraction of the image, rounded to a thousand-millionth of a pixel."""
    value = round(fraction * size, _EXACT_DIGITS)
    return int(value) if value.is_integer() else value

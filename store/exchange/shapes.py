"""Predictions and annotations as other formats have them: boxes, corners, polygons, Chariot's annotations.

They come from models and from clients, so a field may be missing or of another type: what has no shape
then gives None.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

Box = tuple[float, float, float, float]
"""xmin, ymin, xmax, ymax; pixels of the image as a person sees it."""

EDGES = ("xmin", "ymin", "xmax", "ymax")
ORIENTED = ("cx", "cy", "w", "h", "r")
_NUMBERS = (float, int)
_OBJECTS = msgspec.json.Decoder(list[dict[str, Any]])


def objects(text: Any) -> list[dict[str, Any]]:
    """Return predictions or annotations; none where they are no list of objects, as tensors."""
    try:
        return [] if text is None else _OBJECTS.decode(text)
    except msgspec.ValidationError:
        return []


def label(one: Mapping[str, Any]) -> str | None:
    """Return the label, if there is one."""
    name = one.get("label")
    return name if isinstance(name, str) else None


def score(one: Mapping[str, Any]) -> float | None:
    """Return the score, if there is one."""
    value: Any = one.get("score")
    return float(value) if type(value) in _NUMBERS else None


def box(one: Mapping[str, Any], width: int | None, height: int | None) -> Box | None:
    """Return the box, or the one around a contour or an oriented box, which needs the size."""
    edges = _numbers(one, EDGES)
    if edges is not None:
        return edges[0], edges[1], edges[2], edges[3]
    points = corners(one, width, height) or [point for ring in rings(one) for point in ring]
    if not points:
        return None
    across, down = zip(*points, strict=True)
    return min(across), min(down), max(across), max(down)


def corners(
    one: Mapping[str, Any], width: int | None, height: int | None
) -> list[tuple[float, float]] | None:
    """Return the four corners of an oriented box, in pixels, clockwise on the screen."""
    oriented = _numbers(one, ORIENTED)
    if oriented is None or width is None or height is None:
        return None
    cx, cy, w, h, r = oriented
    x, y, half_w, half_h = cx * width, cy * height, w * width / 2, h * height / 2
    cosine, sine = math.cos(r), math.sin(r)
    return [
        (x + dx * cosine - dy * sine, y + dx * sine + dy * cosine)
        for dx, dy in (
            (-half_w, -half_h), (half_w, -half_h), (half_w, half_h), (-half_w, half_h),
        )
    ]  # fmt: skip


def rings(one: Mapping[str, Any]) -> list[list[tuple[float, float]]]:
    """Return the rings of a contour, in pixels; those that are none are left out."""
    contour = one.get("contour")
    found = []
    for ring in contour if isinstance(contour, list) else []:
        points = [_numbers(point, ("x", "y")) for point in ring if isinstance(point, dict)]
        whole = [(point[0], point[1]) for point in points if point is not None]
        if whole:
            found.append(whole)
    return found


def polygons(contour: Sequence[Sequence[tuple[float, float]]]) -> list[list[float]]:
    """Return rings as COCO's polygons, x and y in turn.

    COCO fills the union of its polygons, a contour what lies inside an odd number of rings. Where a ring
    lies in another, all become one polygon that goes along each and back: that fills the same.
    """
    if not any(
        _is_inside(one[0], other) for one in contour for other in contour if one is not other
    ):
        return [[value for point in ring for value in point] for ring in contour]
    start = contour[0][0]
    bridged = [point for ring in contour for point in (*ring, ring[0], start)]
    return [[value for point in bridged for value in point]]


def chariot_annotation(one: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a prediction or an annotation as a line of Chariot's `annotations.jsonl` has it.

    A score goes into `attributes`.
    """
    name = label(one)
    if name is None:
        answer = one.get("answer")
        if not isinstance(answer, str):
            return None
        return {"context": str(one.get("prompt") or ""), "generated_text": answer}
    annotation: dict[str, Any] = {"class_label": name}
    if (edges := _numbers(one, EDGES)) is not None:
        annotation["bbox"] = dict(zip(EDGES, edges, strict=True))
    elif (oriented := _numbers(one, ORIENTED)) is not None:
        annotation["oriented_bbox"] = dict(zip(ORIENTED, oriented, strict=True))
    elif contour := rings(one):
        annotation["contour"] = [[{"x": x, "y": y} for x, y in ring] for ring in contour]
    if (found := score(one)) is not None:
        annotation["attributes"] = {"score": found}
    return annotation


def _numbers(one: Mapping[str, Any], names: Sequence[str]) -> list[float] | None:
    values = []
    for name in names:
        value: Any = one.get(name)
        if type(value) not in _NUMBERS:  # a boolean is none
            return None
        values.append(value)
    return values


def _is_inside(point: tuple[float, float], ring: Sequence[tuple[float, float]]) -> bool:
    x, y = point
    inside = False
    for (x0, y0), (x1, y1) in zip(ring, (*ring[1:], ring[0]), strict=True):
        if (y0 > y) != (y1 > y) and x < x0 + (y - y0) * (x1 - x0) / (y1 - y0):
            inside = not inside
    return inside


def area(contour: Sequence[Sequence[tuple[float, float]]]) -> float:
    """Return the area of rings; those inside another count against it."""
    total = 0.0
    for ring in contour:
        pairs = zip(ring, (*ring[1:], ring[0]), strict=True)
        inside = sum(_is_inside(ring[0], other) for other in contour if other is not ring)
        total += (-1) ** inside * abs(sum(x0 * y1 - x1 * y0 for (x0, y0), (x1, y1) in pairs)) / 2
    return total

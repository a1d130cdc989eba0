"""Places in shapes as SQL: ranges of cells that hold them, and the exact test on latitude and longitude.

The earth is a sphere. 180 degrees west and east are one meridian, and a pole is one point.
"""

import math
from collections.abc import Iterator
from itertools import pairwise

from store.query import geo
from store.query.catalog import Catalog
from store.query.sql import FALSE, Scan, Sql, Test
from store.query.syntax import Box, Near, Place, Polygon
from store.query.words import Words
from store.schema import KeyType

EARTH_RADIUS_M = 6_371_008.8
MAX_RANGES = 12
_MARGIN = 1e-9
"""Degrees; a hand's width is 1e-6."""

_Edge = tuple[float, float, float, float]


def compile_place(leaf: Place, catalog: Catalog, words: Words) -> Test:
    """Translate that a place lies in a shape."""
    key = catalog.keys.get(("", KeyType.CELL))
    if key is None:
        return FALSE  # nothing has a place
    if isinstance(leaf.shape, Near):
        box, test = _around(leaf.shape), _near(leaf.shape)
    elif isinstance(leaf.shape, Box):
        box, test = leaf.shape, _in_box(leaf.shape)
    else:
        ring = _ring(leaf.shape)
        box, test = _bounds(ring), _in_ring(ring)
    scans = tuple(
        Scan("meta_num AS d", Sql("d.key = ? AND d.val BETWEEN ? AND ?",
                                  (key, float(low), float(high))), ordered=False)
        for low, high in cells(box)
    )  # fmt: skip
    text = f"EXISTS (SELECT 1 FROM {words.place} WHERE {test.text})"
    return Test(Sql(text, test.values), scans)


def cells(box: Box) -> list[tuple[int, int]]:
    """Return ranges of cells that together hold every place in a box."""
    found: list[tuple[int, int]] = []
    for part in _spans(box):
        rows = geo.row(max(part.south - _MARGIN, -90)), geo.row(min(part.north + _MARGIN, 90))
        columns = (
            geo.column(max(part.west - _MARGIN, -180)),
            geo.column(min(part.east + _MARGIN, 180)),
        )
        found += _quads(rows, columns)
    return found


def _quads(rows: tuple[int, int], columns: tuple[int, int]) -> list[tuple[int, int]]:
    """Cover a rectangle of cells with few ranges, by quartering squares that are partly inside."""
    whole: list[tuple[int, int]] = []
    partly = [(0, 0, geo.BITS)]  # row and column of the first cell, and the bits of the side
    while partly and len(whole) + len(partly) <= MAX_RANGES:
        quartered: list[tuple[int, int, int]] = []
        for y, x, bits in partly:
            half = 1 << (bits - 1) if bits else 0
            for quarter in ((y, x), (y, x + half), (y + half, x), (y + half, x + half)):
                how = _overlap(quarter, half or 1, rows, columns)
                if how == "whole" or (how and bits <= 1):
                    whole.append(_range_of(*quarter, bits - 1))
                elif how:
                    quartered.append((*quarter, bits - 1))
        if len(whole) + len(quartered) > 2 * MAX_RANGES:
            break
        partly = quartered
    return _merged([*whole, *(_range_of(*quad) for quad in partly)])


def _overlap(
    corner: tuple[int, int], side: int, rows: tuple[int, int], columns: tuple[int, int]
) -> str:
    spans = [(at, at + side - 1, *ends) for at, ends in zip(corner, (rows, columns), strict=True)]
    if any(last < low or first > high for first, last, low, high in spans):
        return ""
    is_whole = all(low <= first and last <= high for first, last, low, high in spans)
    return "whole" if is_whole else "partly"


def _range_of(y: int, x: int, bits: int) -> tuple[int, int]:
    first = geo.morton(y, x)
    return first, first + (1 << 2 * bits) - 1


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    result: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if result and low <= result[-1][1] + 1:
            result[-1] = result[-1][0], max(high, result[-1][1])
        else:
            result.append((low, high))
    return result


def _spans(box: Box) -> Iterator[Box]:
    """Give the boxes that do not cross 180 degrees, with what is the same place by another number."""
    south, west, north, east = box.south, box.west, box.north, box.east
    if west <= east:
        yield box
    else:
        yield Box(south, west, north, 180.0)
        yield Box(south, -180.0, north, east)
    if -180 < west <= east == 180:
        yield Box(south, -180.0, north, -180.0)
    if -180 == west <= east < 180:
        yield Box(south, 180.0, north, 180.0)
    for pole in (-90.0, 90.0):
        if pole in (south, north):
            yield Box(pole, -180.0, pole, 180.0)


def _in_box(box: Box) -> Sql:
    parts = list(_spans(box))
    test = "p.latitude BETWEEN ? AND ? AND p.longitude BETWEEN ? AND ?"
    values = [v for part in parts for v in (part.south, part.north, part.west, part.east)]
    return Sql(f"({' OR '.join([test] * len(parts))})", tuple(values))


def _near(near: Near) -> Sql:
    """Compare the haversine of the angle between two places with that of the distance."""
    angle = min(near.metres / EARTH_RADIUS_M, math.pi)
    latitude, longitude = "sin(radians(p.latitude - ?) / 2)", "sin(radians(p.longitude - ?) / 2)"
    text = (
        f"{latitude} * {latitude} + ? * cos(radians(p.latitude)) * {longitude} * {longitude} <= ?"
    )
    north, east = near.latitude, near.longitude
    cosine = math.cos(math.radians(north))
    return Sql(text, (north, north, cosine, east, east, math.sin(angle / 2) ** 2 + 1e-18))


def _around(near: Near) -> Box:
    """Return a box that holds a circle."""
    angle = near.metres / EARTH_RADIUS_M
    reach = math.degrees(angle)
    south, north = max(near.latitude - reach, -90.0), min(near.latitude + reach, 90.0)
    if south <= -90 or north >= 90:
        return Box(south, -180.0, north, 180.0)
    sine = math.sin(angle) / math.cos(math.radians(near.latitude))
    width = math.degrees(math.asin(min(sine, 1.0))) + _MARGIN
    west, east = near.longitude - width, near.longitude + width
    return Box(
        south, west + 360 if west < -180 else west, north, east - 360 if east > 180 else east
    )


def _ring(polygon: Polygon) -> list[_Edge]:
    """Return edges as (latitude, longitude, latitude, longitude), longitudes running on past 180."""
    points = [polygon.points[0]]
    for latitude, longitude in (*polygon.points[1:], polygon.points[0]):
        turn = (longitude - points[-1][1] + 180) % 360 - 180
        points.append((latitude, points[-1][1] + turn))
    around = points[-1][1] - points[0][1]
    if abs(around) > 180:  # it goes around a pole: the nearer one is inside
        pole = math.copysign(90.0, sum(latitude for latitude, _ in points))
        points += [(pole, points[-1][1]), (pole, points[0][1]), points[0]]
    shift = 360 * math.floor((min(longitude for _, longitude in points) + 180) / 360)
    moved = [(latitude, longitude - shift) for latitude, longitude in points]
    return [(*a, *b) for a, b in pairwise(moved)]


def _bounds(ring: list[_Edge]) -> Box:
    latitudes = [edge[0] for edge in ring]
    longitudes = [edge[1] for edge in ring]
    west, east = min(longitudes), max(longitudes)
    if east - west >= 360:
        return Box(min(latitudes), -180.0, max(latitudes), 180.0)
    return Box(min(latitudes), west, max(latitudes), east - 360 if east > 180 else east)


def _in_ring(ring: list[_Edge]) -> Sql:
    """Count the edges east of a place: an odd number is inside."""
    west = min(edge[1] for edge in ring)
    rows = [(a, c, b, (d - b) / (c - a)) for a, b, c, d in ring if a != c]
    if not rows:
        return Sql("1 = 0")
    text = (
        f"(SELECT count(*) & 1 FROM (VALUES {', '.join(['(?, ?, ?, ?)'] * len(rows))}) AS e"
        " WHERE (e.column1 > p.latitude) <> (e.column2 > p.latitude)"
        " AND CASE WHEN p.longitude < ? THEN p.longitude + 360 ELSE p.longitude END"
        " < e.column3 + (p.latitude - e.column1) * e.column4) = 1"
    )
    return Sql(text, (*(value for row in rows for value in row), west))

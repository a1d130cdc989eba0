"""Places in shapes as SQL: ranges of cells that hold them, and the exact test on latitude and longitude.

The earth is a sphere. 180 degrees west and east are one meridian, and a pole is one point.
"""

import math
from collections.abc import Iterator
from itertools import accumulate, pairwise

from quadriga.store.query import geo
from quadriga.store.query.catalog import Catalog
from quadriga.store.query.dialects import SqlDialect
from quadriga.store.query.sql import EMPTY_RANGE, FALSE, Predicate, Scan, Sql
from quadriga.store.query.syntax import GeoBox, GeoCircle, GeoPolygon, PlaceCondition
from quadriga.store.schema import KeyType

EARTH_RADIUS_M = 6_371_008.8
MAX_COVER_CELLS = 100
"""That cover a box."""

_AT_ONCE = 4
"""Ranges are a multiple of so many, so that a database sees few statements."""

_MARGIN = 1e-9
"""Degrees; a hand's width is 1e-6."""

_Edge = tuple[float, float, float, float]


def compile_place(leaf: PlaceCondition, catalog: Catalog, words: SqlDialect) -> Predicate:
    """Translate that a place lies in a shape."""
    key = catalog.key("", KeyType.CELL)
    if key is None:
        return FALSE  # nothing has a place
    if isinstance(leaf.shape, GeoCircle):
        box, test = _around(leaf.shape), _near(leaf.shape)
    elif isinstance(leaf.shape, GeoBox):
        box, test = leaf.shape, _in_box(leaf.shape)
    else:
        edges = _edges(leaf.shape)
        box, test = _bounds(edges), _in_ring(edges)
    ranges = covering_ranges(box, leaf.shape if isinstance(leaf.shape, GeoCircle) else None)
    ranges += [EMPTY_RANGE] * (-len(ranges) % _AT_ONCE)
    bounds = tuple(bound for low, high in ranges for bound in (key, float(low), float(high)))
    scan = Scan(
        f"(VALUES {', '.join(['(?, ?, ?)'] * len(ranges))}) AS r CROSS JOIN meta_num AS d",
        Sql("d.key = r.column1 AND d.val BETWEEN r.column2 AND r.column3", bounds),
        ordered=False,
    )
    text = f"EXISTS (SELECT 1 FROM {words.place} AND {test.text})"
    return Predicate(Sql(text, test.values), (scan,))


def covering_ranges(box: GeoBox, near: GeoCircle | None = None) -> list[tuple[int, int]]:
    """Return ranges of cells, apart from each other, that together hold every place in a box.

    Where the box is that of a circle, and crosses neither a pole nor 180 degrees, its corners are left out.
    """
    bits, parts = 0, [_cells_of(part) for part in _spans(box)]
    while sum(len(rows) * len(columns) for rows, columns in parts) > MAX_COVER_CELLS:
        bits += 1  # of the side of a square
        parts = [(_halved(rows), _halved(columns)) for rows, columns in parts]
    squares: set[int] = set()
    for rows, columns in parts:
        of_columns = [geo.morton(0, column) for column in columns]
        for row in rows:
            of_row, some = geo.morton(row, 0), of_columns
            if near and len(parts) == 1:
                west, east = _reach(near, row << bits, (row + 1) << bits)
                start = max((west >> bits) - columns.start, 0)
                some = of_columns[start : (east >> bits) + 1 - columns.start]
            squares.update([of_row | of_column for of_column in some])
    first, *others = sorted(squares)
    after = first + 1
    ranges = []
    for square in others:
        if square > after:
            ranges.append((first << 2 * bits, (after << 2 * bits) - 1))
            first = square
        after = square + 1
    return [*ranges, (first << 2 * bits, (after << 2 * bits) - 1)]


def _reach(near: GeoCircle, south: int, north: int) -> tuple[int, int]:
    """Return the first and the last column that a circle may reach between two edges of rows."""
    low, high = geo.row_latitude(south), geo.row_latitude(north)
    away = math.radians(max(low - near.latitude, near.latitude - high, 0.0))
    left = math.sin(near.metres / EARTH_RADIUS_M / 2) ** 2 - math.sin(away / 2) ** 2
    narrow = min(math.cos(math.radians(low)), math.cos(math.radians(high)))
    sine = max(left, 0.0) / (narrow * math.cos(math.radians(near.latitude)) + 1e-12)
    width = math.degrees(2 * math.asin(math.sqrt(min(sine, 1.0)))) + 1e-6
    return (
        geo.grid_column(max(near.longitude - width, -180.0)),
        geo.grid_column(min(near.longitude + width, 180.0)),
    )


def _cells_of(box: GeoBox) -> tuple[range, range]:
    """Return the rows and columns of a box that does not cross 180 degrees."""
    south, north = max(box.south - _MARGIN, -90), min(box.north + _MARGIN, 90)
    west, east = max(box.west - _MARGIN, -180), min(box.east + _MARGIN, 180)
    return (
        range(geo.grid_row(south), geo.grid_row(north) + 1),
        range(geo.grid_column(west), geo.grid_column(east) + 1),
    )


def _halved(cells: range) -> range:
    return range(cells.start >> 1, (cells.stop + 1) >> 1)


def _spans(box: GeoBox) -> Iterator[GeoBox]:
    """Give the boxes that do not cross 180 degrees, with what is the same place by another number."""
    south, west, north, east = box.south, box.west, box.north, box.east
    if west <= east:
        yield box
    else:
        yield GeoBox(south, west, north, 180.0)
        yield GeoBox(south, -180.0, north, east)
    if -180 < west <= east == 180:
        yield GeoBox(south, -180.0, north, -180.0)
    if -180 == west <= east < 180:
        yield GeoBox(south, 180.0, north, 180.0)
    for pole in (-90.0, 90.0):
        if pole in (south, north):
            yield GeoBox(pole, -180.0, pole, 180.0)


def _in_box(box: GeoBox) -> Sql:
    test = "p.latitude BETWEEN ? AND ? AND p.longitude BETWEEN ? AND ?"
    spans = [Sql(test, (one.south, one.north, one.west, one.east)) for one in _spans(box)]
    return Sql.join(" OR ", spans).wrap("({})")


def _near(near: GeoCircle) -> Sql:
    """Compare the haversine of the angle between two places with that of the distance."""
    angle = min(near.metres / EARTH_RADIUS_M, math.pi)
    latitude, longitude = "sin(radians(p.latitude - ?) / 2)", "sin(radians(p.longitude - ?) / 2)"
    text = (
        f"{latitude} * {latitude} + ? * cos(radians(p.latitude)) * {longitude} * {longitude} <= ?"
    )
    north, east = near.latitude, near.longitude
    cosine = math.cos(math.radians(north))
    return Sql(text, (north, north, cosine, east, east, math.sin(angle / 2) ** 2 + 1e-18))


def _around(near: GeoCircle) -> GeoBox:
    """Return a box that holds a circle."""
    angle = near.metres / EARTH_RADIUS_M
    reach = math.degrees(angle)
    south, north = max(near.latitude - reach, -90.0), min(near.latitude + reach, 90.0)
    if south <= -90 or north >= 90:
        return GeoBox(south, -180.0, north, 180.0)
    sine = math.sin(angle) / math.cos(math.radians(near.latitude))
    width = math.degrees(math.asin(min(sine, 1.0))) + _MARGIN
    west, east = near.longitude - width, near.longitude + width
    return GeoBox(
        south, west + 360 if west < -180 else west, north, east - 360 if east > 180 else east
    )


def _edges(polygon: GeoPolygon) -> list[_Edge]:
    """Return latitude, longitude, degrees to go east, and latitude then, of each edge."""
    points = polygon.points
    return [
        (south, west, (east - west + 180) % 360 - 180, north)
        for (south, west), (north, east) in pairwise((*points, points[0]))
    ]


def _pole(edges: list[_Edge]) -> float | None:
    """Return the latitude of the pole inside: of the nearer one, where the edges go around the earth."""
    if round(sum(turn for _, _, turn, _ in edges) / 360) % 2 == 0:
        return None
    return 90.0 if sum(latitude for latitude, *_ in edges) >= 0 else -90.0


def _bounds(edges: list[_Edge]) -> GeoBox:
    latitudes = [edge[0] for edge in edges]
    longitudes = list(accumulate((turn for _, _, turn, _ in edges), initial=edges[0][1]))
    pole = _pole(edges)
    west, east = min(longitudes), max(longitudes)
    if pole is not None or east - west >= 360:
        ends = latitudes if pole is None else [*latitudes, pole]
        return GeoBox(min(ends), -180.0, max(ends), 180.0)
    west = (west + 180) % 360 - 180
    east = (east + 180) % 360 - 180
    return GeoBox(min(latitudes), west, max(latitudes), east)


def _in_ring(edges: list[_Edge]) -> Sql:
    """Count the edges north of a place: an odd number is inside, unless the north pole is."""
    rows = [
        (west, math.copysign(1.0, turn), abs(turn), south, (north - south) / abs(turn))
        for south, west, turn, north in edges
        if turn
    ]
    if not rows:
        return Sql("1 = 0")
    along = "CASE WHEN f.r < 0 THEN f.r + 360 WHEN f.r >= 360 THEN f.r - 360 ELSE f.r END"
    text = (
        "(SELECT count(*) & 1 FROM (SELECT (p.longitude - e.column1) * e.column2 AS r,"
        " e.column3 AS span, e.column4 AS south, e.column5 AS slope"
        f" FROM (VALUES {', '.join(['(?, ?, ?, ?, ?)'] * len(rows))}) AS e) AS f"
        f" WHERE {along} < f.span AND f.south + f.slope * {along} > p.latitude) = ?"
    )
    return Sql(text, (*(value for row in rows for value in row), int(_pole(edges) != 90.0)))

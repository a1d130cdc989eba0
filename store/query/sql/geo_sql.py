"""SQL of places in shapes: ranges of grid cells that cover a shape, and the exact test on coordinates.

The earth is a sphere. 180 degrees west and east are one meridian, and a pole is one point.
"""

import math
from collections.abc import Iterator
from itertools import accumulate, pairwise

from quadriga.store.database.schema import KeyType
from quadriga.store.query.filters.syntax import GeoBox, GeoCircle, GeoPolygon, PlaceCondition
from quadriga.store.query.names import Catalog
from quadriga.store.query.sql.dialects import SqlDialect
from quadriga.store.query.sql.predicates import EMPTY_RANGE, FALSE, Predicate, Scan, Sql
from quadriga.store.records import geo

EARTH_RADIUS_M = 6_371_008.8
MAX_COVER_CELLS = 100
"""Maximum number of grid cells that cover a box."""

_AT_ONCE = 4
"""Number of ranges is a multiple of this, so that a database sees few different statements."""

_MARGIN = 1e-9
"""Margin in degrees; 1e-6 degrees are about 10 cm."""

_Edge = tuple[float, float, float, float]


def compile_place(leaf: PlaceCondition, catalog: Catalog, dialect: SqlDialect) -> Predicate:
    """Compile the condition that a place lies in a shape."""
    keys = catalog.key_ids("", KeyType.CELL)
    if not keys:
        return FALSE  # no inference has a place
    if isinstance(leaf.shape, GeoCircle):
        box, test = _around(leaf.shape), _near(leaf.shape)
    elif isinstance(leaf.shape, GeoBox):
        box, test = leaf.shape, _in_box(leaf.shape)
    else:
        edges = _edges(leaf.shape)
        box, test = _bounds(edges), _in_ring(edges)
    ranges = covering_ranges(box)
    ranges += [EMPTY_RANGE] * (-len(ranges) % _AT_ONCE)
    bounds = tuple(float(bound) for cells in ranges for bound in cells)
    scan = Scan(
        f"(VALUES {', '.join(['(?)'] * len(keys))}) AS k"
        f" CROSS JOIN (VALUES {', '.join(['(?, ?)'] * len(ranges))}) AS r CROSS JOIN meta_num AS d",
        Sql("d.key = k.column1 AND d.val BETWEEN r.column1 AND r.column2", (*keys, *bounds)),
        ordered=False,
    )
    statement = f"EXISTS (SELECT 1 FROM {dialect.place} AND {test.text})"
    return Predicate(Sql(statement, test.values), (scan,))


def covering_ranges(box: GeoBox) -> list[tuple[int, int]]:
    """Return disjoint ranges of cells that together cover a box."""
    bits, spans = 0, [_cells_of(span) for span in _spans(box)]
    while sum(len(rows) * len(columns) for rows, columns in spans) > MAX_COVER_CELLS:
        bits += 1  # low bits that a larger cell leaves out, on each axis
        spans = [(_halved(rows), _halved(columns)) for rows, columns in spans]
    cells: set[int] = set()
    for rows, columns in spans:
        column_codes = [geo.morton(0, column) for column in columns]
        for row in rows:
            row_code = geo.morton(row, 0)
            cells.update([row_code | column_code for column_code in column_codes])
    range_start, *remaining = sorted(cells)
    range_stop = range_start + 1
    ranges = []
    for cell in remaining:
        if cell > range_stop:
            ranges.append((range_start << 2 * bits, (range_stop << 2 * bits) - 1))
            range_start = cell
        range_stop = cell + 1
    return [*ranges, (range_start << 2 * bits, (range_stop << 2 * bits) - 1)]


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
    """Yield boxes that do not cross 180 degrees, with the other coordinates of the same places."""
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
    spans = [Sql(test, (span.south, span.north, span.west, span.east)) for span in _spans(box)]
    return Sql.join(" OR ", spans).wrap("({})")


def _near(circle: GeoCircle) -> Sql:
    """Compare the haversine of the angle between two places with that of the distance."""
    angle = min(circle.metres / EARTH_RADIUS_M, math.pi)
    latitude, longitude = "sin(radians(p.latitude - ?) / 2)", "sin(radians(p.longitude - ?) / 2)"
    statement = (
        f"{latitude} * {latitude} + ? * cos(radians(p.latitude)) * {longitude} * {longitude} <= ?"
    )
    north, east = circle.latitude, circle.longitude
    cosine = math.cos(math.radians(north))
    return Sql(statement, (north, north, cosine, east, east, math.sin(angle / 2) ** 2 + 1e-18))


def _around(circle: GeoCircle) -> GeoBox:
    """Return a box that contains a circle."""
    angle = circle.metres / EARTH_RADIUS_M
    reach = math.degrees(angle)
    south, north = max(circle.latitude - reach, -90.0), min(circle.latitude + reach, 90.0)
    if south <= -90 or north >= 90:
        return GeoBox(south, -180.0, north, 180.0)
    sine = math.sin(angle) / math.cos(math.radians(circle.latitude))
    width = math.degrees(math.asin(min(sine, 1.0))) + _MARGIN
    west, east = circle.longitude - width, circle.longitude + width
    return GeoBox(
        south, west + 360 if west < -180 else west, north, east - 360 if east > 180 else east
    )


def _edges(polygon: GeoPolygon) -> list[_Edge]:
    """Return latitude, longitude, eastward turn in degrees, and end latitude of each edge."""
    points = polygon.points
    return [
        (south, west, (east - west + 180) % 360 - 180, north)
        for (south, west), (north, east) in pairwise((*points, points[0]))
    ]


def _pole(edges: list[_Edge]) -> float | None:
    """Return the latitude of the pole inside, the nearer one, if the edges go around the earth, else None."""
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
    statement = (
        "(SELECT count(*) & 1 FROM (SELECT (p.longitude - e.column1) * e.column2 AS r,"
        " e.column3 AS span, e.column4 AS south, e.column5 AS slope"
        f" FROM (VALUES {', '.join(['(?, ?, ?, ?, ?)'] * len(rows))}) AS e) AS f"
        f" WHERE {along} < f.span AND f.south + f.slope * {along} > p.latitude) = ?"
    )
    return Sql(statement, (*(value for row in rows for value in row), int(_pole(edges) != 90.0)))

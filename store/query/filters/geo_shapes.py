"""Parser of geographic shapes in filters.

`{"near": [51.5, -0.12], "within": "5km"}`, `{"box": [south, west, north, east]}`,
`{"polygon": [[latitude, longitude], …]}`.
"""

import math
import re
from typing import Any

from quadriga.store.query.filters.filter_errors import unexpected_value
from quadriga.store.query.filters.syntax import GeoBox, GeoCircle, GeoPolygon, PlaceCondition
from quadriga.store.records.errors import QueryError
from quadriga.store.records.geo import is_within

MAX_CORNERS = 100
_UNITS_M = {"m": 1.0, "km": 1000.0, "mi": 1609.344, "nmi": 1852.0}
_DISTANCE = re.compile(r"(\d{1,9}(?:\.\d{1,20})?(?:e[+-]?\d{1,3})?)(m|km|mi|nmi)", re.ASCII)
_SHAPES = '{"near": [latitude, longitude], "within": "5km"}, {"box": [south, west, north, east]} or {"polygon": [[latitude, longitude], …]}'


def parse_shape(value: Any, path: str) -> PlaceCondition:
    """Parse a shape; raise a `QueryError` with the allowed shapes if it is invalid."""
    keys = value.keys() if isinstance(value, dict) else set()
    if keys == {"near", "within"}:
        latitude, longitude = _point(value["near"], f"{path}.near")
        return PlaceCondition(
            GeoCircle(latitude, longitude, _metres(value["within"], f"{path}.within"))
        )
    if keys == {"box"}:
        return PlaceCondition(_box(value["box"], f"{path}.box"))
    if keys == {"polygon"}:
        return PlaceCondition(_polygon(value["polygon"], f"{path}.polygon"))
    raise unexpected_value(path, _SHAPES, value)


def _box(value: Any, path: str) -> GeoBox:
    if not isinstance(value, list) or len(value) != 4:
        raise unexpected_value(path, "[south, west, north, east]", value)
    south, west = _point(value[:2], path)
    north, east = _point(value[2:], path)
    if south > north:
        raise QueryError(f"expected {path} to have its south first, got {south} before {north}")
    return GeoBox(south, west, north, east)


def _polygon(value: Any, path: str) -> GeoPolygon:
    if not isinstance(value, list) or not 3 <= len(value) <= MAX_CORNERS:
        raise unexpected_value(path, f"3 to {MAX_CORNERS} pairs [latitude, longitude]", value)
    return GeoPolygon(tuple(_point(pair, f"{path}[{index}]") for index, pair in enumerate(value)))


def _point(value: Any, path: str) -> tuple[float, float]:
    if isinstance(value, list) and len(value) == 2:
        latitude, longitude = value
        if is_within(latitude, 90) and is_within(longitude, 180):
            return float(latitude), float(longitude)
    raise unexpected_value(
        path, "a latitude of -90 to 90 degrees and a longitude of -180 to 180", value
    )


def _metres(value: Any, path: str) -> float:
    match = _DISTANCE.fullmatch(value) if isinstance(value, str) else None
    metres = float(match[1]) * _UNITS_M[match[2]] if match else math.inf
    if not math.isfinite(metres):
        raise unexpected_value(path, "a distance with m, km, mi or nmi, such as 5km", value)
    return metres

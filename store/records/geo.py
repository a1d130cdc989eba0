"""Places as cells of a grid, in an order that keeps neighbours together (Morton's, or Z order).

Metadata with top-level numbers `latitude` (-90 to 90 degrees) and `longitude` (-180 to 180 degrees) has a
place.
"""

from collections.abc import Mapping
from typing import Any, TypeGuard

AXIS_BITS = 16
"""Bits of each axis: cells of 1/182 of a degree of longitude, half that of latitude."""

_LAST = (1 << AXIS_BITS) - 1


def cell_of(paths: Mapping[str, Any]) -> int | None:
    """Return the cell of flat metadata, 32 bits, or None if it has no place."""
    latitude, longitude = paths.get("latitude"), paths.get("longitude")
    if not (is_within(latitude, 90) and is_within(longitude, 180)):
        return None
    return morton(grid_row(latitude), grid_column(longitude))


def grid_row(latitude: float) -> int:
    """Return the row of a latitude in degrees."""
    return min(int((latitude + 90) / 180 * (_LAST + 1)), _LAST)


def grid_column(longitude: float) -> int:
    """Return the column of a longitude in degrees."""
    return min(int((longitude + 180) / 360 * (_LAST + 1)), _LAST)


def morton(y: int, x: int) -> int:
    """Interleave the bits of a row and a column, the row's first."""
    return _spread(y) << 1 | _spread(x)


def _spread(value: int) -> int:
    """Insert a zero before each of 16 bits."""
    value = (value | value << 8) & 0x00FF00FF
    value = (value | value << 4) & 0x0F0F0F0F
    value = (value | value << 2) & 0x33333333
    return (value | value << 1) & 0x55555555


def is_within(value: Any, bound: float) -> TypeGuard[float]:
    """Check whether a value is a number within a bound on both sides of 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and -bound <= value <= bound

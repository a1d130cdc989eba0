"""Shapes on the earth against their definition, with the cells that find them."""

import math
import random
import sqlite3
from typing import Any

import pytest

from quadriga.store.database.schema import KeyType
from quadriga.store.query.filters.forms import parse
from quadriga.store.query.filters.syntax import GeoBox
from quadriga.store.query.names import Catalog
from quadriga.store.query.sql.dialects import DIALECTS
from quadriga.store.query.sql.geo_sql import EARTH_RADIUS_M, compile_place, covering_ranges
from quadriga.store.records import geo
from tests.filter_definition import place_holds


class Known(Catalog):
    """A catalog that knows the key of places."""

    def __init__(self) -> None:
        """Ask no database."""

    def key_ids(self, path: str, type_: KeyType) -> tuple[int, ...]:
        assert (path, type_) == ("", KeyType.CELL)
        return (1,)


def a_ring(pick: random.Random) -> list[list[float]]:
    if pick.random() < 0.5:
        return [[pick.uniform(-89, 89), pick.uniform(-180, 180)] for _ in range(pick.randint(3, 7))]
    south, west = pick.uniform(-60, 60), pick.uniform(-180, 180)
    corners = ((pick.uniform(-20, 20), pick.uniform(-20, 20)) for _ in range(4))
    return [[south + up, (west + right + 180) % 360 - 180] for up, right in corners]


def a_shape(kind: str, pick: random.Random) -> dict[str, Any]:
    latitudes = sorted(pick.choice([pick.uniform(-90, 90), 90.0, -90.0]) for _ in range(2))
    west, east = (pick.choice([pick.uniform(-180, 180), 180.0, -180.0]) for _ in range(2))
    if kind == "box":
        return {"box": [latitudes[0], west, latitudes[1], east]}
    if kind == "near":
        within = pick.choice(["1km", "100km", "3000km", "15000km", "30000km"])
        return {"near": [pick.choice(latitudes), west], "within": within}
    return {"polygon": a_ring(pick)}


@pytest.mark.parametrize("kind", ["box", "near", "polygon"])
def test_a_shape_holds_what_its_definition_says(kind: str) -> None:
    pick = random.Random(7)
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE inference (meta TEXT, meta_flat TEXT)")
    statement = "INSERT INTO inference VALUES (json_object('latitude', ?, 'longitude', ?), NULL)"
    places = [
        (
            pick.choice([pick.uniform(-90, 90)] * 4 + [90.0, -90.0]),
            pick.choice([pick.uniform(-180, 180)] * 4 + [180.0, -180.0]),
        )
        for _ in range(60)
    ]
    database.executemany(statement, places)
    held = 0
    for _ in range(150):
        shape = a_shape(kind, pick)
        compiled = compile_place(parse({"geo": shape}, 0), Known(), DIALECTS["sqlite"])
        query = f"SELECT {compiled.sql.text} FROM inference AS i ORDER BY rowid"
        selected = [bool(row[0]) for row in database.execute(query, compiled.sql.values)]
        values = compiled.scans[0].condition.values
        ranges = list(zip(values[1::2], values[2::2], strict=True))
        for (latitude, longitude), is_found in zip(places, selected, strict=True):
            is_held = place_holds({"latitude": latitude, "longitude": longitude}, shape)
            assert is_found == is_held, (shape, latitude, longitude)
            cell = geo.morton(geo.grid_row(latitude), geo.grid_column(longitude))
            assert not is_held or any(low <= cell <= high for low, high in ranges)
            held += is_held
    assert held > 100
    database.close()


def test_the_rim_of_a_circle_is_covered() -> None:
    pick = random.Random(11)
    for _ in range(300):
        centre = [pick.uniform(-85, 85), pick.uniform(-179, 179)]
        metres = round(10 ** pick.uniform(1, 6))
        shape = {"near": centre, "within": f"{metres}m"}
        values = compile_place(parse({"geo": shape}, 0), Known(), DIALECTS["sqlite"]).scans[0][1][1]
        ranges = list(zip(values[1::2], values[2::2], strict=True))
        angle, north = metres / EARTH_RADIUS_M, math.radians(centre[0])
        for _ in range(20):
            bearing = pick.uniform(0, math.tau)
            up = math.sin(north) * math.cos(angle)
            sine = up + math.cos(north) * math.sin(angle) * math.cos(bearing)
            turn = math.atan2(
                math.sin(bearing) * math.sin(angle) * math.cos(north),
                math.cos(angle) - math.sin(north) * sine,
            )
            longitude = (centre[1] + math.degrees(turn) + 180) % 360 - 180
            cell = geo.morton(
                geo.grid_row(math.degrees(math.asin(sine))), geo.grid_column(longitude)
            )
            assert any(low <= cell <= high for low, high in ranges), (shape, bearing)


def test_a_shape_is_covered_by_few_ranges_of_cells() -> None:
    pick = random.Random(3)
    for _ in range(200):
        south, west = pick.uniform(-80, 80), pick.uniform(-180, 180)
        size = pick.choice([0.0, 1e-4, 0.01, 1.0, 30.0])
        ranges = covering_ranges(
            GeoBox(south, west, min(south + size, 90), (west + size + 180) % 360 - 180)
        )
        assert 1 <= len(ranges) <= 64
        if size <= 1 and abs(west) < 178:
            assert sum(high - low for low, high in ranges) < ((size + 0.3) * 65536 / 180) ** 2 * 3

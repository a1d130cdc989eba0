"""Shapes of predictions and annotations, one by one, beside the same for arrays."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadriga.tasks.geometry import polygon_areas, relative_to_pixels, xywhr_to_corners
from quadriga.tasks.predictions import (
    AnyPrediction,
    Shape,
    bounding_box,
    contour_area,
    directed_area,
    is_inside,
    ltwh_to_xyxy,
    shape_of,
    shape_of_json,
    xyxy_to_ltwh,
)

BOX = {"xmin": 10, "ymin": 20, "xmax": 50, "ymax": 40}
ORIENTED_BOX = {"cx": 0.5, "cy": 0.5, "w": 0.2, "h": 0.1, "r": 0.0}
SQUARE = [(0, 0), (10, 0), (10, 10), (0, 10)]
HOLE = [(2, 2), (2, 4), (4, 4), (4, 2)]
"""A square of 4 square pixels, the other way round."""
SIDES = st.floats(0.01, 2)
COORDINATES = st.floats(-1000, 1000)


def contour(*rings):
    return {"contour": [[{"x": x, "y": y} for x, y in ring] for ring in rings]}


@pytest.mark.parametrize(
    ("item", "kind", "upright_box", "relative_box"),
    [
        ({"label": "a"}, None, None, None),
        (BOX, "box", (10, 20, 50, 40), (0.4, 0.1, 0.3, 0.15)),
        (ORIENTED_BOX, "oriented box", (40, 90, 60, 110), (0.2, 0.1, 0.5, 0.5)),
        (contour(SQUARE, HOLE), "contour", (0, 0, 10, 10), (0.11, 0.055, 0.05, 0.025)),
        (contour([(3, 4)]), "contour", (3, 4, 3, 4), (0.01, 0.005, 0.03, 0.02)),
        (contour([]), None, None, None),
    ],
    ids=["nothing", "box", "oriented box", "contour", "one pixel", "empty contour"],
)
def test_a_shape_has_a_kind_and_a_box(item, kind, upright_box, relative_box):
    shape = shape_of_json(item)
    assert shape.kind == kind
    assert shape.upright_box(100, 200) == pytest.approx(upright_box)
    assert shape.relative_box(100, 200) == pytest.approx(relative_box)
    decoded = shape_of(msgspec.convert(item, AnyPrediction))
    assert decoded.upright_box(100, 200) == pytest.approx(upright_box)
    assert decoded.relative_box(100, 200) == pytest.approx(relative_box)


def test_an_oriented_box_without_an_image_size_has_no_upright_box():
    assert shape_of_json(ORIENTED_BOX).upright_box(None, 200) is None


@pytest.mark.parametrize(
    "item",
    [
        {**BOX, "xmax": True},
        {**BOX, "xmax": "50"},
        {"xmin": 1},
        {"contour": None},
        {"contour": [None, 3, {"x": 1}]},
        {"contour": [[None, {"x": 1}, {"x": 1, "y": "2"}]]},
    ],
)
def test_fields_of_another_type_are_no_shape(item):
    assert shape_of_json(item) == Shape()


def test_integers_stay_integers():
    assert repr(shape_of_json(BOX).upright_box(100, 200)) == "(10, 20, 50, 40)"


@given(st.tuples(COORDINATES, COORDINATES, SIDES, SIDES, st.floats(-4, 4)))
def test_corners_of_one_box_are_those_of_arrays(box):
    shape = Shape(oriented_box=box)
    pixels = relative_to_pixels(np.array([box]), np.array([(640.0, 480.0)]))
    assert shape.kind == "oriented box"
    np.testing.assert_allclose(
        shape.oriented_corners(640, 480), xywhr_to_corners(pixels)[0], atol=1e-6
    )


@given(st.lists(st.tuples(COORDINATES, COORDINATES), min_size=1, max_size=12))
def test_area_of_one_ring_is_that_of_arrays(ring):
    area = polygon_areas(np.array([ring]))[0]
    assert contour_area([ring]) == pytest.approx(area, rel=1e-9, abs=1e-6)
    assert directed_area([ring]) == pytest.approx(area, rel=1e-9, abs=1e-6)


@pytest.mark.parametrize(
    ("rings", "even_odd", "directed"),
    [
        ([], 0, 0),
        ([SQUARE], 100, 100),
        ([SQUARE[::-1]], 100, 100),
        ([SQUARE, HOLE], 96, 96),
        ([SQUARE, HOLE[::-1]], 96, 104),
    ],
)
def test_a_ring_inside_another_is_a_hole(rings, even_odd, directed):
    assert contour_area(rings) == even_odd
    assert directed_area(rings) == directed


def test_a_point_lies_inside_a_ring_or_outside():
    assert is_inside((5, 5), SQUARE)
    assert not is_inside((11, 5), SQUARE)


def test_edges_become_left_top_width_height_and_back():
    assert xyxy_to_ltwh((1, 2, 4, 6)) == (1, 2, 3, 4)
    assert ltwh_to_xyxy(1, 2, 3, 4) == (1, 2, 4, 6)
    assert bounding_box([]) is None

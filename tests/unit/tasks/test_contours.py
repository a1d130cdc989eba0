import cv2
import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings

from quadriga.tasks.geometry import fill, rings, simplify, to_points, to_rings
from quadriga.tasks.predictions import Point, Segment


def mask_of(*rows):
    return np.array([[int(cell == "#") for cell in row] for row in rows], np.uint8)


def even_odd(outlines, width, height):
    """The rule, pixel by pixel: on an edge, or an odd number of edges to its right."""
    filled = np.zeros((height, width), np.uint8)
    for y in range(height):
        for x in range(width):
            crossings, on_edge = 0, False
            for ring in outlines:
                for (x1, y1), (x2, y2) in zip(
                    ring.tolist(), np.roll(ring, -1, axis=0).tolist(), strict=True
                ):
                    aligned = (x - x1) * (y2 - y1) == (y - y1) * (x2 - x1)
                    within = min(x1, x2) <= x <= max(x1, x2) and min(y1, y2) <= y <= max(y1, y2)
                    on_edge |= aligned and within
                    if (y1 <= y) != (y2 <= y):
                        crossings += x1 + (y - y1) * (x2 - x1) / (y2 - y1) > x
            filled[y, x] = on_edge or crossings % 2
    return filled


def points(ring):
    return sorted(map(tuple, ring.tolist()))


# mask, outer rings, rings of holes: points in any order
CASES = {
    "empty": (("...", "..."), [], []),
    "one pixel": (("...", ".#."), [[(1, 1)]], []),
    "line": (("....", ".###"), [[(1, 1), (3, 1)]], []),
    "everything": (("###", "###"), [[(0, 0), (0, 1), (2, 0), (2, 1)]], []),
    "two": (("#.#",), [[(0, 0)], [(2, 0)]], []),
    "joined at a corner": (("#.", ".#"), [[(0, 0), (1, 1)]], []),
    "hole": (
        ("###", "#.#", "###"),
        [[(0, 0), (0, 2), (2, 0), (2, 2)]],
        [[(0, 1), (1, 0), (1, 2), (2, 1)]],
    ),
}


@pytest.mark.parametrize(("rows", "outer", "holes"), CASES.values(), ids=CASES)
def test_rings_run_through_the_outermost_pixels_and_around_holes(rows, outer, holes):
    traced = rings(mask_of(*rows))
    assert sorted(map(points, traced[: len(outer)])) == sorted(outer)
    assert sorted(map(points, traced[len(outer) :])) == sorted(holes)


def test_the_island_in_a_hole_is_filled():
    island = mask_of("#####", "#...#", "#.#.#", "#...#", "#####")
    assert len(rings(island)) == 3
    np.testing.assert_array_equal(fill(rings(island), 5, 5), island)


@st.composite
def masks(draw):
    width, height = draw(st.integers(1, 24)), draw(st.integers(1, 24))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    mask = (random.random((height, width)) < draw(st.floats(0, 1))).astype(np.uint8)
    size = draw(st.integers(1, 4))  # coarse cells make holes, islands and borders
    return np.ascontiguousarray(np.kron(mask, np.ones((size, size), np.uint8)))


@given(masks())
def test_the_rings_of_a_mask_mean_the_mask(mask):
    height, width = mask.shape
    contour = [to_points(ring) for ring in rings(mask)]
    np.testing.assert_array_equal(fill(to_rings(contour), width, height), mask)


@given(masks().filter(lambda mask: mask.size < 400))
@settings(max_examples=40)
def test_the_rule_is_even_odd_with_the_rings(mask):
    height, width = mask.shape
    np.testing.assert_array_equal(even_odd(rings(mask), width, height), mask)


@given(masks(), st.integers(0, 9), st.integers(0, 9))
def test_a_crop_has_the_rings_of_the_image(mask, left, top):
    image = np.pad(mask, ((top, 3), (left, 2)))
    ours = [ring.tolist() for ring in rings(mask, left, top)]
    assert sorted(ours) == sorted(ring.tolist() for ring in rings(image))


@given(masks(), st.floats(0, 5) | st.sampled_from([1e3, 1e300]))
def test_simplified_rings_stay_near_and_stay_rings(mask, epsilon):
    for ring in rings(mask):
        fewer = simplify(ring, epsilon)
        assert min(len(ring), 3) <= len(fewer) <= len(ring)
        assert {*points(fewer)} <= {*points(ring)}
        if len(fewer) < len(ring):
            for x, y in ring.tolist():
                distance = cv2.pointPolygonTest(fewer, (x, y), measureDist=True)
                assert abs(distance) <= epsilon + 1 + 1e-4


def test_a_large_epsilon_takes_what_a_ring_can_spare():
    disc = cv2.circle(np.zeros((99, 99), np.uint8), (49, 49), 40, (1,), cv2.FILLED)
    [ring] = rings(disc)
    for epsilon in (30, 60, 1e300):
        assert 3 <= len(simplify(ring, epsilon)) <= 6


def test_simplifying_leaves_corners_and_takes_steps():
    staircase = fill([np.array([(0, 0), (40, 10), (40, 60), (0, 60)], np.int32)], 41, 61)
    [ring] = rings(staircase)
    assert len(ring) > 6
    assert points(simplify(ring, 1.0)) == [(0, 0), (0, 60), (40, 10), (40, 60)]
    assert simplify(ring, 0) is ring


def test_the_hole_of_one_pixel_survives_every_epsilon():
    for ring in rings(mask_of("###", "#.#", "###")):
        assert len(simplify(ring, 100)) == 4


def test_what_lies_outside_of_the_image_is_cut_off():
    square = np.array([(-2, -2), (1, -2), (1, 1), (-2, 1)], np.int32)
    np.testing.assert_array_equal(fill([square], 3, 3), mask_of("##.", "##.", "..."))
    assert fill([], 2, 3).tolist() == [[0, 0]] * 3


def test_points_are_rounded_to_pixels_and_empty_rings_left_out():
    [ring] = to_rings([[], [Point(0.6, 1.2), Point(-0.4, 2.0)]])
    assert ring.tolist() == [[1, 1], [0, 2]]


def test_a_segment_is_json_as_the_protocol_has_it():
    segment = Segment("cat", 0.5, [to_points(np.array([[1, 2], [3, 4]], np.int32))])
    assert msgspec.json.encode(segment) == (
        b'{"label":"cat","score":0.5,"contour":[[{"x":1.0,"y":2.0},{"x":3.0,"y":4.0}]]}'
    )

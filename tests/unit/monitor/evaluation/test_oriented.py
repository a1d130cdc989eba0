"""Oriented boxes: their exact overlap, beside GEOS and by hand, and how they come from the wire."""

import itertools
import math

import numpy as np
import pytest
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st

from quadriga.monitor.evaluation.objects.oriented import (
    OrientedDetectionEvaluator,
    order_corners,
    oriented_overlap,
)
from quadriga.monitor.evaluation.state import EvaluationError
from quadriga.tasks.geometry import xywhr_to_corners
from tests.unit.monitor.evaluation.evaluation_images import state_of_shards, wire_image


def box(cx, cy, w, h, r, **fields):
    named = zip(("cx", "cy", "w", "h", "r"), (cx, cy, w, h, r), strict=True)
    return {"label": "ship", **{name: float(value) for name, value in named}, **fields}


def quad(corners, **fields):
    return {"label": "ship", "corners": np.asarray(corners).tolist(), **fields}


def image(predictions, truths, *, width=1, height=1, name="1"):
    """Return an image, by default of one pixel, so that fractions are pixels."""
    scored = [{"score": 0.5, **prediction} for prediction in predictions]
    return wire_image(name, scored, truths, width, height)


def state(*images):
    return state_of_shards(OrientedDetectionEvaluator(), images)


def overlaps(predictions, truths, **size):
    """Ask for the overlap of each with the one at its place."""
    merged_state = state(image(predictions, truths, **size))
    places = np.arange(len(predictions))
    return oriented_overlap(merged_state)(places, places)


def by_geos(left, right):
    """Intersection over union of pairs of polygons (P, 4, 2)."""
    first, second = shapely.polygons(left), shapely.polygons(right)
    common = shapely.area(shapely.intersection(first, second))
    return common / (shapely.area(first) + shapely.area(second) - common)


def random_boxes(pick, count, offset=0.0):
    return np.concatenate(
        [
            pick.uniform(0, 40, (count, 2)) + offset,
            pick.uniform(1, 40, (count, 2)),
            pick.uniform(-4, 4, (count, 1)),
        ],
        axis=1,
    )


@pytest.mark.parametrize("offset", [0.0, 5000.0])
def test_overlap_is_that_of_geos(offset):
    pick = np.random.default_rng(1)
    ours, theirs = random_boxes(pick, 5000, offset), random_boxes(pick, 5000, offset)
    actual = overlaps([box(*values) for values in ours], [box(*values) for values in theirs])
    expected = by_geos(xywhr_to_corners(ours), xywhr_to_corners(theirs))
    assert (expected > 0.1).sum() > 500
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12)


def test_overlap_with_quadrilaterals_is_that_of_geos():
    pick = np.random.default_rng(2)
    ours = random_boxes(pick, 3000, 5000.0)
    angles = np.sort(pick.uniform(0, math.tau, (3000, 4)), axis=1)
    around = np.stack([np.cos(angles), np.sin(angles)], axis=2)  # on a circle: convex
    quads = around * pick.uniform(5, 30, (3000, 1, 2)) + pick.uniform(5000, 5040, (3000, 1, 2))
    actual = overlaps([box(*values) for values in ours], [quad(values) for values in quads])
    expected = by_geos(xywhr_to_corners(ours), quads)
    assert (expected > 0.1).sum() > 500
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12)


EIGHTH, THIRD = math.pi / 4, math.radians(30)
SQUARE_ON_ITS_CORNER = (2 * math.sqrt(2) - 2) / (2 - (2 * math.sqrt(2) - 2))
PAIRS = {
    "identical": ([5, 5, 4, 2, 0.3], [5, 5, 4, 2, 0.3], 1),
    "identical, for which mmcv says a third": (
        [0, 0, 180.6422271729, 136.3633728027, 0.9559648633],
        [0, 0, 180.6422271729, 136.3633728027, 0.9559648633],
        1,
    ),
    "identical, for which rotated_maskrcnn says a third": (
        [672.4067, 290.7776, 791.0275, 38.9333, math.radians(34.1454)],
        [672.4067, 290.7776, 791.0275, 38.9333, math.radians(34.1454)],
        1,
    ),
    "identical, turned round": ([5, 5, 4, 2, 0.3], [5, 5, 2, 4, 0.3 + math.pi / 2], 1),
    "identical, far away": ([5000, 5000, 4, 2, 0.3], [5000, 5000, 4, 2, 0.3], 1),
    "half of the width, far away": ([5000, 5000, 4, 2, 1], [5000, 5000, 2, 2, 1], 1 / 2),
    "side by side, apart, for which detectron2 says 0.27": (
        [160, 153, 230, 23, math.radians(37)],
        [190, 127, 80, 21, math.radians(46)],
        0,
    ),
    "a square on its corner": ([0, 0, 1, 1, 0], [0, 0, 1, 1, EIGHTH], SQUARE_ON_ITS_CORNER),
    "touching at a corner": ([0, 0, 2, 2, 0], [2, 2, 2, 2, 0], 0),
    "touching at a corner, turned": (
        [0, 0, 2, 2, 0], [1 + math.sqrt(2), 0, 2, 2, EIGHTH], 0,
    ),
    "touching along an edge": ([0, 0, 2, 2, THIRD], [2 * math.cos(THIRD), 1, 2, 2, THIRD], 0),
    "one edge in common": ([0, 0, 4, 2, 0], [1, 0, 2, 2, 0], 1 / 2),
    "two edges in common, far away": ([5001, 5000, 2, 2, 0], [5000, 5000, 4, 2, 0], 1 / 2),
    "within": ([0, 0, 2, 1, 1.2], [0, 0, 8, 8, 0.1], 1 / 32),
    "a cross": ([0, 0, 9, 1, 0.7], [0, 0, 1, 9, 0.7], 1 / 17),
    "shifted along itself": (
        [0, 0, 4, 2, THIRD], [2 * math.cos(THIRD), 2 * math.sin(THIRD), 4, 2, THIRD], 1 / 3,
    ),
    "one without area": ([0, 0, 4, 0, 0], [0, 0, 4, 2, 0], 0),
    "both without area": ([0, 0, 0, 0, 0], [0, 0, 0, 0, 0], 0),
}  # fmt: skip


@pytest.mark.parametrize(("first", "second", "expected"), PAIRS.values(), ids=PAIRS)
def test_overlap_is_that_of_the_closed_form(first, second, expected):
    actual = overlaps([box(*first), box(*second)], [box(*second), box(*first)])
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12)


# degrees; what detectron2 says: 0.2655, 0.5848, 0.6002, and 0.3688, which is right
OF_DETECTRON2 = [
    ([160, 153, 230, 23, 37], [190, 127, 80, 21, 46]),
    (
        [2563.744628906250, 1436.790161132812, 2174.703369140625, 214.095001220703, -115.118347167968],
        [2563.744628906250, 1436.790283203125, 2174.702880859375, 214.094955444336, -115.118354797363],
    ),
    (
        [296.6620178222656, 458.73883056640625, 23.515729904174805, 47.677001953125, 0.0879516],
        [296.66201, 458.73882000000003, 23.51573, 47.67702, 0.087951],
    ),
    (
        [1010.5, 860.00012207, 12.20655537, 48.82622528, -55.00798035],
        [1022, 870.49993896, 10.81665134, 43.26660919, -56.30992889],
    ),
]  # fmt: skip


def test_pairs_that_detectron2_gets_wrong_are_as_geos_has_them():
    ours, theirs = (
        np.array(values, float) * (1, 1, 1, 1, math.pi / 180)
        for values in zip(*OF_DETECTRON2, strict=True)
    )
    actual = overlaps([box(*values) for values in ours], [box(*values) for values in theirs])
    expected = by_geos(xywhr_to_corners(ours), xywhr_to_corners(theirs))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(actual, [0, 1, 1, 0.3688], atol=1e-4)


@settings(max_examples=60)
@given(
    st.tuples(*[st.integers(-20, 20)] * 2, *[st.integers(1, 20)] * 2, st.integers(0, 8)),
    st.tuples(*[st.integers(-20, 20)] * 2, *[st.integers(1, 20)] * 2, st.integers(0, 8)),
)
def test_collinear_edges_and_shared_corners_are_as_exact(left_box, right_box):
    first, second = ([*values[:4], values[4] * math.pi / 8] for values in (left_box, right_box))
    expected = by_geos(*(xywhr_to_corners(np.array([values])) for values in (first, second)))
    actual = overlaps([box(*first)], [box(*second)])
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12)


def test_overlap_of_a_pair_is_the_same_alone_bit_for_bit():
    pick = np.random.default_rng(3)
    ours, theirs = ([box(*first) for first in random_boxes(pick, 300)] for _ in range(2))
    alone = [overlaps([first], [second])[0] for first, second in zip(ours, theirs, strict=True)]
    assert overlaps(ours, theirs).tolist() == alone


def test_of_a_crowd_it_is_the_part_of_the_prediction_that_lies_in_it():
    predictions = [box(0, 0, 2, h=2, r=0.4), box(5, 0, 2, h=2, r=0)]
    truths = [box(0, 0, 20, h=20, r=1, crowd=True), box(4, 0, 2, h=2, r=0, crowd=True)]
    np.testing.assert_allclose(overlaps(predictions, truths), [1, 0.5])
    merged_state = state(image(predictions, truths))
    places = np.arange(2)
    plain = oriented_overlap(merged_state, crowds=False)(places, places)
    np.testing.assert_allclose(plain, [4 / 400, 1 / 3])


SHAPES = {
    "square": ([(0, 0), (2, 0), (2, 2), (0, 2)], 4),
    "kite": ([(0, -1), (3, 0), (0, 1), (-1, 0)], 4),
    "trapezium, far away": ([(9000, 9000), (9004, 9000), (9003, 9001), (9001, 9001)], 3),
    "with a dent": ([(0, 0), (4, 0), (1, 1), (0, 4)], 8),
    "with the middle of three": ([(0, 0), (3, 0), (0, 3), (1, 1)], 4.5),
    "with a corner on a side": ([(0, 0), (2, 0), (4, 0), (0, 4)], 8),
    "with a double corner": ([(0, 0), (4, 0), (4, 0), (0, 4)], 8),
    "line": ([(0, 0), (1, 1), (2, 2), (3, 3)], 0),
    "point": ([(7, 7)] * 4, 0),
}


@pytest.mark.parametrize(("corners", "area"), SHAPES.values(), ids=SHAPES)
def test_corners_in_any_order_span_the_same(corners, area):
    around = np.array(list(itertools.permutations(corners)), float)
    ordered = order_corners(around - around.mean(axis=1, keepdims=True))
    assert shapely.area(shapely.polygons(ordered)) == pytest.approx(area, abs=1e-12)
    x, y = np.moveaxis(ordered, 2, 0)
    doubled = (x * np.roll(y, -1, axis=1) - y * np.roll(x, -1, axis=1)).sum(axis=1)
    assert (doubled >= -1e-12).all(), "clockwise on the screen"
    merged_state = state(
        image([], [quad(quad_corners) for quad_corners in around], width=None, height=None)
    )
    assert merged_state.tables["truths"]["area"] == pytest.approx(area, abs=1e-12)


def test_boxes_become_pixels_before_they_turn():
    predictions = [box(0.5, 0.5, 0.2, h=0.1, r=math.pi / 2)]
    truths = [
        quad([(90, 30), (110, 30), (110, 70), (90, 70)]),
        box(0.5, 0.5, 0.1, h=0.4, r=0, area=7, difficult=True),
    ]
    merged_state = state(image(predictions, truths, width=200, height=100))
    there = merged_state.tables["truths"]
    assert merged_state.tables["predictions"]["area"] == pytest.approx([400])
    assert there["area"].tolist() == pytest.approx([800, 7])
    assert there["difficult"].tolist() == [False, True]
    places = np.array([0, 0]), np.array([0, 1])
    np.testing.assert_allclose(oriented_overlap(merged_state)(*places), [1 / 2, 1 / 2])


WRONG = {
    "no size": (
        image([box(0, 0, 1, h=1, r=0)], [], width=None),
        r"predictions\[0\]: expected width and height",
    ),
    "no size of truths": (
        image([], [box(0, 0, 1, h=1, r=0)], height=0),
        "expected width and height",
    ),
    "a negative side": (
        image([box(0, 0, -1, h=1, r=0)], []),
        r"predictions\[0\].w: expected `float` >= 0",
    ),
    "a huge corner": (
        image([], [quad([(0, 0)] * 3 + [(1e51, 0)])]),
        r"ground_truth\[0\].corners\[3\]\[0\]: expected `float` <= 1e\+50",
    ),
    "a missing field": (
        image([quad([(0, 0)] * 4)], []),
        r"predictions\[0\]: expected a field `cx`",
    ),
    "half a box": (
        image([], [quad([(0, 0)] * 4), {"label": "a", "cx": 1}]),
        r"image '1': ground_truth\[1\]: expected corners, or cx, cy, w, h and r",
    ),
    "three corners": (
        image([], [quad([(0, 0)] * 3)]),
        r"ground_truth\[0\].corners: expected `array` of length 4",
    ),
    "a truth that is none": (
        image([], {"label": "a"}),
        "image '1': ground_truth: expected `array`",
    ),
}


@pytest.mark.parametrize(("given_", "message"), WRONG.values(), ids=WRONG)
def test_what_is_no_oriented_box_is_refused(given_, message):
    with pytest.raises(EvaluationError, match=message):
        state(given_)

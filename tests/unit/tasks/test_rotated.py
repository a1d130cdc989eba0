import math
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadriga.tasks.geometry import (
    convex_intersection_areas,
    ios_matrix,
    iou_matrix,
    probiou_matrix,
    unscaled,
    with_angle,
    xywhr_to_corners,
)

QUARTER = math.pi / 2


def boxes(*rows: Any):
    return np.array(rows, np.float64).reshape(-1, 5)


def random_boxes(random, count, spread=60.0):
    centre = random.uniform(0, spread, (count, 2))
    sides = random.uniform(1, 40, (count, 2))
    return np.concatenate([centre, sides, random.uniform(-7, 7, (count, 1))], axis=1)


ROOT = math.sqrt(0.5)
CORNERS = {
    "upright": ([5, 6, 4, 2, 0], [[3, 5], [7, 5], [7, 7], [3, 7]]),
    # a quarter turn clockwise: the left top corner comes to the right top
    "quarter": ([5, 6, 4, 2, QUARTER], [[6, 4], [6, 8], [4, 8], [4, 4]]),
    "eighth": (
        [0, 0, 2, 0, QUARTER / 2],
        [[-ROOT, -ROOT], [ROOT, ROOT], [ROOT, ROOT], [-ROOT, -ROOT]],
    ),
}


@pytest.mark.parametrize(("box", "expected"), CORNERS.values(), ids=CORNERS)
def test_corners_go_clockwise_from_the_left_top(box, expected):
    np.testing.assert_allclose(xywhr_to_corners(boxes(box))[0], expected, atol=1e-12)


def test_corners_are_those_of_opencv():
    for x, y, w, h, r in random_boxes(np.random.default_rng(0), 50):
        theirs = cv2.boxPoints(((x, y), (w, h), math.degrees(r)))
        ours = xywhr_to_corners(boxes([x, y, w, h, r]))[0]
        for corner in ours:
            assert np.abs(theirs - corner).sum(axis=1).min() < 1e-3


# width, height, rotation; the same in le90 and in oc
ANGLES = {
    "upright, wide": ((4, 2, 0), (4, 2, 0), (2, 4, QUARTER)),
    "upright, tall": ((2, 4, 0), (4, 2, -QUARTER), (4, 2, QUARTER)),
    "upright, square": ((3, 3, 0), (3, 3, 0), (3, 3, QUARTER)),
    "quarter, wide": ((4, 2, QUARTER), (4, 2, -QUARTER), (4, 2, QUARTER)),
    "quarter, tall": ((2, 4, QUARTER), (4, 2, 0), (2, 4, QUARTER)),
    "clockwise": ((4, 2, 0.3), (4, 2, 0.3), (4, 2, 0.3)),
    "counterclockwise": ((4, 2, -0.3), (4, 2, -0.3), (2, 4, QUARTER - 0.3)),
    "of Ultralytics, steep": ((4, 2, 2.3), (4, 2, 2.3 - math.pi), (2, 4, 2.3 - QUARTER)),
    "half": ((4, 2, math.pi), (4, 2, 0), (2, 4, QUARTER)),
    "several turns": (
        (2, 4, 7.0),
        (4, 2, 7 - 2.5 * math.pi),
        (2, 4, 7 - math.tau),
    ),
    "just below 0": ((4, 2, -1e-17), (4, 2, 0), (2, 4, QUARTER)),
}


@pytest.mark.parametrize(("given_", "le90", "oc"), ANGLES.values(), ids=ANGLES)
def test_angles_in_every_range_describe_the_same_rectangle(given_, le90, oc):
    box = boxes([5, 6, *given_])
    assert with_angle(box, "raw").tolist() == box.tolist()
    for angle, expected in (("le90", le90), ("oc", oc)):
        np.testing.assert_allclose(with_angle(box, angle), [[5, 6, *expected]], atol=1e-12)


def assert_same_rectangle(one, other):
    first, second = xywhr_to_corners(boxes(one))[0], xywhr_to_corners(boxes(other))[0]
    turns = [np.abs(np.roll(first, turn, axis=0) - second).max() for turn in range(4)]
    assert min(turns) < 1e-6


@settings(max_examples=200)
@given(
    st.floats(0.1, 100),
    st.floats(0.1, 100),
    st.one_of(st.floats(-1e3, 1e3), st.integers(-9, 9).map(lambda n: n * QUARTER)),
)
def test_ranges_are_kept(w, h, r):
    box = [1, 2, w, h, r]
    [le90], [oc] = with_angle(boxes(box), "le90"), with_angle(boxes(box), "oc")
    assert le90[2] >= le90[3]
    assert -QUARTER <= le90[4] < QUARTER
    assert 0 < oc[4] <= QUARTER
    assert_same_rectangle(box, le90)
    assert_same_rectangle(box, oc)


@pytest.mark.parametrize("function", [lambda b: with_angle(b, "le90"), lambda b: unscaled(b, 2, 3)])
def test_no_boxes_stay_no_boxes(function):
    assert function(np.zeros((0, 5), np.float32)).shape == (0, 5)


# box, scales; the box before
SCALED = {
    "even": ([10, 20, 8, 4, 7.3], 2, 2, [5, 10, 4, 2, 7.3]),
    "upright": ([10, 20, 8, 4, 0], 2, 4, [5, 5, 4, 1, 0]),
    "quarter": ([10, 20, 8, 4, QUARTER], 2, 4, [5, 5, 2, 2, QUARTER]),
    "back": ([10, 20, 8, 4, -math.pi], 2, 4, [5, 5, 4, 1, -math.pi]),
}


@pytest.mark.parametrize(("box", "sx", "sy", "before"), SCALED.values(), ids=SCALED)
def test_a_scaling_is_undone(box, sx, sy, before):
    np.testing.assert_allclose(unscaled(boxes(box), sx, sy), [before], atol=1e-12)


def test_an_uneven_scaling_keeps_area_and_the_line_of_the_longer_side():
    random = np.random.default_rng(1)
    given_ = random_boxes(random, 200)
    restored = unscaled(given_, 0.5, 0.8)
    np.testing.assert_allclose(restored[:, 2] * restored[:, 3], given_[:, 2] * given_[:, 3] / 0.4)
    assert (np.abs(restored[:, 4] - given_[:, 4]) < 0.5).all(), "no jumps by a quarter"
    for box, original in zip(given_, restored, strict=True):
        corners = xywhr_to_corners(boxes(box))[0] / (0.5, 0.8)
        sides = corners[1] - corners[0], corners[2] - corners[1]
        longer = max(sides, key=np.linalg.norm)
        angle = original[4] + QUARTER * (np.linalg.norm(sides[0]) < np.linalg.norm(sides[1]))
        assert longer @ (-math.sin(angle), math.cos(angle)) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("uneven", [0.995, 1.005])
def test_a_sub_pixel_difference_of_scales_keeps_the_overlap_above_99_percent(uneven):
    """A rectangle, scaled unevenly, read as the network's rectangle of the same corners, and back."""
    random = np.random.default_rng(2)
    for x, y, w, h, r in random_boxes(random, 300):
        sx, sy = 0.4, 0.4 * uneven
        corners = xywhr_to_corners(boxes([x, y, w, h, r]))[0] * (sx, sy)
        seen = cv2.minAreaRect(corners.astype(np.float32))
        network = boxes([*seen[0], *seen[1], math.radians(seen[2])])
        [[iou]] = iou_matrix(unscaled(network, sx, sy), boxes([x, y, w, h, r]))
        assert iou > 0.985  # of which minAreaRect, which wraps the parallelogram, takes a part
    turned = boxes([50, 50, 40, 20, math.pi / 4])
    for_ = unscaled(turned, 0.4, 0.4 * uneven)
    exact = xywhr_to_corners(turned) / (0.4, 0.4 * uneven)
    common = convex_intersection_areas(xywhr_to_corners(for_), exact)
    assert common / (for_[:, 2] * for_[:, 3]) > 0.99


def naive_probiou(first, second):
    """The formula of the paper with matrices."""
    means, covariances = [], []
    for x, y, w, h, r in (first, second):
        turn = np.array([[math.cos(r), -math.sin(r)], [math.sin(r), math.cos(r)]])
        means.append(np.array([x, y]))
        covariances.append(turn @ np.diag([w**2 / 12, h**2 / 12]) @ turn.T)
    middle = (covariances[0] + covariances[1]) / 2
    apart = means[0] - means[1]
    distance = apart @ np.linalg.inv(middle) @ apart / 8
    determinants = [np.linalg.det(box) for box in (middle, *covariances)]
    distance += math.log(determinants[0] / math.sqrt(determinants[1] * determinants[2])) / 2
    return 1 - math.sqrt(1 - math.exp(-distance))


def test_likeness_of_distributions_is_that_of_the_paper():
    random = np.random.default_rng(3)
    ours, second_boxes = random_boxes(random, 30), random_boxes(random, 40)
    expected = [[naive_probiou(first, second) for second in second_boxes] for first in ours]
    np.testing.assert_allclose(probiou_matrix(ours, second_boxes), expected, atol=1e-5)
    np.testing.assert_allclose(np.diag(probiou_matrix(ours, ours)), 1, atol=1e-3)


OVERLAPS = {
    "itself": ([5, 5, 4, 2, 0.3], [5, 5, 4, 2, 0.3], 1),
    "itself, turned round": ([5, 5, 4, 2, 0.3], [5, 5, 2, 4, 0.3 + QUARTER], 1),
    "half": ([0, 0, 4, 2, 0.5], [0, 0, 4, 1, 0.5], 1 / 2),
    "cross": ([0, 0, 4, 2, 0], [0, 0, 4, 2, QUARTER], 1 / 3),
    "square on its corner": ([0, 0, 2, 2, 0], [0, 0, 2, 2, QUARTER / 2], ROOT),
    "touching": ([0, 0, 2, 2, 0], [2, 0, 2, 2, 0], 0),
    "apart": ([0, 0, 2, 2, 0], [9, 0, 2, 2, 1], 0),
    "frames meet alone": ([0, 0, 10, 0.1, QUARTER / 2], [4, -4, 1, 1, 0], 0),
    "empty": ([0, 0, 0, 2, 1], [0, 0, 2, 2, 0], 0),
    "both empty": ([0, 0, 0, 0, 1], [0, 0, 0, 0, 0], 0),
    "far from the origin": ([1e6, 1e6, 4, 2, 0.3], [1e6, 1e6, 4, 1, 0.3], 1 / 2),
}


@pytest.mark.parametrize(("one", "other", "iou"), OVERLAPS.values(), ids=OVERLAPS)
def test_overlap_of_two_rotated_boxes(one, other, iou):
    assert iou_matrix(boxes(one), boxes(other))[0, 0] == pytest.approx(iou, abs=1e-6)
    assert iou_matrix(boxes(other), boxes(one))[0, 0] == pytest.approx(iou, abs=1e-6)


def test_overlap_over_the_smaller_is_1_for_a_box_inside():
    inside = ios_matrix(boxes([5, 5, 20, 20, 0.2]), boxes([5, 5, 4, 2, 1], [99, 9, 1, 1, 0]))
    np.testing.assert_allclose(inside, [[1, 0]])


@pytest.mark.parametrize(("rows", "columns"), [(0, 0), (0, 3), (3, 0), (2, 5)])
@pytest.mark.parametrize("matrix", [iou_matrix, ios_matrix, probiou_matrix])
def test_overlap_matrices_have_a_row_and_a_column_for_each(rows, columns, matrix):
    assert matrix(np.ones((rows, 5), np.float32), np.ones((columns, 5))).shape == (rows, columns)


def test_overlap_of_polygons_is_that_of_opencv():
    random = np.random.default_rng(4)
    ours, second_boxes = random_boxes(random, 40), random_boxes(random, 40)
    restored = iou_matrix(ours, second_boxes)
    seen = 0
    for row, first in enumerate(ours):
        for column, second in enumerate(second_boxes):
            rectangles = [((x, y), (w, h), math.degrees(r)) for x, y, w, h, r in (first, second)]
            _, points = cv2.rotatedRectangleIntersection(*rectangles)
            area = 0.0 if points is None else cv2.contourArea(cv2.convexHull(points))
            union = first[2] * first[3] + second[2] * second[3] - area
            # OpenCV calculates in float32
            assert restored[row, column] == pytest.approx(area / union, abs=3e-4)
            seen += area > 0
    assert seen > 300


@settings(max_examples=100)
@given(
    st.tuples(*[st.integers(-20, 20)] * 2, *[st.integers(1, 20)] * 2, st.integers(0, 8)),
    st.tuples(*[st.integers(-20, 20)] * 2, *[st.integers(1, 20)] * 2, st.integers(0, 8)),
)
def test_shared_edges_and_corners_keep_overlap_symmetric_and_within_1(one, other):
    first, second = (boxes([*box[:4], box[4] * math.pi / 8]) for box in (one, other))
    forward, back = iou_matrix(first, second)[0, 0], iou_matrix(second, first)[0, 0]
    assert forward == pytest.approx(back, abs=1e-9)
    assert 0 <= forward <= 1 + 1e-9
    smaller = ios_matrix(first, second)[0, 0]
    assert forward - 1e-9 <= smaller <= 1 + 1e-9

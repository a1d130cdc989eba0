from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadriga.tasks.geometry import (
    clip_boxes,
    ios_matrix,
    iou_matrix,
    nms,
    suppress_at_once,
    xywh_to_xyxy,
)


def boxes(*rows: Any):
    return np.array(rows, np.float32).reshape(-1, 4)


PAIRS = {
    "none": (boxes(), boxes()),
    "one": (boxes([5, 5, 10, 10]), boxes([0, 0, 10, 10])),
    "empty box": (boxes([3, 4, 0, 0]), boxes([3, 4, 3, 4])),
    "out of frame": (boxes([-5, 0, 4, 2]), boxes([-7, -1, -3, 1])),
    "odd size": (boxes([1.5, 2.5, 3, 5]), boxes([0, 0, 3, 5])),
    "huge": (boxes([2e6, 1e6, 4e6, 2e6]), boxes([0, 0, 4e6, 2e6])),
}


@pytest.mark.parametrize(("xywh", "xyxy"), PAIRS.values(), ids=PAIRS)
def test_centre_and_size_become_corners(xywh, xyxy):
    np.testing.assert_array_equal(xywh_to_xyxy(xywh), xyxy)
    assert xywh_to_xyxy(xywh).dtype == np.float32


CLIPS = {
    "none": (boxes(), boxes()),
    "inside": (boxes([1, 2, 3, 4]), boxes([1, 2, 3, 4])),
    "over every edge": (boxes([-1, -2, 30, 40]), boxes([0, 0, 10, 20])),
    "left of it": (boxes([-9, 1, -3, 4]), boxes([0, 1, 0, 4])),
    "below it": (boxes([1, 30, 3, 40]), boxes([1, 20, 3, 20])),
}


@pytest.mark.parametrize(("given_", "expected"), CLIPS.values(), ids=CLIPS)
def test_boxes_are_cut_at_the_edges(given_, expected):
    np.testing.assert_array_equal(clip_boxes(given_, 10, 20), expected)


OVERLAPS = {
    "itself": ([0, 0, 2, 2], [0, 0, 2, 2], 1),
    "half": ([0, 0, 2, 2], [0, 0, 2, 1], 1 / 2),
    "a seventh": ([0, 0, 2, 2], [1, 1, 3, 3], 1 / 7),
    "touching": ([0, 0, 2, 2], [2, 0, 4, 2], 0),
    "apart": ([0, 0, 2, 2], [5, 5, 6, 6], 0),
    "empty with empty": ([1, 1, 1, 1], [1, 1, 1, 1], 0),
    "inverted": ([2, 2, 0, 0], [0, 0, 2, 2], 0),
    "negative": ([-4, -4, -2, -2], [-3, -4, -1, -2], 1 / 3),
}


@pytest.mark.parametrize(("first", "second", "iou"), OVERLAPS.values(), ids=OVERLAPS)
def test_overlap_of_two_boxes(first, second, iou):
    assert iou_matrix(boxes(first), boxes(second)) == pytest.approx(iou)
    assert iou_matrix(boxes(second), boxes(first)) == pytest.approx(iou)


@pytest.mark.parametrize(("rows", "columns"), [(0, 0), (0, 3), (3, 0), (2, 5)])
def test_overlap_matrix_has_a_row_and_a_column_for_each(rows, columns):
    matrix = iou_matrix(np.ones((rows, 4), np.float32), np.ones((columns, 4), np.float32))
    assert (matrix.shape, matrix.dtype) == ((rows, columns), np.float32)


A, B, FAR = [0, 0, 10, 10], [0, 0, 10, 9], [50, 50, 60, 60]
# boxes, scores, threshold, classes, limit; what is kept
SUPPRESSED = {
    "none": ([], [], 0.5, None, None, []),
    "one": ([A], [0.1], 0.5, None, None, [0]),
    "by score": ([B, A, FAR], [0.2, 0.3, 0.9], 0.5, None, None, [2, 1]),
    "ties by index": ([FAR, A, B], [0.5, 0.5, 0.5], 0.5, None, None, [0, 1]),
    "exactly the threshold stays": ([A, [0, 0, 10, 5]], [0.9, 0.8], 0.5, None, None, [0, 1]),
    "threshold 1 keeps twins": ([A, A], [0.9, 0.8], 1.0, None, None, [0, 1]),
    "threshold 0 keeps what touches": ([A, [10, 0, 20, 10]], [0.9, 0.8], 0.0, None, None, [0, 1]),
    "classes apart": ([A, A, A], [0.7, 0.8, 0.9], 0.5, [1, 0, 1], None, [2, 1]),
    "limit": ([A, FAR, B], [0.7, 0.8, 0.9], 0.5, None, 1, [2]),
    "limit above": ([A, FAR], [0.7, 0.8], 0.5, None, 99, [1, 0]),
    # the fallen box in the middle does not pull down the third
    "greedy": ([A, [0, 4, 10, 14], [0, 8, 10, 18]], [0.9, 0.8, 0.7], 0.4, None, None, [0, 2]),
    "negative coordinates": (
        [[-9, -9, -1, -1], [-9, -9, -1, -2]],
        [0.3, 0.4],
        0.5,
        None,
        None,
        [1],
    ),
}


@pytest.mark.parametrize("case", SUPPRESSED.values(), ids=SUPPRESSED)
def test_suppression(case):
    rows, scores, threshold, classes, limit, selected = case
    class_ids = None if classes is None else np.array(classes, np.int64)
    result = nms(boxes(*rows), np.array(scores, np.float32), threshold, class_ids, limit)
    assert result.tolist() == selected
    assert result.dtype == np.int64


def iou_of(first, second):
    width = max(0, min(first[2], second[2]) - max(first[0], second[0]))
    height = max(0, min(first[3], second[3]) - max(first[1], second[1]))
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (first, second)]
    return width * height / (sum(areas) - width * height)


def naive_nms(rows, scores, threshold, classes):
    selected = []
    for index in sorted(range(len(rows)), key=lambda i: (-scores[i], i)):
        rivals = [better for better in selected if classes[better] == classes[index]]
        if all(iou_of(rows[index], rows[better]) <= threshold for better in rivals):
            selected.append(index)
    return selected


BOX = st.tuples(*[st.integers(-20, 40)] * 2, *[st.integers(1, 30)] * 2).map(
    lambda b: (b[0], b[1], b[0] + b[2], b[1] + b[3])
)


@settings(max_examples=150)
@given(
    rows=st.lists(st.tuples(BOX, st.integers(0, 20), st.integers(0, 2)), max_size=60),
    threshold=st.sampled_from([0.0, 0.25, 0.43217, 0.5, 0.70711, 1.0]),
)
def test_suppression_equals_the_naive_loop(rows, threshold):
    corners, scores, classes = ([row[i] for row in rows] for i in range(3))
    result = nms(
        boxes(*corners), np.array(scores, np.float32), threshold, np.array(classes, np.int64)
    )
    assert result.tolist() == naive_nms(corners, scores, threshold, classes)


@pytest.mark.parametrize("limit", [None, 200])
def test_suppression_across_blocks_equals_the_naive_loop(limit):
    random = np.random.default_rng(2)
    start = random.integers(0, 200, (700, 2))
    corners = np.concatenate([start, start + random.integers(5, 40, (700, 2))], axis=1)
    scores, classes = random.integers(0, 50, 700), random.integers(0, 3, 700)
    result = nms(corners.astype(np.float32), scores.astype(np.float32), 0.43217, classes, limit)
    expected = naive_nms(corners.tolist(), scores.tolist(), 0.43217, classes.tolist())
    assert len(expected) > 300
    assert result.tolist() == expected[:limit]


@pytest.mark.parametrize(
    ("first", "second", "ios"),
    [([0, 0, 9, 9], [2, 3, 4, 4], 1), ([0, 0, 2, 2], [1, 0, 9, 2], 1 / 2), (A, FAR, 0), (A, A, 1)],
)
def test_overlap_over_the_smaller_box(first, second, ios):
    assert ios_matrix(boxes(first), boxes(second)) == pytest.approx(ios)
    assert ios_matrix(boxes(second), boxes(first)) == pytest.approx(ios)


@pytest.mark.parametrize("limit", [None, 0, 40])
@pytest.mark.parametrize("count", [0, 1, 500])
def test_suppression_at_once_drops_what_overlaps_anything_better(count, limit):
    random = np.random.default_rng(5)
    over = random.uniform(0, 1, (count, count)) < 1 / max(count, 1)
    over |= over.T
    scores = random.integers(0, 50, count).astype(np.float32)
    order = sorted(range(count), key=lambda index: (-scores[index], index))
    expected = [
        index
        for place, index in enumerate(order)
        if not any(over[index, better] for better in order[:place])
    ]
    selected = suppress_at_once(scores, lambda rows, columns: over[np.ix_(rows, columns)], limit)
    assert selected.tolist() == expected[:limit]
    assert count < 500 or len(expected) > 100

import math
from typing import Any

import numpy as np
import pytest

from quadriga.tasks.decoders import Candidates
from quadriga.tasks.geometry import iou_matrix
from quadriga.tasks.resize import PixelRect
from quadriga.tasks.specification import Tiling
from quadriga.tasks.tiling import count_tiles, merge, tiles

# image, tile, overlap; starts of columns and rows, size of the tiles
SPLITS: dict[str, Any] = {
    "exact": ((200, 100), (100, 100), 0, [0, 100], [0], (100, 100)),
    "the last is moved back": ((250, 100), (100, 100), 0, [0, 100, 150], [0], (100, 100)),
    "overlap": ((180, 140), (100, 100), 0.2, [0, 80], [0, 40], (100, 100)),
    "smaller than a tile": ((60, 30), (100, 100), 0.2, [0], [0], (60, 30)),
    "narrow": ((60, 300), (100, 100), 0.5, [0], [0, 50, 100, 150, 200], (60, 100)),
    "one pixel": ((1, 1), (100, 100), 0.2, [0], [0], (1, 1)),
    "one pixel more": ((101, 100), (100, 100), 0.2, [0, 1], [0], (100, 100)),
    "not square": ((100, 100), (60, 40), 0.25, [0, 40], [0, 30, 60], (60, 40)),
}


@pytest.mark.parametrize("case", SPLITS.values(), ids=SPLITS)
def test_an_image_is_covered_row_by_row(case):
    (width, height), size_wh, overlap, lefts, tops, tile_wh = case
    expected = [
        PixelRect(left, top, left + tile_wh[0], top + tile_wh[1]) for top in tops for left in lefts
    ]
    assert tiles(width, height, size_wh, overlap) == expected
    assert count_tiles(width, height, size_wh, overlap) == len(expected)


@pytest.mark.parametrize("overlap", [0, 0.1, 0.33, 0.5, 0.99])
@pytest.mark.parametrize("side", [1, 63, 64, 65, 100, 257])
def test_every_pixel_is_seen_and_no_tile_passes_the_image(side, overlap):
    seen = np.zeros((side, 70), int)
    for tile in tiles(70, side, (64, 64), overlap):
        part = tile.cut(seen)
        assert part.shape == tile.size_hw
        part += 1
    assert seen.min() >= 1


def merging(**fields: Any):
    return Tiling(size=(100, 100), **fields)


def seen_in(tile, boxes, scores, classes):
    """What a perfect detector finds in one tile: boxes cut at its borders, a little off in score."""
    rows = []
    for box, score, class_id in zip(boxes, scores, classes, strict=True):
        cut = np.clip(np.subtract(box, [tile.left, tile.top] * 2), 0, [*tile.size_hw[::-1]] * 2)
        if (cut[2:] > cut[:2]).all():
            share = np.prod(cut[2:] - cut[:2]) / ((box[2] - box[0]) * (box[3] - box[1]))
            rows.append(([*cut], score * (0.5 + share / 2), class_id))
    return tile, candidates(*rows)


def candidates(*rows: Any):
    return Candidates(
        np.array([row[0] for row in rows], np.float32).reshape(-1, 4),
        np.array([row[1] for row in rows], np.float32),
        np.array([row[2] for row in rows], np.int64),
        suppress=False,
    )


ACROSS = {
    "inside one tile": [10, 10, 30, 30],
    "in the overlap of two": [82, 10, 98, 30],
    "on a border": [70, 10, 95, 30],
    "over a border": [75, 40, 112, 60],
    "on the corner of four": [75, 75, 112, 112],
    "longer than a tile": [20, 20, 240, 60],
    "whole image": [0, 0, 260, 180],
}


@pytest.mark.parametrize("metric", ["iou", "ios"])
@pytest.mark.parametrize("method", ["nms", "nmm"])
@pytest.mark.parametrize("name", ["inside one tile", "in the overlap of two"])
def test_an_object_seen_whole_is_answered_once_as_it_is(name, method, metric):
    box = ACROSS[name]
    merged = [seen_in(tile, [box], [0.9], [3]) for tile in tiles(260, 180, (100, 100), 0.2)]
    full_box = merge(merged, merging(merge=method, metric=metric))
    assert full_box.boxes.tolist() == [box]
    assert full_box.scores.tolist() == [np.float32(0.9)]
    assert full_box.class_ids.tolist() == [3]


@pytest.mark.parametrize("box", ACROSS.values(), ids=ACROSS)
def test_an_object_on_a_border_is_merged_from_its_parts(box):
    merged = [seen_in(tile, [box], [0.9], [3]) for tile in tiles(260, 180, (100, 100), 0.2)]
    full_box = merge(merged, merging(merge="nmm", metric="ios", threshold=0.15))
    assert full_box.boxes.tolist() == [box]


def test_neighbours_and_other_classes_stay_apart():
    boxes = [[70, 10, 95, 30], [70, 32, 95, 50], [70, 10, 95, 30], [10, 10, 30, 30]]
    scores, classes = [0.9, 0.8, 0.7, 0.6], [1, 1, 2, 1]
    merged = [seen_in(tile, boxes, scores, classes) for tile in tiles(260, 180, (100, 100), 0.3)]
    for method in ("nms", "nmm"):
        full_box = merge(merged, merging(merge=method))
        assert full_box.boxes.tolist() == boxes
        assert full_box.class_ids.tolist() == classes
        assert merge(merged, merging(merge=method), limit=2).boxes.tolist() == boxes[:2]


def test_a_part_falls_by_the_smaller_box_but_not_by_the_union():
    tile = PixelRect(0, 0, 100, 100)
    merged = [(tile, candidates(([0, 0, 80, 20], 0.9, 0), ([60, 0, 80, 20], 0.8, 0)))]
    assert len(merge(merged, merging(merge="nms", metric="ios")).boxes) == 1
    assert len(merge(merged, merging(merge="nms", metric="iou")).boxes) == 2


@pytest.mark.parametrize("method", ["nms", "nmm"])
def test_tiles_without_objects_give_none(method):
    merged = [(tile, candidates()) for tile in tiles(260, 180, (100, 100), 0.2)]
    assert merge(merged, merging(merge=method)).boxes.shape == (0, 4)


def oriented(*rows: Any):
    return Candidates(
        np.array([row[:5] for row in rows], np.float32).reshape(-1, 5),
        np.array([row[5] for row in rows], np.float32),
        np.zeros(len(rows), np.int64),
        suppress=False,
    )


@pytest.mark.parametrize("metric", ["iou", "ios"])
@pytest.mark.parametrize("method", ["nms", "nmm"])
def test_a_rotated_object_seen_twice_is_answered_once(method, metric):
    left, right = tiles(180, 100, (100, 100), 0.2)
    seen = [
        (left, oriented([90, 50, 16, 8, 0.6, 0.9])),
        (right, oriented([10, 50, 16, 8, 0.6, 0.8])),
    ]
    full_box = merge(seen, merging(merge=method, metric=metric))
    np.testing.assert_allclose(full_box.boxes, [[90, 50, 16, 8, 0.6]], atol=1e-5)


@pytest.mark.parametrize("turn", [0, 0.5, math.pi / 2, 2.5])
def test_a_rotated_object_over_a_border_is_merged_along_its_rotation(turn):
    along = np.array([math.cos(turn), math.sin(turn)])
    truth = [90, 50, 60, 10, turn]
    # two parts of 36 px that share 12, the second turned round: the same rectangle all the same
    first, second = np.array([90, 50]) - along * 12, np.array([90, 50]) + along * 12
    left, right = tiles(180, 100, (100, 100), 0.2)
    merged = [
        (left, oriented([*first, 36, 10, turn, 0.9])),
        (right, oriented([second[0] - right.left, second[1], 36, 10, turn + math.pi, 0.8])),
    ]
    full_box = merge(merged, merging(threshold=0.3))
    assert len(full_box.boxes) == 1
    assert iou_matrix(full_box.boxes, np.array([truth]))[0, 0] > 0.999
    assert full_box.boxes[0, 4] == pytest.approx(turn)
    assert len(merge(merged, merging(merge="nms", threshold=0.5)).boxes) == 2


def test_rotated_objects_side_by_side_stay_apart_though_their_frames_meet():
    tile = PixelRect(0, 0, 100, 100)
    merged = [(tile, oriented([50, 50, 60, 6, 0.8, 0.9], [56, 44, 60, 6, 0.8, 0.8]))]
    assert len(merge(merged, merging()).boxes) == 2

"""Regions over the borders of tiles: one object is one, two objects stay two."""

import numpy as np
import pytest

from quadriga.tasks.geometry import fill, rings
from quadriga.tasks.segmentation import Piece, by_class, join, without_small_parts
from quadriga.tasks.tiling import tiles


def pieces_of(masks, tile):
    """What a perfect network sees in a tile: class, mask of the whole image -> pieces of the tile."""
    pieces = []
    for class_id, mask in masks:
        region = tile.cut(mask)
        if region.any():
            pieces.append(Piece(class_id, 0.5, int(region.sum()), rings(region)))
    return pieces


def joined(masks, size, overlap):
    height, width = masks[0][1].shape
    places = tiles(width, height, size, overlap)
    return join([(tile, pieces_of(masks, tile)) for tile in places], 0.5)


def mask_of(piece, shape):
    return fill(piece.rings, shape[1], shape[0])


def block(shape, top, left, bottom, right):
    mask = np.zeros(shape, np.uint8)
    mask[top:bottom, left:right] = 1
    return mask


SHAPE = (60, 100)
WIDE = block(SHAPE, 10, 5, 30, 95)
SMALL = block(SHAPE, 40, 40, 50, 60)
HOLED = WIDE.copy()
HOLED[15:25, 45:55] = 0
CORNER = block(SHAPE, 28, 48, 32, 52)


@pytest.mark.parametrize("overlap", [0, 0.2, 0.5])
@pytest.mark.parametrize("size", [(40, 60), (50, 30), (33, 31), (100, 60)])
@pytest.mark.parametrize(
    "mask", [WIDE, SMALL, HOLED, CORNER], ids=["wide", "small", "holed", "corner"]
)
def test_an_object_over_borders_is_one_and_whole(mask, size, overlap):
    (piece,) = joined([(3, mask)], size, overlap)
    assert piece.class_id == 3
    assert piece.score == pytest.approx(0.5)
    assert piece.area_px == mask.sum()
    np.testing.assert_array_equal(mask_of(piece, SHAPE), mask)


@pytest.mark.parametrize("overlap", [0, 0.3])
def test_objects_of_two_classes_and_apart_stay_two(overlap):
    apart = [(1, block(SHAPE, 10, 5, 30, 45)), (1, block(SHAPE, 10, 55, 30, 95)), (2, SMALL)]
    pieces = joined(apart, (50, 60), overlap)
    assert sorted(piece.class_id for piece in pieces) == [1, 1, 2]
    touching = [(1, block(SHAPE, 10, 5, 30, 50)), (2, block(SHAPE, 10, 50, 30, 95))]
    assert sorted(piece.class_id for piece in joined(touching, (50, 60), overlap)) == [1, 2]


def test_scores_are_weighted_by_area_and_nothing_is_nothing():
    left, right = tiles(100, 60, (50, 60), 0)
    pieces = [
        (left, [Piece(0, 1.0, 900, rings(left.cut(WIDE)))]),
        (right, [Piece(0, 0.5, 900, rings(right.cut(WIDE)))]),
    ]
    (piece,) = join(pieces, 0.5)
    assert piece.score == pytest.approx(0.75)
    assert join([(left, []), (right, [])], 0.5) == []


def test_of_a_class_instances_stay_apart():
    left, right = block(SHAPE, 10, 5, 30, 45), block(SHAPE, 10, 55, 30, 85)
    pieces = [
        Piece(1, score, int(mask.sum()), rings(mask), instance=instance)
        for instance in (True, False)
        for score, mask in ((0.5, left), (0.75, right))
    ]
    first, second, together = by_class(pieces)
    assert [first, second] == pieces[:2]
    assert not together.instance
    assert together.score == pytest.approx((0.5 * 800 + 0.75 * 600) / 1400)
    np.testing.assert_array_equal(mask_of(together, SHAPE), left | right)


def test_small_parts_are_left_out_of_a_joined_region():
    parted = WIDE | SMALL
    piece = Piece(1, 0.5, int(parted.sum()), rings(parted, 7, 3))
    assert without_small_parts(piece, SMALL.sum()) is piece
    large = without_small_parts(piece, SMALL.sum() + 1)
    assert large is not None
    assert (large.score, large.area_px) == (0.5, WIDE.sum())
    shifted = fill(large.rings, SHAPE[1] + 7, SHAPE[0] + 3)[3:, 7:]
    np.testing.assert_array_equal(shifted, WIDE)
    assert without_small_parts(piece, WIDE.sum() + 1) is None

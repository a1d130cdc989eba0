import itertools

import cv2
import numpy as np
import pytest

from quadriga.tasks.resize import (
    Affine,
    PixelRect,
    above_zero,
    bilinear,
    cut,
    grid_of,
    image_placement,
    nearest,
    visible,
)
from quadriga.tasks.specification import InputSpec
from tests.by_definition import enlarged

_RANDOM = np.random.default_rng(3)

# resize, image w x h, network w x h, cells h x w
PLACES = list(
    itertools.product(
        ["letterbox", "letterbox_topleft", "letterbox_rect", "stretch", "shortest_crop", "none"],
        [(50, 30), (7, 40), (64, 64)],
        [(64, 64), (96, 32)],
        [(8, 8), (16, 5)],
    )
)


def affine_of(resize, image_wh, network_wh):
    spec = InputSpec(name="images", size_wh=network_wh, resize=resize, crop_fraction=1.0)
    return image_placement(*image_wh, spec)[0]


@pytest.mark.parametrize(("resize", "image_wh", "network_wh", "cells_hw"), PLACES)
def test_samples_equal_those_of_the_definition(resize, image_wh, network_wh, cells_hw):
    affine = affine_of(resize, image_wh, network_wh)
    maps = _RANDOM.normal(size=(2, *cells_hw)).astype(np.float32)
    grid = grid_of(affine, cells_hw)
    window = visible(grid)
    samples = bilinear(maps, grid, window)
    assert samples.shape == (2, *window.size_hw)
    expected = enlarged(maps, affine)[:, window.top : window.bottom, window.left : window.right]
    np.testing.assert_allclose(samples, expected, atol=1e-4)


@pytest.mark.parametrize(("resize", "image_wh", "network_wh", "cells_hw"), PLACES)
def test_visible_are_the_pixels_whose_centres_the_network_saw(
    resize, image_wh, network_wh, cells_hw
):
    affine = affine_of(resize, image_wh, network_wh)
    window = visible(grid_of(affine, cells_hw))
    centres = [np.arange(size) + 0.5 for size in image_wh]
    for axis, (first, last) in enumerate(
        [(window.left, window.right), (window.top, window.bottom)]
    ):
        pairs = np.stack([centres[axis]] * 2, axis=1)
        visible_pixels = affine.to_network(pairs)[:, axis]
        inside = np.flatnonzero((visible_pixels >= 0) & (visible_pixels < affine.network_wh[axis]))
        assert (first, last) == (inside[0], inside[-1] + 1)


@pytest.mark.parametrize("image_wh", [(40, 24), (5, 3), (20, 20)])
def test_stretch_is_a_resize(image_wh):
    affine = affine_of("stretch", image_wh, (64, 64))
    maps = _RANDOM.normal(size=(1, 9, 12)).astype(np.float32)
    grid = grid_of(affine, (9, 12))
    expected = cv2.resize(maps[0], image_wh, interpolation=cv2.INTER_LINEAR)
    np.testing.assert_allclose(bilinear(maps, grid, visible(grid))[0], expected, atol=1e-5)


@pytest.mark.parametrize("factor", [2, 4])
def test_maps_may_be_enlarged_before(factor):
    affine = affine_of("letterbox", (50, 30), (64, 64))
    maps = _RANDOM.normal(size=(1, 16, 16)).astype(np.float32)
    fine = cv2.resize(maps[0], None, fx=factor, fy=factor)[None].astype(np.float32)
    window = PixelRect(3, 5, 40, 28)
    expected = bilinear(fine, grid_of(affine, fine.shape[1:]), window)
    grid = grid_of(affine, (16, 16))
    np.testing.assert_allclose(bilinear(maps, grid, window, factor), expected, atol=1e-5)
    crop, part_grid = cut(maps, grid, window, margin=2)
    np.testing.assert_allclose(bilinear(crop, part_grid, window, factor), expected, atol=1e-5)


def test_a_letterbox_border_takes_no_part():
    affine = affine_of("letterbox", (64, 32), (64, 64))
    maps = np.full((1, 16, 16), 9, np.float32)
    maps[:, 4:12] = 1
    grid = grid_of(affine, (16, 16))
    assert (bilinear(maps, grid, visible(grid)) == 1).all()
    assert (nearest(maps[0], grid, visible(grid)) == 1).all()


@pytest.mark.parametrize(("resize", "image_wh", "network_wh", "cells_hw"), PLACES)
def test_the_nearest_cell_is_the_one_around_the_centre(resize, image_wh, network_wh, cells_hw):
    grid = grid_of(affine_of(resize, image_wh, network_wh), cells_hw)
    cells = np.arange(cells_hw[0] * cells_hw[1]).reshape(cells_hw)
    window = visible(grid)
    samples = nearest(cells, grid, window)
    for y, x in itertools.product(range(samples.shape[0]), range(samples.shape[1])):
        u = (x + window.left + 0.5) * grid.sx + grid.px
        v = (y + window.top + 0.5) * grid.sy + grid.py
        row, column = divmod(int(samples[y, x]), cells_hw[1])
        assert column - 1e-5 <= u <= column + 1 + 1e-5
        assert row - 1e-5 <= v <= row + 1 + 1e-5


@pytest.mark.parametrize(("resize", "image_wh", "network_wh", "cells_hw"), PLACES)
def test_nothing_is_above_zero_outside_of_the_window(resize, image_wh, network_wh, cells_hw):
    grid = grid_of(affine_of(resize, image_wh, network_wh), cells_hw)
    seen = visible(grid)
    for share in (0, 0.02, 0.2, 1):
        cells = np.where(_RANDOM.random(cells_hw) < share, 1.0, -0.01).astype(np.float32)
        everywhere = bilinear(cells[None], grid, seen)[0]
        window = above_zero(cells, grid)
        if not window.empty:
            rows = slice(window.top - seen.top, window.bottom - seen.top)
            everywhere[rows, window.left - seen.left : window.right - seen.left] = 0
        assert (everywhere <= 0).all()


def test_tiles_cover_a_window_once():
    counted = np.zeros((20, 30), int)
    for tile in PixelRect(3, 4, 30, 17).tiles(5, 8):
        counted[tile.top : tile.bottom, tile.left : tile.right] += 1
    assert (counted[4:17, 3:30] == 1).all()
    assert counted.sum() == 13 * 27


def test_an_image_thinner_than_a_cell_takes_the_cell_it_lies_in():
    affine = Affine(64 / 5000, 1.0, 0, 31, 5000, 1, (64, 64))
    maps = np.arange(16, dtype=np.float32)[None, :, None].repeat(16, axis=2)
    grid = grid_of(affine, (16, 16))
    assert nearest(maps[0], grid, PixelRect(0, 0, 3, 1)).tolist() == [[7, 7, 7]]
    np.testing.assert_allclose(bilinear(maps, grid, PixelRect(0, 0, 3, 1)), 7.375, atol=1e-5)

"""What decided: the map's maximum lies on the object, whatever its place."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadriga.tasks.image import Image
from quadriga.tasks.predictions import Classification, Detection
from quadriga.tasks.tiling import cell_rects, occluded_images, saliency, score

BOX = Detection("a", 0.8, 10.0, 10.0, 20.0, 20.0)


def explain(image, target, answer, rows, columns):
    """The map of an image for a model given as a function from pixels to predictions."""
    rects = cell_rects(rows, columns)
    scores = [
        score(target, answer(covered_image.pixels))
        for covered_image in occluded_images(image, rows, columns, rects)
    ]
    return saliency(target.score, scores, rows, columns, rects)


def test_windows_cover_every_cell_alike():
    assert cell_rects(1, 1) == [(0, 1, 0, 1)] * 4
    counts = np.zeros((3, 5), int)
    for top, bottom, left, right in cell_rects(3, 5):
        counts[top:bottom, left:right] += 1
    assert (counts == 4).all()


@pytest.mark.parametrize(
    ("target", "answer", "expected"),
    [
        (Classification("a", 0.9), [], 0.0),
        (Classification("a", 0.9), [Classification("b", 0.7), Classification("a", 0.3)], 0.3),
        (BOX, [], 0.0),
        (BOX, [BOX], 0.8),
        (BOX, [Detection("b", 0.9, 10.0, 10.0, 20.0, 20.0)], 0.0),
        (BOX, [Detection("a", 0.5, 10.0, 10.0, 20.0, 15.0)], 0.25),
        (BOX, [Detection("a", 0.9, 90.0, 90.0, 99.0, 99.0), BOX], 0.8),
        (BOX, [Classification("a", 0.9)], 0.0),
    ],
)
def test_scores_in_another_answer(target, answer, expected):
    assert score(target, answer) == pytest.approx(expected)


def test_covering_leaves_the_rest_and_the_image_itself():
    pixels = np.random.default_rng(1).integers(0, 256, (13, 17, 3), np.uint8)
    original = pixels.copy()
    (covered,) = occluded_images(Image(pixels), 2, 2, [(0, 1, 1, 2)])
    mean = pixels.reshape(-1, 3).mean(0).round().astype(np.uint8)
    assert (covered.pixels[:6, 8:] == mean).all()
    np.testing.assert_array_equal(covered.pixels[6:], pixels[6:])
    np.testing.assert_array_equal(covered.pixels[:, :8], pixels[:, :8])
    np.testing.assert_array_equal(pixels, original)


@given(
    st.integers(40, 120), st.integers(40, 120), st.floats(0, 1), st.floats(0, 1), st.integers(4, 9)
)
def test_the_maximum_lies_on_the_object(height, width, down, right, cells):
    size = 14
    top, left = int(down * (height - size)), int(right * (width - size))
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[top : top + size, left : left + size, 0] = 255

    def answer(seen):
        share = (seen[top : top + size, left : left + size, 0] == 255).mean()
        return [Classification("red", float(share))]

    values = explain(Image(pixels), Classification("red", 1.0), answer, cells, cells)
    row, column = np.unravel_index(values.argmax(), values.shape)
    y, x = np.linspace(0, height, cells + 1), np.linspace(0, width, cells + 1)
    assert y[row] < top + size + 1
    assert y[row + 1] > top - 1
    assert x[column] < left + size + 1
    assert x[column + 1] > left - 1
    assert values.min() >= 0

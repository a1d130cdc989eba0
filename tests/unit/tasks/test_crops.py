"""Crops: which detections have one, which pixels it has, and that its file holds the same."""

import numpy as np
import pytest

from quadriga.tasks.image import Image, decode
from quadriga.tasks.predictions import Classification, Detection, OrientedDetection
from quadriga.tasks.resize import PixelRect
from quadriga.tasks.tiling import choose_detections, crop_rect, cut, encode_losslessly


def box(xmin, ymin, xmax, ymax, *, label="a", score=0.5):
    return Detection(label, score, xmin, ymin, xmax, ymax)


@pytest.mark.parametrize(
    ("detection", "margin", "rect"),
    [
        pytest.param(box(2, 3, 5, 7), 0, (2, 3, 5, 7), id="whole pixels"),
        pytest.param(box(2.4, 3.9, 5.1, 7.01), 0, (2, 3, 6, 8), id="every pixel it touches"),
        pytest.param(box(10, 10, 20, 12), 0.5, (5, 9, 25, 13), id="margin of each side's length"),
        pytest.param(box(-5, -0.5, 1e30, 60), 0, (0, 0, 40, 30), id="cut off at the edges"),
        pytest.param(box(1, 1, 39, 29), 10, (0, 0, 40, 30), id="margin cut off, too"),
        pytest.param(box(3.2, 4.2, 3.2, 4.2), 0, (3, 4, 4, 5), id="no area, inside of a pixel"),
        pytest.param(box(50, 2, 60, 5), 0, None, id="outside"),
        pytest.param(box(3, 4, 3, 9), 0, None, id="no width, between pixels"),
        pytest.param(
            OrientedDetection("a", 0.5, 0.5, 0.5, 0.25, 0.2, 0.0), 0, (15, 12, 25, 18), id="upright"
        ),
        pytest.param(
            OrientedDetection("a", 0.5, 0.5, 0.5, 0.25, 0.2, np.pi / 2),
            0,
            (17, 10, 23, 20),
            id="turned by a quarter: the rectangle around it",
        ),
    ],
)
def test_a_crop_is_every_pixel_that_the_box_touches(detection, margin, rect):
    # A quarter turn has corners that are off by a rounding error.
    found = crop_rect(detection, margin, (40, 30))
    if rect is None:
        assert found.empty
        return
    edges = np.array([found.left, found.top, found.right, found.bottom])
    tolerance = 1 if isinstance(detection, OrientedDetection) else 0
    np.testing.assert_allclose(edges, rect, atol=tolerance)
    assert not found.empty


@pytest.mark.parametrize(
    ("labels", "min_score", "positions"),
    [
        (None, 0, [1, 2, 0]),
        (None, 0.5, [1, 2]),
        (("a",), 0, [1, 0]),
        (("a", "b"), 0.9, [1]),
        (("c",), 0, []),
    ],
)
def test_detections_are_chosen_by_label_and_score(labels, min_score, positions):
    predictions = [
        box(0, 0, 1, 1, label="a", score=0.4),
        box(0, 0, 1, 1, label="a", score=0.9),
        box(0, 0, 1, 1, label="b", score=0.5),
        Classification("a", 1.0),  # no place in the image
    ]
    assert choose_detections(predictions, labels, min_score) == positions


def test_nothing_is_chosen_of_nothing():
    assert choose_detections([], None, 0) == []


@pytest.mark.parametrize(
    ("channels", "bit_depth"),
    [
        *[(channels, 8) for channels in (2, 3, 4, 5)],  # gray of 8 bits is decoded as RGB
        *[(channels, bits) for channels in (1, 2, 3, 4, 5) for bits in (12, 16)],
    ],
)
def test_the_file_of_a_crop_holds_its_pixels(channels, bit_depth):
    kind = np.uint8 if bit_depth == 8 else np.uint16
    random = np.random.default_rng(1)
    pixels = random.integers(0, 1 << bit_depth, (9, 7, channels), kind)
    part = cut(Image(pixels, bit_depth=bit_depth), PixelRect(1, 2, 6, 8))
    assert part.pixels.base is None, "it would hold the whole image"
    data, mime = encode_losslessly(part)
    decoded = decode(data, channels=channels, bit_depth=bit_depth)
    assert decoded.mime == mime
    np.testing.assert_array_equal(decoded.pixels, pixels[2:8, 1:6])

"""Masks, pixel by pixel beside COCO's own code and the one rule of contours."""

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools import mask as coco

from quadriga.monitor.evaluation.pixels.masks import (
    Masks,
    from_contours,
    from_runs,
    mask_overlaps,
)
from quadriga.monitor.evaluation.pixels.run_lengths import from_polygons, masks_from_segmentations
from quadriga.monitor.evaluation.state import EvaluationError
from quadriga.store.exchange.coco import RunLengths
from quadriga.tasks.geometry import fill, rings

# pycocotools' own.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def lines(masks: Masks, at: int, shape: tuple[int, int]) -> np.ndarray:
    """Return a mask as uint8 (lines, pixels) of the whole image."""
    start_line, stop_line, low, high = masks.frame[at].tolist()
    stride = -(-high // 64) - low // 64
    words = masks.words[masks.start[at] :][: (stop_line - start_line) * stride]
    canvas = np.zeros((shape[0], max(shape[1], -(-high // 64) * 64)), np.uint8)
    bits = np.unpackbits(words.astype("<u8").view(np.uint8), bitorder="little")
    canvas[start_line:stop_line, low // 64 * 64 :][:, : stride * 64] = bits.reshape(
        stop_line - start_line, stride * 64
    )
    assert not canvas[:, shape[1] :].any()
    return canvas[:, : shape[1]]


def named(at: int) -> str:
    return f"region {at}"


def region(pick: np.random.Generator, width: int, height: int) -> np.ndarray:
    """Return a mask of some ellipses, with holes, at times empty, one pixel, or the whole image."""
    mask = np.zeros((height, width), np.uint8)
    for _ in range(pick.integers(0, 4)):
        centre = pick.integers(0, (width, height)).tolist()
        axes = pick.integers(0, 60, 2).tolist()
        value = int(pick.random() < 0.7)
        cv2.ellipse(mask, centre, axes, int(pick.integers(180)), 0, 360, value, -1)
    if pick.random() < 0.1:
        mask[:] = 1
    return mask


def encoded(mask: np.ndarray) -> dict:
    return coco.encode(np.asfortranarray(mask))


def run_lengths(mask: np.ndarray) -> RunLengths:
    encoded_mask = encoded(mask)
    return RunLengths(tuple(encoded_mask["size"]), encoded_mask["counts"].decode())


def plain(mask: np.ndarray) -> RunLengths:
    flat = mask.ravel(order="F")
    bounds = np.flatnonzero(np.diff(flat, prepend=0)).tolist()
    counts = np.diff([0, *bounds, flat.size]).tolist()
    return RunLengths(mask.shape, counts)


def polygon(pick: np.random.Generator, width: int, height: int) -> list[float]:
    points = pick.normal(
        pick.random(2) * (width, height), pick.uniform(0.5, 80), (pick.integers(3, 12), 2)
    )
    if pick.random() < 0.5:
        steps = pick.choice([1, 2, 10])
        points = np.round(points * steps) / steps
    if pick.random() < 0.2:
        points[1] = points[0]
    return points.ravel().tolist()


@pytest.mark.parametrize("seed", range(20))
def test_polygons_are_filled_as_the_reference_fills_them(seed):
    pick = np.random.default_rng(seed)
    sizes = pick.integers(1, 200, (30, 2))
    polygons = [[polygon(pick, *size) for _ in range(pick.integers(1, 4))] for size in sizes]
    masks = from_runs(from_polygons(polygons, sizes, named), sizes[:, 1])
    for at, (width, height) in enumerate(sizes.tolist()):
        theirs = coco.decode(coco.merge(coco.frPyObjects(polygons[at], height, width)))
        np.testing.assert_array_equal(lines(masks, at, (width, height)).T, theirs)
        assert masks.area[at] == theirs.sum()


@pytest.mark.parametrize("write", [run_lengths, plain])
@pytest.mark.parametrize("seed", range(10))
def test_run_lengths_are_the_masks_that_were_written(seed, write):
    pick = np.random.default_rng(seed)
    sizes = pick.integers(1, 200, (20, 2))
    regions = [region(pick, *size) for size in sizes]
    regions[0] = (pick.random(regions[0].shape) < 0.5).astype(np.uint8)
    masks = masks_from_segmentations([write(mask) for mask in regions], sizes, named)
    for at, mask in enumerate(regions):
        np.testing.assert_array_equal(lines(masks, at, mask.T.shape).T, mask)
    assert masks.area.tolist() == [mask.sum() for mask in regions]


coordinates = st.integers(-30, 150)
outlines = st.lists(st.lists(st.tuples(coordinates, coordinates), max_size=6), max_size=3)


@settings(max_examples=200)
@given(st.lists(outlines, max_size=4), st.integers(1, 140), st.integers(1, 140))
def test_contours_are_filled_by_their_one_rule(contours, width, height):
    contours = [[np.array(ring, np.int32) for ring in contour if ring] for contour in contours]
    masks = from_contours(contours, width, height)
    for at, contour in enumerate(contours):
        mask = fill(contour, width, height)
        np.testing.assert_array_equal(lines(masks, at, mask.shape), mask)
        assert masks.area[at] == mask.sum()


@pytest.mark.parametrize("seed", range(10))
def test_overlaps_are_those_of_the_reference_and_contours_and_runs_agree(seed):
    pick = np.random.default_rng(seed)
    width, height = pick.integers(60, 200, 2).tolist()
    predicted, true = ([region(pick, width, height) for _ in range(12)] for _ in range(2))
    crowd = pick.random(12) < 0.3
    theirs = coco.iou(
        [encoded(mask) for mask in predicted], [encoded(mask) for mask in true], crowd
    )
    sizes = np.full((12, 2), (width, height))
    image_numbers = np.zeros(12, np.int64)
    by_runs = [
        masks_from_segmentations([run_lengths(mask) for mask in regions], sizes, named)
        for regions in (predicted, true)
    ]
    by_rings = [
        from_contours([rings(mask) for mask in regions], width, height)
        for regions in (predicted, true)
    ]
    for masks in (by_runs, by_rings):
        prediction, truth, overlap = mask_overlaps(*masks, (image_numbers, image_numbers), crowd)
        ours = np.zeros((12, 12))
        ours[prediction, truth] = overlap
        np.testing.assert_array_equal(ours, theirs)
        assert (overlap > 0).all()


def test_only_masks_of_one_image_are_compared(monkeypatch):
    monkeypatch.setattr("quadriga.monitor.evaluation.pixels.masks._LINES", 7)  # in several parts
    square = fill([np.array([(2, 3), (9, 3), (9, 12), (2, 12)], np.int32)], 70, 40)
    masks = masks_from_segmentations([run_lengths(square)] * 4, np.full((4, 2), (70, 40)), named)
    images = np.array([0, 1, 1, 3]), np.array([1, 2, 3, 3])
    prediction, truth, overlap = mask_overlaps(masks, masks, images, np.zeros(4, bool))
    assert list(zip(prediction.tolist(), truth.tolist(), strict=True)) == [
        (1, 0), (2, 0), (3, 2), (3, 3),
    ]  # fmt: skip
    assert overlap.tolist() == [1.0] * 4


def test_a_square_of_twenty_pixels_is_four_hundred():
    """The area is that of the example in `docs/evaluation-reference.md`."""
    ring = np.array([(0, 0), (19, 0), (19, 19), (0, 19)], np.int32)
    assert from_contours([[ring]], 100, 100).area.tolist() == [400]
    size = np.array([(100, 100)])
    edges = [[0.0, 0.0, 20.0, 0.0, 20.0, 20.0, 0.0, 20.0]]
    assert masks_from_segmentations([edges], size, named).area.tolist() == [400]
    assert masks_from_segmentations([[ring.ravel().tolist()]], size, named).area.tolist() == [361]


WRONG = {
    "expected a segmentation of 4 x 6, height and width of the image, got none": None,
    "expected a segmentation of 4 x 6, height and width of the image, got one of 6 x 4": RunLengths(
        (6, 4), [24]
    ),
    "expected counts to sum to 24 pixels, got 23": RunLengths((4, 6), [3, 20]),
    "expected counts of 0 to 24, got -1": RunLengths((4, 6), [3, -1, 22]),
    "expected counts of 0 to 24, got 9223372036854775807": RunLengths((4, 6), [2**63 - 1, 2**63 - 1]),
    "expected counts to be COCO's compressed run lengths": RunLengths((4, 6), "0\x10"),
    "compressed run lengths": RunLengths((4, 6), "o"),
    "expected polygons of three pairs of x and y or more, got 4 numbers": [[0.0, 0, 1, 1]],
    "three pairs of x and y or more, got 7 numbers": [[0.0] * 7],
    "expected points near the image, got \\[1e\\+300, 0.0\\]": [[0.0, 0, 1, 1, 1e300, 0]],
}  # fmt: skip


@pytest.mark.parametrize("message", WRONG)
def test_a_segmentation_that_is_none_is_named(message):
    good = RunLengths((4, 6), [24])
    size = np.full((3, 2), (6, 4))
    with pytest.raises(EvaluationError, match=f"region 1: .*{message}"):
        masks_from_segmentations([good, WRONG[message], [[0.0, 0, 3, 0, 3, 3]]], size, named)


def test_nothing_is_no_masks():
    masks = masks_from_segmentations(
        [[], RunLengths((4, 6), [24]), RunLengths((4, 6), [0, 24])], np.full((3, 2), (6, 4)), named
    )
    assert masks.area.tolist() == [0, 0, 24]
    none = masks_from_segmentations([], np.zeros((0, 2), np.int64), named)
    image_numbers = np.zeros(3, np.int64)
    assert [
        len(array)
        for array in mask_overlaps(
            masks, none, (image_numbers, image_numbers[:0]), np.zeros(0, bool)
        )
    ] == [0] * 3
    assert [
        len(array)
        for array in mask_overlaps(
            none, masks, (image_numbers[:0], image_numbers), np.zeros(3, bool)
        )
    ] == [0] * 3
    prediction, truth, overlap = mask_overlaps(
        masks, masks, (image_numbers, image_numbers), np.zeros(3, bool)
    )
    assert (prediction.tolist(), truth.tolist(), overlap.tolist()) == ([2], [2], [1.0])

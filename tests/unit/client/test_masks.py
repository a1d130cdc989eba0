"""Masks as ground truth: rings that fill the same pixels again, classes by value, and what is no mask."""

import io

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from quadriga.client import mask_annotations
from quadriga.client.errors import InputError
from quadriga.client.masks import mask_rings
from quadriga.client.results import Region
from quadriga.store.changes.annotations import parse_annotations
from quadriga.tasks import geometry


def points(rings):
    return [np.array([(point["x"], point["y"]) for point in ring], np.int32) for ring in rings]


def normalized(rings):
    """Return rings as sets of their points, as each may begin anywhere."""
    return sorted(sorted(map(tuple, ring.tolist())) for ring in rings)


SHAPES = {
    "nothing": ["..."],
    "one pixel": ["...", ".#.", "..."],
    "all of it": ["##", "##"],
    "one row": ["####"],
    "one column": ["#", "#", "#"],
    "a diagonal": ["#..", ".#.", "..#"],
    "a ring": ["###", "#.#", "###"],
    "an island in a hole": ["#####", "#...#", "#.#.#", "#...#", "#####"],
    "two holes that touch": ["#####", "#.###", "##.##", "#####"],
    "two regions": ["##..", "##..", "...#"],
    "a hole at a corner": ["#.#", ".#.", "#.#"],
    "a wall of one pixel": ["#####", "#...#", "#.###", "#.#..", "###.."],
}


@pytest.mark.parametrize("rows", SHAPES.values(), ids=SHAPES)
def test_rings_are_those_of_the_server_and_fill_the_mask_again(rows):
    mask = np.array([[letter == "#" for letter in row] for row in rows])
    rings = points(mask_rings(mask))
    assert normalized(rings) == normalized(geometry.rings(mask.astype(np.uint8)))
    height, width = mask.shape
    assert (geometry.fill(rings, width, height) == mask).all()


@settings(max_examples=300)
@given(arrays.arrays(np.bool_, st.tuples(st.integers(1, 12), st.integers(1, 12))))
def test_any_mask_is_filled_again(mask):
    rings = points(mask_rings(mask))
    assert (geometry.fill(rings, mask.shape[1], mask.shape[0]) == mask).all()
    assert normalized(rings) == normalized(geometry.rings(mask.astype(np.uint8)))


def test_a_large_mask_keeps_each_pixel():
    random = np.random.default_rng(7)
    coarse = random.random((30, 40)) > 0.6
    mask = cv2.resize(coarse.astype(np.uint8), (1200, 900), interpolation=cv2.INTER_CUBIC) > 0
    mask[5, 5] = mask[899, 1199] = True
    assert (geometry.fill(points(mask_rings(mask)), 1200, 900) == mask).all()


CLASSES = np.array([[0, 1, 1, 0], [0, 1, 2, 2], [3, 0, 2, 255]], np.uint8)
LABELS = {1: "lake", 2: "wood", 3: "lake"}


def png(array=CLASSES, mode=None):
    image = Image.fromarray(array)
    image = image.convert(mode) if mode else image
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def paletted():
    palette = Image.fromarray(CLASSES)
    palette.putpalette([value for number in range(256) for value in (255 - number, number, 7)])
    buffer = io.BytesIO()
    palette.save(buffer, "PNG")
    return buffer.getvalue()


FORMS = {
    "array": lambda folder: CLASSES,
    "larger numbers": lambda folder: CLASSES.astype(np.int64),
    "path": lambda folder: folder / "mask.png",
    "text": lambda folder: str(folder / "mask.png"),
    "bytes": lambda folder: png(),
    "palette": lambda folder: paletted(),
    "file": lambda folder: io.BytesIO(png()),
    "Pillow": lambda folder: Image.fromarray(CLASSES),
    "16 bits": lambda folder: png(CLASSES.astype(np.uint16)),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_each_label_is_one_annotation_whatever_the_form(tmp_path, form):
    (tmp_path / "mask.png").write_bytes(png())
    annotations = mask_annotations(form(tmp_path), LABELS, ignore={255}, size=(4, 3))
    assert [annotation["label"] for annotation in annotations] == ["lake", "wood"]
    assert parse_annotations(annotations) == annotations  # as the server takes them
    for annotation, values in zip(annotations, ([1, 3], [2]), strict=True):
        filled = geometry.fill(points(annotation["contour"]), 4, 3)
        assert (filled == np.isin(CLASSES, values)).all()
        assert (Region(annotation).mask((4, 3)) == np.isin(CLASSES, values)).all()


def test_labels_may_be_a_list_or_one_for_all():
    listed = mask_annotations(CLASSES, ["field", "lake", "wood", "lake"], ignore=[255])
    assert [annotation["label"] for annotation in listed] == ["field", "lake", "wood"]
    for mask in (CLASSES != 0, CLASSES, (CLASSES != 0) * np.uint8(255)):
        (annotation,) = mask_annotations(mask, "lake")
        assert annotation["label"] == "lake"
        assert (geometry.fill(points(annotation["contour"]), 4, 3) == (CLASSES != 0)).all()
    for ignored in ({255}, [255, 1], {1}):  # numbers of the mask, not of what is made of it
        (annotation,) = mask_annotations(CLASSES, "lake", ignore=ignored)
        stated = (CLASSES != 0) & ~np.isin(CLASSES, list(ignored))
        assert (geometry.fill(points(annotation["contour"]), 4, 3) == stated).all()
    assert mask_annotations(CLASSES, "lake", ignore=set(CLASSES.ravel().tolist())) == []
    assert mask_annotations(np.zeros((2, 2), np.uint8), LABELS) == []
    assert mask_annotations(np.zeros((2, 2), bool), "lake") == []


@pytest.mark.parametrize(
    ("mask", "options", "message"),
    [
        (CLASSES, {}, r"a label for each value of the mask, got none for 255 \(1 pixels\)"),
        (CLASSES, {"size": (3, 4)}, "expected a mask of 3 x 4 pixels, got 4 x 3; an image counts as its EXIF orientation"),
        (CLASSES, {"size": (3, 5)}, "expected a mask of 3 x 5 pixels, got 4 x 3$"),
        (png(mode="RGB"), {}, "one channel or a palette, .* got an image of mode RGB"),
        (png(mode="RGBA"), {}, "got an image of mode RGBA"),
        (np.zeros((2, 2, 3), np.uint8), {}, r"whole numbers \(height, width\), got uint8 \(2, 2, 3\)"),
        (CLASSES / 255, {}, "got float64"),
        (np.zeros((0, 4), np.uint8), {}, r"got uint8 \(0, 4\)"),
        ([[0, 1.5]], {}, "got float64"),
        ("none.png", {}, "cannot read a mask from 'none.png'"),
        ("no\0file.png", {}, "cannot read a mask from"),
        (b"no image", {}, "cannot read a mask from the bytes"),
        (b"", {}, "cannot read a mask from the bytes"),
        (png()[:-30], {}, "cannot read a mask from the bytes"),
        (None, {}, "got object"),
    ],
)  # fmt: skip
def test_what_is_no_mask_is_refused(mask, options, message):
    with pytest.raises(InputError, match=message):
        mask_annotations(mask, LABELS, **options)

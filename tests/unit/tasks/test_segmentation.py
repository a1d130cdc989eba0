import io
from typing import Any

import cv2
import msgspec
import numpy as np
import PIL.Image
import pytest

from quadriga.tasks import SHORT_NAMES, TASKS, OutputError, Task
from quadriga.tasks.geometry import fill, to_rings
from quadriga.tasks.image import Image, decode
from quadriga.tasks.parameters import ParameterError
from quadriga.tasks.predictions import TruncatedPredictions
from quadriga.tasks.resize import image_placement
from quadriga.tasks.segmentation import ImageSegmentation
from quadriga.tasks.segmenters import MaskRegion
from quadriga.tasks.specification import (
    Defaults,
    InputSpec,
    ModelSpec,
    ObjectReferenceError,
    OutputSpec,
    Tiling,
    load,
)
from quadriga.tasks.tiling import tiles
from tests.by_definition import components

LABELS = ("background", "cat", "dog")


def segmentation(decoder="class_map", labels=LABELS, input_spec=None, **output: Any):
    return ImageSegmentation(
        ModelSpec(
            task="IMAGE_SEGMENTATION",
            input=input_spec or InputSpec(name="images", size_wh=(8, 8), resize="none"),
            output=OutputSpec(decoder=decoder, **output),
            labels=labels,
        )
    )


def answer(task, output, image_wh=None, **parameters: Any):
    width, height = image_wh or output.shape[::-1][:2]
    _, affine = task.preprocess(Image(np.zeros((height, width, 3), np.uint8)))
    return task.predict({"output0": output}, affine, task.options(parameters))


def picture(*rows):
    """Class numbers; a dot is 0."""
    return np.array([[int(cell.replace(".", "0")) for cell in row] for row in rows], np.uint8)


def mask_of(segment, width, height):
    return fill(to_rings(segment.contour), width, height)


def test_a_segmentation_is_a_task_of_the_tables():
    task: Task = segmentation()
    assert task.actions == ("predict", "segment")
    assert load(TASKS[SHORT_NAMES["segmentation"]]) is ImageSegmentation


EVERYTHING = picture(
    "1..22.",
    ".1.22.",
    "....1.",
    "111...",
    "1.1..1",
    "111...",
)


def test_connected_parts_are_answered_one_by_one_those_of_equal_score_by_size():
    predictions = answer(segmentation(), EVERYTHING)
    assert [(prediction.label, prediction.score) for prediction in predictions] == [
        ("cat", 1.0),
        ("dog", 1.0),
        ("cat", 1.0),
        ("cat", 1.0),
        ("cat", 1.0),
    ]
    assert [int(mask_of(prediction, 6, 6).sum()) for prediction in predictions] == [8, 4, 2, 1, 1]
    assert len(predictions[0].contour) == 2, "an outer ring and a hole"
    together = sum(
        mask_of(prediction, 6, 6) * LABELS.index(prediction.label) for prediction in predictions
    )
    np.testing.assert_array_equal(together, EVERYTHING)


def test_a_class_can_be_answered_as_one():
    predictions = answer(segmentation(), EVERYTHING, regions="class")
    assert [prediction.label for prediction in predictions] == ["cat", "dog"]
    for prediction in predictions:
        expected = LABELS.index(prediction.label) == EVERYTHING
        np.testing.assert_array_equal(mask_of(prediction, 6, 6), expected)


def test_noise_comes_back_part_by_part_as_flooding_finds_it():
    cells = np.random.default_rng(4).integers(0, 3, (20, 31)).astype(np.uint8)
    predictions = answer(segmentation(), cells, max_segments=10_000)
    for index in (1, 2):
        expected = {frozenset(component) for component in components(cells == index)}
        masks = [
            mask_of(prediction, 31, 20)
            for prediction in predictions
            if prediction.label == LABELS[index]
        ]
        assert {frozenset((int(x), int(y)) for y, x in np.argwhere(m)) for m in masks} == expected


MIN_AREAS = [(0, 5), (1, 5), (1.5, 3), (2, 3), (2.01, 2), (8, 1), (8.5, 0), (1e300, 0)]


@pytest.mark.parametrize(("min_area", "count"), MIN_AREAS)
def test_small_parts_are_left_out(min_area, count):
    assert len(answer(segmentation(), EVERYTHING, min_area=min_area)) == count
    by_class = answer(segmentation(), EVERYTHING, min_area=min_area, regions="class")
    large = [
        component
        for n in (1, 2)
        for component in components(n == EVERYTHING)
        if len(component) >= min_area
    ]
    assert sum(int(mask_of(prediction, 6, 6).sum()) for prediction in by_class) == sum(
        map(len, large)
    )


@pytest.mark.parametrize(("min_area", "count"), [(0, 2), (9, 2), (16, 2), (17, 1), (33, 0)])
def test_in_tiles_the_area_of_the_whole_counts(min_area, count):
    class_map = np.zeros((8, 16), np.uint8)
    class_map[2:6, 4:12] = 1  # half of it in each tile
    class_map[0:1, 0:16] = 2
    task = segmentation()
    options = task.options({"min_area": min_area})
    predictions = []
    for tile in tiles(16, 8, (8, 8), 0):
        component = tile.cut(class_map)
        _, affine = task.preprocess(Image(np.zeros((8, 8, 3), np.uint8)))
        predictions.append((tile, task.detect({"output0": component}, affine, options)))
    joined = task.to_predictions(
        task.merge(predictions, Tiling(size=(100, 100)), options), 16, 8, options
    )
    assert len(joined) == count
    if count:
        np.testing.assert_array_equal(mask_of(joined[0], 16, 8), class_map == 1)


@pytest.mark.parametrize("overlap", [0, 0.5])
def test_in_tiles_a_class_is_one_region_though_its_parts_lie_apart(overlap):
    class_map = np.zeros((8, 24), np.uint8)
    class_map[1:3, 1:5] = class_map[5:7, 19:23] = class_map[2:6, 7:15] = 1
    class_map[7, :] = 2
    task = segmentation()
    options = task.options({"regions": "class"})
    predictions = []
    for tile in tiles(24, 8, (8, 8), overlap):
        _, affine = task.preprocess(Image(np.zeros((8, 8, 3), np.uint8)))
        predictions.append((tile, task.detect({"output0": tile.cut(class_map)}, affine, options)))
    joined = task.to_predictions(
        task.merge(predictions, Tiling(size=(100, 100)), options), 24, 8, options
    )
    assert [tile_pieces.label for tile_pieces in joined] == ["cat", "dog"]
    for index, tile_pieces in enumerate(joined, 1):
        np.testing.assert_array_equal(mask_of(tile_pieces, 24, 8), class_map == index)


def test_the_best_are_kept():
    logits = np.zeros((2, 1, 8), np.float32)
    logits[1, 0] = [-9, 1, -9, 3, -9, 2, -9, -9]
    task = segmentation("semantic_logits", labels=("background", "cat"))
    predictions = answer(task, logits, (8, 1), max_segments=2)
    assert [prediction.contour[0][0].x for prediction in predictions] == [3, 5]
    assert len(answer(task, logits, (8, 1), score_threshold=0.9)) == 1


def totals(predictions):
    """The number without the limit, `uncounted`, or None if nothing was left out."""
    if not isinstance(predictions, TruncatedPredictions):
        return None
    return "uncounted" if predictions.total is None else predictions.total


TRUNCATED = [  # max_segments, regions, areas, number without the limit
    (9, "component", [8, 4, 2, 1, 1], None),
    (5, "component", [8, 4, 2, 1, 1], None),
    (4, "component", [8, 4, 2, 1], 5),
    (1, "component", [8], 5),
    (2, "class", [12, 4], None),
    (1, "class", [12], 2),
]


@pytest.mark.parametrize(("limit", "regions", "areas", "total"), TRUNCATED)
def test_the_largest_regions_are_returned_and_the_number_of_all(limit, regions, areas, total):
    predictions = answer(segmentation(), EVERYTHING, max_segments=limit, regions=regions)
    assert [int(mask_of(prediction, 6, 6).sum()) for prediction in predictions] == areas
    assert totals(predictions) == total
    assert msgspec.json.decode(msgspec.json.encode(predictions)) == msgspec.to_builtins(
        list(predictions)
    )


def test_a_large_region_stays_though_small_ones_are_surer():
    logits = np.zeros((2, 3, 9), np.float32)
    logits[1, 0, ::2], logits[1, 2] = 9, 1
    logits[0, 1] = logits[0, 0, 1::2] = 5
    task = segmentation("semantic_logits", labels=("background", "cat"))
    predictions = answer(task, logits, (9, 3), max_segments=1)
    assert int(mask_of(predictions[0], 9, 3).sum()) == 9
    assert totals(predictions) == 6


def test_regions_that_a_tile_leaves_out_are_counted():
    cells = np.tile(picture("1.", ".."), (4, 8))  # 32 pixels that touch no other
    task = segmentation()
    options = task.options({"max_segments": 3})
    traced = []
    for tile in tiles(16, 8, (8, 8), 0):
        _, affine = task.preprocess(Image(np.zeros((8, 8, 3), np.uint8)))
        traced.append((tile, task.detect({"output0": tile.cut(cells)}, affine, options)))
    merged = task.merge(traced, Tiling(size=(100, 100)), options)
    predictions = task.to_predictions(merged, 16, 8, options)
    assert len(predictions) == 3
    assert totals(predictions) == 32


@pytest.mark.parametrize(("limit", "total"), [(2, "uncounted"), (3, None)])
def test_instances_are_not_counted_but_that_there_are_more_is_known(monkeypatch, limit, total):
    def instances(outputs, affine, options):
        mask = np.ones((2, 2), np.uint8)
        for index in range(min(options.limit, 3)):
            yield MaskRegion(
                class_id=1, mask=mask, left=3 * index, top=1, score=0.9 - index / 9, instance=True
            )

    monkeypatch.setattr("quadriga.tasks.segmenters.own", instances, raising=False)
    task = segmentation("quadriga.tasks.segmenters:own")
    predictions = answer(task, picture("1"), (9, 4), max_segments=limit)
    assert len(predictions) == limit
    assert totals(predictions) == total


def test_the_score_of_a_region_is_its_mean_probability():
    logits = np.zeros((3, 2, 4), np.float32)
    logits[1, 0, :2], logits[2, 1, 3] = [2, 1], 3
    predictions = answer(segmentation("semantic_logits"), logits, (4, 2), score_threshold=0.1)
    e = np.exp
    expected = [(e(2) / (e(2) + 2) + e(1) / (e(1) + 2)) / 2, e(3) / (e(3) + 2)]
    assert [prediction.label for prediction in predictions] == ["cat", "dog"]
    np.testing.assert_allclose(
        [prediction.score for prediction in predictions], expected, rtol=1e-6
    )


def tied(dead, half):
    """Scores of three classes: all 0 in `dead`, those of the last class 0.75 in `half`."""
    scores = np.zeros((3, 4, 6), np.float32)
    scores[2, :, half] = 0.75
    scores[:, :, dead] = 0
    return scores


TIES = [  # scores, label and area of each region, score of the first
    (tied(slice(0, 6), slice(0)), [("wall", 24)], 1 / 3),
    (tied(slice(0, 4), slice(4, 6)), [("wall", 16), ("dog", 8)], 0.0),
    (np.full((3, 4, 6), 0.5, np.float32), [("wall", 24)], 0.5),
    (np.full((3, 4, 6), -7, np.float32), [("wall", 24)], 1 / 3),
]


@pytest.mark.parametrize(("scores", "regions", "score"), TIES)
def test_of_equal_scores_the_first_class_wins_whatever_they_are(scores, regions, score):
    """The classes are those of argmax in numpy and torch, also for a network whose outputs are all 0."""
    task = segmentation("semantic_logits", labels=("wall", "cat", "dog"))
    predictions = answer(task, scores, (6, 4), score_threshold=0)
    assert [(p.label, int(mask_of(p, 6, 4).sum())) for p in predictions] == regions
    assert predictions[0].score == pytest.approx(score)
    assert all(p.score > 0.1 for p in answer(task, scores, (6, 4), score_threshold=0.1))


BACKGROUNDS = [
    (("Background", "cat", "dog"), None, {"cat", "dog"}),
    (("__background__", "cat", "dog"), None, {"cat", "dog"}),
    (("wall", "cat", "dog"), None, {"wall", "cat", "dog"}),
    (("background", "cat", "dog"), -1, {"background", "cat", "dog"}),
    (("wall", "cat", "dog"), 2, {"wall", "cat"}),
]


@pytest.mark.parametrize(("labels", "background", "answered"), BACKGROUNDS)
def test_the_background_is_not_answered(labels, background, answered):
    predictions = answer(segmentation(labels=labels, background=background), EVERYTHING)
    assert {prediction.label for prediction in predictions} == answered
    logits = (np.arange(3)[:, None, None] == EVERYTHING).astype(np.float32)
    task = segmentation("semantic_logits", labels=labels, background=background)
    assert {prediction.label for prediction in answer(task, logits, (6, 6))} == answered


def test_a_background_alone_is_no_prediction():
    assert answer(segmentation(), np.zeros((5, 6), np.uint8)) == []


def test_one_label_is_answered_whatever_its_name():
    predictions = answer(segmentation(labels=("background",)), EVERYTHING, regions="class")
    assert [prediction.label for prediction in predictions] == ["background"]


def own_segmenter(outputs, affine, options):
    mask = next(iter(outputs.values()))
    yield MaskRegion(class_id=1, mask=mask, left=2, top=1, score=0.75, instance=True)
    yield MaskRegion(class_id=options.label_count, mask=mask[:0], left=0, top=0, score=0.6)


def test_an_instance_is_one_prediction_of_many_rings(monkeypatch):
    monkeypatch.setattr("quadriga.tasks.segmenters.own", own_segmenter, raising=False)
    task = segmentation("quadriga.tasks.segmenters:own", labels=("a", "b", "c", "d"))
    with pytest.raises(OutputError, match="a label for each class, got class 4 and 4 labels"):
        answer(task, picture("1.11"), (9, 4))
    monkeypatch.setattr(
        "quadriga.tasks.segmenters.own",
        lambda *given: [next(own_segmenter(*given))],
        raising=False,
    )
    task = segmentation("quadriga.tasks.segmenters:own")
    [predictions] = answer(task, picture("1.11"), (9, 4))
    assert (predictions.label, predictions.score) == ("cat", 0.75)
    assert [[(point.x, point.y) for point in ring] for ring in predictions.contour] in (
        [[(2, 1)], [(4, 1), (5, 1)]],
        [[(4, 1), (5, 1)], [(2, 1)]],
    )
    [predictions] = answer(task, picture("1.11"), (9, 4), min_area=2)
    assert [len(ring) for ring in predictions.contour] == [2]
    assert answer(task, picture("1.11"), (9, 4), min_area=3) == []


def test_simplifying_takes_points_and_keeps_rings():
    y, x = np.mgrid[:200, :200]
    radius = np.hypot(x - 100, y - 100)
    ring = ((radius < 90) & (radius > 40)).astype(np.uint8)
    [exact] = answer(segmentation(), ring)
    [fewer] = answer(segmentation(), ring, simplify=True, epsilon=2)
    assert [len(prediction.contour) for prediction in (exact, fewer)] == [2, 2]
    counts = [sum(map(len, prediction.contour)) for prediction in (exact, fewer)]
    assert counts[1] < counts[0] / 8
    differing = mask_of(fewer, 200, 200) != ring
    assert differing.sum() / ring.sum() < 0.05
    [same] = answer(segmentation(), ring, simplify=True, epsilon=0)
    assert same == exact


WAYS = [
    ("stretch", (120, 80), (64, 48)),
    ("stretch", (30, 20), (96, 96)),
    ("letterbox", (120, 80), (64, 64)),
    ("letterbox", (81, 133), (64, 64)),
    ("letterbox_topleft", (120, 80), (64, 64)),
    ("letterbox_rect", (120, 70), (64, 64)),
    ("shortest_crop", (120, 80), (64, 64)),
    ("shortest_longest", (120, 80), (60, 80)),
    ("none", (120, 80), (64, 64)),
]


@pytest.mark.parametrize(("resize", "image_wh", "network_wh"), WAYS)
@pytest.mark.parametrize("decoder", ["class_map", "semantic_logits", "binary"])
def test_a_mask_comes_back_to_the_pixels_it_was_on(decoder, resize, image_wh, network_wh):
    spec = InputSpec(name="images", size_wh=network_wh, resize=resize, crop_fraction=1.0)
    width, height = image_wh
    y, x = np.mgrid[:height, :width]
    mask_there = np.hypot((x + 0.5) / width - 0.6, (y + 0.5) / height - 0.4) < 0.3
    mask_there[: height // 3, : width // 2] = True
    affine = image_placement(width, height, spec)[0]
    v, u = np.mgrid[: affine.network_wh[1], : affine.network_wh[0]] + 0.5
    there = np.floor(affine.to_image(np.stack([u, v], axis=2))).astype(int)
    inside = (there >= 0).all(axis=2) & (there < image_wh).all(axis=2)
    column, row = np.clip(there, 0, np.array(image_wh) - 1).transpose(2, 0, 1)
    network = mask_there[row, column] & inside
    output = {
        "class_map": network.astype(np.uint8),
        "semantic_logits": np.stack([~network, network]).astype(np.float32),
        "binary": network[None].astype(np.float32),
    }[decoder]
    task = segmentation(decoder, ("background", "thing"), spec)
    [predictions] = answer(task, output, image_wh, regions="class")
    mask = mask_of(predictions, width, height) > 0
    u, v = (affine.to_network(np.stack([x + 0.5, y + 0.5], axis=2))).transpose(2, 0, 1)
    seen = (u >= 0) & (u < affine.network_wh[0]) & (v >= 0) & (v < affine.network_wh[1])
    assert not mask[~seen].any()
    expected = mask_there & seen
    if resize == "none":
        np.testing.assert_array_equal(mask, expected)
    # no pixel is wrong that lies further from the edge than a cell of the network
    cell = int(np.ceil(max(1 / affine.sx, 1 / affine.sy))) + 1
    kernel = np.ones((2 * cell + 1, 2 * cell + 1), np.uint8)
    sure = cv2.erode(mask_there.astype(np.uint8), kernel, borderValue=1) > 0
    never = cv2.dilate(mask_there.astype(np.uint8), kernel) == 0
    assert mask[sure & seen].all()
    assert not mask[never].any()


def test_a_turned_photo_has_the_contours_of_the_upright_one():
    pixels = np.zeros((40, 60, 3), np.uint8)
    pixels[5:30, 10:25] = 255
    pixels[12:20, 14:20] = 0
    task = segmentation(labels=("thing",))

    def contours(orientation):
        turned = {1: pixels, 6: np.rot90(pixels), 3: np.rot90(pixels, 2), 8: np.rot90(pixels, -1)}
        file = io.BytesIO()
        exif = PIL.Image.Exif()
        exif[0x0112] = orientation
        PIL.Image.fromarray(np.ascontiguousarray(turned[orientation])).save(file, "PNG", exif=exif)
        image = decode(file.getvalue())
        tensor, affine = task.preprocess(image)
        output = (tensor[0] > 0.5).astype(np.uint8)
        return task.predict({"output0": output}, affine, task.options({}))

    assert len(contours(1)) == 1
    assert contours(6) == contours(3) == contours(8) == contours(1)


def test_answers_are_plain_json_in_the_order_of_the_protocol():
    [predictions] = answer(segmentation(), picture(".11", "..."))
    assert msgspec.json.encode(predictions) == (
        b'{"label":"cat","score":1.0,"contour":[[{"x":1.0,"y":0.0},{"x":2.0,"y":0.0}]]}'
    )


REFUSED = [
    ({"action": "detect"}, "action"),
    ({"score_threshold": 1.5}, "score_threshold"),
    ({"iou_threshold": True}, "iou_threshold"),
    ({"max_segments": 0}, "max_segments"),
    ({"max_segments": 10_001}, "max_segments"),
    ({"regions": "instance"}, "regions"),
    ({"min_area": -1}, "min_area"),
    ({"min_area": "9"}, "min_area"),
    ({"simplify": 1}, "simplify"),
    ({"epsilon": float("nan")}, "epsilon"),
    ({"epsilon": float("inf")}, "epsilon"),
]


@pytest.mark.parametrize(("parameters", "name"), REFUSED)
def test_parameters_out_of_range_are_refused(parameters, name):
    with pytest.raises(ParameterError, match=f"expected parameters.{name} to be"):
        segmentation().options(parameters)


def test_options_default_to_those_of_the_model():
    spec = ModelSpec(
        task="IMAGE_SEGMENTATION",
        input=InputSpec(name="images", size_wh=(8, 8)),
        output=OutputSpec(decoder="class_map"),
        labels=LABELS,
        defaults=Defaults(score_threshold=0.2, iou_threshold=0.4, max_detections=7),
    )
    options = ImageSegmentation(spec).options({"min_area": None, "metadata": {"camera": 1}})
    assert msgspec.structs.astuple(options) == (
        *("predict", 0.2, 0.4, 7),
        *("component", 0.0, False, 1.0),
    )
    defaults = Defaults(min_area=9, simplify=True, epsilon=2)
    task = ImageSegmentation(msgspec.structs.replace(spec, defaults=defaults))
    asked = task.options({"epsilon": 3})
    assert (asked.min_area, asked.simplify, asked.epsilon) == (9, True, 3)


def test_an_unknown_segmenter_is_refused_with_those_there_are():
    with pytest.raises(ObjectReferenceError, match=r"output\.decoder to be one of semantic_logits"):
        segmentation("yolo99")

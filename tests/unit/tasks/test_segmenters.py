"""Each family against a reference that goes pixel by pixel."""

import math
from typing import Any

import numpy as np
import pytest

from quadriga.tasks.predictions import OutputError
from quadriga.tasks.resize import image_placement
from quadriga.tasks.segmenters import SEGMENTERS, SegmenterOptions
from quadriga.tasks.specification import InputSpec, load
from tests.by_definition import enlarged, places, seen

_RANDOM = np.random.default_rng(11)

RESIZES = [
    ("stretch", (21, 13), (16, 16)),
    ("letterbox", (26, 14), (16, 16)),
    ("letterbox", (9, 12), (32, 16)),
    ("letterbox_topleft", (26, 14), (16, 16)),
    ("letterbox_rect", (26, 14), (32, 32)),
    ("shortest_crop", (26, 14), (16, 16)),
    ("none", (20, 12), (16, 16)),
]


def affine_of(resize, image_wh, network_wh):
    spec = InputSpec(name="images", size_wh=network_wh, resize=resize, crop_fraction=1.0)
    return image_placement(*image_wh, spec)[0]


def asked(**changes: Any):
    fields = {"score_threshold": 0.3, "iou_threshold": 0.5, "limit": 100, "label_count": 3}
    return SegmenterOptions(**{**fields, **changes})


def answers(name, outputs, affine, expected):
    """(class, score, full mask) of each region; the mean probability where there is no score."""
    regions = []
    for region in load(SEGMENTERS[name])(outputs, affine, expected):
        height, width = region.mask.shape
        full = np.zeros((affine.height, affine.width), bool)
        crop = slice(region.top, region.top + height), slice(region.left, region.left + width)
        full[crop] = region.mask > 0
        score = region.score
        if region.probabilities is not None:
            score = region.probabilities[region.mask > 0].mean()
        regions.append((region.class_id, score, full))
    return regions


def assert_same(regions, expected):
    assert [region[0] for region in regions] == [region[0] for region in expected]
    np.testing.assert_allclose(
        [region[1] for region in regions], [region[1] for region in expected], atol=2e-4
    )
    for (_, _, ours), (_, _, theirs) in zip(regions, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def regions_of(classes, chances, skip=None):
    """One region for each class in a map of numbers, -1 where nothing was seen."""
    return [
        (index, chances[classes == index].mean(), classes == index)
        for index in sorted(set(classes[classes >= 0].tolist()) - {skip})
    ]


def argmax_by_definition(maps, affine, *, softmax):
    large = enlarged(maps.astype(np.float64), affine)
    classes = np.full(large.shape[1:], -1)
    chances = np.zeros(large.shape[1:])
    for y, x in np.argwhere(~np.isnan(large[0])):
        column = large[:, y, x]
        classes[y, x] = best = int(column.argmax())
        chances[y, x] = column[best]
        if softmax:
            chances[y, x] = math.exp(column[best]) / sum(math.exp(value) for value in column)
    return classes, chances


@pytest.mark.parametrize(("resize", "image_wh", "network_wh"), RESIZES)
@pytest.mark.parametrize("background", [None, 0])
def test_semantic_logits(resize, image_wh, network_wh, background):
    affine = affine_of(resize, image_wh, network_wh)
    logits = _RANDOM.normal(0, 4, (3, 5, 6)).astype(np.float32)
    regions = answers("semantic_logits", {"logits": logits}, affine, asked(background=background))
    classes, chances = argmax_by_definition(logits, affine, softmax=True)
    assert_same(regions, regions_of(classes, chances, background))


def test_semantic_scores_of_0_to_1_are_probabilities():
    affine = affine_of("stretch", (21, 13), (16, 16))
    scores = _RANDOM.dirichlet(np.ones(3), (5, 6)).transpose(2, 0, 1).astype(np.float16)
    regions = answers("semantic_logits", {"out": scores}, affine, asked())
    classes, chances = argmax_by_definition(scores, affine, softmax=False)
    assert_same(regions, regions_of(classes, chances))
    [*_, expected] = answers(
        "semantic_logits", {"out": scores}, affine, asked(activation="softmax")
    )
    classes, chances = argmax_by_definition(scores, affine, softmax=True)
    assert_same([expected], regions_of(classes, chances)[-1:])


def test_semantic_of_many_classes_and_tiles():
    affine = affine_of("stretch", (300, 40), (16, 16))
    logits = _RANDOM.normal(0, 6, (300, 4, 9)).astype(np.float32)
    regions = answers("semantic_logits", {"logits": logits}, affine, asked(label_count=300))
    classes, chances = argmax_by_definition(logits, affine, softmax=True)
    assert_same(regions, regions_of(classes, chances))


@pytest.mark.parametrize(("resize", "image_wh", "network_wh"), RESIZES)
@pytest.mark.parametrize(("labels", "dtype"), [(3, np.uint8), (3, np.int64), (1, np.uint8)])
def test_class_map(resize, image_wh, network_wh, labels, dtype):
    affine = affine_of(resize, image_wh, network_wh)
    net_w, net_h = affine.network_wh
    cells = _RANDOM.integers(0, 3, (1, net_h, net_w)).astype(dtype)
    expected = np.full((affine.height, affine.width), -1)
    xs, left, right = places(affine, 0, net_w)
    ys, top, bottom = places(affine, 1, net_h)
    for row, y in enumerate(ys):
        for column, x in enumerate(xs):
            if seen(x, net_w) and seen(y, net_h):
                u = min(max(math.floor(x + 1e-6), math.floor(left)), math.ceil(right) - 1)
                v = min(max(math.floor(y + 1e-6), math.floor(top)), math.ceil(bottom) - 1)
                expected[row, column] = cells[0, v, u]
                if labels == 1:
                    expected[row, column] = 0 if cells[0, v, u] > 0 else -1
    regions = answers("class_map", {"output0": cells}, affine, asked(label_count=labels))
    assert_same(regions, regions_of(expected, np.ones(expected.shape)))


def enlarged_by_torch(cells, height, width):
    """Resize a map as torch.nn.functional.interpolate does with mode="nearest": `floorf(index * scale)`."""
    scales = [
        np.float32(old) / np.float32(new)
        for old, new in zip(cells.shape, (height, width), strict=True)
    ]
    rows, columns = (
        [min(int(np.floor(np.float32(index) * scale)), old - 1) for index in range(new)]
        for scale, old, new in zip(scales, cells.shape, (height, width), strict=True)
    )
    return cells[np.ix_(rows, columns)]


LETTERBOXES = [  # image, network, cells
    ((640, 480), (64, 64), (64, 64)),
    ((90, 120), (64, 64), (64, 64)),
    ((333, 217), (96, 64), (96, 64)),
    ((40, 30), (64, 64), (64, 64)),
    ((100, 70), (64, 64), (16, 16)),
    ((64, 64), (64, 64), (64, 64)),
    ((1, 50), (32, 32), (32, 32)),
]


@pytest.mark.parametrize(("image_wh", "network_wh", "cells_wh"), LETTERBOXES)
def test_ultralytics_semantic_maps_are_enlarged_as_the_library_does(image_wh, network_wh, cells_wh):
    """Source: Ultralytics 8.4.190, `models/yolo/semantic/predict.py` postprocess, `utils/ops.py` scale_masks."""
    affine = affine_of("letterbox", image_wh, network_wh)
    cells = _RANDOM.integers(0, 3, cells_wh[::-1]).astype(np.uint8)
    (width, height), (net_w, net_h) = image_wh, network_wh
    network = enlarged_by_torch(cells, net_h, net_w)
    gain = min(net_h / height, net_w / width)
    content_w, content_h = max(round(width * gain), 1), max(round(height * gain), 1)
    top, left = round((net_h - content_h) / 2 - 0.1), round((net_w - content_w) / 2 - 0.1)
    content = network[top : top + content_h, left : left + content_w]
    expected = enlarged_by_torch(content, height, width)
    regions = answers("ultralytics_semantic", {"output0": cells}, affine, asked())
    assert_same(regions, regions_of(expected, np.ones(expected.shape)))


@pytest.mark.parametrize(("resize", "image_wh", "network_wh"), RESIZES)
@pytest.mark.parametrize("name", ["binary", "birefnet", "u2net"])
def test_binary_masks(name, resize, image_wh, network_wh):
    affine = affine_of(resize, image_wh, network_wh)
    sides = [_RANDOM.normal(0, 3, (1, 6, 6)), _RANDOM.normal(0, 3, (1, 8, 8))]
    outputs = {f"d{index}": side.astype(np.float32) for index, side in enumerate(sides)}
    cells = outputs["d1" if name == "birefnet" else "d0"].astype(np.float64)
    if name == "u2net":
        cells = (cells - cells.min()) / (cells.max() - cells.min())
    else:
        cells = 1 / (1 + np.exp(-cells))
    large = enlarged(cells, affine)[0]
    inside = np.nan_to_num(large) > 0.5
    regions = answers(name, outputs, affine, asked(label_count=2))
    assert_same(regions, [(1, large[inside].mean(), inside)])


def test_a_binary_map_within_0_and_1_is_not_activated_twice():
    affine = affine_of("none", (2, 1), (2, 1))
    cells = np.array([[0.2, 0.7]], np.float32)
    [(class_id, score, mask)] = answers("binary", {"a": cells}, affine, asked(label_count=1))
    assert (class_id, mask.tolist()) == (0, [[False, True]])
    assert score == pytest.approx(0.7)
    assert answers("binary", {"a": cells * 0}, affine, asked(label_count=1)) == []


def test_what_a_resize_in_the_graph_rounds_past_1_is_no_logit():
    affine = affine_of("stretch", (8, 8), (8, 8))
    cells = np.full((1, 8, 8), 0.25, np.float32)
    cells[:, 2:4, 2:4] = 1.0000001
    inside = cells[0] > 0.5
    assert_same(answers("binary", {"a": cells}, affine, asked(label_count=1)), [(0, 1.0, inside)])
    outputs = np.concatenate([1 - cells, cells])
    regions = answers("semantic_logits", {"a": outputs}, affine, asked(label_count=2))
    assert_same(regions, [(0, 0.75, ~inside), (1, 1.0, inside)])


def cropped(mask, box, affine):
    """Ultralytics' rule: a pixel is in the box if its left and top edges are."""
    left, top, right, bottom = affine.to_image(np.array(box, np.float64))
    columns, rows = np.arange(affine.width), np.arange(affine.height)
    within = (columns >= left) & (columns < right)
    return mask & within & ((rows >= top) & (rows < bottom))[:, None]


@pytest.mark.parametrize(("resize", "image_wh", "network_wh"), RESIZES)
@pytest.mark.parametrize("end_to_end", [False, True])
def test_ultralytics(resize, image_wh, network_wh, end_to_end):
    affine = affine_of(resize, image_wh, network_wh)
    net_w, net_h = affine.network_wh
    prototypes = _RANDOM.normal(size=(4, math.ceil(net_h / 4), math.ceil(net_w / 4)))
    prototypes = prototypes.astype(np.float32)
    shares = _RANDOM.normal(size=(6, 4)).astype(np.float32)
    centres = _RANDOM.uniform(0.3, 0.7, (6, 2)) * (net_w, net_h)
    sizes = _RANDOM.uniform(0.1, 1.2, (6, 2)) * (net_w, net_h)
    boxes = np.concatenate([centres - sizes / 2, centres + sizes / 2], axis=1)
    scores = [0.9, 0.8, 0.7, 0.6, 0.5, 0.2]
    class_ids = [0, 1, 2, 0, 1, 2]
    if end_to_end:
        head = np.column_stack([boxes, scores, class_ids, shares])
        name = "ultralytics_segment_end2end"
    else:
        classes = np.zeros((6, 3))
        classes[range(6), class_ids] = scores
        head, name = np.column_stack([centres, sizes, classes, shares]).T, "ultralytics_segment"
    outputs = {"output0": head.astype(np.float32), "output1": prototypes}
    factor = next(
        (
            f
            for f in (1, 2, 4)
            if all(
                math.isclose(end, round(end), abs_tol=1e-5)
                for axis in (0, 1)
                for end in places(affine, axis, prototypes.shape[2 - axis] * f)[1:]
            )
        ),
        1,
    )
    expected = []
    for index in range(5):
        logits = sum(shares[index, k] * prototypes[k] for k in range(4))[None]
        if factor > 1:
            height, width = logits.shape[1:]
            fine = affine_of("stretch", (width * factor, height * factor), (width, height))
            logits = enlarged(logits, fine)
        mask = np.nan_to_num(enlarged(logits, affine)[0]) > 0
        mask = cropped(mask, np.clip(boxes[index], -1e9, 1e9), affine)
        if mask.any():
            expected.append((class_ids[index], scores[index], mask))
    assert_same(answers(name, outputs, affine, asked(iou_threshold=1.0)), expected)


def test_ultralytics_suppresses_overlapping_boxes_and_limits():
    affine = affine_of("none", (16, 16), (16, 16))
    head = np.array([[8, 8, 8, 8, score, 0, 0, 1] for score in (0.5, 0.9, 0.7)], np.float32).T
    outputs = {"output0": head, "output1": np.ones((1, 4, 4), np.float32)}
    regions = answers("ultralytics_segment", outputs, affine, asked())
    assert [round(score, 6) for _, score, _ in regions] == [0.9]
    assert regions[0][2].sum() == 64
    regions = answers("ultralytics_segment", outputs, affine, asked(iou_threshold=1.0, limit=2))
    assert [round(score, 6) for _, score, _ in regions] == [0.9, 0.7]


@pytest.mark.parametrize(("nms", "class_ids"), [("class", [1, 0]), ("agnostic", [1])])
def test_ultralytics_suppresses_by_class_or_across_classes(nms, class_ids):
    affine = affine_of("none", (16, 16), (16, 16))
    head = np.array([[8, 8, 8, 8, 0.5, 0, 0, 1], [8, 8, 8, 8, 0, 0.9, 0, 1]], np.float32).T
    outputs = {"output0": head, "output1": np.ones((1, 4, 4), np.float32)}
    regions = answers("ultralytics_segment", outputs, affine, asked(nms=nms))
    assert [class_id for class_id, _, _ in regions] == class_ids


def pasted(mask, box, affine):
    """Each pixel centre looked up in the mask, zero around it, bilinearly."""
    height, width = mask.shape
    left, top, right, bottom = affine.to_image(np.array(box, np.float64))
    padded = np.pad(mask, 2)
    result = np.zeros((affine.height, affine.width))
    for y in range(affine.height):
        for x in range(affine.width):
            u = (x + 0.5 - left) / (right - left) * width - 0.5 + 2
            v = (y + 0.5 - top) / (bottom - top) * height - 0.5 + 2
            if 0 <= u < width + 3 and 0 <= v < height + 3:
                x0, y0 = math.floor(u), math.floor(v)
                fx, fy = u - x0, v - y0
                upper = padded[y0, x0] * (1 - fx) + padded[y0, x0 + 1] * fx
                lower = padded[y0 + 1, x0] * (1 - fx) + padded[y0 + 1, x0 + 1] * fx
                result[y, x] = upper * (1 - fy) + lower * fy
    in_image = np.full((1, 2, 2), 1.0)
    return (result > 0.5) & ~np.isnan(enlarged(in_image, affine)[0])


@pytest.mark.parametrize(("resize", "image_wh", "network_wh"), RESIZES)
@pytest.mark.parametrize("layout", ["torchvision", "mmdeploy", "full size"])
def test_mask_rcnn(layout, resize, image_wh, network_wh):
    affine = affine_of(resize, image_wh, network_wh)
    net_w, net_h = affine.network_wh
    low = _RANDOM.uniform(-0.1, 0.5, (5, 2)) * (net_w, net_h)
    boxes = np.concatenate([low, low + _RANDOM.uniform(0.05, 0.7, (5, 2)) * (net_w, net_h)], axis=1)
    scores = np.array([0.4, 0.9, 0.1, 0.8, 0.7])
    hw = (net_h, net_w) if layout == "full size" else (7, 7)
    masks = _RANDOM.random((5, *hw)).astype(np.float32)
    labels = np.array([0, 1, 2, 1, 0])
    if layout == "mmdeploy":
        rows = np.column_stack([boxes, scores]).astype(np.float32)
        outputs: dict[str, Any] = {"dets": rows, "labels": labels, "masks": masks}
        offset = 0
    else:
        outputs = {
            "boxes": boxes.astype(np.float32),
            "labels": labels + 1,
            "scores": scores.astype(np.float32),
            "masks": masks[:, None],
        }
        offset = 1
    expected = []
    for index in (1, 3, 4, 0):
        if layout == "full size":
            mask = np.nan_to_num(enlarged(masks[index][None], affine)[0]) > 0.5
        else:
            mask = pasted(masks[index], boxes[index], affine)
        if mask.any():
            expected.append((labels[index], scores[index], mask))
    assert_same(answers("mask_rcnn", outputs, affine, asked(label_offset=offset)), expected)


def test_mask_rcnn_without_things():
    outputs = {
        "boxes": np.zeros((0, 4), np.float32),
        "labels": np.zeros(0, np.int64),
        "scores": np.zeros(0, np.float32),
        "masks": np.zeros((0, 1, 28, 28), np.float32),
    }
    assert answers("mask_rcnn", outputs, affine_of("none", (9, 9), (9, 9)), asked()) == []


@pytest.mark.parametrize(("resize", "image_wh", "network_wh"), RESIZES)
def test_rf_detr(resize, image_wh, network_wh):
    affine = affine_of(resize, image_wh, network_wh)
    logits = _RANDOM.normal(0, 2, (4, 5)).astype(np.float32)
    masks = _RANDOM.normal(0, 2, (4, 5, 5)).astype(np.float32)
    outputs = {"dets": np.zeros((4, 4), np.float32), "labels": logits, "masks": masks}
    pairs = [(1 / (1 + math.exp(-logits[q, c + 1])), q, c) for q in range(4) for c in range(3)]
    expected = []
    for score, query, class_id in sorted(pairs, reverse=True)[:4]:
        mask = np.nan_to_num(enlarged(masks[query][None], affine)[0], nan=-1) > 0
        if score > 0.3 and mask.any():
            expected.append((class_id, score, mask))
    assert_same(answers("rf_detr_segment", outputs, affine, asked(label_offset=1)), expected)


def queries():
    logits = _RANDOM.normal(0, 2, (5, 4)).astype(np.float32)
    masks = _RANDOM.normal(0, 3, (5, 6, 4)).astype(np.float32)
    chances = [[math.exp(value) / np.exp(row).sum() for value in row[:-1]] for row in logits]
    outputs = {"masks_queries_logits": masks, "class_queries_logits": logits}
    return outputs, masks.astype(np.float64), chances


def squared(masks):
    """Interpolate masks to 384 x 384, cell by cell: centres on centres, the rim repeated."""
    masks = masks.astype(np.float64)
    for axis in (1, 2):
        size = masks.shape[axis]
        positions = np.clip((np.arange(384) + 0.5) * size / 384 - 0.5, 0, size - 1)
        low = np.floor(positions).astype(int)
        high = np.minimum(low + 1, size - 1)
        share = np.expand_dims(positions - low, (0, 3 - axis))
        masks = masks.take(low, axis) * (1 - share) + masks.take(high, axis) * share
    return masks


FORMERS = [("maskformer", lambda masks: masks), ("mask2former", squared)]


@pytest.mark.parametrize(("name", "read"), FORMERS)
@pytest.mark.parametrize(("resize", "image_wh", "network_wh"), RESIZES)
def test_mask_queries_of_instances(resize, image_wh, network_wh, name, read):
    affine = affine_of(resize, image_wh, network_wh)
    outputs, masks, chances = queries()
    masks = read(masks)
    pairs = sorted(((chances[q][c], q, c) for q in range(5) for c in range(3)), reverse=True)[:5]
    expected = []
    for chance, query, class_id in pairs:
        inside = masks[query][masks[query] > 0]
        score = chance * (1 / (1 + np.exp(-inside))).mean()
        mask = np.nan_to_num(enlarged(masks[query][None], affine)[0], nan=-1) > 0
        if score > 0.3 and mask.any():
            expected.append((class_id, score, mask))
    expected.sort(key=lambda item: -item[1])
    assert_same(answers(f"{name}_instance", outputs, affine, asked()), expected)


@pytest.mark.parametrize(("name", "read"), FORMERS)
@pytest.mark.parametrize(("resize", "image_wh", "network_wh"), RESIZES)
def test_mask_queries_of_classes(resize, image_wh, network_wh, name, read):
    affine = affine_of(resize, image_wh, network_wh)
    outputs, masks, chances = queries()
    chances_of_masks = 1 / (1 + np.exp(-read(masks)))
    maps = np.zeros((3, *chances_of_masks.shape[1:]))
    for query in range(5):
        for class_id in range(3):
            maps[class_id] += chances[query][class_id] * chances_of_masks[query]
    classes, values = argmax_by_definition(maps, affine, softmax=False)
    regions = answers(f"{name}_semantic", outputs, affine, asked())
    assert_same(regions, regions_of(classes, np.minimum(values, 1)))


HEAD, PROTOTYPES = np.zeros((11, 5), np.float32), np.zeros((4, 4, 4), np.float32)
LABELS, MASKS = np.zeros((4, 3), np.float32), np.zeros((4, 5, 5), np.float32)
WRONG = {
    "no axis of classes": ("semantic_logits", [np.zeros((4, 4))], "the shape"),
    "a class too many": ("semantic_logits", [np.zeros((4, 4, 4))], "3 classes"),
    "NaN scores": ("semantic_logits", [np.full((3, 2, 2), np.nan)], "finite"),
    "float map": ("class_map", [np.zeros((4, 4), np.float32)], "integers"),
    "batch of maps": ("class_map", [np.zeros((2, 4, 4), np.uint8)], "the shape"),
    "class without label": ("class_map", [np.full((4, 4), 3)], "0 to 2, got 3 to 3"),
    "class below 0": ("class_map", [np.full((4, 4), -1)], "0 to 2, got -1"),
    "three labels": ("binary", [np.zeros((1, 4, 4))], "one label"),
    "three masks": ("binary", [np.zeros((3, 4, 4))], "the shape"),
    "infinite map": ("birefnet", [np.full((1, 4, 4), np.inf)], "finite"),
    "no prototypes": ("ultralytics_segment", [HEAD], "prototypes of 3 axes"),
    "a label missing": ("ultralytics_segment", [HEAD[:10], PROTOTYPES], r"4 \+ 3 \+ 4 rows"),
    "a column missing": ("ultralytics_segment_end2end", [HEAD[:, :5], PROTOTYPES], "10 ?|columns"),
    "NaN head": ("ultralytics_segment", [HEAD + np.nan, PROTOTYPES], "finite"),
    "NaN prototypes": ("ultralytics_segment", [HEAD, PROTOTYPES + np.nan], "finite"),
    "no boxes": ("mask_rcnn", [MASKS], "output of labels"),
    "no masks": ("rf_detr_segment", [MASKS[0], LABELS], "'masks'"),
    "a mask missing": ("rf_detr_segment", [LABELS, LABELS, MASKS[:3]], "each of 4 queries"),
    "a column too few": ("rf_detr_segment", [LABELS, LABELS[:, :2], MASKS], "at least 3 columns"),
    "no class for nothing": ("maskformer_instance", [LABELS, MASKS], r"3 \+ 1 columns"),
    "NaN queries": ("maskformer_semantic", [LABELS + np.nan, MASKS], "finite"),
}


@pytest.mark.parametrize(("name", "outputs", "message"), WRONG.values(), ids=WRONG)
def test_other_outputs_are_an_output_error(name, outputs, message):
    wrong_outputs = {f"output{index}": output for index, output in enumerate(outputs)}
    with pytest.raises(OutputError, match=message):
        answers(name, wrong_outputs, affine_of("none", (16, 16), (16, 16)), asked())


def test_every_name_leads_to_a_segmenter():
    for reference in SEGMENTERS.values():
        assert callable(load(reference))

"""Every family against a reading of its formula in plain Python, number by number."""

import math
from typing import Any

import numpy as np
import pytest

from quadriga.tasks import OutputError
from quadriga.tasks.decoders import DECODERS, resolve_decoder
from quadriga.tasks.specification import ObjectReferenceError

WIDTH, HEIGHT = SIZE = (96, 64)


def corners(x, y, w, h, size_wh=(1.0, 1.0)):
    scale_w, scale_h = size_wh
    return [
        (x - w / 2) * scale_w,
        (y - h / 2) * scale_h,
        (x + w / 2) * scale_w,
        (y + h / 2) * scale_h,
    ]


def chance(logit):
    return 1 / (1 + math.exp(-logit))


def best(scores):
    return max(scores), scores.index(max(scores))


# Each family: outputs made of random numbers, and a generator of (score, class, box) of every row


def boxes_of(random, count):
    low = random.uniform(0, 40, (count, 2))
    return np.concatenate([low, low + random.uniform(1, 20, (count, 2))], axis=1)


def fractions_of(random, count):
    return random.uniform(0.1, 0.9, (count, 4))


def rows_of(random, count):
    scores, classes = random.uniform(0, 1, (count, 1)), random.integers(0, 5, (count, 1))
    return scores, classes


def make_raw(random, n):
    return {
        "output0": np.concatenate([random.uniform(1, 60, (4, n)), random.uniform(0, 1, (3, n))])
    }


def read_raw(outputs):
    for x, y, w, h, *scores in outputs["output0"].T.tolist():
        yield *best(scores), corners(x, y, w, h)


def make_transposed(random, n):
    return {"output0": make_raw(random, n)["output0"].T}


def read_transposed(outputs):
    return read_raw({"output0": outputs["output0"].T})


def make_end_to_end(random, n):
    return {"output0": np.concatenate([boxes_of(random, n), *rows_of(random, n)], axis=1)}


def read_end_to_end(outputs):
    for *box, score, class_id in outputs["output0"].tolist():
        yield score, class_id, box


def make_rtdetr(random, n):
    return {"output0": np.concatenate([fractions_of(random, n), *rows_of(random, n)], axis=1)}


def read_rtdetr(outputs):
    for *box, score, class_id in outputs["output0"].tolist():
        yield score, class_id, corners(*box, SIZE)


def make_rtdetr_raw(random, n):
    return {"output0": np.concatenate([fractions_of(random, n), random.uniform(0, 1, (n, 3))], 1)}


def read_rtdetr_raw(outputs):
    for x, y, w, h, *scores in outputs["output0"].tolist():
        yield *best(scores), corners(x, y, w, h, SIZE)


def make_yolov5(random, n):
    return {
        "output": np.concatenate([random.uniform(1, 60, (n, 4)), random.uniform(0, 1, (n, 4))], 1)
    }


def read_yolov5(outputs):
    for x, y, w, h, obj, *scores in outputs["output"].tolist():
        score, class_id = best(scores)
        yield obj * score, class_id, corners(x, y, w, h)


def make_yolov7(random, n):
    scores, classes = rows_of(random, n)
    return {"output": np.concatenate([np.zeros((n, 1)), boxes_of(random, n), classes, scores], 1)}


def read_yolov7(outputs):
    for _, x1, y1, x2, y2, class_id, score in outputs["output"].tolist():
        yield score, class_id, [x1, y1, x2, y2]


def make_yolox(random, _):
    cells = 12 * 8 + 6 * 4 + 3 * 2  # of 96 x 64 at strides of 8, 16 and 32
    head = [random.uniform(-1, 2, (cells, 4)), random.uniform(0, 1, (cells, 4))]
    return {"output": np.concatenate(head, axis=1)}


def read_yolox(outputs, strides=(8, 16, 32)):
    rows = iter(outputs["output"].tolist())
    for stride in strides:
        for row in range(HEIGHT // stride):
            for column in range(WIDTH // stride):
                x, y, w, h, obj, *scores = next(rows)
                score, class_id = best(scores)
                centre = (x + column) * stride, (y + row) * stride
                box = corners(*centre, math.exp(w) * stride, math.exp(h) * stride)
                yield obj * score, class_id, box
    assert next(rows, None) is None


def make_damo(random, n):
    return {"output": random.uniform(0, 1, (n, 3)), "17": boxes_of(random, n)}


def read_damo(outputs):
    for scores, box in zip(outputs["output"].tolist(), outputs["17"].tolist(), strict=True):
        for class_id, score in enumerate(scores):
            yield score, class_id, box


def make_detr(random, n):
    return {"logits": random.normal(0, 2, (n, 4)), "pred_boxes": fractions_of(random, n)}


def read_detr_softmax(outputs):
    for logits, box in zip(outputs["logits"].tolist(), outputs["pred_boxes"].tolist(), strict=True):
        powers = [math.exp(logit) for logit in logits]
        score, class_id = best([power / sum(powers) for power in powers[:-1]])
        yield score, class_id, corners(*box, SIZE)


def read_detr_sigmoid(outputs, names=("logits", "pred_boxes"), limit=None):
    logits, boxes = (outputs[name].tolist() for name in names)
    pairs = [
        (chance(logit), class_id, corners(*boxes[query], SIZE))
        for query, row in enumerate(logits)
        for class_id, logit in enumerate(row)
    ]
    yield from sorted(pairs, key=lambda pair: -pair[0])[: len(logits) if limit is None else limit]


def read_detr_100(outputs):
    yield from read_detr_sigmoid(outputs, limit=100)


def make_rf_detr(random, n):
    outputs = make_detr(random, n)
    return {
        "dets": outputs["pred_boxes"],
        "labels": outputs["logits"],
        "masks": np.zeros((n, 2, 2)),
    }


def read_rf_detr(outputs):
    yield from read_detr_sigmoid(outputs, ("labels", "dets"))


def make_labelled(random, n):
    scores, classes = rows_of(random, n)
    return {"labels": classes[:, 0], "boxes": boxes_of(random, n), "scores": scores[:, 0]}


def read_labelled(outputs):
    rows = (outputs[name].tolist() for name in ("scores", "labels", "boxes"))
    yield from zip(*rows, strict=True)


def make_efficient(random, n):
    scores, classes = rows_of(random, n)
    return {
        "num_dets": np.array([n - n // 4], np.int32),
        "det_boxes": boxes_of(random, n),
        "det_scores": scores[:, 0],
        "det_classes": classes[:, 0].astype(np.int32),
    }


def read_efficient(outputs):
    rows = (outputs[name].tolist() for name in ("det_scores", "det_classes", "det_boxes"))
    yield from list(zip(*rows, strict=True))[: int(outputs["num_dets"][0])]


def make_tensorflow(random, n):
    scores, classes = rows_of(random, n)
    return {
        "detection_boxes": random.uniform(0, 1, (n, 4)),
        "detection_classes": classes[:, 0].astype(float) + 1,
        "detection_scores": scores[:, 0],
        "num_detections": np.float32(n - n // 4),
    }


def read_tensorflow(outputs):
    for index in range(int(outputs["num_detections"])):
        top, left, bottom, right = outputs["detection_boxes"][index].tolist()
        box = [left * WIDTH, top * HEIGHT, right * WIDTH, bottom * HEIGHT]
        yield outputs["detection_scores"][index], outputs["detection_classes"][index], box


def make_ssd(random, n):
    scores, classes = rows_of(random, n)
    image = np.where(np.arange(n) < n - n // 4, 0, -1)[:, None]
    rows = np.concatenate([image, classes, scores, random.uniform(0, 1, (n, 4))], axis=1)
    return {"detection_out": rows[None, None]}


def read_ssd(outputs):
    for image, class_id, score, *box in outputs["detection_out"][0, 0].tolist():
        if image < 0:
            return
        yield score, class_id, [v * side for v, side in zip(box, SIZE * 2, strict=True)]


def make_mmdeploy(random, n):
    scores, classes = rows_of(random, n)
    return {"dets": np.concatenate([boxes_of(random, n), scores], 1), "labels": classes[:, 0]}


def read_mmdeploy(outputs):
    for (*box, score), label in zip(
        outputs["dets"].tolist(), outputs["labels"].tolist(), strict=True
    ):
        yield score, label, box


def rotated_of(random, n):
    sides = random.uniform(-2, 50, (n, 4))
    return np.concatenate([sides, random.uniform(-4, 4, (n, 1))], axis=1)


def make_obb(random, n):
    boxes = rotated_of(random, n)
    return {
        "output0": np.concatenate([boxes[:, :4], random.uniform(0, 1, (n, 3)), boxes[:, 4:]], 1).T
    }


def read_obb(outputs):
    for *box, first, second, third, angle in outputs["output0"].T.tolist():
        yield *best([first, second, third]), [*box, angle]


def make_obb_end_to_end(random, n):
    boxes = rotated_of(random, n)
    return {"output0": np.concatenate([boxes[:, :4], *rows_of(random, n), boxes[:, 4:]], axis=1)}


def read_obb_end_to_end(outputs):
    for *box, score, class_id, angle in outputs["output0"].tolist():
        yield score, class_id, [*box, angle]


def make_mmrotate(random, n):
    scores, classes = rows_of(random, n)
    return {"dets": np.concatenate([rotated_of(random, n), scores], 1), "labels": classes[:, 0]}


# name: outputs, reading, whether overlaps are suppressed later
FAMILIES: dict[str, tuple[Any, Any, Any]] = {
    "ultralytics": (make_raw, read_raw, True),
    "ultralytics_transposed": (make_transposed, read_transposed, True),
    "ultralytics_end2end": (make_end_to_end, read_end_to_end, False),
    "ultralytics_rtdetr": (make_rtdetr, read_rtdetr, False),
    "ultralytics_rtdetr_raw": (make_rtdetr_raw, read_rtdetr_raw, False),
    "yolov5": (make_yolov5, read_yolov5, True),
    "yolov7_end2end": (make_yolov7, read_yolov7, False),
    "yolox": (make_yolox, read_yolox, True),
    "yolox_decoded": (make_yolov5, read_yolov5, True),
    "damo_yolo": (make_damo, read_damo, True),
    "detr_softmax": (make_detr, read_detr_softmax, False),
    "detr_sigmoid": (make_detr, read_detr_sigmoid, False),
    "detr_sigmoid_100": (make_detr, read_detr_100, False),
    "rf_detr": (make_rf_detr, read_rf_detr, False),
    "labelled_boxes": (make_labelled, read_labelled, False),
    "efficient_nms": (make_efficient, read_efficient, False),
    "tensorflow": (make_tensorflow, read_tensorflow, False),
    "ssd": (make_ssd, read_ssd, False),
    "mmdeploy": (make_mmdeploy, read_mmdeploy, False),
    "ultralytics_obb": (make_obb, read_obb, "probiou"),
    "ultralytics_obb_end2end": (make_obb_end_to_end, read_obb_end_to_end, False),
    "mmdeploy_rotated": (make_mmrotate, read_mmdeploy, True),
}


def made(name, count=200, seed=0):
    """Outputs as a session gives them: float32, whole numbers as they are."""
    outputs = FAMILIES[name][0](np.random.default_rng(seed), count)
    return {
        key: array if array.dtype.kind == "i" else array.astype(np.float32)
        for key, array in outputs.items()
    }


def decoded(name, outputs, threshold):
    return resolve_decoder(name)(outputs, threshold, SIZE)


def test_every_family_is_tested():
    assert FAMILIES.keys() == DECODERS.keys()


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("name", FAMILIES)
def test_outputs_are_read_as_the_formula_reads_them(name, threshold):
    _, read, suppress = FAMILIES[name]
    outputs = made(name)
    candidates = decoded(name, outputs, threshold)
    expected = [row for row in read(outputs) if row[0] > threshold]
    assert threshold in (0.7, 1.0) or len(expected) > 50
    assert candidates.suppress == suppress
    assert candidates.class_ids.tolist() == [class_id for _, class_id, _ in expected]
    np.testing.assert_allclose(candidates.scores, [score for score, _, _ in expected], atol=1e-6)
    columns = candidates.boxes.shape[1]
    boxes = np.reshape([box for _, _, box in expected], (-1, columns))
    np.testing.assert_allclose(candidates.boxes, boxes, atol=1e-3)
    assert (candidates.boxes.dtype, candidates.scores.dtype) == (np.float32, np.float32)
    assert candidates.class_ids.dtype == np.int64


@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - {"yolox"}))
def test_no_rows_give_no_boxes(name):
    candidates = decoded(name, made(name, 0), 0.5)
    assert (len(candidates.boxes), len(candidates.scores), len(candidates.class_ids)) == (0, 0, 0)
    assert candidates.boxes.shape[1] in (4, 5)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", FAMILIES)
def test_numbers_that_are_none_are_an_output_error(name, value):
    for key, array in made(name).items():
        if array.dtype.kind == "i" or key == "masks":
            continue
        outputs = made(name)
        outputs[key] = np.full_like(array, value)
        with pytest.raises(OutputError, match="expected"):
            decoded(name, outputs, 0.5)


@pytest.mark.parametrize("name", FAMILIES)
def test_half_precision_is_read(name):
    outputs = {
        key: array if array.dtype.kind == "i" else array.astype(np.float16)
        for key, array in made(name).items()
    }
    candidates = decoded(name, outputs, 0.3)
    assert len(candidates.boxes) > 50
    assert (candidates.boxes.dtype, candidates.scores.dtype) == (np.float32, np.float32)


SHAPES = {
    "ultralytics": ("output0", (4, 9), r"output 0 .* \(4 \+ classes, anchors\), got \(4, 9\)"),
    "ultralytics_transposed": ("output0", (9, 4), r"\(anchors, 4 \+ classes\), got \(9, 4\)"),
    "ultralytics_end2end": ("output0", (300, 7), r"\(detections, 6\), got \(300, 7\)"),
    "ultralytics_rtdetr": ("output0", (300, 84), r"\(detections, 6\), got \(300, 84\)"),
    "ultralytics_rtdetr_raw": ("output0", (300, 4), r"\(queries, 4 \+ classes\), got \(300, 4\)"),
    "yolov5": ("output", (9, 5), r"\(anchors, 5 \+ classes\), got \(9, 5\)"),
    "yolov7_end2end": ("output", (7,), r"\(detections, 7\), got \(7,\)"),
    "yolox": ("output", (99, 8), "have 126 anchors, .* 96 x 64 .* 127 with 64, got 99"),
    "yolox_decoded": ("output", (1, 9, 8), r"\(anchors, 5 \+ classes\), got \(1, 9, 8\)"),
    "damo_yolo": ("17", (9, 4), r"\(200, 4\), got \(9, 4\)"),
    "detr_softmax": ("logits", (200, 1), r"'logits' .* \(queries, 1 \+ classes\), got \(200, 1\)"),
    "detr_sigmoid": ("pred_boxes", (9, 4), r"'pred_boxes' .* \(200, 4\), got \(9, 4\)"),
    "detr_sigmoid_100": ("logits", (200, 0), r"'logits' .* \(queries, classes\), got \(200, 0\)"),
    "rf_detr": ("dets", (9, 5), r"'dets' .* \(queries, 4\), got \(9, 5\)"),
    "labelled_boxes": ("labels", (9,), r"'labels' .* \(200,\), got \(9,\)"),
    "efficient_nms": ("num_dets", (2,), r"'num_dets' to hold one number, got \(2,\)"),
    "tensorflow": ("detection_scores", (200, 3), r"\(200,\), got \(200, 3\)"),
    "ssd": ("detection_out", (1, 9, 6), r"\(detections, 7\), got \(9, 6\)"),
    "mmdeploy": ("dets", (9, 6), r"'dets' .* \(detections, 5\), got \(9, 6\)"),
    "ultralytics_obb": ("output0", (5, 9), r"\(4 \+ classes \+ 1, anchors\), got \(5, 9\)"),
    "ultralytics_obb_end2end": ("output0", (300, 6), r"\(detections, 7\), got \(300, 6\)"),
    "mmdeploy_rotated": ("dets", (9, 5), r"'dets' .* \(detections, 6\), got \(9, 5\)"),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_another_shape_is_an_output_error_that_names_both(name):
    key, shape, text = SHAPES[name]
    outputs = made(name)
    outputs[key] = np.zeros(shape, np.float32)
    with pytest.raises(OutputError, match=text):
        decoded(name, outputs, 0.5)


def test_a_missing_output_is_an_output_error_that_names_those_there_are():
    outputs = made("detr_softmax")
    with pytest.raises(
        OutputError, match="output not found: 'pred_boxes', the graph has 'logits', 'boxes'"
    ):
        decoded("detr_softmax", {"logits": outputs["logits"], "boxes": outputs["logits"]}, 0.5)


@pytest.mark.parametrize("count", [-1, 201, np.nan])
def test_a_count_of_rows_that_are_not_there_is_an_output_error(count):
    outputs = made("tensorflow") | {"num_detections": np.array([count], np.float32)}
    with pytest.raises(OutputError, match="'num_detections' to be from 0 to 200"):
        decoded("tensorflow", outputs, 0.5)


def test_yolox_for_large_images_has_a_fourth_stride():
    random = np.random.default_rng(3)
    cells = 126 + 1
    head = [random.uniform(-1, 2, (cells, 4)), random.uniform(0, 1, (cells, 4))]
    outputs = {"output": np.concatenate(head, axis=1).astype(np.float32)}
    expected = [row for row in read_yolox(outputs, (8, 16, 32, 64)) if row[0] > 0.2]
    candidates = decoded("yolox", outputs, 0.2)
    np.testing.assert_allclose(candidates.boxes, [box for _, _, box in expected], atol=1e-3)


def test_damo_yolo_tells_scores_from_boxes_by_their_columns():
    outputs = made("damo_yolo")
    swapped = dict(reversed(outputs.items()))
    expected, candidates = (decoded("damo_yolo", array, 0.3) for array in (outputs, swapped))
    np.testing.assert_array_equal(candidates.boxes, expected.boxes)


def test_torchvision_outputs_with_numbers_for_names_come_in_their_order():
    outputs = made("labelled_boxes")
    numbered = dict(
        zip("465", (outputs[name] for name in ("boxes", "labels", "scores")), strict=True)
    )
    expected, candidates = (decoded("labelled_boxes", array, 0.3) for array in (outputs, numbered))
    assert candidates.class_ids.tolist() == expected.class_ids.tolist()
    np.testing.assert_array_equal(candidates.boxes, expected.boxes)


def test_a_query_may_give_several_labels():
    outputs = {
        "logits": np.array([[3, 2, -9], [-9, -9, 1]], np.float32),
        "pred_boxes": np.full((2, 4), 0.5, np.float32),
    }
    candidates = decoded("detr_sigmoid", outputs, 0.5)
    assert candidates.class_ids.tolist() == [0, 1], "as many pairs as queries"
    assert decoded("detr_sigmoid_100", outputs, 0.5).class_ids.tolist() == [0, 1, 2]


def test_large_logits_do_not_overflow():
    outputs = {
        "logits": np.array([[1e4, -1e4], [-1e4, 1e4]], np.float32),
        "pred_boxes": np.full((2, 4), 0.5, np.float32),
    }
    assert decoded("detr_sigmoid", outputs, 0.5).scores.tolist() == [1, 1]
    assert decoded("detr_softmax", outputs, 0.5).scores.tolist() == [1]


def test_rows_of_zeros_that_fill_up_are_no_boxes():
    assert len(decoded("ultralytics_end2end", {"a": np.zeros((300, 6), np.float32)}, 0).boxes) == 0


@pytest.mark.parametrize("name", ["yolov7_end2end", "ssd"])
def test_rows_of_the_copies_that_fill_up_a_batch_are_passed_over(name):
    [(key, array)] = made(name).items()
    copies = array.copy()
    copies[..., 0] += copies[..., 0] >= 0
    axis = array.ndim - 2
    rows_before = (
        copies[..., :-50, :] if name == "ssd" else copies
    )  # its last quarter ends the list
    pair = {key: np.concatenate([array[..., :100, :], rows_before], axis=axis)}
    alone, candidates = (decoded(name, each, 0.3) for each in ({key: array[..., :100, :]}, pair))
    assert len(alone.boxes) > 50
    np.testing.assert_array_equal(candidates.boxes, alone.boxes)


TABLES = [  # columns, one row, score, class, box; pixels of 96 x 64
    ("box, class, score", [8, 4, 16, 12, 2, 0.5], 0.5, 2, [8, 4, 16, 12]),
    ("class, score, box", [2, 0.5, 8, 4, 16, 12], 0.5, 2, [8, 4, 16, 12]),
    ("image, box, score, class", [0, 8, 4, 16, 12, 0.5, 2], 0.5, 2, [8, 4, 16, 12]),
    ("image, yxyx, score, class", [3, 4, 8, 12, 16, 0.5, 2], 0.5, 2, [8, 4, 16, 12]),
    ("image, class, score, normalized box", [0, 2, 0.5, 0.25, 0.5, 0.5, 0.75], 0.5, 2, [24, 32, 48, 48]),
    ("normalized yxyx, score, class", [0.5, 0.25, 0.75, 0.5, 0.5, 2], 0.5, 2, [24, 32, 48, 48]),
    ("xywh, score, class", [12, 8, 8, 8, 0.5, 2], 0.5, 2, [8, 4, 16, 12]),
    ("normalized xywh, score, class", [0.5, 0.5, 0.25, 0.5, 0.5, 2], 0.5, 2, [36, 16, 60, 48]),
    ("box, objectness, score, class", [8, 4, 16, 12, 0.5, 0.75, 2], 0.375, 2, [8, 4, 16, 12]),
    ("box, score", [8, 4, 16, 12, 0.5], 0.5, 0, [8, 4, 16, 12]),
    ("xywh, angle, class, score", [12, 8, 8, 8, 0.25, 2, 0.5], 0.5, 2, [12, 8, 8, 8, 0.25]),
]  # fmt: skip


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table[0])
def test_a_table_of_detections_is_read_by_its_columns(table):
    columns, row, score, class_id, box = table
    candidates = resolve_decoder(columns)({"out": np.float32([row])}, 0.1, SIZE)
    assert (candidates.scores.tolist(), candidates.class_ids.tolist()) == ([score], [class_id])
    assert candidates.boxes.tolist() == [box]
    assert candidates.suppress is False


@pytest.mark.parametrize(
    "text",
    ["box, score, klass", "box, class", "score, class", "box, xywh, score", "box, score, score", "box, score, class, angle", "normalized xywh, score, angle"],
)  # fmt: skip
def test_columns_that_are_no_table_are_refused(text):
    with pytest.raises(ObjectReferenceError, match=r"such as 'image, box, score, class'.* got '"):
        resolve_decoder(text)


SWAPPED = [  # columns, columns as they are read, what the error says
    ("box, class, score", "box, score, class", "expected class numbers, got 0.5"),
    (
        "image, box, score, class",
        "image, box, class, score",
        "expected class numbers, got 0.5",
    ),
    (
        "image, yxyx, score, class",
        "xywh, score, class, angle",
        "expected class numbers, got 0.5",
    ),
]


@pytest.mark.parametrize(("columns", "read_as", "text"), SWAPPED)
def test_columns_in_another_order_are_an_output_error(columns, read_as, text):
    (row,) = (row for known, row, *_ in TABLES if known == columns)
    with pytest.raises(OutputError, match=text):
        resolve_decoder(read_as)({"out": np.float32([row])}, 0.1, SIZE)


def test_a_class_that_is_no_whole_number_is_an_output_error():
    rows = {"out": np.float32([[8, 4, 16, 12, 0.875, 1], [8, 4, 16, 12, 0.5, 0]])}
    with pytest.raises(OutputError, match=r"expected class numbers, got 0\.875"):
        resolve_decoder("box, class, score")(rows, 0.1, SIZE)


NMS_NAMES = [
    ("num_dets", "boxes", "scores", "labels"),
    ("graph2_num_predictions", "graph2_pred_boxes", "graph2_pred_scores", "graph2_pred_classes"),
    ("num_detections:0", "detection_boxes:0", "detection_scores:0", "detection_classes:0"),
]


@pytest.mark.parametrize("names", NMS_NAMES)
def test_names_of_other_exporters_mean_the_same_outputs(names):
    outputs = made("efficient_nms")
    keys = ("num_dets", "det_boxes", "det_scores", "det_classes")
    renamed = {name: outputs[key] for name, key in zip(names, keys, strict=True)}
    expected = decoded("efficient_nms", outputs, 0.3)
    candidates = decoded("efficient_nms", renamed, 0.3)
    assert candidates.class_ids.tolist() == expected.class_ids.tolist()
    np.testing.assert_array_equal(candidates.boxes, expected.boxes)

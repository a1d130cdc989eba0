import math
from typing import Any

import msgspec
import numpy as np
import pytest

from quadriga.tasks import OutputError, Task
from quadriga.tasks.detection import OrientedObjectDetection
from quadriga.tasks.geometry import (
    convex_intersection_areas,
    iou_matrix,
    probiou_matrix,
    xywhr_to_corners,
)
from quadriga.tasks.image import Image
from quadriga.tasks.parameters import ParameterError
from quadriga.tasks.predictions import OrientedDetection
from quadriga.tasks.specification import Defaults, InputSpec, ModelSpec, OutputSpec

QUARTER = math.pi / 2


def detector(decoder="ultralytics_obb", size_wh=(64, 64), resize="letterbox", **fields: Any):
    angle = fields.pop("angle", "raw")
    return OrientedObjectDetection(
        ModelSpec(
            task="ORIENTED_OBJECT_DETECTION",
            input=InputSpec(name="images", size_wh=size_wh, resize=resize),
            output=OutputSpec(decoder=decoder, angle=angle),
            labels=("ship", "plane"),
            defaults=Defaults(**fields),
        )
    )


def image_placement(task, image_wh):
    return task.preprocess(Image(np.zeros((image_wh[1], image_wh[0], 3), np.uint8)))[1]


def answer(task, *anchors: Any, image_wh=(128, 64), **parameters: Any):
    """Predict from anchors of (cx, cy, w, h, ship, plane, angle) in network pixels."""
    head = np.array(anchors, np.float32).reshape(-1, 7).T
    affine = image_placement(task, image_wh)
    return task.predict({"output0": head}, affine, task.options(parameters))


def pixels(prediction, image_wh):
    """De-normalise first, then the rotation is the one in pixels."""
    width, height = image_wh
    return [
        prediction.cx * width,
        prediction.cy * height,
        prediction.w * width,
        prediction.h * height,
        prediction.r,
    ]


def iou(box, second):
    return iou_matrix(np.array([box], float), np.array([second], float))[0, 0]


def test_an_oriented_detector_is_a_task():
    task: Task = detector()
    assert task.actions[0] == "predict"


# An image of 128 x 64 becomes 64 x 32 with 16 rows above and below: image = (network - (0, 16)) * 2
SHIP = (32, 32, 20, 8, 0.9, 0.1, 0.5)
CASES: dict[str, Any] = {
    "none": ((), {}, []),
    "one": ((SHIP,), {}, [("ship", 0.9, 64, 32, 40, 16, 0.5)]),
    "best class": (
        ((32, 32, 20, 8, 0.6, 0.7, 9.5),),
        {"action": "detect"},
        [("plane", 0.7, 64, 32, 40, 16, 9.5)],
    ),
    "threshold": (((32, 32, 20, 8, 0.5, 0.1, 0),), {}, []),
    "not clipped": (((0, 16, 20, 8, 0.9, 0, 0),), {}, [("ship", 0.9, 0, 0, 40, 16, 0)]),
    "outside": (((-9, 0, 4, 2, 0.9, 0, 0),), {}, [("ship", 0.9, -18, -32, 8, 4, 0)]),
    "without area": (((9, 9, 0, 8, 0.9, 0, 0), (9, 9, 4, -4, 0.8, 0, 0)), {}, []),
    "twins, by score": (
        ((32, 32, 20, 8, 0.6, 0.1, 0.5), SHIP, (9, 30, 4, 2, 0.7, 0, 0)),
        {},
        [("ship", 0.9, 64, 32, 40, 16, 0.5), ("ship", 0.7, 18, 28, 8, 4, 0)],
    ),
    "other class stays": (
        (SHIP, (32, 32, 20, 8, 0.1, 0.8, 0.5)),
        {},
        [("ship", 0.9, 64, 32, 40, 16, 0.5), ("plane", 0.8, 64, 32, 40, 16, 0.5)],
    ),
    "best n": (
        (SHIP, (9, 30, 4, 2, 0.7, 0, 0)),
        {"max_detections": 1},
        [("ship", 0.9, 64, 32, 40, 16, 0.5)],
    ),
    "le90": (
        ((32, 32, 8, 20, 0.9, 0, 0.25),),
        {"angle": "le90"},
        [("ship", 0.9, 64, 32, 40, 16, 0.25 - QUARTER)],
    ),
    "oc": (
        ((32, 32, 8, 20, 0.9, 0, -0.25),),
        {"angle": "oc"},
        [("ship", 0.9, 64, 32, 40, 16, QUARTER - 0.25)],
    ),
}


@pytest.mark.parametrize(("anchors", "parameters", "expected"), CASES.values(), ids=CASES)
def test_answers(anchors, parameters, expected):
    predictions = answer(detector(), *anchors, **parameters)
    assert [prediction.label for prediction in predictions] == [row[0] for row in expected]
    numbers = [[prediction.score, *pixels(prediction, (128, 64))] for prediction in predictions]
    np.testing.assert_allclose(
        np.reshape(numbers, (-1, 6)), np.reshape([row[1:] for row in expected], (-1, 6)), atol=1e-5
    )


def test_answers_are_plain_json_in_the_order_of_the_protocol():
    [predictions] = answer(detector(), (32, 32, 16, 8, 0.75, 0, 0.5))
    assert predictions == OrientedDetection("ship", 0.75, 0.5, 0.5, 0.25, 0.25, 0.5)
    assert msgspec.json.encode(predictions) == (
        b'{"label":"ship","score":0.75,"cx":0.5,"cy":0.5,"w":0.25,"h":0.25,"r":0.5}'
    )


def test_corners_are_answered_in_pixels_where_asked_for():
    [predictions] = answer(detector(), (32, 32, 16, 8, 0.75, 0, 0), corners=True)
    assert predictions.corners == [[48, 24], [80, 24], [80, 40], [48, 40]]
    assert b'"corners":[[48.0,24.0]' in msgspec.json.encode(predictions)


@pytest.mark.parametrize("angle", ["raw", "le90", "oc"])
def test_corners_are_the_same_four_points_in_every_range(angle):
    raw, second = (
        answer(detector(), (32, 32, 8, 20, 0.9, 0, 2.2), corners=True, angle=name)[0].corners
        for name in ("raw", angle)
    )
    turned = [np.abs(np.roll(raw, turn, axis=0) - second).max() for turn in range(4)]
    assert min(turned) < 1e-4


@pytest.mark.parametrize("angle", ["raw", "le90", "oc"])
@pytest.mark.parametrize("image_wh", [(1280, 720), (720, 1280), (640, 640), (1001, 333), (64, 63)])
@pytest.mark.parametrize("turn", [0, math.pi / 4, QUARTER, 2.2, -0.6])
def test_a_turned_box_survives_the_network_and_the_wire(image_wh, turn, angle):
    """Image to network and wire, and back by the documented rule."""
    task = detector(size_wh=(640, 640))
    affine = image_placement(task, image_wh)
    width, height = image_wh
    truth = [width / 2, height / 2, height * 0.6, height * 0.2, turn]
    centre = affine.to_network(np.array([truth[:2]]))[0]
    # the scales differ by rounding alone, so that the network sees nearly a rectangle
    gain = math.sqrt(affine.sx * affine.sy)
    anchor = [*centre, truth[2] * gain, truth[3] * gain, 0.9, 0, turn]
    [predictions] = answer(task, anchor, image_wh=image_wh, angle=angle)
    wire = msgspec.json.decode(msgspec.json.encode(predictions), type=OrientedDetection)
    assert iou(pixels(wire, image_wh), truth) > 0.99


def test_a_45_degree_box_read_in_fractions_would_be_another_box():
    """Why the rule says pixels: at 16:9, the fractions rotated overlap the box by 39 percent."""
    image_wh = (1280, 720)
    wire = OrientedDetection("ship", 1, 0.5, 0.5, 0.2, 0.05, math.pi / 4)
    wrong = xywhr_to_corners(np.array([[wire.cx, wire.cy, wire.w, wire.h, wire.r]])) * image_wh
    box = np.array([pixels(wire, image_wh)])
    common = convex_intersection_areas(wrong, xywhr_to_corners(box))
    area = box[0, 2] * box[0, 3]  # of both: the parallelogram is the sheared rectangle
    assert common / (2 * area - common) == pytest.approx(0.391, abs=1e-3)


def test_a_stretched_image_is_undone():
    task = detector(size_wh=(100, 100), resize="stretch")
    # 200 x 100 pixels became 100 x 100: what lies along x was halved
    [predictions] = answer(task, (50, 50, 20, 8, 0.9, 0, QUARTER), image_wh=(200, 100))
    np.testing.assert_allclose(
        pixels(predictions, (200, 100)), [100, 50, 20, 16, QUARTER], atol=1e-4
    )


def fast_nms(rows, scores, threshold):
    order = sorted(range(len(rows)), key=lambda index: -scores[index])
    likeness = probiou_matrix(rows, rows)
    return [i for n, i in enumerate(order) if all(likeness[i, j] <= threshold for j in order[:n])]


def greedy_nms(rows, scores, threshold):
    selected: list[int] = []
    overlap = iou_matrix(rows, rows)
    for index in sorted(range(len(rows)), key=lambda index: -scores[index]):
        if all(overlap[index, second] <= threshold for second in selected):
            selected.append(index)
    return selected


def crowd(count=120):
    random = np.random.default_rng(6)
    centre, sides = random.uniform(10, 50, (count, 2)), random.uniform(4, 16, (count, 2))
    rows = np.concatenate([centre, sides, random.uniform(-1, 3, (count, 1))], axis=1)
    return rows.astype(np.float32), random.permutation(count).astype(np.float32) / count


@pytest.mark.parametrize("threshold", [0.1, 0.3, 0.7])
@pytest.mark.parametrize(
    ("decoder", "expected"), [("ultralytics_obb", fast_nms), ("mmdeploy_rotated", greedy_nms)]
)
def test_each_family_suppresses_as_its_own_program_does(decoder, expected, threshold):
    rows, scores = crowd()
    if decoder == "ultralytics_obb":
        head = np.concatenate([rows[:, :4], scores[:, None], rows[:, 4:]], axis=1)
        outputs = {"output0": head.T}
    else:
        dets = np.concatenate([rows, scores[:, None]], axis=1)
        outputs = {"dets": dets, "labels": np.zeros(len(dets), np.int64)}
    task = detector(decoder, resize="none", score_threshold=0.2, iou_threshold=threshold)
    predictions = task.predict(outputs, image_placement(task, (64, 64)), task.options({}))
    above = np.flatnonzero(scores > 0.2)
    selected = above[expected(rows[above], scores[above], threshold)]
    assert len(above) > len(selected) > 3
    np.testing.assert_allclose(
        [prediction.score for prediction in predictions], scores[selected], atol=1e-6
    )
    found_px = [pixels(prediction, (64, 64)) for prediction in predictions]
    np.testing.assert_allclose(found_px, rows[selected], atol=1e-3)


def test_end_to_end_boxes_are_not_suppressed_again():
    task = detector("ultralytics_obb_end2end")
    row = [32, 32, 20, 8, 0.9, 0, 0.5]
    outputs = {"output0": np.array([row, row, [0] * 7], np.float32)}
    assert len(task.predict(outputs, image_placement(task, (64, 64)), task.options({}))) == 2


def test_a_decoder_of_upright_boxes_is_an_output_error():
    task = detector("ultralytics")
    with pytest.raises(OutputError, match="rotated boxes of 5 numbers, got 4 from 'ultralytics'"):
        answer(task, SHIP)


def test_a_class_without_label_is_an_output_error():
    task = detector("ultralytics_obb_end2end")
    outputs = {"output0": np.array([[32, 32, 20, 8, 0.9, 2, 0.5]], np.float32)}
    with pytest.raises(OutputError, match="class 2 and 2 labels"):
        task.predict(outputs, image_placement(task, (64, 64)), task.options({}))


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"angle": "le135"}, "parameters.angle to be one of raw, le90, oc, got 'le135'"),
        ({"corners": 1}, "parameters.corners to be true or false, got 1"),
        ({"score_threshold": 2}, "parameters.score_threshold"),
        ({"action": "segment"}, "parameters.action"),
    ],
)
def test_parameters_that_are_not_allowed_are_refused(parameters, text):
    with pytest.raises(ParameterError, match=text):
        detector().options(parameters)


def test_options_default_to_those_of_the_model():
    options = detector(angle="oc", score_threshold=0.2, iou_threshold=0.4).options({"angle": None})
    assert (options.action, options.angle, options.corners) == ("predict", "oc", False)
    assert (options.score_threshold, options.iou_threshold) == (0.2, 0.4)

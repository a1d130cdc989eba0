from typing import Any

import msgspec
import numpy as np
import pytest

from quadriga.tasks import OutputError, Task
from quadriga.tasks.decoders import Candidates
from quadriga.tasks.detection import ObjectDetection
from quadriga.tasks.image import Image
from quadriga.tasks.parameters import ParameterError
from quadriga.tasks.predictions import Detection, TruncatedPredictions
from quadriga.tasks.specification import (
    Defaults,
    InputSpec,
    ModelSpec,
    ObjectReferenceError,
    OutputSpec,
)


def detector(labels=("circle", "square"), decoder="ultralytics", **defaults: Any):
    return ObjectDetection(
        ModelSpec(
            task="OBJECT_DETECTION",
            input=InputSpec(name="images", size_wh=(64, 64), resize="letterbox"),
            output=OutputSpec(decoder=decoder),
            labels=labels,
            defaults=Defaults(**defaults),
        )
    )


def answer(task, *anchors: Any, image_wh=(128, 64), **parameters: Any):
    """Predict from anchors of (cx, cy, w, h, scores...) in network pixels."""
    image = Image(np.zeros((image_wh[1], image_wh[0], 3), np.uint8))
    _, affine = task.preprocess(image)
    head = np.array(anchors, np.float32).reshape(-1, 6).T
    return task.predict({"output0": head}, affine, task.options(parameters))


def test_a_detector_is_a_task():
    task: Task = detector()
    assert task.actions[0] == "predict"


# An image of 128 x 64 becomes 64 x 32 with 16 rows above and below: image = (network - (0, 16)) * 2
CASES = {
    "none": ((), {}, []),
    "one": (((32, 32, 10, 8, 0.9, 0.1),), {}, [("circle", 0.9, 54, 24, 74, 40)]),
    "best class": (((32, 32, 10, 8, 0.6, 0.7),), {}, [("square", 0.7, 54, 24, 74, 40)]),
    "threshold is left out": (((32, 32, 10, 8, 0.5, 0.1),), {}, []),
    "threshold of the request": (
        ((32, 32, 10, 8, 0.4, 0.1),),
        {"score_threshold": 0.3},
        [("circle", 0.4, 54, 24, 74, 40)],
    ),
    "by score, twins suppressed": (
        ((10, 30, 4, 4, 0.6, 0), (32, 32, 10, 8, 0.8, 0), (32, 32, 10, 8, 0.7, 0)),
        {},
        [("circle", 0.8, 54, 24, 74, 40), ("circle", 0.6, 16, 24, 24, 32)],
    ),
    "other class stays": (
        ((32, 32, 10, 8, 0.8, 0), (32, 32, 10, 8, 0, 0.7)),
        {"action": "detect"},
        [("circle", 0.8, 54, 24, 74, 40), ("square", 0.7, 54, 24, 74, 40)],
    ),
    "twins stay at 1": (
        ((32, 32, 10, 8, 0.8, 0), (32, 32, 10, 8, 0.7, 0)),
        {"iou_threshold": 1},
        [("circle", 0.8, 54, 24, 74, 40), ("circle", 0.7, 54, 24, 74, 40)],
    ),
    "best n": (
        ((10, 30, 4, 4, 0.6, 0), (32, 32, 10, 8, 0.8, 0)),
        {"max_detections": 1},
        [("circle", 0.8, 54, 24, 74, 40)],
    ),
    "clipped": (((0, 16, 8, 8, 0.9, 0),), {}, [("circle", 0.9, 0, 0, 8, 8)]),
    "in the border": (((32, 6, 8, 8, 0.9, 0),), {}, []),
    "without area": (((32, 32, 0, 8, 0.9, 0), (32, 32, -4, 8, 0.8, 0)), {}, []),
    "everything": (((32, 32, 500, 500, 0.9, 0),), {}, [("circle", 0.9, 0, 0, 128, 64)]),
}


@pytest.mark.parametrize(("anchors", "parameters", "expected"), CASES.values(), ids=CASES)
def test_answers(anchors, parameters, expected):
    predictions = answer(detector(), *anchors, **parameters)
    assert [prediction.label for prediction in predictions] == [row[0] for row in expected]
    numbers = [msgspec.structs.astuple(prediction)[1:] for prediction in predictions]
    np.testing.assert_allclose(
        np.reshape(numbers, (-1, 5)), np.reshape([row[1:] for row in expected], (-1, 5)), atol=1e-5
    )


@pytest.mark.parametrize(
    ("nms", "labels"), [("class", ["circle", "square"]), ("agnostic", ["circle"])]
)
def test_overlaps_may_be_suppressed_across_classes(nms, labels):
    task = ObjectDetection(
        ModelSpec(
            task="OBJECT_DETECTION",
            input=InputSpec(name="images", size_wh=(64, 64), resize="letterbox"),
            output=OutputSpec(decoder="ultralytics", nms=nms),
            labels=("circle", "square"),
        )
    )
    predictions = answer(task, (32, 32, 10, 8, 0.8, 0), (32, 32, 10, 8, 0, 0.7))
    assert [prediction.label for prediction in predictions] == labels


def test_boxes_come_from_the_image_through_the_network_to_1e_3_px():
    random = np.random.default_rng(1)
    task = detector(score_threshold=0.1)
    for image_wh in ((4000, 3000), (63, 65), (1000, 17), (1, 1)):
        image = Image(np.zeros((image_wh[1], image_wh[0], 3), np.uint8))
        _, affine = task.preprocess(image)
        low = random.uniform(0, 0.5, (1, 2)) * image_wh
        box = np.concatenate([low, low + random.uniform(0.1, 0.5, (1, 2)) * image_wh], axis=1)
        in_network = affine.to_network(box)[0]
        anchor = [
            *(in_network[:2] + in_network[2:]) / 2,
            *(in_network[2:] - in_network[:2]),
            0.9,
            0.2,
        ]
        [predictions] = answer(task, anchor, image_wh=image_wh)
        np.testing.assert_allclose(
            (predictions.xmin, predictions.ymin, predictions.xmax, predictions.ymax),
            box[0],
            atol=1e-3,
        )


def test_answers_are_plain_json_in_the_order_of_the_protocol():
    [predictions] = answer(detector(), (32, 32, 16, 8, 0.75, 0))
    assert predictions == Detection("circle", 0.75, 48.0, 24.0, 80.0, 40.0)
    assert msgspec.json.encode(predictions) == (
        b'{"label":"circle","score":0.75,"xmin":48.0,"ymin":24.0,"xmax":80.0,"ymax":40.0}'
    )


def test_a_class_without_label_is_an_output_error():
    with pytest.raises(OutputError, match="a label for each class, got class 1"):
        answer(detector(labels=("circle",)), (32, 32, 10, 8, 0, 0.9))


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ({"action": "segment"}, "action"),
        ({"score_threshold": 7}, "score_threshold"),
        ({"iou_threshold": "0.5"}, "iou_threshold"),
        ({"max_detections": 0}, "max_detections"),
        ({"max_detections": 10_001}, "max_detections"),
    ],
)
def test_parameters_out_of_range_are_refused(parameters, name):
    with pytest.raises(ParameterError, match=f"expected parameters.{name} to be"):
        detector().options(parameters)


def test_options_default_to_those_of_the_model():
    options = detector(score_threshold=0.2, iou_threshold=0.4, max_detections=7).options(
        {"score_threshold": None, "metadata": {"camera": 1}}
    )
    assert msgspec.structs.astuple(options) == ("predict", 0.2, 0.4, 7)


def test_boxes_that_need_no_suppression_stay_and_classes_may_count_from_1():
    """Boxes like those of torchvision's detectors: the image as it is, class 1 for the first label, 0 for none."""
    task = ObjectDetection(
        ModelSpec(
            task="OBJECT_DETECTION",
            input=InputSpec(name="image", size_wh=(64, 64), resize="none"),
            output=OutputSpec(decoder="labelled_boxes", label_offset=1, batch_axis=False),
            labels=("circle", "square"),
        )
    )
    _, affine = task.preprocess(Image(np.zeros((40, 100, 3), np.uint8)))
    outputs = {
        "boxes": np.array([[1, 2, 90, 30]] * 4, np.float32),
        "labels": np.array([1, 2, 1, 0]),
        "scores": np.array([0.75, 0.875, 0.8125, 0.9], np.float32),
    }
    predictions = task.predict(outputs, affine, task.options({"max_detections": 2}))
    assert predictions == [
        Detection("square", 0.875, 1, 2, 90, 30),
        Detection("circle", 0.8125, 1, 2, 90, 30),
    ]


@pytest.mark.parametrize(("limit", "is_cut"), [(1, True), (2, True), (3, False), (4, False)])
def test_that_a_limit_cut_the_boxes_is_known(limit, is_cut):
    rows = [(20 * x - 8, 32, 16, 8, 0.9 - x / 9, 0) for x in range(1, 4)]
    predictions = answer(detector(), *rows, max_detections=limit)
    assert len(predictions) == min(limit, 3)
    assert isinstance(predictions, TruncatedPredictions) == is_cut


@pytest.mark.parametrize("image_wh", [(64, 64), (200, 50), (33, 77)])
def test_fractions_are_of_the_network_s_input_for_this_image(image_wh):
    """A box over the middle half of the image, as a model with inputs of any size would answer it."""
    task = ObjectDetection(
        ModelSpec(
            task="OBJECT_DETECTION",
            input=InputSpec(name="images", size_wh=(96, 96), resize="letterbox_rect"),
            output=OutputSpec(decoder="detr_sigmoid"),
            labels=("circle",),
        )
    )
    _, affine = task.preprocess(Image(np.zeros((image_wh[1], image_wh[0], 3), np.uint8)))
    truth = np.array([0.25, 0.25, 0.75, 0.75]) * (image_wh * 2)
    x1, y1, x2, y2 = affine.to_network(truth[None])[0] / (affine.network_wh * 2)
    outputs = {
        "logits": np.array([[2]], np.float32),
        "pred_boxes": np.array([[(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1]], np.float32),
    }
    [predictions] = task.predict(outputs, affine, task.options({}))
    np.testing.assert_allclose(msgspec.structs.astuple(predictions)[2:], truth, atol=1e-3)


def own_decoder(outputs, score_threshold, size_wh):
    return Candidates(
        boxes=np.array([[0, 16, *size_wh]], np.float32),
        scores=np.array([score_threshold], np.float32),
        class_ids=np.array([0]),
    )


def test_a_decoder_of_one_s_own_is_given_as_a_reference(monkeypatch):
    monkeypatch.setattr("quadriga.tasks.decoders.own", own_decoder, raising=False)
    [predictions] = answer(detector(decoder="quadriga.tasks.decoders:own"))
    assert predictions == Detection("circle", 0.5, 0.0, 0.0, 128.0, 64.0)


def test_an_unknown_decoder_is_refused_with_those_there_are():
    with pytest.raises(ObjectReferenceError, match=r"output\.decoder.* to be one of ultralytics, "):
        detector(decoder="yolo99")

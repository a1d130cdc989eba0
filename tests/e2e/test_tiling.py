"""Large images in parts: small objects are found, objects over borders are one."""

import json

import cv2
import numpy as np
import pytest

from quadriga.engine.models.model import Model
from quadriga.engine.serving.image_inference import ImageModel, infer_images
from quadriga.proto.errors import InvalidRequest
from quadriga.proto.messages import InferRequest, Tensor
from quadriga.tasks.parameters import ParameterError
from tests.server_process import IMAGES, MODELS, SAMPLE_MODELS


def answers(task, image, **parameters):
    folder = SAMPLE_MODELS / MODELS[task]
    model = Model(folder.name, "1", folder / "model.onnx")
    images = ImageModel(model.image_predictor, 50_000_000, 10)
    data = cv2.imencode(".png", image)[1].tobytes()
    request = InferRequest(folder.name, None, "", [Tensor("a", "BYTES", (1,), [data], parameters)])
    return infer_images(images, request)[1][0].predictions


def mosaic(task):
    """Nine sample images of 480 x 480 in one, with the labels that are on them."""
    folder = IMAGES / task
    lines = [json.loads(line) for line in (folder / "annotations.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["path"].endswith(".jpg")][:9]
    images = [cv2.resize(cv2.imread(str(folder / line["path"])), (480, 480)) for line in lines]
    labels = sorted(
        annotation["class_label"] for line in lines for annotation in line["annotations"]
    )
    rows = [np.concatenate(images[start : start + 3], axis=1) for start in (0, 3, 6)]
    return np.concatenate(rows), labels


@pytest.mark.parametrize("task", ["detection", "oriented"])
def test_tiles_find_what_is_too_small_for_the_whole(task):
    image, labels = mosaic(task)
    tiling = {"size": [480, 480], "overlap": 0.25}
    untiled, tiled = (
        answers(task, image, score_threshold=0.6),
        answers(task, image, score_threshold=0.6, tiling=tiling),
    )
    tiled_labels = sorted(detection.label for detection in tiled)
    missed = sum(max(0, labels.count(name) - tiled_labels.count(name)) for name in set(labels))
    assert missed <= len(labels) * 0.1
    assert abs(len(tiled_labels) - len(labels)) <= len(labels) * 0.25
    assert len(untiled) < len(labels) * 0.9


def test_an_object_over_a_border_is_one():
    image = cv2.imread(str(IMAGES / "detection" / "scene_05.jpg"))
    untiled = answers("detection", image, score_threshold=0.85)
    tiling = {"size": [400, 300], "overlap": 0.5}
    tiled = answers("detection", image, score_threshold=0.85, tiling=tiling)
    assert sorted(detection.label for detection in tiled) == sorted(
        detection.label for detection in untiled
    )


@pytest.mark.parametrize(
    ("tiling", "message"),
    [
        (True, "false or an object"),
        ({}, "size"),
        ({"size": [0, 100]}, "size"),
        ({"size": [100, 100], "overlap": 1}, "overlap"),
        ({"size": [100, 100], "merge": "wbf"}, "nms, nmm"),
        ({"size": [100, 100], "overlaps": 0.1}, "overlaps"),
    ],
)
def test_a_wrong_tiling_is_refused(tiling, message):
    with pytest.raises(InvalidRequest) as caught:
        answers("detection", np.zeros((50, 50, 3), np.uint8), tiling=tiling)
    assert message in str(caught.value)


def test_contours_in_tiles_are_those_of_their_objects():
    image = cv2.imread(str(IMAGES / "segmentation" / "scene_02.jpg"))
    four = np.concatenate([np.concatenate([image, image], axis=1)] * 2)
    parameters = {"min_area": 500, "score_threshold": 0.5}
    height, width = image.shape[:2]
    untiled = answers("segmentation", image, **parameters)
    tiled = answers(
        "segmentation", four, tiling={"size": [width, height], "overlap": 0}, **parameters
    )
    assert sorted(region.label for region in tiled) == sorted(
        region.label for region in untiled * 4
    )


def test_a_classifier_takes_no_tiles():
    folder = SAMPLE_MODELS / "shapes-classifier"
    model = Model(folder.name, "1", folder / "model.onnx")
    with pytest.raises(ParameterError, match=r"parameters\.tiling cannot be used"):
        model.image_predictor.read_options({"tiling": {"size": [100, 100]}})


def test_too_many_tiles_are_refused_before_any_runs():
    image = np.zeros((480, 640, 3), np.uint8)
    with pytest.raises(InvalidRequest, match="at most 10000 tiles, got 72929"):
        answers("detection", image, tiling={"size": [16, 16], "overlap": 0.9})

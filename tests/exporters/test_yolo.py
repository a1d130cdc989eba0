"""Real exports of Ultralytics, with nothing to configure, answer as its `predict` does on the same file.

Run with `EXPORTER_PYTHON=/path/to/python pytest -m exporter tests/exporters/test_yolo.py`, where that
Python has torch 2.13, torchvision 0.28, ultralytics 8.4 and onnxruntime; it takes a minute.
"""

import json

import numpy as np
import pytest

from quadriga.engine.models.inspection import open_model
from quadriga.engine.serving.image_inference import ImageModel, infer_images
from quadriga.proto.messages import InferRequest, Tensor
from quadriga.tasks.geometry import fill, to_rings, xywhr_to_corners
from quadriga.tasks.image import MAX_PIXELS, decode

DETECTORS = [
    "detect",
    "detect-nms",
    "detect-open",
    "detect-v8",
    "detect-26",
    "detect-end2end",
    "detect-v10",
]
SEGMENTERS = ["segment", "segment-nms", "segment-end2end"]
ORIENTED = ["oriented", "oriented-nms", "oriented-end2end"]
SCORE = 1e-5
IMAGES = ("landscape", "portrait", "small")

pytestmark = [pytest.mark.exporter, pytest.mark.timeout(600)]
EXPORTER = "export_yolo.py"


def cases(folder):
    """Yield each image with the predictions of the library and of the server."""
    expected = json.loads((folder / "expected.json").read_text())
    assert set(expected["images"]) == {f"{name}.png" for name in IMAGES}
    model = open_model(folder)
    images = ImageModel(model.image_predictor, MAX_PIXELS, max_images=1)
    parameters = {"score_threshold": expected["conf"], "iou_threshold": expected["iou"]}
    if "scores" in expected["images"]["small.png"]:
        parameters = {"action": "predict_proba"}
    for name, answer in expected["images"].items():
        data = (folder / name).read_bytes()
        tensor = Tensor(name, "BYTES", (1,), [data], parameters=parameters)
        _, (answered,) = infer_images(images, InferRequest(model.name, None, "", [tensor]))
        yield name, decode(data), answer, answered.predictions


def flat(box):
    """Check whether an upright box has no area; four corners are no such box."""
    return np.ndim(box) == 1 and (box[2] <= box[0] or box[3] <= box[1])


def paired(rows, predictions):
    """Return each row of the library with the answer of its label and the nearest score.

    The library also answers boxes without area.
    """
    rows = [row for row in rows if not flat(row[2])]
    assert len(rows) == len(predictions)
    remaining = list(predictions)
    for row in rows:
        nearest = min(
            (prediction for prediction in remaining if prediction.label == row[0]),
            key=lambda p: abs(p.score - row[1]),
        )
        remaining.remove(nearest)
        yield row, nearest


@pytest.mark.parametrize("model", DETECTORS)
def test_boxes_are_those_of_the_library(exports, model):
    apart, scores = [], []
    for _, _, answer, detections in cases(exports / model):
        for (_, score, box), detection in paired(answer["boxes"], detections):
            apart.append(
                np.abs(
                    [detection.xmin, detection.ymin, detection.xmax, detection.ymax] - np.array(box)
                ).max()
            )
            scores.append(abs(detection.score - score))
    print(f"{model}: {len(apart)} boxes, {max(apart):.1e} px, score {max(scores):.1e}")  # noqa: T201 - shown by -s
    assert len(apart) > 20
    assert max(apart) < 0.05
    assert max(scores) < SCORE


@pytest.mark.parametrize("model", ORIENTED)
def test_rotated_boxes_are_those_of_the_library(exports, model):
    apart, scores = [], []
    for _, image, answer, detections in cases(exports / model):
        sides = np.array([image.width, image.height])
        for (_, score, corners), detection in paired(answer["boxes"], detections):
            box = [
                *(
                    np.array([detection.cx, detection.cy, detection.w, detection.h]).reshape(2, 2)
                    * sides
                ).ravel()
            ]
            ours = xywhr_to_corners(np.array([[*box, detection.r]]))[0]
            # the same rectangle, whichever corner is named first
            turns = [
                np.abs(np.roll(ours[::way], turn, axis=0) - corners).max()
                for turn in range(4)
                for way in (1, -1)
            ]
            apart.append(min(turns))
            scores.append(abs(detection.score - score))
    print(f"{model}: {len(apart)} boxes, {max(apart):.1e} px, score {max(scores):.1e}")  # noqa: T201 - shown by -s
    assert len(apart) > 20
    assert max(apart) < 0.05
    assert max(scores) < SCORE


@pytest.mark.parametrize("model", SEGMENTERS)
def test_masks_are_those_of_the_library(exports, model):
    shares, scores = [], []
    for name, image, answer, segments in cases(exports / model):
        stem = name.removesuffix(".png")
        rows = [[*row, number] for number, row in enumerate(answer["boxes"])]
        for (_, score, _, number), segment in paired(rows, segments):
            drawn = decode((exports / model / f"{stem}-{number}.png").read_bytes())
            filled = fill(to_rings(segment.contour), image.width, image.height) > 0
            shares.append(float((filled == (drawn.pixels[..., 0] > 0)).mean()))
            scores.append(abs(segment.score - score))
    print(f"{model}: {len(shares)} masks, equal {min(shares):.5f}, score {max(scores):.1e}")  # noqa: T201 - shown by -s
    assert len(shares) > 20
    assert min(shares) >= 0.999
    assert max(scores) < SCORE


def test_probabilities_are_those_of_the_library(exports):
    apart = [
        abs(classification.score - answer["scores"][classification.label])
        for _, _, answer, classifications in cases(exports / "classify")
        for classification in classifications
    ]
    print(f"classify: largest difference {max(apart):.1e}")  # noqa: T201 - shown by -s
    assert len(apart) == 21
    assert max(apart) < 1e-5

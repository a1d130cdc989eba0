"""The same scene, stored turned with an EXIF orientation, gives the same answer, for every task."""

import io
import json

import numpy as np
import pytest
from PIL import Image

from quadriga.engine.models.model import Model
from quadriga.engine.models.model_folders import find_model
from quadriga.engine.serving.image_inference import ImageModel, infer_images
from quadriga.proto.messages import InferRequest, Tensor
from tests.server_process import IMAGES, SAMPLE_MODELS

ORIENTATIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
"""What turns an upright picture into the raster that a file of this orientation stores."""

TASKS = {
    "classification": ("shapes-classifier", {"action": "predict_proba"}),
    "detection": ("shapes-detector", {}),
    "oriented": ("ships-oriented-detector", {}),
    "segmentation": ("shapes-segmenter", {}),
    "image-text": (
        "shapes-image-text",
        {"prompts": ["How many shapes are there?", "Describe the image."]},
    ),
}


def first_image(task):
    line = (IMAGES / task / "annotations.jsonl").read_text().splitlines()[1]
    with Image.open(IMAGES / task / json.loads(line)["path"]) as opened:
        return opened.convert("RGB")


def stored(image, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    raster = image if orientation == 1 else image.transpose(ORIENTATIONS[orientation])
    raster.save(buffer, "PNG", exif=exif)
    return buffer.getvalue()


@pytest.mark.parametrize("task", TASKS)
def test_turned_files_answer_as_the_upright_one(task):
    name, parameters = TASKS[task]
    model = Model(name, "1", find_model(SAMPLE_MODELS / name))
    images = ImageModel(model.image_predictor, 50_000_000, 10)
    image = first_image(task)
    data = [stored(image, orientation) for orientation in (1, *ORIENTATIONS)]
    tensor = Tensor("a", "BYTES", (len(data),), data, parameters)
    _, answered = infer_images(images, InferRequest(name, None, "", [tensor]))
    upright = answered[0].predictions
    assert upright
    for turned in answered[1:]:
        assert (turned.width, turned.height) == image.size
        assert turned.predictions == upright


def test_a_box_at_45_degrees_in_a_16_to_9_image_survives_the_wire():
    """Corners from the wire's fractions, rotated in pixels, are the corners that the server gives."""
    name = "ships-oriented-detector"
    model = Model(name, "1", SAMPLE_MODELS / name / "model.onnx")
    images = ImageModel(model.image_predictor, 50_000_000, 10)
    truth = [
        json.loads(line)
        for line in (IMAGES / "oriented" / "annotations.jsonl").read_text().splitlines()
    ]
    data = (IMAGES / "oriented" / truth[1]["path"]).read_bytes()
    tensor = Tensor("a", "BYTES", (1,), [data], {"corners": True})
    _, (answered,) = infer_images(images, InferRequest(name, None, "", [tensor]))
    assert answered.width / answered.height == pytest.approx(16 / 9, abs=0.01)
    assert any(
        abs(annotation["oriented_bbox"]["r"] - np.pi / 4) < 0.01
        for annotation in truth[1]["annotations"]
    )
    for box in answered.predictions:
        centre = np.array([box.cx * answered.width, box.cy * answered.height])
        along = np.array([np.cos(box.r), np.sin(box.r)]) * box.w * answered.width / 2
        across = np.array([-np.sin(box.r), np.cos(box.r)]) * box.h * answered.height / 2
        corners = {
            tuple(np.round(centre + a * along + b * across, 2)) for a in (-1, 1) for b in (-1, 1)
        }
        rounded_corners = {tuple(np.round(corner, 2)) for corner in box.corners}
        for corner in corners:
            assert (
                min(np.hypot(*(np.array(corner) - corner_)) for corner_ in rounded_corners) < 0.05
            )

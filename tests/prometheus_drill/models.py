"""Models with a fault each, beside which the usual one answers."""

import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import onnx
from onnx import helper

from tests.onnx_models import COLOURS_TOML, classifier, save, value
from tests.server_process import image_input

SLOW_S = 0.4
"""Seconds that the slow model takes for an image."""

_SLOW = f"""
import time

import msgspec

from quadriga.tasks import parameters as read
from quadriga.tasks.predictions import Classification
from quadriga.tasks.resize import preprocess


class Options(msgspec.Struct, frozen=True):
    action: str


class Slow:
    actions = ("predict",)

    def __init__(self, spec):
        self._spec = spec

    def options(self, parameters):
        return Options(read.action(parameters, self.actions))

    def preprocess(self, image):
        time.sleep({SLOW_S})
        return preprocess(image, self._spec.input)

    def predict(self, outputs, affine, options):
        return [Classification("late", 1.0)]
"""


def image_body(brightness: int) -> str:
    """Return the body of a request with a small image of one brightness."""
    pixels = np.full((8, 8, 3), brightness, np.uint8)
    return json.dumps({"inputs": [image_input(cv2.imencode(".png", pixels)[1].tobytes())]})


def write_colours(folder: Path) -> None:
    """Write a classifier that works."""
    classifier(folder / "model.onnx")
    (folder / "model.toml").write_text(COLOURS_TOML)


def write_damaged(folder: Path) -> None:
    """Write a classifier whose file is cut off, so that it fails to load."""
    write_colours(folder)
    file = folder / "model.onnx"
    file.write_bytes(file.read_bytes()[:-40])


def write_fails_on_bright_images(folder: Path) -> None:
    """Write a classifier that passes the trial on a gray image, and looks beyond a table of one row at bright ones."""
    nodes: list[onnx.NodeProto] = [
        helper.make_node("ReduceMean", ["image"], ["means"], axes=[2, 3], keepdims=0),
        helper.make_node("MatMul", ["means", "weights"], ["logits_of_colours"]),
        helper.make_node("Mul", ["means", "factor"], ["brightness"]),
        helper.make_node("Cast", ["brightness"], ["row"], to=onnx.TensorProto.INT64),
        helper.make_node("Gather", ["table", "row"], ["offsets"]),
        helper.make_node("Add", ["logits_of_colours", "offsets"], ["logits"]),
    ]
    save(
        folder / "model.onnx",
        nodes,
        [value("image", ["batch", 3, 8, 8])],
        [value("logits", ["batch", 3])],
        {
            "weights": np.eye(3, dtype=np.float32) * 10,
            "factor": np.array(1.2, np.float32),  # rows are whole numbers: 0 below 0.83
            "table": np.zeros(1, np.float32),
        },
    )
    (folder / "model.toml").write_text(COLOURS_TOML)


def write_slow(folder: Path, extensions: Path) -> None:
    """Write a model that sleeps before each image, and the module of its task."""
    extensions.mkdir(exist_ok=True)
    (extensions / "slow_task_module.py").write_text(_SLOW)
    classifier(folder / "model.onnx")
    (folder / "model.toml").write_text(
        'task = "slow_task_module:Slow"\n[input]\nresize = "stretch"\n'
    )


def replace_model(folder: Path) -> None:
    """Replace a model by one that works."""
    shutil.rmtree(folder)
    folder.mkdir()
    write_colours(folder)

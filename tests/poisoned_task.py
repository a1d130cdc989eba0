"""A model whose task ends its process, as a decoder of images with a fault does."""

from pathlib import Path

import cv2
import numpy as np

from tests.onnx_models import classifier

POISONED = """
import signal

import msgspec

from quadriga.tasks import parameters as read
from quadriga.tasks.predictions import Classification
from quadriga.tasks.resize import preprocess


class Options(msgspec.Struct, frozen=True):
    action: str


class Poisoned:
    actions = ("predict",)

    def __init__(self, spec):
        self._spec = spec

    def options(self, parameters):
        return Options(read.action(parameters, self.actions))

    def preprocess(self, image):
        if (image.width, image.height) == (17, 13):
            signal.raise_signal(signal.SIGSEGV)  # of this thread, which goes no further
        return preprocess(image, self._spec.input)

    def predict(self, outputs, affine, options):
        return [Classification("harmless", 1.0)]
"""
"""A task whose process ends at images of 17 by 13 pixels, as by a fault in native code."""


def write_poisoned_model(folder: Path, extensions: Path) -> bytes:
    """Write a model and the module of its task; return the image that ends the process by SIGSEGV."""
    extensions.mkdir(exist_ok=True)
    (extensions / "poisoned_task_module.py").write_text(POISONED)
    classifier(folder / "model.onnx")
    (folder / "model.toml").write_text(
        'task = "poisoned_task_module:Poisoned"\n[input]\nresize = "stretch"\n'
    )
    return cv2.imencode(".png", np.zeros((13, 17, 3), np.uint8))[1].tobytes()

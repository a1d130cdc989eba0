"""Exports of Keras and tf2onnx answer as Keras does on the same file, after one question at most.

Run with `EXPORTER_PYTHON=/path/to/python pytest -m exporter tests/exporters/test_keras.py`, where that Python has
keras 3.15, tensorflow 2.21, tf2onnx 1.17 and pillow; it takes five minutes.
"""

import pytest

from tests.exporters.comparison import check, moved_by_a_level

MODELS = [
    "argmax",
    "bytes",
    "densenet121",
    "mobilenet-v1",
    "mobilenet-v2",
    "mobilenet-v3",
    "nchw",
    "resnet50",
    "tflite",
    "unet",
    "unet-binary",
    "unet-logits",
    "unet-nchw",
]

pytestmark = [pytest.mark.exporter, pytest.mark.timeout(1800)]
EXPORTER = "export_keras.py"


@pytest.mark.parametrize("model", MODELS)
def test_answers_are_those_of_the_library(exports, model):
    check(exports / model)


@pytest.mark.parametrize("model", ["mobilenet-v2", "resnet50"])
def test_one_level_of_brightness_would_show(exports, model):
    check(exports / model)
    assert moved_by_a_level(exports / model) > 5e-4

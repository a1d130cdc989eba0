"""Classifiers of libraries for torch answer as the libraries do, after one question at most.

Run with `EXPORTER_PYTHON=/path/to/python pytest -m exporter tests/exporters/test_classifiers.py`; the file
`CONTRIBUTING.md` lists the packages of that Python. It takes a minute.
"""

import pytest

from tests.exporters.comparison import check, moved_by_a_level

MODELS = [
    "open-clip-zero-shot",
    "open-clip-zero-shot-torchscript",
    "efficientnet_pytorch-efficientnet",
    "vit-pytorch-vit",
    "pytorchcv-resnet10",
    "pytorchcv-diaresnet10",
    "torchvision-shufflenet",
    "torchxrayvision-densenet",
]

pytestmark = [pytest.mark.exporter, pytest.mark.timeout(1800)]
EXPORTER = "export_classifiers.py"


@pytest.mark.parametrize("model", MODELS)
def test_answers_are_those_of_the_library(exports, model):
    check(exports / model)


@pytest.mark.parametrize("model", ["open-clip-zero-shot", "pytorchcv-resnet10"])
def test_one_level_of_brightness_would_show(exports, model):
    check(exports / model)
    assert moved_by_a_level(exports / model) > 5e-4

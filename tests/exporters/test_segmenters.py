"""Segmenters of libraries for torch answer as the libraries do, after one question at most.

Run with `EXPORTER_PYTHON=/path/to/python pytest -m exporter tests/exporters/test_segmenters.py`; the file
`CONTRIBUTING.md` lists the packages of that Python. It takes three minutes.
"""

import pytest

from tests.exporters.comparison import check

MODELS = [
    "smp-unet",
    "smp-unet-sigmoid",
    "smp-unetplusplus",
    "smp-fpn-softmax",
    "smp-deeplabv3plus",
    "smp-manet",
    "smp-linknet",
    "smp-segformer",
    "smp-upernet",
    "monai-unet",
    "monai-segresnet",
    "monai-densenet121",
    "torchgeo-naip",
    "torchgeo-sentinel2",
    "doctr-crops",
    "doctr-db",
    "doctr-linknet",
]

pytestmark = [pytest.mark.exporter, pytest.mark.timeout(1800)]
EXPORTER = "export_segmenters.py"


@pytest.mark.parametrize("model", MODELS)
def test_answers_are_those_of_the_library(exports, model):
    check(exports / model)

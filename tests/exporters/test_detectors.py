"""Detectors of libraries for torch, and exports of LibreYOLO, answer as the libraries do, after one question at most.

Run with `EXPORTER_PYTHON=/path/to/python pytest -m exporter tests/exporters/test_detectors.py`; the file
`CONTRIBUTING.md` lists the packages of that Python. It takes two minutes.
"""

import pytest

from tests.exporters.comparison import check

MODELS = [
    "torchvision-fasterrcnn",
    "torchvision-retinanet",
    "rfdetr-nano",
    "libreyolo-resnet",
    "libreyolo-deeplabv3",
]

pytestmark = [pytest.mark.exporter, pytest.mark.timeout(1800)]
EXPORTER = "export_detectors.py"


@pytest.mark.parametrize("model", MODELS)
def test_answers_are_those_of_the_library(exports, model):
    check(exports / model, scores=5e-4)

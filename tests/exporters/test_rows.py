"""Classifiers of rows by scikit-learn, XGBoost and LightGBM answer as the libraries that made them do.

Run with `EXPORTER_PYTHON=/path/to/python pytest -m exporter tests/exporters/test_rows.py`, where that Python has
skl2onnx 1.20, scikit-learn 1.9, xgboost 3.2, lightgbm 4.7 and onnxmltools 1.16; it takes half a minute.
"""

import json

import numpy as np
import pytest

from quadriga.engine.models.inspection import open_model
from quadriga.engine.serving.tensors.row_inference import infer_rows
from quadriga.proto.messages import InferRequest, Tensor

pytestmark = [pytest.mark.exporter, pytest.mark.timeout(600)]
EXPORTER = "export_rows.py"
MAX_DIFFERENCE = 2e-5
"""Difference of a score that float32 in the graph explains."""


def request_of(inputs) -> InferRequest:
    tensors = []
    for name, given in inputs.items():
        data = given["data"]
        if given["datatype"] != "BYTES":
            data = np.array(data, np.float32).reshape(given["shape"])
        tensors.append(Tensor(name, given["datatype"], tuple(given["shape"]), data))
    return InferRequest("m", None, "r", tensors, parameters={"action": "predict_proba"})


def test_scores_and_labels_are_those_of_the_library(exports):
    folders = sorted(path for path in exports.iterdir() if path.is_dir())
    assert len(folders) == 45
    for folder in folders:
        expected = json.loads((folder / "expected.json").read_text())
        model = open_model(folder)
        assert model.row_classifier is not None, folder.name
        request = request_of(expected["inputs"])
        (output,), results = infer_rows(model, model.row_classifier, request, max_rows=1000)
        assert len(results) == len(output.data) == len(expected["scores"])
        differences = []
        for predictions, scores in zip(output.data, expected["scores"], strict=True):
            answered = {prediction.label: prediction.score for prediction in predictions}
            assert answered.keys() == scores.keys(), folder.name
            differences += [abs(answered[label] - scores[label]) for label in scores]
            best, second = sorted(scores.values())[-1:-3:-1]
            if best - second > 2 * MAX_DIFFERENCE:
                assert predictions[0].label == max(scores, key=scores.get), folder.name
        print(f"{folder.name}: largest difference {max(differences):.1e}")  # noqa: T201 - shown by -s
        assert max(differences) < MAX_DIFFERENCE, folder.name

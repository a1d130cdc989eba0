"""Old shapes on request, from every task; the store has the protocol's."""

import base64
import json

import cv2
import numpy as np
import pytest

from tests.server_process import IMAGES, MODELS, ServerProcess, image_input

FOLDERS = {model: folder for folder, model in MODELS.items() if folder != "image-text"}


def first_image(folder):
    return next(path for path in sorted((IMAGES / folder).iterdir()) if path.suffix != ".jsonl")


def ask(server, model, **parameters):
    image = first_image(FOLDERS[model]).read_bytes()
    return server.infer(model, image, **parameters)


@pytest.mark.parametrize("model", FOLDERS)
def test_the_old_shape_says_what_the_new_one_says(server: ServerProcess, model):
    old = ask(server, model, output_format="legacy")
    assert old["shape"] == [1]
    (legacy,), (predictions,) = old["data"], ask(server, model)["data"]
    assert predictions
    (record,) = server.query({"id": old["parameters"]["inference_id"]})
    assert record["predictions"] == predictions
    labels = [prediction["label"] for prediction in predictions]
    if model == "shapes-classifier":
        assert legacy == labels[0]
    elif model == "shapes-segmenter":
        height, width = cv2.imread(str(first_image("segmentation"))).shape[:2]
        pixels = np.array(legacy)
        assert pixels.shape == (height, width)
        assert len(np.unique(pixels[pixels > 0])) == len(set(labels))
    else:
        assert legacy["detection_classes"] == labels
        assert len(legacy["detection_scores"]) == len(labels)


def test_probabilities_come_in_the_order_of_the_classes(server: ServerProcess):
    scores = {
        prediction["label"]: prediction["score"]
        for prediction in ask(server, "shapes-classifier", action="predict_proba")["data"][0]
    }
    labels = (IMAGES.parent / "shapes-classifier" / "labels.txt").read_text().split()
    parameters = {"action": "predict_proba", "output_format": "legacy"}
    (probabilities,) = ask(server, "shapes-classifier", **parameters)["data"]
    assert probabilities == [scores[label] for label in labels]


def test_chariot_v2_has_it_too(server: ServerProcess, shape):
    image = base64.b64encode(shape[0]).decode()
    path = "/api/serve/serve-model-shapes-classifier-pred/infer"
    body = {"input": image, "parameters": {"output_format": "legacy"}}
    assert server.call("POST", path, body) == (200, {"output": shape[1]})


@pytest.mark.parametrize(
    ("model", "word"), [("shapes-detector", "old"), ("shapes-image-text", "legacy")]
)
def test_what_is_no_format_is_refused(server: ServerProcess, photo, model, word):
    tensor = image_input(photo, prompt="?", output_format=word)
    status, _, answer = server.request(
        "POST", f"/v2/models/{model}/infer", json.dumps({"inputs": [tensor]})
    )
    assert (status, b"output_format" in answer) == (400, True)

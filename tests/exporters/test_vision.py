"""Real exports, with nothing to configure, answer as the libraries that made them do.

Run with `EXPORTER_PYTHON=/path/to/python pytest -m exporter tests/exporters/test_vision.py`, where that
Python has torch 2.13, torchvision 0.28, transformers 4.57, timm 1.0 and scipy; it takes two minutes.
"""

import json

import numpy as np
import pytest

from quadriga.engine.models.inspection import open_model
from quadriga.engine.models.model import Model
from quadriga.engine.models.runners.session import LoadError
from quadriga.engine.serving.image_inference import ImageModel, infer_images
from quadriga.proto.messages import InferRequest, Tensor
from quadriga.tasks.geometry import fill, to_rings
from quadriga.tasks.image import MAX_PIXELS, decode

CLASSIFIERS = [
    "vit",
    "vit-bicubic",
    "resnet",
    "convnext",
    "mobilenet",
    "timm-resnet",
    "timm-vit",
    "timm-squash",
]
DETECTORS = [
    "detr",
    "conditional-detr",
    "deformable-detr",
    "yolos",
    "rt-detr",
    "rt-detr-v2",
    "d-fine",
]
SEMANTIC = ["segformer", "maskformer", "mask2former"]
IMAGES = ("landscape", "portrait", "small")

pytestmark = [pytest.mark.exporter, pytest.mark.timeout(600)]
EXPORTER = "export_vision.py"


def cases(folder):
    """Return the library's predictions for each image."""
    expected = json.loads((folder / "expected.json").read_text())
    assert set(expected) == {f"{name}.png" for name in IMAGES}
    return expected.items()


def answers(folder, name, **parameters):
    """Answer one image as a request to the server would."""
    model = open_model(folder)
    images = ImageModel(model.image_predictor, MAX_PIXELS, max_images=1)
    tensor = Tensor(name, "BYTES", (1,), [(folder / name).read_bytes()], parameters=parameters)
    _, (answered,) = infer_images(images, InferRequest(model.name, None, "", [tensor]))
    return answered.predictions


@pytest.mark.parametrize(
    "model", [*CLASSIFIERS, *DETECTORS, *SEMANTIC, "maskformer-instance", "mask2former-instance"]
)
def test_each_has_an_embedding_that_changes_no_answer(exports, model):
    folder = exports / model
    opened = open_model(folder)
    overrides = {"monitor": {"embedding": "none"}}
    plain = Model("plain", "1", folder / "model.onnx", overrides=overrides)
    vectors = []
    for name in (f"{image_name}.png" for image_name in IMAGES):
        image = decode((folder / name).read_bytes())
        options = [opened.image_predictor.read_options({})]
        ((predictions, vector),) = opened.image_predictor.predict([image], options)
        assert plain.image_predictor.predict([image], options) == [(predictions, None)]
        vectors.append(vector)
    assert {vector.shape for vector in vectors} == {(opened.embedding.length,)}
    assert min(np.abs(vectors[0] - other_vector).max() for other_vector in vectors[1:]) > 1e-3


@pytest.mark.parametrize("model", CLASSIFIERS)
def test_probabilities_are_those_of_the_library(exports, model):
    largest = 0.0
    for name, expected in cases(exports / model):
        classifications = answers(exports / model, name, action="predict_proba")
        assert {classification.label for classification in classifications} == set(
            expected["scores"]
        )
        apart = [
            abs(classification.score - expected["scores"][classification.label])
            for classification in classifications
        ]
        largest = max(largest, *apart)
    print(f"{model}: largest difference {largest:.1e}")  # noqa: T201 - shown by -s
    assert largest < 1e-5


@pytest.mark.parametrize("model", DETECTORS)
def test_boxes_are_those_of_the_library(exports, model):
    largest_px = largest_score = 0.0
    for name, expected in cases(exports / model):
        image = decode((exports / model / name).read_bytes())
        detections = answers(exports / model, name, score_threshold=expected["threshold"])
        remaining = list(detections)
        expected_count = 0
        for label, score, box in expected["boxes"]:
            # a library answers boxes that reach beyond the image as they are, a server clips them
            clipped = np.clip(box, 0, [image.width, image.height] * 2)
            if (clipped[2:] <= clipped[:2]).any():
                continue
            expected_count += 1
            apart = [
                (np.abs([p.xmin, p.ymin, p.xmax, p.ymax] - clipped).max(), abs(p.score - score), p)
                for p in remaining
                if p.label == label and abs(p.score - score) < 1e-4
            ]
            assert apart, (name, label, score, box)
            px, score_apart, nearest = min(apart, key=lambda difference: difference[0])
            remaining.remove(nearest)
            largest_px, largest_score = max(largest_px, px), max(largest_score, score_apart)
        assert not remaining
        assert expected_count >= 3
        assert [p.score for p in detections] == sorted((p.score for p in detections), reverse=True)
    print(f"{model}: largest difference {largest_px:.1e} px, score {largest_score:.1e}")  # noqa: T201 - shown by -s
    assert largest_px < 0.05
    assert largest_score < 1e-5


@pytest.mark.parametrize("model", SEMANTIC)
def test_regions_are_those_of_the_library(exports, model):
    folder = exports / model
    labels = open_model(folder).spec.labels
    shares = []
    for name, expected in cases(folder):
        classes = decode((folder / expected["classes"]).read_bytes()).pixels[..., 0]
        regions = answers(folder, name, regions="class", score_threshold=0.0)
        drawn = np.full(classes.shape, 255, np.uint8)
        for segment in regions:
            mask = fill(to_rings(segment.contour), classes.shape[1], classes.shape[0])
            drawn[mask > 0] = labels.index(segment.label)
        assert len(np.unique(classes)) > 2
        shares.append(float((drawn == classes).mean()))
    print(f"{model}: equal pixels {min(shares):.6f}")  # noqa: T201 - shown by -s
    assert min(shares) >= 0.999


@pytest.mark.parametrize("model", ["maskformer-instance", "mask2former-instance"])
def test_instances_are_those_of_the_library(exports, model):
    folder = exports / model
    largest, shares, overlaps = 0.0, [], []
    for name, expected in cases(folder):
        instances = answers(folder, name, score_threshold=expected["threshold"])
        assert len(instances) == len(expected["instances"]) >= 4
        remaining = list(instances)
        for label, score, drawn, shared in expected["instances"]:
            mask = decode((folder / drawn).read_bytes()).pixels[..., 0] > 0
            nearest = min(
                (instance for instance in remaining if instance.label == label),
                key=lambda p: abs(p.score - score),
            )
            remaining.remove(nearest)
            filled = fill(to_rings(nearest.contour), mask.shape[1], mask.shape[0]) > 0
            shares.append(float((filled == mask).mean()))
            largest = max(largest, abs(nearest.score - score))
            overlaps.append(shared)
    print(f"{model}: score {largest:.1e}, equal pixels {min(shares):.6f}")  # noqa: T201 - shown by -s
    print(f"{model}: the library's own masks overlap {min(overlaps):.3f}")  # noqa: T201 - shown by -s
    assert largest < 2e-5  # on equal inputs: torch and onnxruntime sum a mask in another order
    assert min(shares) >= 0.999


def test_pre_processing_that_cannot_be_done_is_refused(exports):
    with pytest.raises(LoadError, match="crop_mode"):
        open_model(exports / "timm-border")

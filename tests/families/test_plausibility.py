"""What `validate` says of models that are read rightly, and of those that are read wrongly."""

from typing import Any

import cv2
import numpy as np
import pytest
from onnx import helper

from quadriga.engine.models.model import Model
from quadriga.engine.models.runners.session import LoadError
from quadriga.engine.serving.tensors.validation import Validation, validate
from quadriga.tasks.image import Image
from quadriga.tasks.predictions import OutputError
from tests.families.folders import HEIGHT, LABELS, WIDTH, Case, extend, load, toml
from tests.families.test_detectors import CASES, ORIENTED
from tests.families.test_segmenters_and_classifiers import CLASSIFIERS, SEGMENTERS
from tests.onnx_models import answering

RIGHT = [*CASES, *ORIENTED, *SEGMENTERS, *CLASSIFIERS]


def validated(folder, **parameters: Any) -> Validation:
    image = folder / "image.png"
    pixels = np.random.default_rng(7).integers(0, 255, (HEIGHT, WIDTH, 3), np.uint8)
    cv2.imwrite(str(image), pixels)
    return validate(folder, image, folder / "picture.png", parameters)


def failures(validation: Validation) -> list[str]:
    return [check.name for check in validation.checks if not check.holds]


@pytest.mark.parametrize("case", RIGHT, ids=lambda case: case.name)
def test_a_model_that_is_read_rightly_passes_every_check(case, tmp_path):
    load(case, tmp_path)
    validation = validated(tmp_path)
    assert not failures(validation), validation.checks
    assert not validation.notes


def detectors(family: str) -> Case:
    return next(case for case in CASES if case.family == family)


CONFUSED = [  # family of the outputs, family in model.toml, check that fails
    ("yolox", "yolox-decoded", "boxes have the size of objects"),
    ("yolox", "yolov5", "boxes have the size of objects"),
    ("ultralytics-rtdetr", "ultralytics-end2end", "boxes have the size of objects"),
    ("ultralytics-end2end", "ultralytics-rtdetr", "boxes inside the image"),
]


@pytest.mark.parametrize(("right", "wrong", "failure"), CONFUSED)
def test_boxes_that_are_read_wrongly_are_noticed_and_the_right_family_named(
    right, wrong, failure, tmp_path
):
    case = detectors(right)
    path = answering(tmp_path / "model.onnx", case.outputs, image=case.image)
    (path.parent / "model.toml").write_text(toml(wrong)["model.toml"])
    validation = validated(tmp_path)
    assert failure in failures(validation), validation.checks
    assert f'family = "{right}" fits better: 2 predictions' in validation.notes


BOXES = np.zeros((300, 6), np.float32)
BOXES[:, :4] = 20 + np.arange(300)[:, None] % 60 + np.float32([0, 0, 9, 9])
FULL = np.float32([[[9] * 8] * 8, [[0] * 8] * 8])


def boxes_of(scores, class_ids):
    rows = BOXES.copy()
    rows[: len(scores), 4] = scores
    rows[: len(class_ids), 5] = class_ids
    return {"out": rows}


def outputs_of(*scores: float):
    return {"out": np.float32(scores)}


ACTIVATION = '[output]\nactivation = "{}"'
SIGNS = [  # outputs, family, further lines of model.toml, check that fails or beginning of the note
    (boxes_of([0.9] * 300, [0, 1] * 150), "ultralytics-end2end", "", None),
    (boxes_of([0.9] * 30, [1] * 30), "ultralytics-end2end", "", "all 30 boxes are of one label, cat"),
    (boxes_of([0.9] * 30, [0, 1] * 15), "ultralytics-end2end", "[defaults]\nmax_detections = 9",
     "exactly the limit of 9 predictions"),
    (FULL, "unet", "", "one label everywhere, ant"),
    (FULL[:1] - 4, "u2net", "", "map of probabilities, as U²-Net's"),
    (FULL[:1] - 4, "binary-unet", "", "one label everywhere, ant"),
    (outputs_of(0.2, 0.3, 0.5), "plain-classifier", ACTIVATION.format("softmax"),
     "outputs are no probabilities yet, as activation is softmax"),
    (outputs_of(0.9, 0.9, 0.2), "plain-classifier", ACTIVATION.format("none"), None),
    (outputs_of(0.2, 3, -5), "plain-classifier", "", None),
]  # fmt: skip


def test_scores_that_are_none_are_refused(tmp_path):
    path = answering(
        tmp_path / "model.onnx", boxes_of([4.5, 3], [1, 2]), image=("images", [1, 3, 96, 96])
    )
    (path.parent / "model.toml").write_text(toml("ultralytics-end2end")["model.toml"])
    with pytest.raises(LoadError, match=r"expected scores from 0 to 1, got 4\.5"):
        validated(tmp_path)


@pytest.mark.parametrize(("outputs", "family", "more", "sign"), SIGNS)
def test_signs_of_a_wrong_reading(outputs, family, more, sign, tmp_path):
    outputs = outputs if isinstance(outputs, dict) else {"out": outputs}
    labels = LABELS[: len(FULL)] if family == "unet" else LABELS
    labels = labels[:1] if family in ("u2net", "binary-unet") else labels
    answering(tmp_path / "model.onnx", outputs, image=("images", [1, 3, 96, 96]))
    (tmp_path / "model.toml").write_text(toml(family, more, labels)["model.toml"])
    validation = validated(tmp_path)
    signs = [*failures(validation), *validation.notes]
    assert any(text.startswith(sign) for text in signs) if sign else not signs


def raw_head(scores):
    """A head of anchors, in which a class of each box has a score."""
    rows = np.zeros((7, 189), np.float32)
    rows[:4] = np.float32([[30], [30], [9], [9]])
    rows[4:] = scores
    return {"out": rows}


def labelled(boxes, labels, scores):
    return {"boxes": np.float32(boxes), "labels": np.int64(labels), "scores": np.float32(scores)}


BOX, STRETCH = [[9, 9, 30, 30]], '[input]\nresize = "stretch"'
READ = "they were read as family {}"
REFUSED = [  # outputs, family, further lines of model.toml, parts of the error
    (boxes_of([4.5, 3], [1, 2]), "ultralytics-end2end", "",
     ["scores from 0 to 1, got 4.5", READ, 'task = "tensor"']),
    (boxes_of([0.9], [0.875]), "ultralytics-end2end", "", ["expected class numbers, got 0.875", READ]),
    (boxes_of([0.9], [3]), "ultralytics-end2end", "", ["got class 3 and 3 labels", READ]),
    (boxes_of([0.4, 1.5], [0, 1]), "ultralytics-rtdetr", "", ["from 0 to 1, got 1.5", READ]),
    # logits, all of which are below the threshold
    (raw_head(np.linspace(-9, -2, 189)), "ultralytics", "", ["from 0 to 1, got -9", READ]),
    (boxes_of([0.9], [0]) | {"out": np.where(boxes_of([0.9], [0])["out"] == 29, np.inf, 20)},
     "ultralytics-end2end", "", ["NaN or infinity", READ]),
    (labelled([[np.nan] * 4], [0], [0.9]), "torchvision", STRETCH, ["NaN or infinity", READ]),
    (labelled(BOX, [3], [0.9]), "rtdetr", '[input]\nsize_input = ""', ["got class 3 and 3 labels", 'write family = "torchvision"']),
    (labelled(BOX, [1], [87.5]), "torchvision", STRETCH, ["from 0 to 1, got 87.5", READ]),
    (outputs_of(0.2, 3, -5), "plain-classifier", ACTIVATION.format("none"), ['"none"', "from 0 to 1, got -5", READ]),
    (outputs_of(20, 30, 50), "plain-classifier", "", ["scores that sum to 100", "percent"]),
    (outputs_of(0.2, np.nan, 0.1), "plain-classifier", "", ["NaN or infinity", READ]),
]  # fmt: skip


@pytest.mark.parametrize(("outputs", "family", "more", "parts"), REFUSED)
def test_a_reading_that_cannot_be_is_refused_with_the_families_that_can(
    outputs, family, more, parts, tmp_path
):
    batched = family != "torchvision"
    path = answering(
        tmp_path / "model.onnx", outputs, image=("images", [1, 3, 96, 96]), batched=batched
    )
    (tmp_path / "model.toml").write_text(toml(family, more)["model.toml"])
    with pytest.raises(LoadError) as caught:
        Model("model", "1", path)
    for part in parts:
        assert part.format(family) in str(caught.value)


def test_outputs_of_another_range_are_never_answered(tmp_path):
    path = answering(
        tmp_path / "model.onnx", outputs_of(0.1, 0.2, 0.3), image=("images", [1, 3, 8, 8])
    )
    extend(path, "out", [
        helper.make_node("ReduceMean", ["images"], ["light"], keepdims=0),
        helper.make_node("Mul", ["light", "light"], ["square"]),
        helper.make_node("Add", ["before", "square"], ["out"]),
    ])  # fmt: skip
    (tmp_path / "model.toml").write_text(
        toml("plain-classifier", ACTIVATION.format("none"))["model.toml"]
    )
    model = Model("model", "1", path)
    graph = model.image_predictor
    dark, light = (Image(np.full((8, 8, 3), level, np.uint8)) for level in (0, 255))
    options = graph.read_options({})
    with pytest.raises(OutputError, match=r"from 0 to 1, got 1\.3; they were read as family plain"):
        graph.predict([light], [options])
    ((predictions, _),) = graph.predict([dark], [options])
    assert predictions[0].label == "dog"

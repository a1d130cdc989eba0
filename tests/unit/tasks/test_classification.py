from typing import Any

import msgspec
import numpy as np
import pytest

from quadriga.tasks import OutputError
from quadriga.tasks.classification import ImageClassification
from quadriga.tasks.image import Image
from quadriga.tasks.parameters import ParameterError
from quadriga.tasks.predictions import Classification
from quadriga.tasks.resize import Affine
from quadriga.tasks.specification import Defaults, InputSpec, ModelSpec, OutputSpec

_AFFINE = Affine(1, 1, 0, 0, 8, 8, (8, 8))


def classifier(activation="none", labels=("cat", "dog", "eel"), **defaults: Any):
    return ImageClassification(
        ModelSpec(
            task="IMAGE_CLASSIFICATION",
            input=InputSpec(name="x", size_wh=(8, 8)),
            output=OutputSpec(activation=activation),
            labels=labels,
            defaults=Defaults(**defaults),
        )
    )


def answer(task, values, dtype=np.float32, **parameters: Any):
    predictions = task.predict(
        {"logits": np.array(values, dtype)}, _AFFINE, task.options(parameters)
    )
    return [(prediction.label, prediction.score) for prediction in predictions]


SOFTMAX = [0.0900306, 0.2447285, 0.6652410]
# activation, outputs, parameters; labels and scores
ANSWERS = {
    "best": ("none", [0.2, 0.7, 0.1], {}, [("dog", 0.7)]),
    "axes": ("none", [[0.2, 0.7, 0.1]], {}, [("dog", 0.7)]),
    "planes": ("none", [[[0.2]], [[0.7]], [[0.1]]], {}, [("dog", 0.7)]),
    "top 2": ("none", [0.2, 0.7, 0.1], {"top_k": 2}, [("dog", 0.7), ("cat", 0.2)]),
    "top 99": (
        "none",
        [0.2, 0.7, 0.1],
        {"top_k": 99},
        [("dog", 0.7), ("cat", 0.2), ("eel", 0.1)],
    ),
    "all": (
        "none",
        [0.2, 0.7, 0.1],
        {"action": "predict_proba"},
        [("dog", 0.7), ("cat", 0.2), ("eel", 0.1)],
    ),
    "all but cut": (
        "none",
        [0.2, 0.7, 0.1],
        {"action": "predict_proba", "top_k": 1},
        [("dog", 0.7)],
    ),
    "ties": ("none", [0.1, 0.4, 0.4], {"top_k": 2}, [("dog", 0.4), ("eel", 0.4)]),
    "softmax": (
        "softmax",
        [1, 2, 3],
        {"top_k": 3},
        [("eel", SOFTMAX[2]), ("dog", SOFTMAX[1]), ("cat", SOFTMAX[0])],
    ),
    "softmax of huge": (
        "softmax",
        [1001, 1002, 1003],
        {"top_k": 2},
        [("eel", SOFTMAX[2]), ("dog", SOFTMAX[1])],
    ),
    "softmax of far apart": ("softmax", [-1e30, 0, -1e30], {}, [("dog", 1.0)]),
    "sigmoid": ("sigmoid", [0, -2, 2], {"top_k": 2}, [("eel", 0.8807971), ("cat", 0.5)]),
    "sigmoid of huge": ("sigmoid", [-1e30, 1e30, 0], {"top_k": 2}, [("dog", 1.0), ("eel", 0.5)]),
}


@pytest.mark.parametrize(
    ("activation", "values", "parameters", "expected"), ANSWERS.values(), ids=ANSWERS
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_answers(activation, values, parameters, expected, dtype):
    predictions = answer(classifier(activation), values, dtype, **parameters)
    assert [label for label, _ in predictions] == [label for label, _ in expected]
    assert [score for _, score in predictions] == pytest.approx([score for _, score in expected])


def test_half_precision_logits_are_computed_in_double():
    predictions = answer(classifier("softmax"), [1, 2, 3], np.float16, top_k=3)
    assert [score for _, score in predictions] == pytest.approx(SOFTMAX[::-1], abs=1e-6)


def test_a_model_of_one_label():
    assert answer(classifier("sigmoid", ("fire",)), [0.0]) == [("fire", 0.5)]


ONE_SCORE = [  # activation, score of the second label, its probability
    ("none", 0.8, 0.8),
    ("none", 0.1, 0.1),
    ("sigmoid", -np.log(3), 0.25),
]


@pytest.mark.parametrize(("activation", "score", "expected"), ONE_SCORE)
def test_one_score_of_two_labels_is_that_of_the_second(activation, score, expected):
    found = dict(answer(classifier(activation, ("cat", "dog")), [score], top_k=2))
    assert found == pytest.approx({"cat": 1 - expected, "dog": expected})


@pytest.mark.parametrize("values", [[0.2, 1.01, 0], [-0.01, 0.5, 0.5], [-3, 4, 8]])
def test_scores_that_are_no_probabilities_are_an_output_error(values):
    with pytest.raises(OutputError, match=r'"none".*from 0 to 1, got'):
        answer(classifier("none"), values)


def test_rounding_beyond_0_and_1_is_cut():
    found = answer(classifier("none"), [1.001, -0.001, 0.5], top_k=3)
    assert [score for _, score in found] == [1, 0.5, 0]


def test_the_default_of_top_k_is_the_model_s():
    assert len(answer(classifier(top_k=2), [0.2, 0.7, 0.1])) == 2
    assert len(answer(classifier(top_k=2), [0.2, 0.7, 0.1], action="predict_proba")) == 3


@pytest.mark.parametrize("values", [[0.5, 0.5], [0.1] * 4, [], [[0.1] * 3] * 3, 0.5])
def test_another_number_of_scores_than_labels_is_an_output_error(values):
    with pytest.raises(OutputError, match="expected output 0 to hold 3 scores, one for each label"):
        answer(classifier(), values)


@pytest.mark.parametrize("activation", ["none", "softmax", "sigmoid"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_finite_are_never_answered(activation, value):
    with pytest.raises(OutputError, match="expected output 0 to hold finite numbers"):
        answer(classifier(activation), [0.1, value, 0.2])


@pytest.mark.parametrize(
    ("parameters", "name"),
    [({"action": "detect"}, "action"), ({"top_k": 0}, "top_k"), ({"top_k": True}, "top_k")],
)
def test_parameters_out_of_range_are_refused(parameters, name):
    with pytest.raises(ParameterError, match=f"expected parameters.{name} to be"):
        classifier().options(parameters)


def test_answers_are_plain_json():
    [predictions] = classifier().predict(
        {"logits": np.array([0.25, 0.5, 0.25], np.float32)}, _AFFINE, classifier().options({})
    )
    assert predictions == Classification("dog", 0.5)
    assert msgspec.json.encode(predictions) == b'{"label":"dog","score":0.5}'


def test_preprocess_makes_the_tensor_of_the_specification():
    tensor, affine = classifier().preprocess(Image(np.zeros((4, 16, 3), np.uint8)))
    assert tensor.shape == (3, 8, 8)
    assert affine == Affine(0.5, 2, 0, 0, 16, 4, (8, 8))

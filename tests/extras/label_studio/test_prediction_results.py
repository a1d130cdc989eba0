"""Predictions as results of Label Studio: percents, labels of the interface alone, and what is left out."""

import math

import pytest

from quadriga.extras.label_studio.labeling import Control, task_prediction
from quadriga.extras.label_studio.tasks import truth_of_results

BOX = {"label": "a", "score": 0.5, "xmin": 10, "ymin": 20, "xmax": 60, "ymax": 70}
TURNED = {"label": "a", "score": 0.5, "cx": 0.5, "cy": 0.4, "w": 0.2, "h": 0.1, "r": 0.3}
OUTLINE = {
    "label": "a",
    "score": 0.25,
    "contour": [[{"x": 0, "y": 0}, {"x": 50, "y": 0}, {"x": 0, "y": 60}]],
}


def control(tag: str = "RectangleLabels", *, can_rotate: bool = True) -> Control:
    return Control(
        tag=tag, name="n", to_name="picture", data_key="image",
        labels=frozenset("ab"), can_rotate=can_rotate,
    )  # fmt: skip


def predict(items, tag="RectangleLabels", **options):
    return task_prediction(items, control(tag, **options), (200, 100), "m@1")


def test_a_box_is_in_percents_of_the_image():
    prediction = predict([BOX])
    (result,) = prediction.result
    assert result == {
        "id": "r0", "type": "rectanglelabels", "from_name": "n", "to_name": "picture",
        "original_width": 200, "original_height": 100, "image_rotation": 0, "score": 0.5,
        "value": {"x": 5, "y": 20, "width": 25, "height": 50, "rotation": 0, "rectanglelabels": ["a"]},
    }  # fmt: skip
    assert (prediction.score, prediction.model_version, prediction.left_out) == (0.5, "m@1", {})


@pytest.mark.parametrize(
    ("item", "tag", "task"),
    [
        (BOX, "RectangleLabels", "OBJECT_DETECTION"),
        (TURNED, "RectangleLabels", "ORIENTED_OBJECT_DETECTION"),
        (OUTLINE, "PolygonLabels", "IMAGE_SEGMENTATION"),
        ({"label": "a", "score": 1.0}, "Choices", "IMAGE_CLASSIFICATION"),
    ],
)
def test_what_is_submitted_unchanged_is_the_prediction(item, tag, task):
    (truth,) = truth_of_results(predict([item], tag).result, "here", task)
    expected = {key: value for key, value in item.items() if key != "score"}
    if "contour" in item:
        (ring,), (wanted,) = truth["contour"], expected["contour"]
        assert all(math.isclose(p[k], w[k], abs_tol=1e-9) for p, w in zip(ring, wanted, strict=True) for k in "xy")  # fmt: skip
    else:
        assert truth == pytest.approx(expected) if len(expected) == 1 else truth.keys() == expected.keys()  # fmt: skip
        numbers = {key: value for key, value in expected.items() if key != "label"}
        assert {key: truth[key] for key in numbers} == pytest.approx(numbers)
    assert truth["label"] == "a"


def test_what_the_control_cannot_take_is_left_out_and_counted():
    items = [
        BOX, {**BOX, "label": "z"}, {**BOX, "label": "y"}, {**BOX, "label": None}, OUTLINE, TURNED,
        {**BOX, "xmin": math.inf}, {"label": "a"},
    ]  # fmt: skip
    prediction = predict(items, can_rotate=False)
    assert [result["id"] for result in prediction.result] == ["r0"]
    assert prediction.left_out == {
        "label not in the labeling interface": 2,
        "without a label": 1,
        "without a shape of the control": 3,
        "turned, and the control has canRotate false": 1,
    }


def test_of_classes_the_best_known_one_is_chosen():
    items = [
        {"label": "b", "score": 0.2},
        {"label": "z", "score": 0.5},
        {"label": "a", "score": 0.3},
    ]
    prediction = predict(items, "Choices")
    (result,) = prediction.result
    assert result["value"] == {"choices": ["a"]}
    assert prediction.score == 0.3
    assert prediction.left_out == {"label not in the labeling interface": 1}


def test_no_predictions_are_an_empty_prediction():
    prediction = predict([])
    assert (prediction.result, prediction.score) == ([], None)

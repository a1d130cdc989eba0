"""The old shapes, one by one, as their readers find them."""

import pytest

from quadriga.engine.models.image_graph import wants_legacy
from quadriga.tasks.legacy import MAX_PIXELS, legacy
from quadriga.tasks.parameters import ParameterError
from quadriga.tasks.predictions import Classification, Detection, OrientedDetection, Point, Segment
from quadriga.tasks.specification import InputSpec, ModelSpec, OutputSpec


def spec(task, *labels, **output):
    return ModelSpec(
        task=task,
        input=InputSpec(name="x", size_wh=(4, 4)),
        labels=labels,
        output=OutputSpec(**output),
    )


def ring(*points):
    return [Point(float(x), float(y)) for x, y in points]


def square(left, top, right, bottom):
    return ring((left, top), (right, top), (right, bottom), (left, bottom))


CLASSIFIER = spec("IMAGE_CLASSIFICATION", "cat", "tabby, tabby cat", "dog")
SCORED = [
    Classification("tabby, tabby cat", 0.94),
    Classification("dog", 0.04),
    Classification("cat", 0.02),
]
DETECTOR = spec("OBJECT_DETECTION", "cat", "dog")
BOXES = [Detection("dog", 0.9, 1.0, 2.0, 3.0, 4.0), Detection("cat", 0.8, 5.0, 6.0, 7.0, 8.0)]
ORIENTED = spec("ORIENTED_OBJECT_DETECTION", "ship")
ROTATED = [OrientedDetection("ship", 0.7, 0.5, 0.4, 0.3, 0.2, -0.1, [[0.0, 1.0]] * 4)]

CASES = {
    "best class": (CLASSIFIER, "predict", SCORED, "tabby, tabby cat"),
    "probabilities": (CLASSIFIER, "predict_proba", SCORED, [0.02, 0.94, 0.04]),
    "boxes": (
        DETECTOR,
        "detect",
        BOXES,
        {
            "num_detections": 2,
            "detection_classes": ["dog", "cat"],
            "detection_scores": [0.9, 0.8],
            "detection_boxes": [[2.0, 1.0, 4.0, 3.0], [6.0, 5.0, 8.0, 7.0]],
        },
    ),
    "no boxes": (
        DETECTOR,
        "predict",
        [],
        {
            "num_detections": 0,
            "detection_classes": [],
            "detection_scores": [],
            "detection_boxes": [],
        },
    ),
    "rotated": (
        ORIENTED,
        "detect",
        ROTATED,
        {
            "detection_classes": ["ship"],
            "detection_scores": [0.7],
            "oriented_detection_boxes": [{"cx": 0.5, "cy": 0.4, "w": 0.3, "h": 0.2, "r": -0.1}],
        },
    ),
}


@pytest.mark.parametrize(("model", "action", "predictions", "expected"), CASES.values(), ids=CASES)
def test_a_shape(model, action, predictions, expected):
    assert legacy(predictions, action, model, 10, 10) == expected


def segmenter(*labels, **output):
    return spec("IMAGE_SEGMENTATION", *labels, **output)


@pytest.mark.parametrize(
    ("model", "cat", "dog"),
    [
        (segmenter("background", "cat", "dog"), 1, 2),
        (segmenter("cat", "dog"), 1, 2),
        (segmenter("dog", "cat", background=-1), 2, 1),
        (segmenter("cat", "dog", "sky", background=2), 1, 2),
    ],
)
def test_pixels_are_class_numbers_and_0_is_background(model, cat, dog):
    """Five columns, four rows; the dog, of the better score, lies on the cat, which has a hole."""
    predictions = [
        Segment("dog", 0.9, [ring((4, 3))]),
        Segment("cat", 0.5, [square(0, 0, 4, 3), ring((1, 1), (2, 0), (3, 1), (2, 2))]),
    ]
    # a ring's own pixels belong to it: the hole is what lies inside of it alone
    classes = legacy(predictions, "predict", model, 5, 4)
    assert [len(row) for row in classes] == [5] * 4
    assert classes[1][2] == 0
    assert classes[3] == [cat, cat, cat, cat, dog]
    assert classes[0] == [cat] * 5


def test_an_empty_segmentation_is_background():
    assert legacy([], "predict", segmenter("cat"), 2, 1) == [[0, 0]]


@pytest.mark.parametrize(
    ("model", "action", "predictions", "size"),
    [
        (CLASSIFIER, "predict_proba", SCORED[:2], (1, 1)),
        (spec("IMAGE_CLASSIFICATION", "a", "a"), "predict_proba", SCORED[:1] * 2, (1, 1)),
        (segmenter("cat"), "predict", [], (MAX_PIXELS + 1, 1)),
    ],
    ids=["not all classes", "names that repeat", "too large"],
)
def test_what_has_no_old_shape_is_refused(model, action, predictions, size):
    with pytest.raises(ParameterError, match="output_format legacy"):
        legacy(predictions, action, model, *size)


def test_the_parameter():
    assert [wants_legacy({"output_format": word}, DETECTOR.task) for word in (None, "legacy")] == [
        False,
        True,
    ]
    with pytest.raises(ParameterError, match="one of protocol, legacy"):
        wants_legacy({"output_format": "old"}, DETECTOR.task)
    with pytest.raises(ParameterError, match="IMAGE_TEXT_TO_TEXT"):
        wants_legacy({"output_format": "legacy"}, "IMAGE_TEXT_TO_TEXT")

"""Images and labels that bear on every number of an evaluation: a report counts and names them."""

import pytest

from quadriga.monitor.evaluation.evaluators import load_evaluator
from quadriga.monitor.evaluation.metric_settings import MetricSettings
from quadriga.monitor.evaluation.reporting import EvaluationOptions, evaluate_state
from quadriga.monitor.evaluation.state import EvaluationError
from quadriga.monitor.report.schema import ReportedModel
from tests.unit.monitor.evaluation.evaluation_images import state_of_shards, wire_image

ANSWER = [
    {"label": "cat", "score": 0.45},
    {"label": "dog", "score": 0.3},
    {"label": "bird", "score": 0.25},
]
BOX = {"xmin": 0, "ymin": 0, "xmax": 9, "ymax": 9}


def labelled(number, *labels, answer=ANSWER, **fields):
    return wire_image(number, answer, [{"label": label} for label in labels], **fields)


def boxed(number, predicted, true):
    answer = [BOX | {"label": label, "score": 0.9} for label in predicted]
    truth = None if true is None else [BOX | {"label": label} for label in true]
    return wire_image(number, answer, truth, 20, 20)


def report_of(images, task="classification", by=(), others=(), **settings):
    evaluator = load_evaluator(task)
    states = [state_of_shards(evaluator, part, 3, by) for part in (images, *others)]
    return evaluate_state(
        evaluator,
        states[0],
        task=task,
        options=EvaluationOptions(20, metrics=MetricSettings(**settings)),
        other_models=[(ReportedModel("other"), state) for state in states[1:]],
    )


TEN = [labelled(at, "cat", metadata={"line": at % 2}) for at in range(10)]


@pytest.mark.parametrize(
    ("odd", "text"),
    [
        ([labelled(10, "cat", "dog")], "1 of 11 images with several labels (10)"),
        ([labelled(10)], "1 of 11 images with no label (10)"),
        (
            [labelled(10), *(labelled(at, "cat", "dog") for at in range(11, 18))],
            "7 of 18 images with several labels (11, 12, 13, 14, 15 and 2 more), 1 of 18 images with no label (10)",
        ),
    ],
)  # fmt: skip
def test_images_that_make_a_set_multi_label_are_named(odd, text) -> None:
    images = [*TEN, *odd]
    report = report_of(images)
    assert report.parameters["multi_label"]
    assert report.metrics[0].parameters == {"score": 0.5, "rule": "all labels"}
    assert report.warnings == [f"judged as multi-label: {text}; the setting single_label leaves them out"]  # fmt: skip
    single = report_of(images, single_label=True)
    assert single.warnings == [f"left out by single_label: {text}"]
    assert (single.metrics[0].parameters, single.metrics[0].value, single.metrics[0].n) == ({}, 1.0, 10)  # fmt: skip
    assert single.parameters.items() >= {"multi_label": False, "single_label": True}.items()
    assert sum(single.data.excluded.values()) == len(odd)
    assert report_of(images, single_label=False).warnings == []


def test_a_set_of_one_kind_is_judged_without_a_word() -> None:
    assert report_of(TEN).warnings == []
    assert report_of(TEN, single_label=True).warnings == []
    several = report_of([labelled(at, "cat", "dog") for at in range(4)])
    assert (several.parameters["multi_label"], several.warnings) == (True, [])
    forced = report_of(TEN, single_label=False)
    assert forced.metrics[0].value == 0.0  # no score is 0.5 or more


def test_nothing_is_left_to_evaluate_if_no_image_has_one_label() -> None:
    report = report_of([labelled(1), labelled(2, "cat", "dog")], single_label=True)
    assert (report.status, report.data.current.n) == ("insufficient", 0)
    assert report.warnings[0] == "no image has one true label"


@pytest.mark.parametrize("single_label", [None, True])
def test_slices_and_other_models_are_judged_as_the_whole_is(single_label) -> None:
    """The odd image is of one slice alone; the other slice has one label for each image."""
    odd = labelled(10, "cat", "dog", metadata={"line": 0}, image="x")
    images = [*TEN, odd]
    report = report_of(
        images, by=("meta.line",), others=[images[:5], images], single_label=single_label
    )
    expected = {} if single_label else {"score": 0.5, "rule": "all labels"}
    parts = [*report.slices, *report.comparisons]
    assert [part.metrics[0].parameters for part in parts] == [expected] * 4
    assert [part.n for part in parts] == ([5, 5, 5, 10] if single_label else [6, 5, 5, 11])
    assert all(compared.differences[0].value == 0 for compared in report.comparisons)


def test_a_setting_of_classification_is_refused_elsewhere() -> None:
    with pytest.raises(EvaluationError, match="single_label is no setting of OBJECT_DETECTION"):
        load_evaluator("detection", MetricSettings(single_label=True))


@pytest.mark.parametrize(
    ("task", "images", "warnings"),
    [
        ("detection", [boxed(1, "a", "a"), boxed(2, "a", None), boxed(3, "", "")], ["not evaluated: 1 images whose truth is not known"]),
        ("detection", [boxed(1, "", "a"), boxed(2, "", "")], ["no image has any prediction"]),
        ("detection", [boxed(1, "", ""), boxed(2, "", "")], []),
        ("classification", [labelled(1, "cat", answer=[]), labelled(2, "cat")], ["1 images have no prediction and count as wrong: 1"]),
        ("classification", [labelled(1, "cat", "dog"), labelled(2, answer=[])], []),
        ("classification", [labelled(1, "cat", answer=[])], ["no image has any prediction"]),
    ],
)  # fmt: skip
def test_images_without_truth_or_predictions_are_said(task, images, warnings) -> None:
    assert report_of(images, task).warnings == warnings


@pytest.mark.parametrize(
    ("true", "predicted", "near"),
    [
        ("Ship", ["ship", "boat"], "'ship'"),
        ("ship ", ["ship", "boat"], "'ship'"),
        ("traffic_light", ["Traffic Light"], "'Traffic Light'"),
        ("ships", ["ship", "boat"], "'ship'"),
        ("zebra", ["ship", "boat"], None),
    ],
)
def test_a_label_that_no_prediction_has_is_named_with_the_nearest(true, predicted, near) -> None:
    images = [boxed(at, [label], [true]) for at, label in enumerate(predicted)]
    count = f"{len(predicted)} image{'s' * (len(predicted) > 1)}"
    hint = f"; predictions have {near}" if near else ""
    assert report_of(images, "detection").warnings[0] == (
        f"label of the ground truth that no prediction has: {true} ({count}{hint})"
    )


def test_a_label_that_the_truth_has_too_is_near_only_if_it_is_written_alike() -> None:
    images = [boxed(1, ["car"], ["car"]), boxed(2, ["car"], ["cat"]), boxed(3, ["car"], ["Car"])]
    (warning,) = report_of(images, "detection").warnings
    assert warning.endswith(": Car (1 image; predictions have 'car'), cat (1 image)")

"""Limits of pipelines: names of metrics in messages can be written as limits."""

import msgspec
import pytest

from quadriga.monitor.evaluation.evaluators import load_evaluator
from quadriga.monitor.evaluation.limits import (
    describe_fall,
    find_metric,
    limit_failure,
    parse_limit,
    parse_metric,
    regression,
    written,
)
from quadriga.monitor.evaluation.reporting import EvaluationOptions, evaluate_state
from quadriga.monitor.evaluation.state import EvaluationError
from quadriga.monitor.report.schema import Metric
from tests.unit.monitor.evaluation.evaluation_images import state_of_shards, wire_image

BOX = {"xmin": 0, "ymin": 0, "xmax": 9, "ymax": 9}


def report_of(task, images):
    evaluator = load_evaluator(task)
    state = state_of_shards(evaluator, images)
    return evaluate_state(evaluator, state, task=task, options=EvaluationOptions(20))


def classified(*truths):
    answer = [{"label": "a, b=1 [x]", "score": 0.45}, {"label": "b", "score": 0.4}]
    return report_of("classification", [wire_image(at, answer, [{"label": label} for label in labels]) for at, labels in enumerate(truths)])  # fmt: skip


SINGLE = classified(["b"], ["a, b=1 [x]"])
MULTI = classified(["b"], ["a, b=1 [x]", "b"])
BOXES = report_of("detection", [wire_image(1, [BOX | {"label": "ship", "score": 0.5}], [BOX | {"label": "ship"}])])  # fmt: skip


@pytest.mark.parametrize("report", [SINGLE, MULTI, BOXES], ids=["single", "multi", "boxes"])
def test_a_metric_is_found_by_its_name_in_messages(report) -> None:
    for metric in report.metrics:
        if "=1" in str(metric.parameters.get("label")):
            continue  # a label of this form cannot be told from a parameter
        found = find_metric(report.metrics, parse_metric(written(metric)))
        assert (found.type, found.parameters) == (metric.type, metric.parameters)


def test_fewer_unanswered_prompts_are_better() -> None:
    few, none = parse_limit("Unanswered=1"), parse_limit("Unanswered=0")
    report = msgspec.structs.replace(SINGLE, metrics=[Metric("Unanswered", 1.0)])
    assert limit_failure(report, few) is None
    assert limit_failure(report, none) == "Unanswered is 1, expected at most 0"


def test_values_may_have_commas_and_brackets() -> None:
    name = parse_metric("ECE[bins=15,rule=equal width, upper edge included]")
    assert name.parameters == {"bins": "15", "rule": "equal width, upper edge included"}
    assert parse_limit("AP[label=a[1], b]=0.5").metric.parameters == {"label": "a[1], b"}


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("Accuracy=0.9", "Accuracy is 0, expected at least 0.9 (Accuracy[score=0.5,rule=all labels])"),
        ("HammingLoss=0.1", "HammingLoss is 0.75, expected at most 0.1 (HammingLoss[score=0.5])"),
        ("hammingloss[score=0.5]=0.1", "hammingloss[score=0.5] is 0.75, expected at most 0.1"),
        ("HammingLoss=0.9", None),
    ],
)  # fmt: skip
def test_a_missed_limit_names_the_metric_with_its_parameters(limit, message) -> None:
    assert limit_failure(MULTI, parse_limit(limit)) == message


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("Acuracy=1", r"metric not found: Acuracy; this report has Accuracy\[score=0.5,rule=all labels\]"),
        ("Accuracy[score=0.7]=1", r"Accuracy\[score=0.7\]; this report has Accuracy\[score=0.5,rule=all labels\]"),
        ("xyz=1", "metric not found: xyz; this report has Accuracy, F1"),
    ],
)  # fmt: skip
def test_a_metric_that_is_not_there_is_refused_with_names_to_write(limit, message) -> None:
    with pytest.raises(EvaluationError, match=message):
        limit_failure(MULTI, parse_limit(limit))


@pytest.mark.parametrize(
    ("report", "earlier", "message"),
    [
        (MULTI, SINGLE, "metric not found: Accuracy[score=0.5,rule=all labels]; report {} has Accuracy, as it is single-label and this one multi-label"),
        (SINGLE, MULTI, "metric not found: Accuracy; report {} has Accuracy[score=0.5,rule=all labels], as it is multi-label and this one single-label"),
    ],
)  # fmt: skip
def test_reports_that_are_judged_differently_are_not_compared(report, earlier, message) -> None:
    with pytest.raises(EvaluationError) as error:
        regression(report, earlier)
    assert str(error.value) == message.format(earlier.id)


def test_a_fall_is_said_with_the_parameters_of_the_metric() -> None:
    before, now = (Metric("AP", value, {"iou": 0.5}) for value in (0.9, 0.8))
    fall = "AP[iou=0.5] is 0.8, was 0.9 in report r"
    assert describe_fall(now, before, "r") == fall
    assert describe_fall(before, now, "r") is None

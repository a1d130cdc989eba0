"""Intervals of means over labels, of which some are rare or never true."""

import msgspec
import pytest

from quadriga.monitor.evaluation.evaluators import build_state, load_evaluator
from quadriga.monitor.evaluation.reporting import EvaluationOptions, evaluate_state
from quadriga.monitor.evaluation.state import EvaluatedImage


def box(label: str, left: int, **fields: float):
    return {"label": label, "xmin": left, "ymin": 10, "xmax": left + 50, "ymax": 60, **fields}


def interval(task, images, kind, **parameters):
    """Return the interval of a metric of images, each a pair of predictions and annotations."""
    evaluator = load_evaluator(task)
    evaluated = [
        EvaluatedImage(
            id=str(at), predictions=msgspec.Raw(msgspec.json.encode(predictions)),
            ground_truth=msgspec.Raw(msgspec.json.encode(truths)), width=400, height=400,
            metadata={}, created_at=None, image=None,
        )
        for at, (predictions, truths) in enumerate(images)
    ]  # fmt: skip
    state = build_state(evaluator, evaluated, ())
    report = evaluate_state(evaluator, state, task=task, options=EvaluationOptions(200, 0))
    wanted = {"label": None} | parameters
    return next(
        metric.ci95
        for metric in report.metrics
        if metric.type == kind and wanted.items() <= ({"label": None} | metric.parameters).items()
    )


def test_a_rare_label_that_was_always_found_is_not_certain():
    def images(rare):
        for at in range(60):
            truths = [("a", 10)] + [("b", 200)] * (at in rare)
            found = [(label, left) for label, left in truths if at % 20 or label == "b"]
            yield [box(*item, score=0.9) for item in found], [box(*item) for item in truths]

    low_of_few, _ = interval("detection", images({1, 2, 3}), "AP", iou=0.5)
    low_of_many, _ = interval("detection", images({*range(60)}), "AP", iou=0.5)
    assert low_of_few < 0.75
    assert low_of_many > 0.9


def test_a_label_that_is_never_true_does_not_bound_a_mean_over_labels():
    images = [
        ([{"label": "never" if at == 7 else f"c{at % 6}", "score": 0.9}], [{"label": f"c{at % 6}"}])
        for at in range(60)
    ]
    low, high = interval("classification", images, "F1", average="macro")
    assert low == pytest.approx(0.534, abs=0.01)
    assert high > 0.99

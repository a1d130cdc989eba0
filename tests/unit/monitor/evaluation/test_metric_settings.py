"""Chosen thresholds: which numbers they change, where they are refused, and how they are named."""

import msgspec
import numpy as np
import pytest
import sklearn.metrics as scikit_learn

from quadriga.monitor.array_packing import pack, unpack
from quadriga.monitor.evaluation.evaluators import EVALUATORS, build_state, load_evaluator
from quadriga.monitor.evaluation.labels.classification import ClassificationEvaluator
from quadriga.monitor.evaluation.metric_settings import MetricSettings, check_settings
from quadriga.monitor.evaluation.objects.detection import DetectionEvaluator
from quadriga.monitor.evaluation.reporting import EvaluationOptions, evaluate_state
from quadriga.monitor.evaluation.state import EvaluationError, EvaluationState, merge_states
from quadriga.monitor.report import metric_texts
from quadriga.monitor.report.page import render_page
from quadriga.monitor.report.schema import ReportedModel
from tests import coco_reference
from tests.unit.monitor.evaluation.detection_images import box, coco_of, made
from tests.unit.monitor.evaluation.evaluation_images import (
    stable_report,
    state_of_shards,
    wire_image,
)

COCO_TEN = tuple(np.linspace(0.5, 0.95, 10).round(2).tolist())
CAR = box("car", 0, 0, 10, 10)


def report_of(evaluator, images, *, by=(), others=(), resamples=0, **chosen):
    return evaluate_state(
        evaluator,
        state_of_shards(evaluator, images, 3, by),
        task="X",
        options=EvaluationOptions(resamples, 0, MetricSettings(**chosen)),
        other_models=[
            (ReportedModel("other"), state_of_shards(evaluator, other, 1, by)) for other in others
        ],
    )


def values(metrics, *names):
    """Return the values of metrics by the type and the named parameters, without those of labels."""
    return {
        (metric.type, *(metric.parameters.get(name) for name in names)): metric.value
        for metric in metrics
        if metric.parameters.get("label") is None and metric.parameters.get("chosen") is None
    }


def labelled(number, scores, *truths):
    predictions = [{"label": label, "score": score} for label, score in scores.items()]
    return wire_image(number, predictions, [{"label": label} for label in truths])


@pytest.mark.parametrize("iou", [(0.3,), (0.5, 0.75), (0.8, 0.35, 0.6), (0.1, 0.99)])
@pytest.mark.parametrize("seed", range(1, 7))
def test_average_precision_at_chosen_thresholds_is_that_of_pycocotools(seed, iou):
    images = made(seed)
    metrics = report_of(DetectionEvaluator(), images, iou=iou).metrics
    precision, _, _, numbers = coco_reference.reference(*coco_of(images), "bbox", iou)
    single = [np.nanmean(at_threshold) for at_threshold in precision[:, :, :, 0, 2]]
    singles = single if len(iou) > 1 else []
    expected = [numbers[0], *singles, *numbers[3:6], *numbers[6:12]]
    assert [metric.value for metric in metrics[: len(expected)]] == pytest.approx(
        [None if np.isnan(value) else value for value in expected], abs=1e-12
    )
    mean = "/".join(map(str, sorted(iou))) if len(iou) > 1 else iou[0]
    assert [metric.parameters["iou"] for metric in metrics[: 1 + len(singles)]] == [
        mean,
        *(iou if singles else ()),
    ]


def test_the_ten_thresholds_of_coco_are_the_default():
    default, chosen = (
        stable_report(report_of(DetectionEvaluator(), made(3), **choice))
        for choice in ({}, {"iou": COCO_TEN})
    )
    parameters = default.parameters | {"iou": list(COCO_TEN)}
    assert chosen == msgspec.structs.replace(default, parameters=parameters)


LOOSE = box("car", 0, 0, 10, 6)
"""Overlaps CAR by 0.6."""


@pytest.mark.parametrize(
    ("chosen", "precision", "recall", "cells", "at"),
    [
        ({}, 1, 1 / 2, (2, 0, 0), (0.5, 0.5, 0.3)),
        ({"iou": (0.6,)}, 1, 1 / 2, (2, 0, 0), (0.6, 0.5, 0.3)),
        ({"iou": (0.7, 0.5)}, 0, 0, (1, 1, 1), (0.7, 0.5, 0.3)),
        ({"score": (0.4,)}, 1, 1, (2, 0, 0), (0.5, 0.4, 0.4)),
        ({"score": (0.95, 0.4)}, 0, 0, (0, 0, 2), (0.5, 0.95, 0.95)),
        ({"iou": (0.7,), "score": (0.4,)}, 1 / 2, 1 / 2, (1, 1, 1), (0.7, 0.4, 0.4)),
    ],
)
def test_the_first_thresholds_decide_what_is_right(chosen, precision, recall, cells, at):
    """One box overlaps its object by 0.6, with a score of 0.9; the other exactly, with 0.4."""
    images = [
        wire_image(1, [LOOSE | {"score": 0.9}], [CAR]),
        wire_image(2, [CAR | {"score": 0.4}], [CAR]),
    ]
    iou, score, confusion_score = at
    report = report_of(DetectionEvaluator(), images, **chosen)
    rates = values(report.metrics, "score", "iou")
    assert (rates["Precision", score, iou], rates["Recall", score, iou]) == (precision, recall)
    confusion = report.confusion
    unmatched = (sum(side.values()) for side in (confusion.hallucinations, confusion.misses))
    assert (confusion.matrix[0][0], *unmatched) == cells
    assert (confusion.parameters["iou"], confusion.parameters["score"]) == (iou, confusion_score)
    (calibration,) = (metric for metric in report.metrics if metric.type == "ECE")
    assert calibration.parameters["iou"] == report.parameters["tide"]["iou"] == iou


def test_a_kind_of_error_is_that_of_the_match_threshold():
    image = wire_image(1, [LOOSE | {"score": 0.9}], [CAR])
    costs = {
        iou: report_of(DetectionEvaluator(), [image], iou=(iou,)).errors_tide["Loc"]
        for iou in (0.5, 0.6, 0.7)
    }
    assert costs == pytest.approx({0.5: 0, 0.6: 0, 0.7: 1})


def test_each_metric_is_there_once():
    report = report_of(DetectionEvaluator(), made(1), iou=(0.4, 0.8), score=(0.2, 0.7), bins=4)
    names = [(metric.type, repr(metric.parameters)) for metric in report.metrics]
    assert len(names) == len(set(names))
    assert {key[1] for key in values(report.metrics, "score") if key[0] == "Counts"} == {0.2, 0.7}
    assert {curve["iou"] for curve in report.curves["pr"]} == {0.4, 0.8}
    calibration = next(metric for metric in report.metrics if metric.type == "ECE")
    assert calibration.parameters["bins"] == len(report.curves["reliability"][0]["count"]) == 4


def classified(seed=0, images=40):
    generator = np.random.default_rng(seed)
    names, scores = "abcdef", generator.dirichlet(np.full(6, 0.7), images)
    true = generator.integers(0, 6, images)
    rows = [
        labelled(100 + number, dict(zip(names, row.tolist(), strict=True)), names[label])
        for number, (row, label) in enumerate(zip(scores, true, strict=True))
    ]
    return rows, scores, true


def test_top_k_accuracy_is_that_of_scikit_learn():
    images, scores, true = classified()
    metrics = report_of(ClassificationEvaluator(), images, top_k=(1, 2, 4)).metrics
    shares = {key[1]: value for key, value in values(metrics, "k").items() if key[0][:3] == "Top"}
    assert shares == {
        k: pytest.approx(scikit_learn.top_k_accuracy_score(true, scores, k=k, labels=range(6)))
        for k in (1, 2, 4)
    }


@pytest.mark.parametrize("bins", [1, 4, 100])
def test_calibration_has_the_chosen_bins(bins):
    images, scores, true = classified()
    report = report_of(ClassificationEvaluator(), images, bins=bins)
    best, right = scores.max(axis=1), scores.argmax(axis=1) == true
    bin_of = np.ceil(best * bins).astype(int)
    gaps = [(right[bin_of == at].sum() - best[bin_of == at].sum()) for at in range(bins + 1)]
    expected = np.abs(gaps).sum() / len(true)
    assert values(report.metrics, "bins")["ECE", bins] == pytest.approx(expected, abs=1e-12)
    assert ("MCE", bins) in values(report.metrics, "bins")
    assert len(report.curves["reliability"][0]["count"]) == bins
    assert report.parameters["bins"] == bins


def test_labels_are_decided_from_the_chosen_scores():
    generator = np.random.default_rng(0)
    scores, true = generator.random((40, 3)), generator.random((40, 3)) < 0.4
    images = [
        labelled(
            100 + number,
            dict(zip("abc", row.tolist(), strict=True)),
            *(label for label, is_true in zip("abc", labels, strict=True) if is_true),
        )
        for number, (row, labels) in enumerate(zip(scores, true, strict=True))
    ]
    report = report_of(ClassificationEvaluator(), images, score=(0.3, 0.8))
    numbers = values(report.metrics, "score", "average")
    for score in (0.3, 0.8):
        predicted = scores >= score
        assert numbers["HammingLoss", score, None] == pytest.approx((predicted != true).mean())
        assert numbers["Accuracy", score, None] == (predicted == true).all(axis=1).mean()
        for average in ("micro", "macro", "samples", "weighted"):
            expected = scikit_learn.f1_score(true, predicted, average=average, zero_division=0)
            assert numbers["F1", score, average] == pytest.approx(expected, abs=1e-12)
    assert report.parameters["score"] == [0.3, 0.8]
    assert ("Accuracy", 0.5, None) not in numbers


CHOICES = {
    "detection": ({"iou": (0.4,), "score": (0.25,), "bins": 3}, made(1)),
    "classification": ({"top_k": (2, 3), "bins": 7}, classified()[0]),
}


@pytest.mark.parametrize("task", CHOICES)
def test_slices_and_other_models_have_the_chosen_thresholds(task):
    chosen, images = CHOICES[task]
    evaluator = load_evaluator(task)
    images = [
        msgspec.structs.replace(image, image=f"{at}", metadata={"odd": at % 2})
        for at, image in enumerate(images)
    ]
    report = report_of(evaluator, images, by=["meta.odd"], others=[images[::3]], **chosen)
    headlines = metric_texts.headlines(report)
    names = [(metric.type, metric.parameters) for metric in headlines]
    for part in (*report.slices, *report.comparisons):
        assert [(metric.type, metric.parameters) for metric in part.metrics] == names
    assert [
        (metric.type, metric.parameters) for metric in report.comparisons[0].differences
    ] == names
    alone = report_of(evaluator, images[1::2], **chosen)
    (odd,) = (part for part in report.slices if part.value == "1")
    assert [metric.value for metric in odd.metrics] == pytest.approx(
        [metric.value for metric in metric_texts.headlines(alone)][: len(names)], abs=1e-12
    )
    if task == "detection":
        assert ("F1", {"score": 0.25, "iou": 0.4, "label": None}) in names
    else:
        assert [parameters for name, parameters in names if name[:3] == "Top"] == [
            {"k": 2},
            {"k": 3},
        ]


def test_rates_at_a_chosen_score_are_counted_by_the_weights_of_images():
    images = made(3)
    settings = MetricSettings(score=(0.5,))
    evaluated = DetectionEvaluator().evaluate(
        state_of_shards(DetectionEvaluator(), images), settings
    )
    weights = np.array([[1.0] * 12, [2.0, 0.0] * 6, [0.0] * 12])
    headlines = [
        headline for headline in evaluated.headlines(weights) if "score" in headline.parameters
    ]
    default = report_of(DetectionEvaluator(), images)
    half = report_of(DetectionEvaluator(), images[::2])
    for headline in headlines:
        for column, report in ((0, default), (1, half)):
            expected = values(report.metrics, "score")[headline.type, 0.5]
            assert headline.values[column] == pytest.approx(expected, abs=1e-12)
        assert np.isnan(headline.values[2])


def test_a_chosen_headline_has_an_interval():
    report = report_of(DetectionEvaluator(), made(1, images=40), score=(0.5,), resamples=50)
    intervals = {
        metric.type: metric.ci95
        for metric in report.metrics
        if metric.parameters.get("score") == 0.5 and metric.parameters.get("label") is None
    }
    assert all(intervals[name] is not None for name in ("Precision", "Recall", "F1"))


def test_a_mean_over_few_thresholds_is_as_uncertain_as_a_single_one():
    """All objects are found, only three of them of one label: resamples do not show how few these are."""
    bus = CAR | {"label": "bus"}
    images = [
        wire_image(100 + at, [item | {"score": 0.9}], [item])
        for at, item in enumerate([CAR] * 57 + [bus] * 3)
    ]
    report = report_of(DetectionEvaluator(), images, iou=(0.5, 0.55), resamples=100)
    mean, *single = (metric.ci95 for metric in report.metrics[:3])
    assert single == [mean, mean]
    assert mean[0] < 0.8


@pytest.mark.parametrize("task", CHOICES)
def test_a_saved_state_has_the_numbers_of_any_thresholds(task):
    """Shards that were saved for one choice hold nothing of it: merged, they answer for another."""
    chosen, images = CHOICES[task]
    evaluator = load_evaluator(task)
    shards = [pack(build_state(evaluator, images[at::2], [])) for at in (1, 0)]
    for settings in (MetricSettings(), MetricSettings(**chosen), MetricSettings(bins=2)):
        reports = [
            stable_report(
                evaluate_state(
                    evaluator, state, task=task, options=EvaluationOptions(0, 0, settings)
                )
            )
            for state in (
                merge_states(unpack(shard, EvaluationState) for shard in shards),
                state_of_shards(evaluator, images),
            )
        ]
        assert reports[0] == reports[1]
        assert [pack(build_state(evaluator, images[at::2], [])) for at in (1, 0)] == shards


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"top_k": (5, 3, 5)}, "top_k: expected each value once, got 5 twice"),
        ({"iou": (0.5, 0.50)}, "iou: expected each value once, got 0.5 twice"),
        ({"score": (0.0, 0.0)}, "score: expected each value once, got 0.0 twice"),
        ({"iou": (1 / 3,)}, "iou: expected at most 4 decimals, got 0.333"),
        ({"score": (float("nan"),)}, "score: expected at most 4 decimals, got nan"),
        ({"top_k": tuple(range(1, 12))}, "top_k: expected at most 10 values, got 11"),
    ],
)
def test_what_the_types_cannot_say_is_checked(chosen, message):
    with pytest.raises(EvaluationError, match=message):
        check_settings(MetricSettings(**chosen))


@pytest.mark.parametrize("chosen", [{}, {"iou": (0.1, 0.99)}, {"score": (0.0, 1.0, 0.9999)}])
def test_valid_settings_pass(chosen):
    check_settings(MetricSettings(**chosen))


@pytest.mark.parametrize(
    ("task", "chosen", "message"),
    [
        ("detection", {"top_k": (1,)}, "top_k is no setting of OBJECT_DETECTION, which has iou, "),
        ("classification", {"iou": (0.5,)}, "iou is no setting of IMAGE_CLASSIFICATION"),
        ("image-text", {"bins": 3}, "bins is no setting of IMAGE_TEXT_TO_TEXT, which has none"),
    ],
)
def test_settings_of_other_tasks_are_refused(task, chosen, message):
    with pytest.raises(EvaluationError, match=message):
        load_evaluator(task, MetricSettings(**chosen))


@pytest.mark.parametrize("task", EVALUATORS)
def test_every_setting_of_a_task_evaluates_nothing(task):
    everything = {
        "top_k": (1,),
        "iou": (0.6,),
        "score": (0.2, 0.4),
        "bins": 1,
        "single_label": True,
    }
    evaluator = load_evaluator(task)
    chosen = {name: everything[name] for name in evaluator.settings}
    report = report_of(evaluator, [], **chosen)
    assert {metric.value for metric in report.metrics} <= {None, 0}
    assert report.parameters.items() >= MetricSettings(**chosen).chosen.items()


@pytest.mark.parametrize(
    ("truths", "chosen", "warning"),
    [
        ("a", {"score": (0.3,)}, "score has no effect: each image has one true label"),
        ("ab", {"top_k": (1,), "bins": 3}, "top_k and bins have no effect: an image may have"),
        ("ab", {"bins": 3}, "bins has no effect"),
        ("a", {"top_k": (1,), "bins": 3}, None),
        ("ab", {"score": (0.3,)}, None),
        ("ab", {}, None),
    ],
)
def test_settings_without_effect_are_warned_about(truths, chosen, warning):
    image = labelled(1, {"a": 0.9, "b": 0.1}, *truths)
    warnings = report_of(ClassificationEvaluator(), [image], **chosen).warnings
    assert len(warnings) == (warning is not None)
    assert not warnings or warnings[0].startswith(warning)


def test_charts_are_those_of_the_chosen_thresholds():
    report = report_of(DetectionEvaluator(), made(1), iou=(0.6, 0.3), score=(0.2,))
    page = render_page(report, lambda _: None)
    assert {threshold for threshold in (0.3, 0.5, 0.6, 0.75) if f">IoU {threshold}<" in page} == {
        0.3,
        0.6,
    }
    assert "Average precision at IoU 0.6 that would be won" in page
    assert "AP, IoU 0.3/0.6, small" in page
    assert "AP, IoU 0.3/0.6" in page


def test_titles_name_the_chosen_thresholds():
    report = report_of(DetectionEvaluator(), made(1), iou=(0.75, 0.355), score=(0.9995,))
    names = metric_texts.titles(metric_texts.headlines(report))
    assert names[:7] == [
        "AP, IoU 0.355/0.75",
        "Precision, score ≥ 0.9995, IoU 0.75",
        "Recall, score ≥ 0.9995, IoU 0.75",
        "F1, score ≥ 0.9995, IoU 0.75",
        "AP, IoU 0.75",
        "AP, IoU 0.355",
        "AP, IoU 0.355/0.75, small",
    ]

"""Reports: intervals, slices, the worst images, and two models side by side."""

import msgspec
import numpy as np
import pytest

from quadriga.monitor.evaluation import reporting
from quadriga.monitor.evaluation.evaluators import EVALUATORS, load_evaluator
from quadriga.monitor.evaluation.intervals import resampled_interval
from quadriga.monitor.evaluation.labels.classification import ClassificationEvaluator
from quadriga.monitor.evaluation.reporting import (
    EvaluationOptions,
    bootstrap_weights,
    evaluate_state,
    with_image_items,
)
from quadriga.monitor.report.page import render_page
from quadriga.monitor.report.schema import Report, ReportedModel, Window
from tests.unit.monitor.evaluation.evaluation_images import state_of_shards
from tests.unit.monitor.evaluation.label_evaluator import LabelEvaluator, labelled_image

MODEL = ReportedModel("one", "1")
OTHER = ReportedModel("other", "2")
RESULTS = "aabaabbaaaabaabb"
"""Predicted labels of images whose true label is `a`."""


def whole(images, by=()):
    return state_of_shards(LabelEvaluator(), images, by=by)


def images_of(results=RESULTS, start=1, **more):
    return [
        labelled_image(start + at, predicted, "a", image=f"blake3:{at}", **more)
        for at, predicted in enumerate(results)
    ]


def report_of(state, **more):
    options = more.pop("options", EvaluationOptions(seed=3))
    return evaluate_state(
        LabelEvaluator(),
        state,
        task="X",
        model=MODEL,
        window=Window("s", "e", filter={}),
        options=options,
        **more,
    )


def test_a_report_says_what_was_looked_at():
    images = [*images_of(), labelled_image(99, "a", None)]
    report = report_of(whole(images))
    assert (report.kind, report.task, report.status, report.model) == (
        "evaluation",
        "X",
        "ok",
        MODEL,
    )
    assert report.data.current == Window("s", "e", len(RESULTS), n_eff=None, filter={})
    assert report.data.excluded == {"no_truth": 1, "unseen_label": 0}
    assert report.parameters == {"rule": "small", "resamples": 200, "seed": 3}
    assert report.metrics[0].value == RESULTS.count("a") / len(RESULTS)
    assert {metric.n for metric in report.metrics} == {len(RESULTS)}


def test_intervals_are_made_of_images_drawn_again():
    report = report_of(whole(images_of(RESULTS * 2)))
    right = np.array([predicted == "a" for predicted in RESULTS * 2], np.float64)
    source = np.random.default_rng(3)
    drawn = [right[source.integers(0, len(right), len(right))].mean() for _ in range(200)]
    expected = resampled_interval(np.array([right.mean(), *drawn]), len(right))
    assert report.metrics[0].ci95 == pytest.approx(expected.bounds, abs=1e-9)
    assert report.metrics[0].ci_method == "bootstrap"


def test_resamples_in_many_steps_are_those_in_one(monkeypatch):
    steps = []
    at_once = report_of(whole(images_of(), ["hour"]))
    monkeypatch.setattr(reporting, "_WEIGHTS_AT_ONCE", 3 * len(RESULTS))
    stepwise = report_of(whole(images_of(), ["hour"]), check_cancelled=lambda: steps.append(1))
    assert len(steps) == 2 * -(-201 // 3)
    assert stepwise.metrics == at_once.metrics
    assert stepwise.slices == at_once.slices


def test_without_resamples_there_are_no_intervals():
    report = report_of(whole(images_of()), options=EvaluationOptions(0))
    assert report.metrics[0].value is not None
    assert [metric.ci95 for metric in report.metrics] == [None, None]


def test_resamples_begin_with_the_whole_and_draw_as_many():
    weights = bootstrap_weights(7, resamples=5, seed=0)
    assert weights.shape == (6, 7)
    assert (weights[0] == 1).all()
    assert (weights.sum(axis=1) == 7).all()
    assert bootstrap_weights(0, resamples=5, seed=0).shape == (6, 0)


def test_nothing_with_a_truth_is_insufficient():
    report = report_of(
        whole([labelled_image(1, "a", None)], ["hour"]), other_models=[(OTHER, whole([]))]
    )
    assert (report.status, report.data.current.n) == ("insufficient", 0)
    assert [metric.value for metric in report.metrics] == [None, 0]
    assert [metric.value for metric in report.comparisons[0].differences] == [None, 0]
    assert (report.slices, report.worst) == ([], [])


def test_slices_are_evaluated_by_themselves():
    images = [
        *images_of("aab", 1, metadata={"camera": "north"}),
        *images_of("ab", 11, metadata={"camera": 5}),
        *images_of("b", 21),
    ]
    report = report_of(whole(images, ["meta.camera"]))
    assert [(slice_.by, slice_.value, slice_.n) for slice_ in report.slices] == [
        ("meta.camera", "north", 3),
        ("meta.camera", "5", 2),
        ("meta.camera", None, 1),
    ]
    assert [slice_.metrics[0].value for slice_ in report.slices] == [2 / 3, 1 / 2, 0]
    assert [slice_.metrics[0].n for slice_ in report.slices] == [3, 2, 1]
    assert report.slices[2].metrics[0].ci_reason == "fewer than 30 images"


def test_of_many_values_the_most_common_are_shown(monkeypatch):
    monkeypatch.setattr(reporting, "MAX_SLICES", 2)
    images = [
        image
        for at, camera in enumerate("bca")
        for image in images_of("a" * (1 + (camera == "c")), 10 * (1 + at), metadata={"k": camera})
    ]
    assert [slice_.value for slice_ in report_of(whole(images, ["meta.k"])).slices] == ["c", "a"]


def test_the_worst_images_are_shown_with_what_is_drawn_on_them():
    at = "2026-11-24T08:02:03.004Z"
    images = [msgspec.structs.replace(image, created_at=at) for image in images_of("ab")]
    report = with_image_items(report_of(whole(images)), images)
    (worst,) = report.worst
    assert worst.created_at == at
    assert (worst.inference_id, worst.reason, worst.image) == ("2", "wrong_label", "blake3:1")
    assert (worst.width, worst.height) == (4, 3)
    assert msgspec.json.decode(worst.predictions) == [{"label": "b", "score": 0.5}]
    assert msgspec.json.decode(worst.ground_truth) == [{"label": "a"}]


def test_each_image_is_among_the_worst_once():
    images = [
        *(labelled_image(at, "b", "a", image="blake3:same") for at in range(10, 30)),
        *images_of("bab" * 5, 30),
    ]
    worst = report_of(whole(images)).worst
    assert len(worst) == 8
    assert (worst[0].inference_id, worst[0].image) == ("10", "blake3:same")
    assert len({entry.image for entry in worst}) == 8
    assert report_of(whole(images[:20])).worst == worst[:1]


def test_the_same_model_does_not_differ():
    state = whole(images_of())
    again = whole(images_of(start=50))
    for other_state in (state, again):
        (comparison,) = report_of(state, other_models=[(OTHER, other_state)]).comparisons
        assert (comparison.model, comparison.n, comparison.excluded) == (OTHER, len(RESULTS), {})
        assert [(metric.value, metric.ci95) for metric in comparison.differences] == [
            (0, None),
            (0, None),
        ]
    twice = whole(images_of(RESULTS * 2))
    (comparison,) = report_of(twice, other_models=[(OTHER, twice)]).comparisons
    assert {metric.ci_reason for metric in comparison.differences} == {
        "the models do not differ on any image"
    }


def test_another_model_differs_image_by_image():
    others = images_of("b" + RESULTS[1:], 50)[::-1]
    renamed = [
        msgspec.structs.replace(image, id=str(50 + at)) for at, image in enumerate(others)
    ]  # answered in another order
    report = report_of(whole(images_of()), other_models=[(OTHER, whole(renamed))])
    (comparison,) = report.comparisons
    accuracy, wrong = comparison.differences
    assert accuracy.value == pytest.approx(1 / len(RESULTS), abs=1e-12)
    assert wrong.value == -1
    assert (accuracy.ci95, accuracy.ci_reason) == (None, "fewer than 30 images")
    assert comparison.metrics[1].value == report.metrics[1].value + 1


def test_models_are_compared_where_both_answered():
    ours = [*images_of("aab"), *images_of("a", 30)]  # the first image twice: the later counts
    theirs = [
        labelled_image(60, "b", "a", image="blake3:2"),
        labelled_image(61, "a", "a", image="blake3:0"),
        labelled_image(62, "a", "a", image="blake3:nobody"),
        labelled_image(63, "a", None, image="blake3:1"),
    ]
    (comparison,) = report_of(whole(ours), other_models=[(OTHER, whole(theirs))]).comparisons
    assert comparison.n == 2
    assert comparison.excluded == {"not_answered": 1, "duplicate": 1, "no_truth": 1}
    assert comparison.metrics[0].value == 0.5
    assert comparison.differences[0].value == 0


def test_images_of_another_model_are_judged_as_those_of_the_model():
    first, second = (
        state_of_shards(
            ClassificationEvaluator(), [labelled_image(at, "ab", there) for at in range(4)]
        )
        for there in ("a", "ab")
    )
    different, same = evaluate_state(
        ClassificationEvaluator(),
        first,
        task="IMAGE_CLASSIFICATION",
        model=MODEL,
        other_models=[(OTHER, second), (MODEL, first)],
        options=EvaluationOptions(resamples=5),
    ).comparisons
    assert (different.n, different.excluded["several_labels"]) == (0, 4)
    assert [metric.type for metric in different.metrics] == [metric.type for metric in same.metrics]
    assert len(same.differences) == len(same.metrics)
    assert same.differences[0].value == 0


@pytest.mark.parametrize("task", EVALUATORS)
def test_every_task_has_a_report_of_nothing(task):
    evaluation = load_evaluator(task)
    unknown = labelled_image(1, "", None)
    states = [state_of_shards(evaluation, images, by=["hour"]) for images in ([], [unknown])]
    for state in states:
        report = evaluate_state(
            evaluation,
            state,
            task=task,
            model=MODEL,
            window=Window(),
            other_models=[(OTHER, states[0])],
        )
        assert (report.status, report.data.current.n) == ("insufficient", 0)
        assert {metric.value for metric in report.metrics} <= {None, 0}
        assert {metric.ci95 for metric in report.metrics} == {None}
        again = msgspec.json.decode(msgspec.json.encode(report), type=Report)
        assert again.metrics == report.metrics
        assert "<html" in render_page(report, lambda _: None)


def test_two_models_are_compared_by_slice():
    own, other = RESULTS * 8, "b" + RESULTS[1:] + RESULTS * 7
    light = ["night" if at < 40 else "day" for at in range(len(own))]

    def answered(results, start, *, with_light=True):
        return [
            labelled_image(
                start + at,
                predicted,
                "a",
                image=f"blake3:{at}",
                metadata={"light": light[at]} if with_light else {},
            )
            for at, predicted in enumerate(results)
        ]

    state, other_state = (
        whole(answered(own, 1), ["meta.light"]),
        whole(answered(other, 501, with_light=False)),  # the other's metadata do not matter
    )
    (comparison,) = report_of(state, other_models=[(OTHER, other_state)]).comparisons
    day, night = comparison.slices
    assert [(item.by, item.value, item.n) for item in comparison.slices] == [
        ("meta.light", "day", len(own) - 40),
        ("meta.light", "night", 40),
    ]
    assert day.differences[0].ci_reason == "the models do not differ on any image"
    assert night.differences[0].value == pytest.approx(1 / 40)
    page = render_page(report_of(state, other_models=[(OTHER, other_state)]), lambda _: None)
    assert "meta.light=night" in page
    alone = report_of(
        whole(answered(own[:40], 1)), other_models=[(OTHER, whole(answered(other[:40], 501)))]
    ).comparisons[0]
    assert night.differences[0].value == alone.differences[0].value
    assert night.differences[0].ci95 == pytest.approx(alone.differences[0].ci95, rel=0.3)


def test_slices_that_the_other_model_never_answered_do_not_count():
    images = [
        *images_of("ab", 1, metadata={"k": "seen"}),
        *(
            labelled_image(11 + at, "a", "a", image=f"blake3:alone{at}", metadata={"k": "unseen"})
            for at in range(3)
        ),
    ]
    report = report_of(
        whole(images, ["meta.k"]), other_models=[(OTHER, whole(images_of("aa", 50)))]
    )
    (comparison,) = report.comparisons
    assert [(item.value, item.n) for item in comparison.slices] == [("seen", 2)]
    assert comparison.slices[0].differences[0].value == -1 / 2

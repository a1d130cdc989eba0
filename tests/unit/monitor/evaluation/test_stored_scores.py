"""Metrics of classifiers whose inferences do not store the scores of all labels."""

import numpy as np
import pytest

from quadriga.monitor.evaluation.labels.classification import ClassificationEvaluator
from quadriga.monitor.evaluation.reporting import EvaluationOptions, evaluate_state
from quadriga.monitor.report.drift_texts import verdict
from quadriga.monitor.report.metric_texts import headline_notes, headlines
from quadriga.monitor.report.schema import ReportedModel
from tests.unit.monitor.evaluation.evaluation_images import state_of_shards, wire_image

LABELS = ("bar", "disc", "ring", "square")
NEED_ALL = {"ROCAUC", "AveragePrecision", "Brier"}


def image(number, count, truths=None, labels=LABELS, **fields):
    """Return an image with the scores of the best so many labels; sigmoids, which add up to no certain sum."""
    scores = np.random.default_rng(number).permutation(len(labels)) * 0.2 + 0.15
    pairs = sorted(zip(labels, scores.tolist(), strict=True), key=lambda pair: -pair[1])[:count]
    true = [labels[number % len(labels)]] if truths is None else truths
    return wire_image(
        number,
        [{"label": label, "score": score} for label, score in pairs],
        [{"label": label} for label in true],
        **fields,
    )


def report_of(images, by=(), others=()):
    def state_of(images):
        return state_of_shards(ClassificationEvaluator(), images, 3, by)

    return evaluate_state(
        ClassificationEvaluator(),
        state_of(images),
        task="IMAGE_CLASSIFICATION",
        model=ReportedModel("gauge", "1"),
        options=EvaluationOptions(resamples=20),
        other_models=[(ReportedModel("gauge", "2"), state_of(other)) for other in others],
    )


def values(metrics):
    """Return the headlines by type, TopKAccuracy by its k."""
    return {f"{item.type}{item.parameters.get('k', '')}": item for item in metrics
            if item.parameters.get("label") is None
            and item.parameters.get("average", "macro") == "macro"}  # fmt: skip


@pytest.mark.parametrize(
    ("counts", "reason", "ranks"),
    [
        ([4] * 40, "", True),
        ([1] * 40, "40 of 40 inferences store the best label only", False),
        ([1] * 10 + [4] * 30, "10 of 40 inferences store the best label only", False),
        ([3] * 40, "40 of 40 inferences store the best 3 labels at most", True),
        ([2, 1] * 20, "40 of 40 inferences store the best 2 labels at most", False),
        ([0] + [4] * 39, "", True),
    ],
    ids=["all", "best", "mixed", "best three", "best two or one", "no answer"],
)
def test_metrics_that_need_all_scores_have_no_value_without_them(counts, reason, ranks) -> None:
    report = report_of([image(number, count) for number, count in enumerate(counts)])
    metrics = values(report.metrics)
    for name in NEED_ALL:
        assert (metrics[name].value is None) is bool(reason), name
        assert metrics[name].reason.startswith(reason)
        assert metrics[name].reason.endswith("send action predict_proba") is bool(reason)
        assert metrics[name].ci95 is None or not reason
    assert (metrics["TopKAccuracy3"].value is not None) is ranks
    for name in ("Accuracy", "F1", "ECE"):
        assert metrics[name].value is not None
        assert not metrics[name].reason
    if reason:
        named = "TopKAccuracy of k = 3" * (not ranks)
        assert named in report.warnings[0]
        assert "ROCAUC, AveragePrecision" in report.warnings[0]
        assert reason in report.warnings[0]
        assert "pr" not in report.curves
        assert headlines(report)[-1].type == "Brier"  # still among the headlines
        assert not any("ROCAUC" in note for note in headline_notes(report))
        labels = [m for m in report.metrics if m.type == "ROCAUC" and "label" in m.parameters]
        assert labels
        assert all(m.value is None and m.reason for m in labels)
    else:
        unanswered = ["1 images have no prediction and count as wrong: 0"]
        assert report.warnings == unanswered * (0 in counts)
        assert report.curves["pr"]


@pytest.mark.parametrize(
    ("labels", "truths", "is_whole"),
    [
        (("crack",), [["crack"], []], True),
        (("crack",), [["crack"], ["none"]], False),
        (("ok", "bad"), [["ok"], ["bad"]], True),
    ],
    ids=["one label or none", "one label of several", "two labels"],
)
def test_models_of_one_label_and_of_two(labels, truths, is_whole) -> None:
    images = [image(at, len(labels), truths[at % 2], labels) for at in range(40)]
    assert bool(values(report_of(images).metrics)["ROCAUC"].reason) is not is_whole


def test_the_better_label_of_two_says_nothing_of_the_other() -> None:
    images = [image(at, 1, labels=("ok", "bad")) for at in range(40)]
    assert values(report_of(images).metrics)["ROCAUC"].value is None


def test_probabilities_that_add_up_to_one_leave_nothing_for_other_labels() -> None:
    images = [
        wire_image(
            at,
            [{"label": LABELS[at % 3], "score": 0.7}, {"label": LABELS[at % 3 + 1], "score": 0.3}],
            [{"label": LABELS[at % 3]}],
        )
        for at in range(40)
    ]
    assert values(report_of(images).metrics)["Brier"].value == pytest.approx(0.18)


def test_slices_and_comparisons_have_no_value_either() -> None:
    stored = [image(at, 1, metadata={"line": at % 4}) for at in range(40)]
    whole = [image(at, 4) for at in range(40)]
    report = report_of(stored, by=("meta.line",), others=[whole])
    (compared,) = report.comparisons
    assert values(compared.metrics)["Brier"].value is not None
    assert values(compared.differences)["Brier"].value is None
    for part in (*report.slices, *compared.slices):
        metrics = part.differences if part in compared.slices else part.metrics
        assert values(metrics)["Brier"].value is None, part
        assert values(metrics)["Accuracy"].value is not None
    other_way = report_of(whole, others=[stored])
    assert values(other_way.metrics)["Brier"].value is not None
    assert values(other_way.comparisons[0].metrics)["Brier"].value is None
    (warning,) = other_way.warnings
    assert warning.startswith("gauge 2: ")


def test_labels_that_may_belong_to_an_image_are_counted() -> None:
    images = [image(at, 1, [LABELS[0], LABELS[1]]) for at in range(10)]
    report = report_of(images)
    assert report.parameters["multi_label"]
    assert any("10 of 10 inferences may have more labels" in text for text in report.warnings)
    decided = [image(at, 3, [LABELS[0], LABELS[1]]) for at in range(10)]  # the third has 0.35
    assert not any("may have more" in text for text in report_of(decided).warnings)


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (4, "labels not known to the model: discc (2 images), rng (1 image)"),
        (1, "labels of the ground truth that no prediction has: discc (2 images), rng (1 image)"),
    ],
)
def test_labels_that_only_ground_truth_has_are_named(count, expected) -> None:
    images = [image(at, count) for at in range(37)]
    images += [image(at, count, ["discc"]) for at in (37, 38)] + [image(39, count, ["rng"])]
    assert report_of(images).warnings[0] == expected
    assert not any("label" in text[:6] for text in report_of(images[:37]).warnings)


def test_a_report_without_ground_truth_says_what_to_do() -> None:
    report = report_of([wire_image(1, [], None)])
    assert report.warnings[0].startswith("no image has ground truth for this task: state it")
    assert verdict(report) == "No image has ground truth, so there is nothing to measure."

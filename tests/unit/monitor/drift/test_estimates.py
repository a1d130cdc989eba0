"""Estimated accuracy of a simulated classifier without ground truth."""

import numpy as np
import pytest

from quadriga.monitor.drift.estimates import estimate_accuracy

CENTRES = 2.2 * np.array([[0, 0], [1, 0], [0, 1], [-1, 0], [0, -1]])


def answers(rng, shares, n=8_000, noise=1.0):
    """Return scores of a classifier that knows its world, in which noise is 1, and what is right."""
    label = rng.choice(5, n, p=shares)
    seen = CENTRES[label] + noise * rng.normal(size=(n, 2))
    logits = -0.5 * ((seen[:, None] - CENTRES) ** 2).sum(axis=2)
    scores = np.exp(logits - logits.max(axis=1, keepdims=True))
    scores /= scores.sum(axis=1, keepdims=True)
    return scores, scores.argmax(axis=1) == label


def by_method(metrics):
    return {metric.parameters["method"]: metric for metric in metrics}


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def test_estimates_hold_under_covariate_shift(rng):
    baseline, correct = answers(rng, [0.2] * 5)
    current, truth = answers(rng, [0.2] * 5, 40_000)
    hard = rng.random(len(current)) < 1 - 0.9 * current.max(axis=1)  # chosen by the input alone
    current, truth = current[hard], truth[hard]
    assert truth.mean() < correct.mean() - 0.08
    metrics = by_method(estimate_accuracy(baseline, correct, current, resamples=50))
    assert list(metrics) == ["atc_max_confidence", "atc_negative_entropy", "cbpe"]
    assert metrics["cbpe"].value == pytest.approx(truth.mean(), abs=0.03)
    for metric in metrics.values():
        assert metric.type == "EstimatedAccuracy"
        assert abs(metric.value - truth.mean()) < 0.09  # ATC goes too far
        assert metric.value < correct.mean() - 0.08
        assert metric.ci95[0] <= metric.value <= metric.ci95[1]
        assert metric.n == len(current)


def test_estimates_without_change_are_the_baseline_accuracy(rng):
    baseline, correct = answers(rng, [0.2] * 5)
    current, truth = answers(rng, [0.2] * 5, 20_000)
    for metric in estimate_accuracy(baseline, correct, current, resamples=50):
        assert metric.value == pytest.approx(truth.mean(), abs=0.02)
        assert metric.ci95[0] - 0.01 <= truth.mean() <= metric.ci95[1] + 0.01
        assert metric.ci95[1] - metric.ci95[0] < 0.04


def test_estimates_fail_under_new_noise_as_documented(rng):
    baseline, correct = answers(rng, [0.2] * 5)
    current, truth = answers(rng, [0.2] * 5, noise=2.0)
    for metric in estimate_accuracy(baseline, correct, current, resamples=0):
        assert metric.value > truth.mean() + 0.08
        assert metric.ci95 is None
        assert "without new noise" in metric.parameters["valid"]


def test_top_scores_alone_give_two_estimates(rng):
    baseline, correct = answers(rng, [0.2] * 5)
    current, _ = answers(rng, [0.2] * 5)
    complete = by_method(estimate_accuracy(baseline, correct, current, resamples=10))
    metrics = by_method(
        estimate_accuracy(baseline.max(axis=1), correct, current.max(axis=1), resamples=10)
    )
    assert list(metrics) == ["atc_max_confidence", "cbpe"]
    for name, metric in metrics.items():
        assert metric.value == pytest.approx(complete[name].value)


@pytest.mark.parametrize(("right", "expected"), [(True, 1.0), (False, 0.0)])
def test_estimates_of_uniform_correctness(rng, right, expected):
    metrics = estimate_accuracy(
        rng.random(200), np.full(200, right), rng.random(50) / 2 + 0.25, resamples=5
    )
    assert [metric.value for metric in metrics] == pytest.approx([expected] * 2, abs=0.02)


@pytest.mark.parametrize(("baseline_count", "current_count"), [(99, 50), (200, 0)])
def test_too_few_rows_give_no_estimate(baseline_count, current_count):
    assert (
        estimate_accuracy(
            np.full(baseline_count, 0.5), np.ones(baseline_count), np.full(current_count, 0.5)
        )
        == []
    )


def test_scores_that_are_not_finite_are_left_out():
    scores = np.full(300, 0.5)
    scores[:100] = np.nan
    metrics = estimate_accuracy(scores, np.arange(300) % 2 == 0, [0.5, np.inf, 0.5], resamples=0)
    assert [(metric.n, metric.parameters["n_baseline"]) for metric in metrics] == [(2, 200)] * 2


@pytest.mark.parametrize(
    ("baseline", "correct", "current"),
    [((9, 2), (9,), (9, 3)), ((9,), (8,), (9,)), ((9, 2), (9,), (9,)), ((), (), ())],
)
def test_mismatched_shapes_are_refused(baseline, correct, current):
    with pytest.raises(ValueError, match="expected scores of"):
        estimate_accuracy(np.ones(baseline), np.ones(correct), np.ones(current))

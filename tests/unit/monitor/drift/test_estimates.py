"""Accuracy without truth, of a simulated classifier."""

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


def by_method(found):
    return {metric.parameters["method"]: metric for metric in found}


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def test_it_holds_where_the_mix_of_inputs_changed(rng):
    before, correct = answers(rng, [0.2] * 5)
    now, truth = answers(rng, [0.2] * 5, 40_000)
    hard = rng.random(len(now)) < 1 - 0.9 * now.max(axis=1)  # chosen by the input alone
    now, truth = now[hard], truth[hard]
    assert truth.mean() < correct.mean() - 0.08
    found = by_method(estimate_accuracy(before, correct, now, resamples=50))
    assert list(found) == ["atc_max_confidence", "atc_negative_entropy", "cbpe"]
    assert found["cbpe"].value == pytest.approx(truth.mean(), abs=0.03)
    for metric in found.values():
        assert metric.type == "EstimatedAccuracy"
        assert abs(metric.value - truth.mean()) < 0.09  # ATC goes too far
        assert metric.value < correct.mean() - 0.08
        assert metric.ci95[0] <= metric.value <= metric.ci95[1]
        assert metric.n == len(now)


def test_unchanged_it_is_the_accuracy_of_the_baseline(rng):
    before, correct = answers(rng, [0.2] * 5)
    now, truth = answers(rng, [0.2] * 5, 20_000)
    for metric in estimate_accuracy(before, correct, now, resamples=50):
        assert metric.value == pytest.approx(truth.mean(), abs=0.02)
        assert metric.ci95[0] - 0.01 <= truth.mean() <= metric.ci95[1] + 0.01
        assert metric.ci95[1] - metric.ci95[0] < 0.04


def test_it_does_not_hold_under_new_noise_and_says_so(rng):
    before, correct = answers(rng, [0.2] * 5)
    now, truth = answers(rng, [0.2] * 5, noise=2.0)
    for metric in estimate_accuracy(before, correct, now, resamples=0):
        assert metric.value > truth.mean() + 0.08
        assert metric.ci95 is None
        assert "without new noise" in metric.parameters["valid"]


def test_of_top_scores_alone_there_are_two(rng):
    before, correct = answers(rng, [0.2] * 5)
    now, _ = answers(rng, [0.2] * 5)
    whole = by_method(estimate_accuracy(before, correct, now, resamples=10))
    found = by_method(estimate_accuracy(before.max(axis=1), correct, now.max(axis=1), resamples=10))
    assert list(found) == ["atc_max_confidence", "cbpe"]
    for name, metric in found.items():
        assert metric.value == pytest.approx(whole[name].value)


@pytest.mark.parametrize(("right", "expected"), [(True, 1.0), (False, 0.0)])
def test_where_all_are_alike_so_is_the_estimate(rng, right, expected):
    found = estimate_accuracy(
        rng.random(200), np.full(200, right), rng.random(50) / 2 + 0.25, resamples=5
    )
    assert [metric.value for metric in found] == pytest.approx([expected] * 2, abs=0.02)


@pytest.mark.parametrize(("known", "asked"), [(99, 50), (200, 0)])
def test_of_too_little_nothing_is_estimated(known, asked):
    assert estimate_accuracy(np.full(known, 0.5), np.ones(known), np.full(asked, 0.5)) == []


def test_scores_that_are_none_are_left_out():
    scores = np.full(300, 0.5)
    scores[:100] = np.nan
    found = estimate_accuracy(scores, np.arange(300) % 2 == 0, [0.5, np.inf, 0.5], resamples=0)
    assert [(metric.n, metric.parameters["n_baseline"]) for metric in found] == [(2, 200)] * 2


@pytest.mark.parametrize(
    ("before", "correct", "now"),
    [((9, 2), (9,), (9, 3)), ((9,), (8,), (9,)), ((9, 2), (9,), (9,)), ((), (), ())],
)
def test_shapes_that_do_not_fit_are_refused(before, correct, now):
    with pytest.raises(ValueError, match="expected scores of"):
        estimate_accuracy(np.ones(before), np.ones(correct), np.ones(now))

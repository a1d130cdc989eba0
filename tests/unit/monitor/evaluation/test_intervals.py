"""Intervals hold the true value as often as they say, and say why where there is none."""

import msgspec
import numpy as np
import pytest
from scipy.stats import binomtest

from quadriga.monitor.evaluation.intervals import (
    Interval,
    difference_interval,
    noise_interval,
    resampled_interval,
    share_interval,
)
from quadriga.monitor.report.schema import Metric


@pytest.mark.parametrize(("successes", "trials"), [(0, 1), (1, 1), (100, 100), (99, 100), (7, 9)])
def test_a_share_has_the_exact_interval(successes: int, trials: int):
    expected = binomtest(successes, trials).proportion_ci(method="exact")
    bounds, method, reason = share_interval(successes / trials, trials)
    assert bounds == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert (method, reason) == ("exact", "")


def test_no_images_have_no_interval():
    assert share_interval(float("nan"), 0) == Interval()
    assert resampled_interval(np.array([np.nan, 0.5, 0.5]), 100) == Interval()
    assert resampled_interval(np.array([0.5, np.nan]), 100) == Interval()


def resamples_of(values: np.ndarray, seed: int, count: int = 200) -> np.ndarray:
    """Return the mean of values, then the means of resamples (1 + count,)."""
    drawn = np.random.default_rng(seed).integers(0, len(values), (count, len(values)))
    return np.append(values.mean(), values[drawn].mean(axis=1))


@pytest.mark.parametrize(("share", "images"), [(0.9, 30), (0.98, 100), (0.995, 300)])
def test_resampled_intervals_hold_a_share_near_the_end_of_the_scale(share: float, images: int):
    held, widths, exact_widths = 0, [], []
    for seed in range(400):
        values = (np.random.default_rng(seed).random(images) < share).astype(float)
        low, high = resampled_interval(resamples_of(values, seed), images).bounds
        exact_low, exact_high = share_interval(values.mean(), images).bounds
        held += low <= share <= high
        widths.append(high - low)
        exact_widths.append(exact_high - exact_low)
    assert held / 400 >= 0.93
    assert np.mean(widths) / np.mean(exact_widths) < 1.3


def test_a_perfect_sample_is_not_certain():
    low, high = resampled_interval(np.ones(201), 100).bounds
    assert high == 1
    assert low == pytest.approx(0.962, abs=0.002)
    low, high = resampled_interval(np.zeros(201), 100, upper=2.0).bounds
    assert (low, high) == (0, pytest.approx(0.076, abs=0.002))


def test_a_sample_with_few_errors_is_bounded_by_its_number_of_images():
    values = np.append(0.9999, np.linspace(0.9997, 1, 200))
    free, bounded = (
        resampled_interval(values, 100, trials_per_image=trials).bounds for trials in (np.inf, 2)
    )
    assert free[0] > 0.999
    assert bounded[0] == pytest.approx(0.98, abs=0.003)


def test_where_nothing_varies_or_too_few_are_counted_the_reason_is_said():
    values = np.full(201, 0.4)
    assert resampled_interval(values, 100).reason == "nothing varies between the images"
    assert resampled_interval(values, 29).reason == "fewer than 30 images"
    assert noise_interval(values, values, 29).reason == "fewer than 30 images"
    assert difference_interval(np.zeros(201), 29).reason == "fewer than 30 images"
    reason = "the models do not differ on any image"
    assert difference_interval(np.zeros(201), 100).reason == reason


def test_an_interval_reaches_as_far_as_the_bias_may_be():
    resamples = np.linspace(0.35, 0.65, 200)
    even = resampled_interval(np.append(0.5, resamples), 300).bounds
    above = resampled_interval(np.append(0.48, resamples), 300).bounds
    assert even[0] + even[1] == pytest.approx(1, abs=0.01)
    assert above[0] < even[0] - 0.05  # resampling raises the value: the true one may be far below
    assert above[1] == pytest.approx(even[1] - 0.04, abs=0.01)
    high, low = (resampled_interval(np.append(v, resamples), 300).bounds for v in (0.9, 0.1))
    assert high[1] >= 0.9  # it holds the number itself
    assert low[0] <= 0.1


def test_the_bias_of_a_metric_of_objects_moves_one_end_only():
    resamples = np.linspace(0.35, 0.65, 200)
    even, above = (
        resampled_interval(np.append(value, resamples), 300, objects=1e9).bounds
        for value in (0.5, 0.48)
    )
    assert above[0] < even[0] - 0.05
    assert above[1] == pytest.approx(even[1] - 0.02, abs=0.01)  # as far above the number as before


@pytest.mark.parametrize("other_side", [-0.0098, 0.0098])
def test_an_interval_of_objects_reaches_over_a_step_that_some_resamples_cross(other_side: float):
    values = np.full(201, 0.9604)
    values[1:15] += other_side
    whole, objects = (resampled_interval(values, 1000, objects=n).bounds for n in (None, 1e9))
    assert not whole[0] <= 0.9604 + other_side <= whole[1]
    assert objects[0] <= 0.9604 + other_side <= objects[1]


def test_models_that_agree_on_all_images_may_differ_a_little():
    low, high = difference_interval(np.zeros(201), 100, is_share=True).bounds
    assert (low, high) == (pytest.approx(-0.0275, abs=0.001), pytest.approx(0.0275, abs=0.001))


@pytest.mark.parametrize("kind", ["calibrated", "overconfident"])
def test_the_interval_of_a_calibration_error_holds_it(kind: str):
    held, bins = 0, 10
    for seed in range(200):
        generator = np.random.default_rng(seed)
        scores = generator.random(200)
        right = generator.random(200) < (scores if kind == "calibrated" else scores**2)
        drawn = generator.integers(0, 200, (200, 200))
        cell, gap = np.minimum((scores * bins).astype(int), bins - 1), right - scores
        terms = np.array(
            [np.bincount(cell[rows], gap[rows], bins) / 200 for rows in [np.arange(200), *drawn]]
        )
        values, noise = np.abs(terms).sum(axis=1), np.abs(terms - terms[0]).sum(axis=1)
        interval = noise_interval(values, noise, 200)
        low, high = interval.bounds
        held += low <= (0 if kind == "calibrated" else 1 / 6) <= high
    assert interval.method == "conservative"
    assert held / 200 >= 0.95


def test_a_metric_of_an_earlier_version_is_read():
    old = b'{"type": "AP", "value": 0.5, "parameters": {}, "ci95": [0.4, 0.6], "n": 10}'
    metric = msgspec.json.decode(old, type=Metric)
    assert (metric.ci95, metric.ci_method, metric.ci_reason) == ((0.4, 0.6), None, "")

"""The verdict on a window: a fall is one only beyond its interval."""

import itertools

import numpy as np
import pytest

from quadriga.monitor.evaluation.intervals import share_interval
from quadriga.monitor.evaluation.limits import judge
from quadriga.monitor.report.schema import Metric


def accuracy(right, images=100, **fields):
    bounds = share_interval(right / images, images).bounds
    return Metric("Accuracy", right / images, **{"ci95": bounds, "n": images} | fields)


def error(value, low, high):
    return Metric("ECE", value, ci95=(low, high))


BEFORE = {"before": (accuracy(90), "7-a")}


@pytest.mark.parametrize(
    ("metric", "reference", "status", "reason"),
    [
        (accuracy(90), BEFORE, "ok", ""),
        (accuracy(97), BEFORE, "ok", ""),
        (accuracy(85), BEFORE, "ok", ""),
        (accuracy(80), BEFORE, "ok", ""),
        (accuracy(75), BEFORE, "fall", "Accuracy is 0.75, was 0.9 in report 7-a, more than chance"),
        (accuracy(0), BEFORE, "fall", "Accuracy is 0, was 0.9 in report 7-a, more than chance"),
        (accuracy(9000, 10_000), {"before": (accuracy(9100, 10_000), "r")}, "fall", "Accuracy is 0.9, was 0.91 in report r, more than chance"),
        (accuracy(90), {}, "ok", ""),
        (accuracy(90), {"at_least": 0.9}, "ok", ""),
        (accuracy(85), {"at_least": 0.9}, "ok", ""),
        (accuracy(80), {"at_least": 0.9}, "fall", "Accuracy is 0.8733 at most, expected at least 0.9"),
        (accuracy(85), BEFORE | {"at_least": 0.95}, "fall", "Accuracy is 0.9135 at most, expected at least 0.95"),
        (error(0.2, 0.15, 0.25), {"before": (error(0.1, 0.08, 0.12), "r")}, "fall", "ECE is 0.2, was 0.1"),
        (error(0.1, 0.08, 0.12), {"before": (error(0.2, 0.15, 0.25), "r")}, "ok", ""),
        (error(0.1, 0.08, 0.12), {"at_least": 0.05}, "fall", "ECE is 0.08 at least, expected at most 0.05"),
        (error(0.1, 0.04, 0.12), {"at_least": 0.05}, "ok", ""),
    ],
)  # fmt: skip
def test_a_fall_is_one_beyond_its_interval(metric, reference, status, reason) -> None:
    verdict = judge(metric, 100, 30, **reference)
    assert verdict.status == status
    assert verdict.reason.startswith(reason)
    assert bool(verdict.reason) == (status != "ok")


FEW = "too few images have ground truth: expected 30 or more, got "


@pytest.mark.parametrize(
    ("metric", "images", "reason"),
    [
        (accuracy(0, 29), 29, f"{FEW}29"),
        (accuracy(0, 1), 1, f"{FEW}1"),
        (Metric("Accuracy", None), 0, f"{FEW}0"),
        (Metric("Accuracy", None), 30, "Accuracy is undefined"),
        (
            Metric("AP", 0.1, {"iou": 0.5}, ci_reason="fewer than 40 objects"),
            50,
            "AP[iou=0.5] has no interval: fewer than 40 objects",
        ),
        (
            Metric("AP", 0.1, ci95=(None, 0.2)),
            50,
            "AP has no interval: reason unknown",
        ),
    ],
)
def test_nothing_is_known_of_a_window_without_an_interval(metric, images, reason) -> None:
    for reference in (BEFORE, {"at_least": 0.9}, {}):
        assert judge(metric, images, 30, **reference) == ("insufficient", reason)


def test_a_model_that_has_not_changed_falls_in_one_window_of_40_at_most() -> None:
    draw = np.random.default_rng(0)
    for n, share in itertools.product((30, 100, 1000), (0.5, 0.9, 0.97)):
        pairs = draw.binomial(n, share, (1000, 2)).tolist()
        falls = [
            judge(accuracy(after, n), n, 30, before=(accuracy(before, n), "r")).status
            for before, after in pairs
        ].count("fall")
        assert falls <= 25 + 3 * 25**0.5, (n, share)  # three standard errors above 1,000 / 40


def test_a_window_of_the_fewest_images_is_judged() -> None:
    assert judge(accuracy(0, 30), 30, 30, **BEFORE).status == "fall"

"""Slices that carry an alarm, and the order of signals."""

import numpy as np
import pytest

from quadriga.monitor.drift.comparison import compare
from quadriga.monitor.drift.samples import build_sample
from quadriga.monitor.drift.slices import find_drift_slices
from quadriga.monitor.drift.summary import summarise
from quadriga.monitor.report.schema import sorted_by_effect

RNG = np.random.default_rng(9)


def world(n, shift=0.0, share=0.0):
    camera = RNG.choice(["A", "B", "C"], n)
    label = np.where(RNG.random(n) < share, "bus", RNG.choice(["car", "bus"], n))
    score = RNG.normal(size=n) + shift * (camera == "B")
    return build_sample(
        {"camera": camera, "score": score, "label": label, "size": RNG.normal(size=n)}
    )


@pytest.mark.parametrize("keep", [lambda signal: signal, summarise])
def test_the_slice_that_moved_is_found(keep):
    baseline, current = keep(world(2000)), world(600, shift=1.5)
    report = compare(baseline, current)
    moved = [signal.name for signal in report.signals if signal.alarm]
    assert moved == ["score"]
    largest, *others = find_drift_slices(baseline, current, moved, ["label", "camera"])
    assert {signal.by for signal in others} == {"label"}
    assert (largest.by, largest.value) == ("camera", "B")
    (metric,) = largest.metrics
    assert metric.type == "wasserstein_iqr"
    assert metric.value > 0.9
    assert metric.parameters["signal"] == "score"
    assert metric.parameters["other"] < 0.2
    assert metric.n == largest.n


def test_slices_are_in_order_of_effect_over_minimum():
    rng = np.random.default_rng(2)
    sides = []
    for moved in (False, True):
        on = rng.choice(["A", "B"], 800)
        x = rng.normal(size=800) + 0.7 * (moved & (on == "A"))
        e = rng.normal(size=(800, 8)) + 0.7 * (moved & (on == "B"))[:, None]
        sides.append(build_sample({"on": on, "x": x, "e": e}))
    slices = find_drift_slices(*sides, ["x", "e"], ["on"])
    assert [(slice_.value, slice_.metrics[0].parameters["signal"]) for slice_ in slices] == [
        ("B", "e"),
        ("A", "x"),
    ]
    assert slices[0].metrics[0].value < slices[1].metrics[0].value


def test_a_change_of_all_rows_moves_each_slice():
    baseline, current = world(2000), world(600, share=0.5)
    slices = find_drift_slices(baseline, current, ["label"], ["camera", "label"])
    assert sorted(slice_.value for slice_ in slices) == ["A", "B", "C"]


@pytest.mark.parametrize("by", [[], ["nothing"], ["size"]])
def test_without_categories_there_are_no_slices(by):
    assert find_drift_slices(world(200), world(200, shift=3), ["score"], by) == []


def test_a_column_of_many_values_is_no_slice():
    names = [str(at) for at in range(60)] * 20
    baseline = build_sample({"name": names, "x": RNG.normal(size=1200)})
    current = build_sample({"name": names, "x": RNG.normal(2, 1, 1200)})
    assert find_drift_slices(baseline, current, ["x"], ["name"]) == []


def test_signals_are_put_in_order_of_effect():
    baseline, current = world(2000), world(600, shift=3, share=0.3)
    ordered = sorted_by_effect(compare(baseline, current).signals)
    assert [signal.name for signal in ordered][:2] == ["score", "label"]
    assert [signal.alarm for signal in ordered][:2] == [True, True]

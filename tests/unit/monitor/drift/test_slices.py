"""What moved: signals by effect, and the slices that carry an alarm."""

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


@pytest.mark.parametrize("keep", [lambda one: one, summarise])
def test_the_slice_that_moved_is_found(keep):
    before, now = keep(world(2000)), world(600, shift=1.5)
    report = compare(before, now)
    moved = [one.name for one in report.signals if one.alarm]
    assert moved == ["score"]
    found, *others = find_drift_slices(before, now, moved, ["label", "camera"])
    assert {one.by for one in others} == {"label"}
    assert (found.by, found.value) == ("camera", "B")
    (metric,) = found.metrics
    assert metric.type == "wasserstein_iqr"
    assert metric.value > 0.9
    assert metric.parameters["signal"] == "score"
    assert metric.parameters["other"] < 0.2
    assert metric.n == found.n


def test_slices_are_in_the_order_of_the_least_effects_that_matter():
    rng = np.random.default_rng(2)
    sides = []
    for moved in (False, True):
        on = rng.choice(["A", "B"], 800)
        x = rng.normal(size=800) + 0.7 * (moved & (on == "A"))
        e = rng.normal(size=(800, 8)) + 0.7 * (moved & (on == "B"))[:, None]
        sides.append(build_sample({"on": on, "x": x, "e": e}))
    found = find_drift_slices(*sides, ["x", "e"], ["on"])
    assert [(one.value, one.metrics[0].parameters["signal"]) for one in found] == [
        ("B", "e"),
        ("A", "x"),
    ]
    assert found[0].metrics[0].value < found[1].metrics[0].value


def test_where_all_moved_each_slice_did():
    before, now = world(2000), world(600, share=0.5)
    found = find_drift_slices(before, now, ["label"], ["camera", "label"])
    assert sorted(one.value for one in found) == ["A", "B", "C"]


@pytest.mark.parametrize("by", [[], ["nothing"], ["size"]])
def test_without_categories_there_are_no_slices(by):
    assert find_drift_slices(world(200), world(200, shift=3), ["score"], by) == []


def test_a_column_of_many_values_is_no_slice():
    names = [str(at) for at in range(60)] * 20
    before = build_sample({"name": names, "x": RNG.normal(size=1200)})
    now = build_sample({"name": names, "x": RNG.normal(2, 1, 1200)})
    assert find_drift_slices(before, now, ["x"], ["name"]) == []


def test_signals_are_put_in_order_of_effect():
    before, now = world(2000), world(600, shift=3, share=0.3)
    ordered = sorted_by_effect(compare(before, now).signals)
    assert [one.name for one in ordered][:2] == ["score", "label"]
    assert [one.alarm for one in ordered][:2] == [True, True]

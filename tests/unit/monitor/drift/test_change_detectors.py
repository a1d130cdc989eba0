"""Detectors of change in a series of windows."""

import json

import msgspec
import numpy as np
import pytest

from quadriga.monitor.drift.watch.change_detectors import (
    ADWIN_BUCKETS,
    WARM_UP,
    Adwin,
    PageHinkley,
    Series,
    merge_buckets,
)

DETECTORS = pytest.mark.parametrize("detector", [Adwin, PageHinkley])


def noise(n, seed=1):
    return np.random.default_rng(seed).normal(size=n)


@DETECTORS
def test_a_constant_level_is_no_change(detector):
    followed = detector()
    assert not any(followed.update(value) for value in noise(1_000))


@DETECTORS
@pytest.mark.parametrize("shift", [-2.0, 2.0])
def test_a_shift_of_the_level_is_detected_once_in_both_directions(detector, shift):
    followed = detector()
    values = noise(600)
    values[300:] += shift
    changes = [at for at, value in enumerate(values) if followed.update(value)]
    assert 300 <= changes[0] < 330
    assert changes[-1] < 400


def test_adwin_drops_the_old_level_after_a_change():
    followed = Adwin()
    for value in [*noise(300), *(noise(300, 2) + 3)]:
        followed.update(value)
    n, mean, squares = (0, 0.0, 0.0)
    for bucket in followed.buckets:
        n, mean, squares = merge_buckets((n, mean, squares), bucket)
    assert n <= 320
    assert mean == pytest.approx(3, abs=0.3)
    assert squares / n < 1.5


def test_buckets_have_the_statistics_of_their_values():
    values = noise(1_000)
    followed = Adwin()
    for value in values:
        followed.update(value)
    sizes = [bucket[0] for bucket in followed.buckets]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == 1_000
    assert max(sizes.count(size) for size in sizes) <= ADWIN_BUCKETS
    complete = (0, 0.0, 0.0)
    for bucket in followed.buckets:
        complete = merge_buckets(complete, bucket)
    assert complete[1:] == pytest.approx((values.mean(), values.var() * 1_000))


def test_a_series_learns_its_level_before_it_detects_changes():
    series = Series()
    values = 5 + 0.01 * noise(WARM_UP + 100)
    values[WARM_UP + 50 :] += 0.03
    changes = {}
    for at, value in enumerate(values):
        for name in series.update(value):
            changes.setdefault(name, at)
    assert changes.keys() == {"adwin", "page_hinkley"}
    assert min(changes.values()) >= WARM_UP + 50


def test_autocorrelation_enlarges_the_unit():
    rng = np.random.default_rng(3)
    walk = [0.0]
    while len(walk) < WARM_UP:
        walk.append(0.9 * walk[-1] + rng.normal())
    units = []
    for values in (walk, sorted(walk, key=lambda _: rng.random())):
        series = Series()
        for value in values:
            series.update(value)
        units.append(series.unit)
    assert units[0] > 1.5 * units[1]


def test_changes_below_the_minimum_unit_are_ignored():
    small, large = Series(min_unit=1.0), Series(min_unit=1.0)
    changes = [
        (small.update(0.0 if at < 100 else 0.2), large.update(0.0 if at < 100 else 9.0))
        for at in range(200)
    ]
    assert not any(has_small_change for has_small_change, _ in changes)
    assert any(has_large_change for _, has_large_change in changes)


def test_a_saved_series_continues_as_before():
    values = noise(300)
    values[200:] += 1.5
    values = values.tolist()
    complete, changes = Series(), []
    resumed = Series()
    for value in values:
        changes.append(complete.update(value))
        saved = json.dumps(msgspec.to_builtins(resumed))
        resumed = msgspec.json.decode(saved, type=Series)
        assert resumed.update(value) == changes[-1]
    assert any(changes)
    assert len(saved) < 3_000

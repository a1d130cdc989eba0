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
def test_a_level_that_stays_is_no_change(detector):
    followed = detector()
    assert not any(followed.update(value) for value in noise(1_000))


@DETECTORS
@pytest.mark.parametrize("shift", [-2.0, 2.0])
def test_a_level_that_moved_is_told_once_either_way(detector, shift):
    followed = detector()
    values = noise(600)
    values[300:] += shift
    told = [at for at, value in enumerate(values) if followed.update(value)]
    assert 300 <= told[0] < 330
    assert told[-1] < 400


def test_after_a_change_adwin_has_the_new_level_alone():
    followed = Adwin()
    for value in [*noise(300), *(noise(300, 2) + 3)]:
        followed.update(value)
    n, mean, squares = (0, 0.0, 0.0)
    for bucket in followed.buckets:
        n, mean, squares = merge_buckets((n, mean, squares), bucket)
    assert n <= 320
    assert mean == pytest.approx(3, abs=0.3)
    assert squares / n < 1.5


def test_buckets_say_what_their_values_do():
    values = noise(1_000)
    followed = Adwin()
    for value in values:
        followed.update(value)
    sizes = [bucket[0] for bucket in followed.buckets]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == 1_000
    assert max(sizes.count(size) for size in sizes) <= ADWIN_BUCKETS
    whole = (0, 0.0, 0.0)
    for bucket in followed.buckets:
        whole = merge_buckets(whole, bucket)
    assert whole[1:] == pytest.approx((values.mean(), values.var() * 1_000))


def test_a_series_learns_what_is_usual_first():
    series = Series()
    values = 5 + 0.01 * noise(WARM_UP + 100)
    values[WARM_UP + 50 :] += 0.03
    told = {}
    for at, value in enumerate(values):
        for name in series.update(value):
            told.setdefault(name, at)
    assert told.keys() == {"adwin", "page_hinkley"}
    assert min(told.values()) >= WARM_UP + 50


def test_neighbours_that_are_alike_make_the_unit_larger():
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


def test_changes_below_the_least_unit_are_none():
    small, large = Series(min_unit=1.0), Series(min_unit=1.0)
    told = [
        (small.update(0.0 if at < 100 else 0.2), large.update(0.0 if at < 100 else 9.0))
        for at in range(200)
    ]
    assert not any(one for one, _ in told)
    assert any(other for _, other in told)


def test_a_series_goes_on_from_what_was_saved():
    values = noise(300)
    values[200:] += 1.5
    values = values.tolist()
    whole, told = Series(), []
    parts = Series()
    for value in values:
        told.append(whole.update(value))
        kept = json.dumps(msgspec.to_builtins(parts))
        parts = msgspec.json.decode(kept, type=Series)
        assert parts.update(value) == told[-1]
    assert any(told)
    assert len(kept) < 3_000

"""What may change places, and p-values from it."""

import math

import numpy as np
import pytest

from quadriga.monitor.drift.comparison import compare
from quadriga.monitor.drift.samples import build_sample
from quadriga.monitor.drift.significance import permutation
from quadriga.monitor.drift.significance.exchangeable_units import (
    ExchangeableUnits,
    Origin,
    correlation_time,
    exchangeable_units,
)
from quadriga.monitor.drift.significance.permutation import PermutationBudget


def chain(n, memory=0.9, seed=0):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=n) * math.sqrt(1 - memory**2)
    values[0] = rng.normal()
    for at in range(1, n):
        values[at] += memory * values[at - 1]
    return values.astype(np.float32)[:, None]


def place(sources, runs=None, *, has_sources=True, is_sampled=False):
    codes = np.asarray(sources, np.int64)
    found = np.zeros_like(codes) if runs is None else np.asarray(runs, np.int64)
    return Origin(codes, found, has_sources, is_sampled)


def alone(n):
    return place(np.zeros(n), has_sources=False)


def noise(n, seed=1):
    return np.random.default_rng(seed).normal(size=(n, 1)).astype(np.float32)


def test_independent_rows_have_no_memory():
    times = [correlation_time(noise(1000, seed), alone(1000)) for seed in range(40)]
    assert times.count(1.0) >= 38


@pytest.mark.parametrize(("memory", "time"), [(0.5, 3.0), (0.9, 19.0)])
def test_a_series_has_the_memory_it_was_made_with(memory, time):
    assert correlation_time(chain(20_000, memory), alone(20_000)) == pytest.approx(time, rel=0.25)


def test_a_change_in_the_midst_is_no_memory():
    rows = noise(400)
    rows[200:] += 3
    assert correlation_time(rows, alone(400)) == 1.0


def test_cameras_are_followed_one_by_one():
    rows = np.stack([chain(3000, seed=seed)[:, 0] for seed in range(4)], axis=1).reshape(-1, 1)
    cameras = place(np.arange(12_000) % 4)
    assert correlation_time(rows, cameras) == pytest.approx(19, rel=0.3)


def test_rows_follow_each_other_only_in_a_run():
    rows = np.repeat(noise(500), 2, axis=0)
    pairs = place(np.zeros(1000), np.arange(1000) // 2, has_sources=False)
    assert correlation_time(rows, pairs) > 1
    assert correlation_time(rows, place(np.zeros(1000), np.arange(1000), has_sources=False)) == 1.0


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_a_few_rows_have_no_memory(n):
    assert correlation_time(noise(n), alone(n)) == 1.0


def test_rows_change_places_where_they_are_independent():
    found = exchangeable_units((noise(50), noise(20, 2)), (alone(50), alone(20)))
    assert found.kind == "rows"
    assert found.is_current.sum() == 20
    assert found.n_eff == (50, 20)


def test_blocks_of_a_camera_change_places_where_it_is_on_both_sides():
    sides = (chain(4000), chain(1000, seed=5))
    places = (place(np.arange(4000) % 2), place(np.arange(1000) % 2))
    sides = tuple(
        one[np.argsort(spot.sources, kind="stable")]
        for one, spot in zip(sides, places, strict=True)
    )
    places = tuple(spot._replace(sources=np.sort(spot.sources)) for spot in places)
    found = exchangeable_units(sides, places)
    assert found.kind == "blocks"
    sizes = np.bincount(found.unit_of_row)
    assert sizes.min() > 40
    assert set(found.strata) == {0, 1}
    assert found.n_eff[1] == pytest.approx(1000 / 19, rel=0.5)


def test_sources_change_places_where_they_differ():
    rows = np.repeat(noise(200), 5, axis=0)
    places = (place(np.repeat(np.arange(120), 5)), place(np.repeat(np.arange(120, 200), 5)))
    found = exchangeable_units((rows[:600], rows[600:]), places)
    assert found.kind == "groups"
    assert len(found.is_current) == 200
    assert found.n_eff == pytest.approx((120, 80))


def test_sources_of_one_row_each_are_rows():
    places = (place(np.arange(60)), place(np.arange(60, 100)))
    assert exchangeable_units((noise(60), noise(40, 2)), places).kind == "rows"


def test_what_a_camera_always_says_is_followed_over_all_cameras():
    of = np.repeat(np.arange(40) % 4, 25)
    rows = of.astype(np.float32)[:, None]
    found = exchangeable_units((rows, rows), (place(of), place(of)))
    assert found.kind == "blocks"
    assert set(found.strata) == {0}


def test_rows_drawn_one_by_one_are_no_blocks():
    drawn = place(np.zeros(2000), np.arange(2000), has_sources=False, is_sampled=True)
    assert not exchangeable_units((noise(2000), chain(1000)), (drawn, alone(1000))).is_comparable


def _units(current, strata=None):
    side = np.array(current, bool)
    zeros = np.zeros(len(side), np.int64)
    codes = zeros if strata is None else np.array(strata, np.int64)
    return ExchangeableUnits("blocks", np.arange(len(side)), side, codes, (1.0, 1.0))


def test_arrangements_are_counted_by_stratum():
    found = permutation.log_arrangements(_units([0, 0, 1, 0, 1, 1], [0, 0, 0, 1, 1, 1]))
    assert math.exp(found) == pytest.approx(9)


def test_units_stay_in_their_stratum():
    pool = _units([0, 0, 1, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1, 2])
    sides = permutation._draw_sides(pool, 500, np.random.default_rng(0))
    assert (sides[:, :3].sum(axis=1) == 1).all()
    assert (sides[:, 3:6].sum(axis=1) == 2).all()
    assert (sides[:, 6] == 1).all()
    assert sides.mean(axis=0)[:3] == pytest.approx(1 / 3, abs=0.1)


def _sum(pool):
    weights = np.arange(len(pool.is_current), dtype=np.float32)
    return permutation.permute_units(lambda sides: (sides @ weights).astype(float), pool)


@pytest.mark.parametrize(("current", "p"), [(5, 1 / 6), (0, 1.0)])
def test_a_p_value_is_the_share_of_permutations(current, p):
    chances = _sum(_units([at == current for at in range(6)]))
    assert chances.observed == current
    assert permutation.sequential_p_value(chances, PermutationBudget(20_000, 1)) == pytest.approx(
        p, abs=0.05
    )


def test_more_permutations_are_made_where_few_are_extreme():
    chances = _sum(_units([0] * 30 + [1] * 30))
    assert permutation.sequential_p_value(chances, PermutationBudget(999, 1)) == 1 / 1000
    assert permutation.sequential_p_value(chances, PermutationBudget(9999, 1)) == 1 / 10_000


def test_rows_are_dealt_out_as_units_are():
    table = np.array([[30, 20, 10], [5, 5, 20]], float)
    first = lambda now: now[:, 0].astype(float)  # noqa: E731
    rows = permutation.permute_rows(first, table)
    assert rows.observed == 5
    drawn = rows.draw(4000, np.random.default_rng(0))
    assert drawn.mean() == pytest.approx(35 * 30 / 90, rel=0.02)


def test_a_fitted_tail_goes_on_where_permutations_end():
    chances = permutation.PermutationTest(14.0, lambda count, rng: rng.gamma(4.0, size=count))
    p, mean = permutation.fitted_p_value(chances, PermutationBudget(999, 0))
    assert mean == pytest.approx(4.0, rel=0.1)
    assert 0.1 < p / 4.74e-4 < 10


def test_a_video_against_independent_images_has_blocks_of_its_own():
    found = exchangeable_units((noise(2000), chain(1000, seed=3)), (alone(2000), alone(1000)))
    assert (found.kind, found.has_equal_weights) == ("blocks", True)
    assert np.bincount(found.unit_of_row)[~found.is_current].max() <= 5
    assert np.bincount(found.unit_of_row)[found.is_current].min() > 40
    assert found.n_eff[0] == 2000


def test_an_embedding_by_even_blocks_is_still_a_distance():
    rng = np.random.default_rng(0)
    before = rng.normal(size=(600, 8))
    video = np.repeat(rng.normal(size=(60, 8)), 8, axis=0)
    found = compare(build_sample({"e": before}), build_sample({"e": video})).signals[0]
    assert found.units == "blocks"
    assert 0 < found.p <= 1
    assert abs(found.effect.value) < 0.05

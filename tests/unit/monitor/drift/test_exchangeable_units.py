"""Exchangeable units, and p-values of permutation tests."""

import math

import numpy as np
import pytest

from quadriga.monitor.drift.comparison import compare
from quadriga.monitor.drift.samples import build_sample
from quadriga.monitor.drift.significance import permutation
from quadriga.monitor.drift.significance.decision import (
    ComparisonSettings,
    benjamini_hochberg,
    max_permutations,
)
from quadriga.monitor.drift.significance.exchangeable_units import (
    ExchangeableUnits,
    Origin,
    correlation_time,
    exchangeable_units,
)
from quadriga.monitor.drift.significance.permutation import PermutationBudget


def autoregressive(n, memory=0.9, seed=0):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=n) * math.sqrt(1 - memory**2)
    values[0] = rng.normal()
    for at in range(1, n):
        values[at] += memory * values[at - 1]
    return values.astype(np.float32)[:, None]


def make_origin(sources, runs=None, *, has_sources=True, is_sampled=False):
    codes = np.asarray(sources, np.int64)
    run_codes = np.zeros_like(codes) if runs is None else np.asarray(runs, np.int64)
    return Origin(codes, run_codes, has_sources, is_sampled)


def single_source(n):
    return make_origin(np.zeros(n), has_sources=False)


def noise(n, seed=1):
    return np.random.default_rng(seed).normal(size=(n, 1)).astype(np.float32)


def test_independent_rows_have_correlation_time_one():
    times = [correlation_time(noise(1000, seed), single_source(1000)) for seed in range(40)]
    assert times.count(1.0) >= 38


@pytest.mark.parametrize(("memory", "time"), [(0.5, 3.0), (0.9, 19.0)])
def test_correlation_time_of_an_autoregressive_series(memory, time):
    assert correlation_time(autoregressive(20_000, memory), single_source(20_000)) == pytest.approx(
        time, rel=0.25
    )


def test_a_change_in_the_middle_is_not_correlation():
    rows = noise(400)
    rows[200:] += 3
    assert correlation_time(rows, single_source(400)) == 1.0


def test_correlation_is_measured_camera_by_camera():
    rows = np.stack([autoregressive(3000, seed=seed)[:, 0] for seed in range(4)], axis=1).reshape(
        -1, 1
    )
    cameras = make_origin(np.arange(12_000) % 4)
    assert correlation_time(rows, cameras) == pytest.approx(19, rel=0.3)


def test_only_rows_of_a_run_are_neighbours():
    rows = np.repeat(noise(500), 2, axis=0)
    pairs = make_origin(np.zeros(1000), np.arange(1000) // 2, has_sources=False)
    assert correlation_time(rows, pairs) > 1
    assert (
        correlation_time(rows, make_origin(np.zeros(1000), np.arange(1000), has_sources=False))
        == 1.0
    )


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_a_few_rows_have_correlation_time_one(n):
    assert correlation_time(noise(n), single_source(n)) == 1.0


def test_independent_rows_are_the_units():
    units = exchangeable_units((noise(50), noise(20, 2)), (single_source(50), single_source(20)))
    assert units.kind == "rows"
    assert units.is_current.sum() == 20
    assert units.n_eff == (50, 20)


def test_blocks_are_the_units_of_cameras_on_both_sides():
    sides = (autoregressive(4000), autoregressive(1000, seed=5))
    places = (make_origin(np.arange(4000) % 2), make_origin(np.arange(1000) % 2))
    sides = tuple(
        side[np.argsort(spot.sources, kind="stable")]
        for side, spot in zip(sides, places, strict=True)
    )
    places = tuple(spot._replace(sources=np.sort(spot.sources)) for spot in places)
    units = exchangeable_units(sides, places)
    assert units.kind == "blocks"
    sizes = np.bincount(units.unit_of_row)
    assert sizes.min() > 40
    assert set(units.strata) == {0, 1}
    assert units.n_eff[1] == pytest.approx(1000 / 19, rel=0.5)


def test_sources_are_the_units_if_the_sides_share_none():
    rows = np.repeat(noise(200), 5, axis=0)
    places = (
        make_origin(np.repeat(np.arange(120), 5)),
        make_origin(np.repeat(np.arange(120, 200), 5)),
    )
    units = exchangeable_units((rows[:600], rows[600:]), places)
    assert units.kind == "groups"
    assert len(units.is_current) == 200
    assert units.n_eff == pytest.approx((120, 80))


def test_sources_of_one_row_each_are_rows():
    places = (make_origin(np.arange(60)), make_origin(np.arange(60, 100)))
    assert exchangeable_units((noise(60), noise(40, 2)), places).kind == "rows"


def test_values_constant_per_camera_are_not_stratified_by_camera():
    fields = np.repeat(np.arange(40) % 4, 25)
    rows = fields.astype(np.float32)[:, None]
    units = exchangeable_units((rows, rows), (make_origin(fields), make_origin(fields)))
    assert units.kind == "blocks"
    assert set(units.strata) == {0}


def test_sampled_single_rows_form_no_blocks():
    drawn = make_origin(np.zeros(2000), np.arange(2000), has_sources=False, is_sampled=True)
    assert not exchangeable_units(
        (noise(2000), autoregressive(1000)), (drawn, single_source(1000))
    ).is_comparable


def _units(current, strata=None):
    side = np.array(current, bool)
    zeros = np.zeros(len(side), np.int64)
    codes = zeros if strata is None else np.array(strata, np.int64)
    return ExchangeableUnits("blocks", np.arange(len(side)), side, codes, (1.0, 1.0))


def test_arrangements_are_counted_by_stratum():
    log_count = permutation.log_arrangements(_units([0, 0, 1, 0, 1, 1], [0, 0, 0, 1, 1, 1]))
    assert math.exp(log_count) == pytest.approx(9)


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


@pytest.mark.parametrize(
    ("signals", "windows", "maximum", "smallest"),
    [(3, 1, 999, 0.003), (30, 1, 2449, 0.01225), (10, 24, 19592, 0.01225)],
)
def test_the_smallest_adjusted_p_value_is_a_quarter_of_alpha(signals, windows, maximum, smallest):
    settings = ComparisonSettings(windows=windows)
    budget = PermutationBudget(max_permutations(settings, signals), 1)
    assert budget.max_permutations == maximum
    never = permutation.PermutationTest(2.0, lambda count, generator: generator.random(count))
    p = permutation.sequential_p_value(never, budget)
    assert p == 1 / (1 + maximum)
    adjusted = windows * benjamini_hochberg([p, *[0.9] * (signals - 1)])[0]
    assert adjusted == pytest.approx(smallest, abs=0.0001)


def test_permuted_rows_match_permuted_units():
    table = np.array([[30, 20, 10], [5, 5, 20]], float)
    first = lambda current: current[:, 0].astype(float)  # noqa: E731
    rows = permutation.permute_rows(first, table)
    assert rows.observed == 5
    drawn = rows.draw(4000, np.random.default_rng(0))
    assert drawn.mean() == pytest.approx(35 * 30 / 90, rel=0.02)


def test_a_fitted_tail_continues_beyond_the_permutations():
    chances = permutation.PermutationTest(14.0, lambda count, rng: rng.gamma(4.0, size=count))
    p, mean = permutation.fitted_p_value(chances, PermutationBudget(999, 0))
    assert mean == pytest.approx(4.0, rel=0.1)
    assert 0.1 < p / 4.74e-4 < 10


def test_a_video_against_independent_images_has_blocks_of_its_own():
    units = exchangeable_units(
        (noise(2000), autoregressive(1000, seed=3)), (single_source(2000), single_source(1000))
    )
    assert (units.kind, units.has_equal_weights) == ("blocks", True)
    assert np.bincount(units.unit_of_row)[~units.is_current].max() <= 5
    assert np.bincount(units.unit_of_row)[units.is_current].min() > 40
    assert units.n_eff[0] == 2000


def test_embeddings_in_blocks_of_equal_weight_have_a_distance():
    rng = np.random.default_rng(0)
    baseline = rng.normal(size=(600, 8))
    video = np.repeat(rng.normal(size=(60, 8)), 8, axis=0)
    signal = compare(build_sample({"e": baseline}), build_sample({"e": video})).signals[0]
    assert signal.units == "blocks"
    assert 0 < signal.p <= 1
    assert abs(signal.effect.value) < 0.05

"""Rows that depend on each other beyond their neighbours: no false alarm, and the source that explains them is found."""

from typing import Any

import numpy as np
import pytest

from quadriga.monitor.drift.comparison import compare
from quadriga.monitor.drift.metadata import FoundSource, find_source
from quadriga.monitor.drift.samples import build_sample
from quadriga.monitor.drift.significance.decision import ComparisonSettings
from quadriga.monitor.drift.significance.memory import find_memory, repeated_rows
from quadriga.monitor.drift.significance.parts import Dependence, whole_p_value
from quadriga.monitor.drift.summary import as_summary
from quadriga.monitor.report.schema import Signal

BASELINE_N, WINDOWS = 2000, 20


def autoregressive(rng: np.random.Generator, n: int, memory: float = 0.9) -> Any:
    values = rng.normal(size=n + 100)
    for at in range(1, n + 100):
        values[at] = memory * values[at - 1] + values[at] * np.sqrt(1 - memory**2)
    return values[100:]


def by_turns(rng: np.random.Generator, n: int, cameras: int = 8) -> tuple[Any, list[str]]:
    series = [autoregressive(rng, n // cameras + 1) + camera / 2 for camera in range(cameras)]
    return np.stack(series, axis=1).ravel()[:n], [f"c{at % cameras}" for at in range(n)]


def lost_copies(rng: np.random.Generator, n: int) -> tuple[Any, list[str]]:
    values = np.repeat(rng.normal(size=n // 5), 5)
    rng.shuffle(values)
    return values, []


def independent(rng: np.random.Generator, n: int) -> tuple[Any, list[str]]:
    return rng.normal(size=n), []


def short_sources(rng: np.random.Generator, n: int) -> tuple[Any, list[str]]:
    return by_turns(rng, n, 20)


def compared(world: Any, seed: int, n: int, *, shift: float = 0.0, has_key: bool = False) -> Signal:
    rng = np.random.default_rng(seed)
    sides = [world(rng, BASELINE_N), world(rng, n)]
    samples = [
        build_sample({"x": values + shift * at}, sources=sources if has_key else None)
        for at, (values, sources) in enumerate(sides)
    ]
    return compare(samples[0], samples[1], ComparisonSettings(seed=seed)).signals[0]


def share_of_alarms(world: Any, n: int, **options: Any) -> float:
    return sum(compared(world, seed, n, **options).alarm for seed in range(WINDOWS)) / WINDOWS


@pytest.mark.parametrize("n", [200, 1000])
def test_cameras_by_turns_without_a_key_are_insufficient(n):
    signals = [compared(by_turns, seed, n) for seed in range(WINDOWS)]
    assert sum(signal.alarm for signal in signals) == 0
    assert {signal.status for signal in signals} == {"insufficient"}
    assert any("name their source in source_keys" in signal.reason for signal in signals)


def test_a_change_beyond_doubt_alarms_without_a_key():
    signals = [compared(by_turns, seed, 1000, shift=3.0) for seed in range(WINDOWS)]
    assert sum(signal.alarm for signal in signals) >= WINDOWS / 2
    assert {signal.status for signal in signals if signal.alarm} == {"low_power"}


def test_frames_repeated_in_lost_order_count_once():
    signals = [compared(lost_copies, seed, 1000) for seed in range(WINDOWS)]
    assert sum(signal.alarm for signal in signals) <= 2
    assert {signal.units for signal in signals} == {"groups"}
    assert all(signal.n_eff[1] == pytest.approx(200, rel=0.2) for signal in signals)


def test_short_sources_count_as_few_rows():
    signals = [compared(short_sources, seed, 1000, has_key=True) for seed in range(WINDOWS)]
    assert sum(signal.alarm for signal in signals) <= 2
    # 1,000 rows of a correlation time of 19, and its standard error.
    assert 35 < np.median([signal.n_eff[1] for signal in signals]) < 80


def test_independent_rows_have_no_memory():
    signals = [compared(independent, seed, 200) for seed in range(3 * WINDOWS)]
    assert sum(signal.status == "insufficient" for signal in signals) <= 3


def test_a_new_rhythm_of_labels_is_no_memory():
    rows = np.zeros((400, 2))
    rows[np.arange(200), np.arange(200) % 2] = 1
    sources = np.repeat([0, 1], 200)
    rows[:200] -= rows[:200].mean(axis=0)
    assert not find_memory(rows, sources).is_present


def test_memory_is_sought_within_sources_only():
    rng = np.random.default_rng(0)
    values, cameras = by_turns(rng, 4000)
    rows = (values - values.mean())[:, None]
    assert find_memory(rows, np.zeros(4000, np.int64)).is_present
    order = np.argsort(cameras, kind="stable")
    codes = np.unique(np.array(cameras)[order], return_inverse=True)[1]
    centred = (
        rows[order] - np.array([rows[order][codes == c].mean() for c in range(8)])[codes][:, None]
    )
    assert not find_memory(centred, codes, first_lag=95).is_present


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng: rng.poisson(3, 1000).astype(float),
        lambda rng: np.round(rng.beta(8, 1.5, 1000), 2),
        lambda rng: rng.normal(size=1000),
        lambda rng: np.full(1000, 7.0),
    ],
    ids=["counts", "rounded", "distinct", "constant"],
)
def test_values_that_recur_by_nature_are_no_repeated_rows(draw):
    rng = np.random.default_rng(0)
    assert repeated_rows(draw(rng), draw(rng)) is None


def test_an_uncertain_dependence_has_no_small_p_value():
    scores = np.zeros((60, 1), np.float32), np.ones((60, 1), np.float32) + 1e-3
    scores[0][::2] += 0.01
    certain = Dependence(time=5.0, n_eff=(12, 12), is_certain=True)
    assert whole_p_value(scores, certain) < 1e-6
    assert whole_p_value(scores, certain._replace(is_certain=False)) == 1.0
    assert whole_p_value(scores, certain._replace(time=30.0)) == 1.0


def sides_of(columns: Any, *, sources: Any = None) -> Any:
    rng = np.random.default_rng(0)
    settings = ComparisonSettings()
    return [
        as_summary(build_sample(columns(rng, n), sources=sources and sources(n)), settings)
        for n in (BASELINE_N, BASELINE_N)
    ]


def nested(rng: np.random.Generator, n: int) -> dict[str, Any]:
    values, cameras = by_turns(rng, n)
    return {
        "x": values,
        "meta.weather": rng.choice(["rain", "sun"], n).tolist(),
        "meta.site": [f"site{int(camera[1:]) // 4}" for camera in cameras],
        "meta.cam": cameras,
        "meta.number": np.arange(n),
    }


def found_source(columns: Any, **options: Any) -> FoundSource | None:
    found = find_source(*sides_of(columns, **options), prefix="meta.")
    return None if found is None else found[0]


def test_of_nested_keys_the_one_that_explains_most_is_found():
    source = found_source(nested)
    assert source is not None
    assert (source.column, source.signal) == ("meta.cam", "x")
    assert source.likeness > 0.8
    assert abs(source.plain_likeness) < 0.5
    assert source.reason.startswith(
        "found: neighbours with the same meta.cam resemble each other (x: "
    )


def test_the_sources_that_were_found_are_used():
    found = find_source(*sides_of(nested), prefix="meta.")
    assert found is not None
    signal = compare(*found[1], ComparisonSettings()).signals[0]
    assert (signal.units, signal.status == "insufficient") == ("blocks", False)


def test_keys_that_explain_nothing_are_no_sources():
    def columns(rng: np.random.Generator, n: int) -> dict[str, Any]:
        return {"x": rng.normal(size=n), "meta.cam": rng.choice(list("abcd"), n).tolist()}

    assert found_source(columns) is None


def test_levels_alone_do_not_name_a_source():
    def columns(rng: np.random.Generator, n: int) -> dict[str, Any]:
        cameras = rng.integers(0, 4, n)
        return {"x": rng.normal(size=n) + cameras, "meta.cam": [f"c{at}" for at in cameras]}

    assert found_source(columns) is None


def test_known_sources_are_kept():
    assert found_source(nested, sources=lambda n: ["one"] * n) is None

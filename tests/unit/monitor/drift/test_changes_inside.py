"""Changes that begin inside a window: an alarm, or a status that says that it cannot be judged, with the place."""

from typing import Any

import numpy as np
import pytest

from quadriga.monitor.drift.comparison import compare
from quadriga.monitor.drift.metadata import with_presence
from quadriga.monitor.drift.samples import Sample, build_sample
from quadriga.monitor.drift.significance.decision import ComparisonSettings
from quadriga.monitor.drift.significance.memory import without_changes
from quadriga.monitor.drift.significance.parts import independent, most_changed_part
from quadriga.monitor.drift.summary import as_summary
from quadriga.monitor.report.schema import Report, Signal

BASELINE_N = 2000


def report_of(baseline: Any, current: Any, **options: Any) -> Report:
    settings = ComparisonSettings()
    sides = [
        as_summary(build_sample(side if isinstance(side, dict) else {"x": side}), settings)
        for side in (baseline, current)
    ]
    return compare(*with_presence(sides[0], sides[1], ["x"]), settings, **options)


def signal_of(baseline: Any, current: Any, name: str = "x") -> Signal:
    return next(signal for signal in report_of(baseline, current).signals if signal.name == name)


def autoregressive(rng: np.random.Generator, n: int) -> Any:
    values = rng.normal(size=n + 100)
    for at in range(1, n + 100):
        values[at] = 0.9 * values[at - 1] + values[at] * np.sqrt(1 - 0.81)
    return values[100:]


def place_of(signal: Signal) -> tuple[int, int | None]:
    assert signal.began is not None
    return signal.began.row, signal.began.end


@pytest.mark.parametrize("n", [300, 1000, 5000])
@pytest.mark.parametrize("onset", [0.1, 0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("height", [2.0, 4.0])
def test_a_step_alarms_with_its_place(n: int, onset: float, height: float) -> None:
    rng = np.random.default_rng(1)
    values, start = rng.normal(size=n), round(onset * n)
    values[start:] += height
    signal = signal_of(rng.normal(size=BASELINE_N), values)
    assert signal.alarm
    row, end = place_of(signal)
    assert row == pytest.approx(start, abs=max(n // 50, 5))
    assert end is None
    assert signal.began is not None
    assert signal.began.before == pytest.approx(values[:row].mean())
    assert signal.began.after == pytest.approx(values[row:].mean())
    assert signal.effect.value is not None
    assert signal.effect.value >= signal.effect.minimum


def test_a_late_small_step_has_the_effect_of_its_part() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=5000)
    values[4500:] += 1
    signal = signal_of(rng.normal(size=BASELINE_N), values)
    assert signal.alarm
    assert signal.began is not None
    # One standard deviation is 0.74 interquartile ranges; of a tenth of the rows it would be below the minimum of 0.1.
    assert signal.effect.value == pytest.approx(0.74, abs=0.1)
    assert signal.began.effect == signal.effect.value


def new_label(rng: np.random.Generator, n: int) -> Any:
    labels = rng.choice(list("abc"), n).astype(object)
    labels[(np.arange(n) >= 0.4 * n) & (rng.random(n) < 0.6)] = "new"
    return labels.tolist()


def gone(rng: np.random.Generator, n: int) -> Any:
    return [*rng.normal(size=2 * n // 5).tolist(), *[None] * (n - 2 * n // 5)]


def bump(rng: np.random.Generator, n: int) -> Any:
    return rng.normal(size=n) + 3 * ((np.arange(n) >= 0.4 * n) & (np.arange(n) < 0.6 * n))


def early(rng: np.random.Generator, n: int) -> Any:
    return rng.normal(size=n) + 3 * (np.arange(n) < 0.4 * n)


def wider(rng: np.random.Generator, n: int) -> Any:
    return rng.normal(size=n) * np.where(np.arange(n) >= 0.4 * n, 3, 1)


@pytest.mark.parametrize("n", [300, 1000, 5000])
@pytest.mark.parametrize(
    ("change", "baseline", "name", "place"),
    [
        (new_label, lambda rng, n: rng.choice(list("abc"), n), "x", (0.4, None)),
        (gone, lambda rng, n: rng.normal(size=n), "x (is there)", (0.4, None)),
        (bump, lambda rng, n: rng.normal(size=n), "x", (0.4, 0.6)),
        (early, lambda rng, n: rng.normal(size=n), "x", (0.0, 0.4)),
        (wider, lambda rng, n: rng.normal(size=n), "x", (0.4, None)),
    ],
    ids=["new label", "missing", "bump", "at the start", "spread"],
)
def test_other_changes_alarm_with_their_place(
    change: Any, baseline: Any, name: str, place: tuple[float, float | None], n: int
) -> None:
    rng = np.random.default_rng(2)
    signal = signal_of(baseline(rng, BASELINE_N), change(rng, n), name)
    assert signal.alarm
    row, end = place_of(signal)
    assert row / n == pytest.approx(place[0], abs=0.04)
    assert (end is None) == (place[1] is None)
    if end is not None and place[1] is not None:
        assert end / n == pytest.approx(place[1], abs=0.04)


@pytest.mark.parametrize("rise", [2.0, 4.0])
@pytest.mark.parametrize("n", [300, 1000, 5000])
def test_a_ramp_alarms(n: int, rise: float) -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(size=n) + rise * np.clip((np.arange(n) / n - 0.3) / 0.7, 0, 1)
    signal = signal_of(rng.normal(size=BASELINE_N), values)
    assert signal.alarm
    assert 0.25 < place_of(signal)[0] / n < 0.9


def test_the_share_of_a_label_stands_beside_its_place() -> None:
    rng = np.random.default_rng(4)
    began = signal_of(rng.choice(list("abc"), BASELINE_N), new_label(rng, 1000)).began
    assert began is not None
    assert (began.label, began.before) == ("new", 0.0)
    assert began.after == pytest.approx(0.6, abs=0.05)


def test_a_window_that_moved_as_a_whole_has_no_place() -> None:
    rng = np.random.default_rng(5)
    signal = signal_of(rng.normal(size=BASELINE_N), rng.normal(1.0, size=1000))
    assert signal.alarm
    assert signal.began is None


@pytest.mark.parametrize("n", [20, 80, 160, 1000])
def test_unchanged_windows_have_neither_alarm_nor_place(n: int) -> None:
    signals = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        signals.append(signal_of(rng.normal(size=BASELINE_N), rng.normal(size=n)))
    assert sum(signal.alarm for signal in signals) <= 3
    assert sum(signal.began is not None for signal in signals) <= 3


def test_a_step_among_dependent_rows_is_said_if_not_judged() -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        values = autoregressive(rng, 300)
        values[150:] += 4
        report = report_of(autoregressive(rng, BASELINE_N), values)
        signal = report.signals[0]
        assert report.status in ("drift", "insufficient")
        assert signal.moved or signal.alarm
        if signal.moved or signal.began is not None:  # the whole window may have moved beyond doubt
            assert place_of(signal)[0] == pytest.approx(150, abs=30)


@pytest.mark.parametrize(
    "values",
    [
        lambda rng, n: np.sort(rng.normal(size=n)),
        autoregressive,
        lambda rng, n: rng.normal(size=n) + 3 * np.arange(n) / n,
    ],
    ids=["sorted", "memory", "trend"],
)
def test_what_both_sides_have_is_no_alarm(values: Any) -> None:
    alarms = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        alarms += signal_of(values(rng, BASELINE_N), values(rng, 1000)).alarm
    assert alarms <= 1


def test_a_sorted_window_is_no_alarm() -> None:
    rng = np.random.default_rng(6)
    assert not signal_of(rng.normal(size=BASELINE_N), np.sort(rng.normal(size=1000))).alarm


def test_what_moved_and_cannot_be_judged_makes_the_report_insufficient() -> None:
    rng = np.random.default_rng(7)
    few = [*rng.normal(5, size=20).tolist(), *[None] * 480]
    columns = {"y": rng.normal(size=500), "x": few}
    baseline = {name: rng.normal(size=BASELINE_N) for name in "xy"}
    report = report_of(baseline, columns)
    assert report.status == "drift"  # by the share of missing values
    report = compare(build_sample(baseline), build_sample(columns))
    assert report.status == "insufficient"
    assert {signal.name: signal.moved for signal in report.signals} == {"x": True, "y": None}


def test_what_chance_moves_leaves_the_report_as_it_is() -> None:
    rng = np.random.default_rng(8)
    few = [*rng.normal(size=20).tolist(), *[None] * 480]
    baseline = {name: rng.normal(size=BASELINE_N) for name in "xy"}
    report = compare(build_sample(baseline), build_sample({"y": rng.normal(size=500), "x": few}))
    assert report.status == "ok"
    assert [signal.moved for signal in report.signals if signal.name == "x"] == [False]


def test_the_place_has_the_time_of_its_row() -> None:
    rng = np.random.default_rng(9)
    values = rng.normal(size=1000) + 4 * (np.arange(1000) >= 600)
    report = report_of(rng.normal(size=BASELINE_N), values, moment=lambda key: f"at {key}")
    began = report.signals[0].began
    assert began is not None
    assert (began.at, began.until) == (f"at {began.row}", None)


@pytest.mark.parametrize(
    "level",
    [
        lambda at: np.where(at < 300, 0.0, 4.0),
        lambda at: 5.0 * at / 1000,
        lambda at: np.where((at >= 300) & (at < 500), 3.0, 0.0),
        lambda at: np.clip((at - 300) / 100, 0, 5),
    ],
    ids=["step", "trend", "bump", "ramp"],
)
def test_a_level_that_changes_is_taken_out(level: Any) -> None:
    noise = np.random.default_rng(10).normal(size=(1000, 1)).astype(np.float32)
    flat = without_changes(noise + level(np.arange(1000))[:, None].astype(np.float32))
    assert np.corrcoef(flat[:, 0], noise[:, 0])[0, 1] > 0.97
    assert not without_changes(np.sign(level(np.arange(1000)) + 0.5)[:, None]).any()


@pytest.mark.parametrize("n", [1, 2, 29, 30, 31, 33, 40, 50, 64, 100])
def test_a_part_is_within_its_window(n: int) -> None:
    rng = np.random.default_rng(n)
    baseline = rng.normal(size=(40, 2)).astype(np.float32)
    noise = rng.normal(size=(n, 2)).astype(np.float32)
    for window in (noise, np.zeros_like(noise), np.round(noise), np.sort(noise, axis=0)):
        part = most_changed_part((baseline, window), independent((40, n)))
        assert part is None or 0 <= part.start < part.end <= n


def visits(rng: np.random.Generator, n: int, moved: float = 0.0) -> Sample:
    """Return rows of four places, one after another, each at its own level; the last tenth of all is moved."""
    places = np.repeat(np.arange(4), n // 4)
    values = rng.normal(size=n) + places
    values[n - n // 10 :] += moved
    return build_sample({"x": values}, sources=[f"place{place}" for place in places])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("moved", [0.0, 3.0])
def test_places_visited_one_after_another_are_no_change(seed: int, moved: float) -> None:
    rng = np.random.default_rng(seed)
    report = compare(visits(rng, BASELINE_N), visits(rng, 1000, moved))
    assert (report.status == "drift") == (moved > 0)


def test_a_part_is_never_the_whole_window() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(2000, 1)), rng.normal(size=(300, 1)) + 0.5
    for shift in np.linspace(-1, 1, 21):
        current = (scores[1] + shift).astype(np.float32)
        part = most_changed_part((scores[0].astype(np.float32), current), independent((2000, 300)))
        assert part is not None
        assert part.end - part.start < 300

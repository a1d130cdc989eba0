"""Changes too small to matter, values that come and go, and columns that only name rows."""

import numpy as np
import pytest

from quadriga.monitor.drift.comparison import NOTICEABLE, compare, smallest_shift
from quadriga.monitor.drift.metadata import identifier_reason, with_presence
from quadriga.monitor.drift.samples import build_sample
from quadriga.monitor.drift.summary import summarise
from quadriga.store.records.records import IMAGE_STATISTICS

RNG = np.random.default_rng(20261122)


def test_every_image_statistic_has_a_smallest_shift():
    assert NOTICEABLE.keys() >= {f"image.{name}" for name in IMAGE_STATISTICS}


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("image.brightness", [30.0, 31.0], 0.5),
        ("score", [0.0], 0.0),
        ("score", [0.5, 0.25, 1.0], 1e-6 * 0.9),
        ("score", [0.10, 0.11, 0.11, 0.12] * 5, 0.001),
        ("count", [1.0, 2.0, 5.0] * 10, 0.1),
        ("temperature", [20.0] * 9, 2e-5),
    ],
)
def test_the_smallest_shift_of_a_signal(name, values, expected):
    assert smallest_shift(name, np.array(values)) == pytest.approx(expected, rel=1e-3, abs=1e-12)


def signal_of(name, baseline, current):
    sides = (
        build_sample({name: values}, kinds={name: "numeric"}) for values in (baseline, current)
    )
    (signal,) = compare(*sides).signals
    return signal


@pytest.mark.parametrize(
    ("name", "spread", "shift", "is_alarm"),
    [
        ("image.colour_a", 1e-4, 2e-4, False),
        ("image.colour_a", 0.1, 0.8, True),
        ("image.brightness", 0.02, 0.1, False),
        ("image.brightness", 2.0, 1.0, True),
        ("temperature", 1e-9, 2e-9, False),
        ("temperature", 1e-3, 2e-3, True),
    ],
)
def test_a_shift_that_nobody_could_notice_raises_no_alarm(name, spread, shift, is_alarm):
    draws = RNG.normal(20.0, spread, 400), RNG.normal(20.0 + shift, spread, 300)
    signal = signal_of(name, *draws)
    assert signal.p < 1e-6
    assert signal.alarm == is_alarm
    assert signal.shift == pytest.approx(shift, rel=0.3)
    assert (signal.shift >= signal.min_shift) == is_alarm


def test_a_signal_says_where_its_values_were_and_are():
    signal = signal_of("x", np.arange(101.0), np.arange(101.0) + 50)
    assert (signal.before.mean, signal.before.low, signal.before.high) == (50, 10, 90)
    assert (signal.after.mean, signal.after.low, signal.after.high) == (100, 60, 140)
    assert (signal.shift, signal.min_shift) == (50, pytest.approx(5))


def side(temperature, label=None):
    columns = {"temperature": temperature, "label": label or ["a"] * len(temperature)}
    return summarise(
        build_sample(columns, kinds={"temperature": "numeric", "label": "categorical"})
    )


@pytest.mark.parametrize(
    ("missing_before", "missing_after", "is_alarm"),
    [(0.0, 0.3, True), (0.3, 0.0, True), (0.0, 1.0, True), (0.3, 0.3, False), (0.0, 0.0, None)],
)
def test_values_that_become_more_or_fewer_are_a_change(missing_before, missing_after, is_alarm):
    def values(n, missing):
        return [
            None if position < n * missing else value
            for position, value in zip(RNG.permutation(n), RNG.normal(size=n), strict=True)
        ]

    sides = side(values(500, missing_before)), side(values(400, missing_after))
    report = compare(*with_presence(*sides, names=["temperature", "label", "unknown"]))
    alarms = {signal.name: signal.alarm for signal in report.signals}
    assert alarms.get("temperature (is there)") == is_alarm
    assert "label (is there)" not in alarms


COUNT = 60
PATHS = [f"image_{at:04d}.jpg" for at in range(COUNT)]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (PATHS, "hardly any text is there twice"),
        ([f"lane {at % 4}" for at in range(COUNT)], ""),
        (PATHS[:9] + [None] * (COUNT - 9), ""),
        (list(range(COUNT)), "rises from row to row, as a counter or a clock does"),
        (
            [1.77e9 + at / 3 for at in range(COUNT)],
            "rises from row to row, as a counter or a clock does",
        ),
        ([at / 3 for at in range(COUNT)], ""),
        ([at * 7 % 60 for at in range(COUNT)], ""),
        ([[at, 1.0] for at in range(COUNT)], ""),
    ],
    ids=["paths", "labels", "few", "counter", "clock", "ramp", "numbers", "embedding"],
)
def test_columns_that_only_name_rows_are_recognised(values, reason):
    sample = build_sample({"key": values})
    assert identifier_reason("key", sample, sample) == reason
    assert identifier_reason("key", sample, build_sample({"other": [1.0] * 20})) == reason
    assert identifier_reason("other", sample, sample) == ""


def test_a_counter_of_each_camera_is_recognised():
    frames = [at // 2 for at in range(COUNT)]
    sample = build_sample({"frame": frames}, sources=["north", "south"] * (COUNT // 2))
    assert identifier_reason("frame", sample, sample).startswith("rises")


OF_BOTH_VERSIONS = [f"image_{at // 2 + 1000:04d}.jpg" for at in range(2 * COUNT)]
CAMERAS = [f"camera {at % 40}" for at in range(COUNT)]


@pytest.mark.parametrize(
    ("before", "after", "is_left_out"),
    [
        (PATHS, OF_BOTH_VERSIONS, True),
        (PATHS * 2, OF_BOTH_VERSIONS, True),
        (PATHS * 4, OF_BOTH_VERSIONS * 2, True),
        (PATHS * 5, OF_BOTH_VERSIONS, False),
        (PATHS * 2, PATHS * 2, False),
        (CAMERAS, [*CAMERAS, *CAMERAS[:20]], False),
        (PATHS[:15] * 2, OF_BOTH_VERSIONS[:30], False),
        (PATHS * 2, [f"lane {at % 4}" for at in range(COUNT)], False),
        (PATHS * 2, [float(at % 7) for at in range(COUNT)], False),
    ],
    ids=["a new version", "both versions", "four rows each", "five rows each", "the same files", "cameras", "few files", "labels", "numbers"],
)  # fmt: skip
def test_files_that_several_versions_answered_are_no_signal(before, after, is_left_out):
    sides = build_sample({"key": before}), build_sample({"key": after})
    assert bool(identifier_reason("key", *sides)) == is_left_out


def test_labels_that_became_names_of_rows_stay_a_signal():
    baseline = build_sample({"key": [f"lane {at % 4}" for at in range(COUNT)]})
    assert identifier_reason("key", baseline, build_sample({"key": PATHS})) == ""

"""Comparisons of windows with baselines: conditions of an alarm, and the rate of false alarms."""

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quadriga.monitor.drift.comparison import compare
from quadriga.monitor.drift.samples import DriftError, build_sample, infer_kind
from quadriga.monitor.drift.significance.decision import ComparisonSettings, decide
from quadriga.monitor.drift.summary import summarise
from quadriga.monitor.report.schema import Effect, Report, Signal

RNG = np.random.default_rng(3)


def compare_column(baseline, current, rule=None, **fields):
    report = compare(
        build_sample({"x": baseline}, **fields), build_sample({"x": current}, **fields), rule
    )
    return report.signals[0]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([0.5, None, 1.5], "numeric"),
        ([1, 2, 3, None], "count"),
        ([1.0, 2.0], "count"),
        (list(range(100)), "numeric"),
        (["a", None], "categorical"),
        ([True, False], "categorical"),
        ([1, "a"], "categorical"),
        ([[0.5, 1.0], None], "embedding"),
        (np.zeros((3, 2)), "embedding"),
        (np.array(["a"]), "categorical"),
        (np.array([True]), "categorical"),
        ([], "numeric"),
    ],
)
def test_kinds_are_inferred(values, kind):
    assert infer_kind(values) == kind


def test_numbers_near_the_limits_of_a_double_are_compared():
    baseline, current = np.random.default_rng(0).normal(size=(2, 80)) * 1e306
    signal = compare_column(baseline, current)
    assert np.isfinite([signal.effect.value, *signal.histogram.edges]).all()
    assert compare_column([1.0, 2.0] * 40, [1e308, -1e308] * 40).alarm


def test_values_that_are_not_finite_are_missing():
    sample = build_sample(
        {
            "x": [1.0, float("nan"), None, float("inf")],
            "e": [[1, 2], None, [0, float("nan")], [3, 4]],
        }
    )
    assert [column.rows.tolist() for column in sample.columns] == [[0], [0, 3]]


def test_rows_are_put_in_time_order():
    sample = build_sample({"x": [1.5, None, 2.5]}, sources=["b", "a", "a"], order=[30, 10, 20])
    assert sample.order.tolist() == [10, 20, 30]
    assert sample.columns[0].rows.tolist() == [1, 2]
    assert sample.columns[0].values.tolist() == [2.5, 1.5]
    assert [sample.source_names[at] for at in sample.sources] == ["a", "a", "b"]


@pytest.mark.parametrize(
    ("columns", "more", "message"),
    [
        ({"x": [1], "y": [1, 2]}, {}, "expected 1 rows of y, got 2"),
        ({"x": [1]}, {"sources": []}, "expected 1 rows of sources, got 0"),
        ({"x": ["a"]}, {"kinds": {"x": "numeric"}}, "expected x to hold numeric values"),
        ({"x": [[1.0], [1.0, 2.0]]}, {}, "expected x to hold embedding values"),
        ({"x": [1.0]}, {"kinds": {"x": "embedding"}}, "expected x to hold embedding values"),
    ],
)
def test_values_of_the_wrong_kind_are_refused(columns, more, message):
    with pytest.raises(DriftError, match=message):
        build_sample(columns, **more)


def test_a_shift_raises_an_alarm():
    signal = compare_column(RNG.normal(size=1000), RNG.normal(1, 1, 200))
    assert signal.alarm
    assert (signal.test, signal.kind, signal.units, signal.status) == (
        "ks",
        "numeric",
        "rows",
        "ok",
    )
    assert signal.effect.name == "wasserstein_iqr"
    assert signal.n == (1000, 200)
    assert sum(signal.histogram.baseline) == 1000
    assert len(signal.histogram.edges) == len(signal.histogram.current) + 1
    assert signal.psi.value > signal.psi.expected


@pytest.mark.parametrize(
    ("p", "effect", "status", "alarm"),
    [
        (0.001, 0.2, "ok", True),
        (0.001, 0.1, "low_power", True),
        (0.06, 0.2, "ok", False),
        (0.001, 0.09, "ok", False),
        (0.001, None, "ok", False),
        (0.001, 0.2, "insufficient", False),
    ],
)
def test_an_alarm_needs_significance_effect_and_power(p, effect, status, alarm):
    signal = Signal(
        "x", "numeric", "ks", effect=Effect("e", effect, 0.1), n=(200, 200), p=p, status=status
    )
    assert decide([signal], ComparisonSettings())[0].alarm is alarm


def test_signals_and_windows_share_alpha():
    effect = Effect("e", 1.0, 0.1)
    ps = [0.004, 0.9, 0.8, None]
    signals = [
        Signal(str(at), "numeric", "ks", effect=effect, n=(200, 200), p=p)
        for at, p in enumerate(ps)
    ]
    signals[3] = msgspec.structs.replace(signals[3], status="insufficient")
    alone = decide(signals, ComparisonSettings())
    assert alone[0].p_adjusted == pytest.approx(0.012)
    assert alone[3].p_adjusted is None
    assert [signal.alarm for signal in alone] == [True, False, False, False]
    assert decide(signals, ComparisonSettings(windows=24))[0].p_adjusted == pytest.approx(0.288)
    assert not any(signal.alarm for signal in decide(signals, ComparisonSettings(windows=24)))


@pytest.mark.parametrize(
    ("n", "status"),
    [(1, "insufficient"), (29, "insufficient"), (30, "low_power"), (99, "low_power"), (100, "ok")],
)
def test_few_rows_have_low_power(n, status):
    assert compare_column(RNG.normal(size=500), RNG.normal(size=n)).status == status


@pytest.mark.parametrize("values", [[None] * 50, []])
@pytest.mark.parametrize(
    "baseline", [RNG.normal(size=200), ["a", "b"] * 100, RNG.normal(size=(200, 4)), [1] * 200]
)
def test_a_column_without_values_is_insufficient(baseline, values):
    signal = compare_column(baseline, values)
    assert signal.status == "insufficient"
    assert not signal.alarm
    assert signal.effect.value is None


def test_a_missing_column_is_insufficient():
    report = compare(build_sample({"x": [0.5] * 100}), build_sample({"y": [0.5] * 100}))
    assert report.status == "insufficient"
    assert [signal.name for signal in report.signals] == ["x"]


@pytest.mark.parametrize("value", [0.25, 7, "same"])
def test_only_a_changed_constant_raises_an_alarm(value):
    still = compare_column([value] * 200, [value] * 200)
    assert not still.alarm
    assert still.p == 1.0
    changed = value + 1 if value != "same" else "other"
    assert compare_column([value] * 200, [changed] * 200).alarm


def test_counts_are_compared_by_their_cells():
    signal = compare_column(RNG.poisson(3, 1000), RNG.poisson(5, 200))
    assert (signal.kind, signal.test, signal.alarm) == ("count", "chi_square", True)


def test_counts_with_many_current_values_are_compared_as_numbers():
    signal = compare_column(RNG.integers(1, 5, 200), RNG.permutation(200))
    assert (signal.kind, signal.alarm) == ("numeric", True)


def test_new_labels_are_named():
    current = RNG.permutation(["car"] * 90 + ["bus"] * 90 + ["tram"] * 20)
    signal = compare_column(RNG.permutation(["car", "bus"] * 500), current)
    assert signal.new_labels == ["tram"]
    assert signal.alarm
    assert signal.effect.value == pytest.approx(0.1)
    assert signal.histogram.edges == ["bus", "car", "tram"]
    assert signal.histogram.current == [90, 90, 20]


def test_a_baseline_label_outside_the_sample_is_not_new():
    baseline = summarise(build_sample({"x": ["car"] * 999 + ["tram"]}), rows=100, run=1)
    signal = compare(baseline, build_sample({"x": ["car"] * 199 + ["tram"]})).signals[0]
    assert signal.new_labels == []


@pytest.mark.parametrize("kernel", ["energy", "mmd"])
def test_embeddings_are_compared(kernel):
    rng = np.random.default_rng(0)
    baseline = rng.normal(size=(300, 16))
    rule = ComparisonSettings(kernel=kernel)
    assert not compare_column(baseline, rng.normal(size=(200, 16)), rule).alarm
    moved = compare_column(baseline, rng.normal(0.5, 1, (200, 16)), rule)
    assert moved.alarm
    assert moved.test == kernel
    assert 0 < moved.effect.value < 1
    assert 0 < moved.p < 1e-6


def test_a_p_value_too_small_for_a_double_is_the_smallest_one_in_json():
    rng = np.random.default_rng(0)
    sides = (build_sample({"e": rng.normal(shift, 1, (300, 16))}) for shift in (0, 20))
    report = compare(*sides)
    assert report.signals[0].alarm
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


def test_embeddings_of_another_length_are_refused():
    with pytest.raises(DriftError, match="expected x to be of length 4 as in the baseline, got 5"):
        compare_column(RNG.normal(size=(100, 4)), RNG.normal(size=(100, 5)))


def test_a_column_of_another_kind_is_refused():
    with pytest.raises(DriftError, match="expected x to be categorical as in the baseline, got nu"):
        compare_column(["a"] * 100, RNG.normal(size=100))


def test_repeated_frames_of_sources_raise_no_false_alarm():
    alarms = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        frames = np.repeat(rng.normal(size=300), 5)
        sources = [str(at // 5) for at in range(1500)]
        report = compare(
            build_sample({"x": frames[:1000]}, sources=sources[:1000]),
            build_sample({"x": frames[1000:]}, sources=sources[1000:]),
        )
        assert report.signals[0].units == "groups"
        alarms += report.signals[0].alarm
    assert alarms <= 6


def test_a_few_recordings_are_insufficient():
    rng = np.random.default_rng(0)
    sources = [f"recording {at // 100}" for at in range(1000)]
    report = compare(
        build_sample({"x": rng.normal(size=700)}, sources=sources[:700]),
        build_sample({"x": rng.normal(2, 1, 300)}, sources=sources[700:]),
    )
    assert report.status == "insufficient"
    assert report.signals[0].reason == "expected 20 groups on both sides, got 10"


def test_one_new_source_is_insufficient_however_much_it_differs():
    rng = np.random.default_rng(0)
    sources = [f"camera {at % 30}" for at in range(600)]
    baseline, current = ({name: rng.normal(mean, 1, 600) for name in "xyz"} for mean in (0, 9))
    report = compare(
        build_sample(baseline, sources=sources), build_sample(current, sources=["new"] * 600)
    )
    assert report.status == "insufficient"
    reason = "expected more groups on each side, got 30 and 1: too few to deal out"
    assert report.signals[0].reason == reason


def test_few_new_sources_have_an_alarm_together_and_low_power():
    rng = np.random.default_rng(0)
    sources = [f"camera {at % 18}" for at in range(540)]
    baseline, current = ({name: rng.normal(mean, 1, 540) for name in "wxyz"} for mean in (0, 9))
    new = [f"new {at % 2}" for at in range(540)]
    report = compare(build_sample(baseline, sources=sources), build_sample(current, sources=new))
    assert {(signal.alarm, signal.status) for signal in report.signals} == {(True, "ok")}
    settings = ComparisonSettings(windows=3)
    report = compare(
        build_sample(baseline, sources=sources), build_sample(current, sources=new), settings
    )
    assert {(signal.alarm, signal.status) for signal in report.signals} == {(True, "low_power")}


def test_sorted_rows_are_not_independent():
    signal = compare_column(sorted("abcdefgh" * 100), sorted("abcdefgh" * 25))
    assert (signal.status, signal.units) == ("insufficient", "blocks")
    assert "independent values" in signal.reason


@pytest.mark.parametrize(
    "world",
    [
        lambda rng, n: rng.normal(size=n),
        lambda rng, n: np.round(rng.beta(8, 1.5, n), 1),
        lambda rng, n: rng.poisson(2, n),
        lambda rng, n: rng.choice(
            list("abcdefgh"), n, p=[0.5, 0.3, 0.1, 0.05, 0.02, 0.01, 0.01, 0.01]
        ),
    ],
)
def test_unchanged_windows_are_below_alpha_one_time_in_twenty(world):
    rng = np.random.default_rng(11)
    columns = [{str(at): world(rng, n) for at in range(300)} for n in (400, 60)]
    report = compare(
        build_sample(columns[0]), build_sample(columns[1]), ComparisonSettings(permutations=299)
    )
    below = np.mean([signal.p < 0.05 for signal in report.signals])
    assert 0.015 < below < 0.09
    assert report.status == "ok"


def test_the_same_rows_give_the_same_report():
    baseline = build_sample({"x": RNG.choice(["a", "b"], 400), "e": RNG.normal(size=(400, 4))})
    current = build_sample({"x": RNG.choice(["a", "b"], 50), "e": RNG.normal(size=(50, 4))})
    first, second = compare(baseline, current), compare(baseline, current)
    assert first.signals == second.signals


def test_a_report_round_trips_through_json():
    report = compare(
        build_sample({"x": RNG.normal(size=100)}), build_sample({"x": RNG.normal(size=100)})
    )
    assert report.parameters["spending"] == "bonferroni/1"
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


SIDE = st.integers(0, 60)
VALUES = st.one_of(
    st.none(),
    st.floats(-1e100, 1e100),
    st.sampled_from([0.0, 1.0, 2.0, 1.7e18, 1.7e18 + 256]),
    st.floats(allow_nan=True, allow_infinity=True, width=16),
)


@settings(max_examples=80)
@given(
    pool=st.lists(VALUES, min_size=1, max_size=6),
    sizes=st.tuples(SIDE, SIDE),
    names=st.sampled_from([None, "a", "abc"]),
    seed=st.integers(0, 99),
)
@example(pool=[None, 0.0, None, 1.9e-242, None, 4.2e66], sizes=(5, 1), names=None, seed=0)
@example(pool=[None], sizes=(1, 40), names=None, seed=55)
def test_any_values_give_a_report(pool, sizes, names, seed):
    rng = np.random.default_rng(seed)
    sides = []
    for n in sizes:
        columns = {
            "x": [pool[at] for at in rng.integers(0, len(pool), n)],
            "label": [[None, "a", "b"][at] for at in rng.integers(0, 3, n)],
            "e": np.round(rng.normal(size=(n, 2))),
        }
        kinds = {"x": "numeric", "label": "categorical"}
        sources = [names[at % len(names)] for at in range(n)] if names else None
        sides.append(build_sample(columns, kinds=kinds, sources=sources))
    report = compare(*sides, ComparisonSettings(insufficient=0, permutations=19))
    for signal in report.signals:
        assert signal.p is None or 0 < signal.p <= 1
        assert signal.effect.value is None or np.isfinite(signal.effect.value)
    msgspec.json.decode(msgspec.json.encode(report), type=Report)

"""Windows over time: what is drawn of them, and what is said to be left out."""

import re

import msgspec
import pytest

from quadriga.monitor.report.charts.history import (
    MAX_WINDOWS,
    comparable_windows,
    effect_charts,
    p_value_chart,
)
from quadriga.monitor.report.schema import Data, PastSignal, PastWindow, Report, Window
from tests.drift_reports import watched
from tests.reports import HOSTILE

LINE = re.compile(r'<path d="([^"]*)" class="l1"')


def past(at, **signals):
    """Give the window of an hour."""
    past_signals = {name: msgspec.convert(signal, PastSignal) for name, signal in signals.items()}
    ends = [f"2026-01-31T{hour:02}:00:00.000Z" for hour in (at, at + 1)]
    return PastWindow(*ends, 100, "ok", str(at), past_signals)


def signal(effect=0.2, p_adjusted=0.3, *, alarm=False, status="ok"):
    return {"effect": effect, "p_adjusted": p_adjusted, "alarm": alarm, "status": status}


def of(*windows):
    return Report("drift", "", Data(Window()), history=list(windows))


@pytest.mark.parametrize(
    "windows",
    [[], [past(0, a=signal())], [past(0), past(1)]],
    ids=["none", "this-one-alone", "without-signals"],
)
def test_nothing_is_drawn_where_there_is_nothing_to_compare(windows):
    assert effect_charts(of(*windows)) == []
    assert p_value_chart(of(*windows)) is None


def test_signals_with_alarms_stand_above_those_that_had_alarms():
    windows = [
        past(0, quiet=signal(9.0), before=signal(alarm=True), often=signal(alarm=True)),
        past(1, quiet=signal(9.0), before=signal(), often=signal(alarm=True)),
    ]
    assert [chart.title for chart in effect_charts(of(*windows))] == ["often", "before", "quiet"]
    charts = effect_charts(watched())
    assert [chart.title for chart in charts[:3]] == ["signal 3", "label", HOSTILE[:32] + "…ng long"]
    assert len(charts) == 6
    assert charts[0].caption.endswith("; the smallest that matters: 0.100.")


def test_line_breaks_where_windows_are_missing_or_say_too_little():
    few = past(3, a=signal(None, None, status="insufficient"))
    windows = [past(at, a=signal()) for at in (0, 1, 2)], [past(at, a=signal()) for at in (4, 7)]
    (chart,) = effect_charts(of(*windows[0], few, *windows[1]))
    (line,) = LINE.findall(chart.svg)
    assert line.count("M") == 3
    assert ">too few values</text>" in chart.svg
    assert ">alarm</text>" not in chart.svg


def test_each_alarm_is_a_diamond_in_the_map():
    windows = [past(at, a=signal(0.2, 10.0**-at, alarm=at > 1), b=signal()) for at in range(9)]
    chart = p_value_chart(of(*windows))
    assert chart.svg.count('class="diamond"') == 7 + 1  # one of the legend
    assert chart.svg.count('opacity="0.12"') == 1 + 1


def test_many_signals_and_windows_are_cut_to_the_most_moved_and_the_last():
    report = watched(MAX_WINDOWS + 20, 60)
    assert comparable_windows(report) == report.history[20:]
    chart = p_value_chart(report)
    assert " 25 signals that moved less are left out." in chart.caption
    assert ">signal 59</text>" in chart.svg
    assert len(chart.svg) < 100_000


@pytest.mark.parametrize(
    ("starts", "shown"),
    [
        (("2026-01-31T10:00:00.000Z", "2026-01-31T11:00:00.000Z"), "10:00"),
        (("2026-01-30T00:00:00.000Z", "2026-01-31T00:00:00.000Z"), "2026-01-30"),
        (("2026-01-30T22:00:00.000Z", "2026-01-31T04:00:00.000Z"), "01-30 22:00"),
        ((None, None), ""),
    ],
)
def test_windows_are_named_as_short_as_they_can_be_told_apart(starts, shown):
    windows = [PastWindow(start=start, end=None, n=1, status="ok", report="", signals=past(0, a=signal()).signals) for start in starts]  # fmt: skip
    (chart,) = effect_charts(of(*windows))
    assert (f">{shown}</text>" in chart.svg) == bool(shown)

"""Bars over time: round labels with their dates, the length of a bar, and a single moment."""

import itertools
from datetime import UTC, datetime, timedelta

import pytest

from quadriga.engine.console.charts import WIDTH, timeline

START = datetime(2026, 11, 24, 5, 2, tzinfo=UTC)


def slices(length, count, start=START):
    texts = [(start + length * n).strftime("%Y-%m-%dT%H:%M:%S.%fZ") for n in range(count + 1)]
    return [(a[:-4] + "Z", b[:-4] + "Z", 1, 0) for a, b in itertools.pairwise(texts)]


@pytest.mark.parametrize(
    ("length", "count", "words", "bar_length"),
    [
        (timedelta(seconds=1), 30, ["24 Nov 05:02:00", "05:02:05", "05:02:10"], "1-second"),
        (timedelta(minutes=2), 30, ["24 Nov 05:10", "05:20", "05:30"], "2-minute"),
        (timedelta(hours=1), 37, ["24 Nov 06:00", "12:00", "18:00", "25 Nov 00:00", "06:00"], "1-hour"),
        (timedelta(minutes=46), 40, ["24 Nov 06:00", "12:00"], "46-minute"),
        (timedelta(minutes=46, seconds=7), 40, ["24 Nov 06:00"], "about 46-minute"),
        (timedelta(days=1), 20, ["26 Nov", "3 Dec", "10 Dec"], "1-day"),
        (timedelta(days=28), 40, ["22 Apr 2027", "21 Oct 2027"], "28-day"),
        (timedelta(milliseconds=20), 10, ["24 Nov 05:02:00"], "20-millisecond"),
        (timedelta(days=365), 40, [], "365-day"),
        (timedelta(days=153, hours=6), 40, [], "about 150-day"),
        (timedelta(minutes=62), 40, [], "about 1-hour"),
    ],
)  # fmt: skip
def test_labels_are_round_and_each_day_has_its_date(length, count, words, bar_length):
    chart = timeline(slices(length, count))
    assert len(chart.ticks) <= 7
    assert [tick.words for tick in chart.ticks[: len(words)]] == words
    assert all(0 <= tick.percent <= 100 for tick in chart.ticks)
    assert chart.bar_length == bar_length
    assert chart.bars[0].start == "2026-11-24T05:02:00Z"


def test_a_single_moment_is_a_narrow_bar_with_one_label():
    chart = timeline(slices(timedelta(milliseconds=1), 1))
    assert [tick.words for tick in chart.ticks] == ["24 Nov 05:02:00"]
    assert chart.bars[0].width < WIDTH / 10
    assert chart.bar_length == ""
    assert chart.bars[0].x < WIDTH / 2 < chart.bars[0].x + chart.bars[0].width


def test_nothing_has_no_labels():
    assert timeline([]).ticks == []

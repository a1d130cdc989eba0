"""Bars over time: how long each is, in words, and their place in the drawing."""

import itertools
import re
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from quadriga.engine.console.charts import Bar, bar_length
from quadriga.engine.console.frame import Frame

START = datetime(2026, 11, 24, 5, 2, tzinfo=UTC)


def bars(length, count, start=START):
    texts = [(start + length * n).strftime("%Y-%m-%dT%H:%M:%S.%fZ") for n in range(count + 1)]
    return [Bar(a[:-4] + "Z", b[:-4] + "Z", 1) for a, b in itertools.pairwise(texts)]


@pytest.mark.parametrize(
    ("length", "count", "words"),
    [
        (timedelta(seconds=1), 30, "1-second"),
        (timedelta(minutes=2), 30, "2-minute"),
        (timedelta(hours=1), 37, "1-hour"),
        (timedelta(minutes=46), 40, "46-minute"),
        (timedelta(minutes=46, seconds=7), 40, "about 46-minute"),
        (timedelta(days=1), 20, "1-day"),
        (timedelta(days=28), 40, "28-day"),
        (timedelta(milliseconds=20), 10, "20-millisecond"),
        (timedelta(days=153, hours=6), 40, "about 150-day"),
        (timedelta(minutes=62), 40, "about 1-hour"),
        (timedelta(hours=1), 1, ""),
        (timedelta(hours=1), 0, ""),
    ],
)
def test_the_length_of_a_bar_in_words(length, count, words):
    assert bar_length(bars(length, count)) == words


def drawing(of: list[Bar]) -> str:
    parts = Frame("", has_store=True)._environment.globals["parts"]
    return str(parts.bars(of, lambda start, end: f"/x?{start}", "Times"))


def numbers(text: str, shape: str) -> list[dict[str, float]]:
    """Return place and size of each rectangle of a class."""
    return [
        {name: float(value) for name, value in re.findall(r'\b(x|y|width|height)="([\d.]+)"', rect)}
        for rect in re.findall(f'<rect class="{shape}"([^>]*)>', text)
    ]


def test_bars_stand_on_the_axis_in_their_places_and_what_failed_at_their_foot():
    first, empty, last = bars(timedelta(hours=1), 3)
    text = drawing([replace(first, count=1000), replace(empty, count=0), replace(last, failed=1)])
    tall, low = numbers(text, "f1")
    assert (tall["x"], tall["height"], tall["y"] + tall["height"]) == (0, 76, 80)
    assert (low["x"], low["height"], low["y"] + low["height"]) == (906.67, 1.5, 80)
    assert numbers(text, "f2") == [low]
    assert re.findall(r"<text[^>]*>([^<]*)", text) == ["24 November 05:02:00 UTC", "24 November 08:02:00 UTC"]  # fmt: skip


def test_a_single_moment_is_a_narrow_bar_with_one_label():
    text = drawing(bars(timedelta(milliseconds=1), 1))
    (bar,) = numbers(text, "f1")
    assert bar["width"] < 1360 / 10
    assert bar["x"] < 1360 / 2 < bar["x"] + bar["width"]
    assert re.findall(r"<text[^>]*>([^<]*)", text) == ["24 November 05:02:00 UTC"]
    assert "buckets" not in text

"""Small charts as coordinates, for the SVG of templates: bars over time, lines, and intervals."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec

WIDTH, HEIGHT = 1360, 80
"""Size of a timeline, in its own units."""

_GAP = 0.1
_LABELS = 7


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """A bar of a timeline."""

    x: float
    width: float
    y: float
    height: float
    failed_y: float
    failed_height: float
    """Height of the part that failed, at the foot of the bar."""
    count: int
    failed: int
    start: str
    end: str
    """The time that it covers, RFC 3339, UTC; `end` is after it."""
    is_chosen: bool = True


class Tick(msgspec.Struct, frozen=True):
    """A time below a timeline."""

    x: float
    anchor: str
    time: str


class Timeline(msgspec.Struct, frozen=True):
    """Bars over time."""

    bars: list[Bar]
    ticks: list[Tick]
    form: str
    """Filter that formats its times, as it spans days, hours or seconds."""


def timeline(slices: Sequence[tuple[str, str, int, int]]) -> Timeline:
    """Return the bars of slices of the time: start, end, count, and how many of these failed."""
    top = max((count for _, _, count, _ in slices), default=0)
    step = WIDTH / max(len(slices), 1)
    bars = []
    for number, (start, end, count, failed) in enumerate(slices):
        height = _height(count, top)
        failed_height = min(_height(failed, top), height)
        bars.append(
            Bar(
                x=round(number * step, 2),
                width=round(step * (1 - _GAP), 2),
                y=round(HEIGHT - height, 2),
                height=round(height, 2),
                failed_y=round(HEIGHT - failed_height, 2),
                failed_height=round(failed_height, 2),
                count=count,
                failed=failed,
                start=start,
                end=end,
            )
        )
    if not slices:
        return Timeline([], [], "clock")
    first, last = datetime.fromisoformat(slices[0][0]), datetime.fromisoformat(slices[-1][1])
    span = last - first
    form = "day_clock" if span > timedelta(days=2) else "clock"
    return Timeline(
        bars, _ticks(first, last), "clock_seconds" if span < timedelta(minutes=10) else form
    )


def _height(count: int, top: int) -> float:
    """Return the height of a bar; one of anything at all can be seen."""
    return max(count / top * (HEIGHT - 4), 1.5) if count else 0.0


def _ticks(first: datetime, last: datetime) -> list[Tick]:
    ticks = []
    for number in range(_LABELS):
        share = number / (_LABELS - 1)
        anchor = "start" if number == 0 else "end" if number == _LABELS - 1 else "middle"
        at = (first + (last - first) * share).astimezone(UTC)
        ticks.append(Tick(round(share * WIDTH), anchor, at.strftime("%Y-%m-%dT%H:%M:%SZ")))
    return ticks


def line(values: Sequence[float], width: float, height: float) -> str:
    """Return the points of a polyline; empty for fewer than two values."""
    if len(values) < 2 or not any(values):
        return ""
    top, step = max(values), width / (len(values) - 1)
    return " ".join(
        f"{number * step:.1f},{height - 2 - value / top * (height - 4):.1f}"
        for number, value in enumerate(values)
    )


class IntervalMarks(msgspec.Struct, frozen=True):
    """A value between 0 and 1 with its interval, on an axis."""

    dot: float
    low: float | None
    high: float | None


def interval(
    value: float, bounds: tuple[float | None, float | None] | None, width: float
) -> IntervalMarks:
    """Return where a value and its interval are on an axis from 0 to 1 of this width."""

    def place(number: float | None) -> float | None:
        return None if number is None else round(4 + min(max(number, 0), 1) * (width - 8), 1)

    low, high = bounds or (None, None)
    return IntervalMarks(place(value) or 4, place(low), place(high))


def difference_interval(
    value: float, bounds: tuple[float | None, float | None] | None, reach: float, width: float
) -> IntervalMarks:
    """Return where a difference and its interval are on an axis from `-reach` to `reach` of this width."""

    def share(number: float | None) -> float | None:
        return None if number is None else (number / reach + 1) / 2

    low, high = bounds or (None, None)
    return interval(share(value) or 0.0, (share(low), share(high)), width)

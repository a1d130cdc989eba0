"""Small charts as coordinates, for the SVG of templates: bars over time, and lines."""

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

WIDTH, HEIGHT = 1360, 80
"""Size of the bars of a timeline, in their own units: a page stretches them to its width."""

_GAP = 0.1
_LABELS = 7
_EDGE = 60
"""How near to an end a label stands to its inner side."""

_ROOM_OF_ONE = 16
"""How many bars there is room for beside a single one, which is no block over the whole width."""

_DAY_S = 86_400
_STEPS_S = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200),
    *(n * _DAY_S for n in (1, 2, 7, 14, 28, 56, 91, 182, 365)),
)
"""Round lengths of time between two labels; axis.js has the same."""


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

    percent: float
    """Its place, in percent of the width."""
    anchor: str
    words: str
    """The time in UTC; the first one and those of a new day have their date."""


class Timeline(msgspec.Struct, frozen=True):
    """Bars over time."""

    bars: list[Bar]
    ticks: list[Tick]
    start: str = ""
    end: str = ""
    """The time that it covers, RFC 3339, UTC."""
    bar_length: str = ""
    """How long a bar is; empty where there are not several."""


def timeline(slices: Sequence[tuple[str, str, int, int]]) -> Timeline:
    """Return the bars of slices of the time: start, end, count, and how many of these failed."""
    top = max((count for _, _, count, _ in slices), default=0)
    step = WIDTH / (_ROOM_OF_ONE if len(slices) == 1 else max(len(slices), 1))
    left = (WIDTH - step) / 2 if len(slices) == 1 else 0.0
    bars = []
    for number, (start, end, count, failed) in enumerate(slices):
        height = _height(count, top)
        failed_height = min(_height(failed, top), height)
        bars.append(
            Bar(
                x=round(left + number * step, 2),
                width=round(step * (1 - _GAP), 2),
                y=round(HEIGHT - height, 2),
                height=round(height, 2),
                failed_y=round(HEIGHT - failed_height, 2),
                failed_height=round(failed_height, 2),
                count=count,
                failed=failed,
                start=start.replace(".000Z", "Z"),
                end=end.replace(".000Z", "Z"),
            )
        )
    if not slices:
        return Timeline([], [])
    first, last = (
        datetime.fromisoformat(text).astimezone(UTC) for text in (slices[0][0], slices[-1][1])
    )
    ticks = [_single_tick(first)] if len(slices) == 1 else _ticks(first, last)
    length = "" if len(slices) == 1 else _bar_length(first, last, len(slices))
    return Timeline(bars, ticks, slices[0][0], slices[-1][1], length)


def _height(count: int, top: int) -> float:
    """Return the height of a bar; one of anything at all can be seen."""
    return max(count / top * (HEIGHT - 4), 1.5) if count else 0.0


def _single_tick(at: datetime) -> Tick:
    return Tick(50, "middle", f"{at.day} {at:%b %H:%M:%S}")


def _ticks(first: datetime, last: datetime) -> list[Tick]:
    """Return labels at round times; where none is between, one at the first."""
    span_s = (last - first).total_seconds()
    step = next(
        (step for step in _STEPS_S if span_s / step <= _LABELS),
        -(-int(span_s) // (_LABELS * _DAY_S)) * _DAY_S,
    )
    start = -(-first.timestamp() // step) * step
    times = [
        datetime.fromtimestamp(start + number * step, UTC)
        for number in range(_LABELS)
        if start + number * step <= last.timestamp()
    ]
    ticks, day = [], ""
    for at in times or [first]:
        x = (at - first).total_seconds() / span_s * WIDTH
        anchor = "start" if x < _EDGE else "end" if x > WIDTH - _EDGE else "middle"
        date = f"{at.day} {at:%b}" + (f" {at.year}" if step > 27 * _DAY_S else "")
        clock = f"{at:%H:%M:%S}" if step < 60 else f"{at:%H:%M}"
        words = date if step >= _DAY_S else clock if date == day else f"{date} {clock}"
        ticks.append(Tick(round(100 * x / WIDTH, 2), anchor, words))
        day = date
    return ticks


def _bar_length(first: datetime, last: datetime, count: int) -> str:
    """Return how long a bar is, with its unit: `15-minute`, `about 46-minute`."""
    seconds = (last - first).total_seconds() / count
    for size, unit in ((_DAY_S, "day"), (3600, "hour"), (60, "minute"), (1, "second"), (0.001, "millisecond")):  # fmt: skip
        if seconds >= size * 0.999:
            n = seconds / size
            is_whole = abs(n - round(n)) < 0.001
            number = f"{round(n)}" if is_whole else f"{float(f'{n:.2g}'):g}"
            return f"{'' if is_whole else 'about '}{number}-{unit}"
    return ""


def line(values: Sequence[float], width: float, height: float) -> str:
    """Return the points of a polyline; empty for fewer than two values."""
    if len(values) < 2 or not any(values):
        return ""
    top, step = max(values), width / (len(values) - 1)
    return " ".join(
        f"{number * step:.1f},{height - 2 - value / top * (height - 4):.1f}"
        for number, value in enumerate(values)
    )

"""Small charts for the SVG of templates: bars over time, and lines."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

_UNITS_S = {"day": 86_400, "hour": 3600, "minute": 60, "second": 1, "millisecond": 0.001}


class Bar(msgspec.Struct, frozen=True):
    """A bar of a timeline."""

    start: str
    end: str
    """The time that it covers, RFC 3339, UTC; `end` is after it."""
    count: int
    failed: int = 0
    """Number of those that failed."""


def bar_length(bars: Sequence[Bar]) -> str:
    """Return how long a bar is, with its unit: `15-minute`, `about 46-minute`; empty where there are not several."""
    if len(bars) < 2:
        return ""
    first, last = (datetime.fromisoformat(text) for text in (bars[0].start, bars[-1].end))
    seconds = (last - first).total_seconds() / len(bars)
    for unit, size in _UNITS_S.items():
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

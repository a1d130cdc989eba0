"""Numbers, times and durations as people read them."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial

from quadriga.proto.access import ANYBODY
from quadriga.quoting import one_line

_TASKS: Mapping[str, str] = {
    "OBJECT_DETECTION": "detection",
    "ORIENTED_OBJECT_DETECTION": "oriented detection",
    "IMAGE_CLASSIFICATION": "classification",
    "IMAGE_SEGMENTATION": "segmentation",
    "IMAGE_TEXT_TO_TEXT": "image-text",
    "TENSOR": "tensors",
}
_DAY_S = 86_400


def number(value: float) -> str:
    """Format a number with commas; one of less than ten with its digits, as `0.25`."""
    if abs(value) >= 10 or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.3g}"


def large(value: int, *, is_exact: bool = True) -> str:
    """Format a count: `12,921`, and `about 1.2 million` for an estimate."""
    if is_exact:
        return f"{value:,}"
    if value >= 1_000_000:
        return f"about {value / 1_000_000:.2g} million"
    digits = max(len(str(value)) - 2, 0)
    return f"about {round(value, -digits):,}"


def short(value: int) -> str:
    """Format a count in little space: `1.28 M`, `12.9 k`, `950`."""
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (10_000, "k")):
        if value >= size:
            scaled = value / (1000 if unit == "k" else size)
            return f"{scaled:.3g} {unit}"
    return f"{value:,}"


def percent(value: float) -> str:
    """Format a share in percent: `0 %`, `less than 0.01 %`, `0.25 %`, `12.5 %`."""
    if 0 < value < 0.01:
        return "less than 0.01 %"
    return f"{value:.2f}".rstrip("0").rstrip(".") + " %"


def size(value: int) -> str:
    """Format a number of bytes: `950 bytes`, `12.9 kB`, `1.28 MB`."""
    for unit_bytes, unit in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if value >= unit_bytes * 0.9995:  # what three digits round up to it: 999,500 bytes are 1 MB
            return f"{value / unit_bytes:.3g} {unit}"
    return f"{value} byte{'' if value == 1 else 's'}"


def milliseconds(value: float | None) -> str:
    """Format a duration: `12.4 ms`, `1.3 s`."""
    if value is None:
        return "\N{EN DASH}"
    if value >= 1000:
        return f"{value / 1000:.3g} s"
    return f"{value:.3g} ms"


_FORMS = {
    "moment": "{0.day} {0:%B %H:%M:%S}",
    "minute": "{0.day} {0:%B %H:%M}",
    "day": "{0.day} {0:%B} {0.year}",
    "day_month": "{0.day} {0:%b}",
    "day_clock": "{0.day} {0:%b %H:%M}",
    "clock": "{0:%H:%M}",
    "clock_seconds": "{0:%H:%M:%S}",
}
"""Forms of times, for tables and in little space: `25 November 14:03:59`, `2 October 2026`, `2 Oct 14:03`."""


def time_text(value: str, form: str) -> str:
    """Format a time in RFC 3339, in UTC, by the name of its form."""
    return _FORMS[form].format(datetime.fromisoformat(value))


def time_range(start: str, end: str) -> str:
    """Format two times in RFC 3339 without their year, in UTC: `2 Oct 14:03`, a dash, `15:03 UTC`, and the other day if it is one."""
    first, last = (datetime.fromisoformat(value) for value in (start, end))
    text = f"{time_text(end, 'day_clock')} UTC"
    if first == last:
        return text
    if first.date() == last.date():
        text = f"{time_text(end, 'clock')} UTC"
    return f"{time_text(start, 'day_clock')} \N{EN DASH} {text}"


def seconds_between(start: str, end: str) -> float:
    """Return the seconds between two times in RFC 3339."""
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()


def person(name: str) -> str:
    """Return the name of who did something; `somebody` without one, as on a server that needs no keys."""
    return "somebody" if name in ("", ANYBODY.name) else name


def ago(value: str) -> str:
    """Format how long ago a time in RFC 3339 was: `5 s ago`, `3 days ago`."""
    seconds = max(int((datetime.now(UTC) - datetime.fromisoformat(value)).total_seconds()), 0)
    for size, unit in ((_DAY_S, "day"), (3600, "hour"), (60, "min"), (1, "s")):
        if seconds >= 2 * size or size == 1:
            n = seconds // size
            plural = "s" if unit in ("day", "hour") and n != 1 else ""
            return f"{n} {unit}{plural} ago"
    return ""


def task_words(task: str | None) -> str:
    """Return the plain name of a task, as commands have it: `oriented detection`."""
    if not task:
        return ""
    return _TASKS.get(task, task.replace("_", " ").lower())


_FUNCTIONS = (number, large, short, percent, size, milliseconds, person, task_words, one_line, ago)  # fmt: skip
FILTERS: Mapping[str, Callable[..., str]] = {
    **{function.__name__: function for function in _FUNCTIONS},
    **{form: partial(time_text, form=form) for form in _FORMS},
}
"""The filters of the templates by name."""

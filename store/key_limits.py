"""The limits of a key, and the texts that state them, such as `requests=100/second`."""

import re
from collections.abc import Iterable, Mapping
from typing import Literal, get_args

import msgspec

from quadriga.quoting import quoted

LimitName = Literal["requests", "concurrency", "bytes", "jobs", "export-bytes", "stored-bytes"]
"""What is limited: `concurrency` and `jobs` at a time, the others in a period."""

PERIODS_S: Mapping[str, int] = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}
"""Seconds of each period that a rate may have."""

AT_ONCE = ("concurrency", "jobs")
"""Limits that have no period."""

NO_LIMITS = "none"
"""Text of a key that has no limits, whatever the default is."""

MAX_AMOUNT = 10**15 - 1
"""Greatest amount of a limit: headers have integers of 15 digits."""

_UNITS: Mapping[str, int] = {
    "": 1, "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
_AMOUNT = re.compile(r"([1-9][0-9]{0,14})([A-Za-z]*)", re.ASCII)


class Limit(msgspec.Struct, frozen=True):
    """One limit of a key."""

    amount: int
    """Requests, bytes, or jobs."""
    period: str = ""
    """`second` and so on; empty for a limit of what is there at once."""

    @property
    def period_s(self) -> int:
        """Seconds of the period; 0 without one."""
        return PERIODS_S.get(self.period, 0)


KeyLimits = Mapping[LimitName, Limit]
"""Limits by what they limit; empty for none."""


def parse_limits(texts: Iterable[str]) -> dict[LimitName, Limit]:
    """Parse limits, each as `NAME=AMOUNT` or `NAME=AMOUNT/PERIOD`; sort them as `LimitName` does.

    Raises:
        ValueError: A text is no limit, or two limit the same.
    """
    limits: dict[LimitName, Limit] = {}
    for text in texts:
        name, limit = _parse_limit(text.strip())
        if name in limits:
            raise ValueError(f"expected one limit of {name}, got two")
        limits[name] = limit
    return {name: limits[name] for name in get_args(LimitName) if name in limits}


def split_limits(text: str) -> list[str]:
    """Return the parts of limits that are separated by commas."""
    return [part for part in text.split(",") if part.strip()]


def limits_text(limits: KeyLimits) -> str:
    """Return limits as one text, separated by commas, in the shortest form that says the same."""
    return ",".join(f"{name}={_limit_text(name, limit)}" for name, limit in limits.items())


def amount_text(name: str, amount: int) -> str:
    """Return the amount of a limit for people, such as `100 requests` or `10 GB`."""
    if name.endswith("bytes"):
        digits, unit = _in_units(amount)
        return f"{digits} {unit or ('byte' if amount == 1 else 'bytes')}"
    noun = "jobs" if name == "jobs" else "requests"
    return f"{amount} {noun if amount != 1 else noun[:-1]}"


def _parse_limit(text: str) -> tuple[LimitName, Limit]:
    name, equals, rest = text.partition("=")
    if name not in get_args(LimitName) or not equals:
        names = ", ".join(get_args(LimitName))
        raise ValueError(
            f"expected NAME=AMOUNT/PERIOD with a name of {names}, got {quoted(text, 100)}"
        )
    amount, slash, period = rest.partition("/")
    match = _AMOUNT.fullmatch(amount)
    units = _UNITS if name.endswith("bytes") else {"": 1}
    if match is None or match[2] not in units:
        examples = "a number such as 500000, 10MB or 2GiB" if len(units) > 1 else "a whole number"
        raise ValueError(f"expected {name} to be {examples}, at least 1, got {quoted(amount, 100)}")
    number = int(match[1]) * units[match[2]]
    if number > MAX_AMOUNT:
        raise ValueError(f"expected {name} to be at most {MAX_AMOUNT}, got {amount}")
    if name in AT_ONCE:
        if slash:
            raise ValueError(
                f"expected {name}={amount}, which has no period, got {quoted(text, 100)}"
            )
    elif period not in PERIODS_S:
        periods = ", ".join(f"{name}={amount}/{period}" for period in PERIODS_S)
        raise ValueError(f"expected one of {periods}, got {quoted(text, 100)}")
    return name, Limit(number, period)  # type: ignore[return-value]  # it was checked above


def _limit_text(name: str, limit: Limit) -> str:
    amount = "".join(_in_units(limit.amount)) if name.endswith("bytes") else f"{limit.amount}"
    return f"{amount}/{limit.period}" if limit.period else amount


def _in_units(amount: int) -> tuple[str, str]:
    """Return an amount of bytes in the greatest unit in which it is a whole number."""
    units = sorted(((size, unit) for unit, size in _UNITS.items() if size > 1), reverse=True)
    for size, unit in units:
        if amount % size == 0:
            return f"{amount // size}", "kB" if size == 10**3 else unit
    return f"{amount}", ""

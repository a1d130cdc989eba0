"""The limits of a key, and the texts that state them, such as `requests=100/second`."""

import re
from collections.abc import Iterable, Mapping
from typing import Literal, get_args

import msgspec

from quadriga.quoting import quoted

LimitName = Literal["requests", "concurrency", "jobs"]
"""What is limited: `requests` in a period, the others at a time."""

PERIODS_S: Mapping[str, int] = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}
"""Seconds of each period that a rate may have."""

NO_LIMITS = "none"
"""Text of a key that has no limits, whatever the default is."""

MAX_AMOUNT = 10**15 - 1
"""Greatest amount of a limit: headers have integers of 15 digits."""

_RETIRED = ("bytes", "export-bytes", "stored-bytes")
"""Limits of version 0.2, which a database or a configuration may still have."""

_AMOUNT = re.compile(r"[1-9][0-9]{0,14}", re.ASCII)


class Limit(msgspec.Struct, frozen=True):
    """One limit of a key."""

    amount: int
    """Requests or jobs."""
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


def is_retired(text: str) -> bool:
    """Check whether a limit is one of version 0.2 that no longer exists: of bytes, exports or stored bytes."""
    return text.strip().partition("=")[0] in _RETIRED


def limits_text(limits: KeyLimits) -> str:
    """Return limits as one text, separated by commas."""
    return ",".join(
        f"{name}={limit.amount}" + (f"/{limit.period}" if limit.period else "")
        for name, limit in limits.items()
    )


def amount_text(name: str, amount: int) -> str:
    """Return the amount of a limit for people, such as `100 requests`."""
    noun = "jobs" if name == "jobs" else "requests"
    return f"{amount} {noun if amount != 1 else noun[:-1]}"


def _parse_limit(text: str) -> tuple[LimitName, Limit]:
    name, equals, rest = text.partition("=")
    if name not in get_args(LimitName) or not equals:
        names = ", ".join(get_args(LimitName))
        note = ", a limit that no longer exists" if is_retired(text) else ""
        raise ValueError(
            f"expected NAME=AMOUNT/PERIOD with a name of {names}, got {quoted(text, 100)}{note}"
        )
    amount, slash, period = rest.partition("/")
    if not _AMOUNT.fullmatch(amount):
        raise ValueError(
            f"expected {name} to be a whole number from 1 to {MAX_AMOUNT}, got {quoted(amount, 100)}"
        )
    if name != "requests":
        if slash:
            raise ValueError(
                f"expected {name}={amount}, which has no period, got {quoted(text, 100)}"
            )
    elif period not in PERIODS_S:
        periods = ", ".join(f"{name}={amount}/{period}" for period in PERIODS_S)
        raise ValueError(f"expected one of {periods}, got {quoted(text, 100)}")
    return name, Limit(int(amount), period)  # type: ignore[return-value]  # it was checked above

"""Spans of time such as `15m`, and moments, as clients write them."""

import re

from quadriga.store.query.filters.comparisons import (
    EXPECTED_MOMENT,
    UNITS_S,
    parse_moment_us,
    unexpected_value,
)
from quadriga.store.records.errors import QueryError

DAY_S = UNITS_S["d"]
_SPAN_PATTERN = re.compile(r"(\d{1,6})([smhdw])", re.ASCII)


def moment_us(text: str | None, now_us: int, name: str) -> int | None:
    """Return a moment in microseconds since 1970; None of None.

    Raises:
        QueryError: The text is not a moment; the message has its name.
    """
    try:
        return None if text is None else parse_moment_us(text, now_us)
    except ValueError as error:
        raise unexpected_value(name, EXPECTED_MOMENT, text) from error


def parse_span_s(text: str, name: str = "") -> int:
    """Return the seconds of a span such as `15m`.

    Raises:
        QueryError: The text is not a span.
    """
    match = _SPAN_PATTERN.fullmatch(text)
    if match is None:
        raise QueryError(
            f"expected {name} to be a number and one of s, m, h, d, w, got {text[:80]!r}"
        )
    return int(match[1]) * UNITS_S[match[2]]

"""Parser of moments in filters: RFC 3339, `now`, or relative to now as `-15m`."""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_RELATIVE = re.compile(r"-(\d{1,9})([smhdw])", re.ASCII)
EXPECTED_MOMENT = "a moment such as 2026-01-31T12:00:00Z, -24h or now"
"""Description of a moment, for error messages."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_moment_us(text: str, now_us: int) -> int:
    """Return a moment in microseconds since 1970.

    Args:
        text: `2026-01-31T12:00:00Z` with any offset, `now`, or `-` number and one of s, m, h, d, w.
        now_us: Time that `now` stands for.

    Raises:
        ValueError: The text is not a moment.
    """
    if text == "now":
        return now_us
    relative = _RELATIVE.fullmatch(text)
    if relative:
        # Ids begin after 1970, and a much earlier time could not be converted to a date.
        return max(now_us - int(relative[1]) * UNITS_S[relative[2]] * 1_000_000, 0)
    try:
        moment: datetime = msgspec.convert(text, Annotated[datetime, msgspec.Meta(tz=True)])
    except msgspec.ValidationError as error:
        raise ValueError(f"expected a moment of RFC 3339 with an offset, got {text!r}") from error
    return (moment - _EPOCH) // timedelta(microseconds=1)

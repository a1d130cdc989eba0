"""Which months of the past inferences can be stored in: PostgreSQL may have no partition of one, and the server may not make it."""

import time
from contextlib import suppress
from datetime import UTC, datetime

from quadriga.store.errors import NotReadyError, QueryTimeoutError
from quadriga.store.inferences import InferenceReader
from quadriga.store.partitions import has_partitions

_KNOWN_S = 60.0
"""Seconds for which it is known that a month has its partitions, which their owner may drop."""


class PastMonths:
    """Says whether inferences of a time have a place; safe to use from several threads.

    An inference without one keeps all others waiting in the journal. The present month is not looked at: without its
    partitions nothing can be stored anyway.

    Args:
        inferences: The store.
    """

    def __init__(self, inferences: InferenceReader) -> None:
        self._inferences = inferences
        self._known_until_s: dict[tuple[int, int], float] = {}

    def has_place(self, time_ms: int) -> bool:
        """Check whether inferences of a time, in milliseconds since 1970, can be stored; so it is taken if the database is away."""
        moment, now = datetime.fromtimestamp(time_ms / 1000, UTC), datetime.now(UTC)
        month = (moment.year, moment.month)
        if month >= (now.year, now.month):
            return True
        if time.monotonic() < self._known_until_s.get(month, 0.0):
            return True
        with suppress(NotReadyError, QueryTimeoutError), self._inferences.snapshot() as connection:
            if not has_partitions(connection, month):
                return False
            self._known_until_s[month] = time.monotonic() + _KNOWN_S
        return True

"""Ids of stored inferences: 63-bit integers ordered by time.

`milliseconds since 2025 << 22 | worker << 12 | counter`: primary key, cursor, stream offset and time
index at once. The 63 bits suffice until 2094.
"""

import threading

from quadriga.store.records.clock import MAX_LEAD_MS, Clock
from quadriga.store.records.errors import JournalError

WORKER_BITS = 10
COUNTER_BITS = 12
TIME_SHIFT = WORKER_BITS + COUNTER_BITS
_COUNTER = (1 << COUNTER_BITS) - 1
_LAST_FIRST_COUNT = _COUNTER - 255
WORKERS = 1 << WORKER_BITS
IMPORT_WORKER = WORKERS - 1
"""Number of imports, and of records that get another id; no worker of a server has it."""

LARGEST_ID = (1 << 63) - 1
EPOCH_MS = 1_735_689_600_000  # 2025-01-01T00:00:00Z, in milliseconds since 1970


class IdSource:
    """Generates ids that strictly increase within one process, unless the clock steps back by more than a minute.

    Processes that write at the same time need different worker numbers, 0 to 1023; without one, none is generated.
    An id is never more than `MAX_LEAD_MS` ahead of the clock. When ids have to step back, their counters begin higher
    in each millisecond, so that they repeat none of those that were given out before.

    Args:
        worker: The worker's number; None if it is assigned later.
        floor: Newest stored id, which all ids are above unless it is too far ahead of the clock.
        clock: The time that ids are made of; by default that of this machine.
    """

    def __init__(
        self, worker: int | None = None, floor: int = 0, clock: Clock | None = None
    ) -> None:
        self._clock = clock or Clock()
        self._is_assigned = False
        self._worker = 0
        self._last = 0
        self._first_count = 0
        self._lock = threading.Lock()
        if worker is not None:
            self.assign(worker, floor)

    def assign(self, worker: int, floor: int = 0, *, is_behind: bool = False) -> None:
        """Assign the worker's number, where it was not known at first; `is_behind` where newer ids are stored."""
        if not 0 <= worker < WORKERS:
            raise ValueError(f"expected worker to be 0 to {WORKERS - 1}, got {worker}")
        with self._lock:
            self._worker = worker << COUNTER_BITS
            self._first_count = _COUNTER // 2 + 1 if is_behind else 0
            self._last = 0
            self._pass(floor, self._clock.now_ms())
            self._is_assigned = True

    def next(self, floor: int = 0) -> int:
        """Return the next id; beyond 4,096 in one millisecond, ids of the next one are used.

        It is above a floor, such as the id of the change that it follows: the clock of another server may be ahead.

        Raises:
            JournalError: The worker has no number yet.
        """
        if not self._is_assigned:
            raise JournalError(
                "cannot give an id: the database has not answered since this server began"
            )
        with self._lock:
            now_ms = self._clock.now_ms()
            self._pass(floor, now_ms)
            if time_ms(self._last) > now_ms + MAX_LEAD_MS:
                self._first_count = min(self._first_count + _COUNTER + 1 >> 1, _LAST_FIRST_COUNT)
                self._last = 0
            if (first_id := self._first_id(now_ms - EPOCH_MS)) > self._last:
                self._last = first_id
            else:
                self._last += 1
                if not self._last & _COUNTER:  # the counter overflowed into the bits of the worker
                    self._last = self._first_id(time_ms(self._last - 1) - EPOCH_MS + 1)
            return self._last

    def clock_counters(self) -> dict[str, float]:
        """Return how often the clock jumped, and how many seconds it is ahead of the ids, for metrics."""
        with self._lock:
            self._clock.now_ms()
            return {
                "clock_jumps_total": self._clock.jumps,
                "clock_ahead_seconds": self._clock.ahead_ms / 1000,
            }

    def _first_id(self, milliseconds: int) -> int:
        return milliseconds << TIME_SHIFT | self._worker | self._first_count

    def _pass(self, floor: int, now_ms: int) -> None:
        """Go on above a floor, unless the clock that made it was wrong."""
        if floor > self._last and time_ms(floor) <= now_ms + MAX_LEAD_MS:
            self._last = floor >> TIME_SHIFT << TIME_SHIFT | self._worker | _COUNTER


def time_ms(seq: int) -> int:
    """Return the time of an id, in milliseconds since 1970."""
    return (seq >> TIME_SHIFT) + EPOCH_MS


def worker_of(seq: int) -> int:
    """Return the number of the worker that gave out an id."""
    return seq >> COUNTER_BITS & (WORKERS - 1)


def replacement_id(seq: int, key: int) -> int:
    """Return an id of the same millisecond that no server gives out, chosen by a key."""
    return seq >> TIME_SHIFT << TIME_SHIFT | IMPORT_WORKER << COUNTER_BITS | key & _COUNTER


def smallest_id_at(milliseconds_since_1970: int) -> int:
    """Return the smallest id of a time in milliseconds since 1970, clamped to 63 bits."""
    return min(max(milliseconds_since_1970 - EPOCH_MS, 0) << TIME_SHIFT, LARGEST_ID)

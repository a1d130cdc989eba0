"""Ids of stored inferences: 63-bit integers ordered by time.

`milliseconds since 2025 << 22 | worker << 12 | counter`: primary key, cursor, stream offset and time
index in one. They last until 2094.
"""

import threading
import time

WORKER_BITS = 10
COUNTER_BITS = 12
TIME_SHIFT = WORKER_BITS + COUNTER_BITS
WORKERS = 1 << WORKER_BITS
LARGEST = (1 << 63) - 1
EPOCH_MS = 1_735_689_600_000
"""2025-01-01T00:00:00Z, in milliseconds since 1970."""


class IdSource:
    """Gives ids that rise strictly within one process, also when the clock steps back.

    Args:
        worker: Number of the process, 0 to 1023; processes that write at once have different ones.
        floor: An id below which none is given, such as the newest one stored.
    """

    def __init__(self, worker: int, floor: int = 0) -> None:
        if not 0 <= worker < WORKERS:
            raise ValueError(f"expected worker to be 0 to {WORKERS - 1}, got {worker}")
        self._worker = worker << COUNTER_BITS
        self._last_ms = (floor >> TIME_SHIFT) + 1 if floor else 0
        self._counter = -1
        self._lock = threading.Lock()

    def next(self) -> int:
        """Give the next id; more than 4,096 in one millisecond borrow from the next one."""
        now = time.time_ns() // 1_000_000 - EPOCH_MS
        with self._lock:
            if now > self._last_ms:
                self._last_ms, self._counter = now, 0
            else:
                self._counter += 1
                if self._counter >> COUNTER_BITS:
                    self._last_ms, self._counter = self._last_ms + 1, 0
            return self._last_ms << TIME_SHIFT | self._worker | self._counter


def milliseconds(seq: int) -> int:
    """Return the time of an id, in milliseconds since 1970."""
    return (seq >> TIME_SHIFT) + EPOCH_MS


def first_at(milliseconds_since_1970: int) -> int:
    """Return the smallest id that a moment can have; clamped to what 63 bits hold."""
    return min(max(milliseconds_since_1970 - EPOCH_MS, 0) << TIME_SHIFT, LARGEST)

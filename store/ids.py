"""Ids of stored inferences: 63-bit integers ordered by time.

`milliseconds since 2025 << 22 | worker << 12 | counter`: primary key, cursor, stream offset and time
index at once. The 63 bits suffice until 2094.
"""

import threading
import time

WORKER_BITS = 10
COUNTER_BITS = 12
TIME_SHIFT = WORKER_BITS + COUNTER_BITS
_COUNTER = (1 << COUNTER_BITS) - 1
WORKERS = 1 << WORKER_BITS
LARGEST_ID = (1 << 63) - 1
EPOCH_MS = 1_735_689_600_000  # 2025-01-01T00:00:00Z, in milliseconds since 1970


class IdSource:
    """Generates ids that strictly increase within one process, even when the clock steps back.

    Processes that write at the same time need different worker numbers, 0 to 1023. All ids are above
    `floor`, such as the newest stored id.
    """

    def __init__(self, worker: int, floor: int = 0) -> None:
        if not 0 <= worker < WORKERS:
            raise ValueError(f"expected worker to be 0 to {WORKERS - 1}, got {worker}")
        self._worker = worker << COUNTER_BITS
        self._last = floor >> TIME_SHIFT << TIME_SHIFT | self._worker | _COUNTER
        self._lock = threading.Lock()

    def next(self) -> int:
        """Return the next id; beyond 4,096 in one millisecond, ids of the next one are used."""
        clock_id = (time.time_ns() // 1_000_000 - EPOCH_MS) << TIME_SHIFT | self._worker
        with self._lock:
            if clock_id > self._last:
                self._last = clock_id
            else:
                self._last += 1
                if not self._last & _COUNTER:  # the counter overflowed into the bits of the worker
                    self._last += (1 << TIME_SHIFT) - (1 << COUNTER_BITS)
            return self._last


def time_ms(seq: int) -> int:
    """Return the time of an id, in milliseconds since 1970."""
    return (seq >> TIME_SHIFT) + EPOCH_MS


def smallest_id_at(milliseconds_since_1970: int) -> int:
    """Return the smallest id of a time in milliseconds since 1970, clamped to 63 bits."""
    return min(max(milliseconds_since_1970 - EPOCH_MS, 0) << TIME_SHIFT, LARGEST_ID)

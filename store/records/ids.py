"""Ids of stored inferences: 63-bit integers ordered by time, with the clock and the numbers that they are made of.

`milliseconds since 2025 << 22 | worker << 12 | counter`: primary key, cursor, stream offset and time
index at once. The 63 bits suffice until 2094.
"""

import logging
import threading
import time
from contextlib import suppress
from pathlib import Path

import msgspec

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

MAX_LEAD_MS = 60_000
"""How far two clocks may differ, and how far an id may be ahead of the clock."""

CONFIRM_MS = 60_000
"""How long a clock that jumped ahead has to stay there until it is followed, where no other contradicts it."""

LEASE_FILE = "worker-numbers.json"
_READ_INTERVAL_MS = 5_000
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_log = logging.getLogger(__name__)


class RememberedLease(msgspec.Struct, frozen=True):
    """The lease of a data folder as its file remembers it: see `quadriga.store.database.lease`."""

    owner: str
    """Id of the journal."""
    database: str
    """Hash of the database's location."""
    run: str
    """Id of the run of the server in which the numbers were last confirmed."""
    numbers: list[int]
    """Numbers of the workers, in their order."""
    boot_id: str = ""
    """Start of the machine that `offset_ms` is counted from."""
    offset_ms: int | None = None
    """The database's clock at that start, in milliseconds since 1970; None for a database without a clock of its own."""


def read_lease(data_directory: Path) -> RememberedLease | None:
    """Return the lease that a data folder remembers; None if there is none."""
    with suppress(OSError, msgspec.MsgspecError):
        data = (data_directory / LEASE_FILE).read_bytes()
        return msgspec.json.decode(data, type=RememberedLease)
    return None


def steady_ms() -> int:
    """Return milliseconds since the start of the machine, which go on while it sleeps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def boot_id() -> str:
    """Return the random id that the system gets at each start; empty where it has none."""
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""


class Clock:
    """Milliseconds since 1970: this machine's clock, unless it jumps or the database's contradicts it; for one thread at a time.

    A jump is told from the time since the machine's start, which no setting of the clock changes.

    Args:
        data_directory: Folder whose lease has the database's clock; None for this machine's clock alone.
        confirm_ms: See `CONFIRM_MS`.
    """

    def __init__(self, data_directory: Path | None = None, confirm_ms: int = CONFIRM_MS) -> None:
        self._data_directory = data_directory
        self._confirm_ms = confirm_ms
        self._read_at_ms = 0
        # Times at the machine's start, by different clocks, in milliseconds since 1970.
        self._database_ms: int | None = None
        self._followed_ms: int | None = None
        self._jumped_to_ms = 0
        self._jumped_at_ms: int | None = None
        self.jumps = 0
        """How often this machine's clock left the time that is followed."""
        self.ahead_ms = 0
        """How far this machine's clock is ahead of the time that is followed; 0 while it is followed itself."""

    def now_ms(self) -> int:
        """Return the time: at most `MAX_LEAD_MS` from the database's, if that was measured since the machine's start."""
        now_ms, steady = time.time_ns() // 1_000_000, steady_ms()
        if self._data_directory is not None and steady >= self._read_at_ms:
            lease = read_lease(self._data_directory)
            is_known = lease is not None and lease.boot_id == boot_id()
            self._database_ms = lease.offset_ms if lease is not None and is_known else None
            self._read_at_ms = steady + _READ_INTERVAL_MS
        own_ms = now_ms - steady
        followed_ms = own_ms if self._followed_ms is None else self._followed_ms
        if self._database_ms is not None:
            followed_ms = self._database_ms
        lead_ms = own_ms - followed_ms
        if abs(lead_ms) > MAX_LEAD_MS and not self._is_followed(own_ms, lead_ms, steady):
            self._followed_ms, self.ahead_ms = followed_ms, lead_ms
            return steady + followed_ms
        if self._jumped_at_ms is not None:
            _log.warning("this machine's clock is followed again")
        self._followed_ms, self._jumped_at_ms, self.ahead_ms = own_ms, None, 0
        return now_ms

    def _is_followed(self, own_ms: int, lead_ms: int, steady: int) -> bool:
        """Check whether a clock that left the time that is followed is followed nevertheless."""
        if self._jumped_at_ms is None or abs(own_ms - self._jumped_to_ms) > MAX_LEAD_MS:
            self.jumps += 1
            self._jumped_at_ms, self._jumped_to_ms = steady, own_ms
            _log.error(
                "this machine's clock is %+d s from %s, and ids do not follow it",
                lead_ms // 1000,
                "what it was a moment ago" if self._database_ms is None else "the database's",
            )
        # Back it is followed at once: nothing may be dated in the future for longer than needed.
        is_right = lead_ms < 0 or steady - self._jumped_at_ms >= self._confirm_ms
        return is_right and self._database_ms is None


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
        self._worker: int | None = None
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
            self._pass(self._worker, floor, self._clock.now_ms())

    def next(self, floor: int = 0) -> int:
        """Return the next id; beyond 4,096 in one millisecond, ids of the next one are used.

        It is above a floor, such as the id of the change that it follows: the clock of another server may be ahead.

        Raises:
            JournalError: The worker has no number yet.
        """
        if (worker := self._worker) is None:
            raise JournalError(
                "cannot give an id: the database has not answered since this server began"
            )
        with self._lock:
            now_ms = self._clock.now_ms()
            self._pass(worker, floor, now_ms)
            if time_ms(self._last) > now_ms + MAX_LEAD_MS:
                self._first_count = min(self._first_count + _COUNTER + 1 >> 1, _LAST_FIRST_COUNT)
                self._last = 0
            is_used_up = self._last & _COUNTER == _COUNTER
            milliseconds = max(now_ms, time_ms(self._last) + is_used_up) - EPOCH_MS
            first_id = milliseconds << TIME_SHIFT | worker | self._first_count
            self._last = max(self._last + 1, first_id)
            return self._last

    def clock_counters(self) -> dict[str, float]:
        """Return how often the clock jumped, and how many seconds it is ahead of the ids, for metrics."""
        with self._lock:
            self._clock.now_ms()
            return {
                "clock_jumps_total": self._clock.jumps,
                "clock_ahead_seconds": self._clock.ahead_ms / 1000,
            }

    def _pass(self, worker: int, floor: int, now_ms: int) -> None:
        """Go on above a floor, unless the clock that made it was wrong."""
        if floor > self._last and time_ms(floor) <= now_ms + MAX_LEAD_MS:
            self._last = floor >> TIME_SHIFT << TIME_SHIFT | worker | _COUNTER


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

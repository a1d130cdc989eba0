"""The clock that ids are made of: that of this machine, unless it jumps or the database's clock contradicts it.

A jump is told from the time since the machine's start, which no setting of the clock changes. The writer compares with the
clock of a PostgreSQL and leaves the result in the data folder; SQLite has no clock of its own.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

MAX_LEAD_MS = 60_000
"""How far two clocks may differ, and how far an id may be ahead of the clock."""

CONFIRM_MS = 60_000
"""How long a clock that jumped ahead has to stay there until it is followed, where no other contradicts it."""

_REFERENCE_LASTS_MS = 600_000  # the writer measures again long before
_READ_INTERVAL_MS = 5_000
_FILE = "clock.json"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_log = logging.getLogger(__name__)


class ClockReference(msgspec.Struct, frozen=True):
    """The database's clock, as measured by the writer."""

    boot_id: str
    """The start of the machine that times are counted from."""
    offset_ms: int
    """The database's clock at that start, in milliseconds since 1970."""
    measured_ms: int
    """When that was, since the start."""


def steady_ms() -> int:
    """Return milliseconds since the start of the machine, which go on while it sleeps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def boot_id() -> str:
    """Return the random id that the system gets at each start; empty where it has none."""
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""


def reference_path(data_directory: Path) -> Path:
    """Return the path of the file with the `ClockReference`."""
    return data_directory / _FILE


def read_reference(data_directory: Path) -> ClockReference | None:
    """Return what the writer measured on this machine a while ago; None if it did not."""
    with suppress(OSError, msgspec.MsgspecError):
        data = reference_path(data_directory).read_bytes()
        reference = msgspec.json.decode(data, type=ClockReference)
        is_recent = 0 <= steady_ms() - reference.measured_ms < _REFERENCE_LASTS_MS
        return reference if is_recent and reference.boot_id == boot_id() else None
    return None


class Clock:
    """Milliseconds since 1970, for one thread at a time.

    Args:
        data_directory: Folder with the writer's measurements; None for this machine's clock alone.
        confirm_ms: See `CONFIRM_MS`.
    """

    def __init__(self, data_directory: Path | None = None, confirm_ms: int = CONFIRM_MS) -> None:
        self._read: Callable[[], ClockReference | None] = lambda: None
        if data_directory is not None:
            self._read = partial(read_reference, data_directory)
        self._confirm_ms = confirm_ms
        self._reference: ClockReference | None = None
        self._read_at_ms = 0
        self._offset_ms: int | None = None  # of the time that is followed, against the steady one
        self._jumped_to_ms = 0
        self._jumped_at_ms: int | None = None
        self._is_contradicted = False
        self.jumps = 0
        """How often this machine's clock left the time that is followed."""
        self.ahead_ms = 0
        """How far this machine's clock is ahead of the time that is followed; 0 while it is followed itself."""

    def now_ms(self) -> int:
        """Return the time: at most `MAX_LEAD_MS` from the database's, if that is known."""
        now_ms, steady = time.time_ns() // 1_000_000, steady_ms()
        if steady >= self._read_at_ms:
            self._reference, self._read_at_ms = self._read(), steady + _READ_INTERVAL_MS
        offset_ms = now_ms - steady
        followed_ms = offset_ms if self._offset_ms is None else self._offset_ms
        if self._reference is not None:
            followed_ms = self._reference.offset_ms
        if abs(offset_ms - followed_ms) <= MAX_LEAD_MS or self._is_accepted(
            offset_ms, followed_ms, steady
        ):
            if self._jumped_at_ms is not None:
                _log.warning("this machine's clock is followed again")
            self._offset_ms, self._jumped_at_ms, self.ahead_ms = offset_ms, None, 0
            return now_ms
        self._offset_ms, self.ahead_ms = followed_ms, offset_ms - followed_ms
        return steady + followed_ms

    def _is_accepted(self, offset_ms: int, followed_ms: int, steady: int) -> bool:
        """Check whether a clock that left the time that is followed is right after all."""
        if self._jumped_at_ms is None or abs(offset_ms - self._jumped_to_ms) > MAX_LEAD_MS:
            self.jumps += 1
            self._jumped_at_ms, self._jumped_to_ms = steady, offset_ms
            self._is_contradicted = False
            _log.error(
                "this machine's clock is %+d s from %s, and ids do not follow it",
                (offset_ms - followed_ms) // 1000,
                "the database's" if self._reference else "what it was a moment ago",
            )
        self._is_contradicted = self._is_contradicted or self._reference is not None
        if self._is_contradicted:  # also once the database is away
            return False
        # Back it is followed at once: nothing may be dated in the future for longer than needed.
        return offset_ms < followed_ms or steady - self._jumped_at_ms >= self._confirm_ms

"""Finds processes that hang: those that show no sign of life for too long.

A sign of life is a count in shared memory that a worker's event loop, or a thread of the writer and of the jobs, raises
twice a second. It shows that the process is not stopped and that no native code holds Python's lock. What waits for a
database does not hang: the timeouts of the connection end that.
"""

from contextlib import suppress
from pathlib import Path

HANG_TIMEOUT_S = 60.0
"""Seconds without a sign of life after which a process is killed: longer than garbage collection and a slow disk take."""

PATIENCE = 10
"""How many times as long a process has that uses the processor, or that is starting or loading models: native code
that loads a large model may hold Python's lock for minutes."""

MAX_STEP_S = 2.0
"""Longest time between two looks. After a longer one the supervisor itself was stopped, or the machine slept, and all
processes are given their whole time again."""


class Watchdog:
    """Time without a sign of life of one process, counted by the supervisor's own looks."""

    def __init__(self) -> None:
        self._beats = -1
        self._cpu_ticks = -1
        self._looked_at_s = 0.0
        self.silent_s = 0.0
        """Seconds since the last sign of life that was seen."""
        self._idle_s = 0.0

    def look(self, beats: int, cpu_ticks: int, now_s: float, *, is_starting: bool) -> bool:
        """Return whether the process hangs.

        Args:
            beats: Its count of signs of life.
            cpu_ticks: Time of the processor that it has used, in any unit.
            now_s: The time, of a clock that stands still while the machine sleeps.
            is_starting: Whether it is starting or loading models.
        """
        elapsed_s, self._looked_at_s = now_s - self._looked_at_s, now_s
        if beats != self._beats or elapsed_s > MAX_STEP_S:
            self._beats, self.silent_s, self._idle_s = beats, 0.0, 0.0
        else:
            self.silent_s += elapsed_s
            self._idle_s = self._idle_s + elapsed_s if cpu_ticks == self._cpu_ticks else 0.0
        self._cpu_ticks = cpu_ticks
        idle_limit_s = HANG_TIMEOUT_S * (PATIENCE if is_starting else 1)
        return self.silent_s > HANG_TIMEOUT_S * PATIENCE or self._idle_s > idle_limit_s


def cpu_ticks(pid: int) -> int:
    """Return the time of the processor that a process has used, in clock ticks; 0 where that is unknown."""
    with suppress(OSError, ValueError, IndexError):
        # The second field is a name in parentheses, which may hold spaces.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])
    return 0

"""The states of a server's processes, in memory that they share.

A process writes its own state, with the reason, and a count that rises while it works; the supervisor writes how often it started a process again. Anyone may read all of it: a worker for its readiness, the supervisor to find a process
that hangs. What a start has to do is tried again until it works.
"""

import logging
import mmap
import time
from collections.abc import Callable
from typing import Literal, TypeVar

import msgspec

from quadriga.engine.measures.shared_counts import create_memory

ProcessCondition = Literal["starting", "loading", "ready", "waiting", "ended"]
"""`starting`: takes no requests yet; `loading`: takes requests, and has not loaded its models; `ready`: works;
`waiting`: tries again and again what fails, for the reason; `ended`: does not run, and is started again."""

CONDITIONS: tuple[ProcessCondition, ...] = ("starting", "loading", "ready", "waiting", "ended")
WRITER, JOBS = "writer", "jobs"

BEAT_INTERVAL_S = 0.5
"""How often a process shows that it works."""

DATABASE_AWAY = "the database does not answer: records wait in the journal"
"""Reason of a writer that waits; the log has the error of the database, which may name hosts."""

FIRST_DELAY_S, MAX_DELAY_S = 0.2, 5.0
"""Delays before a task is tried again: the first, and the longest."""

LOG_INTERVAL_S = 60.0
"""Shortest time between two log lines about the same task."""

Result = TypeVar("Result")

_BEATS, _RESTARTS, _HANGS, _CONDITION, _LENGTH, _REASON = range(6)
"""Cells of an entry; the reason, of so many bytes, takes the last one and those behind it."""
_ENTRY_CELLS = 35
_log = logging.getLogger("quadriga")


class ProcessState(msgspec.Struct, frozen=True):
    """State of one process of the server."""

    name: str
    """`worker 0` and so on, `writer` or `jobs`."""
    state: ProcessCondition
    reason: str | None
    """Why it does not work; None if it does."""
    restarts: int
    """How often it was started again, after it had ended or hung."""
    hangs: int
    """How often it was ended because it hung."""


def worker_name(number: int) -> str:
    """Return the name of a worker's entry."""
    return f"worker {number}"


class ProcessStates:
    """One entry per process: the workers, the writer and the jobs.

    Args:
        descriptor: The shared memory, as `create` makes it.
        workers: Number of workers.
    """

    def __init__(self, descriptor: int, workers: int) -> None:
        self.descriptor = descriptor
        self.workers = [worker_name(number) for number in range(workers)]
        cells = memoryview(mmap.mmap(descriptor, _size_bytes(workers))).cast("Q")
        self._were_all_ready = cells[:1]
        self._entries = {
            name: cells[1 + place * _ENTRY_CELLS :][:_ENTRY_CELLS]
            for place, name in enumerate((*self.workers, WRITER, JOBS))
        }

    @classmethod
    def create(cls, workers: int) -> "ProcessStates":
        """Create entries of processes that are starting; child processes inherit their descriptor."""
        return cls(create_memory("processes", _size_bytes(workers)), workers)

    def mark(self, name: str, state: ProcessCondition, reason: str = "") -> None:
        """Set the state of a process."""
        entry = self._entries[name]
        place = entry[_REASON:].cast("B")
        text = reason.encode()[: len(place)]
        entry[_LENGTH] = 0  # so that nobody reads half of two reasons
        place[: len(text)] = text
        entry[_CONDITION] = CONDITIONS.index(state)
        entry[_LENGTH] = len(text)
        if all(self._condition(worker) == "ready" for worker in self.workers):
            self._were_all_ready[0] = 1

    def state(self, name: str) -> ProcessState:
        """Return the state of a process."""
        entry = self._entries[name]
        text = bytes(entry[_REASON:].cast("B")[: entry[_LENGTH]])
        reason, restarts, hangs = text.decode(errors="ignore"), entry[_RESTARTS], entry[_HANGS]
        return ProcessState(
            name, self._condition(name), reason or None, restarts=restarts, hangs=hangs
        )

    def beat(self, name: str) -> None:
        """Show that a process works; called by itself."""
        self._entries[name][_BEATS] += 1

    def beats(self, name: str) -> int:
        """Return the count of `beat`, since the server's start."""
        return self._entries[name][_BEATS]

    def count_restart(self, name: str) -> None:
        """Count that a process is started again."""
        self._entries[name][_RESTARTS] += 1

    def count_hang(self, name: str) -> None:
        """Count that a process was ended because it hung."""
        self._entries[name][_HANGS] += 1

    def has_ready_worker(self, besides: str = "") -> bool:
        """Check whether a worker, other than one of them, answers with all its models."""
        return any(self._condition(name) == "ready" for name in self.workers if name != besides)

    def unready_workers(self) -> list[str]:
        """Return the workers that keep the server from being ready.

        Until all were ready once, all have to be. Later, one that ended and is not ready again counts only if it
        takes requests, as it does where no other worker is ready.
        """
        states = {name: self._condition(name) for name in self.workers}
        if self._were_all_ready[0] and "ready" in states.values():
            return [name for name, state in states.items() if state in ("loading", "waiting")]
        return [name for name, state in states.items() if state != "ready"]

    def failure_reason(self) -> str | None:
        """Return what an unready worker tries again and again; None where all load as they should."""
        reasons = (self.state(name).reason for name in self.unready_workers())
        return next(filter(None, reasons), None)

    def _condition(self, name: str) -> ProcessCondition:
        return CONDITIONS[self._entries[name][_CONDITION]]


def _size_bytes(workers: int) -> int:
    return 8 * (1 + (workers + 2) * _ENTRY_CELLS)


def retry_until_done(
    action: str,
    task: Callable[[], Result],
    on_failure: Callable[[str], object],
    *,
    errors: type[Exception] = Exception,
    sleep: Callable[[float], object] = time.sleep,
) -> Result:
    """Do a task; if it fails, as on a full disk, do it again after delays that grow up to `MAX_DELAY_S`.

    Args:
        action: What the task does, for messages: `load the models`.
        task: What to do; it may be repeated after any failure.
        on_failure: Called after each failure with the reason, without paths, for those who ask for readiness.
        errors: What is tried again; other errors are raised.
        sleep: Waits for a number of seconds.
    """
    delay_s, log_at_s = FIRST_DELAY_S, 0.0
    while True:
        try:
            return task()
        except errors as error:
            cause = error.strerror if isinstance(error, OSError) else None
            on_failure(f"cannot {action} yet: {cause or 'the log of the server has the reason'}")
            now_s = time.monotonic()
            if now_s >= log_at_s:
                log_at_s = now_s + LOG_INTERVAL_S
                _log.error("cannot %s yet, trying again: %s", action, error, exc_info=cause is None)
        sleep(delay_s)
        delay_s = min(delay_s * 2, MAX_DELAY_S)

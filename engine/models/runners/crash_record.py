"""What models run in each worker, their crashes, and the refusals that follow from them, in memory that outlives workers.

A crash in native code, of a graph or of an image's decoder, ends the whole process before it can say anything. So each worker
counts the runs of each model, and the supervisor reads these counts once a signal has ended it.

A model that ends its process twice within `WINDOW_S` is refused for a time that doubles with each further crash. A
model that ran beside others when their process ended is only suspected: it is not refused, but a worker that starts
next runs it in a process of its own, where the next crash shows whose it is. What ends the worker even so, as the code
around a graph may, counts as a crash of each model that ran.
"""

import contextlib
import fcntl
import math
import mmap
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence

import msgspec

from quadriga.engine.measures.shared_counts import CELLS, IN_FLIGHT, CountRow, SharedCounts

RUNNING = "running"
"""Kind of the rows of runs in flight, each named by a model and its version."""

WINDOW_S = 300.0
"""Seconds within which two crashes of a model lead to a refusal."""
FIRST_REFUSAL_S = 60.0
"""Seconds for which a model is refused the first time; each further time twice as long."""
MAX_REFUSAL_S = 1800.0
"""Maximum seconds for which a model is refused."""
PROBATION_S = 3600.0
"""Seconds after its last crash in which one more crash is enough for a model that has been refused before."""

_CRASHES = 2
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
_ID = slice(IN_FLIGHT + 1, IN_FLIGHT + 11)
"""Cells of the id of the request that began last, cut to its first bytes."""
_IS_ISOLATED = _ID.stop
_MAX_MODELS = 256
_BYTES = 256 * 1024
_HEADER_BYTES = 8
_GENERATION_BYTES = 4


class RunMark:
    """Counts the runs of a model version in this process, for the case that they end it; safe to use from several threads.

    Args:
        row: Row of the kind `RUNNING`; None for a process that nobody watches.
    """

    def __init__(self, row: CountRow | None = None) -> None:
        if row is None:
            row = CountRow(memoryview(bytearray(8 * CELLS)).cast("q"), 0, threading.RLock())
        self._row = row
        self._id = row.cells[_ID].cast("B")

    @property
    def is_shared(self) -> bool:
        """Whether other models count in the same row, for want of more: none of them can be told by it."""
        return self._row.is_other

    def note_isolation(self, *, is_isolated: bool) -> None:
        """Note whether the model runs in a process of its own."""
        self._row.cells[_IS_ISOLATED] = is_isolated

    def begin(self, request_id: str = "") -> None:
        """Note that a run begins, with the id that the client gave its request."""
        text = request_id.encode(errors="replace")[: len(self._id)].ljust(len(self._id), b"\0")
        with self._row.lock:
            self._row.cells[IN_FLIGHT] += 1
            self._id[:] = text

    def end(self) -> None:
        """Note that a run ends."""
        self._row.add(IN_FLIGHT, -1)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count the context as a run that is of no request."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Note that a run waits for another process: a crash of this one is not its doing."""
        self.end()
        try:
            yield
        finally:
            self._row.add(IN_FLIGHT)


class RunsInFlight(msgspec.Struct, frozen=True):
    """The runs of a model version that did not end before their process did."""

    model: str
    version: str
    count: int = 1
    request_id: str = ""
    """Id that the client gave the request that began last, shortened; empty if there is none."""
    is_isolated: bool = False
    """Whether the graph runs in a process of its own."""

    def __str__(self) -> str:
        """Describe them for the log."""
        parts = [f"{self.count} requests"] if self.count > 1 else []
        if self.request_id:
            parts.append(f"{'the last' if parts else 'request'} {self.request_id!r}")
        return f"model {self.model!r} version {self.version}" + (
            f" ({', '.join(parts)})" if parts else ""
        )


def runs_in_flight(counts: SharedCounts, worker: int) -> list[RunsInFlight]:
    """Return what a worker runs, or ran when it ended."""
    return [
        RunsInFlight(
            model,
            version,
            cells[IN_FLIGHT],
            bytes(cells[_ID]).rstrip(b"\0").decode(errors="replace"),
            is_isolated=bool(cells[_IS_ISOLATED]),
        )
        for (_, model, version), cells in counts.of_process(RUNNING, worker)
        if cells[IN_FLIGHT] > 0
    ]


class ModelCrashes(msgspec.Struct):
    """Crashes of one model version; times are seconds of `time.monotonic`, which all processes share."""

    name: str
    version: str
    times_s: list[float] = []
    """The last crashes, oldest first."""
    suspected_s: float = -math.inf
    """When it last ran beside others in a process that a signal ended."""
    refused_until_s: float = -math.inf
    refusals: int = 0
    """How often it has been refused in a row."""
    reason: str = ""
    """Why it is refused."""

    def count(self, how: str, now_s: float) -> None:
        """Count a crash, and refuse the model if it has had too many."""
        is_on_probation = self.refusals > 0 and now_s - self.times_s[-1] < PROBATION_S
        if not is_on_probation:
            self.refusals = 0
        self.times_s = [time_s for time_s in self.times_s if now_s - time_s < WINDOW_S]
        self.times_s.append(now_s)
        if len(self.times_s) < _CRASHES and not is_on_probation:
            return
        refused_s = min(FIRST_REFUSAL_S * 2.0**self.refusals, MAX_REFUSAL_S)
        self.refusals = min(self.refusals + 1, 16)
        self.refused_until_s = now_s + refused_s
        crashes = (
            f"{len(self.times_s)} times within {WINDOW_S / 60:.0f} minutes"
            if len(self.times_s) >= _CRASHES
            else "again"
        )
        self.reason = (
            f"model {self.name!r} version {self.version} ended its process {crashes}, last: {how}; "
            f"it is refused for {refused_s:.0f} s, or until it is loaded again"
        )


class Refusal(msgspec.Struct, frozen=True):
    """Why a model is refused, and for how many seconds."""

    reason: str
    seconds: float


class CrashRecord:
    """The crashes of all models of a server; safe to use from several threads and processes.

    Args:
        descriptor: Shared memory, from another process' `CrashRecord`; -1 creates it.
    """

    def __init__(self, descriptor: int = -1) -> None:
        if descriptor < 0:
            descriptor = os.memfd_create("quadriga-crashes", 0)
            os.ftruncate(descriptor, _BYTES)
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, _BYTES)
        self._lock = threading.Lock()
        self._generation = bytes(_GENERATION_BYTES)
        self._models: dict[tuple[str, str], ModelCrashes] = {}

    def refusal(self, name: str, version: str) -> Refusal | None:
        """Return why a model is refused now; None if it is not. It costs each request 0.1 us."""
        models = self._models
        if self._memory[:_GENERATION_BYTES] != self._generation:
            models = self._read_current()
        if not models or (crashes := models.get((name, version))) is None:
            return None
        seconds = crashes.refused_until_s - time.monotonic()
        return Refusal(crashes.reason, seconds) if seconds > 0 else None

    def needs_own_process(self, name: str, version: str) -> bool:
        """Check whether a model crashed, or is suspected of it, so recently that it must not share a process."""
        crashes = self._read_current().get((name, version))
        if crashes is None:
            return False
        last_s = max([crashes.suspected_s, *crashes.times_s])
        return time.monotonic() - last_s < PROBATION_S

    def count(self, name: str, version: str, how: str) -> Refusal | None:
        """Count a crash of a model; return the refusal that follows from it, if any.

        Args:
            name: Name of the model.
            version: Its version.
            how: What ended its process, such as "SIGFPE".
        """
        with self._change() as models:
            crashes = models.setdefault((name, version), ModelCrashes(name, version))
            crashes.count(how, time.monotonic())
        return self.refusal(name, version)

    def suspect(self, suspects: Sequence[tuple[str, str]]) -> None:
        """Note models, by name and version, one of which may have ended the process that ran them all."""
        with self._change() as models:
            for name, version in suspects:
                crashes = models.setdefault((name, version), ModelCrashes(name, version))
                crashes.suspected_s = time.monotonic()

    def forget(self, name: str) -> None:
        """Forget the crashes of all versions of a model, as it is loaded anew."""
        if not any(model == name for model, _ in self._read_current()):
            return
        with self._change() as models:
            for key in [key for key in models if key[0] == name]:
                del models[key]

    def refused(self) -> list[ModelCrashes]:
        """Return the models that are refused now."""
        now_s = time.monotonic()
        return [
            crashes for crashes in self._read_current().values() if crashes.refused_until_s > now_s
        ]

    def _read_current(self) -> dict[tuple[str, str], ModelCrashes]:
        with self._exclusive():
            return self._read()

    def _read(self) -> dict[tuple[str, str], ModelCrashes]:
        """Read the record if it has changed; called with the lock held."""
        generation = self._memory[:_GENERATION_BYTES]
        if generation == self._generation:
            return self._models
        length = int.from_bytes(self._memory[_GENERATION_BYTES:_HEADER_BYTES], "little")
        try:
            crashes = msgspec.msgpack.decode(
                self._memory[_HEADER_BYTES : _HEADER_BYTES + length], type=list[ModelCrashes]
            )
        except msgspec.MsgspecError:  # a process was killed while it wrote
            crashes = []
        self._models = {(model.name, model.version): model for model in crashes}
        self._generation = generation
        return self._models

    @contextlib.contextmanager
    def _change(self) -> Iterator[dict[tuple[str, str], ModelCrashes]]:
        """Yield the models to change, and write them afterwards."""
        with self._exclusive():
            models = msgspec.msgpack.decode(
                msgspec.msgpack.encode(list(self._read().values())), type=list[ModelCrashes]
            )
            by_name = {(model.name, model.version): model for model in models}
            yield by_name
            for key in list(by_name)[:-_MAX_MODELS]:
                del by_name[key]
            encoded = msgspec.msgpack.encode(list(by_name.values()))
            self._memory[_HEADER_BYTES : _HEADER_BYTES + len(encoded)] = encoded
            self._memory[_GENERATION_BYTES:_HEADER_BYTES] = len(encoded).to_bytes(4, "little")
            generation = int.from_bytes(self._memory[:_GENERATION_BYTES], "little") + 1
            self._memory[:_GENERATION_BYTES] = (generation % 2**32).to_bytes(4, "little")

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Prevent other threads and processes from reading and writing; a process that dies leaves no lock."""
        with self._lock:
            fcntl.lockf(self.descriptor, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self.descriptor, fcntl.LOCK_UN)


def describe_exit(code: int) -> str:
    """Say how a process ended: by its signal, such as "SIGFPE", or "status 1"."""
    if code >= 0:
        return f"status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def blame(runs: Sequence[RunsInFlight], crashes: CrashRecord, code: int) -> str:
    """Count or suspect the models that a process ran when a signal ended it; return what it ran, for the log.

    SIGKILL, SIGTERM and SIGINT come from outside, so that no model is blamed for them.
    """
    if not runs:
        return " while it ran no model"
    text = f" while it ran {', '.join(map(str, runs))}"
    if -code in _FROM_OUTSIDE:
        return text
    if len(runs) > 1 and not all(run.is_isolated for run in runs):
        crashes.suspect([(run.model, run.version) for run in runs])
        return f"{text}, any of which may be the cause"
    counted = [crashes.count(run.model, run.version, describe_exit(code)) for run in runs]
    reasons = "; ".join(refusal.reason for refusal in counted if refusal is not None)
    return f"{text}: {reasons}" if reasons else text

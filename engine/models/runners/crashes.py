"""Runs in flight and crashes of each model, in counts that outlive the processes of a server.

A crash in native code, of a graph or of an image's decoder, ends the whole process before it can say anything. So each worker
counts the runs of each model, and the supervisor reads these counts once a signal has ended it.

A model that ends its process twice within `WINDOW_S` is refused for a time that doubles with each further crash. A
model that ran beside others when their process ended is only suspected: it is not refused, but a worker that starts
next runs it in a process of its own, where the next crash shows whose it is. What ends the worker even so, as the code
around a graph may, counts as a crash of each model that ran.
"""

import contextlib
import signal
import time
from collections.abc import Iterator

import msgspec

from quadriga.engine.measures.shared_counts import (
    CELLS,
    IN_FLIGHT,
    OTHER,
    CountRow,
    SharedCounts,
    exclusive,
)

RUNNING, CRASHES = "running", "crashes"
"""Kinds of the rows of runs in flight and of crashes, each named by a model and its version."""

WINDOW_S = 300.0
"""Seconds within which two crashes of a model lead to a refusal."""
FIRST_REFUSAL_S = 60.0
"""Seconds for which a model is refused the first time; each further time twice as long."""
MAX_REFUSAL_S = 1800.0
"""Maximum seconds for which a model is refused."""
PROBATION_S = 3600.0
"""Seconds after its last crash in which one more crash is enough for a model that has been refused before."""

_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
_ID = slice(IN_FLIGHT + 1, IN_FLIGHT + 11)
"""Cells of the id of the request that began last, cut to its first bytes; in a row of runs."""
_IS_ISOLATED = _ID.stop
_LAST_NS, _SUSPECTED_NS, _REFUSED_UNTIL_NS, _REFUSALS = range(4)
"""Cells of a row of crashes: times of `time.monotonic_ns`, 0 for never, and the number of refusals in a row."""
_CAUSE = slice(_REFUSALS + 1, CELLS)
"""Cells of what ended the process last, cut to its first bytes."""
_S = 1_000_000_000


class Refusal(msgspec.Struct, frozen=True):
    """Why a model is refused, and for how many seconds."""

    reason: str
    seconds: float


class ModelRuns:
    """Runs in flight of a model version in this process, and its crashes in all; safe to use from several threads.

    Args:
        counts: Counts of the server.
        model: Name of the model.
        version: Its version.
    """

    def __init__(self, counts: SharedCounts, model: str, version: str) -> None:
        self.model, self.version = model, version
        self._counts = counts
        self._row = self._find(RUNNING)
        self._id = self._row.cells[_ID].cast("B")
        crashes = self._find(CRASHES)
        self._has_crashes = not crashes.is_other  # those of several models are of none
        self._crashes = crashes.all_cells[:CELLS]
        """The cells of the first process, which all processes write, one at a time."""

    def _find(self, kind: str) -> CountRow:
        return self._counts.row((kind, self.model, self.version), (kind, OTHER, OTHER))

    def __str__(self) -> str:
        """Describe the model for the log."""
        return f"model {self.model!r} version {self.version}"

    @property
    def is_shared(self) -> bool:
        """Whether other models count in the same row, for want of more: none of them can be told by it."""
        return self._row.is_other

    def note_isolation(self, *, is_isolated: bool) -> None:
        """Note whether the model runs in a process of its own."""
        self._row.cells[_IS_ISOLATED] = is_isolated

    def begin(self, request_id: str = "") -> None:
        """Note that a run begins, with the id that the client gave its request."""
        with self._row.lock:
            self._row.cells[IN_FLIGHT] += 1
            _write_text(self._id, request_id)

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

    def refusal(self) -> Refusal | None:
        """Return why the model is refused now; None if it is not."""
        until_ns = self._crashes[_REFUSED_UNTIL_NS]
        if not until_ns or (rest_ns := until_ns - time.monotonic_ns()) <= 0:
            return None
        refusals = self._crashes[_REFUSALS]
        often = "again" if refusals > 1 else f"2 times within {WINDOW_S / 60:.0f} minutes"
        reason = (
            f"{self} ended its process {often}, last: {_read_text(self._crashes[_CAUSE])}; "
            f"it is refused for {_refusal_s(refusals):.0f} s, or until it is loaded again"
        )
        return Refusal(reason, rest_ns / _S)

    def needs_isolation(self) -> bool:
        """Check whether the model crashed, or is suspected of it, so recently that it must not share a process."""
        last_ns = max(self._crashes[_LAST_NS], self._crashes[_SUSPECTED_NS])
        return last_ns > 0 and time.monotonic_ns() - last_ns < PROBATION_S * _S

    def count_crash(self, cause: str) -> Refusal | None:
        """Count a crash; return the refusal that follows from it, if any.

        Args:
            cause: What ended the process, such as "SIGFPE".
        """
        if not self._has_crashes:
            return None
        cells, now_ns = self._crashes, time.monotonic_ns()
        with self._counts.lock, exclusive(self._counts.descriptor):
            since_s = (now_ns - cells[_LAST_NS]) / _S if cells[_LAST_NS] else PROBATION_S
            if since_s >= PROBATION_S:
                cells[_REFUSALS] = 0
            cells[_LAST_NS] = now_ns
            _write_text(cells[_CAUSE].cast("B"), cause)
            if since_s < WINDOW_S or cells[_REFUSALS]:
                cells[_REFUSALS] += 1
                cells[_REFUSED_UNTIL_NS] = now_ns + int(_refusal_s(cells[_REFUSALS]) * _S)
        return self.refusal()

    def suspect(self) -> None:
        """Note that the model may have ended the process that ran it beside others."""
        if self._has_crashes:
            self._crashes[_SUSPECTED_NS] = time.monotonic_ns()


def _refusal_s(refusals: int) -> float:
    """Return for how many seconds a model is refused the first time, the second time and so on."""
    return min(FIRST_REFUSAL_S * 2.0 ** min(refusals - 1, 16), MAX_REFUSAL_S)


def _write_text(cells: "memoryview[int]", text: str) -> None:
    size = len(cells)
    cells[:] = text.encode(errors="replace")[:size].ljust(size, b"\0")


def _read_text(cells: "memoryview[int]") -> str:
    return bytes(cells).rstrip(b"\0").decode(errors="replace")


def forget_crashes(counts: SharedCounts, model: str) -> None:
    """Forget the crashes of all versions of a model, as it is loaded anew."""
    for name, cells in counts.of_process(CRASHES, 0):
        if name[1] == model:
            with counts.lock, exclusive(counts.descriptor):
                cells.cast("B")[:] = bytes(cells.nbytes)


def count_refused(counts: SharedCounts) -> int:
    """Return how many model versions are refused now."""
    now_ns = time.monotonic_ns()
    return sum(cells[_REFUSED_UNTIL_NS] > now_ns for _, cells in counts.of_process(CRASHES, 0))


def describe_exit(code: int) -> str:
    """Say how a process ended: by its signal, such as "SIGFPE", or "status 1"."""
    if code >= 0:
        return f"status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def blame(counts: SharedCounts, worker: int, code: int) -> str:
    """Count or suspect the models that a worker ran when a signal ended it; return what it ran, for the log.

    SIGKILL, SIGTERM and SIGINT come from outside, so that no model is blamed for them.
    """
    running = [
        (ModelRuns(counts, model, version), cells)
        for (_, model, version), cells in counts.of_process(RUNNING, worker)
        if cells[IN_FLIGHT] > 0
    ]
    if not running:
        return " while it ran no model"
    text = f" while it ran {', '.join(_describe(runs, cells) for runs, cells in running)}"
    if -code in _FROM_OUTSIDE:
        return text
    if len(running) > 1 and not all(cells[_IS_ISOLATED] for _, cells in running):
        for runs, _ in running:
            runs.suspect()
        return f"{text}, any of which may be the cause"
    counted = [runs.count_crash(describe_exit(code)) for runs, _ in running]
    reasons = "; ".join(refusal.reason for refusal in counted if refusal is not None)
    return f"{text}: {reasons}" if reasons else text


def _describe(runs: ModelRuns, cells: "memoryview[int]") -> str:
    """Describe a model and its runs that did not end before their process did."""
    parts = [f"{cells[IN_FLIGHT]} requests"] if cells[IN_FLIGHT] > 1 else []
    if request_id := _read_text(cells[_ID]):
        parts.append(f"{'the last' if parts else 'request'} {request_id!r}")
    return f"{runs} ({', '.join(parts)})" if parts else str(runs)

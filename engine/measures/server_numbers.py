"""Numbers that parts of a worker keep for themselves, published in the counts that processes share.

A worker publishes them twice a second, and when its metrics are read. What is counted goes on where the worker's last
process ended, so a sum over workers does not fall as one dies, though it may lack the last half second of that one.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from quadriga.engine.measures.shared_counts import OTHER, CountRow, RowTotals, SharedCounts
from quadriga.proto.messages import QueueStatistics
from quadriga.proto.request import (
    OTHER_WIRES,
    OUTCOMES,
    WIRE_PROTOCOLS,
    OtherWire,
    Outcome,
    WireProtocol,
)

NUMBER, REFUSED, STOPPED, REQUESTS = "number", "refused", "stopped", "requests"
"""Kinds of rows, the first text of their names; the last has a cell for each of `OUTCOMES`."""

REDIRECTED = "redirected"
"""Kind of rows of requests whose share of a version went to others."""

_INTERVAL_S = 0.5
_log = logging.getLogger(__name__)

_SUMMED = frozenset({"body_bytes", "queries_waiting", "audit_failing"})
"""Numbers that fall, too, and are those of all workers together."""


class ServerNumbers:
    """The numbers of a worker, and their sums over all workers; safe to use from several threads.

    Args:
        counts: The counts that processes share.
        own: Returns the numbers of this worker by name; those that end in `_total` count from its start and only rise.
        queues: Returns the statistics of this worker's queue.
    """

    def __init__(
        self,
        counts: SharedCounts,
        own: Callable[[], Mapping[str, float]],
        queues: Callable[[], Sequence[QueueStatistics]],
    ) -> None:
        self._counts = counts
        self._own = own
        self._queues = queues
        self._lock = threading.Lock()
        """Lock of what is published: two at once could write an older number last."""
        self._rows: dict[tuple[str, ...], CountRow] = {}
        self._published: dict[tuple[str, ...], int] = {}
        """What this process has counted, as of the last time."""
        self._closing = threading.Event()

    def start(self) -> None:
        """Begin to publish, in a thread of its own."""
        threading.Thread(target=self._run, name="numbers", daemon=True).start()

    def close(self) -> None:
        """Publish for the last time."""
        self._closing.set()
        self.publish()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self.publish()
            except Exception:  # noqa: BLE001 - the loop must go on
                _log.exception("cannot publish the numbers of this worker")
            self._closing.wait(_INTERVAL_S)

    def publish(self) -> dict[str, float]:
        """Write the numbers of this worker where others read them, and return them."""
        with self._lock:
            numbers = dict(self._own())
            for name, value in numbers.items():
                if name.endswith("_total"):
                    self._row((NUMBER, name))
                    self._add_to((NUMBER, name), int(value))
                elif name in _SUMMED:
                    self._row((NUMBER, name)).cells[0] = int(value)
            for queue in self._queues():
                for kind, counts in ((REFUSED, queue.refused), (STOPPED, queue.stopped)):
                    for reason, count in counts.items():
                        self._add_to((kind, queue.model, reason), count)
        return numbers

    def totals(self) -> dict[str, float]:
        """Publish the numbers of this worker, and return those of all; what is no sum is this worker's own."""
        numbers = self.publish()
        for row in self._counts.totals(NUMBER):
            numbers[row.name[1]] = row.cells[0]
        return numbers

    def _add_to(self, name: tuple[str, ...], value: int) -> None:
        """Add to a row what a number has risen by since it was published last."""
        added = value - self._published.get(name, 0)
        if added > 0:
            self._row(name).cells[0] += added
        self._published[name] = value

    def _row(self, name: tuple[str, ...]) -> CountRow:
        row = self._rows.get(name)
        if row is None:
            row = self._rows[name] = self._counts.row(name, (name[0], OTHER, *name[2:]))
        return row


class RequestCounts:
    """The requests of all workers by protocol and outcome."""

    def __init__(self, counts: SharedCounts) -> None:
        self._cells: dict[tuple[str, str], tuple[memoryview[int], int]] = {}
        """Cells of a protocol and place of an outcome among them."""
        for protocol in (*WIRE_PROTOCOLS, *OTHER_WIRES):
            cells = counts.row((REQUESTS, protocol), (REQUESTS, OTHER)).cells
            for place, outcome in enumerate(OUTCOMES):
                self._cells[protocol, outcome] = cells, place

    def count(self, protocol: WireProtocol | OtherWire, outcome: Outcome) -> None:
        """Count a request; without a lock, as it is called on the event loop alone."""
        cells, place = self._cells[protocol, outcome]
        cells[place] += 1


def outcomes_of(row: RowTotals) -> dict[str, int]:
    """Return how often requests ended in each way, of a row of `REQUESTS`."""
    return dict(zip(OUTCOMES, row.cells, strict=False))

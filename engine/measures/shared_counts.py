"""Counts that survive the death of the process that counts: rows of cells in memory that all processes of a server share.

Each process writes cells of its own only, and readers add them up, so a sum never falls: the next process of a worker
goes on where the last one ended. A file lock is held only to add a row, and the system takes it from a process that dies.

A row is named by a few texts. Their number is limited, whatever names there are: what finds no row of its own counts in
one that its caller names for that.

Numbers that parts of a worker keep for themselves it publishes there twice a second, and when its metrics are read: the last
half second of a process that dies may be lacking.
"""

import fcntl
import json
import logging
import mmap
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from quadriga.proto.request import (
    OTHER_WIRES,
    OUTCOMES,
    WIRE_PROTOCOLS,
    OtherWire,
    Outcome,
    QueueStatistics,
    WireProtocol,
)

NUMBER, REFUSED, STOPPED, REQUESTS = "number", "refused", "stopped", "requests"
"""Kinds of rows, the first text of their names; the last has a cell for each of `OUTCOMES`."""

REDIRECTED = "redirected"
"""Kind of rows of requests whose share of a version went to others."""

_INTERVAL_S = 0.5

_SUMMED = frozenset({"body_bytes", "queries_waiting", "audit_failing"})
"""Numbers that fall, too, and are those of all workers together."""

RowName = tuple[str, ...]


class RowTotals(msgspec.Struct, frozen=True):
    """One row, added up over all processes."""

    name: RowName
    cells: list[int]
    """`CELLS` numbers."""


class SharedCounts:
    """The rows of a server; safe to use from several threads.

    Args:
        writers: Number of processes that count.
        writer: Number of this one, which no other process has at the same time.
        descriptor: The shared memory, from another process' `SharedCounts`; -1 creates it.
    """

    def __init__(self, writers: int = 1, writer: int = 0, descriptor: int = -1) -> None:
        self._row_cells = _HEAD_CELLS + writers * CELLS
        size_bytes = 8 * (_HEAD + MAX_ROWS * self._row_cells)
        self.descriptor = create_memory("counts", size_bytes) if descriptor < 0 else descriptor
        self._memory = mmap.mmap(self.descriptor, size_bytes)
        self._cells = memoryview(self._memory).cast("q")
        self.lock = threading.RLock()
        """Lock of what this process writes; whoever holds it may ask for a row."""
        self._writers = writers
        self.writer = writer
        self._rows: dict[RowName, int] = {}
        self._is_full = False

    def row(self, name: RowName, other: RowName) -> "CountRow":
        """Return the cells of this process in a row, which is made if it is not there.

        Args:
            name: Name of the row.
            other: Name of the row that counts instead where there is no room; one of few, none longer than a few words.
        """
        name = tuple(map(_as_text, name))
        with self.lock:
            place = self._rows.get(name)
            if place is None:
                with exclusive(self.descriptor):
                    self._read_rows()
                    place = self._place(name, other)
        if place is None:
            raise ValueError(f"expected at most {OTHER_ROWS} rows of what finds none of its own")
        is_other = self._rows.get(name) != place
        return CountRow(self._cells_at(place), self.writer, self.lock, is_other=is_other)

    def totals(self, kind: str = "") -> list[RowTotals]:
        """Return all rows, or those of a kind, in the order in which they were made."""
        rows = [(name, self._cells_at(place).tolist()) for name, place in self._places(kind)]
        return [
            RowTotals(name, [sum(cells[cell::CELLS]) for cell in range(CELLS)])
            for name, cells in rows
        ]

    def of_process(self, kind: str, writer: int) -> list[tuple[RowName, "memoryview[int]"]]:
        """Return the names of the rows of a kind, and the cells that one process has in each."""
        begin, end = writer * CELLS, (writer + 1) * CELLS
        return [(name, self._cells_at(place)[begin:end]) for name, place in self._places(kind)]

    def _places(self, kind: str) -> list[tuple[RowName, int]]:
        """Return name and place of all rows, or of those of a kind."""
        with self.lock:
            self._read_rows()
            return [row for row in self._rows.items() if not kind or row[0][0] == kind]

    def _cells_at(self, place: int) -> "memoryview[int]":
        """Return the cells that all processes have in a row, one process after the other."""
        begin = _HEAD + place * self._row_cells + _HEAD_CELLS
        return self._cells[begin : begin + self._writers * CELLS]

    def _place(self, name: RowName, other: RowName) -> int | None:
        """Return the place of a row, all of which were read, or that of the other one; None if neither has room."""
        place = self._rows.get(name)
        if place is None:
            place = self._add(name, MAX_ROWS - OTHER_ROWS)
        if place is not None:
            return place
        self._note_full()
        place = self._rows.get(other)
        return self._add(other, MAX_ROWS) if place is None else place

    def _read_rows(self) -> None:
        """Read the names of rows that other processes have added."""
        for place in range(len(self._rows), self._cells[0]):
            begin = 8 * (_HEAD + place * self._row_cells)
            length = int.from_bytes(self._memory[begin : begin + _LENGTH_BYTES], "little")
            begin += _LENGTH_BYTES
            self._rows[tuple(json.loads(self._memory[begin : begin + length]))] = place

    def _add(self, name: RowName, limit: int) -> int | None:
        """Add a row, all of whose predecessors were read; return None if there is no room for it, or for its name."""
        place, text = len(self._rows), json.dumps(name).encode()
        if place >= limit or len(text) > _NAME_BYTES:
            return None
        begin = 8 * (_HEAD + place * self._row_cells)
        self._memory[begin : begin + _LENGTH_BYTES] = len(text).to_bytes(_LENGTH_BYTES, "little")
        begin += _LENGTH_BYTES
        self._memory[begin : begin + len(text)] = text
        self._cells[0] = place + 1  # last: a process that dies before leaves no half of a row
        self._rows[name] = place
        return place

    def _note_full(self) -> None:
        if not self._is_full:
            _log.error(
                "more than %d rows of counts are needed, or one with a longer name: further models or keys are counted together, as %r",
                MAX_ROWS - OTHER_ROWS, OTHER,
            )  # fmt: skip
        self._is_full = True


class CountRow:
    """One row, as a process counts in it.

    Args:
        cells: `CELLS` numbers of each process.
        writer: Number of the process that counts.
        lock: Lock of what it writes.
        is_other: Whether the row counts for all that found none of their own.
    """

    __slots__ = ("all_cells", "cells", "is_other", "lock")

    def __init__(
        self,
        cells: "memoryview[int]",
        writer: int,
        lock: "threading.RLock",
        *,
        is_other: bool = False,
    ) -> None:
        self.all_cells = cells
        """`CELLS` numbers of each process, one process after the other."""
        self.cells = cells[writer * CELLS : (writer + 1) * CELLS]
        """`CELLS` numbers of this process; written with `lock` held."""
        self.lock = lock
        self.is_other = is_other

    def add(self, cell: int, amount: int = 1) -> None:
        """Add to a number."""
        with self.lock:
            self.cells[cell] += amount


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
        return self._counts.row(name, (name[0], OTHER, *name[2:]))


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


MAX_ROWS = 16_384
"""Rows of a server, with those of `OTHER_ROWS`: about ten for each version of a model, and one for each key that was used."""

OTHER_ROWS = 128
"""Rows that are left for what finds no row of its own."""

CELLS = 18
"""Numbers of a row."""

OTHER = "other"
"""Text in place of a model's name and version, in the name of the row of what finds none of its own."""

IN_FLIGHT = 0
"""Cell of what is in flight, in rows that count it: what a process had there ends with it."""

ENDS = "ends"
"""Kind of the rows of ends of processes, by process and cause: what the supervisor counts."""

_NAME_BYTES = 1024

_LENGTH_BYTES = 8

_HEAD_CELLS = (_LENGTH_BYTES + _NAME_BYTES) // 8

_HEAD = 1  # how many rows there are

_log = logging.getLogger(__name__)


def create_memory(name: str, size_bytes: int) -> int:
    """Return the descriptor of memory that child processes inherit; it takes room as it is written, not before."""
    descriptor = os.memfd_create(f"quadriga-{name}", 0)
    os.ftruncate(descriptor, size_bytes)
    return descriptor


@contextmanager
def exclusive(descriptor: int) -> Iterator[None]:
    """Let no other process add a row to shared memory; one that dies lets go."""
    fcntl.lockf(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.lockf(descriptor, fcntl.LOCK_UN)


def _as_text(name: str) -> str:
    """Return a name without what cannot be written as UTF-8, such as bytes of a folder's name that are none."""
    return name.encode("utf-8", "backslashreplace").decode()

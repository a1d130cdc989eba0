"""Counts that survive the death of the process that counts: rows of cells in memory that all processes of a server share.

Each process writes cells of its own only, and readers add them up, so a sum never falls: the next process of a worker
goes on where the last one ended. A file lock is held only to add a row, and the system takes it from a process that dies.

A row is named by a few texts. Their number is limited, whatever names there are: what finds no row of its own counts in
one that its caller names for that.
"""

import fcntl
import json
import logging
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

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

RowName = tuple[str, ...]

_NAME_BYTES = 1024
_LENGTH_BYTES = 8
_HEAD_CELLS = (_LENGTH_BYTES + _NAME_BYTES) // 8
_HEAD = 1  # how many rows there are
_log = logging.getLogger(__name__)


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

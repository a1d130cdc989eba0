"""What each key has used, in memory that the workers of a server share, so that a limit holds for all of them together.

Each worker writes numbers of its own only, and reads those of all: nothing waits for a lock of another process, and a
worker that dies holds nothing back. Two workers may decide at the same moment, so a limit may be passed by one request
for each further worker.

A rate is counted in two periods, the present one and the one before, of which as much counts as the last period still
reaches into ("sliding window counter"): it takes the same memory whatever the limit, and no client gets more than the
limit on average, nor more than twice the limit in any one period. The clock is the monotonic one, which all processes
of a machine share.
"""

import logging
import mmap
import threading
from collections.abc import Iterable
from hashlib import blake2b
from typing import Literal, get_args

import msgspec

from quadriga.engine.measures.shared_counts import create_memory, exclusive
from quadriga.store.key_limits import LimitName

Rate = Literal["requests", "bytes", "export-bytes", "stored-bytes"]
"""What is counted in periods."""

Counter = Literal["requests", "bytes", "export-bytes", "stored-bytes"]

MAX_KEYS = 65_536
"""Keys that a run of the server counts; further ones are neither counted nor limited before the next start."""

_PERIOD_CELLS = 4  # of two periods, their number and the amount
_RATES = {rate: _PERIOD_CELLS * place for place, rate in enumerate(get_args(Rate))}
_IN_FLIGHT = _PERIOD_CELLS * len(_RATES)
_TOTALS = {name: _IN_FLIGHT + 1 + place for place, name in enumerate(get_args(Counter))}
_REQUESTS, _BYTES = _TOTALS["requests"], _TOTALS["bytes"]
_REFUSALS = {
    name: _IN_FLIGHT + 1 + len(_TOTALS) + place for place, name in enumerate(get_args(LimitName))
}
_CELLS = _IN_FLIGHT + 1 + len(_TOTALS) + len(_REFUSALS)
_ROW_HEAD = 2  # the hash of the key's id
_HEAD = 1  # how many rows there are
_log = logging.getLogger(__name__)


class KeyTotals(msgspec.Struct, kw_only=True):
    """What a key has used since the start of the server, over all workers."""

    key_id: str
    """Empty for a key whose id is not known."""
    in_flight: int
    totals: dict[str, int]
    """Amounts by what is counted, as `Counter`."""
    refused: dict[str, int]
    """Refused requests by limit."""


class KeyCounts:
    """The numbers of all keys that were used; safe to use from several threads.

    Args:
        workers: Number of workers of the server.
        worker: Number of this one.
        descriptor: The shared memory, from another process' `KeyCounts`; -1 creates it.
    """

    def __init__(self, workers: int, worker: int = 0, descriptor: int = -1) -> None:
        self._row_cells = _ROW_HEAD + workers * _CELLS
        size_bytes = 8 * (_HEAD + MAX_KEYS * self._row_cells)
        self.descriptor = create_memory("keys", size_bytes) if descriptor < 0 else descriptor
        self.cells = memoryview(mmap.mmap(self.descriptor, size_bytes)).cast("q")
        self.lock = threading.Lock()
        """Lock of what this worker writes."""
        self._workers = workers
        self._worker = worker
        self._rows: dict[tuple[int, int], int] = {}
        self._is_full = False

    def begin(self) -> None:
        """Forget the requests in flight of an earlier process of this worker, which has ended."""
        for row in range(self.cells[0]):
            self.cells[self._place(row) + self._worker * _CELLS + _IN_FLIGHT] = 0

    def row(self, key_id: str) -> "KeyRow | None":
        """Return the numbers of a key; None if there is no room for further keys."""
        high_low = _hash(key_id)
        with self.lock:
            row = self._rows.get(high_low)
            if row is None:
                with exclusive(self.descriptor):
                    self._read_rows()
                    row = self._rows.get(high_low)
                    if row is None:
                        row = self._add_row(high_low)
        if row is None:
            return None
        return KeyRow(self, self._place(row), self._workers, self._worker)

    def totals(self, key_ids: Iterable[str]) -> list[KeyTotals]:
        """Return what the keys have used, in the order of their first use; `key_ids` are those known by their id."""
        ids = {_hash(key_id): key_id for key_id in key_ids}
        with self.lock:
            self._read_rows()
            rows = dict(self._rows)
        return [self._totals(row, ids.get(high_low, "")) for high_low, row in rows.items()]

    def _totals(self, row: int, key_id: str) -> KeyTotals:
        places = [self._place(row) + worker * _CELLS for worker in range(self._workers)]
        cells = self.cells

        def total(cell: int) -> int:
            return sum(cells[place + cell] for place in places)

        return KeyTotals(
            key_id=key_id,
            in_flight=total(_IN_FLIGHT),
            totals={name: total(cell) for name, cell in _TOTALS.items()},
            refused={name: total(cell) for name, cell in _REFUSALS.items()},
        )

    def _place(self, row: int) -> int:
        return _HEAD + row * self._row_cells + _ROW_HEAD

    def _read_rows(self) -> None:
        """Read the rows that other workers have added."""
        for row in range(len(self._rows), self.cells[0]):
            place = self._place(row) - _ROW_HEAD
            self._rows[self.cells[place], self.cells[place + 1]] = row

    def _add_row(self, high_low: tuple[int, int]) -> int | None:
        row = len(self._rows)
        if row >= MAX_KEYS:
            if not self._is_full:
                text = (
                    "more than %d keys were used: further ones are not counted, and have no limits"
                )
                _log.error(text, MAX_KEYS)
            self._is_full = True
            return None
        place = self._place(row) - _ROW_HEAD
        self.cells[place], self.cells[place + 1] = high_low
        self.cells[0] = row + 1
        self._rows[high_low] = row
        return row


class KeyRow:
    """The numbers of one key. What changes them is called with `lock` held."""

    __slots__ = ("_cells", "_own", "_places", "lock")

    def __init__(self, counts: KeyCounts, place: int, workers: int, worker: int) -> None:
        self._cells = counts.cells
        self._places = [place + number * _CELLS for number in range(workers)]
        self._own = place + worker * _CELLS
        self.lock = counts.lock

    def used(self, rate: Rate, period: int) -> tuple[int, int]:
        """Return what all workers counted in the period before and in a period, given by its number."""
        cells, offset = self._cells, _RATES[rate]
        present, before = offset + 2 * (period & 1), offset + 2 * (~period & 1)
        used = used_before = 0
        for place in self._places:
            if cells[place + present] == period:
                used += cells[place + present + 1]
            if cells[place + before] == period - 1:
                used_before += cells[place + before + 1]
        return used_before, used

    def use(self, rate: Rate, period: int, amount: int) -> None:
        """Count an amount in a period."""
        cells, cell = self._cells, self._own + _RATES[rate] + 2 * (period & 1)
        if cells[cell] != period:
            cells[cell + 1] = 0  # first, so that nobody takes the old amount for the new period's
            cells[cell] = period
        cells[cell + 1] += amount

    def in_flight(self) -> int:
        """Return how many requests all workers answer."""
        cells = self._cells
        return sum(cells[place + _IN_FLIGHT] for place in self._places)

    def begin(self, body_bytes: int) -> None:
        """Count a request that is answered from now on."""
        cells, own = self._cells, self._own
        cells[own + _IN_FLIGHT] += 1
        cells[own + _REQUESTS] += 1
        if body_bytes:
            cells[own + _BYTES] += body_bytes

    def resume(self) -> None:
        """Count a request that had ended in flight again."""
        self._cells[self._own + _IN_FLIGHT] += 1

    def end(self) -> None:
        """Count that a request was answered."""
        self._cells[self._own + _IN_FLIGHT] -= 1

    def add(self, counter: Counter, amount: int) -> None:
        """Add to what the key has used since the start."""
        self._cells[self._own + _TOTALS[counter]] += amount

    def refuse(self, name: LimitName) -> None:
        """Count a request that a limit refused."""
        self._cells[self._own + _REFUSALS[name]] += 1


def _hash(key_id: str) -> tuple[int, int]:
    digest = blake2b(key_id.encode("utf-8", "surrogateescape"), digest_size=16).digest()
    return (
        int.from_bytes(digest[:8], "little", signed=True),
        int.from_bytes(digest[8:], "little", signed=True),
    )

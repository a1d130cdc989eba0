"""Which model each thread of a worker works for, in memory that outlives the worker.

A crash in native code, of a graph or of an image's decoder, ends the whole process before it can say anything. So each
thread writes the model and the request into a slot before it begins, and the supervisor reads the slots of a worker that
a signal ended. Marking and clearing a slot takes 0.5 us.
"""

import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

_SLOTS = 512
"""Threads of a worker that can be told apart: at most 256 answer requests."""
_LABEL_BYTES = 160
_ID_BYTES = 80
_ID_AT = 1 + _LABEL_BYTES
_SLOT_BYTES = 256
_WORKER_BYTES = _SLOTS * _SLOT_BYTES

_IDLE, _RUNNING = 0, 1


class NativeRun(msgspec.Struct, frozen=True):
    """A run that did not end before its process did."""

    model: str
    version: str
    request_id: str
    """Id that the client gave the request, shortened; empty if there is none."""


class _ThreadSlots(threading.local):
    """Offset of the slot of the current thread; -1 until it has one."""

    offset = -1
    lease: "_SlotLease | None" = None


class _SlotLease:
    """Returns a slot when its thread has ended, as Python drops what is local to it."""

    def __init__(self, free: list[int], number: int) -> None:
        self._free, self._number = free, number

    def __del__(self) -> None:
        self._free.append(self._number)


class NativeRuns:
    """The slots of one worker, or for the supervisor those of all.

    Args:
        descriptor: Shared memory of all workers, from `create_native_runs`; -1 for memory of this process.
        worker: Number of the worker that writes.
    """

    def __init__(self, descriptor: int = -1, worker: int = 0) -> None:
        self.descriptor = descriptor
        size = _WORKER_BYTES if descriptor < 0 else os.fstat(descriptor).st_size
        self._memory = mmap.mmap(descriptor, size)
        self._start = worker * _WORKER_BYTES
        self._free = list(range(_SLOTS - 1, -1, -1))
        self._threads = _ThreadSlots()

    def mark(self, model: str, version: str) -> "RunMark":
        """Return the mark of a model version, which its runs set and clear."""
        label = f"{model}\0{version}".encode()[:_LABEL_BYTES].ljust(_LABEL_BYTES, b"\0")
        return RunMark(self, self._memory, self._threads, label)

    def take_slot(self) -> int:
        """Give the current thread a slot, and return its offset; the last slot serves all for which none is left."""
        number = self._free.pop() if self._free else _SLOTS - 1
        self._threads.lease = _SlotLease(self._free, number)
        self._threads.offset = self._start + number * _SLOT_BYTES
        return self._threads.offset

    def read(self, worker: int) -> list[NativeRun]:
        """Return what a worker was running, each request once, and clear its slots for the next one."""
        start = worker * _WORKER_BYTES
        runs = []
        for offset in range(start, start + _WORKER_BYTES, _SLOT_BYTES):
            if self._memory[offset] == _RUNNING:
                slot = self._memory[offset : offset + _SLOT_BYTES]
                label = slot[1:_ID_AT].decode(errors="replace").split("\0")
                request_id = slot[_ID_AT : _ID_AT + _ID_BYTES].decode(errors="replace")
                runs.append(NativeRun(label[0], label[1], request_id.split("\0")[0]))
                self._memory[offset] = _IDLE
        return runs


class RunMark:
    """Marks the runs of one model version; safe to use from several threads."""

    def __init__(
        self, runs: NativeRuns, memory: mmap.mmap, threads: _ThreadSlots, label: bytes
    ) -> None:
        self._runs = runs
        self._memory = memory
        self._threads = threads
        self._label = label

    def note_request(self, request_id: str) -> None:
        """Note the request that the current thread answers from now on."""
        offset = self._threads.offset
        if offset < 0:
            offset = self._runs.take_slot()
        start = offset + _ID_AT
        if not request_id:
            self._memory[start] = 0
            return
        encoded = request_id[:_ID_BYTES].encode(errors="replace")[:_ID_BYTES]
        self._memory[start : start + _ID_BYTES] = encoded.ljust(_ID_BYTES, b"\0")

    def begin(self) -> int:
        """Note that the current thread works for the model; return what was noted before, for `end`."""
        offset = self._threads.offset
        if offset < 0:
            offset = self._runs.take_slot()
        memory = self._memory
        before = memory[offset]
        memory[offset + 1 : offset + _ID_AT] = self._label
        memory[offset] = _RUNNING
        return before

    def end(self, before: int = _IDLE) -> None:
        """Note that the current thread does again what it did before `begin`."""
        self._memory[self._threads.offset] = before

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Note that the current thread waits for another process: a crash of this one is not its doing."""
        offset = self._threads.offset
        if offset < 0:
            offset = self._runs.take_slot()
        before, self._memory[offset] = self._memory[offset], _IDLE
        try:
            yield
        finally:
            self._memory[offset] = before


def create_native_runs(workers: int) -> NativeRuns:
    """Create the slots of all workers; child processes inherit their descriptor."""
    descriptor = os.memfd_create("quadriga-native-runs", 0)
    os.ftruncate(descriptor, workers * _WORKER_BYTES)
    return NativeRuns(descriptor)

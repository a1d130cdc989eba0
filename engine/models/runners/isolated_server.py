"""The process of one model: runs its graphs for a worker, within limits of its own, and ends with the worker.

`IsolatedRunner` starts it, and talks with it over lanes: a lane is a connection, with a block of memory that both share; each
has a thread. Messages are MessagePack, and short. Tensors are in the block: written at one end, read at the
other, without pickle. Numbers are there as arrays; texts, and the maps of classifiers, as MessagePack.
"""

import contextlib
import fcntl
import math
import mmap
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from quadriga.engine.models.runners.session import (
    GraphOptions,
    LocalRunner,
    OpenedGraph,
    is_out_of_memory,
    run_options,
)

MAX_BLOCK_BYTES = 4 * 1024**3
"""Maximum size of the block of a lane."""
HEADER_BYTES = 64
"""Bytes before the first tensor; the first one asks the other end to stop."""

_ALIGNMENT = 64


class BlockFullError(MemoryError):
    """The tensors need more memory than the block may have."""


class TensorPlace(msgspec.Struct, frozen=True, array_like=True):
    """Place of a tensor in a block."""

    name: str
    form: Literal["array", "texts", "maps"]
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


class TensorBlock:
    """One block of shared memory, which grows as its tensors need; one process at a time writes.

    Args:
        descriptor: Its descriptor; -1 creates it. It is closed with the block.
    """

    def __init__(self, descriptor: int = -1) -> None:
        if descriptor < 0:
            flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
            descriptor = os.memfd_create("quadriga-tensors", flags)
            os.ftruncate(descriptor, mmap.PAGESIZE)
            # the other end cannot take pages away under our hands
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size)

    @property
    def size_bytes(self) -> int:
        """Size of the block."""
        return len(self._memory)

    def close(self) -> None:
        """Close the descriptor; the memory goes when nothing refers to it."""
        os.close(self.descriptor)

    def ask_to_stop(self, *, stop: bool) -> None:
        """Ask the other end to stop what it does with the tensors, or take that back."""
        self._memory[0] = stop

    def is_asked_to_stop(self) -> bool:
        """Check whether the other end asks to stop."""
        return self._memory[0] != 0

    def write(self, values: Mapping[str, Any], start: int = HEADER_BYTES) -> list[TensorPlace]:
        """Write arrays, and lists of maps, from an offset on.

        Raises:
            BlockFullError: They need more than the maximum size.
        """
        places, encoded, offset = [], [], start
        for name, value in values.items():
            place, content = _encode(name, value)
            offset = -(-offset // _ALIGNMENT) * _ALIGNMENT
            places.append(msgspec.structs.replace(place, offset=offset))
            encoded.append(content)
            offset += place.size_bytes
        self._grow(offset)
        for place, content in zip(places, encoded, strict=True):
            end = place.offset + place.size_bytes
            if isinstance(content, np.ndarray):
                if not content.size:
                    continue
                target: Any = np.frombuffer(
                    self._memory, content.dtype, count=content.size, offset=place.offset
                )
                target.reshape(content.shape)[...] = content
            else:
                self._memory[place.offset : end] = content
        return places

    def read(self, places: Sequence[TensorPlace], *, copy: bool) -> dict[str, Any]:
        """Return the tensors at these places: views of the block, or copies.

        Raises:
            ValueError: A place is outside of the block.
        """
        end = max((place.offset + place.size_bytes for place in places), default=0)
        if end > len(self._memory):
            self._memory = mmap.mmap(self.descriptor, os.fstat(self.descriptor).st_size)
        return {place.name: self._decode(place, copy=copy) for place in places}

    def _decode(self, place: TensorPlace, *, copy: bool) -> Any:
        if place.form == "array":
            count = math.prod(place.shape)
            if not count:
                return np.empty(place.shape, np.dtype(place.dtype))
            array = np.frombuffer(
                self._memory, np.dtype(place.dtype), count=count, offset=place.offset
            ).reshape(place.shape)
            return array.copy() if copy else array
        content = self._memory[place.offset : place.offset + place.size_bytes]
        if place.form == "maps":
            return msgspec.msgpack.decode(content, strict=False)
        texts = np.empty(math.prod(place.shape), object)
        texts[:] = msgspec.msgpack.decode(content)
        return texts.reshape(place.shape)

    def _grow(self, size_bytes: int) -> None:
        if size_bytes <= len(self._memory):
            return
        if size_bytes > MAX_BLOCK_BYTES:
            raise BlockFullError(
                f"expected tensors of at most {MAX_BLOCK_BYTES} bytes, got {size_bytes}"
            )
        pages = -(-size_bytes // mmap.PAGESIZE)
        os.ftruncate(self.descriptor, pages * mmap.PAGESIZE)
        self._memory = mmap.mmap(self.descriptor, pages * mmap.PAGESIZE)


def _encode(name: str, value: Any) -> tuple[TensorPlace, Any]:
    """Return the place of a tensor, without its offset, and its content."""
    if not isinstance(value, np.ndarray):
        content = msgspec.msgpack.encode(value)
        return TensorPlace(name, "maps", "", (), 0, len(content)), content
    if value.dtype == object or value.dtype.kind == "U":
        content = msgspec.msgpack.encode(value.ravel().tolist())
        return TensorPlace(name, "texts", "", value.shape, 0, len(content)), content
    return TensorPlace(name, "array", value.dtype.str, value.shape, 0, value.nbytes), value


class RunGraph(msgspec.Struct, frozen=True, tag="run"):
    """Asks for a run; the feeds are in the block of the lane."""

    graph: int
    outputs: list[str]
    feeds: list[TensorPlace]


class OutputPlaces(msgspec.Struct, frozen=True, tag="answered"):
    """The run has ended; the outputs are in the block of the lane."""

    places: list[TensorPlace]


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """It failed."""

    reason: str
    lacks_memory: bool = False


Request = GraphOptions | RunGraph
Answer = OpenedGraph | OutputPlaces | Failed


_STOP_INTERVAL_S = 0.02
_OOM_SCORE = "700"
"""Makes the kernel end this process before the server, if the machine has no memory left."""
_MAX_REASON_CHARACTERS = 4000


def main() -> None:
    """Run until the worker ends.

    Arguments are numbers: the read end of a pipe to which nobody writes and whose other end the worker has, the socket
    that brings the lanes, and the two limits of `limit_resources`.
    """
    lifeline_fd, control_fd, memory_bytes, cpu_s = map(int, sys.argv[1:5])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends these to the whole group, but
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the worker decides when this process ends
    end_with_worker(lifeline_fd)
    limit_resources(memory_bytes, cpu_s)
    GraphServer().run(socket.socket(fileno=control_fd))


def end_with_worker(lifeline_fd: int) -> None:
    """Let the kernel end this process when the other end of a pipe is closed, whatever native code runs here."""
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(lifeline_fd, fcntl.F_GETFL)
    fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, flags | os.O_ASYNC)
    # `select` takes no descriptor from 1,024 on, which a worker with many clients has
    ended = select.poll()
    ended.register(lifeline_fd, select.POLLIN)
    if ended.poll(0):
        os._exit(0)  # the worker has ended already


def limit_resources(memory_bytes: int, cpu_s: int) -> None:
    """Limit the private memory of this process, beyond what it has now, and its CPU seconds; 0: no limit.

    Where memory is short, it ends before the processes of the server.

    RLIMIT_DATA counts private writable memory: neither files that are mapped nor the blocks of tensors.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # writing a core file would delay the restart
    with contextlib.suppress(OSError):  # some containers do not allow it
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    if memory_bytes:
        status = Path("/proc/self/status").read_text().splitlines()
        (data_kib,) = (line.split()[1] for line in status if line.startswith("VmData:"))
        limit = int(data_kib) * 1024 + memory_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    if cpu_s:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))


class GraphServer:
    """The graphs of the model, and the lanes on which it is asked."""

    def __init__(self) -> None:
        self._runner = LocalRunner(ends_with_device=True)
        self._lock = threading.Lock()
        self._running: dict[TensorBlock, Any] = {}
        """onnxruntime's options of the runs that may be asked to stop, by their block."""
        self._has_runs = threading.Event()

    def run(self, control: socket.socket) -> None:
        """Open a lane for each pair of descriptors that arrives, until the worker closes the socket."""
        threading.Thread(target=self._stop_runs, daemon=True).start()
        while True:
            data, descriptors, _, _ = socket.recv_fds(control, 1, 2)
            if not data:
                os._exit(0)
            connection_fd, block_fd = descriptors
            arguments = Connection(connection_fd), TensorBlock(block_fd)
            threading.Thread(target=self._serve_lane, args=arguments, daemon=True).start()

    def _serve_lane(self, connection: Connection, block: TensorBlock) -> None:
        decoder = msgspec.msgpack.Decoder(Request)
        try:
            while True:
                answer = self._answer(decoder.decode(connection.recv_bytes()), block)
                connection.send_bytes(msgspec.msgpack.encode(answer))
        except (EOFError, OSError):  # the worker closed the lane
            connection.close()
            block.close()

    def _answer(self, request: Request, block: TensorBlock) -> Answer:
        try:
            if isinstance(request, RunGraph):
                return self._run_graph(request, block)
            with self._lock:
                return self._runner.open(request)
        except UnicodeDecodeError as error:
            return Failed(f"expected the texts it answers in UTF-8, got: {error}")
        except Exception as error:  # noqa: BLE001 - whatever it is, the worker is told
            text = str(error)
            lacks_memory = isinstance(error, MemoryError) or is_out_of_memory(text)
            return Failed(text[:_MAX_REASON_CHARACTERS], lacks_memory)

    def _run_graph(self, request: RunGraph, block: TensorBlock) -> OutputPlaces:
        feeds = block.read(request.feeds, copy=False)
        options = run_options()
        self._running[block] = options
        self._has_runs.set()
        try:
            results = self._runner.run(request.graph, request.outputs, feeds, options)
        finally:
            del self._running[block]
        start = max((place.offset + place.size_bytes for place in request.feeds), default=0)
        outputs = dict(zip(request.outputs, results, strict=True))
        return OutputPlaces(block.write(outputs, max(start, HEADER_BYTES)))

    def _stop_runs(self) -> None:
        """Stop the runs that the worker asks to stop."""
        while True:
            if not self._running:
                self._has_runs.wait()
                self._has_runs.clear()
            for block, options in list(self._running.items()):
                if block.is_asked_to_stop():
                    options.terminate = True
            time.sleep(_STOP_INTERVAL_S)


if __name__ == "__main__":
    main()

"""The process of one model: runs its graphs for a worker, within limits of its own, and ends with the worker.

It is started by `quadriga.engine.models.runners.graph_process`. A lane is a connection with a block of tensors; each has a thread.
"""

import contextlib
import fcntl
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from quadriga.engine.models.runners.graph_messages import (
    HEADER_BYTES,
    Answer,
    Answered,
    Failed,
    NodeInfo,
    Opened,
    OpenGraph,
    PeerEndedError,
    Receiver,
    Request,
    RunGraph,
    TensorBlock,
    send,
)
from quadriga.engine.models.runners.session import (
    GraphOptions,
    LocalGraph,
    LocalGraphs,
    is_out_of_memory,
    run_options,
)

_STOP_INTERVAL_S = 0.02
_OOM_SCORE = "700"
"""Makes the kernel end this process before the server, if the machine has no memory left."""
_MAX_REASON_CHARACTERS = 4000


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the process, one JSON argument."""

    lifeline_fd: int
    """Read end of a pipe to which nobody writes; the worker has the other end."""
    control_fd: int
    """Socket that brings the lanes."""
    memory_bytes: int
    """Memory that the process may have more than at its start; 0: no limit."""
    cpu_s: int
    """Seconds of CPU that it may use; 0: no limit."""
    block_bytes: int
    """Maximum size of the block of a lane."""


def main() -> None:
    """Run until the worker ends."""
    options = msgspec.json.decode(sys.argv[1], type=ServerOptions)
    begin_below_worker(options.lifeline_fd, options.memory_bytes, options.cpu_s)
    GraphServer(options.block_bytes).run(socket.socket(fileno=options.control_fd))


def begin_below_worker(lifeline_fd: int, memory_bytes: int, cpu_s: int = 0) -> None:
    """Prepare this process to end when its worker does or says so, and to take no more than it may."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends these to the whole group, but
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the worker decides when this process ends
    end_with_worker(lifeline_fd)
    limit_resources(memory_bytes, cpu_s)


def end_with_worker(lifeline_fd: int) -> None:
    """Let the kernel end this process when the other end of a pipe is closed, whatever native code runs here."""
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(lifeline_fd, fcntl.F_GETFL)
    fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, flags | os.O_ASYNC)
    ended = (
        select.poll()
    )  # `select` takes no descriptor from 1,024 on, which a worker with many clients has
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

    def __init__(self, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._graphs: list[LocalGraph] = []
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
            arguments = (
                socket.socket(fileno=connection_fd),
                TensorBlock(block_fd, self._block_bytes),
            )
            threading.Thread(target=self._serve_lane, args=arguments, daemon=True).start()

    def _serve_lane(self, connection: socket.socket, block: TensorBlock) -> None:
        receiver = Receiver(connection, Request)
        try:
            while True:
                send(connection, self._answer(receiver.receive(), block))
        except PeerEndedError:
            connection.close()
            block.close()

    def _answer(self, request: Request, block: TensorBlock) -> Answer:
        try:
            if isinstance(request, OpenGraph):
                return self._open(request)
            return self._run_graph(request, block)
        except UnicodeDecodeError as error:
            return Failed(f"expected the texts it answers in UTF-8, got: {error}")
        except Exception as error:  # noqa: BLE001 - whatever it is, the worker is told
            return Failed(str(error)[:_MAX_REASON_CHARACTERS], _kind(error))

    def _open(self, request: OpenGraph) -> Opened:
        graph = LocalGraphs(ends_with_device=True).open(
            GraphOptions(
                path=request.path,
                modified_model=request.modified_model,
                providers=request.providers,
                intra_op_threads=request.intra_op_threads,
            )
        )
        with self._lock:
            self._graphs.append(graph)
            number = len(self._graphs) - 1
        return Opened(
            number,
            [NodeInfo(node.name, node.type, node.shape) for node in graph.get_inputs()],
            [NodeInfo(node.name, node.type, node.shape) for node in graph.get_outputs()],
            list(graph.get_providers()),
        )

    def _run_graph(self, request: RunGraph, block: TensorBlock) -> Answered:
        feeds = block.read(request.feeds, copy=False)
        options = run_options()
        self._running[block] = options
        self._has_runs.set()
        try:
            results = self._graphs[request.graph].run(request.outputs, feeds, options)
        finally:
            del self._running[block]
        start = max((place.offset + place.size_bytes for place in request.feeds), default=0)
        outputs = dict(zip(request.outputs, results, strict=True))
        return Answered(block.write(outputs, max(start, HEADER_BYTES)))

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


def _kind(error: Exception) -> Any:
    """Tell an error for lack of memory from others."""
    if isinstance(error, MemoryError) or is_out_of_memory(str(error)):
        return "memory"
    return "error"


if __name__ == "__main__":
    main()

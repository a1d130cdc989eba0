"""Closed loops of requests, and CPU time of a server with all its processes and of the rest of the machine.

What a server starts stays below this process: one that loses its parent becomes a child of it.
"""

import ctypes
import selectors
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import grpc
import psutil
from bare_application import SERVICE

PR_SET_CHILD_SUBREAPER = 36
CPU_CLOCK = 2
"""Kind of a process's clock that counts its time on processors, of ended threads too."""
CONNECTIONS = 8
LIMIT_S = 60
"""Seconds after which a request without an answer is an error."""

Answer = tuple[bytes, bytes]
"""Head, empty over gRPC, and body of an answer."""


class HttpLoad:
    """A closed loop over HTTP, on one thread.

    Args:
        host: `name:port` of the server.
        connections: Number of requests under way.
    """

    def __init__(self, host: str, connections: int = CONNECTIONS) -> None:
        name, _, port = host.partition(":")
        self._address = name, int(port)
        self.connections = connections
        self._sockets: list[socket.socket] = []
        self._selector = selectors.DefaultSelector()

    def connect(self) -> None:
        """Open the connections again: servers close those that send nothing for long."""
        self.close()
        self._sockets = [socket.create_connection(self._address) for _ in range(self.connections)]
        for connection in self._sockets:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(connection, selectors.EVENT_READ)
        time.sleep(0.02)

    def __call__(self, requests: Sequence[bytes], count: int) -> list[tuple[int, Answer]]:
        """Send requests in turns; return each answer with the number of its request."""
        answers: list[tuple[int, Answer]] = []
        sent = 0
        pending: dict[socket.socket, tuple[int, bytearray]] = {}

        def send(connection: socket.socket) -> None:
            nonlocal sent
            number = sent % len(requests)
            pending[connection] = number, bytearray()
            connection.sendall(requests[number])
            sent += 1

        for connection in self._sockets[:count]:
            send(connection)
        while pending:
            ready = self._selector.select(LIMIT_S)
            if not ready:
                raise TimeoutError(f"expected an answer within {LIMIT_S} s, got none")
            for key, _ in ready:
                source: Any = key.fileobj
                number, received = pending[source]
                received += source.recv(1 << 20)
                answer = _complete_answer(received)
                if answer is None:
                    continue
                answers.append((number, answer))
                del pending[source]
                if sent < count:
                    send(source)
        return answers

    def close(self) -> None:
        """Close the connections."""
        for connection in self._sockets:
            self._selector.unregister(connection)
            connection.close()
        self._sockets = []


def _complete_answer(received: bytearray) -> Answer | None:
    head, separator, body = received.partition(b"\r\n\r\n")
    if not separator:
        if not received:
            raise ConnectionError("expected an answer, got the end of the connection")
        return None
    _, _, rest = head.lower().partition(b"\r\ncontent-length: ")
    if rest:
        return (bytes(head), bytes(body)) if len(body) >= int(rest.split(b"\r\n")[0]) else None
    return (bytes(head), _joined_chunks(body)) if body.endswith(b"0\r\n\r\n") else None


def _joined_chunks(body: bytearray) -> bytes:
    """Join the chunks of a body whose length was not known at its beginning."""
    chunks, rest = [], bytes(body)
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        chunks.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    return b"".join(chunks)


class GrpcLoad:
    """A closed loop over gRPC, one channel for each connection.

    Args:
        address: `host:port` of the server.
        connections: Number of requests under way.
    """

    def __init__(self, address: str, connections: int = CONNECTIONS) -> None:
        self.connections = connections
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channels = [grpc.insecure_channel(address, options) for _ in range(connections)]
        self._calls: list[Any] = [
            channel.unary_unary(f"/{SERVICE}/ModelInfer") for channel in self._channels
        ]
        self._pool = ThreadPoolExecutor(connections)

    def connect(self) -> None:
        """Leave it to grpc, which connects again by itself."""

    def __call__(self, requests: Sequence[bytes], count: int) -> list[tuple[int, Answer]]:
        """Send requests in turns; return each answer with the number of its request."""

        def send(first: int) -> list[tuple[int, Answer]]:
            call, step = self._calls[first], len(self._calls)
            return [
                (
                    number % len(requests),
                    (b"", call(requests[number % len(requests)], timeout=LIMIT_S)),
                )
                for number in range(first, count, step)
            ]

        return [answer for part in self._pool.map(send, range(len(self._calls))) for answer in part]

    def close(self) -> None:
        """Close the channels."""
        self._pool.shutdown()
        for channel in self._channels:
            channel.close()


def adopt_orphans() -> None:
    """Become the parent of each process below this one that loses its own."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[int]:
    """Return the processes below this one."""
    return [process.pid for process in psutil.Process().children(recursive=True)]


def process_cpu_ns(pid: int) -> int:
    """Return the CPU time of a process, 0 if it has ended."""
    with suppress(OSError):
        return time.clock_gettime_ns(((~pid) << 3) | CPU_CLOCK)
    return 0


class CpuMeter:
    """CPU time since its beginning, of the processes below this one, of this one, and of the rest of the machine."""

    def __init__(self) -> None:
        self._begun = {pid: process_cpu_ns(pid) for pid in descendants()}
        self._own_begun_s, self._begun_s = time.process_time(), time.perf_counter()
        self._machine_begun_s = machine_cpu_s()

    def server_s(self) -> float:
        """Return the CPU seconds of the processes below; each new process counts from its start."""
        return sum(process_cpu_ns(pid) - self._begun.get(pid, 0) for pid in descendants()) / 1e9

    def neighbour_cores(self) -> float:
        """Return how many cores were busy with neither of them."""
        own_s = time.process_time() - self._own_begun_s
        used_s = machine_cpu_s() - self._machine_begun_s - self.server_s() - own_s
        return max(0.0, used_s / (time.perf_counter() - self._begun_s))


def machine_cpu_s() -> float:
    """Return the CPU seconds of all processes of the machine, and what its host took away.

    Interrupts are left out: those of the network are for the server and its client.
    """
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.steal)


def cpu_ns(pids: Sequence[int]) -> int:
    """Sum the CPU time of processes, nanoseconds."""
    return sum(map(process_cpu_ns, pids))


def settle(pids: Sequence[int], limit_s: float = 3.0) -> None:
    """Wait until processes use less than a fiftieth of a core, as when all is stored."""
    end_s, before_ns = time.monotonic() + limit_s, cpu_ns(pids)
    while time.monotonic() < end_s:
        time.sleep(0.1)
        now_ns = cpu_ns(pids)
        if now_ns - before_ns < 2_000_000:
            return
        before_ns = now_ns


def end_all(wait_s: float = 10) -> None:
    """End every process below this one: asked first, then at once."""
    for end in (psutil.Process.terminate, psutil.Process.kill):
        processes = psutil.Process().children(recursive=True)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                end(process)
        psutil.wait_procs(processes, timeout=wait_s)


def percentile(values: Sequence[float], part: float) -> float:
    """Return the value below which a part of the values lies."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)]

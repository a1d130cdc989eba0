"""Closed loops of requests over HTTP and gRPC, and the CPU time of processes, for benchmarks that measure servers."""

import selectors
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from bare_application import SERVICE

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
        self.latencies_s: list[float] = []
        """Seconds of each answer of the last load, in the order of the answers."""
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
        self.latencies_s = []
        sent = 0
        pending: dict[socket.socket, tuple[int, bytearray, float]] = {}

        def send(connection: socket.socket) -> None:
            nonlocal sent
            number = sent % len(requests)
            pending[connection] = number, bytearray(), time.perf_counter()
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
                number, received, begun_s = pending[source]
                received += source.recv(1 << 20)
                answer = _complete_answer(received)
                if answer is None:
                    continue
                self.latencies_s.append(time.perf_counter() - begun_s)
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
        self.latencies_s: list[float] = []
        """Seconds of each answer of the last load."""

    def connect(self) -> None:
        """Leave it to grpc, which connects again by itself."""

    def __call__(self, requests: Sequence[bytes], count: int) -> list[tuple[int, Answer]]:
        """Send requests in turns; return each answer with the number of its request."""
        self.latencies_s = []

        def send(first: int) -> list[tuple[int, Answer]]:
            call = self._calls[first]
            answers = []
            for sent in range(first, count, len(self._calls)):
                number, begun_s = sent % len(requests), time.perf_counter()
                answers.append((number, (b"", call(requests[number], timeout=LIMIT_S))))
                self.latencies_s.append(time.perf_counter() - begun_s)
            return answers

        return [answer for part in self._pool.map(send, range(len(self._calls))) for answer in part]

    def close(self) -> None:
        """Close the channels."""
        self._pool.shutdown()
        for channel in self._channels:
            channel.close()


def cpu_ns(pids: Sequence[int]) -> int:
    """Sum the CPU time of all threads of processes, in nanoseconds, as the scheduler counts it."""
    total = 0
    for pid in pids:
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            try:
                total += int(path.read_text().split()[0])
            except (FileNotFoundError, ProcessLookupError):  # it has ended since it was listed
                continue
    return total

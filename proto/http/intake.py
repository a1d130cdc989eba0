"""What one process takes in at once: the bytes of request bodies over all connections, and the time that a body has.

A body counts from its first byte until its response is complete, however it waits. Only received bytes count, so a
client that announces much holds nothing back from others. What a body becomes by decompression counts besides, for as
long as it is there, and so does an answer over gRPC, which is held until its client has read it.
"""

import asyncio
import logging
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from litestar.types import Receive, Scope
from litestar.types.asgi_types import HTTPReceiveMessage

from quadriga.proto.errors import IntakeFull, TooSlow
from quadriga.proto.http.asgi import BODY_EXTENSION
from quadriga.proto.request import Accounting, current_request, outcome_of_status

BYTES_PER_S = 32 * 1024
"""Bytes of a body, or of an answer that a client reads, that add a second to its time: slower clients hold memory for hours."""


SPARE_HANDSHAKES = 32
"""Connections beyond the maximum that may shake hands, to be told so by an answer; then the oldest is closed."""

_log = logging.getLogger("quadriga.http")


class _Hold:
    """A context in which bytes are held; as a class it takes a third of what a generator does."""

    __slots__ = ("_intake", "_size")

    def __init__(self, intake: "Intake", size: int) -> None:
        self._intake, self._size = intake, size

    def __enter__(self) -> None:
        self._intake.take(self._size)

    def __exit__(self, *_: object) -> None:
        self._intake.give_back(self._size)


class Intake:
    """Bytes of the bodies that a process holds, with their limits, and what was refused.

    Used on one event loop; `take`, `add`, `give_back` and `expanding` on any thread.

    Args:
        max_bytes: Maximum bytes of all bodies together.
        body_timeout_s: Time that a body has to arrive, and for which one may stand still.
        bytes_per_s: Rate at which a body goes on for as long as it takes; None for `BYTES_PER_S`.
        accounting: Counts requests that are refused before they are read.
    """

    def __init__(
        self,
        max_bytes: int = 512 * 1024 * 1024,
        body_timeout_s: float = 30.0,
        bytes_per_s: int | None = None,
        *,
        accounting: Accounting | None = None,
    ) -> None:
        self._accounting = accounting or Accounting()
        self.max_bytes = max_bytes
        self.body_timeout_s = body_timeout_s
        self.bytes_per_s = BYTES_PER_S if bytes_per_s is None else bytes_per_s
        self.held_bytes = 0
        self.refused_bodies = 0
        self.late_bodies = 0
        self.refused_connections = 0
        self.displaced = 0
        self._lock = threading.Lock()

    def counters(self) -> dict[str, int]:
        """Return what is held and what was refused, for metrics; names that end in `_total` only rise."""
        return {
            "body_bytes": self.held_bytes,
            "bodies_refused_total": self.refused_bodies,
            "bodies_late_total": self.late_bodies,
            "connections_refused_total": self.refused_connections,
            "connections_displaced_total": self.displaced,
        }

    def note_refusal(self, status: int) -> None:
        """Count a request that was refused while it was read, as it was malformed or there were too many connections."""
        self._accounting.count_unread(outcome_of_status(status))

    def hold(self, size: int) -> "_Hold":
        """Hold the bytes of a body that has arrived within a context; to begin it raises IntakeFull if they are too many."""
        return _Hold(self, size)

    @contextmanager
    def expanding(self) -> Iterator[Callable[[int], None]]:
        """Return a function that takes bytes of a body that is decompressed, or gives some back, up to the end."""
        held = 0

        def hold(size: int) -> None:
            nonlocal held
            if size > 0:
                self.take(size)
            else:
                self.give_back(-size)
            held += size

        try:
            yield hold
        finally:
            self.give_back(held)

    def take(self, size: int, announced: int = 0) -> None:
        """Count bytes that have arrived, if they and those `announced` to follow have room.

        Raises:
            IntakeFull: They have not.
        """
        with self._lock:
            has_room = self.held_bytes + size + announced <= self.max_bytes
            if has_room:
                self.held_bytes += size
            else:
                self.refused_bodies += 1
        if not has_room:
            raise IntakeFull(
                f"expected at most {self.max_bytes} bytes of request bodies at once, got more"
            )

    def add(self, size: int) -> None:
        """Count bytes that are there whether they have room or not; further bodies find less."""
        with self._lock:
            self.held_bytes += size

    def give_back(self, size: int) -> None:
        """Count bytes no more."""
        with self._lock:
            self.held_bytes -= size

    def receiving(self, scope: Scope, receive: Receive) -> AbstractContextManager[Receive]:
        """Return a `receive` that counts a request's body and limits its time; its bytes are held until the end."""
        return _Body(self, scope, receive)


class _Body(AbstractContextManager[Receive]):
    """The body of one request, as it arrives."""

    def __init__(self, intake: Intake, scope: Scope, receive: Receive) -> None:
        self._intake = intake
        self._scope = scope
        self._receive = receive
        self._left_s = intake.body_timeout_s
        """Time for which the body may still not go on: bytes add to it, and never more than it was at first."""
        self._begun = False
        self._complete = False
        self.size = 0

    def __enter__(self) -> Receive:
        return self.receive

    def __exit__(self, *_: object) -> None:
        self._intake.give_back(self.size)

    async def receive(self) -> HTTPReceiveMessage:
        """Receive the next message of a request.

        Raises:
            IntakeFull: All bodies together are too large.
            TooSlow: The body does not arrive in time.
        """
        if self._complete:  # what follows is the end of the connection
            return await self._receive()  # type: ignore[return-value]  # no websockets
        if not self._begun:
            self._begun = True
            self._intake.take(0, announced=self._announced())
            if (body := self._whole()) is not None:
                self._intake.take(len(body))
                self.size, self._complete = len(body), True
                return {"type": "http.request", "body": body, "more_body": False}
        message = await self._next_in_time()
        if message["type"] != "http.request":
            self._complete = True
            if (request := current_request()) is not None:
                request.has_left = True
            return message
        size = len(message["body"])
        self._intake.take(size)
        self.size += size
        gained_s = size / self._intake.bytes_per_s
        self._left_s = min(self._left_s + gained_s, self._intake.body_timeout_s)
        self._complete = not message["more_body"]
        return message

    def _whole(self) -> bytes | None:
        take_body: Any = (self._scope.get("extensions") or {}).get(BODY_EXTENSION)
        body: bytes | None = None if take_body is None else take_body()
        return body

    def _announced(self) -> int:
        for name, value in self._scope["headers"]:
            if name == b"content-length" and value.isdigit():
                return int(value)
        return 0

    async def _next_in_time(self) -> HTTPReceiveMessage:
        """Wait for a message; the time between messages is the server's and does not count."""
        intake, loop = self._intake, asyncio.get_running_loop()
        began_s = loop.time()
        try:
            async with asyncio.timeout(self._left_s):
                message = await self._receive()
        except TimeoutError:
            intake.late_bodies += 1
            raise TooSlow(
                f"expected a whole body within {intake.body_timeout_s:g} s, or one that goes on by "
                f"{intake.bytes_per_s} bytes a second, got {self.size} bytes so far"
            ) from None
        self._left_s -= loop.time() - began_s
        return message  # type: ignore[return-value]  # no websockets


_ACKED_AT = 120
"""Offset of the bytes that were acknowledged in the state of a TCP connection."""


def arrived_bytes(connection: socket.socket) -> int:
    """Return how many bytes the client's system has acknowledged.

    Source: Linux, include/uapi/linux/tcp.h, tcpi_bytes_acked of struct tcp_info.
    """
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED_AT + 8)
    except (OSError, AttributeError):  # closed meanwhile
        return 0
    return int.from_bytes(info[_ACKED_AT:], sys.byteorder)


class Acceptor:
    """Accepts connections, and shakes hands with those of TLS, each in a task; used on one event loop.

    Args:
        make_protocol: Makes the protocol of a connection.
        make_place: Makes a place for a connection with TLS before its handshake; returns whether it has one.
        name: What the log calls the connections.
        handshake_timeout_s: Maximum time of a handshake.
        last_bytes_timeout_s: Time that a client has to read what was written before its connection with TLS was closed.
    """

    def __init__(
        self,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        make_place: Callable[[], bool],
        *,
        name: str,
        handshake_timeout_s: float,
        last_bytes_timeout_s: float,
    ) -> None:
        self.tls: ssl.SSLContext | None = None
        """None: connections have no TLS."""
        self._make_protocol, self._make_place = make_protocol, make_place
        self._name = name
        self._timeouts_s = {
            "ssl_handshake_timeout": handshake_timeout_s,
            "ssl_shutdown_timeout": last_bytes_timeout_s,
        }
        self._connecting: dict[asyncio.Task[None], None] = {}
        self._accepting: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._connecting)

    def start(self, listener: socket.socket) -> None:
        """Accept the connections of a listening socket, one by one, so that workers that share it share them too."""
        listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(listener))

    def stop(self) -> None:
        """Accept no more, and close the listening socket."""
        if self._accepting is not None:
            self._accepting.cancel()

    async def finish(self, waiting: Iterable[socket.socket], timeout_s: float) -> None:
        """Connect those that were accepted already, within some time."""
        for connection in waiting:
            self._begin(connection)
        if self._connecting:
            await asyncio.wait(self._connecting, timeout=timeout_s)
        for connecting in self._connecting:
            connecting.cancel()

    def end_one(self) -> bool:
        """End the handshake that has lasted longest; return whether there was one."""
        if not self._connecting:
            return False
        longest = next(iter(self._connecting))
        del self._connecting[longest]
        longest.cancel()
        return True

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                try:
                    connection, _ = await loop.sock_accept(listener)
                except ConnectionAbortedError:  # the client left
                    continue
                except OSError as error:
                    text = "cannot accept connections%s for a second: %s"
                    _log.error(text, self._name, error.strerror)
                    await asyncio.sleep(1.0)
                    continue
                self._begin(connection)

    def _begin(self, connection: socket.socket) -> None:
        if self.tls is not None and not self._make_place():
            connection.close()
            return
        connecting = asyncio.create_task(self._connect(connection))
        self._connecting[connecting] = None
        connecting.add_done_callback(lambda done: self._connecting.pop(done, None))

    async def _connect(self, connection: socket.socket) -> None:
        loop, timeouts_s = asyncio.get_running_loop(), self._timeouts_s if self.tls else {}
        try:
            await loop.connect_accepted_socket(
                self._make_protocol, connection, ssl=self.tls, **timeouts_s
            )
        except (Exception, asyncio.CancelledError):  # noqa: BLE001 - a client without TLS, or that left
            connection.close()

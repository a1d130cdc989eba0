"""gRPC answers on their way: their bytes count until they have left, and a client has to read them.

grpc takes an answer from its handler and holds it until the client has read it, however long that takes. It offers no
way to end one call of a client that reads none, so the whole connection is closed, as over HTTP.
"""

import asyncio
import logging
import socket
from contextlib import suppress
from typing import Any

from quadriga.proto.intake import Intake
from quadriga.proto.sockets import arrived_bytes, connections, peer_of

UNASKED_BYTES = 65_535
"""Bytes of an answer that a client takes before it has read any.

Source: RFC 9113, section 6.9.2.
"""

_log = logging.getLogger(__name__)


class _Answer:
    """An answer that grpc holds, and what is known of it once it is not read at once."""

    __slots__ = ("arrived_before", "seen_s", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.seen_s = 0.0
        """When it was first seen waiting; 0 before."""
        self.arrived_before = -1
        """Bytes of its connection that had arrived when it was seen for the second time."""


class Departures:
    """Answers that grpc holds, by their calls; used on one event loop.

    The client has the time that a body has to arrive, and as over HTTP each byte that it reads adds as much as one of a body.
    All answers are looked at twice in this time, so that those which are read at once, nearly all, cost next to nothing:
    no timer, and no look at their connection. A client may so have half as much again.

    Args:
        intake: Counts the bytes, and has the time.
    """

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._answers: dict[Any, _Answer] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self.port = 0
        """Port of the server, once it is known."""

    def begin(self, context: Any, size_bytes: int) -> None:
        """Count an answer that is handed to grpc, whatever there is: to refuse it would waste the work."""
        self._intake.add(size_bytes)
        self._answers[context] = _Answer(size_bytes)
        if self._sweep is None:
            loop = asyncio.get_running_loop()
            self._sweep = loop.call_later(self._intake.body_timeout_s / 2, self._look)

    def end(self, context: Any) -> None:
        """Count the answer of a call no more, if there is one: it has left, or its call has ended."""
        answer = self._answers.pop(context, None)
        if answer is not None:
            self._intake.give_back(answer.size_bytes)

    async def write(self, context: Any, message: Any, size_bytes: int) -> None:
        """Send one of several messages of a call, and wait until all but its end has left."""
        self.begin(context, size_bytes)
        try:
            await context.write(message)
        finally:
            self.end(context)

    def _look(self) -> None:
        """Look at the answers that have not left, and come again as long as there are any."""
        self._sweep = None
        if not self._answers:
            return
        loop = asyncio.get_running_loop()
        self._sweep = loop.call_later(self._intake.body_timeout_s / 2, self._look)
        now_s, waiting = loop.time(), []
        for context, answer in self._answers.items():
            if answer.seen_s:
                waiting.append((context, answer))
            else:
                answer.seen_s = now_s
        if waiting:
            self._close_unread(waiting, now_s)

    def _close_unread(self, waiting: list[tuple[Any, _Answer]], now_s: float) -> None:
        unread = set()
        with connections(self.port) as sockets:
            for context, answer in waiting:
                peer = peer_of(context.peer())
                connection = None if peer is None else sockets.get(peer)
                if connection is not None and self._is_late(answer, connection, now_s):
                    unread.add(connection)
            for connection in unread:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        if unread:
            text = "closed %d connections of gRPC whose clients did not read an answer within %g s"
            _log.warning(text, len(unread), self._intake.body_timeout_s)

    def _is_late(self, answer: _Answer, connection: socket.socket, now_s: float) -> bool:
        arrived = arrived_bytes(connection)
        if answer.arrived_before < 0:
            answer.arrived_before = arrived
        read_bytes = min(arrived - answer.arrived_before, answer.size_bytes)
        allowed_s = self._intake.body_timeout_s + read_bytes / self._intake.bytes_per_s
        return now_s - answer.seen_s >= allowed_s

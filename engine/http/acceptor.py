"""Accepts connections from a socket that several workers share, so that each holds as many as the others.

The kernel wakes all of them for a new connection, and takes no account of how many each has: eight clients that keep
their connections may all wait for one worker. So a worker that has more than another one leaves a new connection for a
moment to the others, and takes it only if none of them does.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Any

from quadriga.engine.measures.readiness import ProcessStates

LOOK_INTERVAL_S = 0.002
"""How long a connection is left to the other workers between two looks."""

PATIENCE_S = 0.02
"""How long it is left to them in all: one of them may be busy, or hang."""

_FULL = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_FULL_PAUSE_S = 1.0

_log = logging.getLogger("quadriga")


class FairAcceptor:
    """Accepts for one worker, on the running event loop, from its construction to `close`.

    It has the methods of a server of asyncio that uvicorn calls.

    Args:
        listener: The listening socket; it stays open.
        connect: Makes the transport of an accepted connection; what it raises ends that connection alone.
        count: Returns how many connections the worker has.
        states: The connections of all workers.
        name: The worker's name among the states.
    """

    def __init__(
        self,
        listener: socket.socket,
        connect: Callable[[socket.socket], Any],
        *,
        count: Callable[[], int],
        states: ProcessStates,
        name: str,
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._connect = connect
        self._count = count
        self._states = states
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._connecting: set[asyncio.Task[None]] = set()
        self._left_s: float | None = None
        """When a connection was left to the others first; None where none is."""
        self._pause: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._resume()

    def close(self) -> None:
        """Accept no more; what was accepted goes on. It may be called again after the socket was closed."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._listener)
        if self._pause is not None:
            self._pause.cancel()

    async def wait_closed(self) -> None:
        """Wait until what was accepted before `close` is connected."""
        if self._connecting:
            await asyncio.wait(self._connecting)

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._look)

    def _pause_for(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener)
        self._pause = self._loop.call_later(seconds, self._resume)

    def _look(self) -> None:
        """Take the connection that waits, or leave it to the others for now."""
        connections = self._count() + len(self._connecting)
        self._states.set_connections(self._name, connections)
        if connections > self._states.fewest_connections() and self._leaves():
            self._pause_for(LOOK_INTERVAL_S)
            return
        self._left_s = None
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another worker was quicker, or the client left
        except OSError as error:
            if error.errno not in _FULL:
                raise
            _log.error("cannot accept connections for a second: %s", error.strerror)
            self._pause_for(_FULL_PAUSE_S)
            return
        self._states.set_connections(self._name, connections + 1)
        connecting = self._loop.create_task(self._make_transport(connection))
        self._connecting.add(connecting)
        connecting.add_done_callback(self._connecting.discard)

    def _leaves(self) -> bool:
        """Check whether the connection that waits is left to the others still."""
        now_s = self._loop.time()
        # A pause that ended long ago was for another connection, which was taken.
        if self._left_s is None or now_s - self._left_s > 2 * PATIENCE_S:
            self._left_s = now_s
        return now_s - self._left_s < PATIENCE_S

    async def _make_transport(self, connection: socket.socket) -> None:
        try:
            await self._connect(connection)
        except Exception:  # noqa: BLE001 - a client that does not speak TLS, or left meanwhile
            connection.close()

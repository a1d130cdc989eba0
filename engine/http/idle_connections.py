"""The HTTP connections of a worker without a request under way, in the order in which they give their places to others."""

import asyncio
from collections import OrderedDict
from typing import Any, Protocol

from quadriga.proto.http.intake import Intake


class Connection(Protocol):
    """An HTTP connection, as far as its end is concerned."""

    transport: asyncio.Transport
    connections: set[Any]
    """All connections of the worker."""

    def close(self) -> None:
        """Close the connection once its client has read what was written, or after some time."""


class IdleConnections:
    """Connections that wait for a request, for the rest of its headers, or for the rest of one that is answered.

    Used on one event loop.

    Args:
        intake: Counts those that are closed for others.
    """

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._strangers: OrderedDict[Connection, None] = OrderedDict()
        self._callers: OrderedDict[Connection, None] = OrderedDict()

    def add(self, connection: Connection, *, has_key: bool) -> None:
        """Add a connection that waits from now on; `has_key` says whether its last request came with a key that counts."""
        (self._callers if has_key else self._strangers)[connection] = None

    def discard(self, connection: Connection) -> None:
        """Leave out a connection that has a request, or is closed."""
        if self._callers.pop(connection, connection) is connection:
            self._strangers.pop(connection, None)

    def close_one(self, *, of_strangers: bool = False) -> bool:
        """Close the connection that has waited longest; return whether there was one.

        Those without a key go first, and alone with `of_strangers`. One whose client has yet to read a response is closed
        behind that, and another one with it.
        """
        for idle in (self._strangers,) if of_strangers else (self._strangers, self._callers):
            while idle:
                connection, _ = idle.popitem(last=False)
                transport = connection.transport
                if transport.get_write_buffer_size():
                    connection.close()
                    continue
                connection.connections.discard(connection)
                transport.abort()  # with TLS, `close` would wait for the client
                self._intake.displaced += 1
                return True
        return False

"""Transports and flow of the connections of `quadriga.engine.http.http_protocol`."""

import asyncio
from collections import deque
from typing import Any, Protocol

from uvicorn.protocols.http.flow_control import FlowControl

from quadriga.proto.sockets import arrived_bytes as socket_arrived_bytes


class OrderedFlow(FlowControl):
    """The flow of a connection: nothing is read while requests wait for the answers before theirs.

    Each answer would let in as many requests as fit a read, which are more than one.
    """

    def __init__(self, transport: asyncio.Transport, waiting: deque[Any]) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        """Read on, unless requests wait."""
        if not self._waiting:
            super().resume_reading()


class _Connection(Protocol):
    """A connection, as far as a response writes to it."""

    transport: asyncio.Transport

    def write_soon(self, data: bytes) -> None:
        """Write a part of a response."""

    def close_when_read(self) -> None:
        """End the response, and close the connection once the request has been read."""


class LingeringTransport(asyncio.Transport):
    """A connection to close after a response, once the request has been read."""

    def __init__(self, protocol: _Connection) -> None:
        self._protocol = protocol

    def write(self, data: Any) -> None:
        """Write a part of the response."""
        self._protocol.write_soon(data)

    def is_closing(self) -> bool:
        """Check whether the connection ends."""
        return self._protocol.transport.is_closing()

    def close(self) -> None:
        """Close the connection once the request has been read."""
        self._protocol.close_when_read()


def arrived_bytes(transport: asyncio.Transport) -> int:
    """Return how many bytes the client's system has acknowledged; transports with TLS hide what waits below them."""
    return socket_arrived_bytes(transport.get_extra_info("socket"))

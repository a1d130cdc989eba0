"""TCP connections: handshakes of TLS that are under way, and what the system knows of a connection."""

import asyncio
import socket
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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


class Handshakes:
    """Handshakes under way, each in a task that ends with it; used on one event loop."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[asyncio.Task[Any], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tasks)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the running task."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = None
        try:
            yield
        finally:
            self._tasks.pop(task, None)

    def end_one(self) -> bool:
        """End the handshake that has lasted longest; return whether there was one."""
        if not self._tasks:
            return False
        task, _ = self._tasks.popitem(last=False)
        task.cancel()
        return True

"""The listening socket: opened by the supervisor, shared by the workers, closed without losing a client.

Closing a listening socket resets the connections that the kernel has accepted and the process has not.
So at shutdown new connections are dropped first, then the waiting ones are accepted, then it is closed.
"""

import contextlib
import ctypes
import errno
import logging
import socket
import struct
import time
from collections.abc import Iterator

BACKLOG = 2048

_log = logging.getLogger("quadriga")

_WAIT_S, _RETRY_S = 10.0, 1.0
"""Time to wait for an address: the workers of a server that was killed hold it until they have noticed."""

_SO_ATTACH_FILTER = 26  # Linux, asm-generic/socket.h
_BPF_RETURN_NOTHING = struct.pack("=HBBI", 0x06, 0, 0, 0)  # one instruction: drop the packet


def listen(host: str, port: int) -> socket.socket:
    """Open a listening TCP socket.

    Raises:
        OSError: The address is in use, or not one of this machine.
    """
    listener = _bind(host, port)
    try:
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # old connections do not count
    deadline_s = time.monotonic() + _WAIT_S
    while True:
        try:
            bound.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline_s:
                bound.close()
                raise
            _log.warning("port %d of %s is in use: trying again for %g s", port, host, _WAIT_S)
            time.sleep(_RETRY_S)
        else:
            return bound


def reserve(host: str, port: int) -> socket.socket:
    """Reserve a port for the workers, who each listen on it with SO_REUSEPORT; no other program can.

    It is bound exclusively first: the kernel would let two servers of one user share it otherwise.

    Raises:
        OSError: The address is in use, or not one of this machine.
    """
    taken = _bind(host, port)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return taken


def format_address(bound: socket.socket) -> str:
    """Return the address of a socket as `host:port`."""
    host, port = bound.getsockname()[:2]
    return f"{f'[{host}]' if ':' in host else host}:{port}"


def drop_new_connections(listener: socket.socket) -> None:
    """Drop packets of new connections, if the system allows it; clients retry until the socket is closed."""
    program = ctypes.create_string_buffer(_BPF_RETURN_NOTHING)
    header = struct.pack("HP", 1, ctypes.addressof(program))
    with contextlib.suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, header)


def accept_waiting(listener: socket.socket) -> Iterator[socket.socket]:
    """Accept every connection that is waiting."""
    listener.setblocking(False)
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        yield connection

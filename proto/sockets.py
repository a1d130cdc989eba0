"""What the system knows of a TCP connection."""

import socket
import sys

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

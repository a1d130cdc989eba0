"""The TCP sockets of this process, as the system knows them: those of grpc are its own, and it lends none of them."""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv4Address, ip_address
from pathlib import Path
from urllib.parse import unquote

_ACKED_AT = 120
"""Offset of the bytes that were acknowledged in the state of a TCP connection."""

Peer = tuple[str, int]
"""Address and port of a client; an IPv4 address as such, whatever the listener."""


def arrived_bytes(connection: socket.socket) -> int:
    """Return how many bytes the client's system has acknowledged.

    Source: Linux, include/uapi/linux/tcp.h, tcpi_bytes_acked of struct tcp_info.
    """
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED_AT + 8)
    except (OSError, AttributeError):  # closed meanwhile
        return 0
    return int.from_bytes(info[_ACKED_AT:], sys.byteorder)


def listening_sockets(port: int) -> Iterator[socket.socket]:
    """Yield duplicates of this process's listening sockets of a port; whoever takes one closes it."""
    for candidate in _sockets(port):
        if candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            yield candidate
        else:
            candidate.close()


@contextmanager
def connections(port: int) -> Iterator[dict[Peer, socket.socket]]:
    """Return duplicates of the sockets of the clients of a port, up to the end."""
    sockets: dict[Peer, socket.socket] = {}
    try:
        for candidate in _sockets(port):
            try:
                host, peer_port = candidate.getpeername()[:2]
                sockets[_plain_address(host), peer_port] = candidate
            except OSError:  # closed meanwhile, or a listener
                candidate.close()
        yield sockets
    finally:
        for connection in sockets.values():
            connection.close()


def peer_address(peer: str) -> str:
    """Return the address in grpc's name of a peer, such as `ipv4:127.0.0.1:50000` or `ipv6:%5B::1%5D:50000`."""
    scheme, _, rest = peer.partition(":")
    if scheme not in ("ipv4", "ipv6"):
        return scheme
    return unquote(rest.rpartition(":")[0]).strip("[]")


def peer_of(peer: str) -> Peer | None:
    """Return address and port in grpc's name of a peer; None if it has none."""
    port = peer.rpartition(":")[2]
    if not port.isdecimal():
        return None
    return _plain_address(peer_address(peer)), int(port)


def _plain_address(text: str) -> str:
    text = text.partition("%")[0]  # the name of the network interface
    with suppress(ValueError):
        address = ip_address(text)
        mapped = None if isinstance(address, IPv4Address) else address.ipv4_mapped
        return str(mapped or address)
    return text


def _sockets(port: int) -> Iterator[socket.socket]:
    """Yield duplicates of this process's TCP sockets of a port."""
    folder = Path("/proc/self/fd")
    numbers = [int(entry.name) for entry in folder.iterdir()] if folder.is_dir() else []
    duplicates = set()  # they may take the numbers of what was closed since it was listed
    for number in numbers:
        if number in duplicates:
            continue
        try:
            descriptor = os.dup(number)
        except OSError:  # closed since it was listed
            continue
        duplicates.add(descriptor)
        try:
            candidate = socket.socket(fileno=descriptor)
        except OSError:  # no socket
            os.close(descriptor)
            continue
        with suppress(OSError):
            is_tcp = candidate.family in (socket.AF_INET, socket.AF_INET6)
            if is_tcp and candidate.getsockname()[1] == port:
                yield candidate
                continue
        candidate.close()

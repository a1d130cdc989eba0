"""HTTP/1.1 over connections that are kept open: one request at a time on each, all of it before one deadline.

Nothing is followed or decoded on its own: a redirect is an error, so that no key goes to another host, and proxies of the
environment are not used. Safe to use from several threads, and after a fork.
"""

import io
import os
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse, IncompleteRead
from typing import Any
from urllib.parse import urlsplit

from ..errors import BadAnswer, InputError, Unreachable

MAX_IDLE = 64
"""Maximum connections that are kept open while nobody uses them."""

CHUNK_BYTES = 1 << 20
"""Bytes that are read at a time."""

_JOINED_BYTES = 1 << 18
_AFTER_BREAK_S = 1.0


@dataclass(frozen=True, slots=True)
class Call:
    """One request."""

    method: str
    path: str
    """Path and query, percent-encoded."""
    body: Sequence[bytes] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    is_repeatable: bool = False
    """Whether the server may get it twice with the same result as once."""
    needs_key_support: bool = False
    """Whether it is repeatable only at a server that knows idempotency keys."""


@dataclass(frozen=True, slots=True)
class Response:
    """A complete response."""

    status: int
    headers: Mapping[str, str]
    """Values by names in lower case."""
    body: bytes


class Connections:
    """Connections to the server of one URL.

    Args:
        url: `http://host:port` or `https://…`, maybe with a path.
        tls: Returns the context of a new connection; None for connections without TLS.
        headers: Headers of every request.
        max_answer_bytes: Maximum bytes of an answer that is held in memory.

    Raises:
        InputError: The URL is none.
    """

    def __init__(
        self,
        url: str,
        tls: Callable[[], ssl.SSLContext] | None,
        headers: Mapping[str, str],
        max_answer_bytes: int,
    ) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        port: int | None = None
        with suppress(ValueError):
            port = parts.port or (443 if parts.scheme == "https" else 80)
        if parts.scheme not in {"http", "https"} or not parts.hostname or port is None:
            raise InputError(f"expected a URL such as http://127.0.0.1:8080, got {url!r}")
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise InputError(
                f"expected a URL without user, query and fragment, got {parts.hostname}"
            )
        self._host, self._port = parts.hostname, port
        self._tls = tls if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/")
        self._host_header = parts.netloc
        self.url = f"{parts.scheme}://{parts.netloc}{self._prefix}"
        self._headers = headers
        self._max_answer_bytes = max_answer_bytes
        self._idle: deque[_Connection] = deque(maxlen=MAX_IDLE)
        self._process = os.getpid()

    def exchange(self, call: Call, deadline_s: float) -> Response:
        """Send a request and return its answer.

        Args:
            call: The request.
            deadline_s: End of all of it, in seconds of `time.monotonic`.

        Raises:
            Unreachable: There is no answer before the deadline.
            BadAnswer: The answer is too large, or is not HTTP.
        """
        with self._sent(call, deadline_s) as (_, response):
            return _read(response, self._max_answer_bytes)

    def stream(
        self, call: Call, timeout_s: float, check: Callable[[Response], object], *, by_line: bool
    ) -> Iterator[bytes]:
        """Send a request, and yield the body of its answer, of any size: its lines, or parts of up to 1 MiB.

        Its headers and each line or part have `timeout_s`. `check` is called with a complete answer of status 300 or above,
        and raises its error. To close the iterator ends the connection.
        """
        with self._sent(call, time.monotonic() + timeout_s) as (connection, response):
            if response.status >= 300:
                check(_read(response, self._max_answer_bytes))
            read = response.readline if by_line else response.read
            connection.deadline_s = time.monotonic() + timeout_s
            while part := read(CHUNK_BYTES):
                yield part
                connection.deadline_s = time.monotonic() + timeout_s
            if response.length:
                raise IncompleteRead(b"", response.length)

    @contextmanager
    def _sent(self, call: Call, deadline_s: float) -> Iterator[tuple["_Connection", HTTPResponse]]:
        """Send a request on a connection, which is kept open if the block reads the response to its end."""
        head, is_complete = self._head(call), False
        connection = self._take(deadline_s)
        try:
            connection.deadline_s = deadline_s
            response = connection.send(head, call)
            yield connection, response
            is_complete = response.isclosed() and not response.will_close
        except (HTTPException, OSError) as error:
            raise self._unreachable(error, was_sent=True) from error
        finally:
            if is_complete and len(self._idle) < MAX_IDLE:
                self._idle.append(connection)
            else:
                connection.close()

    def close(self) -> None:
        """Close the connections that nobody uses."""
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def __del__(self) -> None:
        if hasattr(self, "_idle"):  # a URL that is none has no connections
            self.close()

    def _head(self, call: Call) -> bytes:
        lines = [f"{call.method} {self._prefix}{call.path} HTTP/1.1", f"Host: {self._host_header}"]
        lines += [f"{name}: {value}" for name, value in {**self._headers, **call.headers}.items()]
        if call.body or call.method not in {"GET", "DELETE"}:
            lines.append(f"Content-Length: {sum(map(len, call.body))}")
        for line in lines:
            if not line.isascii() or not line.isprintable():
                raise InputError(f"expected headers and paths of visible ASCII, got {line[:100]!r}")
        return "\r\n".join((*lines, "", "")).encode()

    def _take(self, deadline_s: float) -> "_Connection":
        """Return an idle connection that the server has not closed, or a new one."""
        if self._process != os.getpid():  # those of the parent are not ours
            self._idle, self._process = deque(maxlen=MAX_IDLE), os.getpid()
        with suppress(IndexError):
            while True:
                connection = self._idle.pop()
                if connection.is_open():
                    return connection
                connection.close()
        try:
            plain = socket.create_connection((self._host, self._port), _left_s(deadline_s))
            try:
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._tls is None:
                    return _Connection(plain)
                plain.settimeout(_left_s(deadline_s))
                return _Connection(self._tls().wrap_socket(plain, server_hostname=self._host))
            except BaseException:
                plain.close()
                raise
        except OSError as error:
            raise self._unreachable(error, was_sent=False) from error

    def _unreachable(self, error: Exception, *, was_sent: bool) -> Unreachable:
        text = str(error) or type(error).__name__
        hint = ""
        if isinstance(error, ssl.SSLCertVerificationError):
            hint = " (ca= or QUADRIGA_CA_FILE names the file of its authority)"
        if isinstance(error, IncompleteRead):
            text = f"the answer ended after {len(error.partial)} bytes"
        return Unreachable(f"no answer from {self.url}: {text}{hint}", was_sent=was_sent)


class _Connection:
    """A connection whose every wait ends at one deadline, however slowly the other side sends."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._in_headers = False
        self.deadline_s = 0.0
        """End of all waits, in seconds of `time.monotonic`."""

    def send(self, head: bytes, call: Call) -> HTTPResponse:
        """Send a request, and return its response as far as its headers."""
        parts: Sequence[bytes] = (head, *call.body)
        if sum(map(len, parts)) <= _JOINED_BYTES:
            parts = (b"".join(parts),)
        try:
            for part in parts:
                self._socket.settimeout(_left_s(self.deadline_s))
                self._socket.sendall(part)
        except TimeoutError:
            raise
        except OSError:  # maybe the server refused a large body, and said why
            self.deadline_s = min(self.deadline_s, time.monotonic() + _AFTER_BREAK_S)
            response = self._response(call.method)
            if response.status < 400:
                raise
            response.will_close = True
            return response
        return self._response(call.method)

    def _response(self, method: str) -> HTTPResponse:
        response = HTTPResponse(self, method=method)  # type: ignore[arg-type]  # it needs makefile alone
        self._in_headers = True
        try:
            response.begin()
        except BaseException:
            response.close()
            raise
        self._in_headers = False
        return response

    def makefile(self, _: str) -> io.BufferedReader:
        """Return a reader for one response."""
        return io.BufferedReader(_Reader(self))

    def receive_into(self, buffer: Any) -> int:
        """Read what is there, at least a byte; 0 at the end."""
        self._socket.settimeout(_left_s(self.deadline_s))
        count = self._socket.recv_into(buffer)
        if not count and self._in_headers:  # which http.client takes for the end of the headers
            raise ConnectionResetError("the connection ended within the headers of the answer")
        return count

    def is_open(self) -> bool:
        """Check whether the server has neither closed the connection nor sent what nobody asked for."""
        try:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            return not poll.poll(0)
        except (OSError, ValueError):
            return False

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            self._socket.close()


class _Reader(io.RawIOBase):
    """The bytes of a connection, for one response."""

    def __init__(self, connection: _Connection) -> None:
        super().__init__()
        self._connection = connection

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read some bytes."""
        return self._connection.receive_into(buffer)


def _left_s(deadline_s: float) -> float:
    """Return the seconds until a deadline; raise a TimeoutError if there are none."""
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("the time is over")
    return left_s


def _read(response: HTTPResponse, max_bytes: int) -> Response:
    """Read a response to its end, within a limit."""
    if response.length is not None and response.length > max_bytes:
        raise BadAnswer(
            f"expected an answer of at most {max_bytes} bytes, got one of {response.length}"
        )
    chunks: list[bytes] = []
    size = 0
    while chunk := response.read(min(CHUNK_BYTES, max_bytes + 1 - size)):
        chunks.append(chunk)
        size += len(chunk)
        if size > max_bytes:
            raise BadAnswer(f"expected an answer of at most {max_bytes} bytes, got more")
    if response.length:
        raise IncompleteRead(b"".join(chunks), response.length)
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Response(response.status, headers, b"".join(chunks))

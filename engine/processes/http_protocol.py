"""uvicorn's HTTP protocol, hardened.

Errors of the parser are answered in JSON like every other; an offer to speak HTTP/2 (`Upgrade: h2c`, which
Java's client and `curl --http2` send with each request) is ignored instead of swallowing the body;
headers have a maximum size and must be complete within a time limit; a client that gets a response while it
still sends its body can read it, instead of finding its connection reset.
"""

import asyncio
import re
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from quadriga.proto.http import error_body

MAX_HEADER_BYTES = 64 * 1024
LINGER_TIMEOUT_S = 30.0
"""Maximum time to read and discard the rest of a body after the response to it."""

_OFFER_OF_HTTP_2 = re.compile(rb"\r\nupgrade:[ \t]*h2c[ \t]*(?=\r\n)", re.IGNORECASE)
_HEAD = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"


class _Lingering(asyncio.Transport):
    """A connection to close after a response, once the request has been read."""

    def __init__(self, protocol: "HttpProtocol") -> None:
        self._protocol = protocol

    def write(self, data: Any) -> None:
        self._protocol.transport.write(data)

    def is_closing(self) -> bool:
        return self._protocol.transport.is_closing()

    def close(self) -> None:
        self._protocol.close_when_read()


class HttpProtocol(HttpToolsProtocol):
    """One connection; `header_timeout_s` is set by `with_header_timeout`."""

    header_timeout_s: ClassVar[float] = 15.0
    _deadline: asyncio.TimerHandle | None = None
    _header_bytes = 0
    _body_open = False
    """Whether a request's body is still arriving; one that is too large may, even after its response."""
    _closing = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Start waiting for the first header."""
        super().connection_made(transport)
        self._expect_header()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._forget_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes from the client."""
        if not self._in_request():
            self._expect_header()
            self._header_bytes += len(data)
            head, separator, rest = data.partition(b"\r\n\r\n")
            if not separator and self._header_bytes > MAX_HEADER_BYTES:
                self._refuse(
                    b"431 Request Header Fields Too Large",
                    f"expected headers of at most {MAX_HEADER_BYTES} bytes",
                )
                return
            if b"h2c" in head:
                data = _OFFER_OF_HTTP_2.sub(b"", head) + separator + rest
        super().data_received(data)

    def on_headers_complete(self) -> None:
        """Begin the request."""
        self._forget_deadline()
        self._header_bytes = 0
        self._body_open = True
        super().on_headers_complete()
        if not self.cycle.keep_alive:
            self.cycle.transport = _Lingering(self)

    def on_message_complete(self) -> None:
        """End the request."""
        self._body_open = False
        super().on_message_complete()
        if self._closing:
            self.transport.close()

    def close_when_read(self) -> None:
        """End the response, and close the connection once the request has been read, or after a timeout."""
        if self._body_open and not self.transport.is_closing():
            self._closing = True
            self.transport.write_eof()  # a client that reads up to the end need not wait
            self._deadline = self.loop.call_later(LINGER_TIMEOUT_S, self.transport.close)
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not HTTP, unless a response was sent, and close."""
        if self._closing:
            self.transport.close()
            return
        self._refuse(b"400 Bad Request", f"expected an HTTP/1.1 request: {msg}")

    def _in_request(self) -> bool:
        if self._body_open:
            return True
        return self.cycle is not None and not self.cycle.response_complete  # type: ignore[redundant-expr]  # None at first

    def _refuse(self, status: bytes, text: str) -> None:
        self._forget_deadline()
        body = error_body(text)
        self.transport.write(_HEAD % (status, len(body)) + body)
        self.transport.close()

    def _expect_header(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.header_timeout_s, self._late)

    def _late(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            text = f"expected whole headers within {self.header_timeout_s:g} s"
            self._refuse(b"408 Request Timeout", text)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def with_header_timeout(header_timeout_s: float) -> type[HttpProtocol]:
    """Return the protocol class with a time limit for headers."""
    attributes: dict[str, Any] = {"header_timeout_s": header_timeout_s}
    return type("HttpProtocol", (HttpProtocol,), attributes)

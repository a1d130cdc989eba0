"""uvicorn's HTTP protocol, hardened.

Errors of the parser are answered in JSON like every other; an offer to speak HTTP/2 (`Upgrade: h2c`, which
Java's client and `curl --http2` send with each request) is ignored instead of swallowing the body;
headers have a maximum size and must be complete within a time limit; a request names its host once, and HTTP/1.0 has no
transfer codings; a client that gets a response while it
still sends its body can read it, instead of finding its connection reset; trailers and the framing of chunks have a
maximum size, and trailers are dropped; connections have a maximum number, beyond which a new one takes the place of the
one that was idle for longest; requests ahead of answers have one, and nothing is read behind them; answers must be read.
"""

import asyncio
import math
import re
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from quadriga.proto.http.asgi import (
    ABORT_EXTENSION,
    ANSWER_EXTENSION,
    BODY_EXTENSION,
    CALLER_EXTENSION,
    DISCONNECT_EXTENSION,
    error_body,
)
from quadriga.proto.http.intake import Intake, arrived_bytes
from quadriga.proto.request import REQUEST_ID_HEADER, error_request_id

MAX_HEADER_BYTES = 64 * 1024
"""Maximum bytes of all headers of a request."""
MAX_HEADERS = 1000
"""Maximum number of headers of a request: short ones take twenty times their bytes in memory."""
HEADER_TIMEOUT_S = 15.0
"""Time in which the headers of a request, and a handshake of TLS, must be complete: slow links take a few seconds."""
LINGER_TIMEOUT_S = 30.0
"""Maximum time to read and discard the rest of a body after the response to it."""
DISCARD_TIMEOUT_S = 2.0
"""Time to discard what a client sends after a refusal in the middle of its body."""
MAX_AHEAD = 64
"""Maximum requests of a connection that wait for the answer before theirs; behind them it is closed."""
FRAMING_PER_BYTE = 8
"""Maximum bytes of framing for each byte of a body, besides `MAX_HEADER_BYTES`: chunks of one byte have five."""

_NO_TEXT = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?!\n)")
"""What no header may have besides the end of its line."""

_OFFER_OF_HTTP_2 = re.compile(rb"\r\nupgrade:[ \t]*h2c[ \t]*(?=\r\n)", re.IGNORECASE)

_HOST = re.compile(
    rb"(?:\[[0-9A-Fa-fvV.:]+\]|(?:[\w.~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]{0,5})?", re.ASCII
)
"""Source: RFC 3986, section 3.2.2: an address in brackets, or a name, which may be empty; and a port."""


class FramingError(ValueError):
    """Headers that two servers might read differently, or too many of them."""

    status = 400


class TooManyHeaders(FramingError):
    """More headers than a request may have."""

    status = 431


def check_headers(headers: Sequence[tuple[bytes, bytes]], http_version: str) -> None:
    """Check that the headers of a request name its host, and frame its body, in one way.

    Health checkers that speak HTTP/1.0 send no Host.

    Source: RFC 9112, sections 3.2 and 6.1.

    Raises:
        FramingError: They do not.
    """
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1 or (not hosts and http_version == "1.1"):
        raise FramingError(f"expected one header Host, got {len(hosts)}")
    if hosts and not _HOST.fullmatch(hosts[0]):
        raise FramingError(f"expected Host to be a name or an address, got {hosts[0]!r:.80}")
    if http_version != "1.1" and any(name == b"transfer-encoding" for name, _ in headers):
        raise FramingError(f"expected no Transfer-Encoding in HTTP/{http_version}, got one")


_REFUSAL = (
    b"%bx-request-id: %b\r\n%bcontent-type: application/json\r\ncontent-length: %d\r\n"
    b"connection: close\r\n\r\n%b"
)


class OrderedFlow(FlowControl):
    """The flow of a connection: nothing is read while requests wait for the answers before theirs.

    Each answer would let in as many requests as fit a read, which are more than one.
    """

    def __init__(self, transport: asyncio.Transport, waiting: deque[Any]) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        """Read on, unless requests wait."""
        if self.read_paused and not self._waiting:
            super().resume_reading()


class Exchange(asyncio.Transport):
    """One request and its response: the transport of uvicorn's cycle, and what the application may do besides."""

    def __init__(self, protocol: "HttpProtocol", cycle: RequestResponseCycle) -> None:
        self._protocol = protocol
        self._cycle = cycle

    def take_body(self) -> bytes | None:
        """Return the body if all of it is there; what is received behind it is the end of the connection.

        Most bodies come whole, and to receive one under a timer takes 5 us more.
        """
        cycle = self._cycle
        if cycle.more_body or cycle.disconnected or cycle.waiting_for_100_continue:
            return None
        body, cycle.body = bytes(cycle.body), bytearray()
        cycle.message_event.clear()
        self._protocol.flow.resume_reading()
        return body

    def answer(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bool:
        """Write a complete response, unless uvicorn has to: it waits for the client, ends connections, and checks headers."""
        cycle, protocol = self._cycle, self._protocol
        if cycle.response_started or cycle.disconnected or not cycle.keep_alive:
            return False
        fields = [*cycle.default_headers, *headers]
        if protocol.flow.write_paused or b"connection" in dict(fields):
            return False
        head = b"".join([b"%b: %b\r\n" % field for field in fields])
        if head.count(b"\n") != len(fields) or _NO_TEXT.search(head):
            return False
        cycle.waiting_for_100_continue = False
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        # one write, and no `writelines`: that of asyncio forgets the limits of its buffer
        self.write(httptools_impl.STATUS_LINE[status] + head + b"\r\n" + body)
        cycle.on_response()
        return True

    def write(self, data: Any) -> None:
        """Write a part of the response."""
        if not self.is_closing():
            self._protocol.transport.write(data)

    def is_closing(self) -> bool:
        """Check whether the connection ends."""
        return self._protocol.transport.is_closing()

    def close(self) -> None:
        """Close the connection once the request has been read."""
        self._protocol.close_when_read()


class IdleConnections:
    """Connections that wait for a request, for the rest of its headers, or for the rest of one that is answered.

    Used on one event loop.

    Args:
        intake: Counts those that are closed for others.
    """

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._strangers: OrderedDict[HttpProtocol, None] = OrderedDict()
        self._callers: OrderedDict[HttpProtocol, None] = OrderedDict()

    def add(self, connection: "HttpProtocol", *, has_key: bool) -> None:
        """Add a connection that waits from now on; `has_key` says whether its last request came with a key that counts."""
        (self._callers if has_key else self._strangers)[connection] = None

    def discard(self, connection: "HttpProtocol") -> None:
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


class HttpProtocol(HttpToolsProtocol):
    """One connection; the attributes of the class are set by `with_limits`."""

    max_connections: ClassVar[int] = 1000
    intake: ClassVar[Intake] = Intake()
    idle: ClassVar[IdleConnections] = IdleConnections(intake)
    _deadline: asyncio.TimerHandle | None = None
    """What happens unless the client goes on: one limit of time holds at once."""
    _header_open = True
    """Whether headers have begun to arrive, or the first ones are awaited."""
    _body_open = False
    """Whether a request's body is still arriving; one that is too large may, even after its response."""
    _closing = False
    _discarding = False
    """Whether nothing more is read of a request, so that its client finds the response and no reset."""
    _framing_bytes = 0
    """Bytes of headers, or besides those of a body, less what the bytes of the body allow."""
    _on_disconnect: Callable[[], object] | None = None
    _reading_check: asyncio.TimerHandle | None = None
    """When the client must have read enough; None while nothing of it is awaited."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Start waiting for the first header, unless there are too many connections and none is idle."""
        super().connection_made(transport)
        self.flow = OrderedFlow(transport, self.pipeline)
        if len(self.connections) > self.max_connections and not self.idle.close_one():
            self.intake.refused_connections += 1
            text = f"expected at most {self.max_connections} connections, got one more"
            self._refuse(503, text, b"retry-after: 1\r\n")
            return
        self.idle.add(self, has_key=False)
        self._expect_header()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting, and tell whoever answers a request of the connection."""
        self._forget_deadline()
        self._forget_reading()
        self.idle.discard(self)
        super().connection_lost(exc)
        if self._on_disconnect is not None:
            self._on_disconnect()
            self._on_disconnect = None

    def call_on_disconnect(self, callback: Callable[[], object] | None) -> None:
        """Call a function if the client leaves before its request, which has been read, is answered; None to call none.

        It takes the place of a task that waits for the end.
        """
        self._on_disconnect = callback
        self.flow.resume_reading()  # else the end is not seen
        if callback is not None and self.transport.is_closing():
            callback()

    def pause_writing(self) -> None:
        """Make whoever answers wait; the client has some time to read."""
        super().pause_writing()
        self._await_reading()

    def resume_writing(self) -> None:
        """Let whoever answers go on."""
        super().resume_writing()
        if not self.transport.is_closing():
            self._forget_reading()

    def close(self) -> None:
        """Close the connection once its client has read what was written, for which it has some time."""
        self.transport.close()
        if self in self.connections:
            self._await_reading()

    def data_received(self, data: bytes) -> None:
        """Take bytes from the client."""
        if self._discarding or self.transport.is_closing():  # TLS reads on until all is written
            return
        self._framing_bytes += len(data)
        if not self._body_open:
            end = data.find(b"\r\n\r\n")
            end = len(data) if end < 0 else end
            if self._framing_bytes - len(data) + end > MAX_HEADER_BYTES:
                self._refuse(431, f"expected headers of at most {MAX_HEADER_BYTES} bytes")
                return
            if data.find(b"h2c", 0, end) >= 0:
                data = _OFFER_OF_HTTP_2.sub(b"", data[:end]) + data[end:]
        super().data_received(data)
        if self._body_open:
            if self._framing_bytes > MAX_HEADER_BYTES:
                limit = f"at most {MAX_HEADER_BYTES} bytes"
                self._refuse(431, f"expected trailers and the framing of chunks of {limit}")
        elif self._header_open and self._deadline is None:
            self._expect_header()  # most headers come whole, and need no timer

    def on_message_begin(self) -> None:
        """Begin to take headers."""
        super().on_message_begin()
        if not self._header_open:
            self._header_open = True
            self._forget_deadline()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; one that comes behind the body is dropped.

        Source: RFC 9110, section 6.5.1: trailers are not to be merged into the headers.
        """
        if self._body_open:
            return
        if len(self.headers) >= MAX_HEADERS:
            raise TooManyHeaders(f"expected at most {MAX_HEADERS} headers, got more")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin the request; raises errors that the parser turns into one of its own."""
        if len(self.pipeline) >= MAX_AHEAD:
            raise FramingError(f"expected at most {MAX_AHEAD} requests ahead of answers")
        check_headers(self.headers, self.parser.get_http_version())
        self._forget_deadline()
        self._framing_bytes = 0
        self._body_open, self._header_open = True, False
        self.idle.discard(self)
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Start the task of a request."""
        exchange = cycle.transport = Exchange(self, cycle)
        extensions: Any = {
            ABORT_EXTENSION: self.transport.abort,
            ANSWER_EXTENSION: exchange.answer,
            BODY_EXTENSION: exchange.take_body,
            DISCONNECT_EXTENSION: self.call_on_disconnect,
        }
        cycle.scope["extensions"] = extensions
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        allowed_bytes = (1 + FRAMING_PER_BYTE) * len(body)
        self._framing_bytes = max(self._framing_bytes - allowed_bytes, 0)
        super().on_body(body)

    def on_response_complete(self) -> None:
        """End the response; the rest of the body has some time to arrive, and is discarded."""
        if self._closing:  # a request behind this one has no response
            self.pipeline.clear()
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        self._note_idle()

    def on_message_complete(self) -> None:
        """End the request."""
        self._body_open = False
        self._framing_bytes = 0
        super().on_message_complete()
        if self._closing:
            self.close()
        self._note_idle()

    def close_when_read(self) -> None:
        """End the response, and close the connection once the request has been read, or after a timeout."""
        if not (self._body_open or self._discarding) or self.transport.is_closing():
            self.close()
            return
        self._closing = True
        if self.transport.can_write_eof():  # TLS has no way to say so and read on
            self.transport.write_eof()  # a client that reads up to the end need not wait
        self._limit(DISCARD_TIMEOUT_S if self._discarding else LINGER_TIMEOUT_S, self.close)

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not HTTP; called while the error of the parser is handled."""
        error = getattr(sys.exception(), "__context__", None)
        if isinstance(error, FramingError):  # of a callback
            self._refuse(error.status, str(error))
        else:
            self._refuse(400, f"expected an HTTP/1.1 request: {msg}")

    def _note_idle(self) -> None:
        """Note that the connection waits for a request, or for the rest of one that is answered, if it does."""
        if not self.cycle.response_complete or self.transport.is_closing():
            return
        self.idle.add(self, has_key=CALLER_EXTENSION in self.cycle.scope["extensions"])
        if not (self._closing or self._header_open):
            rest_s = LINGER_TIMEOUT_S if self._body_open else self.timeout_keep_alive
            self._limit(rest_s, self.close)

    def _refuse(self, status: int, text: str, headers: bytes = b"") -> None:
        """Answer an error and close the connection, unless the client would take that for another response."""
        is_answered = self._body_open and (self.cycle.response_started or bool(self.pipeline))
        if self._closing or self.transport.is_closing() or is_answered:
            self.close()
            return
        if self._body_open:
            self.cycle.disconnected = self._discarding = True
            self.cycle.message_event.set()
            self.flow.resume_reading()
        elif self.cycle is not None and not self.cycle.response_complete:  # type: ignore[redundant-expr]  # None at first
            self._discarding, self.cycle.keep_alive = True, False  # closed behind its answer
            return
        # else the headers are of the request before
        sent = self.headers if self._header_open or self._body_open else None
        request_id = error_request_id(dict(sent or ()).get(REQUEST_ID_HEADER)).encode()
        line, body = httptools_impl.STATUS_LINE[status], error_body(text)
        self.transport.write(_REFUSAL % (line, request_id, headers, len(body), body))
        self.intake.note_refusal(status)
        self.close_when_read()

    def _await_reading(self) -> None:
        """Give the client the time of a body to read, in which each byte that arrives adds as much as one of a body."""
        if self._reading_check is None:
            self._check_reading(-math.inf)

    def _check_reading(self, before_bytes: float) -> None:
        arrived = arrived_bytes(self.transport.get_extra_info("socket"))
        gained_s = (arrived - before_bytes) / self.intake.bytes_per_s
        if gained_s > 0:
            next_s = min(gained_s, self.intake.body_timeout_s)
            self._reading_check = self.loop.call_later(next_s, self._check_reading, arrived)
        else:
            self._reading_check = None
            self.transport.abort()

    def _forget_reading(self) -> None:
        if self._reading_check is not None:
            self._reading_check.cancel()
            self._reading_check = None

    def _expect_header(self) -> None:
        text = f"expected whole headers within {HEADER_TIMEOUT_S:g} s"
        self._limit(HEADER_TIMEOUT_S, self._refuse, 408, text)

    def _limit(self, timeout_s: float, end: Callable[..., None], *args: Any) -> None:
        """Call a function after a time, in place of what the limit before would have called."""
        self._forget_deadline()
        self._deadline = self.loop.call_later(timeout_s, end, *args)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def with_limits(max_connections: int, intake: Intake) -> type[HttpProtocol]:
    """Return the protocol class with a maximum of connections."""
    attributes: dict[str, Any] = {
        "max_connections": max_connections,
        "intake": intake,
        "idle": IdleConnections(intake),
    }
    return type("HttpProtocol", (HttpProtocol,), attributes)

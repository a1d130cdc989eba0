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
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, ClassVar

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
MIN_LOOK_S = 1.0
"""Minimum time after which an idle connection is looked at again."""
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
    """Headers that two servers might read differently."""


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


_STATUS_LINES = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus
}
_REFUSAL = (
    b"%bx-request-id: %b\r\n%bcontent-type: application/json\r\ncontent-length: %d\r\n"
    b"connection: close\r\n\r\n%b"
)


def encode_refusal(
    status: int, text: str, sent: Sequence[tuple[bytes, bytes]] | None, headers: bytes = b""
) -> bytes:
    """Encode an error that ends its connection before any application sees the request.

    Args:
        status: The HTTP status.
        text: The message.
        sent: Headers of the request as far as they are known, in small letters, whose `X-Request-ID` is answered; None
            where there are none, and a new one is.
        headers: Further headers of the answer, each with its end of line.
    """
    request_id = error_request_id(dict(sent or ()).get(REQUEST_ID_HEADER)).encode()
    body = error_body(text)
    return _REFUSAL % (_STATUS_LINES[status], request_id, headers, len(body), body)


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
        protocol.write(_STATUS_LINES[status] + head + b"\r\n", body)
        cycle.on_response()
        return True

    def write(self, data: Any) -> None:
        """Write a part of the response."""
        self._protocol.write(data)

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


class RequestsAheadError(ValueError):
    """More requests than may wait for the answers before theirs."""


class HttpProtocol(HttpToolsProtocol):
    """One connection; the attributes of the class are set by `with_limits`."""

    max_connections: ClassVar[int] = 1000
    intake: ClassVar[Intake] = Intake()
    idle: ClassVar[IdleConnections] = IdleConnections(intake)
    _deadline: asyncio.TimerHandle | None = None
    _header_bytes = 0
    _answered_s = 0.0
    """When the last answer was complete, by the time of the event loop."""
    _header_open = False
    """Whether headers have begun to arrive."""
    _body_open = False
    """Whether a request's body is still arriving; one that is too large may, even after its response."""
    _closing = False
    _discarding = False
    """Whether nothing more is read of a request, so that its client finds the response and no reset."""
    _received_bytes = 0
    """Bytes since the headers of a request whose body is still arriving."""
    _body_bytes = 0
    _quiet_bytes = 0
    """Bytes since the last ones that belong to the body."""
    _framing_problem = ""
    _framing_status = 400
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
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
        super().connection_lost(exc)
        if self._on_disconnect is not None:
            self._on_disconnect()
            self._on_disconnect = None

    def call_on_disconnect(self, callback: Callable[[], object] | None) -> None:
        """Call a function if the client leaves before its request, which has been read, is answered; None to call none.

        It takes the place of a task that waits for the end.
        """
        self._on_disconnect = callback
        if callback is not None and self.transport.is_closing():
            callback()
        elif callback is not None:
            self.flow.resume_reading()  # else the end is not seen

    def write(self, *data: bytes) -> None:
        """Write parts of a response; what is given together leaves by one call of the system."""
        if not self.transport.is_closing():
            self.transport.write(
                b"".join(data)
            )  # asyncio's `writelines` forgets the limits of its buffer

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

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection if it has had no request for long, else look again later."""
        self.timeout_keep_alive_task = None
        if self.transport.is_closing() or self._in_request():
            return
        left_s = self._answered_s + self.timeout_keep_alive - self.loop.time()
        if left_s > 0 or self._header_open:
            self._look_for_requests(max(left_s, MIN_LOOK_S))
        else:
            self.close()

    def _look_for_requests(self, delay_s: float) -> None:
        """Look in some time for requests; one timer for many of them takes 2 us less of each."""
        self.timeout_keep_alive_task = self.loop.call_later(
            delay_s, self.timeout_keep_alive_handler
        )

    def _unset_keepalive_if_required(self) -> None:
        """Let the timer go on."""

    def data_received(self, data: bytes) -> None:
        """Take bytes from the client."""
        if self._discarding or self.transport.is_closing():  # TLS reads on until all is written
            return
        if self._body_open:
            self._received_bytes += len(data)
            self._quiet_bytes += len(data)
        else:
            self._header_bytes += len(data)
            end = data.find(b"\r\n\r\n")
            behind = 0 if end < 0 else len(data) - end
            if self._header_bytes - behind > MAX_HEADER_BYTES:
                if self._in_request():
                    self._close_behind_answers()
                    return
                self._refuse(431, f"expected headers of at most {MAX_HEADER_BYTES} bytes")
                return
            end = len(data) if end < 0 else end
            if data.find(b"h2c", 0, end) >= 0:
                data = _OFFER_OF_HTTP_2.sub(b"", data[:end]) + data[end:]
        super().data_received(data)
        if self._body_open:
            self._check_framing()
        elif self._header_open:  # most headers come whole, and need no timer
            self._expect_header()

    def on_message_begin(self) -> None:
        """Begin to take headers."""
        super().on_message_begin()
        self._header_open = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; one that comes behind the body is dropped.

        Source: RFC 9110, section 6.5.1: trailers are not to be merged into the headers.
        """
        if self._body_open:
            return
        if len(self.headers) >= MAX_HEADERS:
            self._framing_problem, self._framing_status = (
                f"expected at most {MAX_HEADERS} headers, got more",
                431,
            )
            raise FramingError(self._framing_problem)
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Begin the request; raises errors that the parser turns into one of its own."""
        if len(self.pipeline) >= MAX_AHEAD:
            raise RequestsAheadError(f"expected at most {MAX_AHEAD} requests ahead of answers")
        try:
            check_headers(self.headers, self.parser.get_http_version())
        except FramingError as error:
            self._framing_problem = str(error)
            raise
        self._forget_deadline()
        self._header_bytes = self._received_bytes = self._body_bytes = self._quiet_bytes = 0
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
        self._body_bytes += len(body)
        self._quiet_bytes = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        """End the response; the rest of the body has some time to arrive, and is discarded."""
        if self._closing:  # a request behind this one has no response
            self.pipeline.clear()
            self.flow.resume_reading()
            self._note_idle()
            return
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._answered_s = self.loop.time()
            if self.timeout_keep_alive_task is None:
                self._look_for_requests(self.timeout_keep_alive)
        if self._body_open and self._deadline is None:
            self._deadline = self.loop.call_later(LINGER_TIMEOUT_S, self.close)
        self._note_idle()

    def on_message_complete(self) -> None:
        """End the request."""
        self._body_open = False
        if not self._closing:
            self._forget_deadline()
        super().on_message_complete()
        if self._closing:
            self.close()
        if self.cycle.response_complete:
            self._note_idle()

    def close_when_read(self) -> None:
        """End the response, and close the connection once the request has been read, or after a timeout."""
        if not (self._body_open or self._discarding) or self.transport.is_closing():
            self.close()
            return
        self._closing = True
        self._write_eof()  # a client that reads up to the end need not wait
        timeout_s = DISCARD_TIMEOUT_S if self._discarding else LINGER_TIMEOUT_S
        self._deadline = self.loop.call_later(timeout_s, self.close)

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not HTTP, unless the client would take that for another response, and close."""
        if self._closing or (self._body_open and (self.cycle.response_started or self.pipeline)):
            self.close()
        elif self._in_request() and not self._body_open:
            self._close_behind_answers()
        else:
            problem = self._framing_problem or f"expected an HTTP/1.1 request: {msg}"
            self._refuse(self._framing_status, problem)

    def _close_behind_answers(self) -> None:
        """Take nothing more, and close the connection behind the answer to the last request that was taken."""
        self._discarding = True
        self.cycle.keep_alive = False

    def _in_request(self) -> bool:
        if self._body_open:
            return True
        return self.cycle is not None and not self.cycle.response_complete  # type: ignore[redundant-expr]  # None at first

    def _note_idle(self) -> None:
        """Note that the connection waits for a request, or for the rest of one that is answered, if it does."""
        if self.cycle.response_complete and not self.transport.is_closing():
            self.idle.add(self, has_key=CALLER_EXTENSION in self.cycle.scope["extensions"])

    def _check_framing(self) -> None:
        """Refuse a body whose trailers or framing of chunks pass their limit, while it is still arriving."""
        framing_bytes = self._received_bytes - self._body_bytes
        limit_bytes = MAX_HEADER_BYTES + FRAMING_PER_BYTE * self._body_bytes
        if max(self._quiet_bytes - MAX_HEADER_BYTES, framing_bytes - limit_bytes) <= 0:
            return
        if (
            self.cycle.response_started or self.pipeline
        ):  # there is no response, or it would be another's
            self.close()
            return
        self.cycle.disconnected = True
        self.cycle.message_event.set()
        self._write_refusal(
            431,
            f"expected trailers and the framing of chunks of at most {MAX_HEADER_BYTES} bytes",
        )
        self._discarding = True
        self._write_eof()
        self.flow.resume_reading()
        self._deadline = self.loop.call_later(DISCARD_TIMEOUT_S, self.close)

    def _write_eof(self) -> None:
        """Say that the response is over; TLS has no way to say so and read on."""
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _refuse(self, status: int, text: str, headers: bytes = b"") -> None:
        self._write_refusal(status, text, headers)
        self.close()

    def _write_refusal(self, status: int, text: str, headers: bytes = b"") -> None:
        self._forget_deadline()
        is_begun = (
            self._header_open or self._body_open
        )  # else the headers are of the request before
        sent = self.headers if is_begun else None
        self.transport.write(encode_refusal(status, text, sent, headers))
        self.intake.note_refusal(status)

    def _await_reading(self) -> None:
        """Give the client the time of a body to read, in which each byte that arrives adds as much as one of a body."""
        if self._reading_check is None:
            arrived, timeout_s = (
                arrived_bytes(self.transport.get_extra_info("socket")),
                self.intake.body_timeout_s,
            )
            self._reading_check = self.loop.call_later(timeout_s, self._check_reading, arrived)

    def _check_reading(self, before_bytes: int) -> None:
        arrived, timeout_s = (
            arrived_bytes(self.transport.get_extra_info("socket")),
            self.intake.body_timeout_s,
        )
        gained_s = min((arrived - before_bytes) / self.intake.bytes_per_s, timeout_s)
        if gained_s > 0:
            self._reading_check = self.loop.call_later(gained_s, self._check_reading, arrived)
        else:
            self._reading_check = None
            self.transport.abort()

    def _forget_reading(self) -> None:
        if self._reading_check is not None:
            self._reading_check.cancel()
            self._reading_check = None

    def _expect_header(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_TIMEOUT_S, self._late)

    def _late(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            text = f"expected whole headers within {HEADER_TIMEOUT_S:g} s"
            self._refuse(408, text)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def with_limits(
    max_connections: int,
    intake: Intake,
) -> type[HttpProtocol]:
    """Return the protocol class with a maximum of connections."""
    attributes: dict[str, Any] = {
        "max_connections": max_connections,
        "intake": intake,
        "idle": IdleConnections(intake),
    }
    return type("HttpProtocol", (HttpProtocol,), attributes)

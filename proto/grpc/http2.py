"""HTTP/2 of the gRPC port: connections, their calls, and the bounds of what a client costs the others.

It carries calls to the handlers of `quadriga.proto.grpc.service`, and knows no RPC. grpc's own server decodes client
messages in threads of the worker, without a bound of bytes or time, and holds unread answers. The library h2 (4.4) handles
all frames of a read before it returns, buffers a frame until it is whole, cannot send on after a GOAWAY, and ends the
connection for errors of one call. Its frames would have to be split, checked and counted here as well, and a call takes
three times the CPU.

Source: RFC 9113 (HTTP/2); RFC 7541 (HPACK, by the library hpack); gRPC, PROTOCOL-HTTP2.md.
"""

import asyncio
import base64
import logging
import math
import random
import re
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from struct import Struct
from time import perf_counter, thread_time
from typing import Any
from urllib.parse import quote

import grpc
import msgspec
from hpack import Decoder
from hpack.exceptions import HPACKError
from hpack.hpack import encode_integer

from quadriga.proto.errors import InvalidRequest, ProtocolError, TooLarge, TooSlow, Unsupported
from quadriga.proto.http.asgi import decompress
from quadriga.proto.http.intake import SPARE_HANDSHAKES, Acceptor, Intake, arrived_bytes
from quadriga.proto.request import current_caller

MAX_HEADER_BYTES = 64 * 1024
"""Maximum bytes of the headers of a call, both as they come and decoded; proxies take no more either."""

UNASKED_BYTES = 65_535
"""Bytes of an answer that a client takes before it has read any.

Source: RFC 9113, section 6.9.2.
"""

MAX_STREAMS = 100
"""Calls of a connection at a time (RFC 9113, section 6.5.2, recommends no fewer); further ones wait in the client."""

KEEPALIVE_S, KEEPALIVE_TIMEOUT_S = 60, 20
"""Seconds between two keepalive pings to a client with calls, and the time that it has to answer each."""

_SPARE_FRAMES, _SPARE_FRAMES_PER_S, _SPARE_FRAMES_PER_MESSAGE = 200, 50, 4
"""Frames that serve no call (pings, settings, resets, empty ones) which a connection may send at once, gains each second,
and gains with each message of an answer and each KiB of it: clients ping to measure the network while they receive."""

_TURN_S = 0.002
"""Time for which the frames of one connection are handled before it is the turn of others."""

_CALL_S = 1e-4
"""Time of the event loop that a call takes besides that of its frames, about."""

_LATER_S_PER_BYTE = 1e-3
"""Time by which the turn of a connection is later for each byte that it has sent: a probe goes before a flood."""

_WINDOW_BYTES = 256 * 1024
"""Bytes of a call that may come before its handler reads."""

_READ_BYTES = 16 * 1024
"""Bytes that are read at once from a connection of a stranger."""

_CONNECTION_WINDOW_BYTES = 16 * 1024 * 1024
_MAX_FRAME_BYTES = 1024 * 1024
_MAX_WINDOW_BYTES = _MAX_STREAM = 2**31 - 1
_HIGH_WATER_BYTES = 64 * 1024
_HIGH_WATER_OF_CALLERS_BYTES = 1024 * 1024
_END_S = 1.0
"""Time that a client has to take note of the end of its connection."""

_DATA, _HEADERS, _, _RESET, _SETTINGS, _PUSH, _PING, _GOAWAY, _WINDOW, _CONTINUATION = range(10)
_ACK = _END_STREAM = 1
_END_HEADERS, _PADDED, _HAS_PRIORITY = 4, 8, 32
_PROTOCOL, _FLOW, _CLOSED, _SIZE, _REFUSED, _CANCEL, _COMPRESSION, _CALM = 1, 3, 5, 6, 7, 8, 9, 11
_MAX_STREAMS_SETTING, _WINDOW_SETTING, _FRAME_SETTING, _HEADER_SETTING = 3, 4, 5, 6

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_LAST_PING = b"last one"
"""Payload of the ping whose answer shows that a client has heard of the end of its connection."""

_HEAD = Struct(">IBI")
"""Length and kind, flags, stream."""
_PREFIX = Struct(">BI")
"""Compression flag and length of a message."""
_SETTING = Struct(">HI")

_LENGTHS = {_RESET: 4, _PING: 8, _WINDOW: 4}
"""Bytes of frames that have always as many."""

_OK_BLOCK = b"\x88\x0f\x10\x10application/grpc"
"""`:status: 200` by its index, and `content-type` by that of its name (RFC 7541, appendix A)."""

_TIMEOUT_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_UNQUOTED = " !\"#$&'()*+,/:;<=>?@[\\]^`{|}"
_PSEUDO_HEADERS = frozenset({b":method", b":scheme", b":path", b":authority"})
_is_name = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+").fullmatch
_has_lines = re.compile(rb"[\0\r\n]").search

_log = logging.getLogger(__name__)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a server; see `quadriga.proto.grpc.server.GrpcServer`."""

    max_message_bytes: int
    max_connections: int
    handshake_timeout_s: float
    idle_timeout_s: float
    max_age_s: float
    """0: connections may grow old."""


class _ConnectionEnd(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def _frame(kind: int, flags: int, stream: int, payload: bytes | memoryview = b"") -> bytes:
    return b"".join((_HEAD.pack(len(payload) << 8 | kind, flags, stream), payload))


def _literal(name: str, value: str | bytes) -> bytes:
    """Encode a header that enters no table."""
    if name.endswith("-bin"):
        raw = value.encode() if isinstance(value, str) else value
        value = base64.b64encode(raw).rstrip(b"=")
    texts = name.encode(), value if isinstance(value, bytes) else value.encode("ascii", "replace")
    return b"\0" + b"".join(bytes(encode_integer(len(text), 7)) + text for text in texts)


class Call:
    """A call: what its handler reads and writes by, with the methods of a context of grpc.aio."""

    def __init__(self, connection: "Connection", stream: int, headers: "_Headers") -> None:
        self._connection = connection
        self.stream = stream
        self.method = headers.method
        self._metadata = headers.metadata
        self._encoding = headers.encoding
        self.deadline_s = (
            math.inf if headers.timeout_s is None else connection.loop.time() + headers.timeout_s
        )
        self.max_message_bytes = connection.server.limits.max_message_bytes
        """Maximum bytes of a message, until a handler knows less."""
        self._input = bytearray()
        """Bytes of messages that are not read, each behind its prefix."""
        self._needed_bytes = _PREFIX.size
        """Bytes of them with which the first is whole, or its size known."""
        self.has_all = False
        """Whether the client has sent all."""
        self._error: ProtocolError | None = None
        self._reader: asyncio.Future[None] | None = None
        self._wait_ends_s = math.inf
        self._read_message: Callable[[bytes], Any] | None = None
        self._write_message: Callable[[Any], bytes] | None = None
        self.receive_window = _WINDOW_BYTES
        self.send_window = connection.first_send_window
        self.out: deque[memoryview] = deque()
        """Parts of the answer that have not left."""
        self.sent_bytes = 0
        self.waits_since_s = 0.0
        """When the part of the answer that has not left was ready."""
        self._held_bytes = 0
        self._has_headers = False
        self._trailers: bytes | None = None
        self._trailing: Sequence[tuple[str, str | bytes]] = ()
        self._code, self._details = 0, ""
        self._drained: asyncio.Future[None] | None = None
        self._callbacks: list[Callable[[Any], None]] = []
        self.is_over = False
        """Whether the answer has left, or nobody waits for it."""
        self._is_done = False
        self.task: asyncio.Task[None] = connection.loop.create_task(self._run())

    def invocation_metadata(self) -> Sequence[tuple[str, str | bytes]]:
        """Return what the client sent besides its message."""
        return self._metadata

    def peer(self) -> str:
        """Return address and port of the client."""
        return self._connection.peer

    def time_remaining(self) -> float | None:
        """Return for how many seconds the client waits; None if it did not say."""
        if self.deadline_s == math.inf:
            return None
        return max(0.0, self.deadline_s - self._connection.loop.time())

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call a function with this call once its answer has left, or never will."""
        self._callbacks.append(callback)

    def set_trailing_metadata(self, metadata: Sequence[tuple[str, str | bytes]]) -> None:
        """Set what is sent behind the answer."""
        self._trailing = metadata

    async def abort(self, code: Any, details: str = "") -> None:
        """End the call with a status; it raises what ends the handler."""
        self._set_status(code, details)
        raise grpc.aio.AbortError

    def _set_status(self, code: Any, details: str) -> None:
        self._code, self._details = code.value[0], details

    async def read(self, timeout_s: float = math.inf) -> Any:
        """Read the next message; `grpc.aio.EOF` if there are no more.

        Raises:
            TooSlow: It does not come in time.
            TooLarge: It has more bytes than a message may.
            IntakeFull: Too many bytes of messages are here already.
            Unsupported: It is compressed in a way that is not taken.
            InvalidRequest: It is not whole, or not what its compression makes.
        """
        self._wait_ends_s = self._connection.loop.time() + timeout_s
        while (message := self._first_message()) is None:
            if self._error is not None:
                raise self._error
            if self.has_all and self._input:
                raise InvalidRequest("expected a whole message, got the end of the call")
            if self.has_all:
                return grpc.aio.EOF
            self._reader = self._connection.loop.create_future()
            self._grant()
            try:
                await self._reader
            finally:
                self._reader = None
        is_compressed, body = message
        if is_compressed:
            if self._encoding not in (b"gzip", b"deflate"):
                raise Unsupported("expected the encoding gzip or deflate of a compressed message")
            limit_bytes = self.max_message_bytes
            body = await asyncio.to_thread(decompress, body, self._encoding, limit_bytes)
        return body if self._read_message is None else self._read_message(body)

    def _first_message(self) -> tuple[int, bytes] | None:
        """Take the compression flag and the bytes of the first message; None until it is whole."""
        if len(self._input) < _PREFIX.size:
            return None
        flag, size = _PREFIX.unpack_from(self._input)
        self._check_size(size)
        end = _PREFIX.size + size
        if len(self._input) < end:
            if self._needed_bytes < end:
                self._connection.server.intake.take(0, announced=end - len(self._input))
                self._needed_bytes = end
            return None
        with memoryview(self._input) as view:
            message = bytes(view[_PREFIX.size : end])
        self._drop(end)
        return flag, message

    def _drop(self, size: int) -> None:
        """Forget the first bytes of the input."""
        del self._input[:size]
        self._needed_bytes = _PREFIX.size
        self._give_back(size)

    def end_wait(self, error: ProtocolError) -> None:
        """Let the message that is awaited be an error."""
        self._error = error
        self._drop(len(self._input))
        self._wake()

    def _check_size(self, size: int) -> None:
        if size > self.max_message_bytes:
            text = f"expected a message of at most {self.max_message_bytes} bytes, got {size}"
            raise TooLarge(text)

    async def write(self, message: Any) -> None:
        """Send one of several messages, and wait until it has left."""
        self._send(message)
        if self.out and not self.is_over:
            self._drained = self._connection.loop.create_future()
            await self._drained

    async def _run(self) -> None:
        try:
            await self._answer()
        except grpc.aio.AbortError:
            pass
        except asyncio.CancelledError:
            if not self.is_over:
                self._set_status(grpc.StatusCode.CANCELLED, "the call was cancelled")
        except Exception:  # noqa: BLE001 - a defect: the client learns no more than that
            _log.exception("a call of gRPC failed: %s", self.method[:200])
            self._set_status(grpc.StatusCode.UNKNOWN, "an unexpected error")
        self._is_done = True
        if self.is_over:
            self._call_back()
        else:
            self._end_answer()

    async def _answer(self) -> None:
        connection = self._connection
        call = connection.server.handlers.begin(self.method, self._metadata)
        if call is None:
            self._set_status(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
            return
        if current_caller().rights:
            connection.note_caller()
        self._read_message, self._write_message = call.read_message, call.write_message
        if (response := await call.answer(self)) is not None:
            self._send(response)

    # What comes.

    def receive(self, data: Any) -> None:
        """Take bytes of messages."""
        if self._error is None and not self.is_over:
            self._input += data
            self._hold(len(data))
            self._wake()

    def receive_end(self) -> None:
        """Take note that no more messages come."""
        self.has_all = True
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            is_enough = len(self._input) >= self._needed_bytes
            if is_enough or self.has_all or self._error is not None:
                self._reader.set_result(None)
            else:
                self._grant()

    def _grant(self) -> None:
        """Let the client send what the message that is awaited lacks, and some of the next."""
        wanted = self._needed_bytes - len(self._input) + _WINDOW_BYTES // 2
        if not self.has_all and self.receive_window < wanted:
            more = wanted + _WINDOW_BYTES // 2 - self.receive_window
            self.receive_window += more
            self._connection.write(_frame(_WINDOW, 0, self.stream, more.to_bytes(4, "big")))

    # What goes.

    def _send(self, message: Any) -> None:
        if self.is_over:
            return
        if self._write_message is not None:
            message = self._write_message(message)
        connection = self._connection
        if not self._has_headers:
            self._has_headers = True
            connection.write(_frame(_HEADERS, _END_HEADERS, self.stream, _OK_BLOCK))
        prefix = _PREFIX.pack(0, len(message))
        self.out.append(memoryview(prefix + message))
        connection.count_message(len(message))
        connection.flush(self)
        if self.out:
            self._hold(len(message))
            self.waits_since_s, self.sent_bytes = connection.loop.time(), 0

    def _end_answer(self) -> None:
        """Send the status behind the answer."""
        if self._connection.has_caller:
            self._connection.count_message(0)
        block = b"" if self._has_headers else _OK_BLOCK
        block += _literal("grpc-status", str(self._code))
        if self._details:
            block += _literal("grpc-message", quote(self._details, safe=_UNQUOTED)[:8192])
        block += b"".join(_literal(name, value) for name, value in self._trailing)
        self._trailers = _frame(_HEADERS, _END_HEADERS | _END_STREAM, self.stream, block)
        if not self.out:
            self.end_of_flush()

    def end_of_flush(self) -> None:
        """Go on once all that was ready has left."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        if self._trailers is not None:
            data = self._trailers
            if not self.has_all:
                data += _frame(_RESET, 0, self.stream, b"\0\0\0\0")
            self._connection.write(data)
            self.leave()
        elif self._held_bytes:
            self._give_back(self._held_bytes - len(self._input))

    def leave(self) -> None:
        """Be over: the answer has left, or nobody waits for it."""
        if self.is_over:
            return
        self.is_over = True
        self._connection.forget(self)
        self.out.clear()
        self._input.clear()
        self._give_back(self._held_bytes)
        if self._is_done:
            self._call_back()
        else:
            self.task.cancel()

    def _hold(self, size: int) -> None:
        self._held_bytes += size
        self._connection.server.intake.add(size)

    def _give_back(self, size: int) -> None:
        self._held_bytes -= size
        self._connection.server.intake.give_back(size)

    def _call_back(self) -> None:
        for callback in self._callbacks:
            callback(self)

    def look(self, now_s: float) -> None:
        """End what has had its time."""
        intake = self._connection.server.intake
        if now_s > self.deadline_s:
            self._connection.write(_frame(_RESET, 0, self.stream, _CANCEL.to_bytes(4, "big")))
            self.leave()
        elif self._reader is not None and now_s > self._wait_ends_s:
            intake.late_bodies += 1
            text = f"expected a whole message within {intake.body_timeout_s:g} s, got none: the limit is the setting body_timeout_s"
            self.end_wait(TooSlow(text))

    def is_late(self, now_s: float) -> bool:
        """Check whether the client has not read the answer in its time."""
        intake = self._connection.server.intake
        allowed_s = intake.body_timeout_s + self.sent_bytes / intake.bytes_per_s
        return now_s - self.waits_since_s > allowed_s


class _Headers(msgspec.Struct, frozen=True):
    """Headers of a call."""

    method: str
    metadata: Sequence[tuple[str, str | bytes]]
    encoding: bytes
    timeout_s: float | None
    problem: bytes
    """Status of HTTP if it is no call of gRPC."""
    is_malformed: bool = False
    """Whether they are none of HTTP (RFC 9113, section 8.2)."""


def _is_malformed(fields: Sequence[tuple[bytes, bytes]]) -> bool:
    names = [name for name, _ in fields]
    first = [name for name in names if name in _PSEUDO_HEADERS]
    return (
        len(set(first)) < len(first)
        or names[: len(first)] != first
        or not all(map(_is_name, names[len(first) :]))
        or any(_has_lines(value) for _, value in fields)
    )


def _read_headers(fields: Sequence[tuple[bytes, bytes]]) -> _Headers:
    """Read the headers of a call.

    Raises:
        UnicodeDecodeError: A name or a path is no text.
    """
    method, verb, content, encoding, timeout_s = "", b"", b"", b"", None
    metadata: list[tuple[str, str | bytes]] = []
    for name, value in fields:
        if name == b":path":
            method = value.decode()
        elif name == b":method":
            verb = value
        elif name == b"content-type":
            content = value
        elif name == b"grpc-timeout":
            with suppress(ValueError, KeyError, OverflowError):
                timeout_s = int(value[:-1]) * _TIMEOUT_UNITS[value[-1:].decode()]
        elif name == b"grpc-encoding":
            encoding = value
        elif name.endswith(b"-bin"):
            with suppress(ValueError):
                padded = value + b"=" * (-len(value) % 4)
                metadata.append((name.decode(), base64.b64decode(padded)))
        elif not name.startswith((b":", b"grpc-")) and name != b"te":
            metadata.append((name.decode(), value.decode(errors="replace")))
    problem = b"405" if verb != b"POST" else b"415"
    if verb == b"POST" and content.startswith(b"application/grpc"):
        problem = b""
    return _Headers(
        method, tuple(metadata), encoding, timeout_s, problem, is_malformed=_is_malformed(fields)
    )


class Share:
    """A share of the time of the event loop that some connections have together; those beyond it wait for their turn.

    Args:
        share: Seconds a second.
        burst_s: Seconds that they may take at once.
    """

    def __init__(self, share: float, burst_s: float) -> None:
        self._share, self._burst_s = share, burst_s
        self._left_s, self._seen_s = burst_s, 0.0
        self._waiting: list[Connection] = []
        self._timer: asyncio.Handle | None = None

    def has_time(self) -> bool:
        """Check whether there is time now, and nobody waits for it."""
        now_s = perf_counter()
        earned_s = (now_s - self._seen_s) * self._share
        self._left_s, self._seen_s = min(self._left_s + earned_s, self._burst_s), now_s
        return self._left_s > 0 and not self._waiting

    def spend(self, seconds: float) -> None:
        """Take time."""
        self._left_s -= seconds

    def wait(self, connection: "Connection") -> None:
        """Let a connection wait for its turn."""
        self._waiting.append(connection)
        if self._timer is None:
            self._timer = connection.loop.call_later(self._delay_s(), self._next)

    def _delay_s(self) -> float:
        return max(0.0, -self._left_s) / self._share

    def _next(self) -> None:
        """Give the next connection its turn."""
        self._timer = None
        self.has_time()
        connection = min(self._waiting, key=lambda waiting: waiting.due_s)
        self._waiting.remove(connection)
        connection.work()
        if self._waiting and self._timer is None:
            self._timer = connection.loop.call_later(self._delay_s(), self._next)


class Connection(asyncio.BufferedProtocol):
    """A connection: frames in, frames out."""

    transport: asyncio.Transport

    def __init__(self, server: "Http2Server") -> None:
        self.server = server
        self.loop = server.loop
        self.calls: dict[int, Call] = {}
        self.peer = ""
        self.has_caller = False
        """Whether a call of it came with a key, or none is needed."""
        self.first_send_window = UNASKED_BYTES
        self._send_window = UNASKED_BYTES
        self._receive_window = UNASKED_BYTES
        self._max_frame_bytes = 16_384
        self._decoder = Decoder(max_header_list_size=MAX_HEADER_BYTES)
        self._input: Any = b""
        """Bytes that have not been handled."""
        self.due_s = 0.0
        """When its turn is due; the earliest goes first."""
        self._turn_ends_s = 0.0
        self._has_preface = self._has_settings = False
        self._data_left = 0
        """Bytes of a frame of data that have yet to come."""
        self._data_call: Call | None = None
        self._data_ends = False
        self._block: tuple[int, int, bytearray] | None = None
        """Stream, flags and bytes of headers that are not complete."""
        self._last_block = b""
        self._last_headers: _Headers | None = None
        self._last_stream = 0
        self._spare_frames: float = _SPARE_FRAMES
        self._blocked: dict[Call, None] = {}
        self._waits = self._is_paused = self._is_ended = False
        self._paused_s = self._acknowledged = 0.0
        self._ends_s = math.inf
        """When the connection is closed at the latest, once its end was announced."""
        self._goes = False
        self._last_allowed = _MAX_WINDOW_BYTES
        self._begun_s = self._heard_s = self._idle_s = self._looked_s = self.loop.time()
        self._pinged_s = math.inf
        age_s = server.limits.max_age_s * random.uniform(0.9, 1.1)  # noqa: S311 - not all at once
        self._old_s = self._begun_s + age_s if age_s else math.inf

    # The connection.

    def connection_made(self, transport: Any) -> None:
        """Begin."""
        self.transport = transport
        host, port = (transport.get_extra_info("peername") or ("", 0))[:2]
        self.peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        transport.set_write_buffer_limits(_HIGH_WATER_BYTES)
        if not self.server.add(self):
            self._is_ended = True
            transport.abort()

    def connection_lost(self, _: Exception | None) -> None:
        """End the calls."""
        self._is_ended = True
        self._input = b""
        self.server.connections.pop(self, None)
        for call in list(self.calls.values()):
            call.leave()

    def note_caller(self) -> None:
        """Take note that a caller who may use the server speaks on it."""
        if not self.has_caller:
            self.has_caller = True
            self.transport.set_write_buffer_limits(_HIGH_WATER_OF_CALLERS_BYTES)

    def write(self, data: Any) -> None:
        """Write frames."""
        if not self._is_ended and not self.transport.is_closing():
            self.transport.write(data)

    def pause_writing(self) -> None:
        """Read and answer no more until the client has read."""
        self._is_paused = True
        self._paused_s = self.loop.time()
        self._acknowledged = self._count_acknowledged()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on."""
        self._is_paused = False
        if not self._waits:
            self._resume_reading()
        self._flush_all()

    def _resume_reading(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def _count_acknowledged(self) -> int:
        return arrived_bytes(self.transport.get_extra_info("socket"))

    def end(self, code: int, text: str) -> None:
        """Say why, and close the connection."""
        if self._is_ended:
            return
        payload = self._last_stream.to_bytes(4, "big") + code.to_bytes(4, "big")
        self.write(_frame(_GOAWAY, 0, 0, payload + text.encode()[:200]))
        self.close()

    def close(self, last_bytes_s: float = _END_S) -> None:
        """Close the connection, whatever is under way; the client has some time to read what was written."""
        self._is_ended = True
        self._input = b""
        self._ends_s = self.loop.time() + last_bytes_s
        self.transport.close()
        for call in list(self.calls.values()):
            call.leave()

    def end_gracefully(self) -> None:
        """Tell the client to open another connection; calls go on, and those that it sends before it has heard of this."""
        if self._goes or self._is_ended:
            return
        self._goes = True
        self.write(_frame(_GOAWAY, 0, 0, _MAX_WINDOW_BYTES.to_bytes(4, "big") + bytes(4)))
        self.write(_frame(_PING, 0, 0, _LAST_PING))
        self._ends_s = self.loop.time() + _END_S

    def _refuse_more(self) -> None:
        """Take no more calls; close the connection once there are none."""
        if self._last_allowed == _MAX_WINDOW_BYTES:
            self._last_allowed = self._last_stream
            self.write(_frame(_GOAWAY, 0, 0, self._last_stream.to_bytes(4, "big") + bytes(4)))
        if not self.calls and not self.transport.get_write_buffer_size():
            self.close(self.server.intake.body_timeout_s)

    def forget(self, call: Call) -> None:
        """Leave out a call that is over."""
        self.calls.pop(call.stream, None)
        self._blocked.pop(call, None)
        if not self.calls:
            self._idle_s = self.loop.time()
            if self._last_allowed < _MAX_WINDOW_BYTES:
                self._refuse_more()

    def look(self, now_s: float) -> None:
        """Close what has had its time."""
        limits = self.server.limits
        if self._is_ended:
            if now_s > self._ends_s:
                self.transport.abort()
            return
        gained = (now_s - self._looked_s) * _SPARE_FRAMES_PER_S
        self._spare_frames += max(0.0, min(gained, _SPARE_FRAMES - self._spare_frames))
        self._looked_s = now_s
        if self._is_unread(now_s):
            self.server.unread += 1
            self.transport.abort()
        elif not self._has_settings and now_s - self._begun_s > limits.handshake_timeout_s:
            self.close()
        elif self._goes and now_s > self._ends_s:
            self._refuse_more()
        elif now_s > self._old_s or now_s - self._idle_s > limits.idle_timeout_s:
            self.end_gracefully()
        elif now_s - self._pinged_s > KEEPALIVE_TIMEOUT_S:
            self.transport.abort()
        elif self.calls and now_s - self._heard_s > KEEPALIVE_S and self._pinged_s == math.inf:
            self._pinged_s = now_s
            self.write(_frame(_PING, 0, 0, bytes(8)))
        for call in list(self.calls.values()):
            call.look(now_s)

    def _is_unread(self, now_s: float) -> bool:
        intake = self.server.intake
        if self._is_paused:
            read_bytes = self._count_acknowledged() - self._acknowledged
            return now_s - self._paused_s > intake.body_timeout_s + read_bytes / intake.bytes_per_s
        last_bytes_s = self._ends_s + intake.body_timeout_s
        return now_s > max(last_bytes_s, self._idle_s) or any(
            call.is_late(now_s) for call in self._blocked
        )

    # What goes.

    def count_message(self, size: int) -> None:
        """Take note of a message to the client, which may send other frames for it."""
        gained = _SPARE_FRAMES_PER_MESSAGE + size // 1024
        self._spare_frames = min(self._spare_frames + gained, 2**20)

    def flush(self, call: Call) -> None:
        """Write as much of an answer as the client takes."""
        out = call.out
        while out:
            part = out[0]
            size = min(len(part), call.send_window, self._send_window, self._max_frame_bytes)
            if size <= 0 or self._is_paused or self._is_ended:
                self._blocked.pop(call, None)
                self._blocked[call] = None  # behind others
                return
            self.transport.write(_frame(_DATA, 0, call.stream, part[:size]))
            call.send_window -= size
            self._send_window -= size
            call.sent_bytes += size
            if size == len(part):
                out.popleft()
            else:
                out[0] = part[size:]
        self._blocked.pop(call, None)
        call.end_of_flush()

    def _flush_all(self) -> None:
        for call in list(self._blocked):
            self.flush(call)

    # What comes.

    def get_buffer(self, _: int) -> memoryview:
        """Return where the next bytes go."""
        # What is read has to be kept while others have their turn.
        return self.server.scratch[: len(self.server.scratch) if self.has_caller else _READ_BYTES]

    def buffer_updated(self, size: int) -> None:
        """Handle frames, if it is this connection's turn."""
        if self._is_ended:
            return
        self._heard_s, self._pinged_s = self.loop.time(), math.inf
        data = self.server.scratch[:size]
        self._input = self._input + bytes(data) if self._input else data
        if self._waits:
            self._input = bytes(self._input)
            return
        if self.server.share_of(self).has_time():
            self.work()
        else:
            self._wait()

    def _wait(self) -> None:
        self._input = bytes(self._input)
        self.due_s = self.loop.time() + len(self._input) * _LATER_S_PER_BYTE
        if not self._waits:
            self._waits = True
            self.transport.pause_reading()
        self.server.share_of(self).wait(self)

    def work(self) -> None:
        """Handle the frames that are there, for one turn."""
        if self._is_ended:
            return
        # By time of the CPU: on a busy machine, time in which others ran would be taken from all connections.
        share, begun_s = self.server.share_of(self), thread_time()
        try:
            self._turn_ends_s = perf_counter() + _TURN_S
            is_through = self._handle()
        except _ConnectionEnd as end:
            self.end(end.code, str(end))
            is_through = True
        except Exception:  # noqa: BLE001 - a defect: this connection ends, and others go on
            _log.exception("a connection of gRPC failed")
            self.close()
            is_through = True
        share.spend(thread_time() - begun_s)
        if not is_through:
            self._wait()
        elif self._waits:
            self._waits = False
            if not self._is_paused:
                self._resume_reading()

    def _handle(self) -> bool:
        """Handle frames until the end of the turn; return whether none is left."""
        data, position = memoryview(self._input), 0
        while (moved := self._take_next(data, position)) != position and not self._is_ended:
            position = moved
            if perf_counter() > self._turn_ends_s:
                break
        self._input = b"" if self._is_ended else data[position:].tobytes()
        return not self._input or perf_counter() <= self._turn_ends_s

    def _take_next(self, data: memoryview, position: int) -> int:
        """Handle a whole frame, the head of one of data or a part of its bytes; return where the next bytes are."""
        left = len(data) - position
        if self._data_left:
            size = min(left, self._data_left)
            self._data_left -= size
            self._take_data(data[position : position + size])
            return position + size
        if not self._has_preface:
            return self._take_preface(data)
        if left < _HEAD.size:
            return position
        word: int
        word, flags, stream = _HEAD.unpack_from(data, position)
        length, kind, stream = word >> 8, word & 255, stream & _MAX_STREAM
        begin = position + _HEAD.size
        if kind == _DATA and length and not flags & _PADDED and self._block is None:
            self._begin_data(stream, flags, length)
            self._data_left = length
            return begin
        if length > MAX_HEADER_BYTES:
            text = f"expected frames of at most {MAX_HEADER_BYTES} bytes besides data"
            raise _ConnectionEnd(_SIZE, text)
        end = begin + length
        if len(data) < end:
            return position
        self._take_frame(kind, flags, stream, data[begin:end].tobytes())
        return end

    def _take_preface(self, data: memoryview) -> int:
        """Begin, if the client does; return where its first frame is."""
        if not _PREFACE.startswith(data[: len(_PREFACE)].tobytes()):
            self.close()
        if len(data) < len(_PREFACE) or self._is_ended:
            return 0
        self._has_preface = True
        settings = (
            (_MAX_STREAMS_SETTING, self.server.max_streams),
            (_WINDOW_SETTING, _WINDOW_BYTES),
            (_FRAME_SETTING, _MAX_FRAME_BYTES),
            (_HEADER_SETTING, MAX_HEADER_BYTES),
        )
        self.write(
            _frame(_SETTINGS, 0, 0, b"".join(_SETTING.pack(*setting) for setting in settings))
        )
        self._grant()
        return len(_PREFACE)

    def _begin_data(self, stream: int, flags: int, length: int) -> None:
        if length > _MAX_FRAME_BYTES:
            raise _ConnectionEnd(_SIZE, f"expected frames of at most {_MAX_FRAME_BYTES} bytes")
        self._receive_window -= length
        call = self._data_call = self.calls.get(stream)
        self._data_ends = bool(flags & _END_STREAM)
        if call is not None:
            call.receive_window -= length
            if call.has_all:
                self._reset(call, _CLOSED)
                call = self._data_call = None
        elif not 0 < stream <= self._last_stream:
            raise _ConnectionEnd(_PROTOCOL, "expected data of a call")
        if self._receive_window < 0 or (call is not None and call.receive_window < 0):
            raise _ConnectionEnd(_FLOW, "expected no more data than was asked for")
        self._grant()

    def _grant(self) -> None:
        """Let the client send more, of all calls together."""
        if self._receive_window < _CONNECTION_WINDOW_BYTES // 2:
            more = _CONNECTION_WINDOW_BYTES - self._receive_window
            self._receive_window += more
            self.write(_frame(_WINDOW, 0, 0, more.to_bytes(4, "big")))

    def _take_data(self, data: Any) -> None:
        call = self._data_call
        if call is not None:
            if data:
                call.receive(data)
            if self._data_ends and not self._data_left:
                call.receive_end()

    def _spend_frame(self) -> None:
        self._spare_frames -= 1
        if self._spare_frames < 0:
            raise _ConnectionEnd(_CALM, "expected fewer frames that serve no call")

    def _take_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if not self._has_settings and kind != _SETTINGS:
            raise _ConnectionEnd(_PROTOCOL, "expected settings first")
        if self._block is not None and kind != _CONTINUATION:
            raise _ConnectionEnd(_PROTOCOL, "expected the rest of the headers")
        if kind == _HEADERS:
            self._take_headers(flags, stream, payload)
        elif kind == _CONTINUATION:
            self._take_continuation(flags, stream, payload)
        elif kind == _DATA:  # padded, or empty
            self._begin_data(stream, flags, len(payload))
            payload = self._without_padding(flags, payload)
            if not payload and not flags & _END_STREAM:
                self._spend_frame()
            self._take_data(payload)
        else:
            # A proxy whose calls run out of time resets many at once; each has cost its share of time already.
            if kind != _RESET or not self.has_caller or stream not in self.calls:
                self._spend_frame()
            self._take_control(kind, flags, stream, payload)

    def _take_control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        length = len(payload)
        if length != _LENGTHS.get(kind, length) or (kind == _SETTINGS and length % _SETTING.size):
            raise _ConnectionEnd(_SIZE, f"expected no frame of kind {kind} with {length} bytes")
        is_misplaced = kind == _PUSH
        if kind in (_PING, _SETTINGS):
            is_misplaced = stream != 0
        elif kind in (_WINDOW, _RESET):
            is_misplaced = stream > self._last_stream or (kind == _RESET and stream == 0)
        if is_misplaced:
            raise _ConnectionEnd(_PROTOCOL, "expected a frame of a client, got another")
        if kind == _WINDOW:
            self._take_window(stream, int.from_bytes(payload, "big") & _MAX_WINDOW_BYTES)
        elif kind == _PING:
            self._take_ping(flags, payload)
        elif kind == _SETTINGS:
            self._take_settings(flags, payload)
        elif kind == _RESET and (call := self.calls.get(stream)) is not None:
            call.leave()

    def _reset(self, call: Call, code: int) -> None:
        """End a call whose frames are wrong."""
        self.write(_frame(_RESET, 0, call.stream, code.to_bytes(4, "big")))
        call.leave()

    @staticmethod
    def _without_padding(flags: int, payload: bytes) -> bytes:
        if not flags & _PADDED:
            return payload
        if not payload or payload[0] >= len(payload):
            raise _ConnectionEnd(_PROTOCOL, "expected no more padding than the frame has")
        return payload[1 : len(payload) - payload[0]]

    def _take_headers(self, flags: int, stream: int, payload: bytes) -> None:
        payload = self._without_padding(flags, payload)
        if flags & _HAS_PRIORITY:
            payload = payload[5:]
        if flags & _END_HEADERS:
            self._take_block(stream, flags, payload)
        else:
            self._block = stream, flags, bytearray(payload)

    def _take_continuation(self, flags: int, stream: int, payload: bytes) -> None:
        if self._block is None or self._block[0] != stream:
            raise _ConnectionEnd(_PROTOCOL, "expected headers before their rest")
        _, first_flags, block = self._block
        self._spend_frame()
        block += payload
        if len(block) > MAX_HEADER_BYTES:
            raise _ConnectionEnd(_CALM, f"expected headers of at most {MAX_HEADER_BYTES} bytes")
        if flags & _END_HEADERS:
            self._block = None
            self._take_block(stream, first_flags, bytes(block))

    def _decode(self, block: bytes) -> _Headers:
        """Decode headers; those that equal the ones before, and name entries of the table alone, are known."""
        if self._last_headers is not None and block == self._last_block:
            return self._last_headers
        try:
            headers = _read_headers(self._decoder.decode(block, raw=True))  # type: ignore[arg-type]  # raw: bytes
        except HPACKError as error:
            text = f"expected headers of at most {MAX_HEADER_BYTES} bytes"
            raise _ConnectionEnd(_COMPRESSION, text) from error
        except UnicodeDecodeError as error:
            raise _ConnectionEnd(_PROTOCOL, "expected headers that are texts") from error
        is_kept = bool(block) and min(block) >= 128
        self._last_block, self._last_headers = block, headers if is_kept else None
        return headers

    def _take_block(self, stream: int, flags: int, block: bytes) -> None:
        headers = self._decode(block)
        if (call := self.calls.get(stream)) is not None:
            if call.has_all:
                self._reset(call, _CLOSED)
            else:
                call.receive_end()  # trailers
            return
        if stream <= self._last_stream:
            self._spend_frame()  # trailers of a call that is over
            return
        if not stream & 1:
            raise _ConnectionEnd(_PROTOCOL, "expected odd numbers of streams")
        self._last_stream = stream
        if stream > self._last_allowed:
            return
        refusal = b""
        if len(self.calls) >= self.server.max_streams:
            refusal = _frame(_RESET, 0, stream, _REFUSED.to_bytes(4, "big"))
        elif headers.is_malformed:
            refusal = _frame(_RESET, 0, stream, _PROTOCOL.to_bytes(4, "big"))
        elif headers.problem:
            answer = b"\x08\x03" + headers.problem
            refusal = _frame(_HEADERS, _END_HEADERS | _END_STREAM, stream, answer)
        if refusal:
            self._spend_frame()
            self.write(refusal)
            return
        self.server.share_of(self).spend(_CALL_S)
        self._turn_ends_s -= _CALL_S
        self._idle_s = math.inf
        call = self.calls[stream] = Call(self, stream, headers)
        if flags & _END_STREAM:
            call.receive_end()

    def _take_window(self, stream: int, more: int) -> None:
        call = self.calls.get(stream)
        if not more and (stream == 0 or call is not None):
            if call is None:
                raise _ConnectionEnd(_PROTOCOL, "expected a larger window")
            self._reset(call, _PROTOCOL)
        elif stream == 0:
            self._send_window += more
            if self._send_window > _MAX_WINDOW_BYTES:
                raise _ConnectionEnd(_FLOW, "expected a smaller window")
            self._flush_all()
        elif call is not None:
            call.send_window += more
            if call.send_window > _MAX_WINDOW_BYTES:
                self._reset(call, _FLOW)
            elif call.out:
                self.flush(call)

    def _take_ping(self, flags: int, payload: bytes) -> None:
        if not flags & _ACK:
            self.write(_frame(_PING, _ACK, 0, payload))
        elif self._goes and payload == _LAST_PING:
            self._refuse_more()

    def _take_settings(self, flags: int, payload: bytes) -> None:
        self._has_settings = True
        if flags & _ACK:
            return
        for name, value in _SETTING.iter_unpack(payload):
            if name == _WINDOW_SETTING:
                if value > _MAX_WINDOW_BYTES:
                    raise _ConnectionEnd(_FLOW, "expected a smaller window")
                more, self.first_send_window = value - self.first_send_window, value
                for call in self.calls.values():
                    call.send_window += more
            elif name == _FRAME_SETTING:
                if not 16_384 <= value < 2**24:
                    raise _ConnectionEnd(_PROTOCOL, "expected frames of 16384 to 16777215 bytes")
                self._max_frame_bytes = value
        self.write(_frame(_SETTINGS, _ACK, 0))
        self._flush_all()


class Http2Server:
    """The connections of a worker; used on the running event loop."""

    def __init__(self, handlers: Any, limits: Limits, intake: Intake) -> None:
        self.handlers = handlers
        self.limits = limits
        self.max_streams = min(limits.max_connections, MAX_STREAMS)
        self.intake = intake
        self.connections: dict[Connection, None] = {}
        self.scratch = memoryview(bytearray(256 * 1024))
        """Buffer that all connections read into: what stays is copied."""
        self.unread = 0
        """Connections that this look has closed as their clients read no answer."""
        self._callers, self._strangers = Share(0.8, 0.04), Share(0.25, 0.01)
        self._acceptor = Acceptor(
            lambda: Connection(self),
            self._make_place,
            name=" of gRPC",
            handshake_timeout_s=limits.handshake_timeout_s,
            last_bytes_timeout_s=intake.body_timeout_s,
        )
        self._sweep: asyncio.TimerHandle | None = None
        times_s = limits.handshake_timeout_s, limits.idle_timeout_s, intake.body_timeout_s
        self._look_s = min(1.0, *(seconds / 4 for seconds in times_s))

    async def start(self, address: str, tls: ssl.SSLContext | None) -> int:
        """Listen on `host:port`, beside other workers; return the port.

        Raises:
            OSError: The address cannot be bound.
        """
        self.loop = asyncio.get_running_loop()
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        is_v6 = ":" in host
        family = socket.AF_INET6 if is_v6 else socket.AF_INET
        listener = socket.create_server(
            (host, int(port)), family=family, backlog=1024, reuse_port=True, dualstack_ipv6=is_v6
        )
        number: int = listener.getsockname()[1]
        self._acceptor.tls = tls
        self._acceptor.start(listener)
        self._sweep = self.loop.call_later(self._look_s, self._look)
        return number

    def _make_place(self) -> bool:
        """Make a place for a handshake: beyond the maximum, the one that has lasted longest ends."""
        taken = len(self.connections) + len(self._acceptor)
        if taken >= self.limits.max_connections + SPARE_HANDSHAKES and self._acceptor.end_one():
            self.intake.displaced += 1
        return True

    def share_of(self, connection: Connection) -> Share:
        """Return the share of the loop's time of a connection."""
        return self._callers if connection.has_caller else self._strangers

    def add(self, connection: Connection) -> bool:
        """Add a connection, in the place of one of a stranger without calls if there are too many; return whether it has one."""
        if len(self.connections) >= self.limits.max_connections:
            for displaced in self.connections:
                if not displaced.has_caller and not displaced.calls:
                    break
            else:
                self.intake.refused_connections += 1
                return False
            self.intake.displaced += 1
            del self.connections[displaced]
            displaced.transport.abort()
        self.connections[connection] = None
        return True

    def _look(self) -> None:
        """Close what has had its time, and come again."""
        self._sweep = self.loop.call_later(self._look_s, self._look)
        now_s, self.unread = self.loop.time(), 0
        for connection in list(self.connections):
            connection.look(now_s)
        if self.unread:
            text = "closed %d connections of gRPC whose clients did not read an answer within %g s"
            _log.warning(text, self.unread, self.intake.body_timeout_s)

    def close_listener(self) -> None:
        """Take no more connections."""
        self._acceptor.stop()

    async def stop(self, grace_s: float) -> None:
        """Tell clients to go elsewhere, and finish running calls within some time."""
        self.close_listener()
        until_s = self.loop.time() + grace_s
        for connection in list(self.connections):
            connection.end_gracefully()
        while self.connections and self.loop.time() < until_s:
            for connection in list(self.connections):
                connection.look(self.loop.time())
            await asyncio.sleep(0.02)
        for connection in list(self.connections):
            connection.close()
            connection.transport.abort()
        if self._sweep is not None:
            self._sweep.cancel()
        await asyncio.sleep(0)

"""Responses that are streams, as those of server-sent events, and how many streams there may be at once.

A stream ends when its client leaves, when its events do, and when the server shuts down.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import ExitStack, aclosing
from typing import Any

import msgspec
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Send

from quadriga.engine.api.store_queries import wait_for_disconnect
from quadriga.proto.access import Caller
from quadriga.proto.errors import LimitReached, Overloaded, ProtocolError
from quadriga.proto.http.asgi import ABORT_EXTENSION
from quadriga.store.records.errors import QueryCancelledError, StoreError

EVENT_STREAM = "text/event-stream"
MAX_STREAMS, MAX_STREAMS_OF_KEY = 32, 8
"""Streams of a worker at once, of all callers and of each key."""

_LAST_WORDS_S = 2.0
"""Time that a client has to take what is being sent when a stream has to end; then its connection is closed."""

_RETRY_AFTER_S = 10
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}

Events = Callable[[asyncio.Event], AsyncGenerator[bytes]]
"""Yields encoded events until the event that it gets is set, soon after which it has to end."""


class StreamEnd(msgspec.Struct, frozen=True):
    """Reason why the server ends a stream."""

    error: str


class EventStreams:
    """The streams of a worker, of events and of tables: how many there are, and whether they have to end.

    Args:
        max_streams: Maximum number at once.
        max_of_key: Maximum number of each key at once.
    """

    def __init__(
        self, max_streams: int = MAX_STREAMS, max_of_key: int = MAX_STREAMS_OF_KEY
    ) -> None:
        self._max_streams = max_streams
        self._max_of_key = max_of_key
        self._of_keys: Counter[str] = Counter()
        self.closing = asyncio.Event()
        """Set once all streams have to end."""

    @property
    def count(self) -> int:
        """Number of streams."""
        return self._of_keys.total()

    def close(self) -> None:
        """End all streams, and let no other begin."""
        self.closing.set()

    async def wait_for_end(self, sending: asyncio.Future[Any], receive: Receive) -> None:
        """Wait until a stream is sent, its client leaves, or all streams have to end."""
        gone = asyncio.ensure_future(wait_for_disconnect(receive))
        closing = asyncio.ensure_future(self.closing.wait())
        try:
            await asyncio.wait([sending, gone, closing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            closing.cancel()

    def take_place(self, caller: Caller) -> ExitStack:
        """Count a stream of a caller, until what is returned is closed.

        Raises:
            Overloaded: There are as many as may be, or the server shuts down.
            LimitReached: The caller's key has as many as it may.
        """
        if self.closing.is_set():
            raise Overloaded("expected a server that goes on, got one that shuts down")
        if caller.key_id and self._of_keys[caller.key_id] >= self._max_of_key:
            raise LimitReached(
                f"expected at most {self._max_of_key} streams at once of the key {caller.name!r} "
                "in a worker, got one more: close another",
                _RETRY_AFTER_S,
            )
        if self.count >= self._max_streams:
            raise Overloaded(
                f"expected at most {self._max_streams} streams at once in a worker, got one more: "
                "try again later"
            )
        self._of_keys[caller.key_id] += 1
        place = ExitStack()
        place.callback(self._leave, caller.key_id)
        return place

    def _leave(self, key_id: str) -> None:
        self._of_keys -= Counter([key_id])


def event_text(name: str, content: msgspec.Struct, *, event_id: str = "") -> bytes:
    """Return a server-sent event with JSON; line ends in the JSON, as of a client, begin no field of their own.

    Source: https://html.spec.whatwg.org/multipage/server-sent-events.html, section 9.2.5.
    """
    lines = [f"event: {name}".encode(), *([f"id: {event_id}".encode()] if event_id else [])]
    lines += [b"data: " + line for line in msgspec.json.encode(content).splitlines()]
    return b"\n".join(lines) + b"\n\n"


Abort = Callable[[], object] | None
"""Closes the connection at once; None where nothing can."""

SendStream = Callable[[Send, Receive, Abort], Awaitable[None]]
"""Sends the body of a stream; it gets what sends to the client, what receives from it, and what aborts."""


class StreamResponse(ASGIResponse):
    """Response that is sent as a stream, which leaves its place at its end.

    Args:
        send_stream: Sends the body.
        place: The place of the stream, which is closed then.
        media_type: Media type of the body.
        headers: Further headers.
    """

    _should_set_content_length = False

    def __init__(
        self,
        send_stream: SendStream,
        place: ExitStack,
        media_type: str,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(media_type=media_type, headers={**_HEADERS, **headers})
        self._send_stream = send_stream
        self._place = place

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer the request, and leave the place of its stream."""
        abort: Abort = (scope.get("extensions") or {}).get(ABORT_EXTENSION)
        with self._place:
            await self.start_response(send)
            await self._send_stream(send, receive, abort)


def event_response(events: Events, streams: EventStreams, place: ExitStack) -> StreamResponse:
    """Return the response with server-sent events; errors that they raise with a status end it by an event `end`.

    A client that reads none of them holds up neither its end nor that of the server.
    """

    async def send_stream(send: Send, receive: Receive, abort: Abort) -> None:
        over = asyncio.Event()
        sending = asyncio.ensure_future(_send_events(events, send, over))
        try:
            await streams.wait_for_end(sending, receive)
            over.set()
            await asyncio.wait([sending], timeout=_LAST_WORDS_S)
            if not sending.done() and abort is not None:
                abort()
                await asyncio.wait([sending], timeout=_LAST_WORDS_S)
        finally:
            sending.cancel()
        if sending.done() and not sending.cancelled():
            sending.result()

    return StreamResponse(send_stream, place, EVENT_STREAM, {"X-Accel-Buffering": "no"})


async def _send_events(events: Events, send: Send, over: asyncio.Event) -> None:
    last = b""
    try:
        async with aclosing(events(over)) as sent:
            async for event in sent:
                await send({"type": "http.response.body", "body": event, "more_body": True})
                if over.is_set():
                    break
    except QueryCancelledError:
        return
    except (ProtocolError, StoreError) as error:
        last = event_text("end", StreamEnd(str(error)))
    await send({"type": "http.response.body", "body": last, "more_body": False})

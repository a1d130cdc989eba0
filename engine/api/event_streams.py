"""Responses that are streams of server-sent events, and how many streams of any kind there may be at once.

A stream ends when its client leaves, when its events do, and when the server shuts down.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import msgspec
from litestar.response.base import ASGIResponse
from litestar.response.streaming import Stream
from litestar.types import Receive, Send

from quadriga.engine.api.store_queries import wait_for_disconnect
from quadriga.proto.access import Caller
from quadriga.proto.errors import LimitReached, Overloaded, ProtocolError
from quadriga.proto.http import ABORT_EXTENSION
from quadriga.store.errors import QueryCancelledError, StoreError

EVENT_STREAM = "text/event-stream"
MAX_STREAMS, MAX_STREAMS_OF_KEY = 32, 8
"""Streams of a worker at once, of all callers and of each key."""

_LAST_WORDS_S = 2.0
"""Time that a client has to take what is being sent when a stream has to end; then its connection is closed."""

_RETRY_AFTER_S = 10
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
    "X-Content-Type-Options": "nosniff",
}

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

    def take_place(self, caller: Caller) -> "StreamPlace":
        """Count a stream of a caller.

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
        return StreamPlace(self._of_keys, caller.key_id)


class StreamPlace:
    """The place of one stream among those of its worker.

    Args:
        of_keys: Number of streams by key.
        key_id: Id of the stream's key.
    """

    def __init__(self, of_keys: Counter[str], key_id: str) -> None:
        self._of_keys = of_keys
        self._key_id = key_id
        self._is_left = False

    def leave(self) -> None:
        """Count the stream no more."""
        if not self._is_left:
            self._is_left = True
            self._of_keys[self._key_id] -= 1
            if not self._of_keys[self._key_id]:
                del self._of_keys[self._key_id]


def event_text(name: str, content: msgspec.Struct, *, event_id: str = "") -> bytes:
    """Return a server-sent event with JSON; line ends in the JSON, as of a client, begin no field of their own.

    Source: https://html.spec.whatwg.org/multipage/server-sent-events.html, section 9.2.5.
    """
    lines = [f"event: {name}".encode(), *([f"id: {event_id}".encode()] if event_id else [])]
    lines += [b"data: " + line for line in msgspec.json.encode(content).splitlines()]
    return b"\n".join(lines) + b"\n\n"


class EventResponse(Stream):
    """Response with server-sent events.

    Args:
        events: The events. Errors that they raise with a status end the stream by an event `end`.
        streams: All streams of the worker.
        place: The place of the stream, which is left at its end.
    """

    def __init__(self, events: Events, streams: EventStreams, place: StreamPlace) -> None:
        super().__init__((), media_type=EVENT_STREAM, headers=_HEADERS)
        self.events = events
        self.streams = streams
        self.place = place

    def to_asgi_response(self, *_: Any, **options: Any) -> ASGIResponse:
        """Return what sends the response."""
        return _EventAnswer(self, cookies=options.get("cookies"))


class _EventAnswer(ASGIResponse):
    """Sends the events of a response."""

    _should_set_content_length = False

    def __init__(self, response: EventResponse, **options: Any) -> None:
        super().__init__(media_type=EVENT_STREAM, headers=dict(response.headers), **options)
        self._response = response
        self._extensions: dict[str, Any] = {}

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer the request, and leave the place of its stream."""
        self._extensions = scope.get("extensions") or {}
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._response.place.leave()

    async def send_body(self, send: Send, receive: Receive) -> None:
        """Send the events; a client that reads none of them holds up neither its end nor that of the server."""
        over = asyncio.Event()
        sending = asyncio.ensure_future(self._send_events(send, over))
        gone = asyncio.ensure_future(wait_for_disconnect(receive))
        closing = asyncio.ensure_future(self._response.streams.closing.wait())
        ends: list[asyncio.Future[Any]] = [sending, gone, closing]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            over.set()
            await asyncio.wait([sending], timeout=_LAST_WORDS_S)
            if not sending.done() and ABORT_EXTENSION in self._extensions:
                self._extensions[ABORT_EXTENSION]()
                await asyncio.wait([sending], timeout=_LAST_WORDS_S)
        finally:
            for end in ends:
                end.cancel()
        if sending.done() and not sending.cancelled():
            sending.result()

    async def _send_events(self, send: Send, over: asyncio.Event) -> None:
        last = b""
        try:
            async with aclosing(self._response.events(over)) as events:
                async for event in events:
                    await send({"type": "http.response.body", "body": event, "more_body": True})
                    if over.is_set():
                        break
        except QueryCancelledError:
            return
        except (ProtocolError, StoreError) as error:
            last = event_text("end", StreamEnd(str(error)))
        await send({"type": "http.response.body", "body": last, "more_body": False})

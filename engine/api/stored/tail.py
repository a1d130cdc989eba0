"""The tail of what is stored: new inferences that match a filter, as events of a response that does not end by itself.

Each listener looks into the store twice a second, within the threads and limits of all searches, so that it finds what any
worker, and any server beside the same database, has stored.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import partial
from operator import methodcaller
from sys import maxsize
from typing import Any

import msgspec
from litestar import Request
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import ResponseSpec
from litestar.response.base import ASGIResponse

from quadriga.engine.api.openapi import FIND_ERRORS, url_query
from quadriga.engine.api.routes import get
from quadriga.engine.api.store_queries import PASSING, StoreQueries, query_string
from quadriga.engine.api.stored.event_streams import (
    EVENT_STREAM,
    EventStreams,
    event_response,
    event_text,
)
from quadriga.proto.access import admit
from quadriga.proto.errors import InvalidRequest
from quadriga.proto.request import current_caller, identify_again
from quadriga.store.browsing.arrivals import (
    ArrivalsRequest,
    Arrived,
    NewInferences,
)
from quadriga.store.query.inferences import MAX_SHORT_CHARACTERS
from quadriga.store.query.request import request_from_url
from quadriga.store.records.records import StoredInference

TAIL_PATH = "/api/inferences/tail"
LOOK_INTERVAL_S = 0.5
HEARTBEAT_S = 15.0
CHECK_INTERVAL_S = 5.0
"""Time after which the key of a listener is looked up again."""

PAGE = 50
"""Inferences that are read, and held, at once for a listener."""

_DESCRIPTION = (
    "Sends new inferences that fields of the URL find, as they are stored: server-sent events without an end. "
    f"The request says `Accept: {EVENT_STREAM}`. `data` of an event `inference` is the inference, as "
    "`GET /api/inferences/{inference_id}` answers it without its feedback; predictions, metadata and ground truth of more "
    f"than {MAX_SHORT_CHARACTERS:,} characters are null in it, and named in `left_out`."
)
_RETRY_MS = 2000


class Skipped(msgspec.Struct, frozen=True):
    """Matches that are left out, as there are too many."""

    count: int
    is_exact: bool
    """`False` if there may be more."""


class Tail:
    """The tail of one listener.

    Args:
        request: Its request.
        queries: Runs its searches.
        arrivals: What it listens to.
    """

    def __init__(
        self, request: Request[Any, Any, Any], queries: StoreQueries, arrivals: NewInferences
    ) -> None:
        self._request = request
        self._queries = queries
        self._arrivals = arrivals
        self._sent_id = 0

    async def look(self) -> Arrived:
        """Find what has arrived since the last look; raises as `NewInferences.look` and `StoreQueries.run`."""
        return await self._queries.run(self._request, self._arrivals.look)

    async def events(self, arrived: Arrived, over: asyncio.Event) -> AsyncGenerator[bytes]:
        """Yield events until `over` is set, those of what the first look found first.

        Raises:
            Unauthenticated: The key of the listener has ended.
            Forbidden: Its key has no right to read any more.
            QueryError: The filter is none any more.
            NotFoundError: The filter compares with a model that is not known any more.
        """
        loop = asyncio.get_running_loop()
        spoken_s = checked_s = loop.time()
        yield b"retry: %d\n\n" % _RETRY_MS
        if not arrived.ids:
            yield self._heartbeat()
        while True:
            if arrived.skipped:
                yield event_text("skipped", Skipped(arrived.skipped, arrived.is_exact))
            for start in range(0, len(arrived.ids), PAGE):
                read = methodcaller("read_short", arrived.ids[start : start + PAGE])
                for inference in await self._queries.run_patiently(self._request, read, maxsize):
                    yield self._event(inference)
                    spoken_s = loop.time()
            if loop.time() - spoken_s >= HEARTBEAT_S:
                yield self._heartbeat()
                spoken_s = loop.time()
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), LOOK_INTERVAL_S)
            if over.is_set():
                return
            if loop.time() - checked_s >= CHECK_INTERVAL_S:
                admit(identify_again(), "read")
                checked_s = loop.time()
            try:
                arrived = await self.look()
            except PASSING:
                arrived = Arrived([])

    def _event(self, inference: StoredInference) -> bytes:
        """Return the event of an inference; one that is late has no id, so that its listener does not go back behind it."""
        seq = int(inference.id)
        is_late = seq <= self._sent_id
        self._sent_id = max(seq, self._sent_id)
        return event_text("inference", inference, event_id="" if is_late else inference.id)

    def _heartbeat(self) -> bytes:
        """Return a comment, and the id up to which everything was sent."""
        self._sent_id = max(self._sent_id, self._arrivals.position)
        return b": waiting\nid: %d\n\n" % self._sent_id


_TAIL_URL = url_query(
    ArrivalsRequest,
    after="Id of the last inference that was received: the events go on behind it. The header Last-Event-ID says the same, "
    "and goes first",
)


def tail_route(queries: StoreQueries, streams: EventStreams) -> HTTPRouteHandler:
    """Return the handler, whose searches `queries` runs."""
    events = ResponseSpec(
        str,
        generate_examples=False,
        media_type=EVENT_STREAM,
        description="Events: `inference` with an inference, `skipped` with the number of those that are left out, "
        "`end` with the reason of an end",
    )

    @get(
        TAIL_PATH,
        need="read",
        operation=_TAIL_URL,
        errors={200: events} | FIND_ERRORS,
        description=_DESCRIPTION,
        media_type=EVENT_STREAM,
    )
    async def tail_inferences(request: Request[Any, Any, Any]) -> ASGIResponse:
        """Send new inferences that fields of the URL find, as they are stored."""
        if EVENT_STREAM not in request.headers.get("accept", ""):
            raise InvalidRequest(f"expected Accept: {EVENT_STREAM}, as the answer has no end")
        wanted = request_from_url(query_string(request), ArrivalsRequest)
        arrivals = NewInferences(wanted.where, request.headers.get("last-event-id") or wanted.after)
        tail = Tail(request, queries, arrivals)
        with streams.take_place(current_caller()) as place:
            arrived = await tail.look()
            return event_response(partial(tail.events, arrived), streams, place.pop_all())

    return tail_inferences

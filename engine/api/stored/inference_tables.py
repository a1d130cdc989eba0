"""HTTP routes that stream inferences as tables: Arrow IPC and Parquet, as much as a client takes, a page at a time.

The server holds one page, or a row group, of each stream. A stream that cannot go on is cut off, so that the transfer is
incomplete and the client says so; the end of a table is sent only behind all of its rows.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from importlib.util import find_spec
from typing import Annotated, Any, Literal

import msgspec
from litestar import Request
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import ResponseSpec
from litestar.response.streaming import Stream
from litestar.types import Receive, Send

from quadriga.engine.api.openapi import FIND_ERRORS, error_response, url_query
from quadriga.engine.api.routes import get
from quadriga.engine.api.store_queries import StoreQueries, query_string
from quadriga.engine.api.stored.event_streams import (
    Abort,
    EventStreams,
    StreamPlace,
    StreamResponse,
)
from quadriga.engine.models.runners.bounded_threads import ThreadsFull
from quadriga.proto.access import admit
from quadriga.proto.errors import DeadlineExceeded, ProtocolError
from quadriga.proto.request import current_caller, identify_again
from quadriga.store.query.inferences import InferenceReader, Page
from quadriga.store.query.request import Order, QueryRequest, request_from_url
from quadriga.store.records.errors import (
    PYARROW_MISSING,
    NotReadyError,
    QueryCancelledError,
    QueryError,
    QueryTimeoutError,
    StoreError,
)

ARROW_STREAM = "application/vnd.apache.arrow.stream"
PARQUET = "application/vnd.apache.parquet"
PAGE_ROWS = 1000
CHECK_INTERVAL_S = 5.0
"""Time after which the key of a client is looked up again."""

RETRIES, RETRY_INTERVAL_S = 20, 0.5
"""Further tries of a page that the database did not answer, and the time between them."""

_PASSING = (NotReadyError, QueryTimeoutError, ThreadsFull)
_log = logging.getLogger(__name__)
_UNREADABLE = error_response("The query cannot be understood, or the server has no pyarrow")


class TableRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request of a table."""

    where: Any = None
    """A filter as of a query."""
    order: Order = "ts"
    """Order of the rows: oldest or newest first."""
    limit: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Maximum number of rows; None for all."""


class _Table:
    """The table of one client.

    Args:
        request: Its request.
        queries: Runs its searches.
        wanted: What it asks for.
        writer: Writes the table.
        ends_s: When the stream has to be at its end, on the clock of `time.monotonic`.
    """

    def __init__(
        self,
        request: Request[Any, Any, Any],
        queries: StoreQueries,
        wanted: TableRequest,
        *,
        writer: Any,
        ends_s: float,
    ) -> None:
        self._request = request
        self._queries = queries
        self._wanted = wanted
        self._writer = writer
        self._ends_s = ends_s
        self._where = wanted.where
        self._cursor: str | None = None
        self._rows = 0
        self._now_us = time.time_ns() // 1000
        self._is_over = False

    async def begin(self) -> bytes:
        """Return the first bytes; raises as a query does, before anything is sent."""
        return await self._queries.run(self._request, self._begin)

    def _begin(self, store: InferenceReader) -> bytes:
        newest = {"id": {"le": str(store.latest_seq())}}  # what comes meanwhile is left out
        self._where = newest if self._where is None else {"and": [self._where, newest]}
        return self._next(store)

    def _next(self, store: InferenceReader) -> bytes:
        """Read a page and write it."""
        remaining = (self._wanted.limit or 1 << 62) - self._rows
        page = store.query(
            QueryRequest(
                where=self._where,
                order=self._wanted.order,
                limit=min(PAGE_ROWS, remaining),
                cursor=self._cursor,
            ),
            self._now_us,
        )
        return self._write(page, remaining)

    def _write(self, page: Page, remaining: int) -> bytes:
        self._rows += len(page.inferences)
        self._cursor = page.cursor
        data: bytes = self._writer.add(page.inferences)
        if page.cursor is None or remaining <= len(page.inferences):
            self._is_over = True
            data += self._writer.finish()
        return data

    async def rest(self) -> AsyncGenerator[bytes]:
        """Yield the bytes behind the first ones.

        Raises:
            Unauthenticated: The key of the client has ended.
            DeadlineExceeded: The table took longer than it may.
            NotReadyError: The database is away for longer than the tries last; so are other errors of a query.
        """
        checked_s = time.monotonic()
        while not self._is_over:
            now_s = time.monotonic()
            if now_s > self._ends_s:
                raise DeadlineExceeded("expected a table within a day: take less at once")
            if now_s - checked_s >= CHECK_INTERVAL_S:
                admit(identify_again(), "read")
                checked_s = now_s
            data = await self._try_next()
            if data:
                yield data

    async def _try_next(self) -> bytes:
        for _ in range(RETRIES):
            try:
                return await self._queries.run(self._request, self._next)
            except _PASSING:
                await asyncio.sleep(RETRY_INTERVAL_S)
        return await self._queries.run(self._request, self._next)


def _table_response(
    table: _Table,
    first: bytes,
    streams: EventStreams,
    *,
    place: StreamPlace,
    media_type: str,
    name: str,
) -> StreamResponse:
    """Return the response with a table, whose first bytes are there.

    The connection is cut off if the table cannot be sent to its end, or the client leaves, or the server shuts down.
    """

    async def send_stream(send: Send, receive: Receive, abort: Abort) -> None:
        sending = asyncio.ensure_future(_send_table(table, first, send))
        try:
            await streams.wait_for_end(sending, receive)
            if sending.done():
                await sending
                return
            _log.info("a table was cut off: the client left, or the server shuts down")
        except QueryCancelledError:  # the client left
            pass
        except (ProtocolError, StoreError) as error:
            _log.warning("a table was cut off: %s", error)
        finally:
            sending.cancel()
            await asyncio.wait([sending])
        if abort is not None:
            abort()

    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamResponse(send_stream, place, media_type, headers)


async def _send_table(table: _Table, first: bytes, send: Send) -> None:
    await send({"type": "http.response.body", "body": first, "more_body": True})
    async with aclosing(table.rest()) as pieces:
        async for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


_TABLE_URL = url_query(TableRequest, order="Oldest or newest first", limit="Maximum number of rows")


def table_routes(
    queries: StoreQueries, streams: EventStreams, timeout_s: float
) -> list[HTTPRouteHandler]:
    """Return the handlers.

    Args:
        queries: Runs the searches.
        streams: All streams of the worker.
        timeout_s: Maximum time of a stream.
    """

    async def answer(
        request: Request[Any, Any, Any], form: Literal["arrow", "parquet"], media_type: str
    ) -> StreamResponse:
        wanted = request_from_url(query_string(request), TableRequest, ("order", "limit"))
        if find_spec("pyarrow") is None:
            raise QueryError(PYARROW_MISSING)
        from quadriga.store.exchange import arrow_tables  # noqa: PLC0415 - an extra

        writer = arrow_tables.TableStream(form)
        ends_s = time.monotonic() + timeout_s
        place = streams.take_place(current_caller())
        try:
            table = _Table(request, queries, wanted, writer=writer, ends_s=ends_s)
            first = await table.begin()
            return _table_response(
                table,
                first,
                streams,
                place=place,
                media_type=media_type,
                name=f"inferences.{form}",
            )
        except BaseException:
            place.leave()
            raise

    def options(media_type: str) -> dict[str, Any]:
        table = ResponseSpec(
            bytes, generate_examples=False, media_type=media_type, description="The table"
        )
        return {
            "operation": _TABLE_URL,
            "errors": {200: table} | FIND_ERRORS | {400: _UNREADABLE},
            "media_type": media_type,
            "audited": True,
        }

    @get("/api/inferences.arrow", need="read", **options(ARROW_STREAM))
    async def stream_arrow(request: Request[Any, Any, Any]) -> Stream:
        """Stream inferences that fields of the URL find, as an Arrow IPC stream."""
        return await answer(request, "arrow", ARROW_STREAM)

    @get("/api/inferences.parquet", need="read", **options(PARQUET))
    async def stream_parquet(request: Request[Any, Any, Any]) -> Stream:
        """Stream inferences that fields of the URL find, as Parquet."""
        return await answer(request, "parquet", PARQUET)

    return [stream_arrow, stream_parquet]

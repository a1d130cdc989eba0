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
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Send

from quadriga.engine.api.openapi import FIND_ERRORS, error_response, url_query
from quadriga.engine.api.routes import get
from quadriga.engine.api.store_queries import StoreQueries, query_string
from quadriga.engine.api.stored.event_streams import Abort, EventStreams, SendStream, StreamResponse
from quadriga.proto.access import admit
from quadriga.proto.errors import DeadlineExceeded, ProtocolError
from quadriga.proto.request import current_caller, identify_again
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import Order, QueryRequest, request_from_url
from quadriga.store.records.errors import (
    PYARROW_MISSING,
    QueryCancelledError,
    QueryError,
    StoreError,
)

ARROW_STREAM = "application/vnd.apache.arrow.stream"
PARQUET = "application/vnd.apache.parquet"
PAGE_ROWS = 1000
CHECK_INTERVAL_S = 5.0
"""Time after which the key of a client is looked up again."""

TRIES = 20
"""Tries of a page that the database does not answer, before the last one."""

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


async def _read_table(
    request: Request[Any, Any, Any],
    queries: StoreQueries,
    wanted: TableRequest,
    *,
    writer: Any,
    ends_s: float,
) -> AsyncGenerator[bytes]:
    """Yield the bytes of the table of one client; the errors of its query come before the first of them.

    Args:
        request: Its request.
        queries: Runs its searches.
        wanted: What it asks for.
        writer: Writes the table.
        ends_s: When the stream has to be at its end, on the clock of `time.monotonic`.

    Raises:
        Unauthenticated: The key of the client has ended.
        DeadlineExceeded: The table took longer than it may.
        NotReadyError: The database is away for longer than the tries last; so are other errors of a query.
    """
    now_us, where, remaining = time.time_ns() // 1000, wanted.where, wanted.limit or 1 << 62
    cursor: str | None = None
    is_over = False

    def read_page(store: InferenceReader) -> bytes:
        nonlocal where, cursor, remaining, is_over
        if cursor is None:  # the first page: what comes meanwhile is left out
            newest = {"id": {"le": str(store.latest_seq())}}
            where = newest if wanted.where is None else {"and": [wanted.where, newest]}
        limit = min(PAGE_ROWS, remaining)
        page = store.query(
            QueryRequest(where, order=wanted.order, limit=limit, cursor=cursor), now_us
        )
        cursor, remaining = page.cursor, remaining - len(page.inferences)
        is_over = cursor is None or remaining <= 0
        data: bytes = writer.add(page.inferences)
        return data + writer.finish() if is_over else data

    yield await queries.run(request, read_page)
    checked_s = time.monotonic()
    while not is_over:
        now_s = time.monotonic()
        if now_s > ends_s:
            raise DeadlineExceeded("expected a table within a day: take less at once")
        if now_s - checked_s >= CHECK_INTERVAL_S:
            admit(identify_again(), "read")
            checked_s = now_s
        yield await queries.run_patiently(request, read_page, TRIES)


def _sender(table: AsyncGenerator[bytes], first: bytes, streams: EventStreams) -> SendStream:
    """Return what sends a table, whose first bytes are there.

    The connection is cut off if the table cannot be sent to its end, or the client leaves, or the server shuts down.
    """

    async def send_stream(send: Send, receive: Receive, abort: Abort) -> None:
        sending = asyncio.ensure_future(_send_table(first, table, send))
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

    return send_stream


async def _send_table(first: bytes, rest: AsyncGenerator[bytes], send: Send) -> None:
    await send({"type": "http.response.body", "body": first, "more_body": True})
    async with aclosing(rest):
        async for piece in rest:
            if piece:
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
        with streams.take_place(current_caller()) as place:
            table = _read_table(request, queries, wanted, writer=writer, ends_s=ends_s)
            send_stream = _sender(table, await anext(table), streams)
            headers = {"Content-Disposition": f'attachment; filename="inferences.{form}"'}
            return StreamResponse(send_stream, place.pop_all(), media_type, headers)

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
    async def stream_arrow(request: Request[Any, Any, Any]) -> ASGIResponse:
        """Stream inferences that fields of the URL find, as an Arrow IPC stream."""
        return await answer(request, "arrow", ARROW_STREAM)

    @get("/api/inferences.parquet", need="read", **options(PARQUET))
    async def stream_parquet(request: Request[Any, Any, Any]) -> ASGIResponse:
        """Stream inferences that fields of the URL find, as Parquet."""
        return await answer(request, "parquet", PARQUET)

    return [stream_arrow, stream_parquet]

"""HTTP routes for reading inferences, their inputs and statistics."""

import asyncio
from typing import Annotated, Any

from litestar import Request, Response
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery, QueryParameter, RawBody

from quadriga.engine.api.access import caller_scope
from quadriga.engine.api.openapi import (
    BLOBS_PATH,
    FIND_ERRORS,
    NOT_READY,
    QUERY_ERRORS,
    UNREADABLE_QUERY,
    error_response,
    json_body,
    url_query,
)
from quadriga.engine.api.routes import get, post
from quadriga.engine.api.store_queries import StoreQueries, query_string
from quadriga.engine.api.stored.thumbnails import Thumbnails
from quadriga.store.blobs import tensor_file
from quadriga.store.maintenance.aggregates import (
    AggregateRequest,
    Aggregates,
    aggregate,
)
from quadriga.store.query.filters.forms import URL_OPTIONS
from quadriga.store.query.inferences import DEFAULT_MEDIA_TYPE, Count, InferenceReader, Page
from quadriga.store.query.request import (
    CountRequest,
    QueryRequest,
    decode_body,
    decode_count,
    decode_query,
    query_from_url,
)
from quadriga.store.records.records import StoredInference
from quadriga.store.records.scope import EVERYTHING, Scoped

_UNKNOWN = error_response("No such inference, or its input was not stored")
_Width = Annotated[
    str,
    QueryParameter(
        description="Longer side, in pixels, of a thumbnail to return instead, as a JPEG: 128, 256, 512 or 1024"
    ),
]
_UNSIGNED = error_response("The URL was not signed by this server, or it has expired")
_LOOKUP_ERRORS = {400: UNREADABLE_QUERY, 404: _UNKNOWN, 503: NOT_READY}
_DESCRIPTIONS = {
    "order": "Newest or oldest first",
    "cursor": "The cursor that came with the previous page",
    "count": "Whether to count all matches; capped stops at 10,001",
    "consistency": "Wait until everything acknowledged so far can be found",
    "pagination": "Chariot's limit, offset and direction",
}
_QUERY = json_body(QueryRequest, **_DESCRIPTIONS)
_URL_QUERY = url_query(QueryRequest, URL_OPTIONS, **_DESCRIPTIONS)
_COUNT = json_body(CountRequest, **_DESCRIPTIONS)
_AGGREGATE = json_body(
    AggregateRequest, group='Any of {"time": "1h"}, model, version, task, label and meta.<key>'
)


def inference_routes(
    inferences: Scoped[InferenceReader],
    queries: StoreQueries,
    thumbnails: Thumbnails,
    *,
    public_url: str = "",
) -> list[HTTPRouteHandler]:
    """Return the handlers that read the store; `queries` runs its searches, `public_url` begins signed URLs."""

    @post("/api/inferences/query", need="read", operation=_QUERY, errors=QUERY_ERRORS)
    async def query_inferences(request: Request[Any, Any, Any], body: RawBody) -> Page:
        """Find inferences, page by page; the body is JSON whatever its content type."""
        return await queries.run(request, lambda store: store.query(decode_query(body)))

    @post("/api/inferences/count", need="read", operation=_COUNT, errors=QUERY_ERRORS)
    async def count_inferences(request: Request[Any, Any, Any], body: RawBody) -> Count:
        """Count inferences; the body is JSON whatever its content type."""
        return await queries.run(
            request, lambda store: store.count_with_warnings(decode_count(body))
        )

    @post("/api/inferences/aggregate", need="read", operation=_AGGREGATE, errors=QUERY_ERRORS)
    async def aggregate_inferences(request: Request[Any, Any, Any], body: RawBody) -> Aggregates:
        """Count inferences by groups, with errors, latencies and labels."""
        return await queries.run(
            request, lambda store: aggregate(store, decode_body(body, AggregateRequest))
        )

    @get("/api/inferences", need="read", operation=_URL_QUERY, errors=FIND_ERRORS)
    async def find_inferences(request: Request[Any, Any, Any]) -> Page:
        """Find inferences by fields of the URL, such as `?meta.camera=north&ts=ge:-24h`."""
        text = query_string(request)
        return await queries.run(request, lambda store: store.query(query_from_url(text)))

    @get("/api/inferences/{inference_id:str}", need="read", errors=_LOOKUP_ERRORS)
    def get_inference(
        inference_id: FromPath[str],
        request: Request[Any, Any, Any],
        *,
        presign: FromQuery[bool] = False,
    ) -> StoredInference:
        """Return one inference; with `presign`, `input.url` is a signed URL of its input."""
        if presign:
            blobs_url = (public_url or str(request.base_url)).rstrip("/") + BLOBS_PATH
            return inferences.within(caller_scope()).get_with_input_url(inference_id, blobs_url)
        return inferences.within(caller_scope()).get(inference_id)

    path = "/api/inferences/{inference_id:str}/input"

    @get(path, need="read", errors=_LOOKUP_ERRORS, media_type="*/*")
    async def get_inference_input(
        inference_id: FromPath[str], request: Request[Any, Any, Any], *, w: _Width = ""
    ) -> Response[bytes]:
        """Return the input bytes of an inference; tensors as a V2 request with binary tensor data."""
        if w:
            return await thumbnails.answer(request, inference_id, w)
        store = inferences.within(caller_scope())
        return _untrusted_content(*await asyncio.to_thread(store.input_bytes, inference_id))

    blob_errors = {400: _UNSIGNED, 404: _UNKNOWN, 503: NOT_READY}

    @get(BLOBS_PATH + "{digest:str}", need="nothing", errors=blob_errors, media_type="*/*")
    def get_blob(
        digest: FromPath[str],
        expires: FromQuery[str] = "",
        mime: Annotated[str, QueryParameter(name="type")] = "",
        inference: FromQuery[str] = "",
        signature: FromQuery[str] = "",
    ) -> Response[bytes]:
        """Return the bytes that a signed URL names."""
        store = inferences.within(EVERYTHING)  # who has the URL may see what it names
        content = store.signed_input(digest, expires, mime, signature, inference_id=inference)
        return _untrusted_content(content, mime)

    return [
        query_inferences,
        find_inferences,
        count_inferences,
        aggregate_inferences,
        get_inference,
        get_inference_input,
        get_blob,
    ]


def _untrusted_content(content: bytes, mime: str) -> Response[bytes]:
    """Return a response with bytes of a client; a browser may only show plain images and run nothing."""
    headers = {"X-Content-Type-Options": "nosniff"}
    if mime == tensor_file.MEDIA_TYPE:  # a V2 request, which can be sent again with this header
        headers["Inference-Header-Content-Length"] = str(tensor_file.json_length(content))
    is_image = mime.startswith("image/") and "svg" not in mime
    return Response(
        content,
        media_type=mime if is_image else DEFAULT_MEDIA_TYPE,
        headers=headers,
    )

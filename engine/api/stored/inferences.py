"""HTTP routes for reading inferences: queries, their inputs and statistics, and what surrounds them.

Facets, neighbours, what resembles one, two models side by side, what to label next.
"""

import asyncio
from functools import partial
from typing import Annotated, Any

import msgspec
from litestar import Request, Response
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import ResponseSpec
from litestar.openapi.spec import Operation
from litestar.params import FromPath, FromQuery, QueryParameter, RawBody

from quadriga.engine.api.access import caller_scope
from quadriga.engine.api.openapi import (
    BLOBS_PATH,
    FIND_ERRORS,
    NOT_READY,
    QUERY_ERRORS,
    UNKNOWN_MODEL,
    UNREADABLE_QUERY,
    error_response,
    json_body,
    url_query,
)
from quadriga.engine.api.routes import Decorator, get, post
from quadriga.engine.api.store_queries import StoreQueries, query_string
from quadriga.engine.api.stored.thumbnails import Thumbnails
from quadriga.store.blobs import tensor_file
from quadriga.store.browsing.comparison import (
    ComparisonRequest,
    Disagreements,
    DisagreementsRequest,
    ModelComparison,
    compare,
    find_disagreements,
)
from quadriga.store.browsing.facets import (
    FIELDS,
    Facets,
    FacetsRequest,
    find_facets,
)
from quadriga.store.browsing.label_queue import (
    LabelQueue,
    LabelQueueRequest,
    find_label_queue,
)
from quadriga.store.browsing.neighbours import (
    Neighbours,
    NeighboursRequest,
    find_neighbours,
)
from quadriga.store.browsing.similar import (
    SimilarInferences,
    SimilarRequest,
    find_similar,
)
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
    request_from_url,
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


_FACETS = "/api/inferences/facets"
_LABEL_QUEUE = "/api/inferences/label-queue"
_NO_INFERENCE = error_response("No such inference, or no such model")
_NO_EMBEDDING = error_response("No such inference, none with an embedding, or no such model")
_BROWSING = {
    "fields": f"Fields to answer, all by default: meta.<key>, {', '.join(FIELDS)}; in a URL with commas",
    "values": "Maximum values of a field",
    "bins": "Maximum bins of a histogram",
    "order": "Order of the query: newest or oldest first",
    "by": "Order: lowest best score, lowest margin of the two best labels, or at random",
    "limit": "Maximum inferences of the answer",
    "after": "Id of an inference: what comes after it in the order is answered",
}
_COMPARED = {
    "score": "Score from which predictions count",
    "iou": "Overlap from which two boxes of one label are the same",
    "consistency": "Wait until everything acknowledged so far is compared",
}
_DISAGREEMENTS_BODY = json_body(
    DisagreementsRequest,
    a="The model whose inferences are searched: name or name@version",
    b="The model that it is compared with: name or name@version",
    order="Newest or oldest first",
    cursor="The cursor that came with the previous page",
    **_COMPARED,
)
_COMPARISON_BODY = json_body(
    ComparisonRequest,
    a="The first model: name or name@version",
    b="The model that it is compared with, which may have been replayed on its images: name or name@version",
    limit="Maximum disagreements of the answer",
    **_COMPARED,
)
_FACETS_BODY = json_body(FacetsRequest, **_BROWSING)
_LABEL_QUEUE_BODY = json_body(LabelQueueRequest, **_BROWSING)


def browsing_routes(queries: StoreQueries) -> list[HTTPRouteHandler]:
    """Return the handlers, whose searches `queries` runs: by fields of the URL, and by a body of JSON."""

    def by_url(
        url: str, struct: type[msgspec.Struct], unknown: ResponseSpec, **names: Any
    ) -> Decorator:
        operation = url_query(struct, **names, **_BROWSING)
        return get(url, need="read", operation=operation, errors=FIND_ERRORS | {404: unknown})

    def by_body(
        url: str, body: type[Operation], unknown: ResponseSpec = UNKNOWN_MODEL
    ) -> Decorator:
        return post(url, need="read", operation=body, errors=QUERY_ERRORS | {404: unknown})

    def of_inference(name: str) -> str:
        return f"/api/inferences/{{inference_id:str}}/{name}"

    @by_url(_FACETS, FacetsRequest, UNKNOWN_MODEL)
    async def find_facets_by_url(request: Request[Any, Any, Any]) -> Facets:
        """Return the fields, frequent values and histograms of the inferences that fields of the URL find."""
        wanted = partial(request_from_url, query_string(request), FacetsRequest)
        return await queries.run(request, lambda store: find_facets(store, wanted()))

    @by_url(of_inference("neighbours"), NeighboursRequest, _NO_INFERENCE, path="inference_id")
    async def get_neighbours(
        inference_id: FromPath[str], request: Request[Any, Any, Any]
    ) -> Neighbours:
        """Return what comes before and after an inference among those that fields of the URL find."""
        wanted = partial(request_from_url, query_string(request), NeighboursRequest)
        return await queries.run(
            request, lambda store: find_neighbours(store, inference_id, wanted())
        )

    @by_url(of_inference("similar"), SimilarRequest, _NO_EMBEDDING, path="inference_id")
    async def get_similar(
        inference_id: FromPath[str], request: Request[Any, Any, Any]
    ) -> SimilarInferences:
        """Return what resembles an inference most, by embeddings, among those that fields of the URL find."""
        wanted = partial(request_from_url, query_string(request), SimilarRequest)
        return await queries.run(request, lambda store: find_similar(store, inference_id, wanted()))

    @by_url(_LABEL_QUEUE, LabelQueueRequest, _NO_INFERENCE)
    async def find_label_queue_by_url(request: Request[Any, Any, Any]) -> LabelQueue:
        """Return what to label next among the inferences that fields of the URL find."""
        wanted = partial(request_from_url, query_string(request), LabelQueueRequest)
        return await queries.run(request, lambda store: find_label_queue(store, wanted()))

    @by_body(_FACETS, _FACETS_BODY)
    async def query_facets(request: Request[Any, Any, Any], body: RawBody) -> Facets:
        """Return fields, frequent values and histograms; the body is JSON whatever its content type."""
        return await queries.run(
            request, lambda store: find_facets(store, decode_body(body, FacetsRequest))
        )

    @by_body(_LABEL_QUEUE, _LABEL_QUEUE_BODY, _NO_INFERENCE)
    async def query_label_queue(request: Request[Any, Any, Any], body: RawBody) -> LabelQueue:
        """Return what to label next; the body is JSON whatever its content type."""
        return await queries.run(
            request, lambda store: find_label_queue(store, decode_body(body, LabelQueueRequest))
        )

    @by_body("/api/inferences/disagreements", _DISAGREEMENTS_BODY)
    async def query_disagreements(request: Request[Any, Any, Any], body: RawBody) -> Disagreements:
        """Find images on which two models or versions answer differently; the body is JSON whatever its content type."""
        return await queries.run(
            request,
            lambda store: find_disagreements(store, decode_body(body, DisagreementsRequest)),
        )

    @by_body("/api/inferences/comparison", _COMPARISON_BODY)
    async def query_comparison(request: Request[Any, Any, Any], body: RawBody) -> ModelComparison:
        """Compare two models or versions on what both answered, live or in a replay; the body is JSON whatever its content type."""
        return await queries.run(
            request, lambda store: compare(store, decode_body(body, ComparisonRequest))
        )

    return [
        find_facets_by_url,
        get_neighbours,
        get_similar,
        find_label_queue_by_url,
        query_facets,
        query_label_queue,
        query_disagreements,
        query_comparison,
    ]

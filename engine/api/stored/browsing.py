"""HTTP routes for who looks around in the store: facets, neighbours, what resembles one, two models side by side, what to label next."""

from functools import partial
from typing import Any

import msgspec
from litestar import Request
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import ResponseSpec
from litestar.openapi.spec import Operation
from litestar.params import FromPath, RawBody

from quadriga.engine.api.openapi import (
    FIND_ERRORS,
    QUERY_ERRORS,
    UNKNOWN_MODEL,
    error_response,
    json_body,
    url_query,
)
from quadriga.engine.api.routes import Decorator, get, post
from quadriga.engine.api.store_queries import StoreQueries, query_string
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
from quadriga.store.query.request import decode_body, request_from_url

_FACETS = "/api/inferences/facets"
_LABEL_QUEUE = "/api/inferences/label-queue"
_NO_INFERENCE = error_response("No such inference, or no such model")
_NO_EMBEDDING = error_response("No such inference, none with an embedding, or no such model")
_DESCRIPTIONS = {
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
_FACETS_BODY = json_body(FacetsRequest, **_DESCRIPTIONS)
_LABEL_QUEUE_BODY = json_body(LabelQueueRequest, **_DESCRIPTIONS)


def browsing_routes(queries: StoreQueries) -> list[HTTPRouteHandler]:
    """Return the handlers, whose searches `queries` runs."""
    return [*_searches_by_url(queries), *_searches_by_body(queries)]


def _searches_by_url(queries: StoreQueries) -> list[HTTPRouteHandler]:
    """Return the handlers of searches by fields of the URL."""

    def route(
        url: str, struct: type[msgspec.Struct], unknown: ResponseSpec, **names: Any
    ) -> Decorator:
        operation = url_query(struct, **names, **_DESCRIPTIONS)
        return get(url, need="read", operation=operation, errors=FIND_ERRORS | {404: unknown})

    def of_inference(name: str) -> str:
        return f"/api/inferences/{{inference_id:str}}/{name}"

    @route(_FACETS, FacetsRequest, UNKNOWN_MODEL)
    async def find_facets_by_url(request: Request[Any, Any, Any]) -> Facets:
        """Return the fields, frequent values and histograms of the inferences that fields of the URL find."""
        wanted = partial(request_from_url, query_string(request), FacetsRequest)
        return await queries.run(request, lambda store: find_facets(store, wanted()))

    @route(of_inference("neighbours"), NeighboursRequest, _NO_INFERENCE, path="inference_id")
    async def get_neighbours(
        inference_id: FromPath[str], request: Request[Any, Any, Any]
    ) -> Neighbours:
        """Return what comes before and after an inference among those that fields of the URL find."""
        wanted = partial(request_from_url, query_string(request), NeighboursRequest)
        return await queries.run(
            request, lambda store: find_neighbours(store, inference_id, wanted())
        )

    @route(of_inference("similar"), SimilarRequest, _NO_EMBEDDING, path="inference_id")
    async def get_similar(
        inference_id: FromPath[str], request: Request[Any, Any, Any]
    ) -> SimilarInferences:
        """Return what resembles an inference most, by embeddings, among those that fields of the URL find."""
        wanted = partial(request_from_url, query_string(request), SimilarRequest)
        return await queries.run(request, lambda store: find_similar(store, inference_id, wanted()))

    @route(_LABEL_QUEUE, LabelQueueRequest, _NO_INFERENCE)
    async def find_label_queue_by_url(request: Request[Any, Any, Any]) -> LabelQueue:
        """Return what to label next among the inferences that fields of the URL find."""
        wanted = partial(request_from_url, query_string(request), LabelQueueRequest)
        return await queries.run(request, lambda store: find_label_queue(store, wanted()))

    return [find_facets_by_url, get_neighbours, get_similar, find_label_queue_by_url]


def _searches_by_body(queries: StoreQueries) -> list[HTTPRouteHandler]:
    """Return the handlers of searches whose body is JSON."""

    def route(path: str, body: type[Operation], unknown: ResponseSpec = UNKNOWN_MODEL) -> Decorator:
        return post(path, need="read", operation=body, errors=QUERY_ERRORS | {404: unknown})

    @route(_FACETS, _FACETS_BODY)
    async def query_facets(request: Request[Any, Any, Any], body: RawBody) -> Facets:
        """Return fields, frequent values and histograms; the body is JSON whatever its content type."""
        return await queries.run(
            request, lambda store: find_facets(store, decode_body(body, FacetsRequest))
        )

    @route(_LABEL_QUEUE, _LABEL_QUEUE_BODY, _NO_INFERENCE)
    async def query_label_queue(request: Request[Any, Any, Any], body: RawBody) -> LabelQueue:
        """Return what to label next; the body is JSON whatever its content type."""
        return await queries.run(
            request, lambda store: find_label_queue(store, decode_body(body, LabelQueueRequest))
        )

    @route("/api/inferences/disagreements", _DISAGREEMENTS_BODY)
    async def query_disagreements(request: Request[Any, Any, Any], body: RawBody) -> Disagreements:
        """Find images on which two models or versions answer differently; the body is JSON whatever its content type."""
        return await queries.run(
            request,
            lambda store: find_disagreements(store, decode_body(body, DisagreementsRequest)),
        )

    @route("/api/inferences/comparison", _COMPARISON_BODY)
    async def query_comparison(request: Request[Any, Any, Any], body: RawBody) -> ModelComparison:
        """Compare two models or versions on what both answered, live or in a replay; the body is JSON whatever its content type."""
        return await queries.run(
            request, lambda store: compare(store, decode_body(body, ComparisonRequest))
        )

    return [query_facets, query_label_queue, query_disagreements, query_comparison]

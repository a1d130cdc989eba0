"""HTTP routes for who looks around in the store: facets, neighbours, what resembles one, two models side by side, what to label next."""

from dataclasses import dataclass
from typing import Any

from litestar import Request, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.spec import Operation, Parameter, Reference, Schema
from litestar.openapi.spec.enums import OpenAPIType
from litestar.params import FromPath, RawBody

from quadriga.engine.api.openapi_bodies import json_body, url_parameters
from quadriga.engine.api.responses import (
    NOT_READY,
    QUERY_ERRORS,
    UNKNOWN_MODEL,
    UNREADABLE_QUERY,
    error_response,
    options_route,
)
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


_URL_ERRORS = {400: UNREADABLE_QUERY, 404: UNKNOWN_MODEL, 503: NOT_READY}
_QUERY: dict[str, Any] = {"status_code": 200, "responses": QUERY_ERRORS}


@dataclass
class _FacetsUrl(Operation):
    """Query parameters of facets; any other name is a field with its comparison."""

    def __post_init__(self) -> None:
        self.parameters = url_parameters(FacetsRequest, **_DESCRIPTIONS)


@dataclass
class _LabelQueueUrl(Operation):
    """Query parameters of what to label next; any other name is a field with its comparison."""

    def __post_init__(self) -> None:
        self.parameters = url_parameters(LabelQueueRequest, **_DESCRIPTIONS)


def _inference_parameters(struct: type[Any]) -> list[Parameter | Reference]:
    """Return the parameters of a request in a URL whose path names an inference."""
    path = Parameter(
        name="inference_id",
        param_in="path",
        required=True,
        schema=Schema(type=OpenAPIType.STRING),
    )
    return [path, *url_parameters(struct, **_DESCRIPTIONS)]


@dataclass
class _NeighboursUrl(Operation):
    """Query parameters of neighbours; any other name is a field with its comparison."""

    def __post_init__(self) -> None:
        self.parameters = _inference_parameters(NeighboursRequest)


@dataclass
class _SimilarUrl(Operation):
    """Query parameters of what resembles an inference; any other name is a field with its comparison."""

    def __post_init__(self) -> None:
        self.parameters = _inference_parameters(SimilarRequest)


def browsing_routes(queries: StoreQueries) -> list[HTTPRouteHandler]:
    """Return the handlers, whose searches `queries` runs."""
    return [*_search_routes(queries), *_label_queue_routes(queries), *_comparison_routes(queries)]


def _search_routes(queries: StoreQueries) -> list[HTTPRouteHandler]:
    @get(_FACETS, operation_class=_FacetsUrl, responses=_URL_ERRORS, need="read")
    async def find_facets_by_url(request: Request[Any, Any, Any]) -> Facets:
        """Return the fields, frequent values and histograms of the inferences that fields of the URL find."""
        text = query_string(request)
        return await queries.run(
            request, lambda store: find_facets(store, request_from_url(text, FacetsRequest))
        )

    @post(_FACETS, operation_class=_FACETS_BODY, need="read", **_QUERY)
    async def query_facets(request: Request[Any, Any, Any], body: RawBody) -> Facets:
        """Return fields, frequent values and histograms; the body is JSON whatever its content type."""
        return await queries.run(
            request, lambda store: find_facets(store, decode_body(body, FacetsRequest))
        )

    @get(
        "/api/inferences/{inference_id:str}/neighbours",
        operation_class=_NeighboursUrl,
        responses=_URL_ERRORS | {404: _NO_INFERENCE},
        need="read",
    )
    async def get_neighbours(
        inference_id: FromPath[str], request: Request[Any, Any, Any]
    ) -> Neighbours:
        """Return what comes before and after an inference among those that fields of the URL find."""
        text = query_string(request)
        return await queries.run(
            request,
            lambda store: find_neighbours(
                store, inference_id, request_from_url(text, NeighboursRequest)
            ),
        )

    @get(
        "/api/inferences/{inference_id:str}/similar",
        operation_class=_SimilarUrl,
        responses=_URL_ERRORS | {404: _NO_EMBEDDING},
        need="read",
    )
    async def get_similar(
        inference_id: FromPath[str], request: Request[Any, Any, Any]
    ) -> SimilarInferences:
        """Return what resembles an inference most, by embeddings, among those that fields of the URL find."""
        text = query_string(request)
        return await queries.run(
            request,
            lambda store: find_similar(store, inference_id, request_from_url(text, SimilarRequest)),
        )

    options = options_route(_FACETS, "GET", "POST")
    return [options, find_facets_by_url, query_facets, get_neighbours, get_similar]


def _label_queue_routes(queries: StoreQueries) -> list[HTTPRouteHandler]:
    @get(
        _LABEL_QUEUE,
        operation_class=_LabelQueueUrl,
        responses=_URL_ERRORS | {404: _NO_INFERENCE},
        need="read",
    )
    async def find_label_queue_by_url(request: Request[Any, Any, Any]) -> LabelQueue:
        """Return what to label next among the inferences that fields of the URL find."""
        text = query_string(request)
        return await queries.run(
            request,
            lambda store: find_label_queue(store, request_from_url(text, LabelQueueRequest)),
        )

    @post(
        _LABEL_QUEUE,
        operation_class=_LABEL_QUEUE_BODY,
        responses=QUERY_ERRORS | {404: _NO_INFERENCE},
        status_code=200,
        need="read",
    )
    async def query_label_queue(request: Request[Any, Any, Any], body: RawBody) -> LabelQueue:
        """Return what to label next; the body is JSON whatever its content type."""
        return await queries.run(
            request, lambda store: find_label_queue(store, decode_body(body, LabelQueueRequest))
        )

    options = options_route(_LABEL_QUEUE, "GET", "POST")
    return [options, find_label_queue_by_url, query_label_queue]


def _comparison_routes(queries: StoreQueries) -> list[HTTPRouteHandler]:
    @post(
        "/api/inferences/disagreements", operation_class=_DISAGREEMENTS_BODY, need="read", **_QUERY
    )
    async def query_disagreements(request: Request[Any, Any, Any], body: RawBody) -> Disagreements:
        """Find images on which two models or versions answer differently; the body is JSON whatever its content type."""
        return await queries.run(
            request,
            lambda store: find_disagreements(store, decode_body(body, DisagreementsRequest)),
        )

    @post("/api/inferences/comparison", operation_class=_COMPARISON_BODY, need="read", **_QUERY)
    async def query_comparison(request: Request[Any, Any, Any], body: RawBody) -> ModelComparison:
        """Compare two models or versions on what both answered, live or in a replay; the body is JSON whatever its content type."""
        return await queries.run(
            request, lambda store: compare(store, decode_body(body, ComparisonRequest))
        )

    return [query_disagreements, query_comparison]

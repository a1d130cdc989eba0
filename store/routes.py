"""HTTP routes of the reading side; errors are `StoreError`s, which the application turns into answers."""

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get, post, route
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import ResponseSpec
from litestar.openapi.spec import Operation, Parameter
from litestar.params import FromPath, FromQuery, QueryParameter, RawBody

from quadriga.store.blobs.urls import PATH
from quadriga.store.bodies import body_of, schema_of
from quadriga.store.inferences import DEFAULT_MEDIA_TYPE, Count, InferenceReader, Page
from quadriga.store.query.compact_form import URL_OPTIONS
from quadriga.store.query.request import (
    CountRequest,
    QueryRequest,
    decode_count,
    decode_query,
    query_from_url,
)
from quadriga.store.records import StoredInference


class Error(msgspec.Struct):
    """The one shape of every error."""

    error: str


TOO_LARGE = ResponseSpec(Error, False, "The body is larger than the server takes")
UNKEPT = ResponseSpec(Error, False, "That could not be kept, as on a full disk")
NOT_READY = ResponseSpec(Error, False, "The store cannot answer yet, or not in time")
_UNREADABLE = ResponseSpec(Error, False, "The id or the query cannot be understood")
_UNKNOWN = ResponseSpec(Error, False, "No such inference, or its input was not kept")
_UNSIGNED = ResponseSpec(Error, False, "The URL was not signed here, or its time is over")
ASKED = {400: _UNREADABLE, 413: TOO_LARGE, 503: NOT_READY}  # errors of what is asked by a body


def taking(body: type[Operation], unreadable: ResponseSpec, status: int = 200) -> dict[str, Any]:
    """Return what a route is declared with that keeps what a body asks for."""
    responses = {400: unreadable, 413: TOO_LARGE, 503: UNKEPT}
    return {"status_code": status, "operation_class": body, "responses": responses}


_SAID = {
    "order": "Newest or oldest first",
    "cursor": "Where the page before ended",
    "count": "Whether to count all matches; capped stops at 10,001",
    "consistency": "Wait until all that is acknowledged by now can be found",
    "metadata_filter": "Chariot's filters",
    "gps_box": "Chariot's GPSBox",
    "time_range": "Chariot's TimeRange",
    "pagination": "Chariot's limit and direction; no offset",
}


@dataclass
class _UrlQuery(Operation):
    """The parameters of a query; any other is a field with its comparison."""

    def __post_init__(self) -> None:
        properties = schema_of(QueryRequest, **_SAID)["properties"]
        given = {name: properties[name] for name in URL_OPTIONS} | {"q": properties["where"]}
        self.parameters = [
            Parameter(name=name, param_in="query", schema=schema) for name, schema in given.items()
        ]


def options(path: str, *methods: str) -> HTTPRouteHandler:
    """Answer OPTIONS for a path with several methods, of which the framework names only the first.

    It stands before them.
    """

    @route(path, http_method="OPTIONS", status_code=204, include_in_schema=False)
    async def answer_options() -> Response[None]:
        return Response(None, headers={"Allow": ", ".join(sorted([*methods, "OPTIONS"]))})

    return answer_options


def routes(inferences: InferenceReader) -> list[HTTPRouteHandler]:
    """Return the handlers that answer from these inferences."""
    asked: dict[str, Any] = {"sync_to_thread": True, "status_code": 200, "responses": ASKED}

    @post("/api/inferences/query", operation_class=body_of(QueryRequest, **_SAID), **asked)
    def query_inferences(body: RawBody) -> Page:
        """Find inferences, page by page; the body is JSON whatever its content type."""
        return inferences.query(decode_query(body))

    @post("/api/inferences/count", operation_class=body_of(CountRequest, **_SAID), **asked)
    def count_inferences(body: RawBody) -> Count:
        """Count inferences; the body is JSON whatever its content type."""
        return inferences.count(decode_count(body))

    looked_up = {400: _UNREADABLE, 404: _UNKNOWN, 503: NOT_READY}
    found = {400: _UNREADABLE, 503: NOT_READY}

    @get("/api/inferences", sync_to_thread=True, operation_class=_UrlQuery, responses=found)
    def find_inferences(request: Request[Any, Any, Any]) -> Page:
        """Find inferences by fields of the URL, such as `?meta.camera=north&ts=ge:-24h`."""
        return inferences.query(query_from_url(request.scope["query_string"].decode("latin-1")))

    @get("/api/inferences/{inference_id:str}", sync_to_thread=True, responses=looked_up)
    def get_inference(
        inference_id: FromPath[str],
        request: Request[Any, Any, Any],
        *,
        presign: FromQuery[bool] = False,
    ) -> StoredInference:
        """Answer one inference; with `presign`, `input.url` answers its input for a while."""
        if presign:
            return inferences.get_with_input_url(inference_id, str(request.base_url))
        return inferences.get(inference_id)

    as_bytes: dict[str, Any] = {"sync_to_thread": True, "media_type": "*/*"}

    @get("/api/inferences/{inference_id:str}/input", responses=looked_up, **as_bytes)
    def get_inference_input(inference_id: FromPath[str]) -> Response[bytes]:
        """Answer the bytes that an inference was asked about."""
        return _picture(*inferences.input_bytes(inference_id))

    signed = {400: _UNSIGNED, 404: _UNKNOWN, 503: NOT_READY}

    @get(PATH + "{digest:str}", responses=signed, **as_bytes)
    def get_blob(
        digest: FromPath[str],
        expires: FromQuery[str] = "",
        mime: Annotated[str, QueryParameter(name="type")] = "",
        signature: FromQuery[str] = "",
    ) -> Response[bytes]:
        """Answer the bytes that a signed URL names."""
        return _picture(inferences.urls.verify(digest, expires, mime, signature), mime)

    searching = [query_inferences, find_inferences, count_inferences]
    return [*searching, get_inference, get_inference_input, get_blob]


def _picture(data: bytes, mime: str) -> Response[bytes]:
    """Answer bytes that a client chose: what is no plain image may not run in a browser."""
    is_image = mime.startswith("image/") and "svg" not in mime
    return Response(
        data,
        media_type=mime if is_image else DEFAULT_MEDIA_TYPE,
        headers={"X-Content-Type-Options": "nosniff"},
    )

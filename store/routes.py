"""HTTP routes of the reading side; errors are `StoreError`s, which the application turns into answers."""

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get, post, route
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import ResponseSpec
from litestar.openapi.spec import (
    OpenAPIMediaType,
    OpenAPIType,
    Operation,
    Parameter,
    Reference,
    RequestBody,
    Schema,
)
from litestar.params import FromPath, FromQuery, QueryParameter, RawBody

from store.blobs.urls import PATH
from store.inferences import ANY_TYPE, Count, Inferences, Page
from store.query.compact_form import OPTIONS
from store.query.request import decode_count, decode_request, from_url
from store.records import StoredInference


class Error(msgspec.Struct):
    """The one shape of every error."""

    error: str


_UNREADABLE = ResponseSpec(Error, False, "The id or the query cannot be understood")
_UNKNOWN = ResponseSpec(Error, False, "No such inference, or its input was not kept")
_UNSIGNED = ResponseSpec(Error, False, "The URL was not signed here, or its time is over")
_TOO_LARGE = ResponseSpec(Error, False, "The body is larger than the server takes")
NOT_READY = ResponseSpec(Error, False, "The store cannot answer yet, or not in time")
ASKED = {400: _UNREADABLE, 413: _TOO_LARGE, 503: NOT_READY}  # errors of what is asked by a body


def nullable(kind: OpenAPIType, description: str | None = None, **more: Any) -> Schema:
    """Return the schema of what may be null."""
    return Schema(type=[kind, OpenAPIType.NULL], description=description, **more)


_WHERE = Schema(description="A filter, as JSON or in the compact form")
_CHARIOT: dict[str, Reference | Schema] = {
    "metadata_filter": Schema(type=OpenAPIType.ARRAY, description="Chariot's filters"),
    "gps_box": nullable(OpenAPIType.OBJECT, "Chariot's GPSBox"),
    "time_range": nullable(OpenAPIType.OBJECT, "Chariot's TimeRange"),
}
_PROPERTIES: dict[str, Reference | Schema] = {
    "where": _WHERE,
    "order": Schema(enum=["-ts", "ts"], default="-ts", description="Newest or oldest first"),
    "limit": Schema(type=OpenAPIType.INTEGER, minimum=1, maximum=1000, default=100),
    "cursor": nullable(OpenAPIType.STRING, "Where the page before ended"),
    "count": Schema(
        enum=["none", "capped", "exact", None],
        description="Whether to count all matches; capped stops at 10,001",
    ),
    "consistency": Schema(
        enum=["journal", None],
        description="Wait until all that is acknowledged by now can be found",
    ),
    **_CHARIOT,
    "pagination": nullable(OpenAPIType.OBJECT, "Chariot's limit and direction; no offset"),
}


def with_body(*required: str, **properties: Reference | Schema) -> type[Operation]:
    """Return the operation whose body is an object with these properties, read from its bytes."""
    schema = Schema(
        type=OpenAPIType.OBJECT,
        required=list(required) or None,
        properties=properties,
        additional_properties=False,
    )

    @dataclass
    class WithBody(Operation):
        def __post_init__(self) -> None:
            content = {"application/json": OpenAPIMediaType(schema=schema)}
            self.request_body = RequestBody(content=content, required=True)

    return WithBody


@dataclass
class _UrlQuery(Operation):
    """The parameters of a query; any other is a field with its comparison."""

    def __post_init__(self) -> None:
        self.parameters = [
            Parameter(name=name, param_in="query", schema=schema)
            for name, schema in _PROPERTIES.items()
            if name in OPTIONS
        ]
        self.parameters.append(Parameter(name="q", param_in="query", schema=_WHERE))


def options(path: str, *methods: str) -> HTTPRouteHandler:
    """Answer OPTIONS for a path with several methods, of which the framework names only the first.

    It stands before them.
    """

    @route(path, http_method="OPTIONS", status_code=204, include_in_schema=False)
    async def answer_options() -> Response[None]:
        return Response(None, headers={"Allow": ", ".join(sorted([*methods, "OPTIONS"]))})

    return answer_options


def routes(inferences: Inferences) -> list[HTTPRouteHandler]:
    """Return the handlers that answer from these inferences."""
    asked: dict[str, Any] = {"sync_to_thread": True, "status_code": 200, "responses": ASKED}

    @post("/api/inferences/query", operation_class=with_body(**_PROPERTIES), **asked)
    def query_inferences(body: RawBody) -> Page:
        """Find inferences, page by page; the body is JSON whatever its content type."""
        return inferences.query(decode_request(body))

    @post("/api/inferences/count", operation_class=with_body(where=_WHERE, **_CHARIOT), **asked)
    def count_inferences(body: RawBody) -> Count:
        """Count inferences; the body is JSON whatever its content type."""
        return inferences.count(decode_count(body))

    looked_up = {400: _UNREADABLE, 404: _UNKNOWN, 503: NOT_READY}
    found = {400: _UNREADABLE, 503: NOT_READY}

    @get("/api/inferences", sync_to_thread=True, operation_class=_UrlQuery, responses=found)
    def find_inferences(request: Request[Any, Any, Any]) -> Page:
        """Find inferences by fields of the URL, such as `?meta.camera=north&ts=ge:-24h`."""
        return inferences.query(from_url(request.scope["query_string"].decode("latin-1")))

    @get("/api/inferences/{inference_id:str}", sync_to_thread=True, responses=looked_up)
    def get_inference(
        inference_id: FromPath[str],
        request: Request[Any, Any, Any],
        *,
        presign: FromQuery[bool] = False,
    ) -> StoredInference:
        """Answer one inference; with `presign`, `input.url` answers its input for a while."""
        if presign:
            return inferences.presigned(inference_id, str(request.base_url))
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
        return _picture(inferences.urls.opened(digest, expires, mime, signature), mime)

    searching = [query_inferences, find_inferences, count_inferences]
    return [*searching, get_inference, get_inference_input, get_blob]


def _picture(data: bytes, mime: str) -> Response[bytes]:
    """Answer bytes that a client chose: what is no plain image may not run in a browser."""
    is_image = mime.startswith("image/") and "svg" not in mime
    return Response(
        data,
        media_type=mime if is_image else ANY_TYPE,
        headers={"X-Content-Type-Options": "nosniff"},
    )

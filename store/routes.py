"""HTTP routes of the reading side; errors are `StoreError`s, which the application turns into answers."""

from dataclasses import dataclass

import msgspec
from litestar import Response, get, post, route
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import ResponseSpec
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIType, Operation, RequestBody, Schema
from litestar.params import FromPath, RawBody

from store.inferences import Inferences, Page, decode_request
from store.records import StoredInference


class Error(msgspec.Struct):
    """The one shape of every error."""

    error: str


_UNREADABLE = ResponseSpec(Error, False, "The id or the query cannot be understood")
_UNKNOWN = ResponseSpec(Error, False, "No such inference, or its input was not kept")
_TOO_LARGE = ResponseSpec(Error, False, "The body is larger than the server takes")
_NOT_READY = ResponseSpec(Error, False, "The store cannot answer yet, or not in time")

_QUERY = Schema(
    type=OpenAPIType.OBJECT,
    additional_properties=False,
    properties={
        "where": Schema(description="A filter"),
        "order": Schema(enum=["-ts", "ts"], default="-ts", description="Newest or oldest first"),
        "limit": Schema(type=OpenAPIType.INTEGER, minimum=1, maximum=1000, default=100),
        "cursor": Schema(
            type=[OpenAPIType.STRING, OpenAPIType.NULL],
            description="Where the page before ended",
        ),
        "count": Schema(
            enum=["none", "capped", "exact", None],
            description="Whether to count all matches; capped stops at 10,001",
        ),
        "consistency": Schema(
            enum=["journal", None],
            description="Wait until all that is acknowledged by now can be found",
        ),
    },
)


@dataclass
class _Query(Operation):
    """The body of a query, which is read as JSON whatever its Content-Type."""

    def __post_init__(self) -> None:
        content = {"application/json": OpenAPIMediaType(schema=_QUERY)}
        self.request_body = RequestBody(content=content, required=True)


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

    @post(
        "/api/inferences/query",
        status_code=200,
        sync_to_thread=True,
        operation_class=_Query,
        responses={400: _UNREADABLE, 413: _TOO_LARGE, 503: _NOT_READY},
    )
    def query_inferences(body: RawBody) -> Page:
        """Find inferences, page by page; the body is JSON whatever its content type."""
        return inferences.query(decode_request(body))

    looked_up = {400: _UNREADABLE, 404: _UNKNOWN, 503: _NOT_READY}

    @get("/api/inferences/{inference_id:str}", sync_to_thread=True, responses=looked_up)
    def get_inference(inference_id: FromPath[str]) -> StoredInference:
        """Answer one inference."""
        return inferences.get(inference_id)

    @get(
        "/api/inferences/{inference_id:str}/input",
        sync_to_thread=True,
        responses=looked_up,
        media_type="*/*",
    )
    def get_inference_input(inference_id: FromPath[str]) -> Response[bytes]:
        """Answer the bytes that an inference was asked about."""
        data, mime = inferences.input_bytes(inference_id)
        # A client chose these bytes: what is no plain image may not run in a browser.
        is_image = mime.startswith("image/") and "svg" not in mime
        return Response(
            data,
            media_type=mime if is_image else "application/octet-stream",
            headers={"X-Content-Type-Options": "nosniff"},
        )

    return [query_inferences, get_inference, get_inference_input]

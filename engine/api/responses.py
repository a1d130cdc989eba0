"""Responses that several adapters document, and the handler of OPTIONS."""

from typing import Any

from litestar import Response, route
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import ResponseSpec
from litestar.openapi.spec import Operation

from quadriga.proto.http.openapi import Error


def error_response(description: str) -> ResponseSpec:
    """Return the documentation of an error response."""
    return ResponseSpec(Error, False, description)


TOO_LARGE = error_response("The body is larger than the server takes")
NOT_STORED = error_response(
    "It could not be stored, for example because the disk is full or too many jobs wait"
)
NOT_READY = error_response(
    "The store is not ready, did not respond in time, or has too many requests waiting"
)
UNKNOWN_MODEL = error_response("No such model is served or has stored inferences")
UNREADABLE_QUERY = error_response("The id or the query cannot be understood")
QUERY_ERRORS = {400: UNREADABLE_QUERY, 404: UNKNOWN_MODEL, 413: TOO_LARGE, 503: NOT_READY}
"""Errors of routes whose body is a query."""
BULK_CHANGE_ERRORS = {
    400: error_response("The id or the change cannot be understood"),
    413: TOO_LARGE,
    503: error_response("The store cannot keep the change, or has not applied it yet"),
}
CHANGE_ERRORS = BULK_CHANGE_ERRORS | {404: error_response("No such inference")}


def json_body_options(
    body: type[Operation], unreadable: ResponseSpec, status: int = 200
) -> dict[str, Any]:
    """Return the route options of a handler that stores what its JSON body describes.

    Args:
        body: The body, as of `json_body`.
        unreadable: The response to a body that cannot be understood.
        status: The status of success.
    """
    responses = {400: unreadable, 404: UNKNOWN_MODEL, 413: TOO_LARGE, 503: NOT_STORED}
    return {"status_code": status, "operation_class": body, "responses": responses}


def options_route(path: str, *methods: str) -> HTTPRouteHandler:
    """Return the handler of OPTIONS for a path with several methods.

    The framework alone would name only the first of them. The handler must come before theirs.
    """

    @route(path, http_method="OPTIONS", status_code=204, include_in_schema=False, need="nothing")
    async def answer_options() -> Response[None]:
        return Response(None, headers={"Allow": ", ".join(sorted([*methods, "OPTIONS"]))})

    return answer_options

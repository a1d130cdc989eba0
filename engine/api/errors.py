"""Exceptions of the routes as responses: every error has the shape of `quadriga.proto.http.asgi`."""

from typing import Any

from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.types import ExceptionHandlersMap

from quadriga.proto.errors import ClientLeft, MethodNotAllowed, NotFound, TooLarge
from quadriga.proto.http.asgi import error_body, error_response
from quadriga.proto.request import current_request, error_request_id, note_outcome, outcome_of_error
from quadriga.quoting import quoted


def answer_error(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Return the response to an exception with its status; without a status it is a server error."""
    request_id = error_request_id(request.headers.get("x-request-id"))
    status, body, headers = error_response(error, request_id)
    note_outcome(outcome_of_error(error))
    return Response(
        body,
        status_code=status,
        media_type="application/json",
        headers={name.decode(): value.decode() for name, value in headers},
    )


def answer_http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """Return the response to an exception of the framework, in the same shape."""
    path = f"{quoted(request.scope['path'], 200)}"
    if error.status_code == NotFound.status:
        message = f"expected a path of this server, as /schema/openapi.json lists them, got {path}"
        return answer_error(request, NotFound(message))
    if error.status_code == MethodNotAllowed.status:
        allowed = (error.headers or {}).get("allow", "")
        message = f"expected {allowed} for {path}, got {request.scope['method']}"
        return answer_error(request, MethodNotAllowed(message, allowed))
    if error.status_code == TooLarge.status:
        limit_bytes = request.route_handler.resolve_request_max_body_size()
        message = f"expected a body of at most {limit_bytes} bytes, got more"
        return answer_error(request, TooLarge(message))
    if error.status_code >= 500:
        cause = error.__cause__
        context = current_request()
        if cause is None and context is not None and context.has_left:
            cause = ClientLeft("the client disconnected before the end of its body")
        return answer_error(request, cause if isinstance(cause, Exception) else error)
    extra = error.extra if isinstance(error, ValidationException) else None
    problems = [problem for problem in extra or [] if isinstance(problem, dict)]
    message = "; ".join(f"{problem.get('key')}: {problem.get('message')}" for problem in problems)
    return Response(
        error_body(message or error.detail),
        status_code=error.status_code,
        media_type="application/json",
        headers={"X-Request-ID": error_request_id(request.headers.get("x-request-id"))},
    )


EXCEPTION_HANDLERS: ExceptionHandlersMap = {
    Exception: answer_error,
    HTTPException: answer_http_error,
}

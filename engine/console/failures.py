"""Errors as pages: in plain words for who looks with a browser, in the form of the API for everybody else."""

from typing import Any

from litestar import Response
from litestar.exceptions import HTTPException
from litestar.types import ExceptionHandlersMap

from quadriga.engine.api.errors import answer_error, answer_http_error
from quadriga.engine.console.frame import Frame, PageRequest, path_of, wants_page
from quadriga.engine.console.visitors import Visitors
from quadriga.proto.access import ROLES
from quadriga.proto.errors import Forbidden, Unauthenticated
from quadriga.proto.http.asgi import error_response
from quadriga.proto.request import current_caller, error_request_id

_NOT_NOW = (429, 503, 504, 507)
_MAX_DETAILS = 500


def failure_handlers(frame: Frame, visitors: Visitors) -> ExceptionHandlersMap:
    """Return what answers the exceptions of pages."""

    def answer(request: PageRequest, error: Exception) -> Response[Any]:
        """Return an error as a page, or where to log in."""
        of_framework = error if isinstance(error, HTTPException) else None
        if not wants_page(request):
            if of_framework is not None:
                return answer_http_error(request, of_framework)
            return answer_error(request, error)
        if isinstance(error, Unauthenticated):
            return visitors.answer(request, path_of(request))
        request_id = error_request_id(request.headers.get("x-request-id"))
        status, _, headers = error_response(error, request_id)
        status = status if of_framework is None else of_framework.status_code
        title, sentences, details = _words(status, error, request)
        answered = frame.page(
            "message",
            status=status,
            page="",
            title=title,
            sentences=sentences,
            details=details,
            request_id=request_id,
        )
        wait = dict(headers).get(b"retry-after")
        if wait is not None:
            answered.headers["Retry-After"] = wait.decode()
        return answered

    return {Exception: answer, HTTPException: answer}


def _words(status: int, error: Exception, request: PageRequest) -> tuple[str, list[str], str]:
    """Return title, sentences and details of a page about an error."""
    # Of a form the address is right, and what it names is wrong.
    if status == 404 and (request.method != "POST" or isinstance(error, HTTPException)):
        return (
            "No such page",
            ["Nothing is here. The address may be mistyped, or what it named was deleted."],
            "",
        )
    if status == 403 and isinstance(error, Forbidden):
        return "Permission denied", _missing_right(request), ""
    if status in _NOT_NOW:
        return (
            "Temporarily unavailable",
            ["The server is busy, or its database does not answer. Try again in a moment."],
            str(error)[:_MAX_DETAILS],
        )
    if status < 500:
        return "This was refused", [], str(error)[:_MAX_DETAILS]
    return "Something went wrong", [], ""


def _missing_right(request: PageRequest) -> list[str]:
    """Return what the caller's key may, and whom to ask for what the page needs."""
    need = request.route_handler.opt.get("need", "admin")
    rights = current_caller().rights
    roles = " or ".join(f"`{role}`" for role, given in ROLES.items() if need in given)
    sentences = ["Your key may run models, not read stored inferences."]
    if rights != {"infer"}:
        may = ", ".join(role for role in ROLES if role in rights)
        sentences = [f"Your key may {may}, not {need}."]
    return [*sentences, f"Ask your administrator for {roles}."]

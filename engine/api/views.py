"""HTTP routes for saved views: filters with a name."""

from pathlib import Path

from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, RawBody

from quadriga.engine.api.access import caller_scope
from quadriga.engine.api.openapi import NOT_STORED, TOO_LARGE, error_response, json_body
from quadriga.engine.api.routes import delete, get, put
from quadriga.monitor.saved_views import (
    SavedView,
    ViewBody,
    ViewList,
    ViewStore,
    decode_view,
)
from quadriga.proto.request import current_caller

_PATH = "/api/views/{view:str}"
_BODY = json_body(
    ViewBody,
    query="Filter as one line of text; empty for everything",
    order="Newest or oldest first",
    view="How the console shows the inferences; empty for what fits them",
)
_UNREADABLE = error_response("The name, the body or its filter cannot be understood")
_UNKNOWN = error_response("No such view")
_OF_OTHERS = error_response("The view belongs to somebody else")


def view_routes(directory: Path) -> list[HTTPRouteHandler]:
    """Return the handlers that list, save and delete the views of the caller's team, which stand in a folder."""
    every_team = ViewStore(directory)
    put_errors = {400: _UNREADABLE, 403: _OF_OTHERS, 413: TOO_LARGE, 503: NOT_STORED}
    delete_errors = {400: _UNREADABLE, 403: _OF_OTHERS, 404: _UNKNOWN, 503: NOT_STORED}

    @get("/api/views", need="read")
    def list_views() -> ViewList:
        """Return the saved views, by name."""
        return every_team.within(caller_scope()).all()

    @put(_PATH, need="annotate", operation=_BODY, errors=put_errors)
    def put_view(view: FromPath[str], body: RawBody) -> SavedView:
        """Save a view; the body is JSON whatever its content type."""
        return save_view(every_team, view, decode_view(body))

    @delete(_PATH, need="annotate", errors=delete_errors)
    def delete_view(view: FromPath[str]) -> SavedView:
        """Delete a view, and return it."""
        return remove_view(every_team, view)

    return [list_views, put_view, delete_view]


def save_view(every_team: ViewStore, name: str, body: ViewBody) -> SavedView:
    """Save a view of the caller's team, in the caller's name; raise `OtherOwnerError` if it belongs to somebody else."""
    caller = current_caller()
    return every_team.within(caller_scope()).put(
        name, body, caller.name, caller.key_id, may_replace="operate" in caller.rights
    )


def remove_view(every_team: ViewStore, name: str) -> SavedView:
    """Remove a view of the caller's team, and return it; raise `OtherOwnerError` if it belongs to somebody else."""
    caller = current_caller()
    return every_team.within(caller_scope()).remove(
        name, caller.key_id, may_replace="operate" in caller.rights
    )

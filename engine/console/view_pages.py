"""The page of saved views, which are filters with a name, and the forms that save and remove them."""

from pathlib import Path
from typing import Any

import msgspec
from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import RawBody

from quadriga.engine.api.caller_scope import caller_scope
from quadriga.engine.api.views import remove_view, save_view
from quadriga.engine.console.forms import form_fields, single_field
from quadriga.engine.console.frame import Frame, opens, redirect
from quadriga.engine.console.texts import TEXTS
from quadriga.monitor.saved_views import MAX_QUERY_CHARACTERS, ViewStore, decode_view
from quadriga.proto.access import current_caller

SHOWN = 200
"""Views of the list."""
_MAX_FORM_BYTES = 16 * MAX_QUERY_CHARACTERS
"""A character of a filter may take twelve bytes of a form."""


def view_pages(frame: Frame, directory: Path, options: dict[str, Any]) -> list[HTTPRouteHandler]:
    """Return the handlers; the views of all teams stand in `directory`."""
    every_team = ViewStore(directory)
    form_options = {**options, "status_code": 303, "request_max_body_size": _MAX_FORM_BYTES}

    @get("/console/views", sync_to_thread=True, need="read", **options)
    def show_views() -> Response[bytes]:
        """Show the saved views of the caller's team, by name."""
        listed = every_team.within(caller_scope()).all().views
        caller = current_caller()
        return frame.page(
            "views",
            page="views",
            title=TEXTS["views"],
            views=listed[:SHOWN],
            more=max(len(listed) - SHOWN, 0),
            may_save=opens(caller, "annotate"),
            removable_owner=None if opens(caller, "operate") else caller.name,
        )

    @post("/console/views/new", sync_to_thread=True, need="annotate", **form_options)
    def keep_view(body: RawBody) -> Response[bytes]:
        """Save a filter under a name, and show the views."""
        fields = form_fields(body)
        view = {"query": single_field(fields, "q"), "order": single_field(fields, "order") or "-ts"}
        save_view(every_team, single_field(fields, "name"), decode_view(msgspec.json.encode(view)))
        return redirect(frame.link("/console/views"))

    @post("/console/views/remove", sync_to_thread=True, need="annotate", **form_options)
    def forget_view(body: RawBody) -> Response[bytes]:
        """Remove a view, and show the others."""
        remove_view(every_team, single_field(form_fields(body), "name"))
        return redirect(frame.link("/console/views"))

    return [show_views, keep_view, forget_view]

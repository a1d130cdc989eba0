"""The page of saved views, which are filters with a name, and the forms that save and remove them."""

from functools import partial

import msgspec
from litestar import Response
from litestar.params import RawBody

from quadriga.engine.api.access import caller_scope
from quadriga.engine.api.store_queries import query_string
from quadriga.engine.api.views import remove_view, save_view
from quadriga.engine.console.frame import (
    Frame,
    PageRequest,
    form_fields,
    opens,
    redirect,
)
from quadriga.engine.console.services import Services
from quadriga.monitor.saved_views import (
    MAX_QUERY_CHARACTERS,
    SavedView,
    ViewBody,
    ViewStore,
    decode_view,
    is_same,
)
from quadriga.proto.request import current_caller

SHOWN = 200
"""Views of the list."""
_CHANGED = "changed=yes"
"""Query of the page after a view was replaced or removed."""
_MAX_FORM_BYTES = 16 * MAX_QUERY_CHARACTERS
"""A character of a filter may take twelve bytes of a form."""


def view_pages(services: Services) -> None:
    """Register the handlers."""
    frame = services.frame
    every_team = ViewStore(services.settings.views_directory)
    form = partial(services.form, request_max_body_size=_MAX_FORM_BYTES)

    @services.page("/console/views")
    def show_views(request: PageRequest) -> Response[bytes]:
        """Show the saved views of the caller's team, by name; after a change with what undoes it."""
        views = every_team.within(caller_scope())
        listed, is_changed = views.all().views, query_string(request) == _CHANGED
        return frame.page(
            "views",
            page="views",
            title="Views",
            views=listed[:SHOWN],
            more=max(len(listed) - SHOWN, 0),
            change=views.last_change(current_caller().key_id) if is_changed else None,
        )

    @form("/console/views/new", "annotate")
    def keep_view(body: RawBody) -> Response[bytes]:
        """Save a filter under a name, and show the views; ask first if another one of this name is there."""
        fields = form_fields(body)
        name = fields.get("name", "")
        sent = {
            "query": fields.get("q", ""),
            "order": fields.get("order", "") or "-ts",
            "view": fields.get("view", ""),
        }
        view = decode_view(msgspec.json.encode(sent))
        existing = _own_view(every_team, name)
        is_other = existing is not None and not is_same(existing, view)
        if existing is not None and is_other and not fields.get("sure", ""):
            return _question(frame, existing, view)
        save_view(every_team, name, view)
        return redirect(frame.link("/console/views") + (f"?{_CHANGED}" if is_other else ""))

    @form("/console/views/remove", "annotate")
    def forget_view(body: RawBody) -> Response[bytes]:
        """Remove a view, and show the others; ask first."""
        fields = form_fields(body)
        name = fields.get("name", "")
        existing = _own_view(every_team, name)
        if existing is not None and not fields.get("sure", ""):
            return _question(frame, existing, None)
        remove_view(every_team, name)
        return redirect(f"{frame.link('/console/views')}?{_CHANGED}")

    @form("/console/views/undo", "annotate")
    def bring_view_back() -> Response[bytes]:
        """Undo the last change of the caller, and show the views."""
        every_team.within(caller_scope()).undo(current_caller().key_id)
        return redirect(frame.link("/console/views"))


def _own_view(every_team: ViewStore, name: str) -> SavedView | None:
    """Return the view of a name if the caller may replace it; None otherwise."""
    caller = current_caller()
    views = every_team.within(caller_scope()).all().views
    view = next((view for view in views if view.name == name), None)
    may_replace = view is not None and (opens(caller, "operate") or view.owner == caller.name)
    return view if may_replace else None


def _question(frame: Frame, view: SavedView, replacement: ViewBody | None) -> Response[bytes]:
    """Return the page that asks whether to replace a view, or to remove it if nothing takes its place."""
    return frame.page(
        "view_question",
        page="views",
        title=f"{'Replace' if replacement else 'Remove'} the view {view.name}?",
        view=view,
        replacement=replacement,
    )

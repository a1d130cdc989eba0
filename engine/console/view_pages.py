"""The page of saved views: filters with a name."""

from pathlib import Path
from typing import Any

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler

from quadriga.engine.api.caller_scope import caller_scope
from quadriga.engine.console.frame import Frame
from quadriga.engine.console.texts import TEXTS
from quadriga.monitor.saved_views import ViewStore

SHOWN = 200
"""Views of the list."""


def views_page(frame: Frame, directory: Path, options: dict[str, Any]) -> HTTPRouteHandler:
    """Return the handler; the views of all teams stand in `directory`."""
    every_team = ViewStore(directory)

    @get("/console/views", sync_to_thread=True, need="read", **options)
    def show_views() -> Response[bytes]:
        """Show the saved views of the caller's team, by name."""
        listed = every_team.within(caller_scope()).all().views
        return frame.page(
            "views",
            page="views",
            title=TEXTS["views"],
            views=listed[:SHOWN],
            more=max(len(listed) - SHOWN, 0),
        )

    return show_views

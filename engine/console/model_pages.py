"""Pages of models: all of them, and one with its versions, labels and what its monitoring last said."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from quadriga.engine.api.models import ModelEntry
from quadriga.engine.api.session_cookies import server_url
from quadriga.engine.api.traffic import TrafficControl
from quadriga.engine.console.frame import Frame, PageRequest, opens
from quadriga.engine.console.texts import TEXTS
from quadriga.proto.access import ANYBODY
from quadriga.proto.errors import NotFound
from quadriga.proto.request import current_caller

_SCORED = ("OBJECT_DETECTION", "ORIENTED_OBJECT_DETECTION", "IMAGE_SEGMENTATION")
"""Tasks that take a lowest score."""


def model_pages(
    frame: Frame,
    models: Callable[[], list[ModelEntry]],
    traffic: TrafficControl | None,
    options: dict[str, Any],
) -> list[HTTPRouteHandler]:
    """Return the handlers; `models` returns the models that the caller may see, `traffic` is None where nothing is stored."""

    @get("/console/models", sync_to_thread=True, need="read", **options)
    def show_models() -> Response[bytes]:
        """Show all models."""
        return frame.page(
            "models",
            page="models",
            title=TEXTS["models"],
            models=models(),
            has_store=frame.has_store,
        )

    @get("/console/models/{name:str}", sync_to_thread=True, need="read", **options)
    def show_model(name: FromPath[str], request: PageRequest) -> Response[bytes]:
        """Show one model."""
        entry = next((entry for entry in models() if entry.name.lower() == name.lower()), None)
        if entry is None:
            raise NotFound("expected a model that is served or has stored inferences")
        state = None
        if traffic is not None and any(version.state for version in entry.versions):
            with suppress(NotFound):  # it was removed at this moment
                state = traffic.show(entry.name)
        caller = current_caller()
        is_ready = any(version.state == "READY" for version in entry.versions)
        return frame.page(
            "model",
            page="models",
            title=entry.name,
            m=entry,
            has_store=frame.has_store,
            traffic=state,
            may_try=is_ready and entry.task is not None and opens(caller, "infer"),
            has_score=entry.task in _SCORED,
            needs_key=caller is not ANYBODY,
            server=server_url(request, frame.public_url),
        )

    return [show_models, show_model]

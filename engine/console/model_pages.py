"""Pages of models: all of them, and one with its versions, labels and what its monitoring last said."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from quadriga.engine.api.models import ModelEntry
from quadriga.engine.api.traffic import TrafficControl
from quadriga.engine.console.frame import Frame
from quadriga.engine.console.texts import TEXTS
from quadriga.proto.errors import NotFound


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
    def show_model(name: FromPath[str]) -> Response[bytes]:
        """Show one model."""
        entry = next((entry for entry in models() if entry.name.lower() == name.lower()), None)
        if entry is None:
            raise NotFound("expected a model that is served or has stored inferences")
        state = None
        if traffic is not None and any(version.state for version in entry.versions):
            with suppress(NotFound):  # it was removed at this moment
                state = traffic.show(entry.name)
        return frame.page(
            "model",
            page="models",
            title=entry.name,
            m=entry,
            has_store=frame.has_store,
            traffic=state,
        )

    return [show_models, show_model]

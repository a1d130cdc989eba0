"""What the pages are made from."""

from collections.abc import Callable
from typing import Any

import msgspec
from litestar.handlers import HTTPRouteHandler

from quadriga.engine.api.models import ModelEntry
from quadriga.engine.api.routes import Decorator, get, post
from quadriga.engine.api.store_queries import StoreQueries
from quadriga.engine.api.traffic import TrafficControl
from quadriga.engine.config.settings import Settings
from quadriga.engine.console.frame import Frame
from quadriga.monitor.drift.service import DriftService
from quadriga.monitor.drift.watch.current import CurrentDrift
from quadriga.monitor.report.saved import ReportStore
from quadriga.monitor.watch.mutes import MuteStore
from quadriga.proto.access import Need
from quadriga.store.jobs.jobs import Jobs
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.scope import Scoped


class ConsoleStore(msgspec.Struct, frozen=True, kw_only=True):
    """What the pages read of what is stored."""

    queries: StoreQueries
    """Runs searches, within the threads and limits of those of the API."""
    inferences: Scoped[InferenceReader]
    jobs: Scoped[Jobs]
    reports: Scoped[ReportStore]
    mutes: MuteStore
    """The mutes of models, of all teams."""
    drift: Scoped[DriftService]
    current_drift: Scoped[CurrentDrift]


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """What each page gets."""

    frame: Frame
    settings: Settings
    models: Callable[..., list[ModelEntry]]
    """Returns the models that the caller may see; in brief for a list if `is_brief`."""
    traffic: TrafficControl
    """Shows and changes the traffic of models, where anything is stored."""
    options: dict[str, Any]
    """Options of all handlers."""
    handlers: list[HTTPRouteHandler] = []
    """The handlers that are registered."""

    def page(self, path: str, need: Need = "read") -> Decorator:
        """Return the decorator that registers the handler of a page."""
        return self._registered(get(path, need=need, **self.options))

    def form(self, path: str, need: Need, *, status: int = 303, **options: Any) -> Decorator:
        """Return the decorator that registers the handler of a form, after which the browser goes to a page."""
        return self._registered(post(path, need=need, status=status, **self.options, **options))

    def _registered(self, handler_of: Decorator) -> Decorator:
        def register(function: Callable[..., Any]) -> HTTPRouteHandler:
            self.handlers.append(handler := handler_of(function))
            return handler

        return register

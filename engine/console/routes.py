"""HTTP routes of the console's pages."""

from collections.abc import Callable
from typing import Any

import msgspec
from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from quadriga.engine.access.sessions import BrowserSessions
from quadriga.engine.api.models import ModelEntry
from quadriga.engine.api.traffic import TrafficControl
from quadriga.engine.config.settings import Settings
from quadriga.engine.console.failures import failure_handlers
from quadriga.engine.console.frame import STATIC_PATH, Frame, PageRequest
from quadriga.engine.console.pages.audit import audit_page
from quadriga.engine.console.pages.compare import compare_pages
from quadriga.engine.console.pages.drift import drift_forms, drift_pages
from quadriga.engine.console.pages.inference import inference_pages
from quadriga.engine.console.pages.inferences import inferences_page
from quadriga.engine.console.pages.jobs import job_pages
from quadriga.engine.console.pages.keys import key_pages
from quadriga.engine.console.pages.label import label_pages
from quadriga.engine.console.pages.live import live_page
from quadriga.engine.console.pages.models import model_pages, traffic_pages
from quadriga.engine.console.pages.overview import overview_page
from quadriga.engine.console.pages.reports import report_pages
from quadriga.engine.console.pages.start import start_forms
from quadriga.engine.console.pages.views import view_pages
from quadriga.engine.console.services import ConsoleStore, Services
from quadriga.engine.console.texts import WORD_GROUPS
from quadriga.engine.console.visitors import Visitors, session_routes
from quadriga.proto.errors import NotFound
from quadriga.proto.request import Audit


class LogIn(msgspec.Struct, frozen=True):
    """How people show who they are."""

    audit: Audit
    sessions: BrowserSessions | None
    """Sessions of keys, or of people where they log in with an identity provider; None where no keys are needed."""
    routes: Callable[[Visitors, Any, Audit], list[HTTPRouteHandler]]
    """Makes the handlers of log-in, with a key or an identity provider."""
    provider: str = ""
    """Name of the identity provider; empty without one."""


def console_page_routes(
    settings: Settings,
    models: Callable[..., list[ModelEntry]],
    traffic: TrafficControl,
    store: ConsoleStore | None,
    *,
    log_in: LogIn,
) -> list[HTTPRouteHandler]:
    """Return the handlers of all pages.

    Args:
        settings: Settings of the server.
        models: Returns the models that the caller may see.
        traffic: Shows and changes the traffic of models.
        store: What is stored; None where nothing is.
        log_in: How people show who they are.
    """
    frame = Frame(settings.public_url, has_store=store is not None)
    visitors = Visitors(frame, log_in.provider)
    options: dict[str, Any] = {
        "include_in_schema": False,
        "exception_handlers": failure_handlers(frame, visitors),
    }

    @get(STATIC_PATH + "/{digest:str}/{name:str}", need="nothing", include_in_schema=False)
    async def get_static_file(
        digest: FromPath[str], name: FromPath[str], request: PageRequest
    ) -> Response[bytes]:
        """Return a style sheet, a script or an icon."""
        answer = frame.static.answer(request, digest, name)
        if answer is None:
            raise NotFound("expected a file of the console, got another name")
        return answer

    services = Services(
        frame=frame, settings=settings, models=models, traffic=traffic, options=options
    )
    overview_page(services, store)
    model_pages(services, store)
    audit_page(services)
    if store is not None:
        inferences_page(services, store)
        inference_pages(services, store)
        live_page(services, store)
        label_pages(services, store)
        report_pages(services, store)
        start_forms(services, store)
        compare_pages(services, store)
        drift_pages(services, store)
        drift_forms(services, store)
        job_pages(services, store)
        key_pages(services, store)
        traffic_pages(services)
        view_pages(services)

    @services.page("/console/words")
    def show_words() -> Response[bytes]:
        """Show what the words of the pages mean."""
        return frame.page("words", page="words", title="Words", groups=WORD_GROUPS)

    @services.page("/console/{page:path}")
    async def show_nothing(page: FromPath[str]) -> Response[bytes]:
        """Say that there is no such page."""
        raise NotFound(f"no page of the console: {page[:100]!r}")

    handlers = [get_static_file, *services.handlers]
    if log_in.sessions is not None:
        handlers += log_in.routes(visitors, log_in.sessions, log_in.audit)
        handlers += session_routes(visitors, log_in.sessions, log_in.audit)
    return handlers

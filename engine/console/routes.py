"""HTTP routes of the console's pages."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from quadriga.engine.access.sessions import BrowserSessions
from quadriga.engine.api.access import caller_scope
from quadriga.engine.api.models import ModelEntry
from quadriga.engine.api.session_cookies import server_url
from quadriga.engine.api.store_queries import StoreQueries, query_string
from quadriga.engine.api.traffic import TrafficControl
from quadriga.engine.config.settings import Settings
from quadriga.engine.console.admin_pages import audit_page, keys_page
from quadriga.engine.console.compare_pages import ComparedMonitoring, compare_pages
from quadriga.engine.console.drift_forms import DriftMonitoring, drift_forms
from quadriga.engine.console.drift_pages import drift_pages
from quadriga.engine.console.failures import failure_handlers
from quadriga.engine.console.frame import Frame, PageRequest, opens, page_response, redirect
from quadriga.engine.console.inference import read_inference
from quadriga.engine.console.inference_filter import INFERENCES_PATH, FilterLinks, filter_from_url
from quadriga.engine.console.inferences import read_inferences, time_links
from quadriga.engine.console.job_pages import job_pages
from quadriga.engine.console.key_forms import key_forms
from quadriga.engine.console.label_pages import label_pages, links_of, next_link
from quadriga.engine.console.live_pages import live_page
from quadriga.engine.console.model_pages import model_pages
from quadriga.engine.console.overview import BAR_MINUTES, image_command, read_overview
from quadriga.engine.console.report_pages import report_pages
from quadriga.engine.console.similar_page import similar_page
from quadriga.engine.console.start_forms import ANNOTATED, EXPORT_FORMATS, start_forms
from quadriga.engine.console.static_files import STATIC_PATH
from quadriga.engine.console.texts import TEXTS, text
from quadriga.engine.console.traffic_pages import traffic_pages
from quadriga.engine.console.view_pages import view_pages
from quadriga.engine.console.visitors import Visitors, session_routes
from quadriga.engine.console.words_page import words_page
from quadriga.monitor.drift.service import DriftService
from quadriga.monitor.drift.watch.current import CurrentDrift
from quadriga.monitor.report.saved import ReportStore
from quadriga.monitor.watch.mutes import MuteStore
from quadriga.proto.access import ANYBODY
from quadriga.proto.errors import NotFound
from quadriga.proto.request import Audit, current_caller
from quadriga.store.jobs.jobs import Jobs
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.scope import Scoped


class ConsoleStore(msgspec.Struct, frozen=True):
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


class ConsoleParts(msgspec.Struct, frozen=True, kw_only=True):
    """What the pages are made from."""

    settings: Settings
    models: Callable[[], list[ModelEntry]]
    """Returns the models that the caller may see."""
    store: ConsoleStore | None
    """None where nothing is stored."""
    audit: Audit
    sessions: BrowserSessions | None
    """Sessions of keys, or of people where they log in with an identity provider; None where no keys are needed."""
    log_in_routes: Callable[[Visitors, Any, Audit], list[HTTPRouteHandler]]
    """Makes the handlers of log-in, with a key or an identity provider."""
    provider: str = ""
    """Name of the identity provider; empty without one."""
    traffic: TrafficControl | None = None
    """Shows and changes the traffic of models; None where nothing is stored."""


def console_page_routes(parts: ConsoleParts) -> list[HTTPRouteHandler]:
    """Return the handlers of all pages."""
    settings = parts.settings
    frame = Frame(settings.public_url, has_store=parts.store is not None)
    visitors = Visitors(frame, parts.provider)
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

    pages = [
        *model_pages(frame, parts.models, parts.traffic, options),
        audit_page(frame, settings.audit_directory, options),
        words_page(frame, options),
    ]
    if (store := parts.store) is not None:
        drift_monitoring = DriftMonitoring(
            store.reports, store.inferences, store.mutes, store.current_drift
        )
        pages += [
            inferences_page(frame, store.queries, store.reports, options),
            inference_page(frame, store.queries, parts.models, options),
            similar_page(frame, store.queries, options),
            live_page(frame, store.queries, options),
            *label_pages(frame, store.queries, parts.models, options),
            *report_pages(
                frame, store.reports, store.inferences, parts.models, store.drift, options=options
            ),
            *start_forms(frame, store.jobs, store.inferences, store.drift, options=options),
            *compare_pages(
                frame,
                store.queries,
                parts.models,
                ComparedMonitoring(store.jobs, store.inferences, store.reports),
                options=options,
            ),
            *(traffic_pages(frame, parts.traffic, options) if parts.traffic is not None else ()),
            *drift_pages(frame, drift_monitoring, options),
            *drift_forms(frame, drift_monitoring, options),
            *job_pages(frame, store.jobs, options),
            *view_pages(frame, settings.views_directory, options),
            keys_page(frame, store.inferences, options),
            *key_forms(frame, settings.database_url, options),
        ]

    @get("/console/{page:path}", need="read", **options)
    async def show_nothing(page: FromPath[str]) -> Response[bytes]:
        """Say that there is no such page."""
        raise NotFound(f"no page of the console: {page[:100]!r}")

    handlers = [get_static_file, overview_page(frame, parts, options), *pages]
    if parts.sessions is not None:
        handlers += parts.log_in_routes(visitors, parts.sessions, parts.audit)
        handlers += session_routes(visitors, parts.sessions, parts.audit)
    return [*handlers, show_nothing]


def overview_page(frame: Frame, parts: ConsoleParts, options: dict[str, Any]) -> HTTPRouteHandler:
    """Return the handler of the first page."""

    @get("/console", need="read", **options)
    async def show_overview(request: PageRequest) -> Response[bytes]:
        """Show what is served, how it goes, what changed, and what arrived just now."""
        url = server_url(request, frame.public_url)

        def show(store: InferenceReader | None) -> str:
            entries = parts.models()
            jobs = parts.store.jobs.within(caller_scope()).all() if parts.store else []
            reports = parts.store.reports.within(caller_scope()) if parts.store else None
            needs_key = current_caller() is not ANYBODY
            command, model = image_command(url, entries, needs_key=needs_key)
            return frame.html(
                "overview",
                page="overview",
                title=TEXTS["overview"],
                o=read_overview(store, entries, jobs, reports=reports),
                has_store=parts.store is not None,
                command=command,
                command_model=model,
                needs_key=needs_key,
                bar_minutes=BAR_MINUTES,
                to_time=lambda bar: frame.link(
                    "/console/inferences", q=f"ts=ge:{bar.start} & ts=lt:{bar.end}"
                ),
            )

        if parts.store is None:
            return page_response(await asyncio.to_thread(show, None))
        return page_response(await parts.store.queries.run(request, show))

    return show_overview


def inferences_page(
    frame: Frame,
    queries: StoreQueries,
    reports: Scoped[ReportStore],
    options: dict[str, Any],
) -> HTTPRouteHandler:
    """Return the handler of the page of inferences."""

    @get(INFERENCES_PATH, need="read", **options)
    async def show_inferences(request: PageRequest) -> Response[bytes]:
        """Show the inferences that a filter finds."""
        filter_ = filter_from_url(query_string(request))
        links = FilterLinks(filter_, frame.link, INFERENCES_PATH)
        if not filter_.is_canonical:
            return redirect(links.current(cursor=filter_.cursor))

        def show(store: InferenceReader) -> tuple[str, int]:
            content = read_inferences(store, filter_, links, reports.within(caller_scope()))
            html = frame.html(
                "inferences",
                page="inferences",
                title=TEXTS["inferences"],
                query=filter_.line,
                chips=links.chips(),
                filter_options=filter_.options,
                p=content,
                filter_example=content.example,
                links_=links,
                order=filter_.order,
                order_option=filter_.options.get("order"),
                to_label=frame.link("/console/label", q=filter_.line)
                if opens(current_caller(), "annotate")
                else "",
                view_option=filter_.view,
                may_save_view=opens(current_caller(), "annotate"),
                may_evaluate=opens(current_caller(), "monitor"),
                export_formats=EXPORT_FORMATS,
                annotated=ANNOTATED,
                to_time=lambda bar: links.between("ts", bar.start, bar.end),
                times=time_links(links, datetime.now(UTC).date()),
            )
            return html, 400 if content.problem else 200

        return page_response(*await queries.run(request, show))

    return show_inferences


def inference_page(
    frame: Frame,
    queries: StoreQueries,
    models: Callable[[], list[ModelEntry]],
    options: dict[str, Any],
) -> HTTPRouteHandler:
    """Return the handler of the page of one inference; `models` knows the labels that it may have."""

    @get(INFERENCES_PATH + "/{inference_id:str}", need="read", **options)
    async def show_inference(inference_id: FromPath[str], request: PageRequest) -> Response[bytes]:
        """Show one inference, within a filter."""
        filter_ = filter_from_url(query_string(request))
        links = FilterLinks(filter_, frame.link, INFERENCES_PATH)
        if not filter_.is_canonical:
            return redirect(links.inference(inference_id))

        def show(store: InferenceReader) -> str:
            model = store.get(inference_id).model.name
            labels = next((entry.labels for entry in models() if entry.name == model), [])
            content = read_inference(
                store, inference_id, filter_, links, caller=current_caller(), labels=labels
            )
            to_list = links.current()
            if filter_.queue is not None:
                to_list = links_of(frame, filter_, filter_.queue)
                following = next_link(frame, filter_, content.card.id)
                content = msgspec.structs.replace(content, next_link=following)
            return frame.html(
                "inference",
                page="inferences",
                title=text("inference_title", id=content.card.id),
                query=filter_.line,
                chips=links.chips(),
                filter_options=filter_.options,
                p=content,
                to_list=to_list,
                inference_path=f"{frame.base}/api/inferences/{content.card.id}",
            )

        return page_response(await queries.run(request, show))

    return show_inference

"""Puts the server together: the only file that knows every part."""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cv2
import msgspec
from litestar import Litestar, Router
from litestar.datastructures import MutableScopeHeaders
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.types import Message, Scope

from quadriga.engine.access.browsers import BrowserRules
from quadriga.engine.access.key_ring import KEYS_UNREAD, KeyGate, KeyMetrics, KeyRing
from quadriga.engine.access.quotas import job_owner
from quadriga.engine.access.sessions import BrowserSessions, KeySessions
from quadriga.engine.access.tls import RenewedContext, RenewedFiles
from quadriga.engine.api.access import check_needs, guard_route, guard_with
from quadriga.engine.api.audit import audit_route
from quadriga.engine.api.errors import EXCEPTION_HANDLERS
from quadriga.engine.api.metrics import metrics_route
from quadriga.engine.api.models import ModelEntry, served_entries
from quadriga.engine.api.openapi import OpenApiDocument
from quadriga.engine.api.routes import options_routes
from quadriga.engine.api.stored.event_streams import EventStreams
from quadriga.engine.api.traffic import TrafficControl, traffic_routes
from quadriga.engine.assembly.opened_store import NO_NUMBER, QUERY_THREADS, OpenedStore, open_store
from quadriga.engine.assembly.store_metrics import StoreMetrics
from quadriga.engine.config import extras
from quadriga.engine.config.settings import Settings
from quadriga.engine.console.routes import LogIn, console_page_routes
from quadriga.engine.console.visitors import key_log_in_routes
from quadriga.engine.http.asgi_front import AsgiFront
from quadriga.engine.http.http_protocol import HEADER_TIMEOUT_S
from quadriga.engine.measures.accounting import (
    AuditTrail,
    RequestLog,
    note_first_key,
    open_log,
    open_tracing,
    request_traceparent,
)
from quadriga.engine.measures.metrics import ProcessMetrics, PrometheusMetrics
from quadriga.engine.measures.readiness import ProcessStates, retry_until_done, worker_name
from quadriga.engine.measures.shared_counts import RequestCounts, ServerNumbers, SharedCounts
from quadriga.engine.models.image_graph import Vector
from quadriga.engine.models.model_archives import UnpackedArchives
from quadriga.engine.models.model_control import ModelControl
from quadriga.engine.models.model_host import ModelHost
from quadriga.engine.models.repository import ModelRepository
from quadriga.engine.models.runners.bounded_threads import BoundedThreads
from quadriga.engine.models.runners.crashes import count_refused
from quadriga.engine.serving.pipeline import Pipeline, request_queue
from quadriga.engine.serving.request_queue import RequestQueue
from quadriga.engine.serving.semantic_score import SemanticScores
from quadriga.engine.serving.traffic import Traffic, TrafficRules
from quadriga.proto.access import Gate, OpenGate
from quadriga.proto.grpc.server import GrpcServer
from quadriga.proto.http.intake import Intake
from quadriga.proto.http.operations import Dispatcher, Operation, WireOptions, all_operations
from quadriga.proto.request import Accounting
from quadriga.store.jobs.jobs import Jobs
from quadriga.tasks.image import Image

VERSION = version("quadriga")

MAX_WAITING_JOBS = 100
"""Maximum jobs of a server that wait or run."""

MAX_WAITING_QUERIES, QUERY_WAIT_S = 32, 10.0
"""Maximum searches of a worker that wait for a thread, and the time that each waits."""

MAX_ROUTE_BODY_BYTES = 4 << 20
"""Largest body of a route, as a filter or the parameters of a job; ground truth may take all that the server takes."""

SIGN_ON = "extras.sign_on.issuer"
"""Setting that switches single sign-on on."""

_log = logging.getLogger(__name__)


class Application:
    """The server of one worker.

    Args:
        settings: Settings of the server.
        worker: Number of the worker process among those of the server.
        run_directory: Folder through which workers coordinate; None for a single process.
        run_id: Id of the run of the server, in which the writer claims the numbers that are part of ids.
        host: What the worker gives to its models.
        internal_key: Key with which the server's own jobs send requests.
        tls_files: Certificate and key of gRPC; None without TLS.
        counts: What is counted for metrics and for the limits of keys, shared with the other processes.

    Raises:
        quadriga.engine.models.runners.session.LoadError: There is no model to serve, or no location to store images.
    """

    def __init__(
        self,
        settings: Settings,
        worker: int = 0,
        run_directory: Path | None = None,
        *,
        run_id: str = "",
        host: ModelHost | None = None,
        internal_key: str = "",
        tls_files: RenewedFiles | None = None,
        counts: SharedCounts | None = None,
    ) -> None:
        counts = counts or SharedCounts()
        process = worker_name(worker).replace(" ", "-")
        self._settings, self._tls_files = settings, tls_files
        self._tracing = open_tracing(process)
        self._audit_log = open_log(settings, process)
        self._accounting = Accounting(
            RequestCounts(counts).count,
            audit=None if self._audit_log is None else AuditTrail(self._audit_log),
            write_line=RequestLog(settings.log_requests).write if settings.log_requests else None,
            tracing=self._tracing,
        )
        first_key = partial(note_first_key, self._audit_log)
        self._keys: KeyRing | None = None
        if not settings.insecure:
            self._keys = KeyRing(settings, internal_key, first_key, counts=counts)
        self._sign_on: Any = None
        self._sessions: BrowserSessions | None = None
        self._gate: Gate = OpenGate()
        if self._keys is not None:
            if settings.of_extra("sign_on", "issuer"):
                self._sign_on = extras.load("sign_on", SIGN_ON)(settings, self._keys)
            self._sessions = self._sign_on or KeySessions(settings, self._keys)
            of_token = None if self._sign_on is None else self._sign_on.caller_of_token
            self._gate = KeyGate(self._keys, self._sessions.caller_of_cookies, of_token)
        self._host = msgspec.structs.replace(
            host or ModelHost(),
            counts=counts,
            isolation=settings.isolation,
            load_timeout_s=settings.load_timeout_s,
        )
        cv2.setNumThreads(1)  # parallelism comes from concurrent requests
        self._is_fetched = "://" in settings.models
        self._watch = _open_source(settings, run_directory, self._host)
        self.repository = self._make_repository()
        self._jobs = Jobs(
            settings.jobs_directory,
            MAX_WAITING_JOBS,
            owner=job_owner,
            traceparent=request_traceparent,
        )
        self._queries = BoundedThreads("queries", QUERY_THREADS, MAX_WAITING_QUERIES, QUERY_WAIT_S)
        self._streams = EventStreams()
        self._store: OpenedStore | None = None
        if settings.store:
            self._store = open_store(
                settings,
                worker,
                run_id,
                embed=self._embed,
                repository=self.repository,
                jobs=self._jobs,
                query_threads=self._queries,
                streams=self._streams,
                tls_files=tls_files,
                runs=lambda: self.pipeline,
            )
        self._recorder = None if self._store is None else self._store.recorder
        self._events = None if self._store is None else self._store.events
        self.intake = Intake(
            max(settings.max_inflight_bytes, settings.max_body_bytes),
            settings.body_timeout_s,
            accounting=self._accounting,
        )
        self.traffic_rules = TrafficRules(settings)
        queue = request_queue(settings)
        self._control = ModelControl(
            self.repository,
            run_directory,
            worker=worker,
            workers=settings.workers,
            max_file_bytes=settings.max_body_bytes,
            timeout_s=max(120.0, 3 * settings.load_timeout_s),
            allowed=settings.model_control,
            queues=queue.statistics,
            watch=self._watch,
        )
        self._numbers = ServerNumbers(counts, self._own_numbers, queue.statistics)
        self.pipeline = self._make_pipeline(queue, counts)
        options = WireOptions(
            server_version=VERSION,
            not_finite=settings.not_finite,
            ce_type=os.environ.get("CE_TYPE") or "io.kserve.inference.response",
            ce_source=os.environ.get("CE_SOURCE", ""),
            ce_merge=os.environ.get("CE_MERGE", "").lower() in ("true", "1"),
        )
        operations = list(all_operations(self.pipeline, options))
        process_metrics = ProcessMetrics(worker, None if run_directory is None else os.getppid())
        handlers = self._routes(self._metrics_route(counts, process_metrics))
        self.asgi = self._make_front(handlers, operations)

    def _make_repository(self) -> ModelRepository:
        settings, watch = self._settings, self._watch
        return ModelRepository(
            watch.source.folder if watch else Path(settings.models),
            settings.score_threshold,
            UnpackedArchives(settings.archives_directory),
            self._host,
            find=watch.find_served if watch and self._is_fetched else None,
            name=settings.name,
            remark=watch.remark if watch else lambda _: "",
        )

    def _make_pipeline(self, queue: RequestQueue, counts: SharedCounts) -> Pipeline:
        settings, recorder = self._settings, self._recorder
        traffic = Traffic(self.repository, self.traffic_rules, counts)
        pipeline = Pipeline(
            self.repository,
            recorder,
            settings,
            control=self._control,
            scores=SemanticScores(settings, self._served),
            queue=queue,
            traffic=traffic,
        )
        if self._watch is not None:
            pipeline.health.source_problem = self._watch.problem
        return pipeline

    def _metrics_route(
        self, counts: SharedCounts, process_metrics: ProcessMetrics
    ) -> HTTPRouteHandler:
        settings, stored = self._settings, []
        if self._store is not None:
            reports = self._store.console.reports
            stored.append(StoreMetrics(settings, self._jobs, reports, self._followed_time_s))
        return metrics_route(
            PrometheusMetrics(self.pipeline, VERSION, self._all_numbers, counts),
            KeyMetrics(self._keys),
            *([] if self._watch is None else [self._watch]),
            *stored,
            process_metrics,
            need="nothing" if settings.open_metrics else "metrics",
        )

    def _routes(self, metrics: HTTPRouteHandler) -> list[Any]:
        """Return the handlers of all paths that are not of a protocol."""
        settings, store = self._settings, self._store
        handlers: list[Any] = []
        traffic = TrafficControl(self.repository, self.traffic_rules)
        if store is not None:
            handlers = [*store.routes, *traffic_routes(traffic)]
        sign_on, log_in_routes = self._sign_on, key_log_in_routes
        if sign_on is not None:
            log_in_routes = extras.load("log_in_routes", SIGN_ON)
        log_in = LogIn(
            self._accounting.audit,
            self._sessions,
            log_in_routes,
            provider=sign_on.host if sign_on is not None else "",
        )
        pages = console_page_routes(
            settings,
            self._served_entries if store is None else store.models,
            traffic,
            None if store is None else store.console,
            log_in=log_in,
        )
        return [*handlers, metrics, audit_route(settings.audit_directory), *pages]

    def _make_front(self, handlers: list[Any], operations: Sequence[Operation]) -> AsgiFront:
        settings, audit = self._settings, self._accounting.audit
        protocols = Dispatcher(
            self.pipeline,
            operations,
            settings.max_body_bytes,
            request_timeout_s=settings.request_timeout_s,
            audit=audit,
            intake=self.intake,
        )
        check_needs(handlers)
        schema = Router("/schema", route_handlers=[], opt={"need": "key"}, include_in_schema=False)
        openapi = OpenAPIConfig(
            "Quadriga", VERSION, render_plugins=[OpenApiDocument(operations)], openapi_router=schema
        )
        routes = Litestar(
            [*options_routes(handlers), *handlers],
            guards=[guard_route, guard_with(audit)],
            exception_handlers=EXCEPTION_HANDLERS,
            before_send=[_keep_out_of_caches],
            openapi_config=openapi,
            request_max_body_size=min(settings.max_body_bytes, MAX_ROUTE_BODY_BYTES),
            logging_config=None,  # the process configures logging
        )
        return AsgiFront(
            routes,
            protocols,
            self.intake,
            gate=self._gate,
            rules=BrowserRules(settings),
            accounting=self._accounting,
        )

    def _served_entries(self, *, is_brief: bool = False) -> list[ModelEntry]:  # noqa: ARG002 - as ModelEntries.all
        return served_entries(self.repository.served_versions())

    def _own_numbers(self) -> dict[str, float]:
        """Return the numbers of this worker for metrics."""
        parts: list[Any] = [self._recorder, self.intake, self._audit_log, self._events]
        numbers: dict[str, float] = {
            "queries_waiting": self._queries.waiting,
            "queries_refused_total": self._queries.refused,
            "jobs_refused_total": self._jobs.refused,
        }
        for part in parts:
            numbers |= {} if part is None else part.counters()
        return numbers

    def _followed_time_s(self) -> float:
        """Return the time that ids follow, in seconds since 1970: the age of what waits is counted by it."""
        ahead_s = (
            0.0 if self._store is None else self._store.ids.clock_counters()["clock_ahead_seconds"]
        )
        return time.time() - ahead_s

    def _served(self) -> set[str]:
        return {status.name for status in self.repository.statuses() if status.state != "UNLOADED"}

    def _all_numbers(self) -> dict[str, float]:
        """Return the numbers of all workers."""
        numbers = {
            **self._numbers.totals(),
            "models_refused": float(count_refused(self._host.counts)),
        }
        end_s = None if self._tls_files is None else self._tls_files.certificate_end_s
        if end_s is not None:
            numbers["tls_certificate_end_timestamp_seconds"] = end_s
        return numbers

    def _embed(self, name: str, image: Image) -> tuple[Vector | None, str | None]:
        """Return the embedding of an image by a model, and its embedding space."""
        model = self.repository.get(name)
        return model.embed(image), model.embedding_space

    @property
    def knows_keys(self) -> bool:
        """Whether it is known which keys requests may present."""
        return self._keys is None or self._keys.is_known

    def load_models(self, states: ProcessStates, worker: int) -> threading.Event:
        """Start to load the models in a thread; return the event that is set when they are loaded.

        Before that the worker waits for its number, as nothing could be stored without. What fails, as on a full disk,
        is tried again until it works; the worker's state has the reason.
        """
        self.pipeline.health.processes = states
        name, loaded = worker_name(worker), threading.Event()

        def wait(reason: str) -> None:
            takes_requests = states.state(name).state != "starting"
            states.mark(name, "loading" if takes_requests else "starting", reason)

        def load() -> None:
            if self._store is not None:
                assign = partial(self._store.assign_number, partial(wait, NO_NUMBER))
                retry_until_done("find the newest id", assign, wait)
            if self._recorder is not None:
                self._recorder.check_disk()
            if self._watch is not None:
                retry_until_done("fetch the models", self._fetch_models, wait)
            retry_until_done("follow changes of models", self._control.start, wait)
            retry_until_done("load the models", self.repository.load_all, wait)
            if self._watch is not None:
                self._watch.start(self._control.load_newest)
            if self._keys is not None:
                self._keys.wait_until_known(partial(wait, KEYS_UNREAD))
            self.traffic_rules.wait()
            states.mark(name, "ready")
            loaded.set()

        # Here, as `close` ends them: it may be called while the models are loaded.
        parts: list[Any] = [self._numbers, self.traffic_rules, self._events, self._audit_log]
        for part in (*parts, self._keys, self._sign_on):
            if part is not None:
                part.start()
        threading.Thread(target=load, name="load-models", daemon=True).start()
        return loaded

    def _fetch_models(self) -> None:
        """Decide which models of the source the start serves, and let them wait to be loaded."""
        assert self._watch is not None
        self._watch.prepare()
        if self._is_fetched:
            self.repository.fill()

    async def serve_grpc(self, address: str) -> GrpcServer:
        """Serve V2 over gRPC on the running event loop, at the `host:port` that the workers share.

        Raises:
            RuntimeError: The address cannot be bound.
        """
        server = GrpcServer(
            self.pipeline,
            server_version=VERSION,
            max_message_bytes=self._settings.max_body_bytes,
            max_connections=self._settings.max_connections,
            intake=self.intake,
            max_connection_age_s=self._settings.grpc_connection_age_s,
            request_timeout_s=self._settings.request_timeout_s,
            handshake_timeout_s=HEADER_TIMEOUT_S,
            gate=self._gate,
            accounting=self._accounting,
        )
        files = self._tls_files
        tls = None if files is None else RenewedContext.of(lambda: files.grpc_context)
        await server.start(address, tls)
        return server

    async def drain(self, seconds: float) -> None:
        """Announce that the server is shutting down, and keep serving for a while.

        From now on every response closes its connection, so that no client sends into a closing one.
        """
        self.pipeline.health.draining = True
        self.asgi.closing = True
        self._streams.close()
        await asyncio.sleep(seconds)

    def close_journal_on_request(self) -> None:
        """See `quadriga.store.journal.journal.Journal.close_on_request`."""
        if self._store is not None:
            self._store.journal.close_on_request()

    def close(self) -> None:
        """Finish running requests and close the journal."""
        parts: list[Any] = [self._watch, self._events, self.pipeline, self._numbers]
        inferences = None if self._store is None else self._store.inferences
        parts += [self.traffic_rules, inferences, self._sign_on, self._keys]
        for part in (*parts, self._audit_log, self._tracing):
            if part is not None:
                part.close()


def _open_source(settings: Settings, run_directory: Path | None, host: ModelHost) -> Any:
    """Return the watch over the object store or polled folder of the models; None for a folder that is read on request alone.

    Raises:
        MissingExtra: What watches it is not here, or a package that it needs.
        quadriga.engine.models.runners.session.LoadError: The URL is none of an object store.
    """
    directory = (run_directory or Path(settings.data) / "run" / "single") / "source"
    if "://" in settings.models:
        open_store = extras.load("object_store", f"{settings.models.partition('://')[0]}://")
        return open_store(settings, directory, host)
    if settings.models_poll_s:
        return extras.load("polled_folder", "models_poll_s")(settings, directory, host)
    return None


async def _keep_out_of_caches(message: Message, _: Scope) -> None:
    """Let no cache keep what a key or a session was needed for, unless the answer says otherwise (RFC 9111, section 5.2.2)."""
    if message["type"] == "http.response.start":
        headers = MutableScopeHeaders.from_message(message)
        headers.setdefault("Cache-Control", "private, no-store")

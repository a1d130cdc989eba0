"""Puts the server together: the only file that knows every part."""

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cv2
from litestar import Litestar, MediaType, Request
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from quadriga.engine.api.changes import change_routes
from quadriga.engine.api.drift import drift_routes
from quadriga.engine.api.errors import EXCEPTION_HANDLERS
from quadriga.engine.api.evaluations import evaluation_routes
from quadriga.engine.api.inferences import inference_routes
from quadriga.engine.api.jobs import job_routes
from quadriga.engine.api.metrics import metrics_route
from quadriga.engine.api.schedules import schedule_routes
from quadriga.engine.embedding import Vector
from quadriga.engine.metrics import PrometheusMetrics
from quadriga.engine.model_control import ModelControl
from quadriga.engine.pipeline import Pipeline
from quadriga.engine.readiness import ReadinessFlags
from quadriga.engine.recording import Recorder
from quadriga.engine.repository import ModelRepository
from quadriga.engine.semantic_score import SemanticScores
from quadriga.engine.session import LoadError
from quadriga.engine.settings import Settings
from quadriga.engine.signal_worker import Embed
from quadriga.engine.store_access import open_reader
from quadriga.monitor.drift.baselines import BaselineStore
from quadriga.monitor.drift.service import DriftService
from quadriga.proto import table
from quadriga.proto.chariot import parse_metadata_value, without_gateway_prefix
from quadriga.proto.grpc_server import GrpcServer
from quadriga.proto.openapi import add_operations
from quadriga.proto.operations import Dispatcher, Operation, WireOptions
from quadriga.store.changes.service import ChangeService
from quadriga.store.errors import NotReadyError, QueryTimeoutError, StoreError
from quadriga.store.ids import IdSource
from quadriga.store.inferences import InferenceReader
from quadriga.store.jobs import Jobs
from quadriga.store.journal import Journal
from quadriga.store.journal import latest_seq as latest_journaled
from quadriga.tasks.image import Image

VERSION = version("quadriga")

LATEST_ID_TIMEOUT_S = 5.0
"""Maximum time that a worker's start waits for a database that does not respond."""

_log = logging.getLogger(__name__)


class Application:
    """The server of one worker; the worker's number is part of every id that it creates.

    Args:
        settings: Settings of the server.
        worker: Number of the worker process.
        run_directory: Folder through which workers coordinate; None for a single process.

    Raises:
        quadriga.engine.session.LoadError: There is no model to serve, or no location to store images.
    """

    def __init__(
        self, settings: Settings, worker: int = 0, run_directory: Path | None = None
    ) -> None:
        cv2.setNumThreads(1)  # parallelism comes from concurrent requests
        self.repository = ModelRepository(Path(settings.models), settings.score_threshold)
        recorder, handlers = (
            _open_store(settings, worker, self._embed) if settings.store else (None, [])
        )
        self._control = ModelControl(
            self.repository,
            run_directory,
            worker=worker,
            workers=settings.workers,
            max_file_bytes=settings.max_body_bytes,
            allowed=settings.model_control,
            counters=dict if recorder is None else recorder.counters,
        )
        self.pipeline = Pipeline(
            self.repository,
            recorder,
            settings,
            control=self._control,
            scores=SemanticScores(settings, self._served),
        )
        self._settings = settings
        options = WireOptions(
            server_version=VERSION,
            not_finite=settings.not_finite,
            v1_inputs=settings.v1_inputs,
            ce_type=settings.ce_type,
            ce_source=settings.ce_source,
            ce_merge=settings.ce_merge,
        )
        operations = list(table.all_operations(self.pipeline, options))
        handlers.append(
            metrics_route(PrometheusMetrics(self.pipeline, VERSION, self._control.counters))
        )
        app = Litestar(
            handlers,
            exception_handlers=EXCEPTION_HANDLERS,
            openapi_config=OpenAPIConfig(
                "Quadriga", VERSION, render_plugins=[_OpenApiDocument(operations)]
            ),
            request_max_body_size=settings.max_body_bytes,
            logging_config=None,  # the process configures logging
        )
        protocols = Dispatcher(self.pipeline, operations, settings.max_body_bytes)
        self.asgi = _AsgiFront(app, protocols)

    def _served(self) -> set[str]:
        return {status.name for status in self.repository.statuses() if status.state != "UNLOADED"}

    def _embed(self, name: str, image: Image) -> tuple[Vector | None, str | None]:
        """Return the embedding of an image by a model, and its embedding space."""
        model = self.repository.get(name)
        return model.embed(image), model.embedding_space

    def load_models(self, readiness: ReadinessFlags, worker: int) -> None:
        """Start to load the models in a thread; the worker's readiness flag is set when they are loaded."""
        self.pipeline.readiness = readiness

        def load() -> None:
            self._control.start()
            self.repository.load_all()
            readiness.mark(worker, loaded=True)

        threading.Thread(target=load, name="load-models", daemon=True).start()

    async def serve_grpc(self, address: str) -> GrpcServer:
        """Serve V2 over gRPC on the running event loop, at the `host:port` that the workers share.

        Raises:
            RuntimeError: The address cannot be bound.
        """
        server = GrpcServer(
            self.pipeline,
            server_version=VERSION,
            max_message_bytes=self._settings.max_body_bytes,
            stream_form=self._settings.grpc_stream,
        )
        await server.start(address)
        return server

    async def drain(self, seconds: float) -> None:
        """Announce that the server is shutting down, and keep serving for a while.

        From now on every response closes its connection, so that no client sends into a closing one.
        """
        self.pipeline.draining = True
        self.asgi.closing = True
        await asyncio.sleep(seconds)

    def close(self) -> None:
        """Finish running requests and close the journal."""
        self.pipeline.close()


def _open_store(settings: Settings, worker: int, embed: Embed) -> tuple[Recorder, list[Any]]:
    """Open the store: return the recorder, and the routes that find and change inferences.

    Raises:
        quadriga.engine.session.LoadError: Images cannot be stored at their location.
    """
    try:
        inferences, blobs = open_reader(settings)
    except StoreError as error:
        raise LoadError(str(error)) from error
    directory = settings.journal_directory
    number = settings.first_worker + worker
    ids = IdSource(number, latest_id(inferences, directory))
    journal = Journal(directory, number)
    recorder = Recorder(ids, journal, blobs, settings=settings, engine_version=VERSION, embed=embed)
    changes = ChangeService(inferences, journal, ids, parse_metadata_value)
    jobs = Jobs(settings.jobs_directory)
    drift = DriftService(jobs, inferences, BaselineStore(settings.baselines_directory))
    return recorder, [
        *inference_routes(inferences),
        *change_routes(changes),
        *job_routes(jobs),
        *evaluation_routes(jobs),
        *drift_routes(drift),
        *schedule_routes(settings.drift_directory),
    ]


def latest_id(inferences: InferenceReader, journal_directory: Path) -> int:
    """Return the largest stored id, or the largest journaled one while the database is unavailable.

    A new database does not respond before its first migration. If it stays unavailable, the worker starts
    anyway: its ids repeat no others as long as the clock was not set back.
    """
    deadline_s = time.monotonic() + LATEST_ID_TIMEOUT_S
    while True:
        try:
            return inferences.latest_seq()
        except (NotReadyError, QueryTimeoutError) as error:
            if time.monotonic() > deadline_s:
                _log.error(
                    "new ids follow the clock alone, the newest stored is unknown: %s", error
                )
                return latest_journaled(journal_directory)
        time.sleep(0.05)


class _AsgiFront:
    """Dispatch in front of the routes: Chariot's prefix, trailing slashes, HEAD, closing connections."""

    def __init__(self, routes: ASGIApp, protocols: Dispatcher) -> None:
        self._routes = routes
        self._protocols = protocols
        self.closing = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.closing:
            send = _close_after_response(send)
        method = str(scope.get("method"))
        full_path = scope["path"].rstrip("/") or "/"
        path = without_gateway_prefix(full_path)
        match = self._protocols.match(path, method)
        if path != full_path:  # the prefix may name the model
            match = self._protocols.match(full_path, method) or match
        if match is not None:
            await self._protocols.respond(match, scope, receive, send)
            return
        method = "GET" if method == "HEAD" else method  # the server drops the body itself
        inner: Any = {**scope, "method": method, "path": path, "raw_path": path.encode()}
        await self._routes(inner, receive, send)


class _OpenApiDocument(JsonRenderPlugin):
    """The OpenAPI document, with the protocols' endpoints beside the routes."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        super().__init__(path="/openapi.json", media_type=MediaType.JSON)
        self._operations = operations

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        """Write the document."""
        return super().render(request, add_operations(openapi_schema, self._operations))


def _close_after_response(send: Send) -> Send:
    async def send_and_close(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), (b"connection", b"close")]
        await send(message)

    return send_and_close

"""HTTP routes of an ML backend of Label Studio for each model, and of Label Studio's webhooks."""

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec
from litestar import Request, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, RawBody

from quadriga.engine.api.access import caller_scope
from quadriga.engine.api.openapi import (
    NOT_READY,
    TOO_LARGE,
    UNKNOWN_MODEL,
    error_response,
    json_body,
)
from quadriga.engine.config.settings import Settings
from quadriga.engine.models.runners.bounded_threads import BoundedThreads
from quadriga.engine.serving.pipeline import Pipeline
from quadriga.extras.label_studio.backend import (
    Health,
    LabelStudioBackend,
    PredictBody,
    Predictions,
    Setup,
    SetupBody,
    Versions,
    WebhookResult,
)
from quadriga.extras.label_studio.images import ImageFetcher
from quadriga.extras.label_studio.settings import LabelStudioSettings, parse_hosts
from quadriga.proto.request import note_number
from quadriga.store.changes.service import ChangeService
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.scope import Scoped

PATH = "/label-studio/{name:str}"
"""Path of a model; Label Studio takes the URL up to here, and adds the rest."""

TASK_THREADS, WAITING_TASKS, TASK_WAIT_S = 4, 256, 60.0
"""Tasks of Label Studio that a worker fetches images for at once, that wait for that, and how long each waits at most."""

_SETUP = json_body(SetupBody, schema="Labeling interface of the project, XML")
_PREDICT = json_body(
    PredictBody, tasks="Tasks of Label Studio", label_config="Labeling interface, XML"
)
_ERRORS = {
    400: error_response(
        "The body cannot be understood, or the labeling interface has no tag for the model's labels"
    ),
    404: UNKNOWN_MODEL,
    413: TOO_LARGE,
    501: error_response("Label Studio has no tag for the model's task, or asks for a training"),
    503: NOT_READY,
}


def label_studio_routes(
    settings: Settings,
    runs: Callable[[], Pipeline],
    inferences: Scoped[InferenceReader],
    changes: Scoped[ChangeService],
    *,
    threads: BoundedThreads,
) -> list[HTTPRouteHandler]:
    """Return the handlers.

    Args:
        settings: Settings of the server.
        runs: Returns the pipeline that runs the models.
        inferences: Reads the store.
        changes: States ground truth.
        threads: Threads of changes, in which webhooks run, as they wait for the writer.
    """
    backend = _backend(settings, runs, inferences, changes)
    state: dict[str, Any] = {"responses": {404: UNKNOWN_MODEL, 503: NOT_READY}, "need": "infer"}
    body_options: dict[str, Any] = {
        "status_code": 200,
        "responses": _ERRORS,
        "request_max_body_size": settings.max_body_bytes,
    }

    def own_hosts(request: Request[Any, Any, Any]) -> frozenset[str]:
        public = urlsplit(settings.public_url).netloc
        return frozenset(filter(None, (public, request.headers.get("host", ""))))

    @get(f"{PATH}/health", **state)
    async def check_label_studio_backend(name: FromPath[str]) -> Health:
        """Check that a model answers, for Label Studio."""
        return backend.health(name)

    @get(f"{PATH}/versions", **state)
    async def list_label_studio_versions(name: FromPath[str]) -> Versions:
        """List the versions of a model, for Label Studio."""
        return backend.versions(name)

    @post(f"{PATH}/setup", operation_class=_SETUP, need="infer", **body_options)
    async def set_up_label_studio(name: FromPath[str], body: RawBody) -> Setup:
        """Check that a labeling interface has a tag for the model's labels, for Label Studio."""
        return await asyncio.to_thread(backend.setup, name, body)

    @post(f"{PATH}/predict", operation_class=_PREDICT, need="infer", **body_options)
    async def predict_for_label_studio(
        name: FromPath[str], request: Request[Any, Any, Any], body: RawBody
    ) -> Predictions:
        """Predict on the images of tasks, for Label Studio."""
        return await backend.predict(name, body, caller_scope(), own_hosts(request))

    @post(f"{PATH}/webhook", need="annotate", **body_options)
    async def take_label_studio_webhook(
        name: FromPath[str], request: Request[Any, Any, Any], body: RawBody
    ) -> WebhookResult:
        """Keep annotations that a webhook of Label Studio sends as ground truth, or withdraw deleted ones."""
        hosts = own_hosts(request)
        result: WebhookResult = await threads.run(
            backend.take_webhook, name, body, caller_scope(), hosts
        )
        note_number(result.stated + result.withdrawn)
        return result

    return [
        check_label_studio_backend,
        list_label_studio_versions,
        set_up_label_studio,
        predict_for_label_studio,
        take_label_studio_webhook,
    ]


def _backend(
    settings: Settings,
    runs: Callable[[], Pipeline],
    inferences: Scoped[InferenceReader],
    changes: Scoped[ChangeService],
) -> LabelStudioBackend:
    own = msgspec.convert(settings.extras.get("label_studio", {}), LabelStudioSettings)
    hosts, size = parse_hosts(own.hosts), settings.max_body_bytes
    fetcher = ImageFetcher(hosts, own.url, own.token, max_bytes=size)
    threads = BoundedThreads("tasks of Label Studio", TASK_THREADS, WAITING_TASKS, TASK_WAIT_S)
    return LabelStudioBackend(
        runs,
        inferences,
        changes,
        fetcher=fetcher,
        threads=threads,
        timeout_s=settings.request_timeout_s,
    )

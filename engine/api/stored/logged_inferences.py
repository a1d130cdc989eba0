"""HTTP routes for inferences of models that are served elsewhere; bodies are JSON whatever their content type."""

from collections.abc import Mapping
from typing import Any

from litestar import Request
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, RawBody

from quadriga.engine.api.openapi import NOT_STORED, TOO_LARGE, error_response, json_body
from quadriga.engine.api.routes import delete, get, post, put
from quadriga.engine.external.descriptions import ModelDescription
from quadriga.engine.external.event_pairs import EventPairs, EventResult
from quadriga.engine.external.log_service import LogAnswer, LogBody, LogService
from quadriga.engine.models.runners.bounded_threads import BoundedThreads
from quadriga.proto.errors import InvalidRequest
from quadriga.proto.http.asgi import decompress
from quadriga.proto.http.cloud_events import read_event

EVENTS_PATH = "/api/cloudevents"
DESCRIPTION_PATH = "/api/models/{name:str}/description"
INFERENCES_PATH = "/api/inferences"

_BODY = json_body(
    LogBody,
    model="Name of the model",
    task="Task, such as detection; null takes it from the description or the predictions",
    key="Text by which the sender knows the inference: the same key again stores nothing",
    time="When it was made: RFC 3339 with a time zone, or seconds since 1970; null for now",
    image="The image file, base64-encoded",
    predictions="Predictions in the form of this server's responses",
    request="Body of the request to the other server, V2 or V1",
    response="Body of its response",
    description="What its output tensors mean, with keys of model.toml",
    status="HTTP status of the response; 400 and above is a failed inference",
    error="Why it failed",
    inferences="Many inferences; what stands beside them holds for each that says nothing else",
)
_DESCRIPTION = json_body(ModelDescription, labels="Label of each class, in order")
_UNREADABLE = error_response("The body cannot be understood, or none of its inferences is valid")
_ERRORS = {400: _UNREADABLE, 413: TOO_LARGE, 503: NOT_STORED}
_NO_DESCRIPTION = error_response("No such model is described")


def logged_inference_routes(
    service: LogService, events: EventPairs, threads: BoundedThreads, max_body_bytes: int
) -> list[HTTPRouteHandler]:
    """Return the handlers that take inferences from elsewhere, which run in `threads`, and of what models are said to be."""
    body_options: dict[str, Any] = {
        "need": "infer",
        "errors": _ERRORS,
        "request_max_body_size": max_body_bytes,
    }

    def readable(request: Request[Any, Any, Any], body: bytes) -> bytes:
        """Return a body without its compression."""
        encoding = request.headers.get("content-encoding", "")
        return decompress(body, encoding.encode("latin-1"), max_body_bytes)

    @post(INFERENCES_PATH, operation=_BODY, **body_options)
    async def log_inferences(request: Request[Any, Any, Any], body: RawBody) -> LogAnswer:
        """Store inferences that a model made elsewhere; those that are invalid are refused by themselves."""
        return await threads.run(lambda: service.log(readable(request, body)))

    @post(EVENTS_PATH, **body_options)
    async def take_event(request: Request[Any, Any, Any], body: RawBody) -> EventResult:
        """Take a CloudEvent of KServe's logger, whose request and response become one inference."""
        headers = {name.lower(): value for name, value in request.scope["headers"]}
        return await threads.run(lambda: _take(events, headers, readable(request, body)))

    errors = {400: _UNREADABLE, 404: _NO_DESCRIPTION}

    @get(DESCRIPTION_PATH, need="read", errors=errors)
    def get_description(name: FromPath[str]) -> ModelDescription:
        """Return what is said of a model that is served elsewhere."""
        return service.get_description(name)

    @put(DESCRIPTION_PATH, need="operate", operation=_DESCRIPTION, errors=_ERRORS)
    def put_description(name: FromPath[str], body: RawBody) -> ModelDescription:
        """Say what the output tensors of a model mean that is served elsewhere."""
        return service.put_description(name, body)

    @delete(DESCRIPTION_PATH, need="operate", errors=errors | {503: NOT_STORED})
    def delete_description(name: FromPath[str]) -> ModelDescription:
        """Forget what is said of a model, and return it; what is stored stays as it is."""
        return service.remove_description(name)

    return [get_description, put_description, delete_description, log_inferences, take_event]


def _take(events: EventPairs, headers: Mapping[bytes, bytes], body: bytes) -> EventResult:
    event = read_event(headers, body, any_content_type=True)
    if event is None:
        raise InvalidRequest(
            "expected a CloudEvent: the headers Ce-Specversion, Ce-Source, Ce-Type and Ce-Id, or the type "
            "application/cloudevents+json"
        )
    return events.take(event.attributes, event.data)

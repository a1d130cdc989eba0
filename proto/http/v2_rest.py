"""KServe V2 over REST: the endpoints.

Source: Open Inference Protocol, inference_rest.md; Triton's extensions where named.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from quadriga.proto.access import Need, admit, current_caller
from quadriga.proto.datatypes import Datatype
from quadriga.proto.errors import InvalidRequest, ModelNotReady
from quadriga.proto.http.classification import infer_and_classify
from quadriga.proto.http.cloud_events import with_cloud_events
from quadriga.proto.http.image_body import is_image_type, media_type, read_image
from quadriga.proto.http.operations import (
    HttpRequest,
    HttpResponse,
    Operation,
    WireOptions,
    json_response,
    mark_cloud_event,
    model_names,
    named_model,
    post_endpoint,
    state_endpoint,
    store_headers,
)
from quadriga.proto.http.v2_envelope import (
    InferAnswer,
    InferBody,
    parse_infer,
    parse_raw,
    render_infer,
)
from quadriga.proto.messages import (
    HealthReport,
    InferRequest,
    ModelInfo,
    Serving,
    check_model_exists,
    first_request_id,
)
from quadriga.quoting import quoted
from quadriga.tasks.image import is_image_file

_MODEL = "/v2/models/{name}[/versions/{version}]"

EXTENSIONS: tuple[str, ...] = (
    "binary_tensor_data",
    "classification",
    "idempotency_key",
    "model_configuration",
    "model_repository",
    "parameters",
    "statistics",
)
"""Extensions named in the server's metadata: those that are implemented."""

_JSON_BYTES = b"inference-header-content-length"
_OCTETS = b"application/octet-stream"


# Responses in JSON, for the OpenAPI document.


class ServerMetadata(msgspec.Struct):
    """Metadata of the server."""

    name: str
    version: str
    extensions: Sequence[str]


ServerLive = msgspec.defstruct("ServerLive", [("live", bool)])
ServerReady = msgspec.defstruct("ServerReady", [("live", bool), ("ready", bool)])
ModelReady = msgspec.defstruct("ModelReady", [("name", str), ("ready", bool)])
ModelNames = msgspec.defstruct("ModelNames", [("models", list[str])])


class TensorMetadata(msgspec.Struct):
    """An input or output; -1 stands for a variable dimension."""

    name: str
    datatype: Datatype
    shape: list[int]


class ModelMetadata(msgspec.Struct):
    """Metadata of a model."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
    properties: dict[str, str]


def operations(serving: Serving, options: WireOptions) -> list[Operation]:
    """Make the endpoints of V2 over REST."""
    server = ServerMetadata("quadriga", options.server_version, EXTENSIONS)
    infer = with_cloud_events(partial(answer_infer, serving, options), options)
    ready, model_ready = partial(_server_ready, serving), partial(_model_ready, serving)
    infer_endpoint = partial(post_endpoint, request_type=InferBody, response_type=InferAnswer)

    def models(_: HttpRequest) -> HttpResponse:
        return json_response({"models": model_names(serving)})

    def metadata(http_request: HttpRequest) -> HttpResponse:
        return json_response(model_metadata(named_model(serving, http_request)))

    def live(_: HttpRequest) -> HttpResponse:
        return json_response({"live": True})

    rows: list[tuple[str, Need, Callable[[HttpRequest], HttpResponse], str, Any]] = [
        ("/v2", "key", lambda _: json_response(server), "Describe the server", ServerMetadata),
        ("/v2/health/live", "nothing", live, "Check whether the server runs", ServerLive),
        ("/v2/health/ready", "nothing", ready, "Check whether the server is ready", ServerReady),
        ("/ready", "nothing", ready, "Check whether the server is ready, for Chariot", ServerReady),
        ("/v2/models", "key", models, "List the models", ModelNames),
        (_MODEL, "infer", metadata, "Describe a model", ModelMetadata),
        (f"{_MODEL}/ready", "infer", model_ready, "Check whether a model is ready", ModelReady),
    ]
    return [
        infer_endpoint(
            f"{_MODEL}/infer",
            infer,
            "Infer",
            need="infer",
            compress_response=True,
            allows_binary=True,
            allows_image=True,
        ),
        *(
            state_endpoint(path, handler, summary, need=need, response_type=response_type)
            for path, need, handler, summary, response_type in rows
        ),
    ]


def answer_infer(serving: Serving, options: WireOptions, http_request: HttpRequest) -> HttpResponse:
    """Run an inference request to the model named in the path."""
    try:
        request = _read_request(serving, http_request)
    except InvalidRequest as error:
        named = http_request.path_parameters
        check_model_exists(serving, named["name"], named["version"])
        headers = http_request.headers
        is_read_as_json = _JSON_BYTES not in headers and not is_image_type(media_type(headers))
        if is_read_as_json and is_image_file(http_request.body):
            raise InvalidRequest(
                "expected a body in JSON, got the file of an image: models of images take it with "
                "Content-Type: image/jpeg or its like"
            ) from error
        raise
    response = infer_and_classify(serving, mark_cloud_event(http_request, request))
    body, json_bytes = render_infer(request, response, options.not_finite)
    answered = store_headers(response)
    if json_bytes is None:
        return HttpResponse(body, headers=answered)
    answered = [*answered, (_JSON_BYTES, str(json_bytes).encode())]
    return HttpResponse(body, media_type=_OCTETS, headers=answered)


def _read_request(serving: Serving, http_request: HttpRequest) -> InferRequest:
    """Read an inference request, whose body is an image, JSON, JSON and the data behind it, or one tensor's data alone."""
    request_id = http_request.headers.get(b"x-request-id", b"").decode("latin-1") or None
    version, json_bytes = http_request.path_parameters["version"], _json_bytes(http_request)
    if json_bytes == 0:
        info = named_model(serving, http_request)
        return parse_raw(http_request.body, info, version, request_id)
    if json_bytes is None and _holds_image(serving, http_request):
        return _image_request(serving, http_request, request_id)
    return parse_infer(
        http_request.body,
        model=http_request.path_parameters["name"],
        version=version,
        header_id=request_id,
        json_bytes=json_bytes,
    )


def _holds_image(serving: Serving, http_request: HttpRequest) -> bool:
    """Check whether the body is an image: by its type, or of bytes of no type by their beginning, if the model takes images."""
    kind = media_type(http_request.headers)
    if kind == _OCTETS:
        return is_image_file(http_request.body) and named_model(serving, http_request).takes_images
    return is_image_type(kind)


def _image_request(
    serving: Serving, http_request: HttpRequest, header_id: str | None
) -> InferRequest:
    """Make the request of a body that is an image."""
    info = named_model(serving, http_request)
    if not info.takes_images:
        kind = media_type(http_request.headers).decode("latin-1")
        raise InvalidRequest(
            f"expected tensors for the model {info.name!r}, as JSON or binary data, got {quoted(kind, 60)}"
        )
    image = read_image(http_request, info.inputs[0].name)
    named = http_request.path_parameters
    return InferRequest(named["name"], named["version"], first_request_id(header_id), [image])


def _json_bytes(http_request: HttpRequest) -> int | None:
    """Read the length of the JSON of a body; None if the whole body is JSON."""
    header = http_request.headers.get(_JSON_BYTES)
    if header is None:
        return None
    length = int(header) if header.isdigit() and len(header) < 16 else -1
    if not 0 <= length <= len(http_request.body):
        raise InvalidRequest(
            f"expected Inference-Header-Content-Length to be 0 to {len(http_request.body)}, the length of the "
            f"body, got {quoted(header, 40)}"
        )
    return length


def _server_ready(serving: Serving, http_request: HttpRequest) -> HttpResponse:
    reason = serving.unready_reason()
    if reason is not None and not current_caller().rights:
        reason = "the server is not ready; with a key the answer says why"
    status = "ready" if reason is None else "not ready"
    ready = {"status": status, "live": True, "ready": True}
    if http_request.query and _is_verbose(http_request.query):
        if not current_caller().rights:
            admit(current_caller(), "key")
        ready |= _health_json(serving.health_report())
    return _ready(reason, ready)


def _is_verbose(query: bytes) -> bool:
    """Check whether the query of a URL has `verbose`, alone or as a true value."""
    return any(part in (b"verbose", b"verbose=1", b"verbose=true") for part in query.split(b"&"))


def _health_json(report: HealthReport) -> dict[str, Any]:
    """Render the parts of a health report."""
    return {
        "status": report.status,
        "process": {**msgspec.to_builtins(report.process), "processes": report.processes},
        "store": {**msgspec.to_builtins(report.store), "lag_bytes": report.lag_bytes},
        "models": {**msgspec.to_builtins(report.models), "versions": report.versions},
    }


def model_metadata(info: ModelInfo) -> dict[str, Any]:
    """Render a model's metadata."""
    return {
        "name": info.name,
        "versions": info.versions,
        "platform": info.platform,
        "inputs": info.inputs,
        "outputs": info.outputs,
        "properties": {"task": info.task} | _graph_tensors(info) | _providers(info),
    }


def _providers(info: ModelInfo) -> dict[str, str]:
    """Render the execution providers that run a model, in order, if they are not the default."""
    return {"providers": ", ".join(info.providers)} if info.providers else {}


def _graph_tensors(info: ModelInfo) -> dict[str, str]:
    """Render the tensors that requests of content_type raw have, as texts of JSON: properties are texts."""
    tensors = {"graph_inputs": info.graph_inputs, "graph_outputs": info.graph_outputs}
    return {name: msgspec.json.encode(rows).decode() for name, rows in tensors.items() if rows}


def _model_ready(serving: Serving, http_request: HttpRequest) -> HttpResponse:
    try:
        info = named_model(serving, http_request)
    except ModelNotReady as error:
        return _ready(str(error), {"name": http_request.path_parameters["name"]})
    reason = serving.model_unready_reason(info.name, http_request.path_parameters["version"])
    return _ready(reason, {"name": info.name, "ready": True})


def _ready(reason: str | None, ready: Mapping[str, Any]) -> HttpResponse:
    if reason is None:
        return json_response(ready)
    return json_response({**ready, "ready": False, "error": reason}, 400)

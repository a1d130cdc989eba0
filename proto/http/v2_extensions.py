"""Endpoints of Triton's extensions of V2 over REST: model repository, statistics, model configuration, generate.

Parameters of inferences are not read here, but in `quadriga.proto.http.chariot` and by the tasks.

Source: triton-inference-server/server, docs/protocol/extension_*.md; its vLLM backend for `image`.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Literal

import msgspec
from pybase64 import b64decode

from quadriga.proto.errors import InvalidRequest, Unsupported
from quadriga.proto.http.asgi import error_response
from quadriga.proto.http.operations import (
    HttpRequest,
    HttpResponse,
    Operation,
    WireOptions,
    json_response,
    named_model,
    post_endpoint,
    request_id,
    state_endpoint,
    store_headers,
)
from quadriga.proto.json_text import Read, parse_json, parse_object, take_parameters
from quadriga.proto.messages import (
    Duration,
    InferChunk,
    InferRequest,
    ModelInfo,
    ModelStatistics,
    Serving,
    Tensor,
    check_model_exists,
)
from quadriga.quoting import quoted

_MODEL = "/v2/models/{name}[/versions/{version}]"
_REPOSITORY = "/v2/repository"

_STATES = dict.fromkeys(("FAILED", "UNLOADED", "REFUSED"), "UNAVAILABLE")
"""States with another name in Triton."""

_PLATFORM, _BACKEND = "onnxruntime_onnx", "onnxruntime"
"""Triton's names of what runs the models; the metadata has the protocol's own."""

_ONE_REPOSITORY = (
    "models to be named without a repository, as there is one, got repository {repository!r}"
)

_PHASES = ("queue", "compute_input", "compute_infer", "compute_output")


class IndexBody(msgspec.Struct):
    """Body of a request for the index."""

    ready: bool | None = None


class LoadParameters(msgspec.Struct, forbid_unknown_fields=True):
    """Parameters of a load, except its files, which are parameters `file:<path>` in base64."""

    config: str | dict[str, Any] | None = None


class LoadBody(msgspec.Struct):
    """Body of a request to load a model."""

    parameters: dict[str, Any] | None = None


class UnloadParameters(msgspec.Struct, forbid_unknown_fields=True):
    """Parameters of an unload; here no model depends on another."""

    unload_dependents: bool | None = None


class UnloadBody(msgspec.Struct):
    """Body of a request to unload a model."""

    parameters: UnloadParameters | None = None


def operations(serving: Serving, _: WireOptions) -> list[Operation]:
    """Make the endpoints of the extensions, and those that refuse what is not offered."""
    model = f"{_REPOSITORY}/models/{{name}}"
    load, unload = partial(_load, serving), partial(_unload, serving)
    post_own_thread = partial(post_endpoint, need="operate", own_thread=True)
    get_own_thread = partial(Operation, "GET", need="infer", own_thread=True)
    statistics = partial(_statistics, serving)

    def index(http_request: HttpRequest) -> HttpResponse:
        return json_response(index_json(serving, ready=_read(http_request.body, IndexBody).ready))

    def config(http_request: HttpRequest) -> HttpResponse:
        return json_response(config_json(named_model(serving, http_request)))

    index_summary = "List the models of the repository and their states"
    return [
        post_endpoint(
            f"{_REPOSITORY}/index",
            index,
            index_summary,
            need="key",
            in_thread=False,
            request_type=IndexBody,
        ),
        post_own_thread(
            f"{model}/load", load, "Load a model, or load it again", request_type=LoadBody
        ),
        post_own_thread(f"{model}/unload", unload, "Unload a model", request_type=UnloadBody),
        get_own_thread("/v2/models/stats", statistics, "Count and time all models"),
        get_own_thread(f"{_MODEL}/stats", statistics, "Count and time a model"),
        state_endpoint(
            f"{_MODEL}/config",
            config,
            "Describe a model as Triton's configuration does",
            need="infer",
        ),
        *_not_offered(),
    ]


def _not_offered() -> list[Operation]:
    """Make the endpoints that Triton has and this server has not: 501, with the reason."""
    trace = "no request for traces: this server records none"
    log = "no request for log settings: this server logs to standard error, from level INFO on"
    tensors = "tensors in the request: this server reads no shared memory"
    rows: list[tuple[Literal["GET", "POST"], str, str]] = [
        ("POST", f"{_REPOSITORY}/{{repository}}/{action}", _ONE_REPOSITORY)
        for action in ("index", "models/{name}/load", "models/{name}/unload")
    ]
    for path, reason in (("/v2[/models/{name}]/trace/setting", trace), ("/v2/logging", log)):
        rows += [("GET", path, reason), ("POST", path, reason)]
    for memory in ("/v2/systemsharedmemory", "/v2/cudasharedmemory"):
        rows.append(("GET", f"{memory}[/region/{{region}}]/status", tensors))
        rows.append(("POST", f"{memory}/region/{{region}}/register", tensors))
        rows.append(("POST", f"{memory}[/region/{{region}}]/unregister", tensors))
    return [
        Operation(verb, path, partial(_refuse, reason), "", need="key", in_thread=False)
        for verb, path, reason in rows
    ]


def _refuse(reason: str, http_request: HttpRequest) -> HttpResponse:
    raise Unsupported(f"expected {reason.format(**http_request.path_parameters)}")


def no_other_repository(name: str) -> Unsupported:
    """Return the error of a request that names a repository."""
    return Unsupported(f"expected {_ONE_REPOSITORY.format(repository=name[:140])}")


def _read(body: bytes, type_: type[Read]) -> Read:
    return parse_json(body.strip() or b"{}", "the body, unless it is empty,", type_)


def index_json(serving: Serving, *, ready: bool | None) -> list[dict[str, str]]:
    """List the models, or those that are ready, with the states that Triton and MLServer know."""
    return [
        {
            "name": status.name,
            "version": status.version,
            "state": _STATES.get(status.state, status.state),
            "reason": status.reason or ("unloaded" if status.state == "UNLOADED" else ""),
        }
        for status in serving.model_statuses()
        if status.state == "READY" or not ready
    ]


def _load(serving: Serving, http_request: HttpRequest) -> HttpResponse:
    """Load a model; KServe's clients read the response's body, others its status."""
    name = http_request.path_parameters["name"]
    serving.load_model(name, *parse_load(_read(http_request.body, LoadBody).parameters or {}))
    return json_response({"name": name, "load": True})


def parse_load(parameters: Mapping[str, Any]) -> tuple[dict[str, Any] | None, dict[str, bytes]]:
    """Parse the parameters of a load: the configuration, if any, and files by path.

    They are `config`, JSON or a text of JSON, and `file:<path>`, base64 or bytes.
    """
    files: dict[str, bytes] = {}
    others: dict[str, Any] = {}
    try:
        for key, value in parameters.items():
            if key.startswith("file:"):
                content = value if isinstance(value, bytes) else b64decode(value, validate=True)
                files[key.removeprefix("file:")] = content
            else:
                others[key] = value
        config = msgspec.convert(others, LoadParameters).config
    except (msgspec.ValidationError, TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            "expected parameters to be config, with an object in JSON, and file:<path>, in base64, "
            f"got: {error}"
        ) from error
    if isinstance(config, str):
        config = parse_object(config.strip() or "{}", "parameters.config")
    return config, files


def _unload(serving: Serving, http_request: HttpRequest) -> HttpResponse:
    _read(http_request.body, UnloadBody)
    name = http_request.path_parameters["name"]
    serving.unload_model(name)
    return json_response({"name": name, "unload": True})


def _statistics(serving: Serving, http_request: HttpRequest) -> HttpResponse:
    statistics = serving.statistics(
        http_request.path_parameters.get("name"), http_request.path_parameters.get("version")
    )
    return json_response(
        {"model_stats": [statistics_json(version_statistics) for version_statistics in statistics]}
    )


def statistics_json(statistics: ModelStatistics) -> dict[str, Any]:
    """Render the statistics of one version of one model in Triton's form."""
    never = Duration()
    return {
        "name": statistics.name,
        "version": statistics.version,
        "last_inference": statistics.last_inference_ms,
        "inference_count": statistics.inference_count,
        "execution_count": statistics.execution_count,
        "inference_stats": {
            **{name: getattr(statistics, name) for name in ("success", "fail", *_PHASES)},
            "cache_hit": never,
            "cache_miss": never,
        },
        "response_stats": {},
        "batch_stats": [
            {
                "batch_size": batch.batch_size,
                **{name: getattr(batch, name) for name in _PHASES[1:]},
            }
            for batch in statistics.batches
        ],
        "memory_usage": [],
    }


def config_json(info: ModelInfo) -> dict[str, Any]:
    """Render a model's metadata as Triton's ModelConfig (model_config.proto).

    If the first axis of all inputs and outputs is variable, it is the batch and given by `max_batch_size`; otherwise it
    is part of `dims`.
    """
    tensors = [*info.inputs, *info.outputs]
    batched = all(tensor.shape[:1] == (-1,) for tensor in tensors)
    return {
        "name": info.name,
        "platform": _PLATFORM,
        "backend": _BACKEND,
        "version_policy": {"specific": {"versions": [int(version) for version in info.versions]}},
        "max_batch_size": info.max_batch if batched else 0,
        "input": _tensors_json(info.inputs, batched=batched),
        "output": _tensors_json(info.outputs, batched=batched),
    }


def _tensors_json(tensors: Sequence[Any], *, batched: bool) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for tensor in tensors:
        type_name = "STRING" if tensor.datatype == "BYTES" else tensor.datatype
        dims = list(tensor.shape[1:] if batched else tensor.shape)
        rows.append({"name": tensor.name, "data_type": f"TYPE_{type_name}", "dims": dims or [1]})
        if not dims:  # dims may not be empty: one element, of a shape without axes
            rows[-1]["reshape"] = {"shape": []}
    return rows


GENERATE_TASK = "IMAGE_TEXT_TO_TEXT"

IMAGE_KEYS = ("image", "image_input", "images")
"""Keys for the image as different backends name it; a body has one: an image in base64, or a list with one."""

_OWN_KEYS = ("id", "text_input", "parameters", *IMAGE_KEYS)


class GenerateBody(msgspec.Struct):
    """Request, for the OpenAPI document; other keys of the body count as parameters."""

    text_input: str
    image: str
    id: str | None = None
    parameters: dict[str, Any] | None = None


class GenerateAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Response, or a chunk of one; `inference_id` and `stored` are in the last chunk."""

    model_name: str
    model_version: str
    id: str
    text_output: str
    inference_id: str = ""
    stored: bool = True
    """Whether the store had room for the inference."""


def generate_operations(serving: Serving, _: WireOptions) -> list[Operation]:
    """Make the endpoints of the extension "generate": a prompt and an image in, text out, at once or as a stream.

    It equals one prompt of `prompts` in chariot-v2-kserve, in the form that clients of language models use.
    """
    generate, stream = partial(_generate, serving), partial(_generate_stream, serving)
    path, summary = f"{_MODEL}/generate", "Answer a prompt about an image"
    endpoint = partial(post_endpoint, need="infer", request_type=GenerateBody)
    events = partial(endpoint, response_media_type="text/event-stream")
    return [
        endpoint(path, generate, summary, response_type=GenerateAnswer),
        events(f"{path}_stream", stream, f"{summary}, as events"),
    ]


def parse_generate(http_request: HttpRequest) -> InferRequest:
    """Parse a request to generate text."""
    body = parse_object(http_request.body, "a body")
    text, given_id = body.get("text_input"), body.get("id")
    if not isinstance(text, str):
        raise InvalidRequest(f"expected text_input to be a text, got {quoted(text, 60)}")
    if given_id is not None and not isinstance(given_id, str):
        raise InvalidRequest(f"expected id to be a text, got {quoted(given_id, 60)}")
    parameters = {key: value for key, value in body.items() if key not in _OWN_KEYS}
    parameters |= take_parameters(body)
    max_tokens = parameters.pop("max_tokens", None)
    if max_tokens is not None and parameters.setdefault("max_new_tokens", max_tokens) != max_tokens:
        raise InvalidRequest(
            "expected either parameters.max_tokens or parameters.max_new_tokens, got both"
        )
    timeout = {"timeout": parameters.pop("timeout")} if "timeout" in parameters else {}
    parameters["prompt"] = text
    return InferRequest(
        model=http_request.path_parameters["name"],
        version=http_request.path_parameters["version"],
        id=request_id(http_request, given_id),
        inputs=[Tensor("image", "BYTES", (1,), [_image(body)], parameters=parameters)],
        protocol="generate",
        parameters=timeout,
    )


def _image(body: dict[str, Any]) -> str:
    values = [body[key] for key in IMAGE_KEYS if body.get(key) is not None]
    images = values[0] if len(values) == 1 and isinstance(values[0], list) else values
    if len(images) != 1 or not isinstance(images[0], str):
        raise InvalidRequest(f"expected image to be one image in base64, got {quoted(images, 60)}")
    return images[0]


def _request(serving: Serving, http_request: HttpRequest) -> InferRequest:
    try:
        request = parse_generate(http_request)
    except InvalidRequest:
        named = http_request.path_parameters
        check_model_exists(serving, named["name"], named["version"])
        raise
    info = serving.model_info(request.model, request.version)
    if info.task != GENERATE_TASK:
        raise InvalidRequest(
            f"expected a model of the task {GENERATE_TASK} for generate, got {info.name!r} of {info.task}"
        )
    return request


def _generate(serving: Serving, http_request: HttpRequest) -> HttpResponse:
    response = serving.infer(_request(serving, http_request))
    (prediction,) = response.outputs[0].data[0]
    body = GenerateAnswer(response.model, response.version, response.id, prediction.answer)
    return HttpResponse(msgspec.json.encode(body), headers=store_headers(response))


def _generate_stream(serving: Serving, http_request: HttpRequest) -> HttpResponse:
    chunks = serving.stream(_request(serving, http_request))
    first_chunk = next(chunks)  # errors of the request are raised here, before the status is sent
    headers = [(b"cache-control", b"no-cache")]
    return HttpResponse(
        _events(first_chunk, chunks), media_type=b"text/event-stream", headers=headers
    )


def _events(first_chunk: InferChunk, chunks: Iterator[InferChunk]) -> Iterator[bytes]:
    """Encode each chunk as an event; an error is the last one."""
    try:
        for chunk in chain([first_chunk], chunks):
            body = GenerateAnswer(
                model_name=chunk.model,
                model_version=chunk.version,
                id=chunk.id,
                text_output=chunk.text,
                inference_id=",".join(chunk.inference_ids),
                stored=chunk.stored,
            )
            yield b"data: %b\n\n" % msgspec.json.encode(body)
    except Exception as error:  # noqa: BLE001 - the status is sent: every later error is an event
        yield b"data: %b\n\n" % error_response(error)[1]

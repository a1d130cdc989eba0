"""Triton's extensions of V2 over REST: model repository, statistics, model configuration.

Source: triton-inference-server/server, docs/protocol/extension_*.md.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import msgspec
from pybase64 import b64decode

from quadriga.proto.errors import InvalidRequest, Unsupported
from quadriga.proto.http.operations import (
    HttpRequest,
    HttpResponse,
    Operation,
    WireOptions,
    json_response,
    named_model,
    post_endpoint,
    state_endpoint,
)
from quadriga.proto.json_text import Read, parse_json, parse_object
from quadriga.proto.messages import Duration, ModelInfo, ModelStatistics, Serving

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

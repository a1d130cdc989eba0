"""Triton's extensions of V2 over REST: model repository, statistics, model configuration.

Source: triton-inference-server/server, docs/protocol/extension_{model_repository,statistics,
model_configuration,trace,logging,shared_memory}.md.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
import pybase64

from proto.errors import InvalidRequest, Unsupported
from proto.messages import BatchStatistics, Duration, ModelInfo, ModelStatistics, Serving
from proto.operations import Answer, Call, Operation, Options

Body = TypeVar("Body")

_MODEL = "/v2/models/{name}[/versions/{version}]"
_REPOSITORY = "/v2/repository"
_MEMORY = ("systemsharedmemory", "cudasharedmemory")

_STATES = {"FAILED": "UNAVAILABLE", "UNLOADED": "UNAVAILABLE"}
"""Triton's word for a state, where it has another one."""

_PHASES = ("queue", "compute_input", "compute_infer", "compute_output")


class IndexBody(msgspec.Struct):
    """What a client asks of the index."""

    ready: bool | None = None


class LoadParameters(msgspec.Struct, forbid_unknown_fields=True):
    """Parameters of a load, without its files: those are parameters `file:<path>`, in base64."""

    config: str | dict[str, Any] | None = None


class LoadBody(msgspec.Struct):
    """What a client sends along with a load."""

    parameters: dict[str, Any] | None = None


class UnloadParameters(msgspec.Struct, forbid_unknown_fields=True):
    """Parameters of an unload; no model depends on another one here."""

    unload_dependents: bool | None = None


class UnloadBody(msgspec.Struct):
    """What a client sends along with an unload."""

    parameters: UnloadParameters | None = None


def operations(serving: Serving, _: Options) -> list[Operation]:
    """Make the endpoints of the extensions, and those that say what is not offered."""
    model = f"{_REPOSITORY}/models/{{name}}"
    statistics = partial(_statistics, serving)
    return [
        Operation(
            "POST",
            f"{_REPOSITORY}/index",
            partial(_index, serving),
            "List the models of the repository and their states",
            in_thread=False,
            request_type=IndexBody,
        ),
        Operation(
            "POST",
            f"{model}/load",
            partial(_load, serving),
            "Load a model, or load it again",
            beside=True,
            request_type=LoadBody,
        ),
        Operation(
            "POST",
            f"{model}/unload",
            partial(_unload, serving),
            "Unload a model",
            beside=True,
            request_type=UnloadBody,
        ),
        Operation("GET", "/v2/models/stats", statistics, "Count and time all models", beside=True),
        Operation("GET", f"{_MODEL}/stats", statistics, "Count and time a model", beside=True),
        Operation(
            "GET",
            f"{_MODEL}/config",
            partial(_config, serving),
            "Describe a model as Triton's configuration does",
            in_thread=False,
        ),
        *_not_offered(),
    ]


def _not_offered() -> list[Operation]:
    """Make the endpoints that Triton has and this server has not: 501, with what is so."""
    other = (
        "models to be named without a repository, as there is one, got repository {repository!r}"
    )
    refused = [
        ("POST", f"{_REPOSITORY}/{{repository}}/index", other),
        ("POST", f"{_REPOSITORY}/{{repository}}/models/{{name}}/load", other),
        ("POST", f"{_REPOSITORY}/{{repository}}/models/{{name}}/unload", other),
    ]
    for verb in ("GET", "POST"):
        trace = "no request for traces: this server records none"
        refused.append((verb, "/v2/trace/setting", trace))
        refused.append((verb, "/v2/models/{name}/trace/setting", trace))
        log = "no request for log settings: this server logs to standard error, from level INFO on"
        refused.append((verb, "/v2/logging", log))
    for memory in _MEMORY:
        tensors = "tensors in the request: this server reads no shared memory"
        refused.append(("GET", f"/v2/{memory}[/region/{{region}}]/status", tensors))
        refused.append(("POST", f"/v2/{memory}/region/{{region}}/register", tensors))
        refused.append(("POST", f"/v2/{memory}[/region/{{region}}]/unregister", tensors))
    return [
        Operation(verb, path, partial(_refuse, reason), "", in_thread=False)  # type: ignore[arg-type]  # verbs of the table above
        for verb, path, reason in refused
    ]


def _refuse(reason: str, call: Call) -> Answer:
    raise Unsupported(f"expected {reason.format(**call.path)}")


def _json(value: Any) -> Answer:
    return Answer(msgspec.json.encode(value))


def _read(body: bytes, kind: type[Body]) -> Body:
    """Read a body that may be empty."""
    try:
        return msgspec.json.decode(body.strip() or b"{}", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(
            f"expected the body to be empty or an object in JSON, got: {error}"
        ) from error


def _index(serving: Serving, call: Call) -> Answer:
    ready = _read(call.body, IndexBody).ready
    return _json(
        [
            {
                "name": status.name,
                "version": status.version,
                "state": _STATES.get(status.state, status.state),
                "reason": status.reason,
            }
            for status in serving.model_statuses()
            if status.state == "READY" or not ready
        ]
    )


def _load(serving: Serving, call: Call) -> Answer:
    """Load a model; KServe's clients read the answer, others its status."""
    name = str(call.path["name"])
    parameters = _read(call.body, LoadBody).parameters or {}
    config, files = parse_load(parameters)
    serving.load_model(name, config, files)
    return _json({"name": name, "load": True})


def parse_load(parameters: Mapping[str, Any]) -> tuple[dict[str, Any] | None, dict[str, bytes]]:
    """Read the parameters of a load.

    Args:
        parameters: `config`, JSON as a text or as it is, and `file:<path>`, base64 or bytes.

    Returns:
        The configuration, None where there is none; the files by their paths.

    Raises:
        InvalidRequest: A parameter is another one, or does not parse.
    """
    files = {
        key.removeprefix("file:"): _file(key, content)
        for key, content in parameters.items()
        if key.startswith("file:")
    }
    others = {key: value for key, value in parameters.items() if not key.startswith("file:")}
    try:
        config = msgspec.convert(others, LoadParameters).config
        if isinstance(config, str):
            config = msgspec.json.decode(config.strip() or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidRequest(
            f"expected parameters to be config, with an object in JSON, and file:<path>, got: {error}"
        ) from error
    return config, files


def _file(key: str, content: Any) -> bytes:
    if isinstance(content, bytes):
        return content
    try:
        return pybase64.b64decode(content, validate=True)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{key:.200}: expected a file in base64, got: {error}") from error


def _unload(serving: Serving, call: Call) -> Answer:
    _read(call.body, UnloadBody)
    name = str(call.path["name"])
    serving.unload_model(name)
    return _json({"name": name, "unload": True})


def _statistics(serving: Serving, call: Call) -> Answer:
    found = serving.statistics(call.path.get("name"), call.path.get("version"))
    return _json({"model_stats": [statistics_json(each) for each in found]})


def statistics_json(statistics: ModelStatistics) -> dict[str, Any]:
    """Write the statistics of one version of one model as Triton does."""
    nothing = Duration()
    return {
        "name": statistics.name,
        "version": statistics.version,
        "last_inference": statistics.last_inference_ms,
        "inference_count": statistics.inference_count,
        "execution_count": statistics.execution_count,
        "inference_stats": {
            **{name: getattr(statistics, name) for name in ("success", "fail", *_PHASES)},
            "cache_hit": nothing,
            "cache_miss": nothing,
        },
        "response_stats": {},
        "batch_stats": [_batch_json(each) for each in statistics.batches],
        "memory_usage": [],
    }


def _batch_json(batch: BatchStatistics) -> dict[str, Any]:
    return {"batch_size": batch.batch_size, **{name: getattr(batch, name) for name in _PHASES[1:]}}


def _config(serving: Serving, call: Call) -> Answer:
    return _json(config_json(serving.model_info(str(call.path["name"]), call.path["version"])))


def config_json(info: ModelInfo) -> dict[str, Any]:
    """Write a model's description as Triton's ModelConfig.

    Where all inputs and outputs leave their first axis open it is the batch's and stands in
    `max_batch_size`, otherwise in `dims`.

    Source: model_config.proto.
    """
    tensors = [*info.inputs, *info.outputs]
    batched = all(tensor.shape[:1] == (-1,) for tensor in tensors)
    return {
        "name": info.name,
        "platform": info.platform,
        "backend": info.platform.partition("_")[0],
        "version_policy": {"specific": {"versions": [int(version) for version in info.versions]}},
        "max_batch_size": info.max_batch if batched else 0,
        "input": _tensors_json(info.inputs, batched=batched),
        "output": _tensors_json(info.outputs, batched=batched),
    }


def _tensors_json(tensors: Sequence[Any], *, batched: bool) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for tensor in tensors:
        kind = "STRING" if tensor.datatype == "BYTES" else tensor.datatype
        dims = list(tensor.shape[1:] if batched else tensor.shape)
        rows.append({"name": tensor.name, "data_type": f"TYPE_{kind}", "dims": dims or [1]})
        if not dims:  # dims may not be empty: one element, of a shape without axes
            rows[-1]["reshape"] = {"shape": []}
    return rows

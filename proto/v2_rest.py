"""KServe V2 over REST: the endpoints.

Source: Open Inference Protocol, inference_rest.md; Triton's extensions where named.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from proto import v2_answers as answers
from proto.classification import infer
from proto.cloud_events import answering
from proto.errors import InvalidRequest, ModelNotReady
from proto.messages import Serving, TensorInfo
from proto.operations import Answer, Call, Operation, Options, ids_header
from proto.v2_envelope import InferBody, parse_infer, parse_raw, render_infer

_MODEL = "/v2/models/{name}[/versions/{version}]"

EXTENSIONS: tuple[str, ...] = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "parameters",
    "statistics",
)
"""What the server's metadata names: only what works."""

_JSON_BYTES = b"inference-header-content-length"


def operations(serving: Serving, options: Options) -> list[Operation]:
    """Make the endpoints of V2 over REST."""
    ready = partial(_server_ready, serving)
    metadata = {"name": "quadriga", "version": options.server_version, "extensions": EXTENSIONS}
    return [
        Operation(
            "POST",
            f"{_MODEL}/infer",
            answering(partial(answer_infer, serving, options), options),
            "Infer",
            request_type=InferBody,
            answer_type=answers.InferAnswer,
            compressed=True,
            binary=True,
        ),
        _look("/v2", lambda _: _json(metadata), "Describe the server", answers.ServerMetadata),
        _look(
            "/v2/health/live",
            lambda _: _json({"live": True}),
            "Tell whether the server runs",
            answers.ServerLive,
        ),
        _look("/v2/health/ready", ready, "Tell whether it is ready", answers.ServerReady),
        _look("/ready", ready, "Tell whether it is ready, for Chariot", answers.ServerReady),
        _look("/v2/models", partial(_models, serving), "List the models", answers.ModelNames),
        _look(_MODEL, partial(_model_metadata, serving), "Describe a model", answers.ModelMetadata),
        _look(
            f"{_MODEL}/ready",
            partial(_model_ready, serving),
            "Tell whether a model is ready",
            answers.ModelReady,
        ),
    ]


def _look(path: str, answer: Callable[[Call], Answer], summary: str, answer_type: Any) -> Operation:
    """Make an endpoint that only looks at state, and so does not wait for a thread."""
    return Operation("GET", path, answer, summary, in_thread=False, answer_type=answer_type)


def _json(value: Any, status: int = 200) -> Answer:
    return Answer(msgspec.json.encode(value), status)


def answer_infer(serving: Serving, options: Options, call: Call) -> Answer:
    """Answer a request to the model that `call.path` names."""
    request_id = call.headers.get(b"x-request-id", b"").decode("latin-1") or None
    name, version = str(call.path["name"]), call.path["version"]
    json_bytes = _json_bytes(call)
    if json_bytes == 0:
        info = serving.model_info(name, version)
        request = parse_raw(call.body, info, version, request_id)
    else:
        request = parse_infer(call.body, name, version, request_id, json_bytes)
    response = infer(serving, request)
    body, json_bytes = render_infer(request, response, options.not_finite)
    headers = ids_header(response)
    if json_bytes is None:
        return Answer(body, headers=headers)
    headers = [*headers, (_JSON_BYTES, str(json_bytes).encode())]
    return Answer(body, media_type=b"application/octet-stream", headers=headers)


def _json_bytes(call: Call) -> int | None:
    """Read how long the JSON of a body is; None where it is all of it."""
    written = call.headers.get(_JSON_BYTES)
    if written is None:
        return None
    length = int(written) if written.isdigit() and len(written) < 16 else -1
    if not 0 <= length <= len(call.body):
        raise InvalidRequest(
            f"expected Inference-Header-Content-Length to be 0 to {len(call.body)}, the length of the "
            f"body, got {written!r:.40}"
        )
    return length


def _server_ready(serving: Serving, _: Call) -> Answer:
    return _ready(serving.unready_reason(), {"status": "ready", "live": True, "ready": True})


def _models(serving: Serving, _: Call) -> Answer:
    return _json({"models": sorted({status.name for status in serving.model_statuses()})})


def _model_metadata(serving: Serving, call: Call) -> Answer:
    info = serving.model_info(str(call.path["name"]), call.path["version"])
    return _json(
        {
            "name": info.name,
            "versions": info.versions,
            "platform": info.platform,
            "inputs": _tensors_json(info.inputs),
            "outputs": _tensors_json(info.outputs),
            "properties": {"task": info.task},
        }
    )


def _model_ready(serving: Serving, call: Call) -> Answer:
    name = str(call.path["name"])
    try:
        info = serving.model_info(name, call.path["version"])
    except ModelNotReady as error:
        return _ready(str(error), {"name": name})
    return _ready(None, {"name": info.name, "ready": True})


def _tensors_json(tensors: Sequence[TensorInfo]) -> list[dict[str, Any]]:
    return [{"name": t.name, "datatype": t.datatype, "shape": t.shape} for t in tensors]


def _ready(reason: str | None, ready: Mapping[str, Any]) -> Answer:
    if reason is None:
        return _json(ready)
    return _json({**ready, "ready": False, "error": reason}, 400)

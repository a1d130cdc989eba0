"""KServe V2 over REST: parse, render and endpoints.

The same envelope carries chariot-v2-kserve (`proto.chariot`); which of the two a request is, the
model's task decides behind `Serving`.

Source: Open Inference Protocol, inference_rest.md.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from proto.datatypes import NAMES, array_from_json, texts_from_json
from proto.errors import InvalidRequest, ModelNotReady
from proto.http import Headers
from proto.messages import (
    InferRequest,
    InferResponse,
    RequestedOutput,
    Serving,
    Tensor,
    TensorInfo,
)
from proto.operations import Answer, Call, Operation

_MODEL = "/v2/models/{name}[/versions/{version}]"

EXTENSIONS: tuple[str, ...] = ()
"""What the server's metadata names: only what works."""

MAX_NAME_CHARACTERS = 1024
"""Of a request's id and an input's name, which are stored with each inference."""

MAX_IDS_HEADER_BYTES = 3072
"""A longer list of ids is in the outputs alone: proxies take 4 KiB of headers, clients 64 KiB a line."""


class _InputTensor(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    data: Any
    parameters: dict[str, Any] | None = None


class _RequestedOutput(msgspec.Struct):
    name: str
    parameters: dict[str, Any] | None = None


class _InferBody(msgspec.Struct):
    inputs: list[_InputTensor]
    id: str | None = None
    parameters: dict[str, Any] | None = None
    outputs: list[_RequestedOutput] | None = None


_DECODER = msgspec.json.Decoder(_InferBody)


def parse_infer(
    body: bytes, model: str, version: str | None, request_id: str | None
) -> InferRequest:
    """Read an inference request.

    Args:
        body: JSON.
        model: Name in the path.
        version: Version in the path.
        request_id: From the header `X-Request-ID`; the body's own `id` comes first.

    Raises:
        InvalidRequest: Naming the place in the body.
    """
    try:
        decoded = _DECODER.decode(body)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"expected a V2 inference request: {_plain_place(error)}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"expected a body in JSON: {error}") from error
    except RecursionError as error:
        raise InvalidRequest("expected a body in JSON, got one nested too deeply") from error
    for what, text in (("id", decoded.id), *(("name", tensor.name) for tensor in decoded.inputs)):
        if text is not None and len(text) > MAX_NAME_CHARACTERS:
            raise InvalidRequest(
                f"expected {what} of at most {MAX_NAME_CHARACTERS} characters, got {len(text)}"
            )
    if not decoded.inputs:
        raise InvalidRequest("expected inputs to hold at least one input, got none")
    return InferRequest(
        model=model,
        version=version,
        id=decoded.id if decoded.id is not None else request_id or str(uuid.uuid4()),
        inputs=[_tensor(number, tensor) for number, tensor in enumerate(decoded.inputs)],
        requested_outputs=[
            RequestedOutput(output.name, output.parameters or {})
            for output in decoded.outputs or ()
        ],
        parameters=decoded.parameters or {},
    )


def _tensor(number: int, tensor: _InputTensor) -> Tensor:
    where = f"inputs[{number}] ({tensor.name!r:.60})"
    if tensor.datatype not in NAMES:
        raise InvalidRequest(
            f"{where}: expected datatype to be one of {', '.join(NAMES)}, got {tensor.datatype!r:.40}"
        )
    data: Any
    if tensor.datatype == "BYTES":
        data, shape = texts_from_json(tensor.data, tensor.shape, where)
    else:
        data = array_from_json(tensor.data, tensor.datatype, tensor.shape, where)
        shape = data.shape
    return Tensor(tensor.name, tensor.datatype, shape, data, tensor.parameters or {})


def _plain_place(error: msgspec.ValidationError) -> str:
    """Say `at inputs[0].shape` where msgspec says "at `$.inputs[0].shape`"."""
    return str(error).replace("`$.", "`").replace("`$[", "`[").replace("`", "'")


def render_infer(response: InferResponse) -> bytes:
    """Write an inference response as JSON."""
    outputs = []
    for tensor in response.outputs:
        data = tensor.data.ravel().tolist() if isinstance(tensor.data, np.ndarray) else tensor.data
        output: dict[str, Any] = {
            "name": tensor.name,
            "shape": tensor.shape,
            "datatype": tensor.datatype,
            "data": data,
        }
        if tensor.parameters:
            output["parameters"] = tensor.parameters
        outputs.append(output)
    return msgspec.json.encode(
        {
            "model_name": response.model,
            "model_version": response.version,
            "id": response.id,
            "outputs": outputs,
        }
    )


def operations(serving: Serving, server_version: str) -> list[Operation]:
    """Make the endpoints of V2 over REST.

    Args:
        serving: The server behind.
        server_version: What the server's metadata says.
    """
    metadata = {"name": "quadriga", "version": server_version, "extensions": EXTENSIONS}
    return [
        Operation(
            "POST", f"{_MODEL}/infer", partial(_infer, serving), "Infer", request_type=_InferBody
        ),
        _look("/v2", lambda _: _json(metadata), "Describe the server"),
        _look("/v2/health/live", lambda _: _json({"live": True}), "Tell whether the server runs"),
        _look("/v2/health/ready", partial(_server_ready, serving), "Tell whether it is ready"),
        _look("/ready", partial(_server_ready, serving), "Tell whether it is ready, for Chariot"),
        _look("/v2/models", partial(_models, serving), "List the models"),
        _look(_MODEL, partial(_model_metadata, serving), "Describe a model"),
        _look(f"{_MODEL}/ready", partial(_model_ready, serving), "Tell whether a model is ready"),
    ]


def _look(path: str, answer: Callable[[Call], Answer], summary: str) -> Operation:
    """Make an endpoint that only looks at state, and so does not wait for a thread."""
    return Operation("GET", path, answer, summary, in_thread=False)


def _json(value: Any, status: int = 200) -> Answer:
    return Answer(msgspec.json.encode(value), status)


def _infer(serving: Serving, call: Call) -> Answer:
    request_id = call.headers.get(b"x-request-id", b"").decode("latin-1") or None
    name, version = str(call.path["name"]), call.path["version"]
    response = serving.infer(parse_infer(call.body, name, version, request_id))
    return Answer(render_infer(response), headers=ids_header(response))


def ids_header(response: InferResponse) -> Headers:
    """Name the stored inferences in a header, unless they are too many for one."""
    ids = ",".join(response.inference_ids).encode()
    return [(b"quadriga-inference-ids", ids)] if 0 < len(ids) <= MAX_IDS_HEADER_BYTES else []


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

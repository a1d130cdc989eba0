"""KServe V2 over REST: parse, render and routes.

The same envelope carries chariot-v2-kserve (`proto.chariot`); which of the two a request is, the
model's task decides behind `Serving`.

Source: Open Inference Protocol, inference_rest.md.
"""

import re
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
from litestar import MediaType, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp, Receive, Scope, Send

from proto.datatypes import NAMES, array_from_json, texts_from_json
from proto.errors import InvalidRequest, MethodNotAllowed, ModelNotReady
from proto.http import Headers, read_body, send_error, send_json
from proto.messages import InferRequest, InferResponse, ModelInfo, Serving, Tensor, TensorInfo

INFER_PATH = re.compile(r"/v2/models/(?P<name>[^/]+)(?:/versions/(?P<version>[^/]+))?/infer")
"""Where inference is asked for; the groups are the path's parameters."""

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
        requested_outputs=[output.name for output in decoded.outputs or ()],
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


def infer(
    serving: Serving, body: bytes, model: str, version: str | None, request_id: str | None
) -> tuple[bytes, Headers]:
    """Answer one inference request, from bytes to bytes; runs in a thread."""
    response = serving.infer(parse_infer(body, model, version, request_id))
    ids = ",".join(response.inference_ids).encode()
    headers = [(b"quadriga-inference-ids", ids)] if 0 < len(ids) <= MAX_IDS_HEADER_BYTES else []
    return render_infer(response), headers


def _tensors_json(tensors: Sequence[TensorInfo]) -> list[dict[str, Any]]:
    return [{"name": t.name, "datatype": t.datatype, "shape": t.shape} for t in tensors]


def _model_json(info: ModelInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "versions": info.versions,
        "platform": info.platform,
        "inputs": _tensors_json(info.inputs),
        "outputs": _tensors_json(info.outputs),
        "properties": {"task": info.task},
    }


def _ready(reason: str | None, ready: dict[str, Any]) -> Response[dict[str, Any]]:
    if reason is None:
        return Response(ready, media_type=MediaType.JSON)
    unready = {**ready, "ready": False, "error": reason}
    return Response(unready, status_code=400, media_type=MediaType.JSON)


def routes(serving: Serving, server_version: str) -> list[HTTPRouteHandler]:
    """Make the route handlers of V2 over REST, all but inference.

    Args:
        serving: The server behind.
        server_version: What the server's metadata says.
    """
    return [*_server_routes(serving, server_version), *_model_routes(serving)]


def _server_routes(serving: Serving, server_version: str) -> list[HTTPRouteHandler]:
    @get("/v2", sync_to_thread=False)
    def server_metadata() -> dict[str, Any]:
        return {"name": "quadriga", "version": server_version, "extensions": []}

    @get("/v2/health/live", sync_to_thread=False)
    def server_live() -> dict[str, bool]:
        return {"live": True}

    @get(["/v2/health/ready", "/ready"], sync_to_thread=False)
    def server_ready() -> Response[dict[str, Any]]:
        return _ready(serving.unready_reason(), {"status": "ready", "live": True, "ready": True})

    return [server_metadata, server_live, server_ready]


def _model_routes(serving: Serving) -> list[HTTPRouteHandler]:
    @get("/v2/models", sync_to_thread=False)
    def models() -> dict[str, list[str]]:
        return {"models": sorted({status.name for status in serving.model_statuses()})}

    @get(_model_paths(""), sync_to_thread=False)
    def model_metadata(name: str, version: str | None = None) -> dict[str, Any]:
        return _model_json(serving.model_info(name, version))

    @get(_model_paths("/ready"), sync_to_thread=False)
    def model_ready(name: str, version: str | None = None) -> Response[dict[str, Any]]:
        try:
            info = serving.model_info(name, version)
        except ModelNotReady as error:
            return _ready(str(error), {"name": name, "ready": True})
        return _ready(None, {"name": info.name, "ready": True})

    return [models, model_metadata, model_ready]


def infer_app(serving: Serving, max_body_bytes: int) -> ASGIApp:
    """Make the ASGI application for paths that match `INFER_PATH`.

    It stands beside Litestar's routes and not among them: they cost more than a small model.

    Args:
        serving: The server behind.
        max_body_bytes: Larger bodies are refused with 413.
    """

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope.get("method") != "POST":
                raise MethodNotAllowed(f"expected POST, got {scope.get('method')}", "POST")
            body = await read_body(scope, receive, max_body_bytes)
            path = scope["path_params"]
            request_id = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1") or None
            job = partial(infer, serving, body, path["name"], path["version"], request_id)
            answer, headers = await serving.run(job)
        except Exception as error:  # noqa: BLE001 - the edge: every error has an answer
            await send_error(send, error)
        else:
            await send_json(send, 200, answer, headers)

    return app


def _model_paths(end: str) -> list[str]:
    return [
        f"/v2/models/{{name:str}}{end}",
        f"/v2/models/{{name:str}}/versions/{{version:str}}{end}",
    ]

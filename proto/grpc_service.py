"""V2 over gRPC: the RPCs of `inference.GRPCInferenceService` and of MLServer's repository service.

Each is a plain function that fills the answer to a message.

Source: Open Inference Protocol, inference_grpc.md; Triton's extensions; MLServer and KServe where
they differ.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NoReturn

import grpc
import msgspec
from google.protobuf import json_format

from proto.classification import infer
from proto.errors import ModelNotReady, NotFound, ProtocolError, Unsupported, as_answered
from proto.grpc_messages import POOL, REPOSITORY_SERVICE, SERVICE, decoded, message
from proto.messages import InferResponse, Serving
from proto.operations import store_headers
from proto.v2_extensions import config_json, index_json, parse_load, statistics_json
from proto.v2_grpc import parse_infer, read_parameters, render_infer
from proto.v2_rest import EXTENSIONS, model_json

StreamForm = Literal["triton", "mlserver"]
"""Whose messages ModelStreamInfer answers; the request does not tell."""

MAX_DETAILS_BYTES = 2000
"""Of an error: details travel in a header, three bytes for most, and clients take 8 KiB of headers."""

SHUTTING_DOWN = "the server is shutting down"

_log = logging.getLogger("quadriga.grpc")

_Trailer = tuple[tuple[str, str], ...]
_Fill = Callable[[Serving, Any, Any], InferResponse | None]
"""Takes the server, the request and an empty answer to fill; gives what a model answered."""


class GrpcService:
    """Reads and writes messages in the pool of threads, and gives every error its status code.

    A generic handler of grpc. Its arguments are those of `GrpcServer`.
    """

    def __init__(
        self, serving: Serving, server_version: str, stream_form: StreamForm = "triton"
    ) -> None:
        self._serving = serving
        self._stream_form = stream_form
        self._closing = asyncio.Event()
        self._fills: dict[str, _Fill] = {
            **_FILLS,
            "ServerMetadata": partial(_server_metadata, server_version),
        }

    def service(self, details: Any) -> Any:
        """Give what answers a method; None where it is of another service."""
        _, _, path = details.method.partition("/")
        service, _, name = path.partition("/")
        if service not in (SERVICE, REPOSITORY_SERVICE):
            return None
        method = POOL.FindServiceByName(service).methods_by_name.get(name)
        if method is None:
            return grpc.stream_stream_rpc_method_handler(partial(_not_offered, name))
        if name == "ModelStreamInfer":
            return grpc.stream_stream_rpc_method_handler(self._stream)
        return grpc.unary_unary_rpc_method_handler(partial(self._unary, method))

    def close(self) -> None:
        """Refuse new requests, and end streams once their current one is answered."""
        self._closing.set()

    async def _unary(self, method: Any, body: bytes, context: Any) -> bytes:
        job = partial(self._answer, method, body)
        try:
            if self._closing.is_set():
                raise ModelNotReady(SHUTTING_DOWN)
            answer, trailer = await self._serving.run(job) if method.name in _IN_THREAD else job()
        except Exception as error:  # noqa: BLE001 - the edge: every error has a status
            await _abort(context, error)
        if trailer:
            context.set_trailing_metadata(trailer)
        return answer

    def _answer(self, method: Any, body: bytes) -> tuple[bytes, _Trailer]:
        """Read, answer and write; gives the bytes, and what became of the inferences in the store."""
        asked = decoded(message(method.input_type), body)
        answer = message(method.output_type)()
        response = self._fills[method.name](self._serving, asked, answer)
        headers = [] if response is None else store_headers(response)
        trailer = tuple((name.decode(), value.decode()) for name, value in headers)
        return answer.SerializeToString(), trailer

    async def _stream(self, _: object, context: Any) -> None:
        """Answer requests one after the other, until the client ends or the server does."""
        closing = asyncio.ensure_future(self._closing.wait())
        reading: Any = closing
        try:
            while True:
                reading = asyncio.ensure_future(context.read())
                await asyncio.wait((reading, closing), return_when=asyncio.FIRST_COMPLETED)
                if not reading.done():
                    await _abort(context, ModelNotReady(SHUTTING_DOWN))
                body = reading.result()
                if body is grpc.aio.EOF:
                    return
                try:
                    answer = await self._serving.run(partial(self._stream_answer, body))
                except Exception as error:  # noqa: BLE001 - the edge: every error has an answer
                    if self._stream_form == "mlserver":
                        await _abort(context, error)
                    failed = message("ModelStreamInferResponse")(error_message=_status(error)[1])
                    answer = failed.SerializeToString()
                await context.write(answer)
        finally:
            reading.cancel()
            closing.cancel()

    def _stream_answer(self, body: bytes) -> bytes:
        """Answer one request of a stream; in Triton's form its error is an answer too."""
        asked = decoded(message("ModelInferRequest"), body)
        answer = message("ModelStreamInferResponse")()
        filled = answer.infer_response
        try:
            _infer(self._serving, asked, filled)
        except ProtocolError as error:
            if self._stream_form == "mlserver":
                raise
            answer.error_message = _status(error)[1]
            filled.Clear()
            filled.id = asked.id
        if asked.parameters["triton_enable_empty_final_response"].bool_param:
            filled.parameters["triton_final_response"].bool_param = True
        written = filled if self._stream_form == "mlserver" else answer
        return bytes(written.SerializeToString())


async def _not_offered(name: str, _: object, context: Any) -> None:
    await _abort(context, Unsupported(f"expected an RPC that this server offers, got {name!r:.80}"))


def _status(error: Exception) -> tuple[Any, str]:
    """Give the status code and details of an error; a fault of ours says no more than that."""
    error = as_answered(error)
    if not isinstance(error, ProtocolError):
        _log.error("a request failed by a fault of the server", exc_info=error)
        return grpc.StatusCode.INTERNAL, "the server's log has the reason"
    text = str(error).encode(errors="replace")
    if len(text) > MAX_DETAILS_BYTES:
        text = text[: MAX_DETAILS_BYTES - 3] + b"..."
    return grpc.StatusCode[error.grpc_code], text.decode(errors="ignore")


async def _abort(context: Any, error: Exception) -> NoReturn:
    await context.abort(*_status(error))
    raise AssertionError from error  # abort has raised


def _write(answer: Any, value: Any) -> None:
    """Fill an answer with what REST answers in JSON, as far as its message has the fields."""
    json_format.Parse(msgspec.json.encode(value), answer, ignore_unknown_fields=True)


def _infer(serving: Serving, asked: Any, answer: Any) -> InferResponse:
    response = infer(serving, parse_infer(asked))
    render_infer(response, answer, raw=bool(asked.raw_input_contents))
    return response


def _server_live(_: Serving, __: Any, answer: Any) -> None:
    answer.live = True


def _server_ready(serving: Serving, _: Any, answer: Any) -> None:
    answer.ready = serving.unready_reason() is None


def _model_ready(serving: Serving, asked: Any, answer: Any) -> None:
    try:
        serving.model_info(asked.name, asked.version or None)
        answer.ready = True
    except (ModelNotReady, NotFound):
        answer.ready = False


def _server_metadata(version: str, _: Serving, __: Any, answer: Any) -> None:
    answer.name, answer.version = "quadriga", version
    answer.extensions.extend(dict.fromkeys((*EXTENSIONS, "model_configuration")))


def _model_metadata(serving: Serving, asked: Any, answer: Any) -> None:
    info = serving.model_info(asked.name, asked.version or None)
    _write(answer, model_json(info))


def _model_config(serving: Serving, asked: Any, answer: Any) -> None:
    info = serving.model_info(asked.name, asked.version or None)
    _write(answer, {"config": config_json(info)})


def _model_statistics(serving: Serving, asked: Any, answer: Any) -> None:
    found = serving.statistics(asked.name or None, asked.version or None)
    _write(answer, {"model_stats": list(map(statistics_json, found))})


def _repository_index(serving: Serving, asked: Any, answer: Any) -> None:
    _write(answer, {"models": index_json(serving, ready=asked.ready)})


def _repository_load(serving: Serving, asked: Any, answer: Any) -> None:
    """Load a model; Triton's parameters are `config`, in JSON, and `file:<path>`, with the contents."""
    config, files = parse_load(read_parameters(asked.parameters, "the request"))
    answer.model_name = _model_name(asked)
    serving.load_model(answer.model_name, config, files)
    answer.isLoaded = True


def _repository_unload(serving: Serving, asked: Any, answer: Any) -> None:
    answer.model_name = _model_name(asked)
    serving.unload_model(answer.model_name)
    answer.isUnloaded = True


def _model_name(asked: Any) -> str:
    """Name the model of a repository request: KServe's only field is Triton's repository name."""
    name: str = asked.model_name or asked.repository_name
    return name


_FILLS: dict[str, _Fill] = {
    "ServerLive": _server_live,
    "ServerReady": _server_ready,
    "ModelReady": _model_ready,
    "ModelMetadata": _model_metadata,
    "ModelInfer": _infer,
    "ModelConfig": _model_config,
    "ModelStatistics": _model_statistics,
    "RepositoryIndex": _repository_index,
    "RepositoryModelLoad": _repository_load,
    "RepositoryModelUnload": _repository_unload,
}

_IN_THREAD = ("ModelInfer", "RepositoryModelLoad", "RepositoryModelUnload")
"""The others only look at state, and do not wait for a thread."""

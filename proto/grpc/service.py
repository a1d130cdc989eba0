"""V2 over gRPC: the RPCs of `inference.GRPCInferenceService` and of MLServer's repository service, and who may call them.

A call begins with its headers, and its message may never come: calls that wait for one must not hold the places of others.
It lasts until its answer has left, even a refusal: clients that have no key and read no answer would hold the places
of all others, too. So only calls of callers with a key are counted. Those of strangers are few while they wait.

Source: Open Inference Protocol, inference_grpc.md; Triton's extensions; MLServer and KServe where
they differ.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from inspect import isasyncgenfunction
from typing import Any, NoReturn

import grpc
import msgspec
import numpy as np
import numpy.typing as npt
from google.protobuf import json_format
from google.protobuf.message import DecodeError

from quadriga.proto import datatypes, idempotency
from quadriga.proto.access import Gate, Need, Quota, admit, headers_by_name
from quadriga.proto.datatypes import NUMPY_TYPES, elements_as_bytes
from quadriga.proto.errors import (
    Forbidden,
    InvalidRequest,
    LimitReached,
    ModelNotReady,
    NotFound,
    Overloaded,
    ProtocolError,
    TooManyCalls,
    Unsupported,
    WaitTooLong,
    translate_recursion_error,
)
from quadriga.proto.grpc.http2 import UNASKED_BYTES
from quadriga.proto.grpc.messages import (
    POOL,
    REPOSITORY_SERVICE,
    SERVICE,
    check_model_name,
    decode_message,
    message_class,
    read_model_name,
    read_names,
    response_class,
)
from quadriga.proto.http.asgi import log_fault
from quadriga.proto.http.intake import Intake
from quadriga.proto.http.operations import store_headers
from quadriga.proto.http.v2 import EXTENSIONS, infer_and_classify, model_metadata
from quadriga.proto.http.v2_extensions import (
    config_json,
    index_json,
    no_other_repository,
    parse_load,
    statistics_json,
)
from quadriga.proto.json_text import parse_json
from quadriga.proto.messages import (
    InferRequest,
    InferResponse,
    ModelInfo,
    RequestedOutput,
    Result,
    Serving,
    Tensor,
    check_input_count,
    check_model_exists,
    check_name,
    first_request_id,
    refuse_shared_memory,
)
from quadriga.proto.request import (
    CALL_LIMIT,
    REQUEST_ID_HEADER,
    TRACEPARENT,
    TRACEPARENT_HEADER,
    Accounting,
    Deadline,
    RequestContext,
    current_caller,
    current_request,
    error_request_id,
    identify_again,
    is_audited,
    new_request_id,
    note_target,
    outcome_of_error,
    set_current_request,
)
from quadriga.quoting import quoted

REQUEST_ID_NAME = REQUEST_ID_HEADER.decode()
"""Metadata with the id of a call, of the client's and in the trailing ones."""

HEALTH_SERVICE = "grpc.health.v1.Health"
REFLECTION_SERVICE = "grpc.reflection.v1alpha.ServerReflection"

_REPOSITORY_NEEDS: dict[str, Need] = {
    "RepositoryIndex": "key",
    "RepositoryModelLoad": "operate",
    "RepositoryModelUnload": "operate",
}
_NEEDS_BY_SERVICE: dict[str, dict[str, Need]] = {
    SERVICE: {
        "ServerLive": "nothing",
        "ServerReady": "nothing",
        "ServerMetadata": "key",
        "ModelReady": "infer",
        "ModelMetadata": "infer",
        "ModelInfer": "infer",
        "ModelStreamInfer": "infer",
        "ModelConfig": "infer",
        "ModelStatistics": "infer",
        **_REPOSITORY_NEEDS,
    },
    REPOSITORY_SERVICE: _REPOSITORY_NEEDS,
    HEALTH_SERVICE: {"Check": "nothing", "Watch": "nothing", "List": "key"},
    REFLECTION_SERVICE: {"ServerReflectionInfo": "key"},
}

NEEDS: dict[str, Need] = {
    f"/{service}/{name}": need
    for service, methods in _NEEDS_BY_SERVICE.items()
    for name, need in methods.items()
}
"""What a caller must have, by the full name of an RPC; an RPC that is not listed needs the rights of an administrator."""


STREAM = f"/{SERVICE}/ModelStreamInfer"
"""Call whose messages count as requests, each by itself."""

_INFERENCES = (f"/{SERVICE}/ModelInfer", STREAM)

MAX_PROBE_BYTES = 4096
"""Size of a message of an RPC that needs no key, of health and of reflection: names of models and services are shorter.

Reflection repeats the message in its answer.
"""

PLACE_AFTER_S = 0.5
"""Time after which a call whose answer has not left holds a place of its key again."""

MAX_STRANGERS = 64
"""Calls of callers without a key that wait for their message at a time, and watches of theirs."""

_PROBES = (f"/{HEALTH_SERVICE}/", f"/{REFLECTION_SERVICE}/")


def _metadata_by_name(pairs: Sequence[tuple[str, str | bytes]] | None) -> dict[bytes, bytes]:
    """Return the metadata of a call as headers of HTTP, by their names."""
    by_name = headers_by_name(
        [
            (key.encode(), value if isinstance(value, bytes) else value.encode())
            for key, value in pairs or ()
        ]
    )
    # A browser sends it by itself, for a page of anybody; over gRPC nothing says whose page it is.
    by_name.pop(b"cookie", None)
    return by_name


class CallServices:
    """What all calls of a server share: those under way, and those that wait for a message; used on one event loop.

    Where too many wait, the one that has waited longest gives its place to the next: who sends a message sends it at
    once. Callers without a key take no places of others.

    Args:
        intake: Has the time that a message may take to arrive, and counts those that do not.
        max_calls: Calls at a time of callers with a key; of three quarters of them the message may be awaited.
        accounting: Takes note of the calls.
    """

    def __init__(
        self, intake: Intake, max_calls: int = 1000, accounting: Accounting | None = None
    ) -> None:
        self.intake = intake
        self.accounting = accounting or Accounting()
        self._max_calls = max_calls
        self._calls = 0
        self._max_waits = max(1, max_calls * 3 // 4)
        self._max_strangers = min(MAX_STRANGERS, self._max_waits)
        self._callers: dict[Any, None] = {}
        self._strangers: dict[Any, None] = {}

    def begin(self, context: Any) -> None:
        """Count a call until its answer has left, if its caller has a key.

        Raises:
            TooManyCalls: There are as many as may be.
        """
        if not current_caller().rights:
            return
        if self._calls >= self._max_calls:
            text = f"expected at most {self._max_calls} calls at a time, got more: the limit is the setting max_connections"
            raise TooManyCalls(text)
        self._calls += 1
        context.add_done_callback(self._count_end)

    def _count_end(self, _: Any) -> None:
        self._calls -= 1

    async def read(self, context: Any, *, is_limited: bool = True) -> Any:
        """Read the next message of a call; `grpc.aio.EOF` if there are no more.

        Args:
            context: Context of the call.
            is_limited: Whether the message has a limited time to arrive: those of a stream come when there is something
                to ask.

        Raises:
            InvalidRequest: It is no message of the RPC.
            TooSlow: It does not arrive in time.
            Overloaded: Its place is needed for another call.
        """
        has_key = bool(current_caller().rights)
        waits = self._callers if has_key else self._strangers
        maximum = self._max_waits if has_key else self._max_strangers
        if len(waits) >= maximum:
            self.intake.displaced += 1
            text = f"expected at most {maximum} calls that wait for their message, got more"
            longest = next(iter(waits))
            del waits[longest]
            longest.end_wait(Overloaded(text))
        waits[context] = None
        try:
            return await context.read(self.intake.body_timeout_s if is_limited else math.inf)
        except DecodeError as error:
            raise InvalidRequest("expected a message of the RPC, got other bytes") from error
        finally:
            waits.pop(context, None)


class AccessHandler:
    """Handler of all calls: refuses those whose caller has not what the RPC needs, and takes note of their ends.

    It does so before their message is read. A call counts for its key from then on, whenever its message arrives, which has a
    limited time. To the code that adds services it looks like a server.
    """

    def __init__(self, gate: Gate, shared: CallServices) -> None:
        self._gate = gate
        self._shared = shared
        self._handlers: dict[str, Any] = {}

    def add_generic_rpc_handlers(self, _: object) -> None:
        """Add none: each method of a service is registered."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Add the methods of a service."""
        self._handlers |= {f"/{service}/{name}": handler for name, handler in handlers.items()}

    def begin(self, method: str, pairs: Sequence[tuple[str, str | bytes]]) -> "_Call | None":
        """Begin a call with some metadata, by the handler of its RPC or to refuse it; None if there is no such RPC."""
        metadata, identify = _metadata_by_name(pairs), self._gate.identify
        request = RequestContext(
            id=error_request_id(metadata.get(REQUEST_ID_HEADER)),
            method="RPC",
            path=method,
            route=method,
            identify=partial(identify, metadata.get),
            need=NEEDS.get(method, "admin"),
            protocol="grpc" if method in _INFERENCES else "state",
        )
        set_current_request(request)  # each call has a task of its own
        caller = request.caller = identify(metadata.get)
        call = _Call(self._shared, request, metadata.get(TRACEPARENT_HEADER))
        try:
            admit(caller, request.need)
            if call.quota is not None:
                call.quota.check()
            if is_audited(request.need, "RPC"):
                self._shared.accounting.audit.check()
        except ProtocolError as error:
            call.refusal = error
            return call
        if handler := self._handlers.get(method) or _not_offered(method):
            call.answer_by(handler)
            return call
        self._shared.accounting.count_unread("client_error")
        return None


class _Call:
    """One call, from its arrival to its end."""

    def __init__(
        self, shared: CallServices, request: RequestContext, traceparent: bytes | None
    ) -> None:
        self._shared = shared
        self._request = request
        self._traceparent = traceparent
        self._respond: Callable[[Any], Awaitable[Any]]
        self.read_message: Callable[[bytes], Any] | None = None
        self.write_message: Callable[[Any], bytes] | None = None
        self.refusal: ProtocolError | None = None
        """Why the call is refused; None for one that is answered."""
        self.quota: Quota | None = None if request.need == "nothing" else request.caller.quota
        self._holds_place = False
        """Whether the call holds a place of its key."""
        self._place_timer: asyncio.TimerHandle | None = None

    def answer_by(self, handler: Any) -> None:
        """Let a handler of grpc answer the call, whose messages are read here."""
        self.read_message = handler.request_deserializer
        self.write_message = handler.response_serializer
        if answer := handler.unary_unary or handler.unary_stream:
            self._respond = partial(self._answer_message, answer)
        elif isasyncgenfunction(handler.stream_stream):
            self._respond = partial(self._answer_messages, handler.stream_stream)
        else:
            self._respond = partial(handler.stream_stream, None)

    async def answer(self, context: Any) -> Any:
        """Answer the call, and return the message that is left to send; its line of the audit log is written before."""
        request, accounting = self._request, self._shared.accounting
        request.address = context.peer().rpartition(":")[0].strip("[]")
        if request.need == "nothing" or request.path.startswith(_PROBES):
            context.max_message_bytes = MAX_PROBE_BYTES
        self._begin(is_refused=self.refusal is not None)
        context.set_trailing_metadata(call_metadata(request))
        context.add_done_callback(self._finish)
        try:
            await self._take_place(context)
            response = await self._respond(context)
        except BaseException as error:
            self._leave_place()
            if isinstance(error, grpc.aio.AbortError) and not request.outcome:
                request.outcome = "client_error"  # a service of grpc's own refused it
            accounting.answer(request, request.status or "no answer")
            accounting.end(request, error)
            if isinstance(error, grpc.aio.AbortError):  # grpc keeps it with the call
                # Its frames, and those of what caused it, hold the message: a cycle, in which that would stay.
                error.__context__ = None
                raise error.with_traceback(None) from None
            raise
        request.bytes_out = len(response) if isinstance(response, bytes) else 0
        accounting.answer(request, "OK")
        accounting.count(request, "success")
        accounting.end(request)
        # Its client may have the answer, and ask again, before the call is over.
        self._leave_place()
        if self.quota is not None and request.bytes_out > UNASKED_BYTES:
            loop = asyncio.get_running_loop()
            self._place_timer = loop.call_later(PLACE_AFTER_S, self._hold_place, self.quota)
        return response

    def _begin(self, *, is_refused: bool) -> None:
        """Begin to take note of the call; of a stream that is answered, only its messages are requests."""
        self._request.is_noted = is_refused or self._request.path != STREAM
        if self._request.is_noted:
            self._shared.accounting.begin(self._request, self._traceparent)

    async def _take_place(self, context: Any) -> None:
        """Count the call for its key and among all calls; one that may not be answered ends."""
        try:
            if self.refusal is not None:
                raise self.refusal
            self._shared.begin(context)
            if self.quota is not None:
                self.quota.begin()
                self._holds_place = True
        except ProtocolError as error:
            self.refusal = None  # a cycle, in which the call would stay
            if not self._request.is_noted:
                self._begin(is_refused=True)
            await _abort(context, error)

    def _finish(self, _: Any) -> None:
        """Note that the call is over: its answer has left, or never will."""
        if self._place_timer is not None:
            self._place_timer.cancel()
        self._leave_place()

    def _hold_place(self, quota: Quota) -> None:
        self._holds_place = True
        quota.resume()

    def _leave_place(self) -> None:
        if self._holds_place and self.quota is not None:
            self._holds_place = False
            self.quota.end()

    async def _answer_message(
        self, answer: Callable[[Any, Any], Awaitable[Any]], context: Any
    ) -> Any:
        """Answer the only message of the call."""
        try:
            message = await self._shared.read(context)
            if message is grpc.aio.EOF:
                raise InvalidRequest("expected a message, got the end of the call")
            self._request.bytes_in = len(message) if isinstance(message, bytes) else 0
        except ProtocolError as error:
            await _abort(context, error)
        return await answer(message, context)

    async def _answer_messages(
        self, answer: Callable[[Any, Any], AsyncIterator[Any]], context: Any
    ) -> None:
        """Answer the messages of the call one after the other."""

        async def messages() -> AsyncIterator[Any]:
            while (message := await self._shared.read(context)) is not grpc.aio.EOF:
                yield message

        try:
            async for response in answer(messages(), context):
                await context.write(response)
        except ProtocolError as error:
            await _abort(context, error)


def call_metadata(request: RequestContext) -> tuple[tuple[str, str], ...]:
    """Return the trailing metadata that name a call: its id, and the trace that it is part of."""
    if request.trace is None:
        return ((REQUEST_ID_NAME, request.id),)
    return ((REQUEST_ID_NAME, request.id), (TRACEPARENT, request.trace.traceparent))


def error_metadata(error: Exception) -> tuple[tuple[str, str], ...]:
    """Return the trailing metadata that tells a client when to try again, and which limit it has reached."""
    if not isinstance(error, Overloaded | LimitReached):
        return ()
    limit = error.headers if isinstance(error, LimitReached) else ()
    headers = [(name.decode(), value.decode()) for name, value in limit]
    return (("retry-after", str(error.retry_after_s)), *headers)


CONTENTS: dict[str, str] = {
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    **{
        kind: f"{kind.lower()}_contents"
        for kind in ("BOOL", "INT64", "UINT64", "FP32", "FP64", "BYTES")
    },
}
"""Field of typed contents by datatype; FP16 has none."""

JSON_PARAMETERS = ("prompts", "tiling")
"""Parameters that are lists or objects, and so come as JSON texts. (`metadata` is one everywhere.)"""

_WIDE: dict[str, npt.DTypeLike] = {"int_contents": np.int32, "uint_contents": np.uint32}


def _light_bytes(body: bytes) -> int | None:
    """Return the size of a request whose work follows from it; None for one with texts, which may be images."""
    return None if b"BYTES" in body else len(body)


def parse_infer(message: Any, call_id: str = "") -> InferRequest:
    """Parse an inference request, a `ModelInferRequest`; without an id of its own it has that of its call."""
    if not message.inputs:
        raise InvalidRequest("inputs is empty: at least one input is required")
    check_input_count(len(message.inputs))
    numbered = enumerate(message.inputs)
    located = [
        (tensor, f"inputs[{index}] ({quoted(tensor.name, 60)})") for index, tensor in numbered
    ]
    for tensor, location in located:
        refuse_shared_memory(tensor.parameters, location)
    for index, output in enumerate(message.outputs):
        refuse_shared_memory(output.parameters, f"outputs[{index}] ({quoted(output.name, 60)})")
    raws: Sequence[bytes | None] = message.raw_input_contents or [None] * len(message.inputs)
    if len(raws) != len(message.inputs):
        raise InvalidRequest(
            f"expected raw_input_contents of all {len(message.inputs)} inputs or of none, got {len(raws)}"
        )
    return InferRequest(
        model=message.model_name,
        version=message.model_version or None,
        id=first_request_id(message.id, call_id),
        inputs=[
            _tensor(tensor, raw, location)
            for (tensor, location), raw in zip(located, raws, strict=True)
        ],
        requested_outputs=[
            RequestedOutput(
                output.name, read_parameters(output.parameters, f"output {output.name!r}")
            )
            for output in message.outputs
        ],
        parameters=read_parameters(message.parameters, "the request"),
        protocol="v2-grpc",
        has_text_numbers=True,
    )


def render_infer(response: InferResponse, message: Any, *, raw: bool) -> None:
    """Write an inference response to an empty `ModelInferResponse`, of `response_class`.

    Tensors are written as bytes if `raw`, or if any of them has no typed contents.
    """
    message.model_name, message.model_version = response.model, response.version
    message.id = response.id
    raw = raw or any(tensor.datatype not in CONTENTS for tensor in response.outputs)
    for tensor in response.outputs:
        output = message.outputs.add(
            name=tensor.name, datatype=tensor.datatype, shape=map(int, tensor.shape)
        )
        _set_parameters(output.parameters, tensor.parameters)
        if raw:
            message.raw_output_contents.append(datatypes.to_raw(tensor))
        elif isinstance(tensor.data, np.ndarray):
            getattr(output.contents, CONTENTS[tensor.datatype]).extend(tensor.data.ravel().tolist())
        else:
            output.contents.bytes_contents.extend(elements_as_bytes(tensor.data))


def _tensor(tensor: Any, raw: bytes | None, location: str) -> Tensor:
    check_name("name", tensor.name)
    parameters = read_parameters(tensor.parameters, location)
    datatypes.check_datatype(tensor.datatype, location)
    filled: list[str] = []
    if tensor.HasField("contents"):
        filled = [field.name for field, _ in tensor.contents.ListFields()]
    if raw is not None:
        if filled:
            raise InvalidRequest(
                f"{location}: expected raw_input_contents or contents, got both ({filled[0]})"
            )
        data, shape = datatypes.from_raw(memoryview(raw), tensor.datatype, tensor.shape, location)
    else:
        data, shape = _typed(tensor, filled, location)
    return Tensor(tensor.name, tensor.datatype, shape, data, parameters=parameters)


def _typed(
    tensor: Any, filled: Sequence[str], location: str
) -> tuple[npt.NDArray[Any] | list[bytes], tuple[int, ...]]:
    """Read typed contents: return an array, or the elements of BYTES; and the shape."""
    name = CONTENTS.get(tensor.datatype)
    if name is None:
        raise InvalidRequest(
            f"{location}: expected {tensor.datatype} in raw_input_contents, got none: it has no contents"
        )
    if any(field != name for field in filled):
        raise InvalidRequest(
            f"{location}: expected {tensor.datatype} in contents.{name}, got {', '.join(filled)}"
        )
    values = getattr(tensor.contents, name)
    shape = datatypes.checked_shape(tensor.shape, len(values), location)
    if tensor.datatype == "BYTES":
        return list(values), shape
    array = np.fromiter(values, _WIDE.get(name, NUMPY_TYPES[tensor.datatype]), len(values))
    return datatypes.cast_exactly(array, tensor.datatype, location).reshape(shape), shape


def read_parameters(parameters: Mapping[str, Any], location: str) -> dict[str, Any]:
    """Read parameters, some of which are JSON texts; one without a value is None."""
    values: dict[str, Any] = {}
    for name, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        value = None if choice is None else getattr(parameter, choice)
        if name in JSON_PARAMETERS and isinstance(value, str):
            value = parse_json(value, f"the JSON text parameters.{name}", object, f"{location}: ")
        values[name] = value
    return values


def _set_parameters(target: Any, parameters: Mapping[str, Any]) -> None:
    """Write parameters; values other than numbers, truth values and texts become JSON texts.

    Messages of MLServer and KServe have neither `double_param` nor `uint64_param`, so a text of the number comes
    before these: a client reads the last one that its own messages know.
    """
    for name, value in parameters.items():
        if isinstance(value, bool):
            target[name].bool_param = value
        elif isinstance(value, int) and -(2**63) <= value < 2**63:
            target[name].int64_param = value
        elif value is not None:
            text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            target[name].string_param = repr(value) if isinstance(value, float) else text
            if isinstance(value, float):
                target[name].double_param = value
            elif isinstance(value, int) and 0 <= value < 2**64:
                target[name].uint64_param = value


MAX_DETAILS_BYTES = 2000
"""Maximum length of an error's details: they travel in a header, up to three bytes for each, and clients accept 8 KiB
of headers."""

MAX_PROPERTY_BYTES = 128
"""Length from which a text in MLServer's form is no text in that of the Open Inference Protocol."""

SHUTTING_DOWN = "the server is shutting down"

MAX_AHEAD, MAX_AHEAD_BYTES = 8, 16 * 1024 * 1024
"""Messages of a stream that are answered side by side, and the bytes from which on no further one is read."""

GRPC_ERROR_NAME = "triton_grpc_error"
"""Metadata, `true`, with which the first error of a stream ends it with a status code, as in Triton."""

FINAL_NAME = "triton_final_response"
"""Parameter of the last response to a request of a stream: here each is."""


_METHODS: dict[str, dict[str, Any]] = {
    service: dict(POOL.FindServiceByName(service).methods_by_name)
    for service in (SERVICE, REPOSITORY_SERVICE)
}
"""Methods of each service by their names."""

_REQUEST, _RESPONSE = message_class("ModelInferRequest"), response_class("ModelInferResponse")

_Trailer = tuple[tuple[str, str], ...]


class GrpcService:
    """Generic handler of grpc: decodes and encodes messages in the pool of threads, and maps errors to status codes.

    Its arguments are those of `GrpcServer`.
    """

    def __init__(
        self,
        serving: Serving,
        server_version: str,
        *,
        shared: CallServices | None = None,
        request_timeout_s: float = math.inf,
    ) -> None:
        self._serving = serving
        self._shared = shared or CallServices(Intake())
        self._request_timeout_s = request_timeout_s
        self._closing = asyncio.Event()
        self._metadata = {"name": "quadriga", "version": server_version, "extensions": EXTENSIONS}
        inferences = {
            "ModelInfer": grpc.unary_unary_rpc_method_handler(self._model_infer),
            "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(self._stream),
        }
        self.handlers = {
            service: {
                name: inferences.get(name)
                or grpc.unary_unary_rpc_method_handler(partial(self._unary, method))
                for name, method in methods.items()
            }
            for service, methods in _METHODS.items()
        }
        """Handlers of the RPCs by service and name."""

    def close(self) -> None:
        """End streams after their current request; calls that still come are answered."""
        self._closing.set()

    async def _unary(self, method: Any, body: bytes, context: Any) -> bytes:
        task = partial(self._answer, method, body)
        try:
            with self._shared.intake.hold(len(body)):
                return await asyncio.to_thread(task) if method.name in _IN_THREAD else task()
        except Exception as error:  # noqa: BLE001 - the edge: every error has a status
            await _abort(context, error)

    async def _model_infer(self, body: bytes, context: Any) -> bytes:
        """Answer an inference; the result of storing is trailing metadata."""
        try:
            with self._shared.intake.hold(len(body)):
                model = read_model_name(body)
                request = _request_of(context)
                key = idempotency.key_of_call(context.invocation_metadata())
                task = partial(self._infer, model, body, request, key)
                response, trailer = await self._run(
                    task,
                    model,
                    context=context,
                    body_bytes=None if key is not None else _light_bytes(body),
                )
        except Exception as error:  # noqa: BLE001 - the edge: every error has a status
            await _abort(context, error)
        if trailer:
            context.set_trailing_metadata((*trailer, *call_metadata(request)))
        return response

    async def _run(
        self,
        task: Callable[[], Result],
        model: str,
        *,
        context: Any,
        body_bytes: int | None = None,
    ) -> Result:
        """Run an inference at once if it is cheap, else in the pool of threads; its time ends with that of the call.

        If the client leaves, grpc cancels the handler, and so the request. One with a key, which is noted in a file, always
        takes a thread.
        """
        deadline = Deadline(self._request_timeout_s)
        if (remaining_s := context.time_remaining()) is not None:
            deadline.shorten(remaining_s, CALL_LIMIT)
        return await self._serving.run(
            task, model=model, deadline=deadline, connection=context.peer(), body_bytes=body_bytes
        )

    def _infer(
        self, model: str, body: bytes, request: RequestContext, key: bytes | None
    ) -> tuple[bytes, _Trailer]:
        """Decode, run and encode an inference; return the bytes, and the result of storing as trailing metadata.

        The id of the call is that of a message that has none; under a key the request is stored once.
        """
        sent, message = decode_message(_REQUEST, body), _RESPONSE()
        check_model_name(sent, model)
        if key is not None:
            request.repeatable = idempotency.repeatable_message(key, request.caller, sent)
        headers = store_headers(_infer(self._serving, sent, message, request.id))
        trailer = tuple((name.decode(), value.decode()) for name, value in headers)
        return message.SerializeToString(), trailer

    def _answer(self, method: Any, body: bytes) -> bytes:
        """Decode, run and encode a request that is no inference."""
        request = decode_message(message_class(method.input_type), body)
        response = message_class(method.output_type)()
        value = self._metadata
        if method.name != "ServerMetadata":
            value = _ANSWERS[method.name](self._serving, request)
        json_format.Parse(msgspec.json.encode(value), response, ignore_unknown_fields=True)
        return bytes(response.SerializeToString())

    async def _stream(self, _: object, context: Any) -> None:
        """Answer requests side by side and in their order, until the client or the server closes the stream."""
        call = _request_of(context)
        closing = asyncio.ensure_future(self._closing.wait())
        reading: asyncio.Future[Any] | None = None
        answers: dict[asyncio.Task[bytes | Exception], int] = {}
        last: asyncio.Task[bytes | Exception] | None = None
        is_open, end = True, None
        try:
            while is_open or answers:
                if is_open and reading is None and _has_room_ahead(answers):
                    read = self._shared.read(context, is_limited=False)
                    reading = asyncio.ensure_future(read)
                first = next(iter(answers), None)
                awaited = [first, reading, closing if is_open else None]
                await asyncio.wait(filter(None, awaited), return_when=asyncio.FIRST_COMPLETED)
                if first is not None and first.done():
                    del answers[first]
                    await self._write_answer(context, first.result())
                elif reading is not None and reading.done():
                    try:
                        if (body := reading.result()) is grpc.aio.EOF:
                            is_open = False
                            continue
                        admit(identify_again(), "infer")
                    except ProtocolError as error:
                        # The key has ended, or another call needs the place.
                        self._shared.accounting.count_unread(outcome_of_error(error), "grpc")
                        is_open, end = False, error
                        continue
                    finally:
                        reading = None
                    last = asyncio.ensure_future(self._answer_streamed(body, call, context, last))
                    answers[last] = len(body)
                else:
                    is_open, end = False, ModelNotReady(SHUTTING_DOWN)
            if end is not None:
                await _abort(context, end)
        finally:
            for task in filter(None, (closing, reading, *answers)):
                if task in answers and task.done():
                    self._release_answer(task.result())
                task.cancel()

    async def _write_answer(self, context: Any, response: bytes | Exception) -> None:
        """Write the answer to a message of a stream; an error ends the stream."""
        self._release_answer(response)
        if isinstance(response, Exception):
            await _abort(context, response)
        await context.write(response)

    def _release_answer(self, response: bytes | Exception) -> None:
        """Count an answer no more that waited for those before it."""
        if isinstance(response, bytes):
            self._shared.intake.give_back(len(response))

    async def _answer_streamed(
        self,
        body: bytes,
        call: RequestContext,
        context: Any,
        previous: "asyncio.Future[Any] | None",
    ) -> bytes | Exception:
        """Answer one message of a stream, which is a request with an id of its own, and take note of its end.

        An error is an answer, unless the client asked for it to end the stream with its code: then it is returned.

        Args:
            body: The message.
            call: The stream.
            context: Context of the stream.
            previous: Answer to the message before it; None for the first.
        """
        request = RequestContext(
            id=new_request_id(),
            method="RPC",
            path=STREAM,
            address=call.address,
            caller=call.caller,
            protocol="grpc",
            route=STREAM,
            status="no answer",
            bytes_in=len(body),
        )
        set_current_request(request)  # of this task alone
        metadata = dict(context.invocation_metadata() or ())
        ends_at_error = metadata.get(GRPC_ERROR_NAME, "").lower() == "true"
        traceparent = metadata.get(TRACEPARENT)
        accounting = self._shared.accounting
        accounting.begin(request, traceparent and traceparent.encode())
        response: bytes | Exception
        try:
            response = await self._streamed_answer(body, request, context, previous)
            request.status, request.outcome = "OK", "success"
        except Exception as error:  # noqa: BLE001 - the edge: every error has a response
            request.outcome = outcome_of_error(error)
            code, text = _status(error, call.id)
            if isinstance(error, Forbidden | LimitReached):
                call.refusals += 1
                call.refusal_code = code.name
            request.status = code.name if ends_at_error else "OK"
            response = error if ends_at_error else _error_answer(body, text)
        finally:
            accounting.end(request)
        if isinstance(response, bytes):
            self._shared.intake.add(len(response))
        return response

    async def _streamed_answer(
        self,
        body: bytes,
        request: RequestContext,
        context: Any,
        previous: "asyncio.Future[Any] | None",
    ) -> bytes:
        """Answer one message of a stream.

        One that finds the queue full waits until the message before it is answered, as if it had not been read ahead.
        """
        quota = request.caller.quota
        if quota is not None and previous is not None:  # the call counted as the first
            quota.add_message()
        task = partial(self._stream_answer, body)
        with self._shared.intake.hold(len(body)):
            while True:
                try:
                    return await self._run(
                        task, read_model_name(body), context=context, body_bytes=_light_bytes(body)
                    )
                except WaitTooLong:
                    if previous is None or previous.done():
                        raise
                    await asyncio.wait((previous,))

    def _stream_answer(self, body: bytes) -> bytes:
        """Run one request of a stream."""
        request = decode_message(_REQUEST, body)
        check_name("id", request.id)
        check_model_name(request, read_model_name(body))
        stream_response = response_class("ModelStreamInferResponse")()
        infer_response = stream_response.infer_response
        _infer(self._serving, request, infer_response)
        infer_response.parameters[FINAL_NAME].bool_param = True
        return bytes(stream_response.SerializeToString())


def _has_room_ahead(answers: Mapping[Any, int]) -> bool:
    """Check whether a stream may read another message, given the sizes of those under way.

    Those of a key with limits are read one by one: the whole stream holds one place of its limit of concurrency.
    """
    if not answers:
        return True
    quota = current_caller().quota
    if quota is not None and quota.is_limited:
        return False
    return len(answers) < MAX_AHEAD and sum(answers.values()) < MAX_AHEAD_BYTES


def _error_answer(body: bytes, text: str) -> bytes:
    """Encode the answer to a message of a stream that failed, however early: clients find their request by its id.

    Source: Triton Inference Server, `ModelStreamInferHandler::StreamInferResponseComplete`.
    """
    answer = message_class("ModelStreamInferResponse")(
        error_message=text, infer_response=read_names(body)
    )
    answer.infer_response.parameters[FINAL_NAME].bool_param = True
    return bytes(answer.SerializeToString())


def _not_offered(method: str) -> Any:
    """Return the handler of an RPC that one of the services has not; None if there is no such service."""
    _, service, name = f"{method}//".split("/")[:3]
    if service not in _METHODS:
        return None

    async def refuse(_: object, context: Any) -> None:
        text = f"expected an RPC that this server offers, got {quoted(name, 80)}"
        await _abort(context, Unsupported(text))

    return grpc.stream_stream_rpc_method_handler(refuse)


def _status(error: Exception, request_id: str) -> tuple[Any, str]:
    """Return status code and details of an error; faults of the server are logged and not described."""
    error = translate_recursion_error(error)
    log_fault(error, request_id)
    if not isinstance(error, ProtocolError):
        return grpc.StatusCode.INTERNAL, "the server's log has the reason"
    text = str(error).encode(errors="replace")
    if len(text) > MAX_DETAILS_BYTES:
        text = text[: MAX_DETAILS_BYTES - 3] + b"..."
    return grpc.StatusCode[error.grpc_code], text.decode(errors="ignore")


async def _abort(context: Any, error: Exception) -> NoReturn:
    request = _request_of(context)
    context.set_trailing_metadata((*error_metadata(error), *call_metadata(request)))
    code, text = _status(error, request.id)
    request.status, request.outcome = code.name, outcome_of_error(error)
    await context.abort(code, text)
    raise AssertionError from error  # abort has raised


def _request_of(context: Any) -> RequestContext:
    """Return the request that a call is; where the service answers without a server of ours, it begins here."""
    request = current_request()
    if request is None:
        value = dict(context.invocation_metadata() or ()).get(REQUEST_ID_NAME)
        request_id = error_request_id(value if isinstance(value, str) else None)
        request = RequestContext(id=request_id, method="RPC")
        set_current_request(request)
    return request


def _infer(serving: Serving, request: Any, message: Any, request_id: str = "") -> InferResponse:
    try:
        parsed = parse_infer(request, request_id)
    except InvalidRequest:
        check_model_exists(serving, request.model_name, request.model_version or None)
        raise
    response = infer_and_classify(serving, parsed)
    render_infer(response, message, raw=bool(request.raw_input_contents))
    return response


def _model(serving: Serving, request: Any) -> ModelInfo:
    return serving.model_info(request.name, request.version or None)


def _model_metadata(serving: Serving, request: Any) -> dict[str, Any]:
    """Render a model's metadata, with its task as a parameter, as MLServer's messages have them.

    The Open Inference Protocol has texts there: its clients read the task behind two bytes, as long as it is short.
    """
    info = _model(serving, request)
    is_short = len(info.task.encode()) < MAX_PROPERTY_BYTES
    task = {"task": {"string_param": info.task}} if is_short else {}
    return model_metadata(info) | {"parameters": task}


def _model_ready(serving: Serving, request: Any) -> dict[str, bool]:
    try:
        reason = serving.model_unready_reason(request.name, request.version or None)
    except NotFound:
        return {"ready": False}
    return {"ready": reason is None}


def _model_statistics(serving: Serving, request: Any) -> dict[str, Any]:
    statistics = serving.statistics(request.name or None, request.version or None)
    return {"model_stats": list(map(statistics_json, statistics))}


def _repository_index(serving: Serving, request: Any) -> dict[str, Any]:
    if request.repository_name:
        raise no_other_repository(request.repository_name)
    return {"models": index_json(serving, ready=request.ready)}


def _repository_model(request: Any) -> str:
    """Return the name of a model to load or unload: KServe's only field is Triton's repository."""
    name: str = request.model_name or request.repository_name
    note_target(name)
    if request.model_name and request.repository_name:
        raise no_other_repository(request.repository_name)
    return name


def _repository_load(serving: Serving, request: Any) -> dict[str, Any]:
    """Load a model; Triton's parameters are `config`, in JSON, and `file:<path>`, with the contents."""
    name = _repository_model(request)
    serving.load_model(name, *parse_load(read_parameters(request.parameters, "the request")))
    return {"model_name": name, "isLoaded": True}


def _repository_unload(serving: Serving, request: Any) -> dict[str, Any]:
    name = _repository_model(request)
    serving.unload_model(name)
    return {"model_name": name, "isUnloaded": True}


_ANSWERS: dict[str, Callable[[Serving, Any], Any]] = {
    "ServerLive": lambda _, __: {"live": True},
    "ServerReady": lambda serving, _: {"ready": serving.unready_reason() is None},
    "ModelReady": _model_ready,
    "ModelMetadata": _model_metadata,
    "ModelConfig": lambda serving, request: {"config": config_json(_model(serving, request))},
    "ModelStatistics": _model_statistics,
    "RepositoryIndex": _repository_index,
    "RepositoryModelLoad": _repository_load,
    "RepositoryModelUnload": _repository_unload,
}
"""Responses as REST has them in JSON, by RPC; written to the fields that the response message has."""

_IN_THREAD = ("RepositoryModelLoad", "RepositoryModelUnload")
"""RPCs that take a thread outside the pool, as over HTTP: they may be long and must delay no request."""

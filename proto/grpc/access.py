"""Calls of gRPC as they arrive and end: what each RPC needs, who may call it, how many at a time, and what is noted of it.

A call begins with its headers, and its message may never come: calls that wait for one must not hold the places of others.
It lasts until its answer has left, even a refusal: clients that have no key and read no answer would hold the places
of all others, too. So only calls of callers with a key are counted. Those of strangers are few while they wait.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from inspect import isasyncgenfunction
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from quadriga.proto.access import Gate, Need, Quota, admit, headers_by_name
from quadriga.proto.errors import (
    InvalidRequest,
    LimitReached,
    Overloaded,
    ProtocolError,
    TooManyCalls,
)
from quadriga.proto.grpc.messages import REPOSITORY_SERVICE, SERVICE
from quadriga.proto.http.asgi import REQUEST_ID_HEADER, error_request_id
from quadriga.proto.http.intake import Intake
from quadriga.proto.request import (
    TRACEPARENT,
    TRACEPARENT_HEADER,
    Accounting,
    RequestContext,
    current_caller,
    is_audited,
    outcome_of_error,
    set_current_request,
)

REQUEST_ID_NAME = REQUEST_ID_HEADER.decode()
"""Metadata with the id of a call, of the client's and in the trailing ones."""

HEALTH_SERVICE = "grpc.health.v1.Health"
REFLECTION_SERVICE = "grpc.reflection.v1alpha.ServerReflection"

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
        "RepositoryIndex": "key",
        "RepositoryModelLoad": "operate",
        "RepositoryModelUnload": "operate",
    },
    REPOSITORY_SERVICE: {
        "RepositoryIndex": "key",
        "RepositoryModelLoad": "operate",
        "RepositoryModelUnload": "operate",
    },
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

PLACE_BEYOND_BYTES = 65_535
"""Bytes of an answer that a client takes before it has read any (RFC 9113, section 6.9.2)."""

PLACE_AFTER_S = 0.5
"""Time after which a call whose answer has not left holds a place of its key again."""

MAX_STRANGERS = 64
"""Calls of callers without a key that wait for their message at a time, and watches of theirs."""

_PROBES = (f"/{HEALTH_SERVICE}/", f"/{REFLECTION_SERVICE}/")


class _Metadata:
    """Metadata of a call by their names, read once somebody asks for any."""

    __slots__ = ("_by_name", "_pairs")

    def __init__(self, pairs: Sequence[tuple[str, str | bytes]] | None) -> None:
        self._pairs = pairs
        self._by_name: dict[bytes, bytes] | None = None

    def get(self, name: bytes) -> bytes | None:
        """Return a value, as `headers_by_name` has it."""
        if self._by_name is None:
            self._by_name = headers_by_name(
                [
                    (key.encode(), value if isinstance(value, bytes) else value.encode())
                    for key, value in self._pairs or ()
                ]
            )
            # A browser sends it by itself, for a page of anybody; over gRPC nothing says whose page it is.
            self._by_name.pop(b"cookie", None)
        return self._by_name.get(name)


class Arrivals:
    """Calls under way, and those that wait for a message; used on one event loop.

    Where too many wait, the one that has waited longest gives its place to the next: who sends a message sends it at
    once. Callers without a key take no places of others.

    Args:
        intake: Has the time that a message may take to arrive, and counts those that do not.
        max_calls: Calls at a time of callers with a key; of three quarters of them the message may be awaited.
    """

    def __init__(self, intake: Intake, max_calls: int) -> None:
        self._intake = intake
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
            self._intake.displaced += 1
            text = f"expected at most {maximum} calls that wait for their message, got more"
            longest = next(iter(waits))
            del waits[longest]
            longest.end_wait(Overloaded(text))
        waits[context] = None
        try:
            return await context.read(self._intake.body_timeout_s if is_limited else math.inf)
        except DecodeError as error:
            raise InvalidRequest("expected a message of the RPC, got other bytes") from error
        finally:
            waits.pop(context, None)


class CallServices:
    """What all calls of a server share; see `GrpcServer` for the arguments."""

    def __init__(
        self, intake: Intake, max_connections: int = 1000, accounting: Accounting | None = None
    ) -> None:
        self.intake = intake
        self.arrivals = Arrivals(intake, max_connections)
        self.accounting = accounting or Accounting()


class AccessHandler:
    """Handler of all calls: refuses those whose caller has not what the RPC needs, and takes note of their ends.

    It does so before their message is read. A call counts for its key from then on, whenever its message arrives, which has a
    limited time. To the code that adds services it looks like a server.
    """

    def __init__(self, gate: Gate, shared: CallServices) -> None:
        self._gate = gate
        self._shared = shared
        self._handlers: list[Any] = []

    def add_generic_rpc_handlers(self, handlers: Iterable[Any]) -> None:
        """Add the services behind this one."""
        self._handlers += handlers

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        """Register none: for each call grpc.aio would wait anew for the next call of every registered method."""

    def service(self, details: Any) -> Any:
        """Return the handler of a call: the RPC's, or one that refuses the call; None if there is no such RPC."""
        metadata = _Metadata(details.invocation_metadata)
        method, identify = details.method, self._gate.identify
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
            return grpc.stream_stream_rpc_method_handler(call.answer)
        for services in self._handlers:
            if (handler := services.service(details)) is not None:
                return call.answered_by(handler)
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
        self.refusal: ProtocolError | None = None
        """Why the call is refused; None for one that is answered."""
        self.quota: Quota | None = None if request.need == "nothing" else request.caller.quota
        self._holds_place = False
        """Whether the call holds a place of its key."""
        self._place_timer: asyncio.TimerHandle | None = None

    def answered_by(self, handler: Any) -> Any:
        """Return a handler as one that reads the messages of the call by itself."""
        codec = handler.request_deserializer, handler.response_serializer
        if answer := handler.unary_unary or handler.unary_stream:
            self._respond = partial(self._answer_message, answer)
        elif isasyncgenfunction(handler.stream_stream):
            self._respond = partial(self._answer_messages, handler.stream_stream)
        else:
            self._respond = partial(handler.stream_stream, None)
        if handler.unary_unary:
            return grpc.stream_unary_rpc_method_handler(self.answer, *codec)
        return grpc.stream_stream_rpc_method_handler(self.answer, *codec)

    async def answer(self, _: object, context: Any) -> Any:
        """Answer the call; its line of the audit log is written before the answer is sent."""
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
        if self.quota is not None and request.bytes_out > PLACE_BEYOND_BYTES:
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
            self._shared.arrivals.begin(context)
            if self.quota is not None:
                self.quota.begin()
                self._holds_place = True
        except ProtocolError as error:
            self.refusal = None  # a cycle, in which the call would stay
            if not self._request.is_noted:
                self._begin(is_refused=True)
            await self._abort(error, context)

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
            message = await self._shared.arrivals.read(context)
            if message is grpc.aio.EOF:
                raise InvalidRequest("expected a message, got the end of the call")
            self._request.bytes_in = len(message) if isinstance(message, bytes) else 0
        except ProtocolError as error:
            await self._abort(error, context)
            raise AssertionError from error  # it has raised
        return await answer(message, context)

    async def _answer_messages(
        self, answer: Callable[[Any, Any], AsyncIterator[Any]], context: Any
    ) -> None:
        """Answer the messages of the call one after the other."""

        async def messages() -> AsyncIterator[Any]:
            while (message := await self._shared.arrivals.read(context)) is not grpc.aio.EOF:
                yield message

        try:
            async for response in answer(messages(), context):
                await context.write(response)
        except ProtocolError as error:
            await self._abort(error, context)

    async def _abort(self, error: ProtocolError, context: Any) -> None:
        """End the call with an error; raises what grpc ends handlers by."""
        request = self._request
        request.status, request.outcome = error.grpc_code, outcome_of_error(error)
        context.set_trailing_metadata((*error_metadata(error), *call_metadata(request)))
        await context.abort(grpc.StatusCode[error.grpc_code], str(error))


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

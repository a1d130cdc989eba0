"""What each RPC needs, and the handler that admits the callers of all of them, health and reflection included."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from inspect import isasyncgenfunction
from typing import Any

import grpc

from quadriga.proto.access import (
    Caller,
    Gate,
    Need,
    Quota,
    admit,
    headers_by_name,
    set_current_caller,
    set_identification,
)
from quadriga.proto.audit import (
    REFUSAL_CODES,
    Audit,
    NoAudit,
    Notes,
    Visit,
    current_notes,
    is_audited,
    set_notes,
)
from quadriga.proto.errors import (
    InvalidRequest,
    LimitReached,
    Overloaded,
    ProtocolError,
)
from quadriga.proto.grpc.arrival import Arrivals
from quadriga.proto.grpc.messages import REPOSITORY_SERVICE, SERVICE
from quadriga.proto.http.asgi import REQUEST_ID_HEADER, error_request_id
from quadriga.proto.http.intake import Intake
from quadriga.proto.outcomes import (
    NoRequestCounter,
    OtherWire,
    Outcome,
    RequestCounter,
    WireProtocol,
    outcome_of_error,
)
from quadriga.proto.request_facts import (
    NoObserver,
    RequestFacts,
    RequestObserver,
    current_facts,
    set_current_facts,
)
from quadriga.proto.trace_context import TRACEPARENT, TRACEPARENT_HEADER

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


class CallServices:
    """What all calls of a server share; see `GrpcServer` for the arguments."""

    def __init__(
        self,
        intake: Intake,
        max_connections: int = 1000,
        *,
        audit: Audit | None = None,
        counter: RequestCounter | None = None,
        observer: RequestObserver | None = None,
    ) -> None:
        self.intake = intake
        self.arrivals = Arrivals(intake, max_connections)
        self.audit = audit or NoAudit()
        self.counter = counter or NoRequestCounter()
        self.observer = observer or NoObserver()


class AccessHandler:
    """Handler of all calls: refuses those whose caller has not what the RPC needs, and writes the audit log.

    It does so before their message is read. A call counts for its key from then on, whenever its message arrives, which has a
    limited time. To the code that adds services it looks like a server. It stands before them as a generic handler, since
    an interceptor of grpc.aio does the same with four more calls and a coroutine.
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
        identify = partial(self._gate.identify, metadata.get)
        caller = identify()
        method = details.method
        need = NEEDS.get(method, "admin")
        call = _Call(self._shared, caller, method, need=need, metadata=metadata)
        try:
            admit(caller, need)
            if call.quota is not None:
                call.quota.check()
            if is_audited(need, "RPC"):
                self._shared.audit.check()
        except ProtocolError as error:
            return grpc.stream_stream_rpc_method_handler(partial(call.refuse, error))
        set_current_caller(caller)
        set_identification(identify)
        for services in self._handlers:
            if (handler := services.service(details)) is not None:
                return call.watched(handler)
        self._shared.counter.count("none", "client_error")
        return None


class _Call:
    """One call on its way to its line in the audit log."""

    def __init__(
        self,
        shared: CallServices,
        caller: Caller,
        method: str,
        *,
        need: Need,
        metadata: _Metadata,
    ) -> None:
        self._shared = shared
        self._outcome: Outcome | None = None
        self._protocol: WireProtocol | OtherWire = "grpc" if method in _INFERENCES else "state"
        self._caller = caller
        self._method = method
        self._need = need
        self._is_audited = is_audited(need, "RPC")
        self._metadata = metadata
        self._respond: Callable[[Any], Awaitable[Any]]
        self.quota = None if need == "nothing" else caller.quota
        self._is_counted = False
        """Whether the call holds a place of its key."""
        self._place_timer: asyncio.TimerHandle | None = None

    def watched(self, handler: Any) -> Any:
        """Return a handler as one that reads the messages of the call by itself."""
        codec = handler.request_deserializer, handler.response_serializer
        if answer := handler.unary_unary or handler.unary_stream:
            self._respond = partial(self._answer_message, answer)
        elif isasyncgenfunction(handler.stream_stream):
            self._respond = partial(self._answer_messages, handler.stream_stream)
        else:
            self._respond = partial(handler.stream_stream, None)
        if handler.unary_unary:
            return grpc.stream_unary_rpc_method_handler(self._watch, *codec)
        return grpc.stream_stream_rpc_method_handler(self._watch, *codec)

    async def refuse(self, error: ProtocolError, _: object, context: Any) -> None:
        """Refuse the call."""
        self._outcome = outcome_of_error(error)
        self._shared.counter.count(self._protocol, self._outcome)
        notes = current_notes()
        notes.request_id = notes.request_id or error_request_id(
            self._metadata.get(REQUEST_ID_HEADER)
        )
        facts = None if current_facts() is not None else self._observe(notes.request_id)
        self._end(context, error.grpc_code, notes, is_audited=False)
        try:
            await self._abort(error, notes, context)
        finally:
            self._end_observation(facts, notes, "")

    async def _watch(self, _: object, context: Any) -> Any:
        """Answer the call; its line is written before the answer is sent."""
        if self._need == "nothing" or self._method.startswith(_PROBES):
            context.max_message_bytes = MAX_PROBE_BYTES
        notes = Notes(request_id=error_request_id(self._metadata.get(REQUEST_ID_HEADER)))
        set_notes(notes)
        facts = None if self._method == STREAM else self._observe(notes.request_id)
        context.set_trailing_metadata(call_metadata(notes.request_id))
        status = ""
        try:
            response = await self._answer(notes, context)
            status = "OK"
            if facts is not None and isinstance(response, bytes):
                facts.bytes_out = len(response)
        finally:
            self._end_observation(facts, notes, status)
        return response

    async def _answer(self, notes: Notes, context: Any) -> Any:
        """Answer the call: return what is sent, or raise what grpc ends it by."""
        context.add_done_callback(self._finish)
        try:
            self._shared.arrivals.begin(context)
        except ProtocolError as error:
            self._outcome = outcome_of_error(error)
            self._shared.counter.count(self._protocol, self._outcome)
            await self._abort(error, notes, context)
        if self.quota is not None:
            try:
                self.quota.begin()
            except ProtocolError as error:
                await self.refuse(error, None, context)
            self._is_counted = True
        try:
            response = await self._respond(context)
        except BaseException as error:
            self._leave_place()
            self._count(_outcome(error, notes))
            self._end(context, notes.grpc_code or "no answer", notes, is_audited=self._is_audited)
            if isinstance(error, grpc.aio.AbortError):  # grpc keeps it with the call
                # Its frames, and those of what caused it, hold the message: a cycle, in which that would stay.
                error.__context__ = None
                raise error.with_traceback(None) from None
            raise
        self._count("success")
        self._end(context, "OK", notes, is_audited=self._is_audited)
        size_bytes = len(response) if isinstance(response, bytes) else 0
        # Its client may have the answer, and ask again, before the call is over.
        self._leave_place()
        if self.quota is not None and size_bytes > PLACE_BEYOND_BYTES:
            loop = asyncio.get_running_loop()
            self._place_timer = loop.call_later(PLACE_AFTER_S, self._take_place, self.quota)
        return response

    def _observe(self, request_id: str) -> RequestFacts | None:
        """Begin to take note of the call; return None if nobody does."""
        facts = observe_call(
            self._shared.observer, self._method, request_id, self._metadata.get(TRACEPARENT_HEADER)
        )
        set_current_facts(facts)
        return facts

    def _end_observation(self, facts: RequestFacts | None, notes: Notes, status: str) -> None:
        """Take note of a call that is over; an empty status stands for the one that it was aborted with."""
        if facts is None:
            return
        set_current_facts(None)
        facts.protocol, facts.route, facts.key_id = (
            self._protocol,
            self._method,
            self._caller.key_id,
        )
        facts.status = status or notes.grpc_code or "no answer"
        facts.outcome = self._outcome or ""
        self._shared.observer.end(facts)

    def _count(self, outcome: Outcome) -> None:
        """Count the call, unless it is a stream whose messages count."""
        self._outcome = outcome
        if self._method != STREAM:
            self._shared.counter.count(self._protocol, outcome)

    def _finish(self, _: Any) -> None:
        """Note that the call is over: its answer has left, or never will."""
        if self._place_timer is not None:
            self._place_timer.cancel()
        self._leave_place()

    def _take_place(self, quota: Quota) -> None:
        self._is_counted = True
        quota.resume()

    def _leave_place(self) -> None:
        if self._is_counted and self.quota is not None:
            self._is_counted = False
            self.quota.end()

    async def _answer_message(
        self, answer: Callable[[Any, Any], Awaitable[Any]], context: Any
    ) -> Any:
        """Answer the only message of the call."""
        try:
            message = await self._shared.arrivals.read(context)
            if message is grpc.aio.EOF:
                raise InvalidRequest("expected a message, got the end of the call")
            size_bytes = len(message) if isinstance(message, bytes) else 0
            if (facts := current_facts()) is not None:
                facts.bytes_in = size_bytes
        except ProtocolError as error:
            await self._abort(error, current_notes(), context)
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
            await self._abort(error, current_notes(), context)

    async def _abort(self, error: ProtocolError, notes: Notes, context: Any) -> None:
        """End the call with an error; raises what grpc ends handlers by."""
        notes.grpc_code, notes.outcome = error.grpc_code, outcome_of_error(error)
        context.set_trailing_metadata((*error_metadata(error), *call_metadata(notes.request_id)))
        await context.abort(grpc.StatusCode[error.grpc_code], str(error))

    def _end(self, context: Any, status: str, notes: Notes, *, is_audited: bool) -> None:
        if notes.refusals:
            status = notes.refusal_code
        is_refused = status in REFUSAL_CODES
        if not is_refused and not is_audited:
            return
        visit = Visit(
            caller=self._caller,
            action=f"RPC {self._method}",
            address=context.peer().rpartition(":")[0].strip("[]"),
            request_id=notes.request_id,
            notes=notes,
        )
        if is_refused:
            self._shared.audit.refuse(visit, status)
        else:
            self._shared.audit.write(visit, status)


def call_metadata(request_id: str) -> tuple[tuple[str, str], ...]:
    """Return the trailing metadata that name a call: its id, and the trace that it is part of."""
    facts = current_facts()
    if facts is None or facts.trace is None:
        return ((REQUEST_ID_NAME, request_id),)
    return ((REQUEST_ID_NAME, request_id), (TRACEPARENT, facts.trace.traceparent))


def observe_call(
    observer: RequestObserver, method: str, request_id: str, traceparent: bytes | None
) -> RequestFacts | None:
    """Begin to take note of a call; return None if nobody does."""
    if traceparent is None and not observer.observes_all:
        return None
    return observer.begin(request_id, "RPC", method, traceparent)


def _outcome(error: BaseException, notes: Notes) -> Outcome:
    """Return the outcome of a call that ended with an error."""
    if notes.outcome:
        return notes.outcome
    if isinstance(error, grpc.aio.AbortError):  # a service of grpc's own refused it
        return "client_error"
    return "server_error" if isinstance(error, Exception) else "gone"


def error_metadata(error: Exception) -> tuple[tuple[str, str], ...]:
    """Return the trailing metadata that tells a client when to try again, and which limit it has reached."""
    if not isinstance(error, Overloaded | LimitReached):
        return ()
    limit = error.headers if isinstance(error, LimitReached) else ()
    headers = [(name.decode(), value.decode()) for name, value in limit]
    return (("retry-after", str(error.retry_after_s)), *headers)

"""What a request over HTTP meets first: who sends it, and which of the protocols or routes answers it."""

import codecs
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from litestar.types import ASGIApp, Message, Receive, Scope, Send

from quadriga.engine.access.audit import WatchedRequest
from quadriga.engine.access.browsers import BrowserRules
from quadriga.proto.access import (
    ANYBODY,
    Gate,
    Quota,
    RateHeaders,
    headers_by_name,
    set_current_caller,
    set_identification,
)
from quadriga.proto.audit import Audit, current_notes
from quadriga.proto.errors import Forbidden, ProtocolError
from quadriga.proto.http.asgi import (
    CALLER_EXTENSION,
    LEFT_EXTENSION,
    error_response,
    identify_request,
    send_body,
)
from quadriga.proto.http.chariot import without_gateway_prefix
from quadriga.proto.http.intake import Intake
from quadriga.proto.http.operations import Dispatcher, Match, Operation
from quadriga.proto.outcomes import (
    OtherWire,
    Outcome,
    RequestCounter,
    WireProtocol,
    outcome_of_status,
)
from quadriga.proto.request_facts import (
    NoObserver,
    RequestFacts,
    RequestObserver,
    set_current_facts,
)
from quadriga.proto.trace_context import EVENT_HEADER, TRACEPARENT_HEADER

_STATE_PATHS = ("/metrics", "/health")
_CONSOLE = "/console"


class CountedRequest:
    """Counts a request as its whole answer is about to be sent, and one whose answer comes in pieces at its end.

    Args:
        counter: Counts requests.
        scope: Scope of the request.
        send: Sends its answer.
    """

    __slots__ = (
        "_counter",
        "_is_counted",
        "_scope",
        "_send",
        "_status",
        "outcome",
        "protocol",
        "route",
        "route_scope",
    )

    def __init__(self, counter: RequestCounter, scope: Any, send: Send) -> None:
        self._counter = counter
        self._scope = scope
        self._send = send
        self._status = 0
        self._is_counted = False
        self.protocol: WireProtocol | OtherWire | None = None
        """Protocol of the request's operation, or what stands for it once the request is counted."""
        self.route = ""
        """Path of the request's operation, as a template; empty if none has it."""
        self.outcome: Outcome | None = None
        """How the request ended, once it is counted."""
        self.route_scope: Mapping[str, Any] = {}
        """Scope in which the framework leaves the route of the request, once it is found."""

    async def send(self, message: Message) -> None:
        """Send a message of the answer."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
        elif message["type"] == "http.response.body" and not message.get("more_body"):
            self._count(outcome_of_status(self._status))
        await self._send(message)

    def end(self, error: BaseException | None) -> None:
        """Count the request if it got no whole answer, as one whose client left, or by a fault of the server."""
        if not self._is_counted:
            self._count("server_error" if isinstance(error, Exception) else "gone")

    def _count(self, outcome: Outcome) -> None:
        if self._is_counted:
            return
        self._is_counted = True
        noted = current_notes().outcome
        if LEFT_EXTENSION in (self._scope.get("extensions") or {}):
            noted = "gone"
        self.protocol, self.outcome = self.protocol or self._route(), noted or outcome
        self._counter.count(self.protocol, self.outcome)

    def _route(self) -> OtherWire:
        """Return what stands for a protocol of a request that no operation answers."""
        if "route_handler" not in self.route_scope or self._status == 404:
            return "none"
        path = self.route_scope["path"]
        if path in _STATE_PATHS:
            return "state"
        return "console" if path.startswith(_CONSOLE) else "api"


class ObservedAnswer:
    """Notes status and size of an answer, and adds the trace that it is part of.

    Args:
        facts: What is known of the request.
        send: Sends the answer.
    """

    def __init__(self, facts: RequestFacts, send: Send) -> None:
        self._facts = facts
        self._send = send

    async def send(self, message: Message) -> None:
        """Send a message of the answer."""
        facts = self._facts
        if message["type"] == "http.response.start":
            facts.status = message["status"]
            if facts.trace is not None:
                traceparent = (TRACEPARENT_HEADER, facts.trace.traceparent.encode())
                message["headers"] = [*message.get("headers", []), traceparent]
        elif message["type"] == "http.response.body":
            facts.bytes_out += len(message.get("body", b""))
        await self._send(message)


_SMALL_ANSWER_BYTES = 64 * 1024
"""Bytes of an answer that leave at once, or wait in the buffer of their connection."""

_MAX_DIGITS = 18
"""Digits of a length that are read."""


class AsgiFront:
    """The ASGI application: rules for browsers, the gate, then the protocols, else the routes.

    It also removes Chariot's prefix and trailing slashes from paths, and closes connections when the server ends.

    Args:
        routes: The application with the routes.
        protocols: Operations of the protocols, which go first.
        intake: Counts the bytes of bodies.
        gate: Tells who sends a request.
        rules: Which requests of browsers are refused.
        audit: Where changes and refusals are written.
        counter: Counts how requests end.
        observer: Takes note of requests, for the log and for traces; None for nobody.
    """

    def __init__(
        self,
        routes: ASGIApp,
        protocols: Dispatcher,
        intake: Intake,
        *,
        gate: Gate,
        rules: BrowserRules,
        audit: Audit,
        counter: RequestCounter,
        observer: RequestObserver | None = None,
    ) -> None:
        self._counter = counter
        self._observer = observer or NoObserver()
        self._routes = routes
        self._gate = gate
        self._rules = rules
        self._audit = audit
        self._intake = intake
        self._protocols = protocols
        self.closing = False
        """Whether every response closes its connection, as the server ends."""

    def _observe(
        self, method: str, path: str, request_id: bytes, headers: Mapping[bytes, bytes]
    ) -> RequestFacts | None:
        """Begin to take note of a request of this task; return None if nobody does."""
        traceparent = headers.get(TRACEPARENT_HEADER) or headers.get(EVENT_HEADER)
        facts = None
        if traceparent is not None or self._observer.observes_all:
            facts = self._observer.begin(request_id.decode(), method, path, traceparent)
        set_current_facts(facts)
        return facts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; its end is seen by the audit log, and counted."""
        headers = headers_by_name(scope["headers"])
        request_id = identify_request(scope, headers)
        facts = self._observe(str(scope.get("method")), scope["path"], request_id, headers)
        if facts is not None:
            facts.bytes_in = announced_bytes(headers, self._intake.max_bytes)
            observed: Any = ObservedAnswer(facts, send)
            send = observed.send
        counted = CountedRequest(self._counter, scope, send)
        request = WatchedRequest(self._audit, scope, counted.send, request_id)
        try:
            with self._intake.receiving(scope, receive) as receive_body:
                await self._respond(request, counted, scope, headers=headers, receive=receive_body)
        finally:
            request.end()
            counted.end(sys.exception())
            if facts is not None:
                self._end(facts, request, counted)

    def _end(self, facts: RequestFacts, request: WatchedRequest, counted: CountedRequest) -> None:
        """Take note of a request that is over."""
        facts.key_id = request.caller.key_id
        facts.protocol, facts.outcome = counted.protocol or "none", counted.outcome or ""
        facts.route = counted.route or str(request.route_scope.get("path_template", ""))
        self._observer.end(facts)

    async def _respond(
        self,
        request: WatchedRequest,
        counted: CountedRequest,
        scope: Scope,
        *,
        headers: Mapping[bytes, bytes],
        receive: Receive,
    ) -> None:
        send: Send = request.send
        if self.closing:
            send = _with_headers(send, [(b"connection", b"close")])
        method = str(scope.get("method"))
        full_path = scope["path"].rstrip("/") or "/"
        path = without_gateway_prefix(full_path)
        try:
            self._rules.check(method, path, headers, scheme=scope["scheme"])
        except Forbidden as error:
            await send_body(send, *error_response(error, request.request_id))
            return
        if shared_headers := self._rules.shared_with(headers):
            send = _with_headers(send, shared_headers)
            if method == "OPTIONS" and (answer := self._rules.preflight(headers)) is not None:
                await send_body(send, 204, b"", answer)
                return
        identify = partial(self._gate.identify, self._reader(method, headers, scope["scheme"]))
        caller = identify()
        set_current_caller(caller)  # each request has a task of its own
        set_identification(identify)
        request.caller = caller
        extensions: Any = scope.get("extensions") or {}
        if caller.rights and caller is not ANYBODY:
            extensions[CALLER_EXTENSION] = {}
        match, operation = self._find(request, counted, scope, path=path, full_path=full_path)
        quota = caller.quota
        if quota is None or (operation is not None and operation.need == "nothing"):
            await self._answer(request, match, scope=scope, receive=receive, send=send)
            return
        rate_headers: RateHeaders = ()
        try:
            rate_headers = quota.begin()
        except ProtocolError as error:
            await send_body(send, *error_response(error, request.request_id))
            return
        place = _Place(quota, send)
        try:
            send = place.send
            if rate_headers:
                send = _with_headers(send, list(rate_headers), unless=b"ratelimit")
            await self._answer(request, match, scope=scope, receive=receive, send=send)
        finally:
            place.leave()

    def _find(
        self,
        request: WatchedRequest,
        counted: CountedRequest,
        scope: Scope,
        *,
        path: str,
        full_path: str,
    ) -> tuple[Match | None, Operation | None]:
        """Find the operations of a path, or of it with Chariot's prefix, which may name the model; and that of the method."""
        method = str(scope.get("method"))
        match = self._protocols.match(path, method)
        if path != full_path:
            match = self._protocols.match(full_path, method) or match
        # The server drops the body of an answer to HEAD itself.
        verb = "GET" if method == "HEAD" else method
        if match is None:
            inner: Any = {**scope, "method": verb, "path": path, "raw_path": path.encode()}
            counted.route_scope = request.route_scope = inner
            return None, None
        operation = match[0].get(verb)
        if operation is not None:
            request.need, counted.protocol = operation.need, operation.protocol
            counted.route = operation.path
        return match, operation

    def _reader(
        self, method: str, headers: Mapping[bytes, bytes], scheme: str
    ) -> Callable[[bytes], bytes | None]:
        """Return what reads the headers for the gate: without cookies that the browser may have added by itself."""
        if b"cookie" in headers and not self._rules.may_use_session(method, headers, scheme):
            return without_cookies(headers)
        return headers.get

    async def _answer(
        self,
        request: WatchedRequest,
        match: Match | None,
        *,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Let the protocol that has the path, or else the routes, answer a request."""
        if match is not None:
            await self._protocols.respond(match, scope, receive, send, caller=request.caller)
        else:
            inner: Any = request.route_scope
            if b"json" in dict(scope["headers"]).get(b"content-type", b"json"):
                receive = _without_mark(receive)
            await self._routes(inner, receive, send)


def _without_mark(receive: Receive) -> Receive:
    """Return a `receive` that drops the byte order mark before JSON."""
    is_begun = False

    async def receive_unmarked() -> Any:
        nonlocal is_begun
        message: Any = await receive()
        if not is_begun and message.get("body"):
            message["body"] = message["body"].removeprefix(codecs.BOM_UTF8)
            is_begun = True
        return message

    return receive_unmarked


class _Place:
    """The place that a request holds among those of its key at once, until it is answered.

    Who has an answer may ask again before its sending is over here: a small one leaves the place just before.

    Args:
        quota: Quota of the key, which has counted the request.
        send: Sends the answer.
    """

    def __init__(self, quota: Quota, send: Send) -> None:
        self._quota = quota
        self._send = send
        self._is_whole = True
        self._is_left = False

    async def send(self, message: Message) -> None:
        """Send a message of the answer."""
        if message["type"] == "http.response.body":
            self._is_whole = self._is_whole and not message.get("more_body")
            if self._is_whole and len(message.get("body", b"")) <= _SMALL_ANSWER_BYTES:
                self.leave()
        await self._send(message)

    def leave(self) -> None:
        """Count the request as answered, unless it is already."""
        if not self._is_left:
            self._is_left = True
            self._quota.end()


def without_cookies(headers: Mapping[bytes, bytes]) -> Callable[[bytes], bytes | None]:
    """Return what reads all headers but `Cookie`."""
    return lambda name: None if name == b"cookie" else headers.get(name)


def announced_bytes(headers: Mapping[bytes, bytes], max_bytes: int) -> int:
    """Return how many bytes the body of a request has, as it announces them; 0 if it does not.

    It is 0 also for a body of more than `max_bytes`, which is refused without being read.
    """
    length = headers.get(b"content-length", b"")
    if not length.isdigit() or len(length) > _MAX_DIGITS:
        return 0
    size = int(length)
    return 0 if size > max_bytes else size


def _with_headers(
    send: Send, headers: list[tuple[bytes, bytes]], *, unless: bytes | None = None
) -> Send:
    """Add headers to the response, unless it has a certain one."""

    async def send_more(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = message.get("headers", [])
            if unless is None or all(name.lower() != unless for name, _ in present):
                message["headers"] = [*present, *headers]
        await send(message)

    return send_more

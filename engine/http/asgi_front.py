"""What a request over HTTP meets first and last: who sends it, what answers it, and the headers that every answer has.

What is refused before it, `quadriga.engine.http.http_protocol.HttpProtocol` answers.
"""

import codecs
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from litestar.types import ASGIApp, Message, Receive, Scope, Send

from quadriga.engine.access.browsers import BrowserRules
from quadriga.proto.access import ANYBODY, STRANGER, Gate, Quota, RateHeaders, headers_by_name
from quadriga.proto.errors import Forbidden, ProtocolError
from quadriga.proto.http.asgi import ANSWER_EXTENSION, CALLER_EXTENSION, error_response, send_body
from quadriga.proto.http.intake import Intake
from quadriga.proto.http.operations import Dispatcher, Match, Operation, without_gateway_prefix
from quadriga.proto.request import (
    EVENT_HEADER,
    REQUEST_ID_HEADER,
    TRACEPARENT_HEADER,
    Accounting,
    RequestContext,
    client_address,
    identify_request,
    outcome_of_status,
    set_current_request,
)

_STATE_PATHS = ("/metrics", "/health")
_CONSOLE = "/console"
_NOT_FOUND = 404

_SMALL_ANSWER_BYTES = 64 * 1024
"""Bytes of an answer that leave at once, or wait in the buffer of their connection."""

_MAX_DIGITS = 18
"""Digits of a length that are read."""


class _Answer:
    """The answer of a request on its way out: adds headers, and tells the accounting as it begins and as it ends.

    A request holds a place among those of its key at once until it is answered. Who has an answer may ask again before its
    sending is over here: a small one leaves the place just before.

    Args:
        request: The request.
        accounting: Takes note of its end.
        send: Sends the answer.
        send_whole: Sends a whole answer, see `ANSWER_EXTENSION`; None where there is nothing that does.
    """

    __slots__ = (
        "_accounting",
        "_begun",
        "_is_whole",
        "_length",
        "_request",
        "_send",
        "_send_whole",
        "headers",
        "quota",
        "rate",
        "scope",
    )

    def __init__(
        self,
        request: RequestContext,
        accounting: Accounting,
        send: Send,
        send_whole: Callable[[int, list[tuple[bytes, bytes]], bytes], bool] | None,
    ) -> None:
        self._request = request
        self._accounting = accounting
        self._send = send
        self._send_whole = send_whole
        self._begun: Any = None
        """How an answer of a known length begins, until its body is there."""
        self._length = b""
        self._is_whole = True
        self.headers: list[tuple[bytes, bytes]] = []
        """Headers that the answer gets besides."""
        self.rate: RateHeaders = ()
        """Headers that it gets unless it has such ones."""
        self.quota: Quota | None = None
        """Quota of the key, while the request holds a place of it."""
        self.scope: Mapping[str, Any] = {}
        """Scope in which the framework leaves the route of the request, once it is found."""

    async def send(self, message: Message) -> None:
        """Send a message of the answer."""
        request = self._request
        if message["type"] == "http.response.start":
            status = message["status"]
            message["headers"] = self._with_headers(message.get("headers", []))
            self.note_route(status)
            self._accounting.answer(request, status)
            if self._length and self._send_whole is not None and request.method != "HEAD":
                self._begun = message
                return
        elif message["type"] == "http.response.body":
            body, goes_on = message.get("body", b""), message.get("more_body", False)
            size = len(body)
            request.bytes_out += size
            self._is_whole = self._is_whole and not goes_on
            if self._is_whole and size <= _SMALL_ANSWER_BYTES:
                self.leave_place()
            if not goes_on:
                self._accounting.count(request, outcome_of_status(int(request.status)))
            begun, self._begun = self._begun, None
            if begun is not None and self._send_whole is not None:
                is_whole = not goes_on and self._length == b"%d" % size
                if is_whole and self._send_whole(begun["status"], begun["headers"], body):
                    return
                await self._send(begun)
        await self._send(message)

    def note_route(self, status: int = 0) -> None:
        """Note which route answers the request, if the framework has found one."""
        handler = self.scope.get("route_handler")
        if handler is None:
            return
        request, path = self._request, self.scope["path"]
        request.need = handler.opt.get("need", "admin")
        request.takes_data = "audited" in handler.opt
        request.route = str(self.scope.get("path_template", ""))
        if status == _NOT_FOUND:
            return
        if path in _STATE_PATHS:
            request.protocol = "state"
        else:
            request.protocol = "console" if path.startswith(_CONSOLE) else "api"

    def leave_place(self) -> None:
        """Give back the place among the requests of the key, unless that is done."""
        if self.quota is not None:
            self.quota.end()
            self.quota = None

    def _with_headers(self, present: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Return the headers of the answer: with those added, the id and the trace of the request."""
        request, headers = self._request, [*present]
        names = {name.lower(): value for name, value in headers}
        self._length = names.get(b"content-length", b"")
        if b"ratelimit" not in names:
            headers += self.rate
        headers += self.headers
        if (own_id := names.get(REQUEST_ID_HEADER)) is None:
            headers.append((REQUEST_ID_HEADER, request.id.encode()))
        else:
            request.id = own_id.decode("latin-1")
        if request.trace is not None:
            headers.append((TRACEPARENT_HEADER, request.trace.traceparent.encode()))
        return headers


class AsgiFront:
    """The ASGI application: rules for browsers, the gate, then the protocols, else the routes.

    It also removes Chariot's prefix and trailing slashes from paths, and closes connections when the server ends.

    Args:
        routes: The application with the routes.
        protocols: Operations of the protocols, which go first.
        intake: Counts the bytes of bodies.
        gate: Tells who sends a request.
        rules: Which requests of browsers are refused.
        accounting: Takes note of requests: metrics, audit log, log of requests and traces.
    """

    def __init__(
        self,
        routes: ASGIApp,
        protocols: Dispatcher,
        intake: Intake,
        *,
        gate: Gate,
        rules: BrowserRules,
        accounting: Accounting,
    ) -> None:
        self._accounting = accounting
        self._routes = routes
        self._gate = gate
        self._rules = rules
        self._intake = intake
        self._protocols = protocols
        self.closing = False
        """Whether every response closes its connection, as the server ends."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, and take note of its end."""
        headers = headers_by_name(scope["headers"])
        request = RequestContext(
            id=identify_request(scope, headers),
            method=str(scope.get("method")),
            path=scope["path"],
            address=client_address(scope),
            caller=STRANGER,
            bytes_in=announced_bytes(headers, self._intake.max_bytes),
        )
        set_current_request(request)  # each request has a task of its own
        self._accounting.begin(
            request, headers.get(TRACEPARENT_HEADER) or headers.get(EVENT_HEADER)
        )
        send_whole: Any = (scope.get("extensions") or {}).get(ANSWER_EXTENSION)
        answer = _Answer(request, self._accounting, send, send_whole)
        try:
            with self._intake.receiving(scope, receive) as receive_body:
                await self._respond(request, answer, scope, headers=headers, receive=receive_body)
        finally:
            answer.leave_place()
            if not request.status:
                answer.note_route()
            self._accounting.end(request, sys.exception())

    async def _respond(
        self,
        request: RequestContext,
        answer: _Answer,
        scope: Scope,
        *,
        headers: Mapping[bytes, bytes],
        receive: Receive,
    ) -> None:
        method, send = request.method, answer.send
        full_path = scope["path"].rstrip("/") or "/"
        path = without_gateway_prefix(full_path)
        if self.closing:
            answer.headers.append((b"connection", b"close"))
        try:
            self._rules.check(method, path, headers, scheme=scope["scheme"])
        except Forbidden as error:
            await send_body(send, *error_response(error, request.id))
            return
        if shared_headers := self._rules.shared_with(headers):
            answer.headers += shared_headers
            if method == "OPTIONS" and (allowed := self._rules.preflight(headers)) is not None:
                await send_body(send, 204, b"", allowed)
                return
        request.identify = partial(
            self._gate.identify, self._reader(method, headers, scope["scheme"])
        )
        caller = request.caller = request.identify()
        extensions: Any = scope.get("extensions") or {}
        if caller.rights and caller is not ANYBODY:
            extensions[CALLER_EXTENSION] = {}
        match, operation = self._find(request, path=path, full_path=full_path)
        quota = caller.quota
        if quota is not None and (operation is None or operation.need != "nothing"):
            try:
                answer.rate = quota.begin()
            except ProtocolError as error:
                await send_body(send, *error_response(error, request.id))
                return
            answer.quota = quota
        if match is not None:
            await self._protocols.respond(match, scope, receive, send, caller=caller)
            return
        # The server drops the body of an answer to HEAD itself.
        verb = "GET" if method == "HEAD" else method
        inner: Any = {**scope, "method": verb, "path": path, "raw_path": path.encode()}
        answer.scope = inner
        if b"json" in headers.get(b"content-type", b"json"):
            receive = _without_mark(receive)
        await self._routes(inner, receive, send)

    def _find(
        self, request: RequestContext, *, path: str, full_path: str
    ) -> tuple[Match | None, Operation | None]:
        """Find the operations of a path, or of it with Chariot's prefix, which may name the model; and that of the method."""
        match = self._protocols.match(path, request.method)
        if path != full_path:
            match = self._protocols.match(full_path, request.method) or match
        if match is None:
            return None, None
        operation = match[0].get("GET" if request.method == "HEAD" else request.method)
        if operation is not None:
            request.need, request.protocol = operation.need, operation.protocol
            request.route = operation.path
        return match, operation

    def _reader(
        self, method: str, headers: Mapping[bytes, bytes], scheme: str
    ) -> Callable[[bytes], bytes | None]:
        """Return what reads the headers for the gate: without cookies that the browser may have added by itself."""
        if b"cookie" in headers and not self._rules.may_use_session(method, headers, scheme):
            return without_cookies(headers)
        return headers.get


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

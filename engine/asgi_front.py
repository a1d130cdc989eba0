"""What a request over HTTP meets first: who sends it, and which of the protocols or routes answers it."""

from collections.abc import Callable, Mapping
from typing import Any

from litestar.types import ASGIApp, Message, Receive, Scope, Send

from quadriga.engine.access.audit import WatchedRequest
from quadriga.engine.access.browsers import BrowserRules
from quadriga.proto.access import Gate, set_current_caller
from quadriga.proto.audit import Audit
from quadriga.proto.chariot import without_gateway_prefix
from quadriga.proto.errors import Forbidden
from quadriga.proto.http import error_response, send_body
from quadriga.proto.intake import Intake
from quadriga.proto.operations import Dispatcher


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
    ) -> None:
        self._routes = routes
        self._gate = gate
        self._rules = rules
        self._audit = audit
        self._intake = intake
        self._protocols = protocols
        self.closing = False
        """Whether every response closes its connection, as the server ends."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; its end is seen by the audit log."""
        request = WatchedRequest(self._audit, scope, send)
        try:
            with self._intake.receiving(scope, receive) as receive_body:
                await self._respond(request, scope, receive_body)
        finally:
            request.end()

    async def _respond(self, request: WatchedRequest, scope: Scope, receive: Receive) -> None:
        send: Send = request.send
        if self.closing:
            send = _with_headers(send, [(b"connection", b"close")])
        method, headers = str(scope.get("method")), dict(scope["headers"])
        full_path = scope["path"].rstrip("/") or "/"
        path = without_gateway_prefix(full_path)
        try:
            self._rules.check(method, path, headers)
        except Forbidden as error:
            await send_body(send, *error_response(error))
            return
        if shared_headers := self._rules.shared_with(headers):
            send = _with_headers(send, shared_headers)
            if method == "OPTIONS" and (answer := self._rules.preflight(headers)) is not None:
                await send_body(send, 204, b"", answer)
                return
        if b"cookie" in headers and not self._rules.may_use_session(method, headers):
            caller = self._gate.identify(without_cookies(headers))
        else:
            caller = self._gate.identify(headers.get)
        set_current_caller(caller)  # each request has a task of its own
        request.caller = caller
        match = self._protocols.match(path, method)
        if path != full_path:  # the prefix may name the model
            match = self._protocols.match(full_path, method) or match
        if match is not None:
            operation = match[0].get(method)
            request.need = "nothing" if operation is None else operation.need
            await self._protocols.respond(match, scope, receive, send, caller=caller)
            return
        method = "GET" if method == "HEAD" else method  # the server drops the body itself
        inner: Any = {**scope, "method": method, "path": path, "raw_path": path.encode()}
        request.route_scope = inner
        await self._routes(inner, receive, send)


def without_cookies(headers: Mapping[bytes, bytes]) -> Callable[[bytes], bytes | None]:
    """Return what reads all headers but `Cookie`."""
    return lambda name: None if name == b"cookie" else headers.get(name)


def _with_headers(send: Send, headers: list[tuple[bytes, bytes]]) -> Send:
    async def send_more(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *headers]
        await send(message)

    return send_more

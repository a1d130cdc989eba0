"""One request over HTTP on its way to the counts of how requests end, and to whoever takes note of it."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from quadriga.proto.audit import current_notes
from quadriga.proto.http.asgi import LEFT_EXTENSION
from quadriga.proto.outcomes import (
    OtherWire,
    Outcome,
    RequestCounter,
    WireProtocol,
    outcome_of_status,
)
from quadriga.proto.request_facts import RequestFacts
from quadriga.proto.trace_context import TRACEPARENT_HEADER

Message = MutableMapping[str, Any]
Send = Callable[[Any], Awaitable[None]]

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

"""What is known of one request, for its line in the log and its trace; filled in on its way from arrival to answer."""

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Literal, Protocol

import msgspec

from quadriga.proto.outcomes import OtherWire, Outcome, WireProtocol
from quadriga.proto.trace_context import TraceContext, parse_traceparent


class ModelRun(msgspec.Struct, frozen=True):
    """What a model did for a request; of a model with another one behind it, both together."""

    model: str
    version: str
    begun_ns: int
    """When its thread began, in ns of `time.perf_counter_ns`."""
    stages_ms: Mapping[str, float]
    """Milliseconds of `queue`, `preprocess`, `infer` and `postprocess`."""
    duration_ms: float
    """Milliseconds from the beginning in its thread to the end, with the store."""
    inferences: int = 0
    """Images, rows or sets of tensors that were answered; 0 if it failed."""
    inference_ids: Sequence[str] = ()
    """Ids of those that are stored."""


class RequestFacts(msgspec.Struct, kw_only=True):
    """One request."""

    request_id: str
    method: str
    """Verb of HTTP, or `RPC`."""
    path: str
    """Path without its query, or name of the call."""
    key_id: str = ""
    """Id of the caller's key; empty without one."""
    trace: TraceContext | None = None
    """Trace that the request is part of: its own span where this server records it, else that of its client."""
    parent: TraceContext | None = None
    """Context that the client sent."""
    span: Any = None
    """Span of the request, whose context is `trace`; None if this server does not record it."""
    restart: Callable[["RequestFacts"], object] | None = None
    """Begins the span anew, as `parent` has changed; None if this server records no spans."""
    begun_ns: int = 0
    """When it came, in ns of `time.perf_counter_ns`."""
    begun_epoch_ns: int = 0
    """The same moment in ns since 1970."""
    ended_ns: int = 0
    protocol: WireProtocol | OtherWire = "none"
    route: str = ""
    """Template of the path, where it is known."""
    status: int | str = 0
    """HTTP status, or gRPC code; 0 if there was no answer."""
    outcome: Outcome | Literal[""] = ""
    bytes_in: int = 0
    bytes_out: int = 0
    run: ModelRun | None = None
    """What a model did; None if none began."""

    def continue_trace(self, traceparent: str) -> None:
        """Take the context that came within the body; one of a header has precedence."""
        if self.parent is not None or (parent := parse_traceparent(traceparent)) is None:
            return
        self.parent = self.trace = parent
        if self.restart is not None:
            self.restart(self)

    @property
    def duration_ms(self) -> float:
        """Milliseconds from the arrival to the end of the answer."""
        return (self.ended_ns - self.begun_ns) / 1e6


class RequestObserver(Protocol):
    """Takes note of requests; called on the event loop."""

    observes_all: bool
    """Whether requests are observed that are part of no trace."""

    def begin(
        self, request_id: str, method: str, path: str, traceparent: bytes | None
    ) -> RequestFacts | None:
        """Return what will be filled in; None for a request that nobody takes note of."""

    def end(self, facts: RequestFacts) -> None:
        """Take note of a request that is over."""


class NoObserver:
    """Takes note of nothing."""

    observes_all = False

    def begin(self, *_: object) -> None:
        """Return None."""

    def end(self, _: RequestFacts) -> None:
        """Return."""


_current: ContextVar[RequestFacts | None] = ContextVar("facts", default=None)


def current_facts() -> RequestFacts | None:
    """Return what is known of the request that this task answers; None if nobody takes note of it."""
    return _current.get()


def set_current_facts(facts: RequestFacts | None) -> None:
    """Set the facts that this task fills in from now on."""
    _current.set(facts)


def trace_fields(request_id: str) -> dict[str, str]:
    """Return the fields of a line of the log about the request that this task answers."""
    facts = _current.get()
    fields = {"request_id": request_id}
    if facts is not None and facts.trace is not None:
        fields["trace_id"] = facts.trace.trace_id
    return fields

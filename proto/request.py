"""One request, over any protocol: what is known of it, the time that it has, and the one place that counts its end.

A `RequestContext` is made once, as a request arrives, and is handed on; deep code finds it by `current_request`. `Accounting`
takes note of its end: for the metrics, the audit log, the log of requests, and the trace.

Source: W3C, Trace Context, level 1 (recommendation of 2021), section 3.2, for `traceparent`.
"""

import logging
import math
import random
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Literal, get_args

import msgspec

from quadriga.proto.access import ANYBODY, CHANGING, Caller, Need
from quadriga.proto.errors import (
    ClientLeft,
    DeadlineExceeded,
    InvalidRequest,
    KeysNotRead,
    LimitReached,
    ModelFailed,
    ModelNotReady,
    Overloaded,
    ProtocolError,
    translate_recursion_error,
)
from quadriga.proto.idempotency import RepeatableRequest
from quadriga.quoting import quoted

_log = logging.getLogger("quadriga.access")

# Its id.

REQUEST_ID_HEADER = b"x-request-id"
_REQUEST_ID = re.compile(rb"[!-~]{1,128}")
_random = random.Random()  # noqa: S311 - ids are no secrets, and a call of the system takes longer
_VARIANTS = {digit: "89ab"[int(digit, 16) % 4] for digit in "0123456789abcdef"}


def new_request_id() -> str:
    """Return a random id in the form of a UUID (RFC 9562, version 4), in a third of the time that `uuid.uuid4` takes."""
    digits = f"{_random.getrandbits(128):032x}"
    variant = _VARIANTS[digits[16]]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


def error_request_id(header: bytes | str | None) -> str:
    """Return the id under which an error is logged and answered: the header `X-Request-ID` if it is sound, or a new one."""
    value = header.encode(errors="replace") if isinstance(header, str) else header or b""
    return value.decode() if _REQUEST_ID.fullmatch(value) else new_request_id()


def identify_request(scope: Any, headers: dict[bytes, bytes]) -> str:
    """Return the id of a request, as its header `X-Request-ID` has it from now on, for whoever reads it.

    An id that is not sound is replaced: it stands in the answer, in logs, and in what is stored.

    Args:
        scope: Scope of the request; its list of headers is changed where there is no sound id.
        headers: Its headers by name, changed alike.
    """
    value = headers.get(REQUEST_ID_HEADER)
    if value is not None and _REQUEST_ID.fullmatch(value):
        return value.decode()
    request_id = new_request_id()
    headers[REQUEST_ID_HEADER] = request_id.encode()
    headers_sent = scope["headers"]
    if value is not None:
        headers_sent = [header for header in headers_sent if header[0] != REQUEST_ID_HEADER]
    scope["headers"] = [*headers_sent, (REQUEST_ID_HEADER, request_id.encode())]
    return request_id


# How it ended.

Outcome = Literal[
    "success", "client_error", "refused", "deadline", "model_failure", "server_error", "gone"
]
"""`success`: answered; `client_error`: something in the request is wrong, or its key may not do it; `refused`: too much
at once, or a limit of a key, or what is needed for it is not ready; `deadline`: it took longer than it may;
`model_failure`: the model failed; `server_error`: a fault of the server; `gone`: its client left before the answer."""

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

WireProtocol = Literal["v2", "v1", "chariot-v2", "generate", "grpc"]
OtherWire = Literal["state", "api", "console", "none"]

WIRE_PROTOCOLS: tuple[WireProtocol, ...] = get_args(WireProtocol)
"""Protocols by which requests for inferences come."""

OTHER_WIRES: tuple[OtherWire, ...] = get_args(OtherWire)
"""What else comes: health, metadata and control of models over any protocol; routes of the API; pages of the console; and
what was refused before it was known what it asks for, or asks for nothing that is there."""

_BY_ERROR: tuple[tuple[type[Exception], Outcome], ...] = (
    (ClientLeft, "gone"),
    (DeadlineExceeded, "deadline"),
    (ModelFailed, "model_failure"),
    (Overloaded, "refused"),
    (LimitReached, "refused"),
    (ModelNotReady, "refused"),
    (KeysNotRead, "refused"),
)

_WIRES: dict[str, WireProtocol] = {
    **{name: name for name in WIRE_PROTOCOLS},
    "chariot": "v2",
    "v2-extensions": "v2",
    "v2-grpc": "grpc",
}


def wire_protocol(name: str) -> WireProtocol | OtherWire:
    """Return the protocol of a request by the name that requests and the table of protocols have; `none` if unknown."""
    return _WIRES.get(name.removesuffix("-cloudevents"), "none")


def outcome_of_error(error: Exception) -> Outcome:
    """Return the outcome of a request that ended with an error."""
    error = translate_recursion_error(error)
    for kind, outcome in _BY_ERROR:
        if isinstance(error, kind):
            return outcome
    status = getattr(error, "status", 500)
    if status == 501 and isinstance(error, ProtocolError):  # asks for what is not offered
        return "client_error"
    return outcome_of_status(status)


def outcome_of_status(status: int) -> Outcome:
    """Return the outcome of a request that was answered with an HTTP status."""
    if status < 400:
        return "success"
    if status in (429, 503):
        return "refused"
    if status == 504:
        return "deadline"
    return "client_error" if status < 500 else "server_error"


# The trace that it is part of.

TRACEPARENT = "traceparent"
TRACEPARENT_HEADER = TRACEPARENT.encode()
EVENT_HEADER = b"ce-traceparent"
"""Header with the attribute of a CloudEvent (CloudEvents, extension "distributed tracing")."""

SAMPLED = 1
"""Bit of the flags: whoever made the context records the trace."""

_FORM = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?")
_MAX_BYTES = 512


class TraceContext(msgspec.Struct, frozen=True):
    """A trace, and the span of it from which something comes."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits."""
    flags: int = 0

    @property
    def traceparent(self) -> str:
        """The context as a header has it."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags & SAMPLED:02x}"


def parse_traceparent(value: bytes | str | None) -> TraceContext | None:
    """Read a header `traceparent`; return None for one that is not valid, which counts as absent.

    Of versions after 00 the parts of 00 are read.
    """
    if not value:
        return None
    value = value.encode(errors="replace") if isinstance(value, str) else value
    match = _FORM.fullmatch(value) if len(value) <= _MAX_BYTES else None
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if version == b"ff" or (version == b"00" and rest is not None):
        return None
    if not trace_id.strip(b"0") or not span_id.strip(b"0"):
        return None
    return TraceContext(trace_id.decode(), span_id.decode(), int(flags, 16))


# The time that it has.

SERVER_LIMIT = "the setting request_timeout_s; send less in a request, or raise the setting"
TIMEOUT_HEADER = b"request-timeout"
TIMING_HEADER = b"quadriga-timing"
"""Header with which a request asks for the times of its stages: `true`."""
HEADER_LIMIT = "the request's header Request-Timeout"
PARAMETER_LIMIT = "the request's parameter timeout, in microseconds"
CALL_LIMIT = "the deadline of the gRPC call"


_stopping = threading.Lock()
"""Held for a moment by whoever stops a request: its own thread and the watching one find the same end of its time."""


class Deadline:
    """Time limit of one request from now on; safe to use from several threads.

    `quadriga.proto.http.operations.Dispatcher` and `quadriga.proto.grpc.service` begin it; what takes long checks it.

    Args:
        timeout_s: Seconds that the request has.
        limit: Where these come from, for the error.
    """

    __slots__ = (
        "_abandon",
        "_arrived_s",
        "_interrupt",
        "_limit",
        "_timeout_s",
        "error",
        "expires_s",
    )

    def __init__(self, timeout_s: float = math.inf, limit: str = SERVER_LIMIT) -> None:
        self._arrived_s = time.monotonic()
        self._timeout_s = timeout_s
        self.expires_s = self._arrived_s + timeout_s
        """Moment at which the request has no time left, in seconds of `time.monotonic`."""
        self._limit = limit
        self._abandon: Callable[[], object] | None = None
        self._interrupt: Callable[[], object] | None = None
        self.error: ProtocolError | None = None
        """Why the request was stopped; None while it goes on."""

    def shorten(self, timeout_s: float, limit: str) -> None:
        """Set a limit that also counts from the arrival, unless the present one is shorter."""
        if timeout_s < self._timeout_s:
            self._timeout_s, self._limit = timeout_s, limit
            self.expires_s = self._arrived_s + timeout_s

    def remaining_s(self) -> float:
        """Return the seconds that are left; negative if there are none."""
        return self.expires_s - time.monotonic()

    def exceeded(self) -> DeadlineExceeded:
        """Return the error of a request that takes longer than its limit."""
        return DeadlineExceeded(
            f"expected an answer within {self._timeout_s:g} s, got none: the limit is {self._limit}"
        )

    def stop(self, error: ProtocolError) -> None:
        """End the work for the request: only the first error counts."""
        with _stopping:
            if self.error is not None:
                return
            self.error = error  # before the callbacks are read: who sets one later finds the error
        for callback in (self._abandon, self._interrupt):
            if callback is not None:
                callback()

    def check(self) -> None:
        """Raise the error with which the request was stopped, or `DeadlineExceeded` if its time is over."""
        if self.error is None and time.monotonic() >= self.expires_s:
            self.stop(self.exceeded())
        if self.error is not None:
            raise self.error

    def on_stop(self, abandon: Callable[[], object] | None) -> None:
        """Call a function, in any thread, once the request is stopped; None to call none."""
        self._abandon = abandon

    def interrupt_by(self, interrupt: Callable[[], object]) -> None:
        """Call a function, in any thread, if the request is stopped during the run that begins now; checks first."""
        self._interrupt = interrupt
        self.check()


def read_timeout_header(value: bytes) -> float:
    """Read the header `Request-Timeout`: seconds, such as `2` or `0.5`.

    Raises:
        InvalidRequest: It is no number above 0.
    """
    try:
        timeout_s = float(value)
    except ValueError:
        timeout_s = math.nan
    if not 0 < timeout_s < math.inf:
        raise InvalidRequest(
            f"expected Request-Timeout to be seconds above 0, got {quoted(value.decode('latin-1'), 40)}"
        )
    return timeout_s


def read_timeout_parameter(value: object) -> float | None:
    """Read Triton's parameter `timeout`, in microseconds; return seconds, or None for 0, which sets no limit.

    Raises:
        InvalidRequest: It is no whole number from 0.

    Source: Triton Inference Server, protocol extension "schedule policy".
    """
    if type(value) is not int or value < 0:
        raise InvalidRequest(
            f"expected parameters.timeout to be a whole number of microseconds from 0, got {quoted(value, 40)}"
        )
    return value / 1e6 if value else None


# The request.


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


class RequestContext(msgspec.Struct, kw_only=True, eq=False):
    """One request: of HTTP, a call of gRPC, or a message of a stream of gRPC. One thread at a time works for it."""

    id: str = ""
    method: str = ""
    """Verb of HTTP, or `RPC`."""
    path: str = ""
    """Path without its query, or name of the call."""
    address: str = ""
    """Address of the client."""

    caller: Caller = ANYBODY
    identify: Callable[[], Caller] | None = None
    """Finds the caller anew, as its key may end while a long request is answered; None where it cannot."""
    need: Need = "nothing"
    """What the operation, route or RPC needs."""
    takes_data: bool = False
    """Whether the route declares that it takes data away, as exports do."""
    deadline: Deadline | None = None
    repeatable: RepeatableRequest | None = None
    """The claim of its idempotency key; None for a request without one."""
    wants_timing: bool = False
    """Whether the answer has the times of its stages."""

    begun_ns: int = 0
    """When it came, in ns of `time.perf_counter_ns`."""
    begun_epoch_ns: int = 0
    """The same moment in ns since 1970."""
    ended_ns: int = 0
    parent: TraceContext | None = None
    """Context that the client sent."""
    trace: TraceContext | None = None
    """Trace that the request is part of: its own span where this server records it, else that of its client."""
    span: Any = None
    """Span of the request, whose context is `trace`; None if this server does not record it."""
    restart: Callable[["RequestContext"], object] | None = None
    """Begins the span anew, as `parent` has changed; None if this server records no spans."""

    protocol: WireProtocol | OtherWire = "none"
    route: str = ""
    """Template of the path, where it is known."""
    status: int | str = 0
    """HTTP status, or gRPC code; 0 if there was no answer."""
    outcome: Outcome | Literal[""] = ""
    """How it ended, as soon as an error or the end of its answer says so."""
    is_counted: bool = False
    """Whether its outcome is counted."""
    is_noted: bool = True
    """Whether its end is counted and logged, as that of all but streams, whose messages are requests."""
    has_left: bool = False
    """Whether its client has left before the end of its body."""
    bytes_in: int = 0
    bytes_out: int = 0
    run: ModelRun | None = None
    """What a model did; None if none began."""

    target: str = ""
    """Id or name of what is changed, for the audit log, where the path does not have it."""
    number: int | None = None
    """Inferences or lines that were changed, for the audit log."""
    refusals: int = 0
    """Messages of a stream that were refused, while the stream goes on."""
    refusal_code: str = "PERMISSION_DENIED"
    """gRPC code of the last of these."""

    queue_ns: int = 0
    """Nanoseconds that it waited for a thread, until the first model takes note of them."""
    events: list[Any] | None = None
    """Runs of a model's graph while that answers, as `quadriga.engine.measures.model_counts` notes them; else None."""
    give_up_place: Callable[[], AbstractContextManager[None]] | None = None
    """Lets another request run while this one waits; None where it holds no place."""

    @property
    def duration_ms(self) -> float:
        """Milliseconds from the arrival to the end of the answer."""
        return (self.ended_ns - self.begun_ns) / 1e6

    def continue_trace(self, traceparent: str) -> None:
        """Take the context that came within the body; one of a header has precedence."""
        if self.parent is not None or (parent := parse_traceparent(traceparent)) is None:
            return
        self.parent = self.trace = parent
        if self.restart is not None:
            self.restart(self)


_current: ContextVar[RequestContext | None] = ContextVar("request", default=None)


def current_request() -> RequestContext | None:
    """Return the request that this task or thread answers; None outside of a request."""
    return _current.get()


def set_current_request(request: RequestContext | None) -> None:
    """Set the request that this task or thread answers from now on; None for none."""
    _current.set(request)


def current_caller() -> Caller:
    """Return the caller of the request that this task or thread answers; `ANYBODY` outside of a request."""
    request = _current.get()
    return ANYBODY if request is None else request.caller


def identify_again() -> Caller:
    """Return the caller of a long request as it is now, since its key may have ended meanwhile.

    The request has that caller from then on, unless the key has ended: what is noted of its end names whose key it was.
    """
    request = _current.get()
    if request is None or request.identify is None:
        return current_caller()
    caller = request.identify()
    if caller.rights:
        request.caller = caller
    return caller


def current_deadline() -> Deadline | None:
    """Return the deadline of the request that this task or thread answers; None outside of a request."""
    request = _current.get()
    return None if request is None else request.deadline


def check_deadline() -> None:
    """Raise if the request that this thread answers was stopped or has no time left; see `Deadline.check`."""
    if (deadline := current_deadline()) is not None:
        deadline.check()


def limit_by_parameter(value: object, watch: Callable[[Deadline], object]) -> None:
    """Shorten the time of the request that this thread answers by its parameter `timeout`, and check what is left.

    Args:
        value: Value of the parameter; None where the request has none.
        watch: Called with the deadline if it was shortened.

    Raises:
        InvalidRequest: The value is no whole number from 0.
        DeadlineExceeded: No time is left.
    """
    deadline = current_deadline()
    if deadline is None:
        return
    timeout_s = None if value is None else read_timeout_parameter(value)
    if timeout_s is not None:
        deadline.shorten(timeout_s, PARAMETER_LIMIT)
        watch(deadline)
    deadline.check()


def log_fields(request_id: str) -> dict[str, str]:
    """Return the fields of a line of the log about the request that this task answers under an id."""
    request = _current.get()
    if request is None or request.trace is None:
        return {"request_id": request_id}
    return {"request_id": request_id, "trace_id": request.trace.trace_id}


def note_target(target: str) -> None:
    """Note what the request changes, for the audit log: a name or an id."""
    if (request := _current.get()) is not None:
        request.target = target


def note_number(number: int) -> None:
    """Note how many inferences or lines the request has changed, for the audit log."""
    if (request := _current.get()) is not None:
        request.number = number


def note_outcome(outcome: Outcome) -> None:
    """Note how the request ended, where its error says more than its status."""
    if (request := _current.get()) is not None:
        request.outcome = outcome


# Those that wait.


class QueueStatistics(msgspec.Struct, frozen=True):
    """Requests to one model that wait or run now, and those that were not answered, since the start."""

    model: str
    """Name of the model; empty for requests that name no known model."""
    waiting: int = 0
    running: int = 0
    refused: dict[str, int] = {}
    """Requests refused on arrival, by reason."""
    stopped: dict[str, int] = {}
    """Requests stopped before their answer, by reason."""
    expected_wait_s: float = 0.0
    """Expected wait of a request of a further connection; of several processes, the longest."""


# Its end.

REFUSALS = frozenset({401, 403, 429, "UNAUTHENTICATED", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED"})
"""HTTP statuses and gRPC codes of a refused access."""

_READING = frozenset({"GET", "HEAD", "OPTIONS"})


def is_audited(need: Need, method: str, *, is_marked: bool = False) -> bool:
    """Check whether each request at a door is written to the audit log, whatever its answer.

    It follows from what a door needs, so that no new door is forgotten: one that needs the right to annotate, monitor or
    operate changes something, unless it is a GET; whatever an administrator may do is written.

    Args:
        need: What the door needs.
        method: Verb of the request; `RPC` for a call over gRPC.
        is_marked: Whether the door declares that it takes data away.
    """
    return is_marked or need == "admin" or (need in CHANGING and method not in _READING)


def client_address(scope: Mapping[str, Any]) -> str:
    """Return the address of the client of a request over HTTP; that of IPv4 in its own form, also on a socket of both families."""
    client: tuple[str, int] | None = scope.get("client")
    return "" if client is None else client[0].removeprefix("::ffff:")


class Audit:
    """The audit log, as the wire sees it; this one writes nothing, for a server that has none."""

    def check(self) -> None:
        """Check that it can be written; raises an error with a status where it cannot."""

    def write(self, request: RequestContext, status: int | str, action: str = "") -> None:
        """Write a request with its HTTP status or gRPC code; raises nothing.

        Args:
            request: The request.
            status: Its status.
            action: What it does; empty for its method and path.
        """

    def refuse(self, request: RequestContext, status: int | str, action: str = "") -> None:
        """Write or count a refusal; arguments as of `write`."""


def _count_nothing(_: WireProtocol | OtherWire, __: Outcome) -> None:
    pass


class Accounting:
    """The one place that takes note of requests; used on the event loop.

    Args:
        count: Counts a request by its protocol and outcome, for metrics.
        audit: The audit log; None for none.
        write_line: Writes the line of a request in the log; None for a log that is off.
        tracing: Records spans, a `quadriga.engine.measures.tracing.Tracing`; None for none.
    """

    def __init__(
        self,
        count: Callable[[WireProtocol | OtherWire, Outcome], object] = _count_nothing,
        *,
        audit: Audit | None = None,
        write_line: Callable[[RequestContext], object] | None = None,
        tracing: Any = None,
    ) -> None:
        self.audit = audit or Audit()
        self._count = count
        self._write_line = write_line
        self._tracing = tracing

    def begin(self, request: RequestContext, traceparent: bytes | None) -> None:
        """Note the arrival of a request, and the trace that it is part of."""
        request.begun_ns, request.begun_epoch_ns = time.perf_counter_ns(), time.time_ns()
        if traceparent is not None:
            request.parent = request.trace = parse_traceparent(traceparent)
        if self._tracing is not None:
            self._tracing.begin(request)

    def answer(self, request: RequestContext, status: int | str) -> None:
        """Note the status of a request before its answer leaves; a line of the audit log is written by then."""
        request.status = status
        if request.refusals:
            status = request.refusal_code
        if status in REFUSALS:
            self.audit.refuse(request, status)
        elif is_audited(request.need, request.method, is_marked=request.takes_data):
            self.audit.write(request, status)

    def count(self, request: RequestContext, outcome: Outcome) -> None:
        """Count how a request ended, once; an error that was noted says more than the end of the answer."""
        if request.is_noted and not request.is_counted:
            request.is_counted = True
            request.outcome = "gone" if request.has_left else request.outcome or outcome
            self._count(request.protocol, request.outcome)

    def count_unread(self, outcome: Outcome, protocol: WireProtocol | OtherWire = "none") -> None:
        """Count a request of which no more is known, as it was refused before it was read."""
        self._count(protocol, outcome)

    def end(self, request: RequestContext, error: BaseException | None = None) -> None:
        """Take note of a request that is over; one without an answer left, or a fault of the server ended it.

        A fault of the log or the trace is logged, as the request is answered.
        """
        if not request.status and is_audited(
            request.need, request.method, is_marked=request.takes_data
        ):
            self.audit.write(request, "no answer")
        if not request.is_noted:
            return
        self.count(request, "server_error" if isinstance(error, Exception) else "gone")
        request.ended_ns = time.perf_counter_ns()
        try:
            if self._write_line is not None:
                self._write_line(request)
            if self._tracing is not None:
                self._tracing.end(request)
        except Exception:  # noqa: BLE001 - the edge: the answer has left
            _log.exception("cannot take note of request %s", request.id)

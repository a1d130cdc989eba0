"""How a request ended, in one word, and by which protocol it came, for metrics: the one table of both.

An error decides where it is known, else the HTTP status or gRPC code of the answer.
"""

from typing import Literal, Protocol, get_args

from quadriga.proto.errors import (
    ClientLeft,
    DeadlineExceeded,
    KeysNotRead,
    LimitReached,
    ModelFailed,
    ModelNotReady,
    Overloaded,
    ProtocolError,
    translate_recursion_error,
)

Outcome = Literal[
    "success", "client_error", "refused", "deadline", "model_failure", "server_error", "gone"
]
"""`success`: answered; `client_error`: something in the request is wrong, or its key may not do it; `refused`: too much
at once, or a limit of a key, or what is needed for it is not ready; `deadline`: it took longer than it may;
`model_failure`: the model failed; `server_error`: a fault of the server; `gone`: its client left before the answer."""

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

WIRE_PROTOCOLS = ("v2", "v1", "chariot-v2", "generate", "grpc")
"""Protocols by which requests to models come."""

OTHER_WIRES = ("api", "console", "probe", "none")
"""What else comes: routes of the API, pages of the console, what needs no key (health), and what has no door."""

_BY_ERROR: tuple[tuple[type[Exception], Outcome], ...] = (
    (ClientLeft, "gone"),
    (DeadlineExceeded, "deadline"),
    (ModelFailed, "model_failure"),
    (Overloaded, "refused"),
    (LimitReached, "refused"),
    (ModelNotReady, "refused"),
    (KeysNotRead, "refused"),
)

_BY_CODE: dict[str, Outcome] = {
    "OK": "success",
    "INVALID_ARGUMENT": "client_error",
    "UNAUTHENTICATED": "client_error",
    "PERMISSION_DENIED": "client_error",
    "NOT_FOUND": "client_error",
    "UNIMPLEMENTED": "client_error",
    "RESOURCE_EXHAUSTED": "refused",
    "UNAVAILABLE": "refused",
    "DEADLINE_EXCEEDED": "deadline",
    "CANCELLED": "gone",
    "no answer": "gone",
}

_WIRES = {
    **{name: name for name in WIRE_PROTOCOLS},
    "chariot": "v2",
    "v2-extensions": "v2",
    "v2-grpc": "grpc",
}


class RequestCounter(Protocol):
    """Counts requests by protocol and outcome; safe to use from several threads."""

    def count(self, protocol: str, outcome: Outcome) -> None:
        """Count a request: its protocol is one of `WIRE_PROTOCOLS` or `OTHER_WIRES`."""


class NoCounter:
    """Counts nothing."""

    def count(self, _: str, __: Outcome) -> None:
        """Return."""


def wire_protocol(name: str) -> str:
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


def outcome_of_code(code: str) -> Outcome:
    """Return the outcome of a call that ended with a gRPC code, or `no answer`."""
    return _BY_CODE.get(code, "server_error")

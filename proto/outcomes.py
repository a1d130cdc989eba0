"""How a request ended, in one word, and by which protocol it came, for metrics: the one table of both.

An error decides where it is known, else the HTTP status of the answer.
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


class RequestCounter(Protocol):
    """Counts requests by protocol and outcome; called on the event loop."""

    def count(self, protocol: WireProtocol | OtherWire, outcome: Outcome) -> None:
        """Count a request."""


class NoRequestCounter:
    """Counts nothing."""

    def count(self, _: WireProtocol | OtherWire, __: Outcome) -> None:
        """Return."""


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

"""What is written to the audit log: it follows from what a door needs, so that no new door is forgotten.

A door that needs the right to annotate, monitor or operate changes something, unless it is a GET; whatever an administrator
may do is written. Doors that need less and take data away, as exports do, are marked. Every refusal is written.
"""

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Literal, Protocol

import msgspec

from quadriga.proto.access import Caller, Need
from quadriga.proto.outcomes import Outcome

_CHANGING = frozenset({"annotate", "monitor", "operate"})
_READING = frozenset({"GET", "HEAD", "OPTIONS"})

REFUSALS = (401, 403, 429)
"""HTTP statuses of a refused access."""

REFUSAL_CODES = ("UNAUTHENTICATED", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED")
"""gRPC codes of a refused access."""


def is_audited(need: Need, method: str, *, is_marked: bool = False) -> bool:
    """Check whether each request at a door is written, whatever its answer.

    Args:
        need: What the door needs.
        method: Verb of the request; `RPC` for a call over gRPC.
        is_marked: Whether the door declares that it takes data away.
    """
    return is_marked or need == "admin" or (need in _CHANGING and method not in _READING)


def client_address(scope: Mapping[str, Any]) -> str:
    """Return the address of the client of a request; that of IPv4 in its own form, also on a socket of both families."""
    client: tuple[str, int] | None = scope.get("client")
    return "" if client is None else client[0].removeprefix("::ffff:")


class Notes(msgspec.Struct):
    """What a handler knows of its request for the audit log."""

    target: str = ""
    """Id or name of what is changed, where the path does not have it."""
    number: int | None = None
    """Inferences or lines that were changed."""
    refusals: int = 0
    """Refusals within a stream, which goes on after them."""
    refusal_code: str = "PERMISSION_DENIED"
    """gRPC code of the last of these."""
    request_id: str = ""
    """Id under which an error was answered."""
    outcome: Outcome | Literal[""] = ""
    """How the request ended, where its error says more than its status."""
    grpc_code: str = ""
    """Code with which a call was ended; empty if it was answered."""


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """Request at a door, as the audit log has it."""

    caller: Caller
    action: str
    """Verb and path, or `RPC` and the name of the call."""
    address: str
    request_id: str
    notes: Notes


class Audit(Protocol):
    """The audit log, as the wire sees it."""

    def check(self) -> None:
        """Check that it can be written; raises an error with a status where it cannot."""

    def write(self, visit: Visit, status: int | str) -> None:
        """Write a request with its HTTP status or gRPC code; raises nothing."""

    def refuse(self, visit: Visit, status: int | str) -> None:
        """Write or count a refusal; raises nothing."""


class NoAudit:
    """Audit log of a server that has none."""

    def check(self) -> None:
        """Return."""

    def write(self, _: Visit, __: int | str) -> None:
        """Return."""

    def refuse(self, _: Visit, __: int | str) -> None:
        """Return."""


_notes: ContextVar[Notes | None] = ContextVar("notes", default=None)


def set_notes(notes: Notes) -> None:
    """Let what this task does from now on note into `notes`."""
    _notes.set(notes)


def note_target(target: str) -> None:
    """Note what the request changes: a name or an id."""
    if (notes := _notes.get()) is not None:
        notes.target = target


def current_notes() -> Notes:
    """Return the notes of the request that this task answers; those of nothing outside of a request."""
    return _notes.get() or Notes()


def note_number(number: int) -> None:
    """Note how many inferences or lines the request has changed."""
    if (notes := _notes.get()) is not None:
        notes.number = number

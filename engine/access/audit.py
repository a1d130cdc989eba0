"""The audit log of a worker: sees the end of each HTTP request, and writes those that belong there."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from quadriga.engine.config.settings import Settings
from quadriga.proto.access import STRANGER, Caller, Need
from quadriga.proto.audit import (
    REFUSALS,
    Audit,
    NoAudit,
    Notes,
    Visit,
    client_address,
    is_audited,
    set_notes,
)
from quadriga.proto.errors import Overloaded
from quadriga.proto.http.asgi import REQUEST_ID_HEADER
from quadriga.store.audit.entries import AuditEntry
from quadriga.store.audit.log import AuditLog
from quadriga.store.errors import AuditError

Message = MutableMapping[str, Any]
Send = Callable[[Any], Awaitable[None]]


def open_log(settings: Settings, process: str) -> AuditLog | None:
    """Return the audit log of a process; None if it is switched off."""
    if not settings.audit_days:
        return None
    return AuditLog(settings.audit_directory, process, settings.audit_days)


class AuditTrail:
    """`quadriga.proto.audit.Audit` in the files of a worker."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log

    def check(self) -> None:
        """Raise Overloaded if lines cannot be written."""
        try:
            self._log.check()
        except AuditError as error:  # the log of the process has the reason
            raise Overloaded(str(error)) from error

    def write(self, visit: Visit, status: int | str) -> None:
        """Write a request."""
        self._log.write(_entry(visit, status))

    def refuse(self, visit: Visit, status: int | str) -> None:
        """Write or sum a refusal."""
        self._log.refuse(_entry(visit, status))


def note_first_key(log: AuditLog | None, key_id: str) -> None:
    """Write that the server has made its first key."""
    if log is not None:
        log.write(AuditEntry(time="", action="first key", status="done", target=key_id))


def audit_of(log: AuditLog | None) -> Audit:
    """Return what writes to a log, and nothing for None."""
    return NoAudit() if log is None else AuditTrail(log)


def _entry(visit: Visit, status: int | str) -> AuditEntry:
    return AuditEntry(
        time="",  # the log sets it
        action=visit.action,
        status=status,
        key_id=visit.caller.key_id,
        name=visit.caller.name,
        address=visit.address,
        target=visit.notes.target,
        number=visit.notes.number,
        request_id=visit.request_id,
        times=max(1, visit.notes.refusals),
    )


class WatchedRequest:
    """One HTTP request on its way: its line is written before its answer is sent.

    Args:
        audit: The audit log.
        scope: Scope of the request.
        send: Sends its answer.
        request_id: Its id, which the answer gets unless it has one.
    """

    __slots__ = (
        "_audit",
        "_id",
        "_is_over",
        "_notes",
        "_scope",
        "_send",
        "caller",
        "need",
        "route_scope",
    )

    def __init__(self, audit: Audit, scope: Any, send: Send, request_id: bytes) -> None:
        self._id = request_id
        self._audit = audit
        self._scope = scope
        self._send = send
        self._notes = Notes()
        self._is_over = False
        self.caller: Caller = STRANGER
        self.need: Need = "nothing"
        """What the operation needs; unknown for a route before it is found."""
        self.route_scope: Mapping[str, Any] = {}
        """Scope in which the framework leaves the route of the request, once it is found."""
        set_notes(self._notes)

    @property
    def request_id(self) -> str:
        """Id of the request."""
        return self._id.decode()

    @property
    def is_audited(self) -> bool:
        """Whether the request is written whatever its answer."""
        method, route = self._scope["method"], self.route_scope.get("route_handler")
        if route is None:
            return is_audited(self.need, method)
        return is_audited(route.opt.get("need", "admin"), method, is_marked="audited" in route.opt)

    async def send(self, message: Any) -> None:
        """Send a message of the answer."""
        if message["type"] == "http.response.start":
            self._end(message["status"], self._identify(message))
        await self._send(message)

    def end(self) -> None:
        """Write the request if it belongs into the log and got no answer."""
        if not self._is_over and self.is_audited:
            self._end("no answer", self.request_id)

    def _end(self, status: int | str, request_id: str) -> None:
        self._is_over = True
        is_refused = status in REFUSALS
        if not is_refused and not self.is_audited:
            return
        visit = Visit(
            caller=self.caller,
            action=f"{self._scope['method']} {self._scope['path']}",
            address=client_address(self._scope),
            request_id=request_id,
            notes=self._notes,
        )
        if is_refused:
            self._audit.refuse(visit, status)
        else:
            self._audit.write(visit, status)

    def _identify(self, message: Message) -> str:
        """Return the id of the answer, which is given that of the request if it has none."""
        headers = message.get("headers", [])
        for name, value in headers:
            if name.lower() == REQUEST_ID_HEADER:
                return str(value.decode("latin-1"))
        message["headers"] = [*headers, (REQUEST_ID_HEADER, self._id)]
        return self.request_id

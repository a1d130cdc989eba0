"""The audit log of a worker, in its files."""

from quadriga.engine.config.settings import Settings
from quadriga.proto.errors import Overloaded
from quadriga.proto.request import Audit, RequestContext
from quadriga.store.audit.entries import AuditEntry
from quadriga.store.audit.log import AuditLog
from quadriga.store.errors import AuditError


def open_log(settings: Settings, process: str) -> AuditLog | None:
    """Return the audit log of a process; None if it is switched off."""
    if not settings.audit_days:
        return None
    return AuditLog(settings.audit_directory, process, settings.audit_days)


class AuditTrail(Audit):
    """The audit log, as the wire sees it, in the files of a worker."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log

    def check(self) -> None:
        """Raise Overloaded if lines cannot be written."""
        try:
            self._log.check()
        except AuditError as error:  # the log of the process has the reason
            raise Overloaded(str(error)) from error

    def write(self, request: RequestContext, status: int | str, action: str = "") -> None:
        """Write a request."""
        self._log.write(_entry(request, status, action))

    def refuse(self, request: RequestContext, status: int | str, action: str = "") -> None:
        """Write or sum a refusal."""
        self._log.refuse(_entry(request, status, action))


def note_first_key(log: AuditLog | None, key_id: str) -> None:
    """Write that the server has made its first key."""
    if log is not None:
        log.write(AuditEntry(time="", action="first key", status="done", target=key_id))


def _entry(request: RequestContext, status: int | str, action: str) -> AuditEntry:
    return AuditEntry(
        time="",  # the log sets it
        action=action or f"{request.method} {request.path}",
        status=status,
        key_id=request.caller.key_id,
        name=request.caller.name,
        address=request.address,
        target=request.target,
        number=request.number,
        request_id=request.id,
        times=max(1, request.refusals),
    )

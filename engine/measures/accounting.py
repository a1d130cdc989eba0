"""What a server's `quadriga.proto.request.Accounting` writes: the log of requests, the audit log, and whether there are traces.

The log of requests has a line for each request that the settings choose, and for each that was refused or failed. It has no body,
no key, no metadata and no query of a URL. Each kind of line has a bound of its own, so that a flood of refusals hides no
other request, and none fills a disk.
"""

import logging
import os
import random
import threading
import time
from importlib.util import find_spec
from typing import Any

from quadriga.engine.config.settings import Settings
from quadriga.proto.errors import Overloaded
from quadriga.proto.request import REFUSALS, Audit, RequestContext, current_request
from quadriga.store.audit.entries import AuditEntry
from quadriga.store.audit.log import AuditLog
from quadriga.store.records.errors import AuditError

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""Variables of OpenTelemetry that switch traces on."""


def open_tracing(process: str) -> Any:
    """Return what records the spans of a process, a `quadriga.engine.measures.tracing.Tracing`; None if nothing is to.

    Source: OpenTelemetry, environment variable specification and protocol exporter.
    """
    is_off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if is_off or os.environ.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return None
    if not any(map(os.environ.get, _ENDPOINTS)):
        return None
    if find_spec("opentelemetry") is None:
        _log.warning(
            "no traces are recorded: pip install 'quadriga[otel]', or unset %s", _ENDPOINTS[1]
        )
        return None
    from quadriga.engine.measures.tracing import Tracing  # noqa: PLC0415 - it is an extra

    return Tracing(process)


def request_traceparent() -> str:
    """Return the trace of the request that this task answers; empty for none."""
    request = current_request()
    return "" if request is None or request.trace is None else request.trace.traceparent


LINES_PER_S = 500
"""Maximum lines of a process in a second about requests that were answered."""

FAILURES_PER_S = 50
"""Maximum lines of a process in a second about requests that were refused or failed."""

MAX_IDS = 20
"""Maximum ids of inferences in a line."""

MAX_PATH = 300
"""Maximum characters of a path in a line."""

_FAILED = frozenset({"refused", "deadline", "model_failure", "server_error"})

_log = logging.getLogger("quadriga.access")


class RequestLog:
    """Writes lines about requests; safe to use from several threads.

    Args:
        share: Share of the requests that are written whatever their end; 0 for none.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._answered, self._failed = LineBudget(LINES_PER_S), LineBudget(FAILURES_PER_S)

    def write(self, request: RequestContext) -> None:
        """Write a line about a request that is over, if it is to have one."""
        has_failed = request.outcome in _FAILED or request.status in REFUSALS
        if not has_failed:
            is_chosen = random.random() < self._share  # noqa: S311 - which requests have a line is no secret
            if request.protocol == "state" or not is_chosen:  # probes of state have none
                return
        level = logging.WARNING if has_failed else logging.INFO
        if not _log.isEnabledFor(level):
            return
        left_out = (self._failed if has_failed else self._answered).take()
        if left_out is None:
            return
        fields = fields_of(request)
        if left_out:
            fields["left_out"] = left_out
        path = fields["path"].encode("unicode_escape").decode()  # anybody chooses it
        text = f"{request.method} {path} {request.status} in {fields['duration_ms']} ms"
        _log.log(level, "%s", text, extra={"fields": fields})


def fields_of(request: RequestContext) -> dict[str, Any]:
    """Return the fields of a line; those that say nothing of this request are left out."""
    run, trace = request.run, request.trace
    fields: dict[str, Any] = {
        "request_id": request.id,
        "trace_id": "" if trace is None else trace.trace_id,
        "span_id": "" if trace is None else trace.span_id,
        "protocol": request.protocol,
        "method": request.method,
        "path": request.path[:MAX_PATH],
        "model": "",
        "version": "",
        "status": request.status,
        "outcome": request.outcome,
        "duration_ms": round(request.duration_ms, 3),
        "bytes_in": request.bytes_in,
        "bytes_out": request.bytes_out,
        "key_id": request.caller.key_id,
    }
    if run is not None:
        fields |= {"model": run.model, "version": run.version, "stages_ms": dict(run.stages_ms)}
        fields["inferences"] = run.inferences
        fields["inference_ids"] = list(run.inference_ids[:MAX_IDS])
    return {name: value for name, value in fields.items() if value not in ("", [])}


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


class LineBudget:
    """Lines that may be written in a second; safe to use from several threads.

    Args:
        per_s: Maximum lines in a second.
    """

    def __init__(self, per_s: int) -> None:
        self._per_s = per_s
        self._lock = threading.Lock()
        self._second = 0
        self._written = self._left_out = 0

    def take(self) -> int | None:
        """Return how many lines were left out before this one; None if it has to be left out, too."""
        second = int(time.monotonic())
        with self._lock:
            if second != self._second:
                self._second, self._written = second, 0
            if self._written >= self._per_s:
                self._left_out += 1
                return None
            self._written += 1
            left_out, self._left_out = self._left_out, 0
        return left_out

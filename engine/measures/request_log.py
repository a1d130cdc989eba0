"""The log of requests: a line for each request that the settings choose, and for each that was refused or failed.

It has no body, no key, no metadata and no query of a URL. Each kind of line has a bound of its own, so that a flood of
refusals hides no other request, and none fills a disk.
"""

import logging
import random
import threading
import time
from typing import Any

from quadriga.proto.request_facts import RequestFacts
from quadriga.proto.trace_context import parse_traceparent


class RequestObservation:
    """A `quadriga.proto.request_facts.RequestObserver`.

    Args:
        log: The log of requests.
        tracing: Records spans, a `quadriga.engine.measures.tracing.Tracing`; None for none.
    """

    def __init__(self, log: "RequestLog", tracing: Any = None) -> None:
        self._request_log = log
        self._tracing = tracing
        self.observes_all = log.is_on or tracing is not None

    def begin(
        self, request_id: str, method: str, path: str, traceparent: bytes | None
    ) -> RequestFacts | None:
        """Begin to take note of a request; one that is part of no trace only where all are observed."""
        parent = parse_traceparent(traceparent)
        if parent is None and not self.observes_all:
            return None
        facts = RequestFacts(
            request_id=request_id,
            method=method,
            path=path,
            trace=parent,
            parent=parent,
            begun_ns=time.perf_counter_ns(),
            begun_epoch_ns=time.time_ns(),
        )
        if self._tracing is not None:
            self._tracing.begin(facts)
        return facts

    def end(self, facts: RequestFacts) -> None:
        """Take note of a request that is over; a fault of that is logged, as the request is answered."""
        facts.ended_ns = time.perf_counter_ns()
        try:
            if self._request_log.is_on:
                self._request_log.write(facts)
            if self._tracing is not None:
                self._tracing.end(facts)
        except Exception:  # noqa: BLE001 - the edge: the answer has left
            _log.exception("cannot take note of request %s", facts.request_id)


LINES_PER_S = 500
"""Maximum lines of a process in a second about requests that were answered."""

FAILURES_PER_S = 50
"""Maximum lines of a process in a second about requests that were refused or failed."""

MAX_IDS = 20
"""Maximum ids of inferences in a line."""

MAX_PATH = 300
"""Maximum characters of a path in a line."""

_FAILED = frozenset({"refused", "deadline", "model_failure", "server_error"})
_REFUSED = frozenset({401, 403, 429, "UNAUTHENTICATED", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED"})
_log = logging.getLogger("quadriga.access")


class RequestLog:
    """Writes lines about requests; safe to use from several threads.

    Args:
        share: Share of the requests that are written whatever their end; 0 for none.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self.is_on = share > 0
        self._answered, self._failed = LineBudget(LINES_PER_S), LineBudget(FAILURES_PER_S)

    def write(self, facts: RequestFacts) -> None:
        """Write a line about a request that is over, if it is to have one."""
        has_failed = facts.outcome in _FAILED or facts.status in _REFUSED
        if not has_failed and not self._is_chosen(facts):
            return
        level = logging.WARNING if has_failed else logging.INFO
        if not _log.isEnabledFor(level):
            return
        left_out = (self._failed if has_failed else self._answered).take()
        if left_out is None:
            return
        fields = fields_of(facts)
        if left_out:
            fields["left_out"] = left_out
        path = fields["path"].encode("unicode_escape").decode()  # anybody chooses it
        text = f"{facts.method} {path} {facts.status} in {fields['duration_ms']} ms"
        _log.log(level, "%s", text, extra={"fields": fields})

    def _is_chosen(self, facts: RequestFacts) -> bool:
        """Check whether a request that was answered has a line: probes of state have none."""
        if facts.protocol == "state" or not self._share:
            return False
        return self._share >= 1 or random.random() < self._share  # noqa: S311 - which requests have a line is no secret


def fields_of(facts: RequestFacts) -> dict[str, Any]:
    """Return the fields of a line; those that say nothing of this request are left out."""
    run, trace = facts.run, facts.trace
    fields: dict[str, Any] = {
        "request_id": facts.request_id,
        "trace_id": "" if trace is None else trace.trace_id,
        "span_id": "" if trace is None else trace.span_id,
        "protocol": facts.protocol,
        "method": facts.method,
        "path": facts.path[:MAX_PATH],
        "model": "",
        "version": "",
        "status": facts.status,
        "outcome": facts.outcome,
        "duration_ms": round(facts.duration_ms, 3),
        "bytes_in": facts.bytes_in,
        "bytes_out": facts.bytes_out,
        "key_id": facts.key_id,
    }
    if run is not None:
        fields |= {"model": run.model, "version": run.version, "stages_ms": dict(run.stages_ms)}
        fields["inferences"] = run.inferences
        fields["inference_ids"] = list(run.inference_ids[:MAX_IDS])
    return {name: value for name, value in fields.items() if value not in ("", [])}


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

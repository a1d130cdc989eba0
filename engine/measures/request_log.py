"""The log of requests: a line for each request that the settings choose, and for each that was refused or failed.

It has no body, no key, no metadata and no query of a URL. Each kind of line has a bound of its own, so that a flood of
refusals hides no other request, and none fills a disk.
"""

import logging
import random
from typing import Any

from quadriga.engine.config.line_budget import LineBudget
from quadriga.proto.request import REFUSALS, RequestContext

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
        self.is_on = share > 0
        self._answered, self._failed = LineBudget(LINES_PER_S), LineBudget(FAILURES_PER_S)

    def write(self, request: RequestContext) -> None:
        """Write a line about a request that is over, if it is to have one."""
        has_failed = request.outcome in _FAILED or request.status in REFUSALS
        if not has_failed and not self._is_chosen(request):
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

    def _is_chosen(self, request: RequestContext) -> bool:
        """Check whether a request that was answered has a line: probes of state have none."""
        if request.protocol == "state" or not self._share:
            return False
        return self._share >= 1 or random.random() < self._share  # noqa: S311 - which requests have a line is no secret


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

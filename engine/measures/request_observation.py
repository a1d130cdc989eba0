"""Takes note of requests for a worker: the context of their trace, their line in the log, and their span."""

import logging
import time
from typing import Any

from quadriga.engine.measures.request_log import RequestLog
from quadriga.proto.request_facts import RequestFacts
from quadriga.proto.trace_context import parse_traceparent

_log = logging.getLogger(__name__)


class RequestObservation:
    """A `quadriga.proto.request_facts.RequestObserver`.

    Args:
        log: The log of requests.
        tracing: Records spans, a `quadriga.engine.measures.tracing.Tracing`; None for none.
    """

    def __init__(self, log: RequestLog, tracing: Any = None) -> None:
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

"""Whether a process records traces: only one that does imports what records them."""

import logging
import os
from importlib.util import find_spec
from typing import Any

from quadriga.proto.request import current_request

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""Variables of OpenTelemetry that switch traces on."""

_log = logging.getLogger(__name__)


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

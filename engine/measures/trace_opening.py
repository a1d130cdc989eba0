"""Whether a process records traces: only one that does imports what records them."""

from importlib.util import find_spec
from typing import Any

from quadriga.engine.config.settings import Settings
from quadriga.engine.config.settings_reading import SettingsError
from quadriga.proto.request_facts import current_facts


def check_tracing(settings: Settings) -> None:
    """Check that traces can be recorded, if the settings want it.

    Raises:
        SettingsError: The extra is not installed.
    """
    if settings.trace_endpoint and find_spec("opentelemetry") is None:
        raise SettingsError("trace_endpoint requires OpenTelemetry: pip install 'quadriga[otel]'")


def open_tracing(settings: Settings, process: str) -> Any:
    """Return what records the spans of a process, a `quadriga.engine.measures.tracing.Tracing`; None if nothing is to.

    Raises:
        SettingsError: As `check_tracing`.
    """
    if not settings.trace_endpoint:
        return None
    check_tracing(settings)
    from quadriga.engine.measures.tracing import Tracing  # noqa: PLC0415 - it is an extra

    return Tracing(settings.trace_endpoint, process)


def request_traceparent() -> str:
    """Return the trace of the request that this task answers; empty for none."""
    facts = current_facts()
    return "" if facts is None or facts.trace is None else facts.trace.traceparent

"""Forms about alarms of drift: acknowledge a report, mute a model for some hours, and end a mute."""

import time
from typing import Any
from urllib.parse import quote

import msgspec
from litestar import Response, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, RawBody

from quadriga.engine.api.access import caller_scope
from quadriga.engine.api.drift_alarms import (
    acknowledge_as_caller,
    mute_as_caller,
    unmute_as_caller,
)
from quadriga.engine.console.drift_strip import drift_reports_of, read_windows
from quadriga.engine.console.forms import form_fields, single_field
from quadriga.engine.console.frame import Frame, redirect
from quadriga.monitor.drift.watch.current import CurrentDrift
from quadriga.monitor.report.acknowledgements import (
    MAX_NOTE_CHARACTERS,
    AcknowledgementBody,
    checked_note,
)
from quadriga.monitor.report.saved import ReportStore
from quadriga.monitor.watch.mutes import MuteStore, decode_mute
from quadriga.quoting import quoted
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.errors import QueryError
from quadriga.store.records.records import timestamp_text
from quadriga.store.records.scope import Scoped

MUTE_HOURS = (1, 4, 8, 24, 72, 168)
"""Lengths of a mute that the form offers."""
MUTE_CHOICES = ("all", "alarmed")
"""What a mute covers: all signals, or those with an alarm in the report that the page begins with."""
_MAX_FORM_BYTES = 12 * MAX_NOTE_CHARACTERS + 1000
"""A character of a note may take twelve bytes of a form."""


class DriftMonitoring(msgspec.Struct, frozen=True):
    """What has compared models, and what is known of it."""

    reports: Scoped[ReportStore]
    inferences: Scoped[InferenceReader]
    """Finds the model that a name means."""
    mutes: MuteStore
    """The mutes of all teams."""
    current: Scoped[CurrentDrift]


def drift_forms(
    frame: Frame, monitoring: DriftMonitoring, options: dict[str, Any]
) -> list[HTTPRouteHandler]:
    """Return the handlers; arguments as of `drift_pages`."""
    reports, inferences, mutes = monitoring.reports, monitoring.inferences, monitoring.mutes
    form_options = {**options, "status_code": 303, "request_max_body_size": _MAX_FORM_BYTES}

    @post(
        "/console/reports/{report_id:str}/acknowledge",
        sync_to_thread=True,
        need="monitor",
        **form_options,
    )
    def acknowledge_report(report_id: FromPath[str], body: RawBody) -> Response[bytes]:
        """Acknowledge the alarm of a drift report, and show the report."""
        note = checked_note(single_field(form_fields(body), "note"))
        acknowledge_as_caller(reports, report_id, AcknowledgementBody(note))
        return redirect(frame.link(f"/console/reports/{report_id}"))

    @post(
        "/console/models/{name:str}/drift/mute", sync_to_thread=True, need="monitor", **form_options
    )
    def mute_model(name: FromPath[str], body: RawBody) -> Response[bytes]:
        """Mute alarms of a model for some hours, and show its drift."""
        fields = form_fields(body)
        until_ms = time.time_ns() // 1_000_000 + _hours(single_field(fields, "hours")) * 3_600_000
        model = inferences.within(caller_scope()).names.resolve(name)
        mute = {
            "until": timestamp_text(until_ms),
            "signals": _chosen_signals(single_field(fields, "signals"), model),
            "note": single_field(fields, "note"),
        }
        mute_as_caller(mutes, inferences, model, decode_mute(msgspec.json.encode(mute)))
        return redirect(frame.link(f"/console/models/{quote(model, safe='')}/drift"))

    @post(
        "/console/models/{name:str}/drift/unmute",
        sync_to_thread=True,
        need="monitor",
        **form_options,
    )
    def unmute_model(name: FromPath[str]) -> Response[bytes]:
        """End the mute of a model, and show its drift."""
        model = unmute_as_caller(mutes, inferences, name).model
        return redirect(frame.link(f"/console/models/{quote(model, safe='')}/drift"))

    def _chosen_signals(choice: str, model: str) -> list[str]:
        if choice not in MUTE_CHOICES:
            raise QueryError(f"expected signals to be all or alarmed, got {quoted(choice, 40)}")
        if choice == "all":
            return []
        scope = caller_scope()
        stored = reports.within(scope)
        shown = monitoring.current.within(scope).choose(
            model, drift_reports_of(stored.all(), model)
        )
        windows = [] if shown is None else read_windows(stored, [shown.summary])
        signals = [signal.name for window in windows for signal in window.signals if signal.alarm]
        if not signals:
            raise QueryError("expected an alarm in the last report of the model, got none")
        return signals

    return [acknowledge_report, mute_model, unmute_model]


def _hours(text: str) -> int:
    """Return the hours of a mute, or raise a `QueryError` for other ones than the form offers."""
    if text not in {str(hours) for hours in MUTE_HOURS}:
        listed = ", ".join(str(hours) for hours in MUTE_HOURS)
        raise QueryError(f"expected hours to be one of {listed}, got {quoted(text, 40)}")
    return int(text)

"""The drift page of a model: what changed, in words, and its windows side by side."""

import math
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal
from urllib.parse import quote

import msgspec
from litestar import Response
from litestar.params import FromPath, RawBody

from quadriga.engine.api.access import caller_scope
from quadriga.engine.api.monitoring.drift import (
    acknowledge_as_caller,
    mute_as_caller,
    unmute_as_caller,
)
from quadriga.engine.api.session_cookies import server_url
from quadriga.engine.console.filter_line import window_filter
from quadriga.engine.console.formats import seconds_between, time_range
from quadriga.engine.console.frame import (
    Frame,
    PageRequest,
    form_fields,
    opens,
    redirect,
    single_field,
)
from quadriga.engine.console.pages.reports import ReportTargets, stored_pictures
from quadriga.engine.console.services import ConsoleStore, Services
from quadriga.monitor.report import drift_texts
from quadriga.monitor.report.acknowledgements import (
    MAX_NOTE_CHARACTERS,
    AcknowledgementBody,
    checked_note,
    read_acknowledgement,
)
from quadriga.monitor.report.drift_texts import signal_titles
from quadriga.monitor.report.page import change_content
from quadriga.monitor.report.saved import ReportStore, ReportSummary
from quadriga.monitor.report.schema import Data, Effect, Report
from quadriga.monitor.watch.mutes import decode_mute
from quadriga.proto.access import ANYBODY
from quadriga.proto.request import current_caller
from quadriga.quoting import quoted
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.names import find_model_name
from quadriga.store.records.errors import JSON_ERRORS, NotFoundError, QueryError
from quadriga.store.records.records import timestamp_text


class StripSignal(msgspec.Struct, frozen=True):
    """What a strip needs of a signal of a report."""

    name: str
    effect: Effect
    alarm: bool
    status: str

    @property
    def ratio(self) -> float:
        """The effect as a multiple of the smallest that matters."""
        return (self.effect.value or 0.0) / (self.effect.minimum or 1.0)


class StripReport(msgspec.Struct, frozen=True):
    """What a strip needs of a drift report; decoding skips the rest."""

    id: str
    created: str
    status: Literal["ok", "drift", "insufficient", "error"]
    data: Data
    signals: list[StripSignal] = []

    @property
    def end(self) -> str:
        """Time of the newest image; of the report, where its images have none. RFC 3339."""
        return self.data.current.end or self.created

    @property
    def start(self) -> str:
        """Time of the oldest image; `end` where that is the only one."""
        return self.data.current.start or self.end

    @property
    def is_long(self) -> bool:
        """Whether it is so long that its days say when it was."""
        return seconds_between(self.start, self.end) > LONG_S

    @property
    def words(self) -> str:
        """When it was, in UTC."""
        return time_range(self.start, self.end)


LABEL_TARGET = 200
"""Images that the page offers to label."""


_decoder = msgspec.json.Decoder(Report)


def drift_pages(services: Services, store: ConsoleStore) -> None:
    """Register the handlers."""
    frame = services.frame
    reports, inferences, mutes = store.reports, store.inferences, store.mutes

    @services.page("/console/models/{name:str}/drift")
    def show_drift(name: FromPath[str], request: PageRequest) -> Response[bytes]:
        """Show what changed last in a model, and its last windows."""
        scope = caller_scope()
        model = inferences.within(scope).names.resolve(name)
        stored = reports.within(scope)
        summaries = drift_reports_of(stored.all(), model)
        windows = read_windows(stored, summaries)
        mute = mutes.within(scope).active(model)
        shown = store.current_drift.within(scope).choose(model, summaries)
        last = (
            None
            if shown is None
            else read_last_report(frame, stored, shown.summary.id, inferences.within(scope))
        )
        return frame.page(
            "drift",
            page="models",
            title=f"Drift of {model}",
            model=model,
            last=last,
            is_over=shown is not None and shown.is_over,
            strip=make_strip(windows),
            total=len(summaries),
            mute=mute,
            muted_signals=[drift_texts.signal_title(name) for name in mute.signals]
            if mute is not None
            else [],
            mute_hours=MUTE_HOURS,
            may_monitor=opens(current_caller(), "monitor"),
            commands=[]
            if windows
            else first_commands(server_url(request, frame.public_url), model),
        )


def read_last_report(
    frame: Frame, reports: ReportStore, report_id: str, inferences: InferenceReader
) -> dict[str, Any] | None:
    """Return a report in words, with the ways to its images; None if it was removed meanwhile or cannot be read."""
    with suppress(NotFoundError, *JSON_ERRORS):
        report = _decoder.decode(reports.read(report_id))
        window = window_filter(report.model, report.data.current)
        target = min(LABEL_TARGET, report.data.current.n)
        may_label = opens(current_caller(), "annotate") and target and window.line
        return {
            "report": report,
            "acknowledged": read_acknowledgement(reports, report_id),
            "targets": ReportTargets(frame, report, report_id),
            **change_content(report, stored_pictures(frame, report, inferences)),
            "title": drift_texts.headline(report) or drift_texts.verdict(report),
            "explanation": drift_texts.explanation(report),
            "images_link": frame.link("/console/inferences", q=window.line) if window.line else "",
            "label_link": frame.link("/console/label", q=window.line, target=str(target))
            if may_label
            else "",
            "label_target": target,
            "is_undecided": report.status != "drift"
            and bool(drift_texts.undecided_signals(report) or drift_texts.where_changed(report)),
            "is_whole": window.is_whole,
            "is_all_compared": not any(
                n
                for reason, n in report.data.excluded.items()
                if not reason.startswith("baseline_")
            )
            and report.data.current.n < report.parameters.get("rows", math.inf),
        }
    return None


def first_commands(url: str, model: str) -> list[str]:
    """Return shell commands that make a first drift report of a model, and one that watches it from then on.

    Args:
        url: URL of the server, without a slash at its end.
        model: Name of the model.
    """
    key = "" if current_caller() is ANYBODY else " \\\n  -H 'Authorization: Bearer YOUR-KEY'"
    compared = {"model": model, "from": "-24h", "baseline": {"from": "-8d", "to": "-24h"}}
    body = shlex.quote(msgspec.json.encode(compared).decode())
    named = f"--model {shlex.quote(model)}"
    server = f"--server {shlex.quote(url)}"
    return [
        f"curl {shlex.quote(url + '/api/drift')}{key} \\\n  -d {body}",
        f"quadriga baseline {named} --from -31d --to -1d {server}\nquadriga drift {named} --from -24h {server}",
    ]


MUTE_HOURS = (1, 4, 8, 24, 72, 168)
"""Lengths of a mute that the form offers."""


MUTE_CHOICES = ("all", "alarmed")
"""What a mute covers: all signals, or those with an alarm in the report that the page begins with."""


_MAX_FORM_BYTES = 12 * MAX_NOTE_CHARACTERS + 1000
"""A character of a note may take twelve bytes of a form."""


def drift_forms(services: Services, store: ConsoleStore) -> None:
    """Register the handlers."""
    frame = services.frame
    reports, inferences, mutes = store.reports, store.inferences, store.mutes
    form = partial(services.form, request_max_body_size=_MAX_FORM_BYTES)

    @form("/console/reports/{report_id:str}/acknowledge", "monitor")
    def acknowledge_report(report_id: FromPath[str], body: RawBody) -> Response[bytes]:
        """Acknowledge the alarm of a drift report, and show the report."""
        note = checked_note(single_field(form_fields(body), "note"))
        acknowledge_as_caller(reports, report_id, AcknowledgementBody(note))
        return redirect(frame.link(f"/console/reports/{report_id}"))

    @form("/console/models/{name:str}/drift/mute", "monitor")
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

    @form("/console/models/{name:str}/drift/unmute", "monitor")
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
        shown = store.current_drift.within(scope).choose(
            model, drift_reports_of(stored.all(), model)
        )
        windows = [] if shown is None else read_windows(stored, [shown.summary])
        signals = [signal.name for window in windows for signal in window.signals if signal.alarm]
        if not signals:
            raise QueryError("expected an alarm in the last report of the model, got none")
        return signals


def _hours(text: str) -> int:
    """Return the hours of a mute, or raise a `QueryError` for other ones than the form offers."""
    if text not in {str(hours) for hours in MUTE_HOURS}:
        listed = ", ".join(str(hours) for hours in MUTE_HOURS)
        raise QueryError(f"expected hours to be one of {listed}, got {quoted(text, 40)}")
    return int(text)


MAX_WINDOWS = 24
"""Windows of a strip: the newest."""


MAX_ROWS = 40
"""Signals of a strip: those that changed or moved most."""


LONG_S = 24 * 3600
"""Seconds from which a column is headed by days alone."""


_strip_decoder = msgspec.json.Decoder(StripReport)


def drift_reports_of(summaries: Iterable[ReportSummary], model: str) -> list[ReportSummary]:
    """Return the drift reports of a model among all, in their order."""
    return [
        summary
        for summary in summaries
        if summary.kind == "drift" and find_model_name(summary.model.name, [model]) == model
    ]


def read_windows(reports: ReportStore, summaries: Sequence[ReportSummary]) -> list[StripReport]:
    """Return the reports that were made last, in the order of the times of their images; `summaries` begin with the newest.

    Of windows that end at the same time the longest comes first. Damaged and removed reports are left out.
    """
    windows = []
    for summary in summaries[:MAX_WINDOWS]:
        with suppress(NotFoundError, *JSON_ERRORS):
            windows.append(_strip_decoder.decode(reports.read(summary.id)))
    return sorted(windows, key=lambda window: (window.end, window.start, window.created))


def make_strip(windows: Sequence[StripReport]) -> dict[str, Any]:
    """Return the strip of some windows: signals that changed often come first, then those that moved most.

    A row has the name, the title, and for each window its signal, None where it was not compared; `more_rows` are left out,
    which changed in no window, and moved least.
    """
    by_window = [{signal.name: signal for signal in window.signals} for window in windows]
    names = dict.fromkeys(name for signals in reversed(by_window) for name in signals)
    ranked = sorted(names, key=lambda name: _rank(name, by_window), reverse=True)
    titles = signal_titles(ranked)
    return {
        "windows": windows,
        "rows": [
            (name, titles[name], [signals.get(name) for signals in by_window])
            for name in ranked[:MAX_ROWS]
        ],
        "more_rows": max(len(ranked) - MAX_ROWS, 0),
    }


def _rank(
    name: str, by_window: Sequence[Mapping[str, StripSignal]]
) -> tuple[bool, int, float, float]:
    """Return the order of a signal: an alarm of the newest window, then the number of alarms, then effects."""
    signals = [signals.get(name) for signals in by_window]
    newest = signals[-1]
    present = [signal for signal in signals if signal is not None]
    return (
        newest is not None and newest.alarm,
        sum(signal.alarm for signal in present),
        newest.ratio if newest is not None else 0.0,
        max(signal.ratio for signal in present),
    )

"""The drift page of a model: what changed, in words, and its windows side by side."""

import math
import shlex
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from quadriga.engine.api.access import caller_scope
from quadriga.engine.api.session_cookies import server_url
from quadriga.engine.console.drift_changes import (
    SignalChange,
    image_links,
    place_links,
    signal_changes,
)
from quadriga.engine.console.drift_forms import MUTE_HOURS, DriftMonitoring
from quadriga.engine.console.drift_links import window_filter
from quadriga.engine.console.drift_strip import drift_reports_of, make_strip, read_windows
from quadriga.engine.console.frame import Frame, PageRequest, opens
from quadriga.engine.console.texts import text
from quadriga.monitor.report import drift_texts
from quadriga.monitor.report.acknowledgements import Acknowledgement, read_acknowledgement
from quadriga.monitor.report.saved import ReportStore
from quadriga.monitor.report.schema import Report
from quadriga.proto.access import ANYBODY
from quadriga.proto.request import current_caller
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.errors import JSON_ERRORS, NotFoundError

LABEL_TARGET = 200
"""Images that the page offers to label."""
_decoder = msgspec.json.Decoder(Report)


class LastReport(msgspec.Struct, frozen=True, kw_only=True):
    """The drift report that says how a model is now, in words, with the ways to its images."""

    report: Report
    acknowledged: Acknowledgement | None
    changes: list[SignalChange]
    title: str
    explanation: str
    images_link: str
    """Link to the images of its window; empty where it had none."""
    label_link: str
    """Link to the queue of labelling; empty where it had none, and for callers who may not annotate."""
    label_target: int
    is_undecided: bool
    """Whether it has no alarm, but signals that moved with too few independent values to say so."""
    is_whole: bool
    """Whether the links have all of the report's filter."""
    is_all_compared: bool
    """Whether each image of the window was compared, as far as the report says."""


def drift_pages(
    frame: Frame, monitoring: DriftMonitoring, options: dict[str, Any]
) -> list[HTTPRouteHandler]:
    """Return the handlers."""
    reports, inferences, mutes = monitoring.reports, monitoring.inferences, monitoring.mutes

    @get("/console/models/{name:str}/drift", sync_to_thread=True, need="read", **options)
    def show_drift(name: FromPath[str], request: PageRequest) -> Response[bytes]:
        """Show what changed last in a model, and its last windows."""
        scope = caller_scope()
        model = inferences.within(scope).names.resolve(name)
        stored = reports.within(scope)
        summaries = drift_reports_of(stored.all(), model)
        windows = read_windows(stored, summaries)
        mute = mutes.within(scope).active(model)
        shown = monitoring.current.within(scope).choose(model, summaries)
        last = (
            None
            if shown is None
            else read_last_report(frame, stored, shown.summary.id, inferences.within(scope))
        )
        return frame.page(
            "drift",
            page="models",
            title=text("drift_of", model=model),
            model=model,
            last=last,
            is_over=shown is not None and shown.is_over,
            links_of=partial(image_links, frame),
            places_of=partial(place_links, frame),
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

    return [show_drift]


def read_last_report(
    frame: Frame, reports: ReportStore, report_id: str, inferences: InferenceReader
) -> LastReport | None:
    """Return a report in words; None if it was removed meanwhile or cannot be read."""
    with suppress(NotFoundError, *JSON_ERRORS):
        report = _decoder.decode(reports.read(report_id))
        window = window_filter(report.model, report.data.current)
        target = min(LABEL_TARGET, report.data.current.n)
        may_label = opens(current_caller(), "annotate") and target and window.line
        return LastReport(
            report=report,
            acknowledged=read_acknowledgement(reports, report_id),
            changes=signal_changes(report, inferences),
            title=drift_texts.headline(report) or drift_texts.verdict(report),
            explanation=drift_texts.explanation(report),
            images_link=frame.link("/console/inferences", q=window.line) if window.line else "",
            label_link=frame.link("/console/label", q=window.line, target=str(target))
            if may_label
            else "",
            label_target=target,
            is_undecided=report.status != "drift" and bool(drift_texts.undecided_signals(report)),
            is_whole=window.is_whole,
            is_all_compared=not any(
                n
                for reason, n in report.data.excluded.items()
                if not reason.startswith("baseline_")
            )
            and report.data.current.n < report.parameters.get("rows", math.inf),
        )
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

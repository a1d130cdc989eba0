"""Schedules of drift reports: which window of a model is compared when, the history of windows, and alerts.

`<directory>/<model>.watch.json` is a `DriftWatchState`.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from quadriga.monitor.drift.parameters import (
    DEFAULT_BASELINE,
    MAX_SLICE_KEYS,
    DriftParameters,
    resolve_times,
)
from quadriga.monitor.model_files import model_file_path, read_model_file, write_model_file
from quadriga.monitor.report.schema import (
    PastSignal,
    PastWindow,
    Report,
    Signal,
    sorted_by_effect,
)
from quadriga.monitor.spans import DAY_S
from quadriga.monitor.watch.alerts import Outbox
from quadriga.monitor.watch.mutes import Mute, active_mute
from quadriga.monitor.watch.schedules import (
    MAX_WEBHOOKS,
    DueWindow,
    HistoryFile,
    SavedSchedule,
    ScheduleKind,
    ScheduleStore,
    check_schedule,
)
from quadriga.monitor.watch.webhooks import Webhook
from quadriga.store.query.request import decode_body
from quadriga.store.records.records import timestamp_text

MIN_EVERY = "5m"
"""Minimum length of a window: with 1,440 windows a day, each report would take 20 s and 2 GB, as its share of alpha
needs so many permutations."""


class DriftSchedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schedule of drift reports; fields without docstring are those of `DriftParameters`."""

    every: str
    """Length of a window: a fraction of a day such as `15m` or `6h`, `1d`, or `1w` from Monday; UTC."""
    baseline: str = DEFAULT_BASELINE
    where: Any = None
    signals: list[str] = []
    ignore: list[str] = []
    by: Annotated[list[str], msgspec.Meta(max_length=MAX_SLICE_KEYS)] = []
    alpha: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.05
    webhooks: Annotated[list[Webhook], msgspec.Meta(max_length=MAX_WEBHOOKS)] = []
    delay: str = "1m"
    """Time from the end of a window to its comparison, so that all of it is stored by then."""


def decode_schedule(model: str, body: bytes) -> DriftSchedule:
    """Decode a schedule from JSON.

    Raises:
        QueryError: The body cannot be decoded, or a value in it is invalid.
    """
    schedule = decode_body(body, DriftSchedule)
    check_schedule(schedule, MIN_EVERY)
    resolve_times(_parameters(model, SavedSchedule(schedule, 0), DueWindow(0, 0)), 0)
    return schedule


def drift_schedules(directory: Path) -> ScheduleStore[DriftSchedule]:
    """Return the schedules of drift reports in a folder."""
    return ScheduleStore(directory, _KIND)


def _parameters(
    model: str, saved: SavedSchedule[DriftSchedule], window: DueWindow
) -> DriftParameters:
    schedule, start_s = saved.schedule, window.start_s
    return DriftParameters(
        model,
        where=schedule.where,
        start=timestamp_text(start_s * 1000),
        end=timestamp_text((start_s + saved.every_s) * 1000),
        baseline=schedule.baseline,
        signals=schedule.signals,
        ignore=schedule.ignore,
        by=schedule.by,
        alpha=schedule.alpha,
        windows=max(DAY_S // saved.every_s, 1),
        schedule=schedule.every,
    )


def _window_key(parameters: dict[str, Any]) -> tuple[str, str | None] | None:
    return (parameters["model"], parameters.get("from")) if parameters.get("schedule") else None


_KIND = ScheduleKind("drift", SavedSchedule[DriftSchedule], _parameters, _window_key)
WATCH_SUFFIX = "watch.json"
MAX_SHOWN = 100
"""Maximum number of windows in the history of a report."""
MAX_LOGGED = 3
"""Maximum number of signals in the log message of an alarm."""
_log = logging.getLogger(__name__)


class DriftHistoryEntry(PastWindow, frozen=True):
    """A window as a line of the history file."""

    baseline: str = ""
    """Identity of the baseline, which changes when it is replaced; empty for rolling baselines."""


class DriftWatchState(msgspec.Struct):
    """State of the alarms after the latest window."""

    last: str = ""
    """Id of the report that was recorded last."""
    alarmed: list[str] = []
    """Signals whose latest status other than `insufficient` was an alarm, without those that were muted when it began."""


class DriftHistory(msgspec.Struct, frozen=True):
    """Windows of a model, oldest first."""

    windows: list[PastWindow]


def with_history(directory: Path, report: Report, parameters: DriftParameters) -> Report:
    """Return a report with its history: its window, after the latest ones that had the same baseline, or failed."""
    entry = _history_entry(report, parameters)
    previous = [
        past
        for past in _history_file(directory, parameters.model).latest_entries()
        if (past.baseline == entry.baseline or past.status == "error")
        and past.report != entry.report
    ]
    return replace(
        report,
        history=msgspec.convert(
            [*previous, entry][-MAX_SHOWN:], list[PastWindow], from_attributes=True
        ),
    )


def record_window(
    directory: Path,
    report: Report,
    parameters: DriftParameters,
    now_s: float | None = None,
    *,
    traceparent: str = "",
) -> None:
    """Record a report's window, and queue alerts in a trace; nothing if the report is recorded already.

    Signals that are muted at `now_s`, seconds since 1970, begin no alert; None: now.

    Raises:
        OSError: A file could not be written.
    """
    entry, model = _history_entry(report, parameters), parameters.model
    path = model_file_path(directory, model, WATCH_SUFFIX)
    watch = read_model_file(path, DriftWatchState) or DriftWatchState()
    if watch.last == entry.report:
        return
    _history_file(directory, model).append(entry)
    alarms = [signal for signal in sorted_by_effect(report.signals) if signal.alarm]
    if alarms:
        _log_alarms(model, entry, alarms)
    event, event_signals = _alert_event(
        watch, report.signals, alarms, active_mute(directory, model, now_s)
    )
    if event:
        outbox, fields = Outbox(drift_schedules(directory)), _alert_fields(entry, event_signals)
        outbox.queue(model, event, fields, traceparent=traceparent)
    watch.last = entry.report
    write_model_file(path, watch)


def record_failure(
    directory: Path, report_id: str, parameters: DriftParameters, error: str
) -> None:
    """Record that a window could not be compared.

    Raises:
        OSError: The file could not be written.
    """
    failed = DriftHistoryEntry(
        start=parameters.start, end=parameters.end, n=0, status="error", report=report_id
    )
    _log.warning("drift of %s from %s: %s", parameters.model, parameters.start, error)
    _history_file(directory, parameters.model).append(failed)


def read_history(
    directory: Path,
    model: str,
    start_us: int | None = None,
    end_us: int | None = None,
    signal: str | None = None,
) -> DriftHistory:
    """Return the windows of a model that start within a span of time.

    Args:
        directory: Folder of schedules.
        model: Name of the model.
        start_us: Start of the span, included, in microseconds since 1970; None: no limit.
        end_us: End of the span, excluded; None: no limit.
        signal: Name of the only signal to return; None: all.

    Raises:
        QueryError: The model name is invalid.
    """
    windows = HistoryFile(directory, model, PastWindow).entries(start_us, end_us)
    if signal is None:
        return DriftHistory(list(windows))
    return DriftHistory(
        [
            replace(
                window, signals={signal: window.signals[signal]} if signal in window.signals else {}
            )
            for window in windows
        ]
    )


def _history_file(directory: Path, model: str) -> HistoryFile[DriftHistoryEntry]:
    return HistoryFile(directory, model, DriftHistoryEntry)


def _history_entry(report: Report, parameters: DriftParameters) -> DriftHistoryEntry:
    baseline_window, baseline = report.data.baseline, ""
    if baseline_window is not None and isinstance(parameters.baseline, str):
        baseline = f"{baseline_window.start}/{baseline_window.end}/{baseline_window.n}"
    signals = {
        signal.name: PastSignal(signal.p_adjusted, signal.effect.value, signal.alarm, signal.status)
        for signal in report.signals
    }
    return DriftHistoryEntry(
        start=parameters.start,
        end=parameters.end,
        n=report.data.current.n,
        status=report.status,
        report=report.id,
        signals=signals,
        baseline=baseline,
    )


def _log_alarms(model: str, entry: DriftHistoryEntry, alarms: Sequence[Signal]) -> None:
    listed = ", ".join(
        f"{signal.name} ({signal.effect.name} {signal.effect.value:.3g}"
        f"{f', began {signal.began.at}' if signal.began and signal.began.at else ''})"
        for signal in alarms[:MAX_LOGGED]
    )
    more = f" and {len(alarms) - MAX_LOGGED} more" if len(alarms) > MAX_LOGGED else ""
    message = "drift of %s from %s to %s: %s%s, report %s"
    _log.warning(message, model, entry.start, entry.end, listed, more, entry.report)


def _alert_event(
    watch: DriftWatchState, signals: Sequence[Signal], alarms: Sequence[Signal], mute: Mute | None
) -> tuple[str, Sequence[Signal]]:
    """Update the signals in alarm, and return the event to alert about with its signals; an empty text if none.

    `drift`: a signal raises an alarm that had none in the window before. `recovered`: the last alarm is over. A muted
    alarm that nobody was alerted about counts as none: what lasts until the mute ends begins an alert then. One that
    began before the mute still recovers.
    """
    previous = watch.alarmed
    if mute is not None:
        alarms = [
            alarm for alarm in alarms if alarm.name in previous or not mute.covers([alarm.name])
        ]
    names = [signal.name for signal in alarms]
    insufficient = {signal.name for signal in signals if signal.status == "insufficient"}
    still_alarmed = [name for name in previous if name in insufficient]
    watch.alarmed = [*names, *still_alarmed]
    if set(names) - set(previous):
        return "drift", alarms
    if previous and not watch.alarmed:
        return "recovered", [signal for signal in signals if signal.name in previous]
    return "", []


def _alert_fields(entry: DriftHistoryEntry, signals: Sequence[Signal]) -> dict[str, Any]:
    signal_fields = [
        {
            "name": signal.name,
            "effect": signal.effect.value,
            "least_effect": signal.effect.minimum,
            "p_adjusted": signal.p_adjusted,
        }
        | ({"began": signal.began.at} if signal.began and signal.began.at else {})
        for signal in signals
    ]
    window = {"from": entry.start, "to": entry.end, "n": entry.n}
    return {"window": window, "signals": signal_fields, "report": f"/api/reports/{entry.report}"}

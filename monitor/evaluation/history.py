"""History of a model's evaluated windows, one line of a file for each evaluation, and alerts.

`<directory>/<model>.jsonl` holds the evaluations, the latest last; `<model>.watch.json` is a `EvaluationWatchState`.
"""

import logging
from pathlib import Path
from typing import Any, Literal

import msgspec

from quadriga.monitor.evaluation.limits import Reference, judge, written
from quadriga.monitor.evaluation.parameters import (
    WINDOW_NAMES,
    EvaluationParameters,
    ReferenceMetric,
    ScheduledWindow,
)
from quadriga.monitor.evaluation.schedules import (
    FIRST_WINDOW,
    evaluation_schedules,
    followed_metric,
)
from quadriga.monitor.evaluation.state import EvaluationError, NoInferencesError
from quadriga.monitor.model_files import model_file_path, read_model_file, write_model_file
from quadriga.monitor.report.schema import Report
from quadriga.monitor.spans import now_text
from quadriga.monitor.watch.alerts import Outbox
from quadriga.monitor.watch.history_file import HistoryFile, without_own_fields
from quadriga.store.jobs.jobs import Job

WATCH_SUFFIX = "watch.json"
_log = logging.getLogger(__name__)


class EvaluatedWindow(msgspec.Struct, frozen=True, kw_only=True, rename=WINDOW_NAMES):
    """A window of a model and its latest evaluation."""

    start: str
    end: str
    n: int = 0
    """Number of images that have ground truth."""
    status: Literal["ok", "fall", "insufficient", "error"]
    metric: str | None = None
    """The metric with its parameters; None if there is none."""
    value: float | None = None
    low: float | None = None
    """Ends of the 95 % interval."""
    high: float | None = None
    reason: str = ""
    """Reason for a status other than `ok`."""
    report: str
    """Id of the evaluation's report."""
    evaluated_at: str
    """RFC 3339, UTC."""


class EvaluationHistoryEntry(EvaluatedWindow, frozen=True, kw_only=True):
    """An evaluation as a line of the history file."""

    series: str
    """Identity of the windows whose numbers can be compared with each other."""


class EvaluationWatchState(msgspec.Struct):
    """State after the latest evaluation of a window."""

    series: str = ""
    """Series that the state is about; another one starts anew."""
    last: str = ""
    """Id of the report that was recorded last."""
    alarm: str = ""
    """Start of the latest window with a fall; empty without an alarm."""
    first: ReferenceMetric | None = None
    """Metric of the first window with enough ground truth."""
    first_start: str = ""
    reference: ReferenceMetric | None = None
    """What the latest window was compared with."""


class EvaluationHistory(msgspec.Struct, frozen=True):
    """Windows of a model, oldest first."""

    windows: list[EvaluatedWindow]
    reference: ReferenceMetric | None = None
    """What the latest window was compared with."""


def record_window(directory: Path, report: Report, model: str, window: ScheduledWindow) -> None:
    """Record the evaluation of a window, and queue an alert; nothing if the report is recorded already.

    Raises:
        OSError: A file could not be written.
    """
    path = model_file_path(directory, model, WATCH_SUFFIX)
    watch = read_model_file(path, EvaluationWatchState) or EvaluationWatchState()
    if watch.last == report.id:
        return
    if watch.series != window.series:
        watch = EvaluationWatchState(window.series)
    entry = _judged(report, window, watch)
    history = _history_file(directory, model)
    last_verdict = _last_verdict(history, entry)
    history.append(entry)
    if entry.status == "fall" and last_verdict != "fall":
        message = "evaluation of %s from %s to %s: %s, report %s"
        _log.warning(message, model, entry.start, entry.end, entry.reason, entry.report)
    event = _alert_event(watch, entry, last_verdict)
    if event:
        outbox = Outbox(evaluation_schedules(directory))
        outbox.queue(model, event, _alert_fields(entry))
    watch.last = report.id
    write_model_file(path, watch)


def record_failure(directory: Path, job: Job, error: Exception) -> None:
    """Record that a window could not be evaluated.

    Raises:
        OSError: The file could not be written.
    """
    parameters = msgspec.convert(job.parameters, EvaluationParameters)
    if parameters.schedule is None:
        return
    is_empty = isinstance(error, NoInferencesError)
    status: Literal["insufficient", "error"] = "insufficient" if is_empty else "error"
    entry = _entry(job.id, parameters.schedule, status=status, reason=str(error))
    if not is_empty:
        _log.warning("evaluation of %s from %s: %s", parameters.model, entry.start, error)
    _history_file(directory, parameters.model).append(entry)


def read_history(
    directory: Path, model: str, start_us: int | None = None, end_us: int | None = None
) -> EvaluationHistory:
    """Return the windows of a model that start within a span of time, each with its latest evaluation.

    Args:
        directory: Folder of schedules.
        model: Name of the model.
        start_us: Start of the span, included, in microseconds since 1970; None: no limit.
        end_us: End of the span, excluded; None: no limit.

    Raises:
        QueryError: The model name is invalid.
    """
    latest = {
        (entry.start, entry.end): without_own_fields(entry, EvaluatedWindow)
        for entry in _history_file(directory, model).entries(start_us, end_us)
    }
    watch = read_model_file(model_file_path(directory, model, WATCH_SUFFIX), EvaluationWatchState)
    windows = [latest[ends] for ends in sorted(latest)]
    return EvaluationHistory(windows, None if watch is None else watch.reference)


def _history_file(directory: Path, model: str) -> HistoryFile[EvaluationHistoryEntry]:
    return HistoryFile(directory, model, EvaluationHistoryEntry)


def _entry(report_id: str, window: ScheduledWindow, **fields: Any) -> EvaluationHistoryEntry:
    return EvaluationHistoryEntry(
        start=window.start,
        end=window.end,
        series=window.series,
        report=report_id,
        evaluated_at=now_text(),
        **fields,
    )


def _judged(
    report: Report, window: ScheduledWindow, watch: EvaluationWatchState
) -> EvaluationHistoryEntry:
    """Compare a window with its reference; the first that can be judged becomes that of later ones."""
    reference = watch.first if window.reference == FIRST_WINDOW else window.reference
    is_first = watch.first_start in ("", window.start)
    if window.reference == FIRST_WINDOW and is_first:
        reference = None
    assert not isinstance(reference, str)
    n = report.data.current.n
    try:
        metric = followed_metric(report, window.metric, reference)
    except EvaluationError as error:
        return _entry(report.id, window, n=n, status="error", reason=str(error))
    verdict = judge(metric, n, window.min_images, _reference(reference, window.at_least))
    if is_first and verdict.status != "insufficient":
        watch.first = ReferenceMetric(report.id, report.task, metric)
        watch.first_start = window.start
    watch.reference = watch.first if window.reference == FIRST_WINDOW else reference
    low, high = metric.ci95 or (None, None)
    return _entry(
        report.id,
        window,
        n=n,
        status=verdict.status,
        metric=written(metric),
        value=metric.value,
        low=low,
        high=high,
        reason=verdict.reason,
    )


def _reference(reference: ReferenceMetric | None, at_least: float | None) -> Reference:
    if reference is None:
        return Reference(at_least=at_least)
    return Reference(reference.metric, reference.report, at_least)


def _last_verdict(
    history: HistoryFile[EvaluationHistoryEntry], entry: EvaluationHistoryEntry
) -> str:
    """Return what the latest earlier evaluation of a window that could be judged has said; empty if there is none."""
    verdict = ""
    for past in history.latest_entries():
        same_window = (past.series, past.start, past.end) == (entry.series, entry.start, entry.end)
        if same_window and past.report != entry.report and past.status in {"ok", "fall"}:
            verdict = past.status
    return verdict


def _alert_event(
    watch: EvaluationWatchState, entry: EvaluationHistoryEntry, last_verdict: str
) -> str:
    """Update the alarm, and return the event to alert about; an empty text if there is none.

    `fall`: a window fell without an alarm, and had not fallen when it was evaluated before. `recovered`: the latest
    window that fell, or a later one, has not.
    """
    if entry.status == "fall":
        if watch.alarm:
            watch.alarm = max(watch.alarm, entry.start)
            return ""
        if last_verdict == "fall":
            return ""
        watch.alarm = entry.start
        return "fall"
    if entry.status == "ok" and watch.alarm and entry.start >= watch.alarm:
        watch.alarm = ""
        return "recovered"
    return ""


def _alert_fields(entry: EvaluationHistoryEntry) -> dict[str, Any]:
    return {
        "kind": "evaluation",
        "window": {"from": entry.start, "to": entry.end, "n": entry.n},
        "metric": {
            "name": entry.metric,
            "value": entry.value,
            "low": entry.low,
            "high": entry.high,
        },
        "reason": entry.reason,
        "report": f"/api/reports/{entry.report}",
    }

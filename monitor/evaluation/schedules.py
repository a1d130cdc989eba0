"""Schedules of evaluations: which window of a model is evaluated when, what its metric is compared with, and alerts.

`<directory>/<model>.jsonl` holds the evaluations, the latest last; `<model>.watch.json` is a `EvaluationWatchState`.
"""

import logging
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from blake3 import blake3
from msgspec import field
from msgspec.structs import replace

from quadriga.monitor.evaluation.intervals import MIN_UNITS
from quadriga.monitor.evaluation.limits import (
    find_metric,
    has_interval,
    judge,
    name_of,
    parse_metric,
    written,
)
from quadriga.monitor.evaluation.metric_settings import MetricSettings
from quadriga.monitor.evaluation.parameters import (
    MAX_SLICE_KEYS,
    WINDOW_NAMES,
    EvaluationParameters,
    ReferenceMetric,
    ScheduledWindow,
    check_parameters,
)
from quadriga.monitor.evaluation.state import EvaluationError, NoInferencesError
from quadriga.monitor.model_files import model_file_path, read_model_file, write_model_file
from quadriga.monitor.report.saved import ReportStore
from quadriga.monitor.report.schema import Metric, Report
from quadriga.monitor.spans import DAY_S, parse_span_s
from quadriga.monitor.watch.alerts import Outbox
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
from quadriga.store.records.errors import DamagedError, NotFoundError, QueryError
from quadriga.store.records.records import now_text, timestamp_text

MIN_EVERY = "1h"
MAX_WINDOW_S = 366 * DAY_S
MAX_LATE_WINDOWS = 30
FIRST_WINDOW: Final = "first"
_SETTINGS = ("k", "iou", "score", "bins")
"""Parameters of a metric that two values of it must share, or they say nothing of each other."""


class EvaluationSchedule(
    MetricSettings, frozen=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A schedule of evaluations; fields without docstring are those of `EvaluationParameters`.

    Defaults are left out of its file, so that an earlier version reads one that has nothing new.
    """

    every: str
    """Time between the ends of two windows: a fraction of a day such as `6h`, `1d`, or `1w` from Monday; UTC."""
    window: str | None = None
    """Length of a window, such as `7d`; None: as long as `every`."""
    version: str | None = None
    where: Any = None
    by: Annotated[list[str], msgspec.Meta(max_length=MAX_SLICE_KEYS)] = field(default_factory=list)
    metric: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    """The metric to follow, as `parse_metric` takes it; None: the first of the report."""
    reference: Annotated[str, msgspec.Meta(max_length=100)] | None = None
    """`first`, or the id of a saved report; None: `first`, unless there is `at_least`."""
    at_least: float | None = None
    """Value that the metric must reach; an error such as `ECE` must not exceed it."""
    min_images: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = MIN_UNITS
    """Smallest number of images with ground truth that a verdict is based on."""
    late_windows: Annotated[int, msgspec.Meta(ge=0, le=MAX_LATE_WINDOWS)] = 3
    """Number of earlier windows that are evaluated again with each new one, as ground truth arrives late."""
    webhooks: Annotated[list[Webhook], msgspec.Meta(max_length=MAX_WEBHOOKS)] = field(
        default_factory=list
    )
    delay: str = "1m"
    """Time from the end of a window to its evaluation, so that all of it is stored by then."""
    reference_metric: ReferenceMetric | None = None
    """Metric of the report that `reference` names; no request has it."""

    @property
    def window_s(self) -> int:
        """Length of a window in seconds."""
        return parse_span_s(self.every if self.window is None else self.window, "window")


def decode_schedule(body: bytes) -> EvaluationSchedule:
    """Decode a schedule from JSON; `with_reference` must follow.

    Raises:
        QueryError: The body cannot be decoded, or a value in it is invalid.
    """
    schedule = decode_body(body, EvaluationSchedule)
    if schedule.reference_metric is not None:
        raise QueryError("expected no reference_metric: it is that of the reference")
    check_schedule(schedule, MIN_EVERY)
    if not parse_span_s(schedule.every) <= schedule.window_s <= MAX_WINDOW_S:
        raise QueryError(f"expected window to be from every to 366d, got {schedule.window!r}")
    if schedule.metric is not None:
        parse_metric(schedule.metric)
    check_parameters(
        EvaluationParameters("", where=schedule.where, by=schedule.by, **schedule.chosen)
    )
    if schedule.reference is None and schedule.at_least is None:
        return replace(schedule, reference=FIRST_WINDOW)
    return schedule


def with_reference(
    schedule: EvaluationSchedule, reports: ReportStore, previous: EvaluationSchedule | None
) -> EvaluationSchedule:
    """Return a schedule with the metric of the report that it names.

    Args:
        schedule: The schedule.
        reports: The saved reports.
        previous: The schedule that this one replaces: of the same report it has the metric, even if the report was
            removed since.

    Raises:
        QueryError: There is no such report, or it cannot be read, or its metric has no interval.
    """
    if schedule.reference in (None, FIRST_WINDOW):
        return schedule
    if previous is not None and (previous.reference, previous.metric) == (
        schedule.reference,
        schedule.metric,
    ):
        return replace(schedule, reference_metric=previous.reference_metric)
    try:
        report = reports.decode(str(schedule.reference), Report)
        metric = followed_metric(report, schedule.metric)
    except (NotFoundError, DamagedError, EvaluationError) as error:
        raise QueryError(f"reference: {error}") from error
    if not has_interval(metric):
        reason = metric.ci_reason or "it was made without resamples"
        raise QueryError(
            f"reference: {written(metric)} of report {report.id} has no interval: {reason}"
        )
    return replace(schedule, reference_metric=ReferenceMetric(report.id, report.task, metric))


def followed_metric(
    report: Report, name: str | None, reference: ReferenceMetric | None = None
) -> Metric:
    """Return the metric of a report that a schedule follows.

    Args:
        report: The report.
        name: Name of the metric; None: that of the reference, or the first.
        reference: What the metric is compared with.

    Raises:
        EvaluationError: The report is no evaluation, is of another task or has other thresholds than the reference, or
            has no such metric.
    """
    if report.kind != "evaluation" or not report.metrics:
        raise EvaluationError(f"expected an evaluation with metrics, got {report.kind} {report.id}")
    if reference is not None and report.task != reference.task:
        raise EvaluationError(f"expected an evaluation of {reference.task}, got {report.task}")
    followed = report.metrics[0] if reference is None else reference.metric
    metric = find_metric(report.metrics, name_of(followed) if name is None else parse_metric(name))
    if reference is not None and _settings_of(metric) != _settings_of(reference.metric):
        raise EvaluationError(
            f"expected {written(reference.metric)}, as in report {reference.report}, got {written(metric)}"
        )
    return metric


def _settings_of(metric: Metric) -> list[Any]:
    """Return the settings of a metric; a score that was found, not chosen, differs between reports."""
    is_found = "chosen" in metric.parameters
    return [metric.parameters.get(name) for name in _SETTINGS if not (is_found and name == "score")]


def evaluation_schedules(directory: Path) -> ScheduleStore[EvaluationSchedule]:
    """Return the schedules of evaluations in a folder."""
    return ScheduleStore(directory, _KIND)


def window_start_s(saved: SavedSchedule[EvaluationSchedule], start_s: int) -> int:
    """Return where a window begins that ends one `every` after `start_s`, in seconds since 1970."""
    return start_s + saved.every_s - saved.schedule.window_s


def _parameters(
    model: str, saved: SavedSchedule[EvaluationSchedule], window: DueWindow
) -> EvaluationParameters:
    schedule = saved.schedule
    start = timestamp_text(window_start_s(saved, window.start_s) * 1000)
    end = timestamp_text((window.start_s + saved.every_s) * 1000)
    conditions = [{"ts": {"ge": start, "lt": end}}, schedule.where]
    return EvaluationParameters(
        model,
        version=schedule.version,
        where={"and": [condition for condition in conditions if condition is not None]},
        by=schedule.by,
        **schedule.chosen,
        schedule=ScheduledWindow(
            start=start,
            end=end,
            new_start=timestamp_text(window.new_start_s * 1000),
            series=_series(saved),
            metric=schedule.metric,
            min_images=schedule.min_images,
            reference=schedule.reference_metric
            or (FIRST_WINDOW if schedule.reference == FIRST_WINDOW else None),
            at_least=schedule.at_least,
        ),
    )


def _series(saved: SavedSchedule[EvaluationSchedule]) -> str:
    """Return the same text for schedules whose windows can be compared with each other."""
    schedule = saved.schedule
    content = [saved.since_s, schedule.window_s, schedule.version, schedule.where, schedule.metric]
    if schedule.chosen:
        content.append(schedule.chosen)
    return blake3(msgspec.json.encode(content)).hexdigest()[:16]


def _window_key(parameters: dict[str, Any]) -> tuple[str, str, str] | None:
    window = parameters.get("schedule")
    return window and (parameters["model"], window["to"], window["new_start"])


_KIND = ScheduleKind(
    "evaluation",
    SavedSchedule[EvaluationSchedule],
    _parameters,
    _window_key,
    late_windows=lambda schedule: schedule.late_windows,
)
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


def record_window(
    directory: Path, report: Report, model: str, window: ScheduledWindow, *, traceparent: str = ""
) -> None:
    """Record the evaluation of a window, and queue an alert in a trace; nothing if the report is recorded already.

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
        outbox.queue(model, event, _alert_fields(entry), traceparent=traceparent)
    watch.last = report.id
    write_model_file(path, watch)


def record_failure(
    directory: Path, report_id: str, model: str, window: ScheduledWindow, error: Exception
) -> None:
    """Record that a window could not be evaluated.

    Raises:
        OSError: The file could not be written.
    """
    is_empty = isinstance(error, NoInferencesError)
    status: Literal["insufficient", "error"] = "insufficient" if is_empty else "error"
    entry = _entry(report_id, window, status=status, reason=str(error))
    if not is_empty:
        _log.warning("evaluation of %s from %s: %s", model, entry.start, error)
    _history_file(directory, model).append(entry)


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
        (window.start, window.end): window
        for window in HistoryFile(directory, model, EvaluatedWindow).entries(start_us, end_us)
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
    before = None if reference is None else (reference.metric, reference.report)
    verdict = judge(metric, n, window.min_images, before=before, at_least=window.at_least)
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

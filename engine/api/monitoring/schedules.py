"""Routes for schedules of drift comparisons and of evaluations, the history of their windows, and deliveries to their webhooks."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal
from urllib.parse import urlsplit

import msgspec
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import ResponseSpec
from litestar.openapi.spec import Operation
from litestar.params import FromPath, FromQuery, QueryParameter, RawBody
from msgspec.structs import asdict

from quadriga.engine.api.access import caller_scope
from quadriga.engine.api.openapi import (
    FIND_ERRORS,
    NOT_READY,
    NOT_STORED,
    body_errors,
    error_response,
    json_body,
)
from quadriga.engine.api.routes import delete, get, put
from quadriga.monitor.drift.baselines import BaselineState
from quadriga.monitor.drift.service import DriftService
from quadriga.monitor.drift.watch.schedules import DriftHistory, DriftSchedule, drift_schedules
from quadriga.monitor.drift.watch.schedules import decode_schedule as decode_drift_schedule
from quadriga.monitor.drift.watch.schedules import read_history as read_drift_history
from quadriga.monitor.evaluation.schedules import (
    EvaluationHistory,
    EvaluationSchedule,
    evaluation_schedules,
    window_start_s,
    with_reference,
)
from quadriga.monitor.evaluation.schedules import decode_schedule as decode_evaluation_schedule
from quadriga.monitor.evaluation.schedules import read_history as read_evaluation_history
from quadriga.monitor.report.saved import ReportStore
from quadriga.monitor.spans import moment_us
from quadriga.monitor.watch.alerts import DeliveryStatus, Outbox
from quadriga.monitor.watch.schedules import SavedSchedule, ScheduleStore, ScheduleT
from quadriga.monitor.watch.webhooks import (
    ANY_PUBLIC,
    WebhookFormat,
    WebhookHosts,
    check_webhook_hosts,
)
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.errors import NotFoundError
from quadriga.store.records.records import timestamp_text
from quadriga.store.records.scope import Scoped

NOT_DELIVERED = (
    "expected a public host that accepts the alert in time, got none: the server's log says more"
)
"""The one error of hosts that the settings do not name: others would tell what is where in the server's network."""


class WebhookState(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook and the state of its deliveries."""

    url: str
    format: WebhookFormat
    signed: bool
    """Whether it has a secret, which is never returned."""
    waiting: int
    """Deliveries that were not accepted yet."""
    given_up: int
    delivered_at: str | None
    """RFC 3339, UTC."""
    failed_at: str | None
    error: str | None
    """Error of the last failed delivery."""


def webhook_states(
    schedules: ScheduleStore[Any], model: str, hosts: WebhookHosts
) -> list[WebhookState]:
    """Return the state of the deliveries to the webhooks of a model's schedule.

    Args:
        schedules: Where the schedule is.
        model: Name of the model.
        hosts: The hosts that the settings name: of others, all errors read the same.

    Raises:
        NotFoundError: The model has no schedule.
    """
    outbox = Outbox(schedules)
    statuses, waiting = outbox.delivery_status(model), outbox.waiting(model)
    states = []
    for webhook in schedules.get(model).schedule.webhooks:
        status = asdict(statuses.get(webhook.url, DeliveryStatus()))
        if status["error"] and not hosts.is_named(urlsplit(webhook.url).hostname or ""):
            status["error"] = NOT_DELIVERED
        state = WebhookState(
            url=webhook.url,
            format=webhook.format,
            signed=webhook.secret is not None,
            waiting=waiting.get(webhook.url, 0),
            **status,
        )
        states.append(state)
    return states


_WEBHOOK = {
    "secret": "Key that signs deliveries",
    "format": "Form of the messages: quadriga, standard (Standard Webhooks) or alertmanager",
}
_DRIFT_BODY = json_body(
    DriftSchedule, every="5m to 1d, an even division of a day, or 1w", **_WEBHOOK
)
_EVALUATION_BODY = json_body(
    EvaluationSchedule,
    "reference_metric",
    every="1h to 1d, an even division of a day, or 1w",
    window="Length of a window, at least every and at most 366d",
    reference="first, or the id of a report",
    **_WEBHOOK,
)
_Start = Annotated[str | None, QueryParameter(name="from")]
_End = Annotated[str | None, QueryParameter(name="to")]


class ScheduleState(msgspec.Struct, frozen=True):
    """A model's schedule and its progress."""

    model: str
    every: str
    baseline: str
    baseline_state: BaselineState | Literal["missing"] | msgspec.UnsetType
    """State of the baseline; `missing` if there is none of this name any more, so that no window is compared."""
    where: Any
    signals: list[str]
    ignore: list[str]
    by: list[str]
    alpha: float
    delay: str
    webhooks: list[WebhookState]
    since: str
    """RFC 3339, UTC; also the other times."""
    next: str
    """Start of the first window that is not compared yet."""
    next_at: str
    """Time at which that window is compared."""


class EvaluationScheduleState(msgspec.Struct, frozen=True):
    """A model's schedule of evaluations and its progress."""

    model: str
    every: str
    window: str
    version: str | None
    where: Any
    by: list[str]
    top_k: list[int] | None
    iou: list[float] | None
    score: list[float] | None
    bins: int | None
    single_label: bool | None
    metric: str | None
    reference: str | None
    at_least: float | None
    min_images: int
    late_windows: int
    delay: str
    webhooks: list[WebhookState]
    since: str
    """RFC 3339, UTC; also the other times."""
    next: str
    """Start of the first window that is not evaluated yet."""
    next_at: str
    """Time at which that window is evaluated."""


def schedule_routes(
    directory: Path,
    inferences: Scoped[InferenceReader],
    hosts: WebhookHosts = ANY_PUBLIC,
    *,
    drift: Scoped[DriftService] | None = None,
) -> list[HTTPRouteHandler]:
    """Return the handlers of schedules of drift comparisons and of the history of their windows.

    Args:
        directory: The folder of schedules, beside the store.
        inferences: Finds the model that a name means.
        hosts: The hosts that alerts may be sent to.
        drift: Knows the baselines; None to leave open whether there is one.
    """

    def complete(model: str, schedule: DriftSchedule) -> DriftSchedule:
        if drift is not None:
            drift.within(caller_scope()).check_baseline(model, schedule.baseline)
        return schedule

    def describe(model: str, saved: SavedSchedule[DriftSchedule], _next_s: int) -> dict[str, Any]:
        if drift is None:
            return {"baseline_state": msgspec.UNSET}
        of_team = drift.within(caller_scope())
        return {"baseline_state": of_team.baseline_state(model, saved.schedule.baseline)}

    unreadable = error_response("The body, a filter or a time cannot be understood")
    schedules = ModelSchedules(drift_schedules(directory), inferences, hosts)

    @get("/api/models/{name:str}/drift", need="read", errors=FIND_ERRORS | {400: unreadable})
    def get_drift_history(
        name: FromPath[str],
        start: _Start = None,
        end: _End = None,
        signal: FromQuery[str | None] = None,
    ) -> DriftHistory:
        """Return the windows of a model's schedule that start within a time, oldest first."""
        of_team, model = schedules.find(name)
        return read_drift_history(of_team.directory, model, *_span_us(start, end), signal=signal)

    return [
        *schedules.routes(
            ScheduleState,
            _DRIFT_BODY,
            unreadable,
            "The model or the baseline is not known, or the model has no drift schedule",
            decode=decode_drift_schedule,
            complete=complete,
            describe=describe,
        ),
        get_drift_history,
    ]


def evaluation_schedule_routes(
    directory: Path,
    inferences: Scoped[InferenceReader],
    reports: Scoped[ReportStore],
    *,
    hosts: WebhookHosts = ANY_PUBLIC,
) -> list[HTTPRouteHandler]:
    """Return the handlers of schedules of evaluations and of the history of their windows.

    Args:
        directory: The folder of schedules, beside the store.
        inferences: Finds the model that a name means.
        reports: The reports that a schedule may name as its reference.
        hosts: The hosts that alerts may be sent to.
    """
    every_team = evaluation_schedules(directory)

    def complete(model: str, schedule: EvaluationSchedule) -> EvaluationSchedule:
        scope, previous = caller_scope(), None
        with suppress(NotFoundError):
            previous = every_team.within(scope).get(model).schedule
        return with_reference(schedule, reports.within(scope), previous)

    def describe(
        _model: str, saved: SavedSchedule[EvaluationSchedule], next_s: int
    ) -> dict[str, Any]:
        window = saved.schedule.window or saved.schedule.every
        return {"window": window, "next": _time_text(window_start_s(saved, next_s))}

    unreadable = error_response("The body, a filter, a time or the reference cannot be understood")
    schedules = ModelSchedules(every_team, inferences, hosts)

    @get("/api/models/{name:str}/evaluation", need="read", errors=FIND_ERRORS | {400: unreadable})
    def get_evaluation_history(
        name: FromPath[str], start: _Start = None, end: _End = None
    ) -> EvaluationHistory:
        """Return the windows of a model's schedule that start within a time, oldest first."""
        of_team, model = schedules.find(name)
        return read_evaluation_history(of_team.directory, model, *_span_us(start, end))

    return [
        *schedules.routes(
            EvaluationScheduleState,
            _EVALUATION_BODY,
            unreadable,
            "The model is not known, or has no evaluation schedule",
            decode=lambda _model, body: decode_evaluation_schedule(body),
            complete=complete,
            describe=describe,
        ),
        get_evaluation_history,
    ]


@dataclass(frozen=True)
class ModelSchedules(Generic[ScheduleT]):
    """The schedules of one kind, of all teams: each caller sees and changes those of its own.

    Attributes:
        every_team: The schedules.
        inferences: Finds the model that a name means.
        hosts: The hosts that alerts may be sent to.
    """

    every_team: ScheduleStore[ScheduleT]
    inferences: Scoped[InferenceReader]
    hosts: WebhookHosts

    def find(self, name: str) -> tuple[ScheduleStore[ScheduleT], str]:
        """Return the schedules of the caller's team, and the model that a name means."""
        scope = caller_scope()
        return self.every_team.within(scope), self.inferences.within(scope).names.resolve(name)

    def routes(
        self,
        state: type[msgspec.Struct],
        operation: type[Operation],
        unreadable: ResponseSpec,
        unknown: str,
        *,
        decode: Callable[[str, bytes], ScheduleT],
        complete: Callable[[str, ScheduleT], ScheduleT],
        describe: Callable[[str, SavedSchedule[ScheduleT], int], dict[str, Any]],
    ) -> list[HTTPRouteHandler]:
        """Return the handlers that read, replace and remove a schedule.

        Args:
            state: What they return.
            operation: Describes the body of a schedule.
            unreadable: Response to a body that cannot be understood.
            unknown: Description of the response for a model without a schedule.
            decode: Decodes the schedule of a model from JSON.
            complete: Completes a decoded schedule, once it is checked.
            describe: Returns the fields of `state` that only this kind has, given the model, its schedule and the end of the
                latest window in seconds since 1970.
        """
        kind = self.every_team.kind.name
        path = f"/api/models/{{name:str}}/{kind}-schedule"
        errors = {400: unreadable, 404: error_response(unknown)}

        def read_state(name: FromPath[str]) -> Any:
            schedules, model = self.find(name)
            saved = schedules.get(model)
            next_s = schedules.next_s(model, saved)
            of_schedule = [f for f in state.__struct_fields__ if hasattr(saved.schedule, f)]
            fields = {
                **{field: getattr(saved.schedule, field) for field in of_schedule},
                "model": model,
                "webhooks": webhook_states(schedules, model, self.hosts),
                "since": _time_text(saved.since_s),
                "next": _time_text(next_s),
                "next_at": _time_text(next_s + saved.every_s + saved.delay_s),
                **describe(model, saved, next_s),
            }
            return state(**fields)

        def replace(name: FromPath[str], body: RawBody) -> Any:
            schedules, model = self.find(name)
            schedule = decode(model, body)
            self.inferences.within(caller_scope()).check_where(schedule.where)
            check_webhook_hosts(schedule.webhooks, self.hosts)
            schedules.put(model, complete(model, schedule))
            return read_state(name)

        def remove(name: FromPath[str]) -> Any:
            schedules, model = self.find(name)
            last = read_state(name)
            schedules.remove(model)
            return last

        for verb, handler in (("get", read_state), ("put", replace), ("delete", remove)):
            handler.__name__ = f"{verb}_{kind}_schedule"  # the OpenAPI document names operations so
            handler.__annotations__["return"] = state
        replace_errors = body_errors(unreadable)
        return [
            get(path, need="read", errors=errors | {503: NOT_READY})(read_state),
            put(path, need="monitor", operation=operation, errors=replace_errors)(replace),
            delete(path, need="monitor", errors=errors | {503: NOT_STORED})(remove),
        ]


def _span_us(start: str | None, end: str | None) -> tuple[int | None, int | None]:
    now_us = time.time_ns() // 1000
    return moment_us(start, now_us, "from"), moment_us(end, now_us, "to")


def _time_text(seconds: int) -> str:
    return timestamp_text(seconds * 1000)

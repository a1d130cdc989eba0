"""HTTP routes for schedules of evaluations and the history of their windows."""

import time
from asyncio import to_thread
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
from litestar import delete, get, put
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, QueryParameter, RawBody
from msgspec.structs import asdict

from quadriga.engine.api.access import caller_scope
from quadriga.engine.api.openapi_bodies import json_body
from quadriga.engine.api.responses import (
    NOT_READY,
    NOT_STORED,
    UNKNOWN_MODEL,
    error_response,
    json_body_options,
    options_route,
)
from quadriga.engine.api.webhook_states import ModelSchedules, WebhookState
from quadriga.monitor.evaluation.history import EvaluationHistory, read_history
from quadriga.monitor.evaluation.schedules import (
    EvaluationSchedule,
    decode_schedule,
    evaluation_schedules,
    window_start_s,
    with_reference,
)
from quadriga.monitor.report.saved import ReportStore
from quadriga.monitor.spans import moment_us
from quadriga.monitor.watch.schedules import ScheduleStore
from quadriga.monitor.watch.webhook_hosts import ANY_PUBLIC, WebhookHosts
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.errors import NotFoundError
from quadriga.store.records.records import timestamp_text
from quadriga.store.records.scope import Scoped

_UNREADABLE = error_response("The body, a filter, a time or the reference cannot be understood")
_UNKNOWN = error_response("The model is not known, or has no evaluation schedule")
_SCHEDULE = json_body(
    EvaluationSchedule,
    "reference_metric",
    every="1h to 1d, an even division of a day, or 1w",
    window="Length of a window, at least every and at most 366d",
    reference="first, or the id of a report",
    secret="Key that signs deliveries",  # noqa: S106 - a description
    format="Form of the messages: quadriga, standard (Standard Webhooks) or alertmanager",
)


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


def evaluation_schedule_routes(
    directory: Path,
    inferences: Scoped[InferenceReader],
    reports: Scoped[ReportStore],
    *,
    hosts: WebhookHosts = ANY_PUBLIC,
) -> list[HTTPRouteHandler]:
    """Return the handlers that read, replace and remove schedules, and read the history of windows.

    Args:
        directory: The folder of schedules, beside the store.
        inferences: Finds the model that a name means.
        reports: The reports that a schedule may name as its reference.
        hosts: The hosts that alerts may be sent to.
    """
    every_team = evaluation_schedules(directory)
    schedules = ModelSchedules(every_team, inferences, hosts, _describe)
    path = "/api/models/{name:str}/evaluation-schedule"

    def complete(model: str, schedule: EvaluationSchedule) -> EvaluationSchedule:
        scope, previous = caller_scope(), None
        with suppress(NotFoundError):
            previous = every_team.within(scope).get(model).schedule
        return with_reference(schedule, reports.within(scope), previous)

    # Not `sync_to_thread`: of three handlers of one path, litestar 2 wraps the first twice.
    @get(path, responses={400: _UNREADABLE, 404: _UNKNOWN, 503: NOT_READY}, need="read")
    async def get_evaluation_schedule(name: FromPath[str]) -> EvaluationScheduleState:
        """Return how often a model is evaluated, and how alerts were delivered."""
        return await to_thread(schedules.read, name)

    @put(path, need="monitor", **json_body_options(_SCHEDULE, _UNREADABLE))
    async def put_evaluation_schedule(
        name: FromPath[str], body: RawBody
    ) -> EvaluationScheduleState:
        """Evaluate each window of a model from now on; the body is JSON whatever its content type."""
        return await to_thread(schedules.replace, name, lambda _: decode_schedule(body), complete)

    @delete(
        path,
        status_code=200,
        responses={400: _UNREADABLE, 404: _UNKNOWN, 503: NOT_STORED},
        need="monitor",
    )
    async def delete_evaluation_schedule(name: FromPath[str]) -> EvaluationScheduleState:
        """Stop evaluating a model's windows; the history of earlier ones stays."""
        return await to_thread(schedules.remove, name)

    history_errors = {400: _UNREADABLE, 404: UNKNOWN_MODEL, 503: NOT_READY}

    @get(
        "/api/models/{name:str}/evaluation",
        sync_to_thread=True,
        responses=history_errors,
        need="read",
    )
    def get_evaluation_history(
        name: FromPath[str],
        start: Annotated[str | None, QueryParameter(name="from")] = None,
        end: Annotated[str | None, QueryParameter(name="to")] = None,
    ) -> EvaluationHistory:
        """Return the windows of a model's schedule that start within a time, oldest first."""
        now_us = time.time_ns() // 1000
        start_us, end_us = moment_us(start, now_us, "from"), moment_us(end, now_us, "to")
        of_team, model = schedules.find(name)
        return read_history(of_team.directory, model, start_us, end_us)

    return [
        options_route(path, "GET", "PUT", "DELETE"),
        get_evaluation_schedule,
        put_evaluation_schedule,
        delete_evaluation_schedule,
        get_evaluation_history,
    ]


def _describe(
    schedules: ScheduleStore[EvaluationSchedule], model: str, webhooks: list[WebhookState]
) -> EvaluationScheduleState:
    """Describe a model's schedule, its next window and the deliveries to its webhooks."""
    saved = schedules.get(model)
    next_s = schedules.next_s(model, saved)
    fields = asdict(saved.schedule) | {
        "window": saved.schedule.window or saved.schedule.every,
        "webhooks": webhooks,
    }
    del fields["reference_metric"]
    return EvaluationScheduleState(
        model=model,
        **fields,
        since=timestamp_text(saved.since_s * 1000),
        next=timestamp_text(window_start_s(saved, next_s) * 1000),
        next_at=timestamp_text((next_s + saved.every_s + saved.delay_s) * 1000),
    )

"""HTTP routes for drift schedules and the history of their windows."""

import time
from asyncio import to_thread
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from litestar import delete, get, put
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery, QueryParameter, RawBody
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
from quadriga.monitor.drift.baselines import BaselineState
from quadriga.monitor.drift.service import DriftService
from quadriga.monitor.drift.watch.history import DriftHistory, read_history
from quadriga.monitor.drift.watch.schedules import (
    DriftSchedule,
    decode_schedule,
    drift_schedules,
)
from quadriga.monitor.spans import moment_us
from quadriga.monitor.watch.schedules import ScheduleStore
from quadriga.monitor.watch.webhook_hosts import ANY_PUBLIC, WebhookHosts
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.records import timestamp_text
from quadriga.store.records.scope import Scoped

_UNREADABLE = error_response("The body, a filter or a time cannot be understood")
_UNKNOWN = error_response(
    "The model or the baseline is not known, or the model has no drift schedule"
)
_SCHEDULE = json_body(
    DriftSchedule,
    every="5m to 1d, an even division of a day, or 1w",
    secret="Key that signs deliveries",  # noqa: S106 - a description
    format="Form of the messages: quadriga, standard (Standard Webhooks) or alertmanager",
)


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


def schedule_routes(
    directory: Path,
    inferences: Scoped[InferenceReader],
    hosts: WebhookHosts = ANY_PUBLIC,
    *,
    drift: Scoped[DriftService] | None = None,
) -> list[HTTPRouteHandler]:
    """Return the handlers that read, replace and remove schedules, and read the history of windows.

    Args:
        directory: The folder of schedules, beside the store.
        inferences: Finds the model that a name means.
        hosts: The hosts that alerts may be sent to.
        drift: Knows the baselines; None to leave open whether there is one.
    """
    every_team = drift_schedules(directory)
    schedules = ModelSchedules(every_team, inferences, hosts, partial(_describe, drift))
    path = "/api/models/{name:str}/drift-schedule"

    # Not `sync_to_thread`: of three handlers of one path, litestar 2 wraps the first twice.
    @get(path, responses={400: _UNREADABLE, 404: _UNKNOWN, 503: NOT_READY}, need="read")
    async def get_drift_schedule(name: FromPath[str]) -> ScheduleState:
        """Return how often a model's drift is compared, and how alerts were delivered."""
        return await to_thread(schedules.read, name)

    @put(path, need="monitor", **json_body_options(_SCHEDULE, _UNREADABLE))
    async def put_drift_schedule(name: FromPath[str], body: RawBody) -> ScheduleState:
        """Compare each window of a model from now on; the body is JSON whatever its content type."""
        decode = partial(_decode_of, body)
        return await to_thread(schedules.replace, name, decode, partial(_with_baseline, drift))

    @delete(
        path,
        status_code=200,
        responses={400: _UNREADABLE, 404: _UNKNOWN, 503: NOT_STORED},
        need="monitor",
    )
    async def delete_drift_schedule(name: FromPath[str]) -> ScheduleState:
        """Stop comparing a model's windows; the history of earlier ones stays."""
        return await to_thread(schedules.remove, name)

    history_errors = {400: _UNREADABLE, 404: UNKNOWN_MODEL, 503: NOT_READY}

    @get("/api/models/{name:str}/drift", sync_to_thread=True, responses=history_errors, need="read")
    def get_drift_history(
        name: FromPath[str],
        start: Annotated[str | None, QueryParameter(name="from")] = None,
        end: Annotated[str | None, QueryParameter(name="to")] = None,
        signal: FromQuery[str | None] = None,
    ) -> DriftHistory:
        """Return the windows of a model's schedule that start within a time, oldest first."""
        now_us = time.time_ns() // 1000
        start_us, end_us = moment_us(start, now_us, "from"), moment_us(end, now_us, "to")
        of_team, model = schedules.find(name)
        return read_history(
            of_team.directory, model, start_us=start_us, end_us=end_us, signal=signal
        )

    return [
        options_route(path, "GET", "PUT", "DELETE"),
        get_drift_schedule,
        put_drift_schedule,
        delete_drift_schedule,
        get_drift_history,
    ]


def _decode_of(body: bytes, model: str) -> DriftSchedule:
    return decode_schedule(model, body)


def _with_baseline(
    drift: Scoped[DriftService] | None, model: str, schedule: DriftSchedule
) -> DriftSchedule:
    """Return a schedule whose baseline is there; raises as `DriftService.check_baseline`."""
    if drift is not None:
        drift.within(caller_scope()).check_baseline(model, schedule.baseline)
    return schedule


def _describe(
    drift: Scoped[DriftService] | None,
    schedules: ScheduleStore[DriftSchedule],
    model: str,
    webhooks: list[WebhookState],
) -> ScheduleState:
    """Describe a model's schedule, its next window and the deliveries to its webhooks."""
    saved = schedules.get(model)
    start_s = schedules.next_s(model, saved)
    fields = asdict(saved.schedule) | {"webhooks": webhooks}
    state: Any = msgspec.UNSET
    if drift is not None:
        of_team = drift.within(caller_scope())
        state = of_team.baseline_state(model, saved.schedule.baseline)
    return ScheduleState(
        model=model,
        baseline_state=state,
        **fields,
        since=timestamp_text(saved.since_s * 1000),
        next=timestamp_text(start_s * 1000),
        next_at=timestamp_text((start_s + saved.every_s + saved.delay_s) * 1000),
    )

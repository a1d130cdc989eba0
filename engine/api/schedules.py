"""HTTP routes for drift schedules and the history of their windows."""

import time
from asyncio import to_thread
from pathlib import Path
from typing import Annotated, Any

import msgspec
from litestar import delete, get, put
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery, QueryParameter, RawBody
from msgspec.structs import asdict

from quadriga.engine.api.openapi_bodies import json_body
from quadriga.engine.api.responses import (
    NOT_STORED,
    error_response,
    json_body_options,
    options_route,
)
from quadriga.monitor.drift.parameters import moment_us
from quadriga.monitor.drift.watch.alerts import DeliveryStatus, Outbox
from quadriga.monitor.drift.watch.history import DriftHistory, read_history
from quadriga.monitor.drift.watch.schedules import Schedule, ScheduleStore
from quadriga.store.records import timestamp_text

_UNREADABLE = error_response("The body, a filter or a time cannot be understood")
_UNKNOWN = error_response("The model has no drift schedule")
_SCHEDULE = json_body(
    Schedule,
    every="5m to 1d, an even division of a day, or 1w",
    secret="Key that signs deliveries",  # noqa: S106 - a description
)


class WebhookState(msgspec.Struct, frozen=True):
    """A webhook and the state of its deliveries."""

    url: str
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


class ScheduleState(msgspec.Struct, frozen=True):
    """A model's schedule and its progress."""

    model: str
    every: str
    baseline: str
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


def schedule_routes(directory: Path) -> list[HTTPRouteHandler]:
    """Return the handlers that read, replace and remove schedules, and read the history of windows.

    Args:
        directory: The folder of schedules, beside the store.
    """
    schedules, outbox = ScheduleStore(directory), Outbox(directory)
    path = "/api/models/{name:str}/drift-schedule"

    # Not `sync_to_thread`: of three handlers of one path, litestar 2 wraps the first twice.
    @get(path, responses={400: _UNREADABLE, 404: _UNKNOWN})
    async def get_drift_schedule(name: FromPath[str]) -> ScheduleState:
        """Return how often a model's drift is compared, and how alerts were delivered."""
        return await to_thread(_schedule_state, schedules, outbox, name)

    @put(path, **json_body_options(_SCHEDULE, _UNREADABLE))
    async def put_drift_schedule(name: FromPath[str], body: RawBody) -> ScheduleState:
        """Compare each window of a model from now on; the body is JSON whatever its content type."""
        await to_thread(schedules.put, name, body)
        return await to_thread(_schedule_state, schedules, outbox, name)

    @delete(path, status_code=200, responses={400: _UNREADABLE, 404: _UNKNOWN, 503: NOT_STORED})
    async def delete_drift_schedule(name: FromPath[str]) -> ScheduleState:
        """Stop comparing a model's windows; the history of earlier ones stays."""
        last = await to_thread(_schedule_state, schedules, outbox, name)
        await to_thread(schedules.remove, name)
        return last

    @get("/api/models/{name:str}/drift", sync_to_thread=True, responses={400: _UNREADABLE})
    def get_drift_history(
        name: FromPath[str],
        start: Annotated[str | None, QueryParameter(name="from")] = None,
        end: Annotated[str | None, QueryParameter(name="to")] = None,
        signal: FromQuery[str | None] = None,
    ) -> DriftHistory:
        """Return the windows of a model's schedule that start within a time, oldest first."""
        now_us = time.time_ns() // 1000
        start_us, end_us = moment_us(start, now_us, "from"), moment_us(end, now_us, "to")
        return read_history(directory, name, start_us=start_us, end_us=end_us, signal=signal)

    return [
        options_route(path, "GET", "PUT", "DELETE"),
        get_drift_schedule,
        put_drift_schedule,
        delete_drift_schedule,
        get_drift_history,
    ]


def _schedule_state(schedules: ScheduleStore, outbox: Outbox, model: str) -> ScheduleState:
    """Describe a model's schedule, its next window and the deliveries to its webhooks."""
    saved = schedules.get(model)
    schedule, start_s = saved.schedule, schedules.next_s(model, saved)
    statuses, waiting = outbox.delivery_status(model), outbox.waiting(model)
    webhooks = [
        WebhookState(
            url=webhook.url,
            signed=webhook.secret is not None,
            waiting=waiting.get(webhook.url, 0),
            **asdict(statuses.get(webhook.url, DeliveryStatus())),
        )
        for webhook in schedule.webhooks
    ]
    fields = asdict(schedule) | {"webhooks": webhooks}
    return ScheduleState(
        model=model,
        **fields,
        since=timestamp_text(saved.since_s * 1000),
        next=timestamp_text(start_s * 1000),
        next_at=timestamp_text((start_s + schedule.every_s + schedule.delay_s) * 1000),
    )

"""HTTP routes of drift schedules and of what became of their windows; errors as in `quadriga.store.routes`."""

import time
from asyncio import to_thread
from pathlib import Path
from typing import Annotated, Any

import msgspec
from litestar import delete, get, put
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import ResponseSpec
from litestar.params import FromPath, FromQuery, QueryParameter, RawBody
from msgspec.structs import asdict

from quadriga.monitor.drift.parameters import moment_us
from quadriga.monitor.drift.watch.alerts import Outbox, Told
from quadriga.monitor.drift.watch.history import History, history
from quadriga.monitor.drift.watch.schedules import Schedule, Schedules
from quadriga.store.bodies import body_of
from quadriga.store.records import timestamp_text
from quadriga.store.routes import UNKEPT, Error, options, taking

_UNREADABLE = ResponseSpec(Error, False, "The body, a filter or a time cannot be understood")
_UNKNOWN = ResponseSpec(Error, False, "The model has no drift schedule")
_SCHEDULE = body_of(
    Schedule,
    every="A part of a day from 5m to 1d, or 1w",
    secret="Deliveries are signed with it",  # noqa: S106 - a description
)


class WebhookState(msgspec.Struct, frozen=True):
    """A webhook, and how its deliveries went."""

    url: str
    signed: bool
    """Whether it has a secret, which is never answered."""
    waiting: int
    """Deliveries that were not taken yet."""
    given_up: int
    delivered_at: str | None
    """RFC 3339, UTC."""
    failed_at: str | None
    error: str | None
    """Of the last try that failed."""


class ScheduleState(msgspec.Struct, frozen=True):
    """A model's schedule, and how far it is."""

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
    """RFC 3339, UTC, as the others."""
    next: str
    """Start of the first window that is not compared yet."""
    next_at: str
    """When it is."""


def schedule_routes(directory: Path) -> list[HTTPRouteHandler]:
    """Return the handlers that keep schedules, and tell of their windows.

    Args:
        directory: Of schedules, beside the store.
    """
    schedules, outbox = Schedules(directory), Outbox(directory)
    path = "/api/models/{name:str}/drift-schedule"

    def state(name: str) -> ScheduleState:
        kept = schedules.get(name)
        asked, start = kept.schedule, schedules.next_s(name, kept)
        told, waiting = outbox.told(name), outbox.waiting(name)
        hooks = [
            WebhookState(
                hook.url,
                hook.secret is not None,
                waiting.get(hook.url, 0),
                **asdict(told.get(hook.url, Told())),
            )
            for hook in asked.webhooks
        ]
        given = asdict(asked) | {"webhooks": hooks}
        return ScheduleState(
            name,
            **given,
            since=timestamp_text(kept.since_s * 1000),
            next=timestamp_text(start * 1000),
            next_at=timestamp_text((start + asked.every_s + asked.delay_s) * 1000),
        )

    # Not `sync_to_thread`: of three handlers of one path, litestar 2 wraps the first twice.
    @get(path, responses={400: _UNREADABLE, 404: _UNKNOWN})
    async def get_drift_schedule(name: FromPath[str]) -> ScheduleState:
        """Answer how often a model's drift is looked at, and how alerts were delivered."""
        return await to_thread(state, name)

    @put(path, **taking(_SCHEDULE, _UNREADABLE))
    async def put_drift_schedule(name: FromPath[str], body: RawBody) -> ScheduleState:
        """Compare each window of a model from now on; the body is JSON whatever its content type."""
        await to_thread(schedules.put, name, body)
        return await to_thread(state, name)

    @delete(path, status_code=200, responses={400: _UNREADABLE, 404: _UNKNOWN, 503: UNKEPT})
    async def delete_drift_schedule(name: FromPath[str]) -> ScheduleState:
        """Compare a model's windows no longer; what became of the earlier ones stays."""
        last = await to_thread(state, name)
        await to_thread(schedules.remove, name)
        return last

    @get("/api/models/{name:str}/drift", sync_to_thread=True, responses={400: _UNREADABLE})
    def get_drift_history(
        name: FromPath[str],
        start: Annotated[str | None, QueryParameter(name="from")] = None,
        end: Annotated[str | None, QueryParameter(name="to")] = None,
        signal: FromQuery[str | None] = None,
    ) -> History:
        """Answer the windows of a model's schedule that start within a time, oldest first."""
        now_us = time.time_ns() // 1000
        first, after = moment_us(start, now_us, "from"), moment_us(end, now_us, "to")
        return history(directory, name, first, after, signal)

    return [
        options(path, "GET", "PUT", "DELETE"),
        get_drift_schedule,
        put_drift_schedule,
        delete_drift_schedule,
        get_drift_history,
    ]

"""HTTP routes for drift reports, which are jobs, and for baselines."""

from asyncio import to_thread

import msgspec
from litestar import delete, get, post, put
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery, RawBody

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
from quadriga.engine.api.schedules import check_end_webhook
from quadriga.monitor.drift.baselines import Baseline, BaselineRequest
from quadriga.monitor.drift.parameters import DEFAULT_BASELINE, DriftParameters, decode_parameters
from quadriga.monitor.drift.service import DriftService
from quadriga.monitor.watch.webhooks import ANY_PUBLIC, WebhookHosts
from quadriga.proto.request import note_target
from quadriga.store.jobs.jobs import Job
from quadriga.store.records.scope import Scoped

_UNREADABLE = error_response(
    "The body, a filter or a time cannot be understood, or the baseline is not found"
)
_UNKNOWN = error_response("The model is not known, or has no such baseline")
_DRIFT = json_body(
    DriftParameters,
    "schedule",
    baseline="Name of a baseline, or a window of the same model",
    windows="Windows per day, which share alpha",
)
_BASELINE = json_body(
    BaselineRequest,
    dataset="Value of meta.dataset_snapshot_id",
    rolling="Time before each compared window, such as 7d",
)


class BaselineList(msgspec.Struct, frozen=True):
    """The baselines of a model."""

    baselines: list[Baseline]
    """The baselines, sorted by name."""


def drift_routes(
    drift: Scoped[DriftService], hosts: WebhookHosts = ANY_PUBLIC
) -> list[HTTPRouteHandler]:
    """Return the handlers that submit drift reports and read, replace and remove baselines.

    Args:
        drift: Submits the jobs, and keeps the baselines.
        hosts: The hosts that ends of jobs may be told to.
    """
    path = "/api/models/{name:str}/baseline"

    @post(
        "/api/drift",
        sync_to_thread=True,
        need="monitor",
        **json_body_options(_DRIFT, _UNREADABLE, status=202),
    )
    def submit_drift(body: RawBody) -> Job:
        """Compare a window of stored inferences, as a job; the body is JSON whatever its content type."""
        check_end_webhook(decode_parameters(body).webhook, hosts)
        job = drift.within(caller_scope()).submit(body)
        note_target(job.id)
        return job

    # Not `sync_to_thread`: of three handlers of one path, litestar 2 wraps the first twice.
    @get(path, responses={400: _UNREADABLE, 404: UNKNOWN_MODEL, 503: NOT_READY}, need="read")
    async def list_baselines(name: FromPath[str]) -> BaselineList:
        """Return the baselines of a model."""
        return BaselineList(await to_thread(drift.within(caller_scope()).list_baselines, name))

    @put(path, need="monitor", **json_body_options(_BASELINE, _UNREADABLE))
    async def put_baseline(name: FromPath[str], body: RawBody) -> Baseline:
        """Save a baseline of a model; a job reads it. The body is JSON whatever its content type."""
        return await to_thread(drift.within(caller_scope()).put_baseline, name, body)

    @delete(
        path,
        status_code=200,
        responses={400: _UNREADABLE, 404: _UNKNOWN, 503: NOT_STORED},
        need="monitor",
    )
    async def delete_baseline(
        name: FromPath[str], baseline: FromQuery[str] = DEFAULT_BASELINE
    ) -> Baseline:
        """Remove a baseline of a model, and return it."""
        return await to_thread(drift.within(caller_scope()).delete_baseline, name, baseline)

    return [
        submit_drift,
        options_route(path, "GET", "PUT", "DELETE"),
        list_baselines,
        put_baseline,
        delete_baseline,
    ]

"""HTTP routes of drift reports, which are jobs, and of baselines; errors as in `quadriga.store.routes`."""

import time
from asyncio import to_thread
from contextlib import suppress

import msgspec
from litestar import delete, get, post, put
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import ResponseSpec
from litestar.params import FromPath, FromQuery, RawBody
from msgspec.structs import replace

from quadriga.monitor.drift.baselines import Baseline, BaselineRequest, Baselines, decode_baseline
from quadriga.monitor.drift.parameters import DEFAULT, DriftParameters, absolute, decode_parameters
from quadriga.monitor.drift_jobs import BaselineJob
from quadriga.monitor.report.schema import Window
from quadriga.store.bodies import body_of
from quadriga.store.errors import NotFoundError, QueryError, StoreError
from quadriga.store.inferences import Inferences
from quadriga.store.jobs import Job, Jobs
from quadriga.store.query.request import QueryRequest
from quadriga.store.records import timestamp_text
from quadriga.store.routes import UNKEPT, Error, options, taking

_UNREADABLE = ResponseSpec(
    Error, False, "The body, a filter or a time means nothing, or no baseline"
)
_UNKNOWN = ResponseSpec(Error, False, "The model has no such baseline")
_DRIFT = body_of(
    DriftParameters,
    "schedule",
    baseline="The name of one, or a window of the same model",
    windows="Of a day, which share alpha",
)
_BASELINE = body_of(
    BaselineRequest,
    dataset="As meta.dataset_snapshot_id",
    rolling="Such as 7d: the time before the window that is compared",
)


class BaselineList(msgspec.Struct, frozen=True):
    """The baselines of a model."""

    baselines: list[Baseline]
    """By name."""


def drift_routes(
    jobs: Jobs, inferences: Inferences, baselines: Baselines
) -> list[HTTPRouteHandler]:
    """Return the handlers that submit drift reports, and keep baselines."""
    path = "/api/models/{name:str}/baseline"

    @post("/api/drift", sync_to_thread=True, **taking(_DRIFT, _UNREADABLE, 202))
    def submit_drift(body: RawBody) -> Job:
        """Compare a window of what is stored, as a job; the body is JSON whatever its content type."""
        parameters = absolute(decode_parameters(body), time.time_ns() // 1000)
        parameters = baselines.resolved(parameters)
        if isinstance(parameters.baseline, str):
            found = state_of(baselines.get(parameters.model, parameters.baseline), jobs, "")
            if found.state == "failed":
                raise QueryError(
                    f"expected the baseline {found.name} to be ready, got {found.error}"
                )
        return jobs.submit("drift", parameters)

    def listed(model: str) -> BaselineList:
        digest = _newest(inferences, model)
        return BaselineList([state_of(one, jobs, digest) for one in baselines.all(model)])

    def begun(model: str, body: bytes) -> Baseline:
        asked = decode_baseline(model, body, time.time_ns() // 1000)
        before = [one for one in baselines.all(model) if one.name == asked.name]
        made = _begun(baselines, jobs, model, asked)
        for one in before:
            _cancel(jobs, one)
        return made

    def removed(model: str, name: str) -> Baseline:
        found = state_of(baselines.get(model, name), jobs, "")
        _cancel(jobs, found)
        baselines.remove(model, name)
        return found

    # Not `sync_to_thread`: of three handlers of one path, litestar 2 wraps the first twice.
    @get(path, responses={400: _UNREADABLE})
    async def list_baselines(name: FromPath[str]) -> BaselineList:
        """Answer what is usual of a model."""
        return await to_thread(listed, name)

    @put(path, **taking(_BASELINE, _UNREADABLE))
    async def put_baseline(name: FromPath[str], body: RawBody) -> Baseline:
        """Say what is usual of a model; it is read as a job. The body is JSON whatever its content type."""
        return await to_thread(begun, name, body)

    @delete(path, status_code=200, responses={400: _UNREADABLE, 404: _UNKNOWN, 503: UNKEPT})
    async def delete_baseline(name: FromPath[str], baseline: FromQuery[str] = DEFAULT) -> Baseline:
        """Remove what was usual of a model, and answer what it was."""
        return await to_thread(removed, name, baseline)

    return [
        submit_drift,
        options(path, "GET", "PUT", "DELETE"),
        list_baselines,
        put_baseline,
        delete_baseline,
    ]


def _begun(baselines: Baselines, jobs: Jobs, model: str, asked: BaselineRequest) -> Baseline:
    """Keep a baseline, and submit the job that reads it, if there is something to read."""
    told = Window(asked.start, asked.end, filter=asked.window.where)
    made = Baseline(asked.name, model, "building", "", asked.version or "", window=told)
    if asked.rolling is None:
        job = jobs.submit("baseline", BaselineJob(model, asked))
        return baselines.begin(replace(made, created=job.created_at, job=job.id))
    now = timestamp_text(time.time_ns() // 1_000_000)
    return baselines.begin(replace(made, state="ready", created=now, rolling=asked.rolling))


def state_of(baseline: Baseline, jobs: Jobs, digest: str) -> Baseline:
    """Return a baseline with the state that it is in now.

    The digest is that of the model that answered last; empty where that does not matter.
    """
    if baseline.state == "ready":
        is_stale = baseline.sha256 and digest and digest != baseline.sha256
        return replace(baseline, state="stale") if is_stale else baseline
    try:
        job = jobs.read(baseline.job or "")
    except NotFoundError:
        error: str | None = "its job was removed"
    else:
        if job.state in {"queued", "running", "succeeded"}:  # which may be since it was read
            return baseline
        error = job.error or f"its job was {job.state}"
    return replace(baseline, state="failed", error=error or "")


def _newest(inferences: Inferences, model: str) -> str:
    """Return the hash of the model that answered last; empty where that is not known."""
    where = {"model": {"eq": model}}
    with suppress(StoreError):  # without the store, nothing is known to be stale
        page = inferences.query(QueryRequest(where=where, limit=1))
        return page.inferences[0].model.sha256 if page.inferences else ""
    return ""


def _cancel(jobs: Jobs, baseline: Baseline) -> None:
    """End the job that still reads a baseline."""
    if baseline.job is not None and baseline.state == "building":
        with suppress(NotFoundError):
            jobs.cancel(baseline.job)

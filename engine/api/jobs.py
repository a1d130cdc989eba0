"""HTTP routes for jobs, and for exports, which are jobs."""

from typing import Any

import msgspec
from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, RawBody
from litestar.response import File

from quadriga.engine.api.access import caller_scope
from quadriga.engine.api.responses import NOT_STORED, UNKNOWN_MODEL, error_response
from quadriga.engine.api.schedules import check_end_webhook
from quadriga.monitor.watch.webhooks import ANY_PUBLIC, WebhookHosts
from quadriga.proto.request import note_target
from quadriga.store.exchange.export import ExportParameters, decode_parameters
from quadriga.store.jobs.jobs import Job, Jobs
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.scope import Scoped

_UNREADABLE = error_response("The body or its filter cannot be understood")
_UNKNOWN = error_response("No such job, or it has no result")
_MEDIA_TYPES = {".jsonl": "application/jsonl", ".zip": "application/zip"}


class JobList(msgspec.Struct, frozen=True):
    """The stored jobs that the caller may see."""

    jobs: list[Job]  # the newest first


def begin_export(
    jobs: Scoped[Jobs], inferences: Scoped[InferenceReader], parameters: ExportParameters
) -> Job:
    """Submit an export of what the caller may see.

    Raises:
        NotFoundError: A model or a report of the filter is not known.
    """
    inferences.within(caller_scope()).check_where(parameters.where)
    job = jobs.within(caller_scope()).submit("export", parameters)
    note_target(job.id)
    return job


def job_routes(
    jobs: Scoped[Jobs], inferences: Scoped[InferenceReader], hosts: WebhookHosts = ANY_PUBLIC
) -> list[HTTPRouteHandler]:
    """Return the handlers that submit exports and read, cancel and download jobs.

    Args:
        jobs: The jobs.
        inferences: Finds the models of filters.
        hosts: The hosts that ends of jobs may be told to.
    """
    export_errors = {400: _UNREADABLE, 404: UNKNOWN_MODEL, 503: NOT_STORED}

    @post(
        "/api/exports",
        status_code=202,
        sync_to_thread=True,
        responses=export_errors,
        need="read",
        audited=True,
    )
    def submit_export(body: RawBody) -> Job:
        """Export inferences, as a job; the body is JSON whatever its content type."""
        parameters = decode_parameters(body)
        check_end_webhook(parameters.webhook, hosts)
        return begin_export(jobs, inferences, parameters)

    @get("/api/jobs", sync_to_thread=True, need="read")
    def list_jobs() -> JobList:
        """Return all jobs, newest first."""
        return JobList(jobs.within(caller_scope()).all())

    lookup: dict[str, Any] = {"sync_to_thread": True, "responses": {404: _UNKNOWN}}
    cancel: dict[str, Any] = lookup | {"responses": {404: _UNKNOWN, 503: NOT_STORED}}

    @get("/api/jobs/{job_id:str}", need="read", **lookup)
    def get_job(job_id: FromPath[str]) -> Job:
        """Return one job, with the end of its log."""
        return jobs.within(caller_scope()).read(job_id, with_log=True)

    @post("/api/jobs/{job_id:str}/cancel", status_code=200, need="monitor", **cancel)
    def cancel_job(job_id: FromPath[str]) -> Job:
        """Cancel a job at its next step."""
        return jobs.within(caller_scope()).cancel(job_id)

    @get("/api/jobs/{job_id:str}/result", media_type="*/*", need="read", audited=True, **lookup)
    def get_job_result(job_id: FromPath[str]) -> Response[bytes]:
        """Return the result file of a job."""
        path = jobs.within(caller_scope()).result(job_id)
        media_type = _MEDIA_TYPES.get(path.suffix, "application/octet-stream")
        return File(path, filename=path.name, media_type=media_type)

    return [submit_export, list_jobs, get_job, cancel_job, get_job_result]

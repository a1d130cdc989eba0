"""HTTP routes of jobs: exports, and bulk inference and replays, which run models over images."""

from collections.abc import Callable, Sequence

import msgspec
from litestar import Response
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, RawBody
from litestar.response import File

from quadriga.engine.api.access import caller_scope, check_end_webhook
from quadriga.engine.api.openapi import (
    NOT_STORED,
    UNKNOWN_MODEL,
    body_errors,
    error_response,
    json_body,
)
from quadriga.engine.api.routes import get, post
from quadriga.engine.jobs.bulk_source import BulkParameters
from quadriga.engine.jobs.bulk_source import decode_parameters as decode_bulk
from quadriga.engine.jobs.job_kinds import BULK_INFERENCE, REPLAY, ReplayParameters, decode_replay
from quadriga.engine.models.repository import ServedVersion
from quadriga.monitor.watch.webhooks import ANY_PUBLIC, WebhookHosts
from quadriga.proto.access import admit_model
from quadriga.proto.request import current_caller, note_target
from quadriga.quoting import quoted
from quadriga.store.exchange.dataset_options import ExportParameters
from quadriga.store.exchange.export import decode_parameters as decode_export
from quadriga.store.jobs.jobs import Job, Jobs
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.errors import NotFoundError, QueryError
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
    return _submit(jobs, "export", parameters)


def _submit(jobs: Scoped[Jobs], kind: str, parameters: msgspec.Struct) -> Job:
    job = jobs.within(caller_scope()).submit(kind, parameters)
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

    @post("/api/exports", need="read", errors=export_errors, status=202, audited=True)
    def submit_export(body: RawBody) -> Job:
        """Export inferences, as a job; the body is JSON whatever its content type."""
        parameters = decode_export(body)
        check_end_webhook(parameters.webhook, hosts)
        return begin_export(jobs, inferences, parameters)

    @get("/api/jobs", need="read")
    def list_jobs() -> JobList:
        """Return all jobs, newest first."""
        return JobList(jobs.within(caller_scope()).all())

    unknown = {404: _UNKNOWN}

    @get("/api/jobs/{job_id:str}", need="read", errors=unknown)
    def get_job(job_id: FromPath[str]) -> Job:
        """Return one job, with the end of its log."""
        return jobs.within(caller_scope()).read(job_id, with_log=True)

    @post("/api/jobs/{job_id:str}/cancel", need="monitor", errors=unknown | {503: NOT_STORED})
    def cancel_job(job_id: FromPath[str]) -> Job:
        """Cancel a job at its next step."""
        return jobs.within(caller_scope()).cancel(job_id)

    @get(
        "/api/jobs/{job_id:str}/result", need="read", errors=unknown, media_type="*/*", audited=True
    )
    def get_job_result(job_id: FromPath[str]) -> Response[bytes]:
        """Return the result file of a job."""
        path = jobs.within(caller_scope()).result(job_id)
        media_type = _MEDIA_TYPES.get(path.suffix, "application/octet-stream")
        return File(path, filename=path.name, media_type=media_type)

    return [submit_export, list_jobs, get_job, cancel_job, get_job_result]


_BULK_BODY = json_body(
    BulkParameters,
    source="Folder or zip below the folder of the setting bulk_folder",
    parameters="Parameters of each request",
    metadata="Metadata of each inference; job_id and path are added",
)
_REPLAY_BODY = json_body(
    ReplayParameters,
    "sha256",
    version="The version to run",
    limit="Maximum inferences to replay: the newest",
    parameters="Parameters of each request, besides the action and the prompts of the inference",
)
_NO_SOURCE = error_response(
    "The body cannot be understood, there is no such source, or bulk inference is off"
)
_NO_VERSION = error_response(
    "The body or its filter cannot be understood, or the model has no such version"
)


def model_job_routes(
    jobs: Scoped[Jobs],
    inferences: Scoped[InferenceReader],
    served_versions: Callable[[], Sequence[ServedVersion]],
    *,
    folder: str,
    way_in_problem: Callable[[], str],
    hosts: WebhookHosts = ANY_PUBLIC,
) -> list[HTTPRouteHandler]:
    """Return the handlers that submit bulk inference and replays.

    Args:
        jobs: The jobs of the server.
        inferences: Knows the names of the models.
        served_versions: Returns the versions of all models of this server.
        folder: Folder of the sources of bulk inference.
        way_in_problem: Returns why the server refuses requests of its own jobs; empty if it does not.
        hosts: The hosts that ends of jobs may be told to.
    """

    def model_name(parameters: BulkParameters | ReplayParameters, kind: str) -> str:
        """Check that a job may begin, and return the name of its model."""
        check_end_webhook(parameters.webhook, hosts)
        if problem := way_in_problem():
            raise QueryError(f"{kind} is off: {problem}")
        try:
            return inferences.within(caller_scope()).names.resolve(parameters.model)
        except NotFoundError:  # whether there is one that the key is not for makes no difference
            admit_model(current_caller(), parameters.model, parameters.model)
            raise

    bulk_errors, replay_errors = body_errors(_NO_SOURCE), body_errors(_NO_VERSION)

    @post(
        "/api/inferences/bulk",
        need="infer",
        operation=_BULK_BODY,
        errors=bulk_errors,
        status=202,
        audited=True,
    )
    def submit_bulk_inference(body: RawBody) -> Job:
        """Run a model over the images of a folder or a zip, as a job; the body is JSON whatever its content type."""
        parameters = decode_bulk(body, folder)
        name = model_name(parameters, "bulk inference")
        return _submit(jobs, BULK_INFERENCE, msgspec.structs.replace(parameters, model=name))

    @post("/api/replays", need="operate", operation=_REPLAY_BODY, errors=replay_errors, status=202)
    def submit_replay(body: RawBody) -> Job:
        """Run a version of a model over stored images, and compare, as a job; the body is JSON whatever its content type."""
        parameters = decode_replay(body)
        name = model_name(parameters, "replay")
        versions = {v.version: v for v in served_versions() if v.name == name}
        if parameters.version not in versions:
            known = ", ".join(versions) or "none"
            raise QueryError(
                f"expected a version of {name!r} that is served here ({known}), got {quoted(parameters.version, 40)}"
            )
        sha256 = versions[parameters.version].sha256 or ""
        parameters = msgspec.structs.replace(parameters, model=name, sha256=sha256)
        inferences.within(caller_scope()).check_where(parameters.selection)
        return _submit(jobs, REPLAY, parameters)

    return [submit_bulk_inference, submit_replay]

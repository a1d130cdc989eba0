"""HTTP routes of the jobs that run models over images: bulk inference and replay."""

from collections.abc import Callable, Sequence

import msgspec
from litestar import post
from litestar.handlers import HTTPRouteHandler
from litestar.params import RawBody

from quadriga.engine.api.access import caller_scope
from quadriga.engine.api.openapi_bodies import json_body
from quadriga.engine.api.responses import error_response, json_body_options
from quadriga.engine.api.schedules import check_end_webhook
from quadriga.engine.jobs.bulk_source import BulkParameters, decode_parameters
from quadriga.engine.jobs.job_kinds import BULK_INFERENCE, REPLAY, ReplayParameters, decode_replay
from quadriga.engine.models.repository import ServedVersion
from quadriga.monitor.watch.webhooks import ANY_PUBLIC, WebhookHosts
from quadriga.proto.access import admit_model
from quadriga.proto.request import current_caller, note_target
from quadriga.quoting import quoted
from quadriga.store.jobs.jobs import Job, Jobs
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.errors import NotFoundError, QueryError
from quadriga.store.records.scope import Scoped

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

    def submit(kind: str, parameters: BulkParameters | ReplayParameters) -> Job:
        job = jobs.within(caller_scope()).submit(kind, parameters)
        note_target(job.id)
        return job

    def model_name(text: str) -> str:
        try:
            return inferences.within(caller_scope()).names.resolve(text)
        except NotFoundError:  # whether there is one that the key is not for makes no difference
            admit_model(current_caller(), text, text)
            raise

    @post(
        "/api/inferences/bulk",
        sync_to_thread=True,
        need="infer",
        audited=True,
        **json_body_options(_BULK_BODY, _NO_SOURCE, status=202),
    )
    def submit_bulk_inference(body: RawBody) -> Job:
        """Run a model over the images of a folder or a zip, as a job; the body is JSON whatever its content type."""
        parameters = decode_parameters(body, folder)
        check_end_webhook(parameters.webhook, hosts)
        if problem := way_in_problem():
            raise QueryError(f"bulk inference is off: {problem}")
        name = model_name(parameters.model)
        return submit(BULK_INFERENCE, msgspec.structs.replace(parameters, model=name))

    @post(
        "/api/replays",
        sync_to_thread=True,
        need="operate",
        **json_body_options(_REPLAY_BODY, _NO_VERSION, status=202),
    )
    def submit_replay(body: RawBody) -> Job:
        """Run a version of a model over stored images, and compare, as a job; the body is JSON whatever its content type."""
        parameters = decode_replay(body)
        check_end_webhook(parameters.webhook, hosts)
        if problem := way_in_problem():
            raise QueryError(f"replay is off: {problem}")
        name = model_name(parameters.model)
        versions = {v.version: v for v in served_versions() if v.name == name}
        if parameters.version not in versions:
            known = ", ".join(versions) or "none"
            raise QueryError(
                f"expected a version of {name!r} that is served here ({known}), got {quoted(parameters.version, 40)}"
            )
        sha256 = versions[parameters.version].sha256 or ""
        parameters = msgspec.structs.replace(parameters, model=name, sha256=sha256)
        inferences.within(caller_scope()).check_where(parameters.selection)
        return submit(REPLAY, parameters)

    return [submit_bulk_inference, submit_replay]

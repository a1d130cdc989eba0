"""HTTP route of bulk inference, which is a job."""

from collections.abc import Callable

import msgspec
from litestar import post
from litestar.handlers import HTTPRouteHandler
from litestar.params import RawBody

from quadriga.engine.api.caller_scope import caller_scope
from quadriga.engine.api.openapi_bodies import json_body
from quadriga.engine.api.responses import error_response, json_body_options
from quadriga.engine.api.webhook_states import check_end_webhook
from quadriga.engine.jobs.bulk_source import BulkParameters, decode_parameters
from quadriga.engine.jobs.job_kinds import BULK_INFERENCE
from quadriga.monitor.watch.webhook_hosts import ANY_PUBLIC, WebhookHosts
from quadriga.proto.access import admit_model, current_caller
from quadriga.proto.audit import note_target
from quadriga.store.errors import NotFoundError, QueryError
from quadriga.store.inferences import InferenceReader
from quadriga.store.jobs import Job, Jobs
from quadriga.store.scope import Scoped

_BODY = json_body(
    BulkParameters,
    source="Folder or zip below the folder of the setting bulk_folder",
    parameters="Parameters of each request",
    metadata="Metadata of each inference; job_id and path are added",
)
_UNREADABLE = error_response(
    "The body cannot be understood, there is no such source, or bulk inference is off"
)


def bulk_inference_route(
    jobs: Scoped[Jobs],
    inferences: Scoped[InferenceReader],
    folder: str,
    way_in_problem: Callable[[], str],
    hosts: WebhookHosts = ANY_PUBLIC,
) -> HTTPRouteHandler:
    """Return the handler that submits bulk inference.

    Args:
        jobs: The jobs of the server.
        inferences: Knows the names of the models.
        folder: Folder of the sources.
        way_in_problem: Returns why the server refuses requests of its own jobs; empty if it does not.
        hosts: The hosts that ends of jobs may be told to.
    """

    @post(
        "/api/inferences/bulk",
        sync_to_thread=True,
        need="infer",
        audited=True,
        **json_body_options(_BODY, _UNREADABLE, status=202),
    )
    def submit_bulk_inference(body: RawBody) -> Job:
        """Run a model over the images of a folder or a zip, as a job; the body is JSON whatever its content type."""
        parameters = decode_parameters(body, folder)
        check_end_webhook(parameters.webhook, hosts)
        if problem := way_in_problem():
            raise QueryError(f"bulk inference is off: {problem}")
        try:
            name = inferences.within(caller_scope()).names.resolve(parameters.model)
        except NotFoundError:  # whether there is one that the key is not for makes no difference
            admit_model(current_caller(), parameters.model, parameters.model)
            raise
        job = jobs.within(caller_scope()).submit(
            BULK_INFERENCE, msgspec.structs.replace(parameters, model=name)
        )
        note_target(job.id)
        return job

    return submit_bulk_inference

"""HTTP routes for the ground truth of stored inferences; bodies are JSON whatever their content type."""

from typing import Annotated

from litestar import Response
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, HeaderParameter, RawBody

from quadriga.engine.api.access import caller_scope
from quadriga.engine.api.openapi import (
    BULK_CHANGE_ERRORS,
    CHANGE_ERRORS,
    NOT_READY,
    UNKNOWN_MODEL,
    UNREADABLE_QUERY,
    error_response,
    json_body,
)
from quadriga.engine.api.routes import delete, get, post, put
from quadriga.engine.models.runners.bounded_threads import BoundedThreads
from quadriga.proto.request import note_number
from quadriga.store.changes.service import ChangeService
from quadriga.store.changes.truth_service import (
    GroundTruth,
    GroundTruthBody,
    GroundTruthHistory,
    StatedInference,
    StatementResult,
    StatementsBody,
    parse_condition,
)
from quadriga.store.records.records import StoredInference
from quadriga.store.records.scope import Scoped

_PATH = "/api/inferences/{inference_id:str}/ground-truth"
_ANNOTATIONS = "Predictions without scores, or annotations of a Chariot dataset"
_GROUND_TRUTH = json_body(GroundTruthBody, annotations=_ANNOTATIONS)
_STATEMENTS = json_body(
    StatementsBody,
    annotations=_ANNOTATIONS,
    join="id, request_id, input.hash or meta.<path>",
    task="Task that the annotations are of; null takes it from each item",
    model="Model that the statements are limited to; null for every one",
    where="A filter that limits the statements to inferences that are stored now",
)
_OUTDATED = error_response("The ground truth has another revision, or none")
_NONE = error_response("No such inference, or no ground truth is stated for it")
_IfMatch = Annotated[
    str | None,
    HeaderParameter(
        name="If-Match", description="The revision that is current, in quotes; * for any"
    ),
]
_IfNoneMatch = Annotated[
    str | None,
    HeaderParameter(name="If-None-Match", description="*: there is no ground truth yet"),
]


def ground_truth_routes(
    changes: Scoped[ChangeService], threads: BoundedThreads, max_body_bytes: int
) -> list[HTTPRouteHandler]:
    """Return the handlers of ground truth, which run in `threads`, as they wait for the writer.

    Bodies have up to `max_body_bytes`, more than those of other routes.
    """
    errors = {400: UNREADABLE_QUERY, 404: _NONE, 503: NOT_READY}
    change_errors = CHANGE_ERRORS | {412: _OUTDATED}

    @get(_PATH, need="read", errors=errors)
    async def get_ground_truth(inference_id: FromPath[str]) -> Response[GroundTruth]:
        """Return the ground truth of an inference, with its revision, which is the ETag too."""
        current = await threads.run(changes.within(caller_scope()).ground_truth.get, inference_id)
        return Response(current, headers={"ETag": f'"{current.revision}"'})

    @get(f"{_PATH}/history", need="read", errors=errors)
    async def get_ground_truth_history(inference_id: FromPath[str]) -> GroundTruthHistory:
        """Return who stated the ground truth of an inference when, newest first."""
        return await threads.run(changes.within(caller_scope()).ground_truth.history, inference_id)

    @put(
        _PATH,
        need="annotate",
        operation=_GROUND_TRUTH,
        errors=change_errors,
        request_max_body_size=max_body_bytes,
    )
    async def put_ground_truth(
        inference_id: FromPath[str],
        body: RawBody,
        if_match: _IfMatch = None,
        *,
        if_none_match: _IfNoneMatch = None,
    ) -> Response[StatedInference]:
        """State the ground truth of an inference; its annotations have to fit the inference's task."""
        condition = parse_condition(if_match, if_none_match)
        inference, revision = await threads.run(
            changes.within(caller_scope()).ground_truth.put, inference_id, body, condition
        )
        return Response(inference, headers={"ETag": f'"{revision}"'})

    @delete(_PATH, need="annotate", errors=change_errors)
    async def delete_ground_truth(
        inference_id: FromPath[str], if_match: _IfMatch = None
    ) -> StoredInference:
        """Remove the ground truth of an inference."""
        condition = parse_condition(if_match, None)
        return await threads.run(
            changes.within(caller_scope()).ground_truth.delete, inference_id, condition
        )

    @post(
        "/api/ground-truth",
        need="annotate",
        operation=_STATEMENTS,
        errors=BULK_CHANGE_ERRORS | {404: UNKNOWN_MODEL},
        request_max_body_size=max_body_bytes,
    )
    async def state_ground_truth(body: RawBody) -> StatementResult:
        """State the ground truth of many inferences, stored already or later; lines that do not fit are refused."""
        result = await threads.run(changes.within(caller_scope()).ground_truth.add_statements, body)
        note_number(result.stated)
        return result

    return [
        get_ground_truth,
        get_ground_truth_history,
        put_ground_truth,
        delete_ground_truth,
        state_ground_truth,
    ]

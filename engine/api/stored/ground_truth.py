"""HTTP routes for the ground truth of stored inferences; bodies are JSON whatever their content type."""

from typing import Annotated, Any

from litestar import Response, delete, get, post, put
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
    options_route,
)
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
    changed: dict[str, Any] = {"status_code": 200, "responses": CHANGE_ERRORS | {412: _OUTDATED}}

    @get(_PATH, responses=errors, need="read")
    async def get_ground_truth(inference_id: FromPath[str]) -> Response[GroundTruth]:
        """Return the ground truth of an inference, with its revision, which is the ETag too."""
        current = await threads.run(changes.within(caller_scope()).ground_truth.get, inference_id)
        return Response(current, headers={"ETag": f'"{current.revision}"'})

    @get(f"{_PATH}/history", responses=errors, need="read")
    async def get_ground_truth_history(inference_id: FromPath[str]) -> GroundTruthHistory:
        """Return who stated the ground truth of an inference when, newest first."""
        return await threads.run(changes.within(caller_scope()).ground_truth.history, inference_id)

    @put(
        _PATH,
        operation_class=_GROUND_TRUTH,
        request_max_body_size=max_body_bytes,
        need="annotate",
        **changed,
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

    @delete(_PATH, need="annotate", **changed)
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
        operation_class=_STATEMENTS,
        request_max_body_size=max_body_bytes,
        responses=BULK_CHANGE_ERRORS | {404: UNKNOWN_MODEL},
        status_code=200,
        need="annotate",
    )
    async def state_ground_truth(body: RawBody) -> StatementResult:
        """State the ground truth of many inferences, stored already or later; lines that do not fit are refused."""
        result = await threads.run(changes.within(caller_scope()).ground_truth.add_statements, body)
        note_number(result.stated)
        return result

    options = options_route(_PATH, "GET", "PUT", "DELETE")
    return [
        options,
        get_ground_truth,
        get_ground_truth_history,
        put_ground_truth,
        delete_ground_truth,
        state_ground_truth,
    ]

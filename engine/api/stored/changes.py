"""HTTP routes for changes to stored inferences, for their ground truth and retention; bodies are JSON whatever their content type."""

from typing import Annotated

import msgspec
from litestar import Response
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, HeaderParameter, RawBody

from quadriga.engine.api.access import caller_scope
from quadriga.engine.api.openapi import (
    BULK_CHANGE_ERRORS,
    CHANGE_ERRORS,
    NOT_READY,
    QUERY_ERRORS,
    UNKNOWN_MODEL,
    UNREADABLE_QUERY,
    error_response,
    json_body,
)
from quadriga.engine.api.routes import delete, get, post, put
from quadriga.engine.models.runners.bounded_threads import BoundedThreads
from quadriga.proto.request import note_number, note_target
from quadriga.store.changes.erasures import ErasureReceipt
from quadriga.store.changes.requests import (
    DeleteBody,
    FeedbackBody,
    RetentionBody,
    decode_change,
)
from quadriga.store.changes.service import (
    ChangeService,
    DeletionResult,
    MetadataHistory,
    Retention,
)
from quadriga.store.changes.truth_service import (
    GroundTruth,
    GroundTruthBody,
    GroundTruthHistory,
    StatedInference,
    StatementResult,
    StatementsBody,
    parse_condition,
)
from quadriga.store.records.records import MetadataChange, StoredInference
from quadriga.store.records.scope import Scoped

_KEYS = "Top-level keys"
_METADATA = json_body(
    MetadataChange, "type", "target", set=f"{_KEYS} and their new values", remove=_KEYS
)
_FEEDBACK = json_body(FeedbackBody)
_DELETE = json_body(
    DeleteBody,
    dry_run="Delete nothing",
    all="A filter may be left out",
    erase="Remove the bytes, too, from the journal, the database, images, jobs and ClickHouse",
)
_NO_ERASURE = error_response("No such erasure")
_FOREVER = "null keeps them for ever"
_RETENTION = json_body(RetentionBody, inputs_days=_FOREVER, inferences_days=_FOREVER)

_INFERENCE = "/api/inferences/{inference_id:str}"


class ErasureList(msgspec.Struct, frozen=True):
    """All erasures."""

    erasures: list[ErasureReceipt]


def change_routes(
    changes: Scoped[ChangeService], threads: BoundedThreads
) -> list[HTTPRouteHandler]:
    """Return the handlers of changes, which run in `threads`, as they wait for the writer."""
    path = "/api/models/{name:str}/retention"

    @post(f"{_INFERENCE}/metadata", need="annotate", operation=_METADATA, errors=CHANGE_ERRORS)
    async def change_metadata(inference_id: FromPath[str], body: RawBody) -> StoredInference:
        """Add, replace or remove metadata of an inference."""
        return await threads.run(changes.within(caller_scope()).change_metadata, inference_id, body)

    @get(f"{_INFERENCE}/metadata/history", need="read", errors=CHANGE_ERRORS)
    async def get_metadata_history(inference_id: FromPath[str]) -> MetadataHistory:
        """Return how the metadata of an inference was changed, newest first."""
        return await threads.run(changes.within(caller_scope()).metadata_history, inference_id)

    @post(f"{_INFERENCE}/feedback", need="annotate", operation=_FEEDBACK, errors=CHANGE_ERRORS)
    async def give_feedback(inference_id: FromPath[str], body: RawBody) -> StoredInference:
        """Add feedback to an inference."""
        return await threads.run(changes.within(caller_scope()).add_feedback, inference_id, body)

    delete_errors = BULK_CHANGE_ERRORS | {404: UNKNOWN_MODEL}

    @post("/api/inferences/delete", need="operate", operation=_DELETE, errors=delete_errors)
    async def delete_inferences(body: RawBody) -> Response[DeletionResult]:
        """Delete or erase inferences by a filter, or count which would be; 202 if an erasure goes on afterwards."""
        result = await threads.run(changes.within(caller_scope()).delete_inferences, body)
        note_number(result.count)
        if decode_change(body, DeleteBody, "JSON").dry_run:
            note_target("dry run")
        status = 200
        if isinstance(receipt := result.erasure, ErasureReceipt):
            note_target(f"erasure {receipt.id} by {', '.join(receipt.fields) or 'all'}")
            status = 200 if receipt.state == "complete" else 202
        return Response(result, status_code=status)

    @get("/api/erasures", need="operate")
    def list_erasures() -> ErasureList:
        """Return the receipts of all erasures, newest first."""
        return ErasureList(changes.within(caller_scope()).erasures.all())

    @get("/api/erasures/{erasure_id:str}", need="operate", errors={404: _NO_ERASURE})
    def get_erasure(erasure_id: FromPath[str]) -> ErasureReceipt:
        """Return the receipt of an erasure."""
        return changes.within(caller_scope()).erasures.read(erasure_id)

    @get(path, need="read", errors={404: UNKNOWN_MODEL, 503: NOT_READY})
    def get_retention(name: FromPath[str]) -> Retention:
        """Return how long a model's inferences and inputs are kept."""
        return changes.within(caller_scope()).retention(name)

    @put(path, need="operate", operation=_RETENTION, errors=QUERY_ERRORS)
    async def put_retention(name: FromPath[str], body: RawBody) -> Retention:
        """Set how long a model's inferences and inputs are kept, past and future ones."""
        return await threads.run(changes.within(caller_scope()).put_retention, name, body)

    return [
        change_metadata,
        get_metadata_history,
        give_feedback,
        delete_inferences,
        list_erasures,
        get_erasure,
        get_retention,
        put_retention,
    ]


_TRUTH = f"{_INFERENCE}/ground-truth"
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
    """Return the handlers of ground truth, which run in `threads`, as those of changes.

    Bodies have up to `max_body_bytes`, more than those of other routes.
    """
    errors = {400: UNREADABLE_QUERY, 404: _NONE, 503: NOT_READY}
    change_errors = CHANGE_ERRORS | {412: _OUTDATED}

    @get(_TRUTH, need="read", errors=errors)
    async def get_ground_truth(inference_id: FromPath[str]) -> Response[GroundTruth]:
        """Return the ground truth of an inference, with its revision, which is the ETag too."""
        current = await threads.run(changes.within(caller_scope()).ground_truth.get, inference_id)
        return Response(current, headers={"ETag": f'"{current.revision}"'})

    @get(f"{_TRUTH}/history", need="read", errors=errors)
    async def get_ground_truth_history(inference_id: FromPath[str]) -> GroundTruthHistory:
        """Return who stated the ground truth of an inference when, newest first."""
        return await threads.run(changes.within(caller_scope()).ground_truth.history, inference_id)

    @put(
        _TRUTH,
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

    @delete(_TRUTH, need="annotate", errors=change_errors)
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

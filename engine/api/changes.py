"""HTTP routes for changes to stored inferences and for retention; bodies are JSON whatever their content type."""

from typing import Any

from litestar import delete, get, post, put
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, RawBody

from quadriga.engine.api.openapi_bodies import json_body
from quadriga.engine.api.responses import (
    NOT_READY,
    QUERY_ERRORS,
    TOO_LARGE,
    error_response,
    options_route,
)
from quadriga.store.changes.requests import (
    DeleteBody,
    FeedbackBody,
    GroundTruthBody,
    RetentionBody,
    StatementsBody,
)
from quadriga.store.changes.service import (
    ChangeService,
    DeletionResult,
    MetadataHistory,
    Retention,
    StatementResult,
)
from quadriga.store.records import MetadataChange, StoredInference

_BULK_ERRORS = {
    400: error_response("The id or the change cannot be understood"),
    413: TOO_LARGE,
    503: error_response("The store cannot keep the change, or has not applied it yet"),
}
_ERRORS = _BULK_ERRORS | {404: error_response("No such inference")}
_ANNOTATIONS = "Predictions without scores, or annotations of a Chariot dataset"
_KEYS = "Top-level keys"
_METADATA = json_body(
    MetadataChange, "type", "target", set=f"{_KEYS} and their new values", remove=_KEYS
)
_GROUND_TRUTH = json_body(GroundTruthBody, annotations=_ANNOTATIONS)
_STATEMENTS = json_body(
    StatementsBody,
    annotations=_ANNOTATIONS,
    join="id, request_id, input.hash or meta.<path>",
)
_FEEDBACK = json_body(FeedbackBody)
_DELETE = json_body(DeleteBody, dry_run="Delete nothing", all="A filter may be left out")
_FOREVER = "null keeps them for ever"
_RETENTION = json_body(RetentionBody, inputs_days=_FOREVER, inferences_days=_FOREVER)

_INFERENCE = "/api/inferences/{inference_id:str}"
_IN_THREAD: dict[str, Any] = {"sync_to_thread": True, "status_code": 200}


def change_routes(changes: ChangeService) -> list[HTTPRouteHandler]:
    """Return the handlers of changes."""
    return [*_metadata_routes(changes), *_ground_truth_routes(changes), *_other_routes(changes)]


def _metadata_routes(changes: ChangeService) -> list[HTTPRouteHandler]:
    route: dict[str, Any] = {**_IN_THREAD, "responses": _ERRORS}

    @post(f"{_INFERENCE}/metadata", operation_class=_METADATA, **route)
    def change_metadata(inference_id: FromPath[str], body: RawBody) -> StoredInference:
        """Add, replace or remove metadata of an inference."""
        return changes.change_metadata(inference_id, body)

    @get(f"{_INFERENCE}/metadata/history", **route)
    def get_metadata_history(inference_id: FromPath[str]) -> MetadataHistory:
        """Return how the metadata of an inference was changed, newest first."""
        return changes.metadata_history(inference_id)

    return [change_metadata, get_metadata_history]


def _ground_truth_routes(changes: ChangeService) -> list[HTTPRouteHandler]:
    path = f"{_INFERENCE}/ground-truth"
    route: dict[str, Any] = {**_IN_THREAD, "responses": _ERRORS}

    @put(path, operation_class=_GROUND_TRUTH, **route)
    def put_ground_truth(inference_id: FromPath[str], body: RawBody) -> StoredInference:
        """State the ground truth of an inference."""
        return changes.put_ground_truth(inference_id, body)

    @delete(path, **route)
    def delete_ground_truth(inference_id: FromPath[str]) -> StoredInference:
        """Remove the ground truth of an inference."""
        return changes.delete_ground_truth(inference_id)

    @post("/api/ground-truth", operation_class=_STATEMENTS, responses=_BULK_ERRORS, **_IN_THREAD)
    def state_ground_truth(body: RawBody) -> StatementResult:
        """State the ground truth of many inferences, stored already or later."""
        return changes.add_statements(body)

    options = options_route(path, "PUT", "DELETE")
    return [options, put_ground_truth, delete_ground_truth, state_ground_truth]


def _other_routes(changes: ChangeService) -> list[HTTPRouteHandler]:
    path = "/api/models/{name:str}/retention"

    @post(f"{_INFERENCE}/feedback", operation_class=_FEEDBACK, responses=_ERRORS, **_IN_THREAD)
    def give_feedback(inference_id: FromPath[str], body: RawBody) -> StoredInference:
        """Add feedback to an inference."""
        return changes.add_feedback(inference_id, body)

    @post("/api/inferences/delete", operation_class=_DELETE, responses=_BULK_ERRORS, **_IN_THREAD)
    def delete_inferences(body: RawBody) -> DeletionResult:
        """Delete inferences by a filter, newest first, or count which would be deleted."""
        return changes.delete_inferences(body)

    @get(path, sync_to_thread=True, responses={503: NOT_READY})
    def get_retention(name: FromPath[str]) -> Retention:
        """Return how long a model's inferences and inputs are kept."""
        return changes.retention(name)

    @put(path, operation_class=_RETENTION, responses=QUERY_ERRORS, **_IN_THREAD)
    def put_retention(name: FromPath[str], body: RawBody) -> Retention:
        """Set how long a model's inferences and inputs are kept, past and future ones."""
        return changes.put_retention(name, body)

    options = options_route(path, "GET", "PUT")
    return [give_feedback, delete_inferences, options, get_retention, put_retention]

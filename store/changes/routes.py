"""HTTP routes that change what is stored; bodies are JSON whatever their content type.

Errors are `StoreError`s, which the application turns into answers.
"""

from typing import Any

from litestar import delete, get, post, put
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import ResponseSpec
from litestar.openapi.spec import OpenAPIType, Schema
from litestar.params import FromPath, RawBody

from store.changes.service import Changes, Deleted, History, Stated
from store.records import StoredInference
from store.routes import Error, options, with_body

_RESPONSES = {
    400: ResponseSpec(Error, False, "The id or the change cannot be understood"),
    404: ResponseSpec(Error, False, "No such inference"),
    413: ResponseSpec(Error, False, "The body is larger than the server takes"),
    503: ResponseSpec(Error, False, "The store cannot keep the change, or has not applied it yet"),
}
_MANY = {status: spec for status, spec in _RESPONSES.items() if status != 404}
_TEXT = Schema(type=OpenAPIType.STRING)
_ANNOTATIONS = Schema(
    type=OpenAPIType.ARRAY,
    items=Schema(type=OpenAPIType.OBJECT),
    description="Predictions without scores, or annotations of a Chariot dataset",
)
_METADATA = with_body(
    set=Schema(type=OpenAPIType.OBJECT, description="Top-level keys and their new values"),
    remove=Schema(type=OpenAPIType.ARRAY, items=_TEXT, description="Top-level keys"),
)
_GROUND_TRUTH = with_body("annotations", annotations=_ANNOTATIONS, source=_TEXT)
_ITEM = Schema(
    type=OpenAPIType.OBJECT,
    required=["value", "annotations"],
    properties={"value": Schema(), "annotations": _ANNOTATIONS},
)
_STATEMENTS = with_body(
    "join",
    "items",
    join=Schema(type=OpenAPIType.STRING, description="id, request_id, input.hash or meta.<path>"),
    items=Schema(type=OpenAPIType.ARRAY, items=_ITEM),
    source=_TEXT,
)
_FEEDBACK = with_body(
    "kind",
    kind=_TEXT,
    value=Schema(type=[OpenAPIType.NUMBER, OpenAPIType.BOOLEAN, OpenAPIType.NULL]),
    comment=_TEXT,
    source=_TEXT,
)
_DELETE = with_body(
    where=Schema(description="A filter"),
    dry_run=Schema(type=OpenAPIType.BOOLEAN, default=False, description="Delete nothing"),
    all=Schema(type=OpenAPIType.BOOLEAN, default=False, description="A filter may be left out"),
)


def change_routes(changes: Changes) -> list[HTTPRouteHandler]:
    """Return the handlers that change what is stored."""
    one: dict[str, Any] = {"sync_to_thread": True, "status_code": 200, "responses": _RESPONSES}
    many: dict[str, Any] = one | {"responses": _MANY}

    @post("/api/inferences/{inference_id:str}/metadata", operation_class=_METADATA, **one)
    def change_metadata(inference_id: FromPath[str], body: RawBody) -> StoredInference:
        """Add, replace or remove metadata of an inference."""
        return changes.change_metadata(inference_id, body)

    @get("/api/inferences/{inference_id:str}/metadata/history", **one)
    def get_metadata_history(inference_id: FromPath[str]) -> History:
        """Answer how the metadata of an inference was changed, newest first."""
        return changes.history(inference_id)

    @put("/api/inferences/{inference_id:str}/ground-truth", operation_class=_GROUND_TRUTH, **one)
    def put_ground_truth(inference_id: FromPath[str], body: RawBody) -> StoredInference:
        """State what is true of an inference."""
        return changes.state_truth(inference_id, body)

    @delete("/api/inferences/{inference_id:str}/ground-truth", **one)
    def delete_ground_truth(inference_id: FromPath[str]) -> StoredInference:
        """Take back what is true of an inference."""
        return changes.state_truth(inference_id, None)

    @post("/api/ground-truth", operation_class=_STATEMENTS, **many)
    def state_ground_truth(body: RawBody) -> Stated:
        """State what is true of many inferences, stored already or to come."""
        return changes.state_truths(body)

    @post("/api/inferences/{inference_id:str}/feedback", operation_class=_FEEDBACK, **one)
    def give_feedback(inference_id: FromPath[str], body: RawBody) -> StoredInference:
        """Add feedback to an inference."""
        return changes.give_feedback(inference_id, body)

    @post("/api/inferences/delete", operation_class=_DELETE, **many)
    def delete_inferences(body: RawBody) -> Deleted:
        """Delete inferences by a filter, newest first, or say which it would be."""
        return changes.delete(body)

    allowed = options("/api/inferences/{inference_id:str}/ground-truth", "PUT", "DELETE")
    truth = [allowed, put_ground_truth, delete_ground_truth, state_ground_truth]
    return [change_metadata, get_metadata_history, *truth, give_feedback, delete_inferences]

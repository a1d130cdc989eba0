"""HTTP routes that change what is stored; bodies are JSON whatever their content type.

Errors are `StoreError`s, which the application turns into answers.
"""

from typing import Any

from litestar import delete, get, post, put
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import ResponseSpec
from litestar.openapi.spec import OpenAPIType, Schema

from store.changes.service import Changes
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
_JOIN = Schema(type=OpenAPIType.STRING, description="id, request_id, input.hash or meta.<path>")
_ITEMS = Schema(type=OpenAPIType.ARRAY, items=_ITEM)
_STATEMENTS = with_body("join", "items", join=_JOIN, items=_ITEMS, source=_TEXT)
_VALUE = Schema(type=[OpenAPIType.NUMBER, OpenAPIType.BOOLEAN, OpenAPIType.NULL])
_FEEDBACK = with_body("kind", kind=_TEXT, value=_VALUE, comment=_TEXT, source=_TEXT)
_DELETE = with_body(
    where=Schema(description="A filter"),
    dry_run=Schema(type=OpenAPIType.BOOLEAN, default=False, description="Delete nothing"),
    all=Schema(type=OpenAPIType.BOOLEAN, default=False, description="A filter may be left out"),
)


def change_routes(changes: Changes) -> list[HTTPRouteHandler]:
    """Return the handlers that change what is stored."""
    one: dict[str, Any] = {"sync_to_thread": True, "status_code": 200, "responses": _RESPONSES}
    many: dict[str, Any] = one | {"responses": _MANY}
    inference = "/api/inferences/{inference_id:str}"
    metadata, truth = f"{inference}/metadata", f"{inference}/ground-truth"
    feedback = f"{inference}/feedback"
    return [
        post(metadata, operation_class=_METADATA, **one)(changes.change_metadata),
        get(f"{metadata}/history", **one)(changes.get_metadata_history),
        options(truth, "PUT", "DELETE"),
        put(truth, operation_class=_GROUND_TRUTH, **one)(changes.put_ground_truth),
        delete(truth, **one)(changes.delete_ground_truth),
        post("/api/ground-truth", operation_class=_STATEMENTS, **many)(changes.state_ground_truth),
        post(feedback, operation_class=_FEEDBACK, **one)(changes.give_feedback),
        post("/api/inferences/delete", operation_class=_DELETE, **many)(changes.delete_inferences),
    ]

"""HTTP routes that change what is stored; bodies are JSON whatever their content type.

Errors are `StoreError`s, which the application turns into answers.
"""

from typing import Any

from litestar import delete, get, post, put
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import ResponseSpec

from quadriga.store.bodies import body_of
from quadriga.store.changes.requests import (
    DeleteBody,
    FeedbackBody,
    GroundTruthBody,
    StatementsBody,
)
from quadriga.store.changes.service import Changes
from quadriga.store.records import MetadataChange
from quadriga.store.routes import TOO_LARGE, Error, options

_RESPONSES = {
    400: ResponseSpec(Error, False, "The id or the change cannot be understood"),
    404: ResponseSpec(Error, False, "No such inference"),
    413: TOO_LARGE,
    503: ResponseSpec(Error, False, "The store cannot keep the change, or has not applied it yet"),
}
_MANY = {status: spec for status, spec in _RESPONSES.items() if status != 404}
_ANNOTATIONS = "Predictions without scores, or annotations of a Chariot dataset"
_KEYS = "Top-level keys"
_METADATA = body_of(
    MetadataChange, "type", "target", set=f"{_KEYS} and their new values", remove=_KEYS
)
_GROUND_TRUTH = body_of(GroundTruthBody, annotations=_ANNOTATIONS)
_STATEMENTS = body_of(
    StatementsBody,
    annotations=_ANNOTATIONS,
    join="id, request_id, input.hash or meta.<path>",
)
_FEEDBACK = body_of(FeedbackBody)
_DELETE = body_of(DeleteBody, dry_run="Delete nothing", all="A filter may be left out")


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

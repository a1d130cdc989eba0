"""HTTP routes of statistics and retention; errors are `StoreError`s, which the application answers."""

from typing import Any, get_args

from litestar import get, post, put
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.spec import OpenAPIType, Schema
from litestar.params import RawBody

from store.changes.requests import MAX_DAYS
from store.changes.service import Changes
from store.inferences import Inferences
from store.routes import ASKED, NOT_READY, nullable, options, with_body
from store.upkeep.aggregates import Aggregates, Metric, aggregate, decode_request

_DAYS = nullable(OpenAPIType.NUMBER, "null is for ever", minimum=0, maximum=MAX_DAYS)
_AGGREGATE = with_body(
    where=Schema(description="A filter"),
    group=Schema(
        type=OpenAPIType.ARRAY, description='Any of {"time": "1h"}, model, version, task and label'
    ),
    metrics=nullable(OpenAPIType.ARRAY, items=Schema(enum=[*get_args(Metric)])),
)


def upkeep_routes(inferences: Inferences, changes: Changes) -> list[HTTPRouteHandler]:
    """Return the handlers that count what is stored, and say how long it is."""
    given: dict[str, Any] = {"sync_to_thread": True, "status_code": 200, "responses": ASKED}

    @post("/api/inferences/aggregate", operation_class=_AGGREGATE, **given)
    def aggregate_inferences(body: RawBody) -> Aggregates:
        """Count inferences by groups, with errors, latencies and labels."""
        return aggregate(inferences, decode_request(body))

    retention = "/api/models/{name:str}/retention"
    days = with_body(inputs_days=_DAYS, inferences_days=_DAYS)
    answer = get(retention, sync_to_thread=True, responses={503: NOT_READY})
    replace = put(retention, operation_class=days, **given)
    return [
        aggregate_inferences,
        options(retention, "GET", "PUT"),
        answer(changes.get_retention),
        replace(changes.put_retention),
    ]

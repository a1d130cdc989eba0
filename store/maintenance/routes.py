"""HTTP routes of statistics and retention; errors are `StoreError`s, which the application answers."""

from typing import Any

from litestar import get, post, put
from litestar.handlers import HTTPRouteHandler
from litestar.params import RawBody

from quadriga.store.bodies import body_of
from quadriga.store.changes.requests import RetentionBody
from quadriga.store.changes.service import Changes
from quadriga.store.inferences import InferenceReader
from quadriga.store.maintenance.aggregates import (
    AggregateRequest,
    Aggregates,
    aggregate,
    decode_aggregate,
)
from quadriga.store.routes import ASKED, NOT_READY, options

_AGGREGATE = body_of(
    AggregateRequest, group='Any of {"time": "1h"}, model, version, task and label'
)
_FOR_EVER = "null is for ever"
_RETENTION = body_of(RetentionBody, inputs_days=_FOR_EVER, inferences_days=_FOR_EVER)


def upkeep_routes(inferences: InferenceReader, changes: Changes) -> list[HTTPRouteHandler]:
    """Return the handlers that count what is stored, and say how long it is."""
    given: dict[str, Any] = {"sync_to_thread": True, "status_code": 200, "responses": ASKED}

    @post("/api/inferences/aggregate", operation_class=_AGGREGATE, **given)
    def aggregate_inferences(body: RawBody) -> Aggregates:
        """Count inferences by groups, with errors, latencies and labels."""
        return aggregate(inferences, decode_aggregate(body))

    retention = "/api/models/{name:str}/retention"
    answer = get(retention, sync_to_thread=True, responses={503: NOT_READY})
    replace = put(retention, operation_class=_RETENTION, **given)
    return [
        aggregate_inferences,
        options(retention, "GET", "PUT"),
        answer(changes.get_retention),
        replace(changes.put_retention),
    ]

"""Chariot's filters in every body that takes a filter: each means what it means in a query."""

from typing import Any

import msgspec
import pytest

from quadriga.engine.api.openapi import body_schema
from quadriga.monitor.drift import baselines
from quadriga.monitor.drift import parameters as drift
from quadriga.monitor.drift.watch import schedules
from quadriga.monitor.evaluation import parameters as evaluation
from quadriga.monitor.evaluation import schedules as evaluation_schedules
from quadriga.store.changes.requests import DeleteBody, decode_change
from quadriga.store.changes.truth_service import StatementsBody
from quadriga.store.exchange import export
from quadriga.store.maintenance import aggregates
from quadriga.store.query.filters import forms
from quadriga.store.query.request import (
    CountRequest,
    QueryRequest,
    decode_body,
    decode_count,
    decode_query,
)
from quadriga.store.records.errors import ChangeError, QueryError

DECODERS: dict[str, Any] = {
    "query": decode_query,
    "count": decode_count,
    "delete": lambda body: decode_change(body, DeleteBody, "JSON"),
    "aggregate": lambda body: decode_body(body, aggregates.AggregateRequest),
    "export": export.decode_parameters,
    "evaluation": evaluation.decode_parameters,
    "drift": drift.decode_parameters,
    "baseline": lambda body: baselines.decode_baseline("m", body, 0),
    "schedule": lambda body: schedules.decode_schedule("m", body),
    "evaluation schedule": evaluation_schedules.decode_schedule,
    "ground truth": lambda body: decode_change(body, StatementsBody, "JSON"),
}
REQUIRED = {
    "evaluation": {"model": "m"},
    "drift": {"model": "m"},
    "schedule": {"every": "1h"},
    "evaluation schedule": {"every": "1d"},
    "ground truth": {"join": "id", "items": []},
}
FILTERS = {
    "metadata_filter": [
        {"key": "altitude", "type": "float", "operator": "gte", "value": "100"},
        {"key": "camera", "operator": "in", "value": '["north", "east"]'},
    ],
    "gps_box": {"min_lat": 50, "min_lon": -1, "max_lat": 52, "max_lon": 1},
    "time_range": {"start": "2026-01-31T00:00:00Z"},
}
SAME = {
    "and": [
        {"status": 200},
        {
            "meta.altitude": {"ge": 100},
            "meta.camera": {"in": ["north", "east"]},
            "geo": {"box": [50, -1, 52, 1]},
            "ts": {"ge": "2026-01-31T00:00:00Z"},
        },
    ]
}


def decode(name: str, **fields: Any) -> Any:
    return DECODERS[name](msgspec.json.encode(REQUIRED.get(name, {}) | fields))


@pytest.mark.parametrize("name", DECODERS)
def test_filters_of_chariot_hold_beside_where(name):
    where = decode(name, where="status=200", **FILTERS).where
    assert forms.parse(where, 0) == forms.parse(SAME, 0)
    none = decode(name, metadata_filter=[], gps_box=None).where
    assert forms.parse(none, 0) == forms.parse({}, 0)


@pytest.mark.parametrize("name", DECODERS)
def test_other_fields_are_refused_beside_them(name):
    with pytest.raises((QueryError, ChangeError), match="unknown field `metadata_filters`"):
        decode(name, metadata_filters=[], **FILTERS)


BODIES = (
    QueryRequest,
    CountRequest,
    DeleteBody,
    aggregates.AggregateRequest,
    export.ExportParameters,
    evaluation.EvaluationParameters,
    drift.DriftParameters,
    baselines.BaselineRequest,
    schedules.DriftSchedule,
    evaluation_schedules.EvaluationSchedule,
    StatementsBody,
)


@pytest.mark.parametrize("struct", BODIES, ids=lambda struct: struct.__name__)
def test_the_documented_body_has_them(struct):
    properties = body_schema(struct)["properties"]
    assert FILTERS.keys() <= properties.keys()
    assert properties["gps_box"]["required"] == ["min_lat", "min_lon", "max_lat", "max_lon"]

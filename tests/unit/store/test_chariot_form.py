from typing import Any

import msgspec
import pytest

from quadriga.store.errors import QueryError
from quadriga.store.query.chariot_form import GPSBox, MetadataFilter, TimeRange, parse
from quadriga.store.query.request import decode_query
from quadriga.store.query.syntax import And, Compare, Filter, GeoBox, Not, PlaceCondition

NOW_US = 1_770_000_000_000_000


def one(**fields: Any) -> list[MetadataFilter]:
    return [MetadataFilter(**{"key": "a", **fields})]


@pytest.mark.parametrize(
    ("fields", "tree"),
    [
        ({"value": "x"}, Compare("meta.a", "eq", "x")),
        ({"value": "5"}, Compare("meta.a", "eq", "5")),
        ({"value": "5", "type": "int"}, Compare("meta.a", "eq", 5)),
        ({"value": 5, "type": "int"}, Compare("meta.a", "eq", 5)),
        ({"value": "5.5", "type": "float", "operator": "gte"}, Compare("meta.a", "ge", 5.5)),
        ({"value": "5", "type": "float", "operator": "<"}, Compare("meta.a", "lt", 5)),
        ({"value": "x", "operator": "neq"}, Not(Compare("meta.a", "eq", "x"))),
        ({"value": "x", "operator": "!="}, Not(Compare("meta.a", "eq", "x"))),
        ({"value": "x", "operator": ">"}, Compare("meta.a", "gt", "x")),
        ({"value": "x", "operator": "LTE"}, Compare("meta.a", "le", "x")),
        ({"value": "x,y", "operator": "in"}, Compare("meta.a", "in", ("x", "y"))),
        ({"value": "1,2", "operator": "in", "type": "int"}, Compare("meta.a", "in", (1, 2))),
        ({"value": [1, "2"], "operator": "in", "type": "float"}, Compare("meta.a", "in", (1, 2))),
        ({"value": "True", "type": "bool"}, Compare("meta.a", "eq", True)),
        ({"value": '{"b": {"c": 1}}', "type": "dict"}, And((
            Compare("meta.a", "exists", True), Compare("meta.a.b", "exists", True),
            Compare("meta.a.b.c", "eq", 1),
        ))),
        ({"value": {}, "type": "dict", "operator": "neq"}, Not(Compare("meta.a", "exists", True))),
    ],
)  # fmt: skip
def test_filters_of_chariot_parse_to_trees(fields: dict[str, Any], tree: Filter) -> None:
    assert parse(one(**fields), None, None, NOW_US) == tree


def test_all_parts_must_hold() -> None:
    body = {
        "where": "action=predict",
        "metadata_filter": [{"key": "a", "type": "int", "operator": "gt", "value": "1"}],
        "gps_box": {"min_lat": 1, "min_lon": 2, "max_lat": 3, "max_lon": 4},
        "time_range": {"start": "1970-01-01T00:00:00Z", "end": "1970-01-01T00:00:01Z"},
    }
    assert decode_query(msgspec.json.encode(body)).parse_filter() == And((
        Compare("action", "eq", "predict"),
        And((
            Compare("meta.a", "gt", 1), PlaceCondition(GeoBox(1.0, 2.0, 3.0, 4.0)),
            Compare("ts", "ge", 0), Compare("ts", "le", 1_000_000),
        )),
    ))  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"value": "x", "type": "int"}, "expected metadata_filter[0].value to be text of type int, got a string 'x'"),
        ({"value": "1.5", "type": "int"}, "expected metadata_filter[0].value to be of type int, got a number '1.5'"),
        ({"value": "true", "type": "float"}, "to be of type float, got a boolean"),
        ({"value": 5}, "expected metadata_filter[0].value to be a string, got an integer"),
        ({"value": "x", "type": "date"}, "expected metadata_filter[0].type to be one of str, string, float, int, bool, dict, got 'date'"),
        ({"value": "x", "operator": "like"}, "expected metadata_filter[0].operator to be one of eq, neq, gt"),
        ({"value": "{}", "type": "dict", "operator": "gt"}, "expected metadata_filter[0].operator to be eq or neq for a dict"),
        ({"value": 5, "operator": "in", "type": "int"}, "expected metadata_filter[0].value to be a list, or text with commas"),
        ({"value": "1" * 5000, "type": "int"}, "expected metadata_filter[0]"),
        ({"value": "[" * 100_000, "type": "dict"}, "to be text of type dict"),
        ({"key": "a\0", "value": "x"}, "without NUL"),
    ],
)  # fmt: skip
def test_what_means_nothing_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse(one(**fields), None, None, NOW_US)
    assert message in str(caught.value)


def test_boxes_and_times_are_checked_as_everywhere() -> None:
    with pytest.raises(QueryError, match="gps_box"):
        parse([], GPSBox(95, 0, 96, 0), None, NOW_US)
    with pytest.raises(QueryError, match=r"time_range\.ge to be a moment"):
        parse([], None, TimeRange("yesterday"), NOW_US)
    with pytest.raises(QueryError, match="at most 200 filters"):
        parse(one(value="x") * 201, None, None, NOW_US)

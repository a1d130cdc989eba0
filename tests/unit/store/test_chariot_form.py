from typing import Any

import msgspec
import pytest

from quadriga.store.query.filters import forms
from quadriga.store.query.filters.syntax import (
    And,
    Compare,
    Filter,
    GeoBox,
    Not,
    Or,
    PlaceCondition,
)
from quadriga.store.query.request import (
    QueryRequest,
    decode_filtered,
    decode_query,
    query_digest,
)
from quadriga.store.records.errors import QueryError

NOW_US = 1_770_000_000_000_000


def one(**fields: Any) -> list[dict[str, Any]]:
    return [{"key": "a", **fields}]


def parse(**filters: Any) -> Filter:
    return forms.parse(filters, NOW_US)


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
    assert parse(metadata_filter=one(**fields)) == tree


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
        ({"value": 5, "operator": "in", "type": "int"}, "expected metadata_filter[0].value to be a list, its JSON as a text, or a text with commas"),
        ({"value": '["x"', "operator": "in"}, "expected metadata_filter[0].value to be a list, its JSON as a text, or"),
        ({"value": "[x, y]", "operator": "in"}, "expected metadata_filter[0].value to be a list, its JSON as a text, or"),
        ({"value": "[[1]]", "operator": "in"}, "expected metadata_filter[0].value to be a string, got a list"),
        ({"value": '["x"]', "operator": "in", "type": "int"}, "to be text of type int"),
        ({"value": "[" * 100_000, "operator": "in"}, "expected metadata_filter[0].value to be a list"),
        ({"value": "1" * 5000, "type": "int"}, "expected metadata_filter[0]"),
        ({"value": "[" * 100_000, "type": "dict"}, "to be text of type dict"),
        ({"key": "a\0", "value": "x"}, "without NUL"),
    ],
)  # fmt: skip
def test_what_means_nothing_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse(metadata_filter=one(**fields))
    assert message in str(caught.value)


def test_boxes_and_times_are_checked_as_everywhere() -> None:
    with pytest.raises(QueryError, match="gps_box"):
        parse(gps_box={"min_lat": 95, "min_lon": 0, "max_lat": 96, "max_lon": 0})
    with pytest.raises(QueryError, match=r"time_range\.ge to be a moment"):
        parse(time_range={"start": "yesterday"})
    with pytest.raises(QueryError, match="at most 200 filters"):
        parse(metadata_filter=one(value="x") * 201)
    with pytest.raises(QueryError, match="min_lat, min_lon, max_lat and max_lon"):
        parse(gps_box={"min_lat": 1})


@pytest.mark.parametrize(
    ("value", "values"),
    [
        ('["x", "y, z"]', ("x", "y, z")),
        (' ["x"]', ("x",)),
        ("[]", ()),
        ("x, y", ("x", "y")),
        ("{x},y", ("{x}", "y")),
    ],
)
def test_a_list_is_json_or_text_with_commas(value: str, values: tuple[str, ...]) -> None:
    assert parse(metadata_filter=one(value=value, operator="in")) == Compare("meta.a", "in", values)


def test_a_list_of_numbers_is_json_too() -> None:
    filters = one(value='[1, "2.5"]', operator="in", type="float")
    assert parse(metadata_filter=filters) == Compare("meta.a", "in", (1, 2.5))


LISTS = {"metadata_filter": one(value="x"), "time_range": {"end": "1970-01-01T00:00:01Z"}}
BOTH = And((Compare("meta.a", "eq", "x"), Compare("ts", "le", 1_000_000)))


def test_filters_of_chariot_stand_anywhere_in_a_filter() -> None:
    assert parse(**LISTS) == BOTH
    assert parse(**{"not": LISTS}) == Not(BOTH)
    assert parse(**{"or": [LISTS, {"status": 200}]}) == Or((BOTH, Compare("status", "eq", 200.0)))
    assert parse(metadata_filter=[], status=200) == Compare("status", "eq", 200.0)


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({}, None),
        ({"where": {"status": 200}}, {"status": 200}),
        (LISTS, LISTS),
        ({"where": {}, **LISTS}, LISTS),
        ({"where": "status=200", **LISTS}, {"and": ["status=200", LISTS]}),
        ({"where": "", **LISTS}, {"and": ["", LISTS]}),
        ({"gps_box": None, "limit": 1}, None),
    ],
)
def test_filters_of_chariot_in_a_body_are_a_part_of_where(body: Any, where: Any) -> None:
    encoded = msgspec.json.encode(body)
    assert decode_filtered(encoded, QueryRequest).where == where
    assert decode_filtered(encoded, dict) == body  # a type without a filter is left alone


def test_a_cursor_of_the_first_release_is_still_answered() -> None:
    assert query_digest(decode_query(b"{}")) == "e7d757aa4e3fba86"
    assert (
        query_digest(decode_query(b'{"where": {"status": 200}, "order": "ts"}'))
        == "658af8c8b4152c7b"
    )

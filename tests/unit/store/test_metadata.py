import math
from typing import Any

import pytest

from quadriga.store.records.errors import MetadataError
from quadriga.store.records.metadata import check, check_rules, flatten, index_paths


def nested(depth: int) -> dict[str, Any]:
    node: dict[str, Any] = {"leaf": 1}
    for _ in range(depth - 1):
        node = {"a": node}
    return node


@pytest.mark.parametrize(
    ("metadata", "flat"),
    [
        ({}, {}),
        ({"a": 1}, {"a": 1}),
        ({"a": True, "b": 2.5, "c": "x", "d": ""}, {"a": True, "b": 2.5, "c": "x", "d": ""}),
        ({"a": None}, {}),
        ({"a": [1, {"b": 2}]}, {}),
        ({"a": {}}, {}),
        ({"location": {"floor": 2, "room": {"name": "n"}}}, {"location.floor": 2, "location.room.name": "n"}),
        ({"a.b": 1, "a": {"c": 2}}, {"a.b": 1, "a.c": 2}),
        ({"a.b": None, "a": {"b": 2}}, {"a.b": 2}),
        ({'quo"te': 1, "dol$lar": 2, "ключ": 3, " ": 4}, {'quo"te': 1, "dol$lar": 2, "ключ": 3, " ": 4}),
        ({"n": (1 << 63) - 1, "m": -(1 << 63)}, {"n": (1 << 63) - 1, "m": -(1 << 63)}),
        (nested(8), {"a.a.a.a.a.a.a.leaf": 1}),
    ],
)  # fmt: skip
def test_metadata_flattens_to_dotted_paths(metadata: dict[str, Any], flat: dict[str, Any]) -> None:
    check(metadata)
    assert flatten(metadata) == flat


def test_lists_and_objects_exist_but_cannot_be_compared() -> None:
    assert index_paths({"a": [1], "b": {"c": {"d": 1}}, "e": None}) == {
        "a": [],
        "b": {},
        "b.c": {},
        "b.c.d": 1,
    }


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ([], "expected metadata to be an object, got list"),
        (None, "expected metadata to be an object, got NoneType"),
        ({"": 1}, "to be 1 to 256 characters, got 0"),
        ({"a": {"k" * 257: 1}}, "to be 1 to 256 characters, got 257"),
        ({"a\n": 1}, r"metadata key 'a\n' without control characters"),
        ({"a\x9f": 1}, "without control characters"),
        ({1: 1}, "to be strings, got int"),
        ({"a": 1 << 63}, "expected metadata 'a' to fit 64 bits"),
        ({"a": {"b": math.nan}}, "expected metadata 'a.b' to be a finite number, got nan"),
        ({"a": math.inf}, "finite"),
        ({"a": "x\0y"}, "without NUL"),
        ({"a": b"x"}, "expected metadata 'a' to be a string, number"),
        ({"a": "\ud800"}, "surrogate"),
        ({"a.b": 1, "a": {"b": 2}}, "expected metadata key 'a.b' once"),
        ({"a.b": 1, "a": {"b": {}}}, "expected metadata key 'a.b' once"),
        (nested(9), "at most 8 deep"),
        ({"é" * 256: {"字" * 256: {"字" * 256: {"字" * 256: 1}}}}, "2560 bytes together, got 2819"),
        ({str(n): n for n in range(257)}, "at most 256 metadata keys, got 257"),
        ({"a": "x" * 65536}, "at most 65536 bytes, got 65544"),
    ],
)
def test_metadata_that_breaks_a_rule_is_refused(metadata: Any, message: str) -> None:
    with pytest.raises(MetadataError) as caught:
        check(metadata)
    assert message in str(caught.value)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"latitude": 91, "longitude": 0}, "'latitude' to be from -90 to 90 degrees, got 91"),
        ({"latitude": -90.001}, "'latitude' to be from -90 to 90 degrees, got -90.001"),
        ({"longitude": 180.5}, "'longitude' to be from -180 to 180 degrees, got 180.5"),
        ({"longitude": -(1 << 62)}, "'longitude' to be from -180 to 180 degrees"),
    ],
)
def test_a_place_that_is_not_on_earth_is_refused(metadata: dict[str, Any], message: str) -> None:
    check_rules(metadata)  # what is stored already may change
    with pytest.raises(MetadataError, match=message):
        check(metadata)


@pytest.mark.parametrize(
    "metadata",
    [
        {"latitude": 90, "longitude": -180.0},
        {"latitude": None},
        {"latitude": "north", "longitude": True},
        {"place": {"latitude": 91}},
    ],
)
def test_other_places_are_taken(metadata: dict[str, Any]) -> None:
    check(metadata)

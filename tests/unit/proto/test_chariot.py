"""Metadata in every form it comes in, and the paths under which Chariot publishes a model."""

import json

import pytest

from quadriga.proto.chariot import parse_metadata, without_gateway_prefix
from quadriga.proto.errors import InvalidRequest


def entry(key="a", type="str", value="x"):  # noqa: A002 - the wire's own word
    return {"key": key, "type": type, "value": value}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, {}),
        ("null", {}),
        ("{}", {}),
        ("[]", {}),
        ({"standard_metadata": {}}, {}),
        ({"standard_metadata": {"model": "forged"}, "extended_metadata": []}, {}),
        ({"extended_metadata": entry()}, {"a": "x"}),
        ([entry("lat", "float", "-32.1")], {"lat": -32.1}),
        ([entry("n", "int", " 7 ")], {"n": 7}),
        ([entry("n", "int", 7)], {"n": 7}),
        ([entry("n", "float", 7)], {"n": 7.0}),
        ([entry("n", "float", "1e3")], {"n": 1000.0}),
        ([entry("s", "str", "1")], {"s": "1"}),
        ([entry("d", "dict", '{"b": [1, {"c": null}]}')], {"d": {"b": [1, {"c": None}]}}),
        ([entry("d", "dict", {"b": 1})], {"d": {"b": 1}}),
        (
            {"camera": "north", "n": 1, "deep": {"x": True}},
            {"camera": "north", "n": 1, "deep": {"x": True}},
        ),
    ],
)
def test_every_form_is_read(value, expected):
    for sent in (value, json.dumps(value)):
        if isinstance(value, str) and sent is not value:
            continue
        metadata = parse_metadata({"metadata": sent}, "inputs[0]")
        assert metadata == expected
        assert [type(v) for v in metadata.values()] == [type(v) for v in expected.values()]
    assert parse_metadata({}, "inputs[0]") == {}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("{", "JSON"),
        ("[" * 10_000, "JSON"),
        (7, "int"),
        ('"text"', "str"),
        ({"extended_metadata": "a"}, "list of entries"),
        ([entry(), entry()], "each key once"),
        ([1], "key, type and value"),
        ([{"key": "a"}], "key, type and value"),
        ([entry(key="")], "key to be a text"),
        ([entry(type="bool")], "str, float, int, dict"),
        ([entry("n", "int", "1.0")], "parses as int"),
        ([entry("n", "int", "0x10")], "parses as int"),
        ([entry("n", "int", "٣")], "parses as int"),
        ([entry("n", "int", True)], "parses as int"),
        ([entry("n", "float", "nan")], "parses as float"),
        ([entry("n", "float", "1e999")], "finite"),
        ([entry("d", "dict", "[]")], "parses as dict"),
        ([entry("s", "str", 1)], "parses as str"),
    ],
)
def test_what_does_not_parse_as_its_type_is_refused(value, said):
    with pytest.raises(InvalidRequest) as caught:
        parse_metadata({"metadata": value}, "inputs[2]")
    assert said in str(caught.value)
    assert str(caught.value).startswith("inputs[2]: parameters.metadata")


@pytest.mark.parametrize(
    ("path", "inner"),
    [
        ("/api/serve/serve-model-abc-pred/v2/models/m-abc/infer/", "/v2/models/m-abc/infer/"),
        ("/api/serve/serve-model-a-b-pred/ready", "/ready"),
        ("/api/serve/serve-model-abc-pred", "/"),
        ("/api/serve/serve-model-abc-predx/ready", "/api/serve/serve-model-abc-predx/ready"),
        ("/v2/models/abc/infer", "/v2/models/abc/infer"),
        ("/", "/"),
    ],
)
def test_the_gateway_s_prefix_is_dropped(path, inner):
    assert without_gateway_prefix(path) == inner

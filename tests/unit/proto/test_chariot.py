"""Images and metadata in every form they come in, and the paths under which Chariot publishes a model."""

import base64
import json

import numpy as np
import pytest

from quadriga.proto.errors import InvalidRequest
from quadriga.proto.http.chariot import (
    parse_metadata,
    protocol_of_images,
    read_image_inputs,
    read_storage_options,
)
from quadriga.proto.http.operations import without_gateway_prefix
from quadriga.proto.messages import DEFAULT_STORAGE, InferRequest, StorageOptions, Tensor


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
def test_every_form_of_metadata_is_read(value, expected):
    for sent in (value, json.dumps(value)):
        if isinstance(value, str) and sent is not value:
            continue
        metadata = parse_metadata({"metadata": sent}, "inputs[0]")
        assert metadata == expected
        assert [type(v) for v in metadata.values()] == [type(v) for v in expected.values()]
    assert parse_metadata({}, "inputs[0]") == {}


@pytest.mark.parametrize(
    ("value", "expected_text"),
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
def test_metadata_that_does_not_parse_as_its_type_is_refused(value, expected_text):
    with pytest.raises(InvalidRequest) as caught:
        parse_metadata({"metadata": value}, "inputs[2]")
    assert expected_text in str(caught.value)
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


IMAGE = bytes(range(256))
TEXT = base64.b64encode(IMAGE).decode()
LINES = base64.encodebytes(IMAGE).decode()


def images_of(*data, shared=None, **parameters):
    tensor = Tensor("image", "BYTES", (len(data),), list(data), parameters=parameters)
    return list(read_image_inputs(InferRequest("m", None, "r", [tensor], parameters=shared or {})))


@pytest.mark.parametrize(
    ("element", "parameters"),
    [
        (IMAGE, {}),
        (TEXT, {}),
        (LINES, {}),
        (f"data:image/png;base64,{TEXT}", {}),
        (f"data:image/png;base64,{LINES}", {}),
        (TEXT.encode(), {"content_type": "base64"}),
        (TEXT, {"content_type": "base64"}),
        (b"", {}),
    ],
    ids=["bytes", "text", "lines", "url", "url-in-lines", "base64-as-bytes", "named", "empty"],
)
def test_images_of_every_form_become_bytes(element, parameters):
    (read,) = images_of(element, **parameters)
    assert list(read.images) == [IMAGE if element else b""]
    assert (read.name, read.location) == ("image", "inputs[0] ('image')")


@pytest.mark.parametrize(
    ("element", "parameters"),
    [("@@", {}), (TEXT[:-1], {}), (IMAGE, {"content_type": "base64"})],
    ids=["no-base64", "cut-short", "bytes-marked-as-base64"],
)
def test_error_of_bad_base64_names_its_location(element, parameters):
    with pytest.raises(InvalidRequest) as raised:
        list(images_of(TEXT, element, **parameters)[0].images)
    text = "inputs[0] ('image'): data[1]: expected a base64-encoded image, got: "
    assert str(raised.value).startswith(text)


@pytest.mark.parametrize(
    ("data", "expected_text"),
    [
        (np.zeros(3, np.float32), "expected images in datatype BYTES"),
        ([], "data is empty: at least one image is required"),
    ],
)
def test_an_input_without_images_is_refused(data, expected_text):
    tensor = Tensor("x" * 100, "FP32", (len(data),), data)
    with pytest.raises(InvalidRequest, match=expected_text) as raised:
        list(read_image_inputs(InferRequest("m", None, "r", [tensor])))
    assert str(raised.value).startswith(f"inputs[0] ('{'x' * 59}): ")


@pytest.mark.parametrize(
    ("others", "advice"),
    [
        ([], "got FP32; the parameter content_type raw sends tensors to the graph as they are, and answers its outputs"),
        ([Tensor("scale", "FP32", (1,), np.ones(1, np.float32))], "got FP32; the parameter content_type raw"),
        ([Tensor("image", "BYTES", (1,), [TEXT])], "got FP32; a number beside an image stands in parameters"),
    ],
)  # fmt: skip
def test_what_is_said_of_numbers_fits_the_request(others, advice):
    numbers = Tensor("pixels", "FP32", (3,), np.zeros(3, np.float32))
    with pytest.raises(InvalidRequest) as raised:
        list(read_image_inputs(InferRequest("m", None, "r", [*others, numbers][::-1])))
    assert str(raised.value).startswith(f"inputs[0] ('pixels'): expected images in datatype BYTES, base64-encoded in JSON, {advice}")  # fmt: skip


def test_an_input_s_own_parameters_go_before_those_of_the_request():
    shared = {"action": "detect", "prompts": ["a"], "store": False, "metadata": '{"b": 1}'}
    (read,) = images_of(IMAGE, shared=shared, store=True)
    assert read.parameters == {**shared, "store": True}
    assert read.metadata == {"b": 1}
    assert read.storage == StorageOptions(store=True)
    (read,) = images_of(IMAGE, shared=shared, prompt="c")
    assert read.parameters == {
        "action": "detect", "store": False, "metadata": '{"b": 1}', "prompt": "c"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, DEFAULT_STORAGE),
        ({"action": "detect"}, DEFAULT_STORAGE),
        ({"store": None, "semantic_score": None}, DEFAULT_STORAGE),
        ({"store": False}, StorageOptions(store=False)),
        ({"store_input": False}, StorageOptions(store_input=False)),
        ({"semantic_score": False}, StorageOptions(semantic_score=False)),
        ({"semantic_score": True}, StorageOptions(semantic_score=True)),
    ],
)
def test_storage_options_are_read(parameters, expected):
    assert read_storage_options(parameters, "inputs[0]") == expected


@pytest.mark.parametrize("name", ["store", "store_input", "semantic_score"])
def test_a_storage_option_is_true_or_false(name):
    expected_text = rf"inputs\[2\]: expected parameters.{name} to be true or false, got 1"
    with pytest.raises(InvalidRequest, match=expected_text):
        read_storage_options({name: 1}, "inputs[2]")


def test_v2_with_images_is_chariot_v2_kserve():
    assert protocol_of_images("v2") == "chariot-v2-kserve"
    assert protocol_of_images("v1") == "v1"

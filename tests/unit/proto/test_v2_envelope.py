"""The envelope: parse and render."""

import itertools
import json
import re

import msgspec
import numpy as np
import pytest

from quadriga.proto.errors import InvalidRequest, ProtocolError, Unsupported
from quadriga.proto.http.v2 import parse_infer, render_infer
from quadriga.proto.messages import InferResponse, Tensor

INPUT = {"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2.5]}


def parse(body, header_id=None):
    return parse_infer(json.dumps(body).encode(), "m", None, header_id)


def test_all_fields_of_a_request_are_read():
    request = parse(
        {
            "id": "7",
            "parameters": {"a": 1},
            "inputs": [INPUT, {**INPUT, "name": "y", "parameters": {"b": [1]}}],
            "outputs": [{"name": "z"}],
            "unknown": {"is": "ignored"},
        }
    )
    assert (request.model, request.version, request.id) == ("m", None, "7")
    assert request.parameters == {"a": 1}
    assert [output.name for output in request.requested_outputs] == ["z"]
    assert [tensor.name for tensor in request.inputs] == ["x", "y"]
    assert request.inputs[1].parameters == {"b": [1]}
    np.testing.assert_array_equal(request.inputs[0].data, np.array([1, 2.5], np.float32))


def test_the_id_is_the_body_s_then_the_header_s_then_a_new_one():
    assert parse({"id": "body", "inputs": [INPUT]}, "header").id == "body"
    assert parse({"inputs": [INPUT]}, "header").id == "header"
    assert parse({"id": None, "inputs": [INPUT]}).id != parse({"inputs": [INPUT]}).id


@pytest.mark.parametrize("name", ["parameters", "outputs", "id"])
def test_null_counts_as_absent(name):
    assert parse({"inputs": [{**INPUT, "parameters": None}], name: None}).inputs


@pytest.mark.parametrize(
    ("body", "expected_text"),
    [
        (b"", "JSON"),
        (b"\xff", "JSON"),
        (b"--0a1b\r\nContent-Disposition: form-data", "an image as it is, without a form"),
        (b'{"id": ' + b"[" * 100_000, "id"),
        (b'{"x": ' + b"[" * 100_000, "expected a body in JSON, got one nested too deeply"),
        (b"[" * 100_000, "object"),
        (b'{"id": "\\ud800", "inputs": [], "x": NaN}', "surrogates"),
        (b'{"id": "\xed\xa0\x80", "inputs": [], "x": NaN}', "JSON"),
        (b"{}", "inputs"),
        (b'{"inputs": []}', "inputs is empty: at least one input is required"),
        (b'{"inputs": [{"name": "x"}]}', "inputs[0]"),
        (b'{"inputs": [{"name": 1}]}', "at 'inputs[0].name'"),
        (b'{"inputs": [{"name":"x","shape":[1],"datatype":"TEXT","data":[1]}]}', "'TEXT'"),
    ],
)
def test_errors_name_the_location(body, expected_text):
    with pytest.raises(InvalidRequest) as caught:
        parse_infer(body, "m", None, None)
    assert expected_text in str(caught.value)


WITHOUT_DATA = {"name": "x", "shape": [2], "datatype": "FP32"}


@pytest.mark.parametrize(
    ("tensor", "behind", "message"),
    [
        (WITHOUT_DATA, b"", "expected one of data and parameters.binary_data_size, got neither"),
        (INPUT | {"parameters": {"binary_data_size": 8}}, b"", "expected one of data and parameters.binary_data_size, got both"),
        (WITHOUT_DATA | {"parameters": {"binary_data_size": -1}}, b"", "expected parameters.binary_data_size to be a number of bytes, got -1"),
        (WITHOUT_DATA | {"parameters": {"binary_data_size": True}}, b"", "expected parameters.binary_data_size to be a number of bytes, got True"),
        (WITHOUT_DATA | {"parameters": {"binary_data_size": 8}}, b"1234567", "expected 8 bytes behind the JSON, got 7"),
        (WITHOUT_DATA | {"parameters": {"binary_data_size": 4}}, b"1234", "expected 8 bytes for FP32 of shape [2], got 4"),
        (WITHOUT_DATA | {"parameters": {"shared_memory_region": "r"}}, b"", "expected the data in the message, got shared memory, which this server has not"),
        (INPUT | {"data": [1, "2"]}, b"", "expected data that fit FP32, got '2': texts and base64 have the datatype BYTES"),
        (INPUT | {"datatype": "BYTES"}, b"", 'expected data[0] of a BYTES tensor to be a string, or bytes as {"b64": "<base64>"}, got 1'),
    ],
)  # fmt: skip
def test_data_that_are_no_input_are_refused_with_its_name(tensor, behind, message):
    text = json.dumps({"inputs": [tensor]}).encode()
    with pytest.raises(ProtocolError) as caught:
        parse_infer(text + behind, "m", None, None, len(text))
    assert str(caught.value) == f"inputs[0] ('x'): {message}"


@pytest.mark.parametrize("binary", [True, False])
def test_an_output_in_shared_memory_is_not_offered(binary):
    outputs = [{"name": "y"}, {"name": "z", "parameters": {"shared_memory_region": "r"}}]
    tensor = WITHOUT_DATA | {"parameters": {"binary_data_size": 8}} if binary else INPUT
    text = json.dumps({"inputs": [tensor], "outputs": outputs}).encode()
    with pytest.raises(
        Unsupported, match=r"^outputs\[1\] \('z'\): expected the data .*, got shared"
    ):
        parse_infer(text + bytes(8 * binary), "m", None, None, len(text) if binary else None)


def test_bytes_of_inputs_follow_the_json():
    nothing = WITHOUT_DATA | {"shape": [0], "parameters": {"binary_data_size": 0}}
    two = WITHOUT_DATA | {"parameters": {"binary_data_size": 8, "other": 1}}
    text = json.dumps({"inputs": [two, nothing, two]}).encode()
    body = text + np.array([1, 2, 3, 4], np.float32).tobytes()
    first, empty, last = parse_infer(body, "m", None, None, len(text)).inputs
    assert [tensor.data.tolist() for tensor in (first, empty, last)] == [[1, 2], [], [3, 4]]
    assert (first.parameters, empty.parameters) == ({"other": 1}, {})
    with pytest.raises(InvalidRequest, match=r"^expected no bytes behind the last input, got 1$"):
        parse_infer(body + b"x", "m", None, None, len(text))


@pytest.mark.parametrize(
    ("setting", "data"), [("token", b"[NaN,1.5,-Infinity]"), ("null", b"[null,1.5,null]")]
)
def test_form_of_what_is_not_finite_is_a_setting(setting, data):
    array = np.array([np.nan, 1.5, -np.inf], np.float32)
    response = InferResponse("m", "1", "7", [Tensor("y", "FP32", (3,), array)])
    request = parse({"inputs": [INPUT]})
    assert b'"data":' + data in render_infer(request, response, setting)[0]
    with pytest.raises(InvalidRequest, match=r"got NaN or an infinity: ask for binary_data$"):
        render_infer(request, response, "error")


def test_a_response_is_rendered_flat_with_its_shape():
    array = np.arange(6, dtype=np.int64).reshape(2, 3)
    predictions = Tensor(
        "image", "BYTES", (1,), [[{"label": "a"}]], parameters={"action": "predict"}
    )
    response = InferResponse("m", "1", "7", [Tensor("y", "INT64", (2, 3), array), predictions])
    body, json_bytes = render_infer(parse({"inputs": [INPUT]}), response)
    assert json_bytes is None
    assert msgspec.json.decode(body) == {
        "model_name": "m",
        "model_version": "1",
        "id": "7",
        "outputs": [
            {"name": "y", "shape": [2, 3], "datatype": "INT64", "data": [0, 1, 2, 3, 4, 5]},
            {
                "name": "image",
                "shape": [1],
                "datatype": "BYTES",
                "data": [[{"label": "a"}]],
                "parameters": {"action": "predict"},
            },
        ],
    }


def test_bytes_other_than_utf8_cannot_be_sent_as_json():
    request = parse(
        {"inputs": [INPUT], "outputs": [{"name": "y", "parameters": {"binary_data": False}}]}
    )
    response = InferResponse("m", "1", "7", [Tensor("y", "BYTES", (1,), [b"\xff"])])
    with pytest.raises(InvalidRequest, match="ask for binary_data"):
        render_infer(request, response)


NUMBERS = [
    "[]", "[1]", "[1, 2.5]", "[1, 2, 3]", "[0.1, 1e-46, 3e38]", "[-0.0, 0]", "[1e39]", "[1e400]",
    "[9007199254740993]", "[9007199254740993, 0.5]", "[1152921573326323713]", "[36893488147419103232]",
    "[65520]", "[true]", "[1, true]", "[0.5, false]", "[null]", '["1"]', '[1, "a"]', "[[1, 2], [3, 4]]",
    "[16777217]", "[3.4028235677973366e38]", "[[1], 2]", "[NaN, 1]", "[Infinity]", "1.5", "{}", "[1,", "[1e]", "[01]",
]  # fmt: skip


def outcome(text):
    """Return the bits of the only input of a body, or why it is refused, without places in the text."""
    try:
        array = parse_infer(text.encode(), "m", None, "id").inputs[0].data
    except InvalidRequest as error:
        return re.sub(r"byte \d+|char \d+|column \d+", "", str(error))
    return array.dtype, array.shape, array.tobytes()


@pytest.mark.parametrize("numbers", NUMBERS)
def test_numbers_are_the_same_whichever_way_they_are_read(numbers):
    """Data of many floating-point numbers are read another way; spaces hide their datatype from it."""
    spaces = " " * 2000
    for datatype, shape in itertools.product(["FP16", "FP32", "FP64"], [[1], [2], [2, 2]]):
        tensor = f'{{"name": "x", "shape": {shape}, "datatype": "{datatype}", "data": {numbers}}}'
        body = f'{{"inputs": [{tensor}]}}'
        assert outcome(body) == outcome(f"{spaces}{body}{spaces}"), tensor


def test_floats_beside_other_inputs_are_read():
    inputs = [
        INPUT,
        {"name": "n", "shape": [1], "datatype": "INT64", "data": [9007199254740993]},
        {"name": "t", "shape": [1], "datatype": "BYTES", "data": ["text"]},
    ]
    floats, integers, texts = parse({"inputs": inputs}).inputs
    assert floats.data.tolist() == [1, 2.5]
    assert integers.data.tolist() == [9007199254740993]
    assert texts.data == ["text"]

"""JSON as TF Serving reads it and writes it, against the figures and texts of its page and tests."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quadriga.proto.datatypes import DATATYPES
from quadriga.proto.errors import InvalidRequest
from quadriga.proto.http.v1 import (
    float_texts,
    parse_document,
    row_texts,
    tensor_text,
    tensors_from_columns,
    tensors_from_rows,
)
from quadriga.proto.messages import Tensor, TensorInfo

ONE = [TensorInfo("x", "FP32", (-1,))]
TWO = [TensorInfo("a", "FP32", (-1,)), TensorInfo("b", "INT32", (-1,))]


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (9000000, np.float32, "9e+06"),
        (999999, np.float32, "999999.0"),
        (0.00003, np.float32, "3e-05"),
        (555557.5, np.float32, "555557.5"),
        (0.2, np.float32, "0.2"),
        (8, np.float32, "8.0"),
        (0, np.float32, "0.0"),
        (-0.0, np.float32, "-0.0"),
        (1435774380, np.float32, "1.43577434e+09"),
        (16777217, np.float32, "16777216.0"),
        (math.nan, np.float32, "NaN"),
        (math.inf, np.float32, "Infinity"),
        (-math.inf, np.float32, "-Infinity"),
        (3.4028235e38, np.float32, "3.40282347e+38"),
        (1e-45, np.float32, "1.4013e-45"),
        (0.1, np.float64, "0.1"),
        (1 / 3, np.float64, "0.33333333333333331"),
        (1e-300 / 3, np.float64, "3.3333333333333334e-301"),
        (1.7976931348623157e308, np.float64, "1.7976931348623157e+308"),
        (0.1, np.float16, "0.0999755859"),
    ],
)
def test_floats_have_six_digits_or_all(value, dtype, text):
    assert float_texts(np.array([value], dtype)) == [text]


@given(
    st.sampled_from([np.float32, np.float64]).flatmap(lambda d: hnp.arrays(d, st.integers(0, 8)))
)
def test_a_float_is_read_as_it_was(array):
    texts = float_texts(array)
    again = np.array([json.loads(text) for text in texts], np.float64).astype(array.dtype)
    np.testing.assert_array_equal(again, array)
    assert all(set(text) & set(".eNI") for text in texts)


@pytest.mark.parametrize(("setting", "text"), [("token", "[9e+06,NaN]"), ("null", "[9e+06,null]")])
def test_form_of_nan_is_a_setting(setting, text):
    tensor = Tensor("x", "FP32", (2,), np.array([9e6, math.nan], np.float32))
    assert tensor_text(tensor, setting) == text
    with pytest.raises(
        InvalidRequest, match=r"^expected outputs that JSON can write, got NaN or an infinity$"
    ):
        tensor_text(tensor, "error")


DTYPES = [dtype for dtype in DATATYPES if dtype != np.float16]


@settings(max_examples=60)
@given(st.sampled_from(DTYPES).flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(min_side=0))))
def test_encoded_tensors_are_read_back_unchanged(array):
    tensor = Tensor("x", DATATYPES[array.dtype], array.shape, array)
    info = [TensorInfo("x", tensor.datatype, array.shape)]
    if array.size:
        body = b'{"v":%b}' % tensor_text(tensor).encode()
        (again,) = tensors_from_columns(parse_document(body)["v"], info)
        assert (again.name, again.datatype, again.data.dtype) == ("x", tensor.datatype, array.dtype)
        np.testing.assert_array_equal(again.data, array)
        (again,) = tensors_from_rows(
            [parse_document(b'{"v":%b}' % row.encode())["v"] for row in row_texts(tensor)], info
        )
        np.testing.assert_array_equal(again.data, array)
    assert len(row_texts(tensor)) == array.shape[0]


@given(st.lists(st.text()))
def test_texts_are_read_as_they_were_and_bytes_too(texts):
    info = [TensorInfo("x", "BYTES", (-1,))]
    (again,) = tensors_from_columns(
        parse_document(
            b'{"v":%b}' % tensor_text(Tensor("x", "BYTES", (len(texts),), texts)).encode()
        )["v"],
        info,
    )
    assert again.data == texts
    raw = [text.encode() for text in texts]
    (again,) = tensors_from_columns(
        parse_document(
            b'{"v":%b}' % tensor_text(Tensor("x_bytes", "BYTES", (len(raw),), raw)).encode()
        )["v"],
        info,
    )
    assert again.data == raw


def test_brackets_are_those_of_the_shape():
    assert tensor_text(Tensor("x", "FP32", (), np.array(8, np.float32))) == "8.0"
    assert tensor_text(Tensor("x", "INT64", (), np.array(8))) == "8"
    assert tensor_text(Tensor("x", "BOOL", (2,), np.array([True, False]))) == "[true,false]"
    assert tensor_text(Tensor("x", "FP32", (2, 0), np.zeros((2, 0), np.float32))) == "[[],[]]"


@pytest.mark.parametrize(
    ("body", "document"),
    [
        (b'{"a": 1} trailing', {"a": 1}),
        (b'\n\t {"a": [NaN, Infinity, -Infinity]}', {"a": [math.nan, math.inf, -math.inf]}),
        (b'{"a": 1e999}', {"a": math.inf}),
        (b'{"a": [NaN, "\\u00e4"]}', {"a": [math.nan, "ä"]}),
        ('{"ä": "\\u00e4"}'.encode(), {"ä": "ä"}),
    ],
)
def test_documents_are_parsed(body, document):
    assert repr(parse_document(body)) == repr(document)


@pytest.mark.parametrize(
    ("body", "expected_text"),
    [
        (b"", "JSON Parse error: The document is empty"),
        (b" \n", "JSON Parse error: The document is empty"),
        (b"{", "JSON Parse error: Invalid value. at offset: 1"),
        ('{"ä": x}'.encode(), "JSON Parse error: Invalid value. at offset: 7"),
        (b'{"a": 1 /* no */}', "JSON Parse error: Invalid value."),
        (b'{"\xff": 1}', "JSON Parse error: Invalid encoding in string. at offset: 2"),
        (
            b'{"a": "\\ud800"}',
            "JSON Parse error: The surrogate pair in string is invalid. at offset: 15",
        ),
        (b'{"a": ' + b"9" * 5000 + b"}", "JSON Parse error: Number too big. "),
        (b"[" * 100_000, "JSON Parse error: nested too deeply"),
        (b"[1]", "JSON Value: [1] Is not object"),
        (f'"{"ä" * 58}"'.encode(), f'JSON Value: "{"ä" * 58}" Is not object'),
        (f'"{"ä" * 59}"'.encode(), f'JSON Value: "{"ä" * 56}... Is not object'),
    ],
)
def test_invalid_document_is_refused(body, expected_text):
    with pytest.raises(InvalidRequest) as caught:
        parse_document(body)
    assert str(caught.value).startswith(expected_text)


@given(
    st.binary()
    | st.recursive(
        st.none() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ).map(lambda value: json.dumps({"instances": value}).encode())
)
def test_any_bytes_are_read_or_refused(body):
    for inputs in (ONE, TWO, [TensorInfo("x", "BYTES", (-1,))], [TensorInfo("x", "UINT8", (-1,))]):
        try:
            document = parse_document(body)
            instances = document.get("instances")
            tensors_from_columns(instances, inputs)
            tensors_from_rows(
                instances if isinstance(instances, list) and instances else [1], inputs
            )
        except InvalidRequest:
            continue


NUMBERS = {
    "ints into a float": ("FP32", [1, 2], [1, 2]),
    "an int that float32 has not": ("FP32", [1435774380], [1435774336]),
    "beyond float32": ("FP32", [1e39, -1e39, 10**400, -(10**400)], [math.inf, -math.inf] * 2),
    "below float32": ("FP32", [1e-60, -1e-60], [0.0, -0.0]),
    "not finite": ("FP64", [math.nan, math.inf], [math.nan, math.inf]),
    "uint64": ("UINT64", [2**64 - 1], [2**64 - 1]),
    "bool": ("BOOL", [True, False], [True, False]),
    "half": ("FP16", [70000], [math.inf]),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_read_as(name):
    datatype, given_values, expected = NUMBERS[name]
    (tensor,) = tensors_from_rows(given_values, [TensorInfo("x", datatype, (-1,))])
    np.testing.assert_array_equal(tensor.data, np.array(expected, tensor.data.dtype))


@pytest.mark.parametrize(
    ("datatype", "value", "kind", "type_name"),
    [
        ("INT32", 1.5, "Number", "int32"),
        ("INT32", 1.0, "Number", "int32"),
        ("INT32", 2**31, "Number", "int32"),
        ("UINT8", -1, "Number", "uint8"),
        ("UINT8", 256, "Number", "uint8"),
        ("INT64", True, "Bool", "int64"),
        ("FP32", True, "Bool", "float"),
        ("FP32", "1", "String", "float"),
        ("FP32", None, "Null", "float"),
        ("FP64", {"b64": "AA=="}, "Object", "double"),
        ("BOOL", 1, "Number", "bool"),
        ("BYTES", 1, "Number", "string"),
        ("BYTES", {"b64": 1}, "Object", "string"),
    ],
)
def test_values_of_another_type_are_refused(datatype, value, kind, type_name):
    with pytest.raises(InvalidRequest) as caught:
        tensors_from_columns([value], [TensorInfo("x", datatype, (-1,))])
    assert f"Type: {kind} is not of expected type: {type_name}" in str(caught.value)


BAD_ROWS = {
    "a list among objects": ([{"a": 1, "b": 1}, [1]], TWO, "Expecting object but got list at item 1 of input list"),
    "base64 among objects": ([{"a": 1, "b": 1}, {"b64": "AA=="}], TWO, "Expecting object but got list at item 1 of input list"),
    "an object among values": ([1, {"x": 1}], ONE, "Expecting value/list but got object at item 1 of input list"),
    "plain values for two": ([1, 2], TWO, "instances is a plain list, but expecting list of objects as multiple input tensors required as per tensorinfo_map"),
    "an unknown name": ([{"a": 1, "c": 1}], TWO, "Failed to process element: 0 key: c of 'instances' list. Error: JSON object: does not have named input: c"),
    "a name missing": ([{"a": 1}], TWO, "Failed to process element: 0 of 'instances' list. JSON object: {\"a\": 1} keys must be equal to: a,b"),
    "sizes": ([[1], [1, 2]], ONE, "Failed to process element: 1 of 'instances' list. Error: Expecting tensor size: 1 but got: 2"),
    "shapes": ([[[1, 2]], [[1], [2]]], ONE, "Expecting shape [1,2] but got: [2,1]"),
    "sizes of an input": ([{"a": 1, "b": [1]}, {"a": 1, "b": [1, 2]}], TWO, "Failed to process element: 1 key: b of 'instances' list. Error: Expecting tensor size: 1 but got: 2"),
    "shapes of an input": ([{"a": [[1, 2]], "b": 1}, {"a": [[1], [2]], "b": 1}], TWO, "Failed to process element: 1 key: a of 'instances' list. Error: Expecting shape [1,2] but got: [2,1]"),
    "ragged": ([[[1], [1, 2]]], ONE, "Encountered list at unexpected size: 2 at level: 1 expected size: 1"),
    "a list below a value": ([[1, [2]]], ONE, "Encountered list at unexpected level: 1"),
    "a value beside a list": ([[[1], 2]], ONE, "JSON Value: 2 found at incorrect level: 2 in the JSON DOM"),
    "a type": ([{"a": 1, "b": 1}, {"a": 1, "b": 1.5}], TWO, "Failed to process element: 1 key: b of 'instances' list. Error: JSON Value: 1.5 Type: Number is not of expected type: int32"),
    "base64": ([{"b64": "!"}], [TensorInfo("x", "BYTES", (-1,))], "Unable to base64 decode"),
    "very deep": ([json.loads("[" * 200 + "1" + "]" * 200)], ONE, "Encountered list at unexpected level"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_ROWS)
def test_bad_rows_are_refused(name):
    instances, inputs, expected_text = BAD_ROWS[name]
    with pytest.raises(InvalidRequest) as caught:
        tensors_from_rows(instances, inputs)
    assert expected_text in str(caught.value)


BAD_COLUMNS = {
    "a name missing": ({"a": [1]}, TWO, "Missing named input: b in 'inputs' object."),
    "a second value of another type": ([1, 1.5], [TensorInfo("x", "INT32", (-1,))], "JSON Value: 1.5 Type: Number"),
    "a plain list for two": ([1], TWO, "expecting an object as multiple input tensors required"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_COLUMNS)
def test_bad_columns_are_refused(name):
    value, inputs, expected_text = BAD_COLUMNS[name]
    with pytest.raises(InvalidRequest) as caught:
        tensors_from_columns(value, inputs)
    assert expected_text in str(caught.value)


def test_columns_have_their_own_sizes_and_rows_are_stacked():
    first, second = tensors_from_columns({"a": [1, 2], "b": 3, "unknown": "x"}, TWO)
    assert (first.shape, second.shape) == ((2,), ())
    first, second = tensors_from_rows([{"a": [1, 2], "b": 3}, {"a": [4, 5], "b": 6}], TWO)
    np.testing.assert_array_equal(first.data, [[1, 2], [4, 5]])
    np.testing.assert_array_equal(second.data, [3, 6])
    (texts,) = tensors_from_rows([{"b64": "AP8="}, "é"], [TensorInfo("x", "BYTES", (-1,))])
    assert texts.data == [b"\x00\xff", "é"]
    (text,) = tensors_from_columns({"b64": "AP8="}, [TensorInfo("x", "BYTES", ())])
    assert (text.data, text.shape) == ([b"\x00\xff"], ())

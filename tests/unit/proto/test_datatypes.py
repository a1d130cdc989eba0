"""From JSON to arrays: what fits is exact, what does not is an error that says why."""

import numpy as np
import pytest

from quadriga.proto.datatypes import (
    array_from_json,
    checked_shape,
    elements_from_json,
    from_raw,
)
from quadriga.proto.errors import InvalidRequest


@pytest.mark.parametrize(
    ("data", "datatype", "shape", "expected"),
    [
        ([], "FP32", [0], np.zeros(0, np.float32)),
        ([], "INT64", [0, 3], np.zeros((0, 3), np.int64)),
        ([], "FP32", [0, 3, 4096, 4096], np.zeros((0, 3, 4096, 4096), np.float32)),
        ([1.5], "FP32", [1], np.array([1.5], np.float32)),
        ([1, 2, 3, 4], "FP32", [2, 2], np.array([[1, 2], [3, 4]], np.float32)),
        ([1, 2, 3, 4], "FP32", [-1, 2], np.array([[1, 2], [3, 4]], np.float32)),
        ([], "FP32", [-1, 3], np.zeros((0, 3), np.float32)),
        ([[1, 2], [3, 4]], "INT32", [2, 2], np.array([[1, 2], [3, 4]], np.int32)),
        ([[1.5, 2]], "FP64", [1, 2], np.array([[1.5, 2]])),
        ([65504], "FP16", [1], np.array([65504], np.float16)),
        ([True, False], "BOOL", [2], np.array([True, False])),
        ([True], "INT8", [1], np.array([1], np.int8)),
        ([255], "UINT8", [1], np.array([255], np.uint8)),
        ([-128, 127], "INT8", [2], np.array([-128, 127], np.int8)),
        ([2**64 - 1], "UINT64", [1], np.array([2**64 - 1], np.uint64)),
        ([-(2**63), 2**63 - 1], "INT64", [2], np.array([-(2**63), 2**63 - 1], np.int64)),
        (7, "INT32", [1], np.array([7], np.int32)),
        ([7], "INT32", [], np.array(7, np.int32)),
        (7, "FP32", [], np.array(7, np.float32)),
        (True, "BOOL", [], np.array(True)),
        ([10**20, 1.5], "FP64", [2], np.array([1e20, 1.5])),
        ([[10**20], [-(10**30)]], "FP32", [2, 1], np.array([[1e20], [-1e30]], np.float32)),
    ],
)
def test_values_that_fit_are_exact(data, datatype, shape, expected):
    array = array_from_json(data, datatype, shape, "inputs[0]")
    assert array.dtype == expected.dtype
    assert array.shape == expected.shape
    np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize(
    ("data", "datatype", "shape", "expected_text"),
    [
        ([1.5], "INT32", [1], "1.5"),
        ([1.0], "INT32", [1], "1.0"),
        ([1, 2.5, 3], "INT32", [3], "got 2.5"),
        (["aGk="], "INT32", [1], "got 'aGk=': texts and base64 have the datatype BYTES"),
        ([1, 2, 3, 4.0], "UINT32", [4], "expected data that fit UINT32, got 4.0"),
        ([[1], [2.0]], "INT64", [2, 1], "got 2.0"),
        (4.0, "UINT8", [1], "got 4.0"),
        ([-1, 2**63], "INT64", [2], "got 9223372036854775808"),
        ([2**63, -1], "UINT64", [2], "got -1"),
        ([2**53 + 1, 1.0], "INT64", [2], "got 1.0"),
        ([1, 10**30], "INT32", [2], "got 10000"),
        ([300], "UINT8", [1], "0 to 255"),
        ([-1], "UINT64", [1], "-1"),
        ([2**63], "INT64", [1], str(2**63)),
        ([2**64], "UINT64", [1], str(2**64)),
        ([10**30], "INT32", [1], str(10**30)),
        (["1"], "FP32", [1], "'1'"),
        ([1, "1"], "INT32", [2], "1"),
        (["true"], "BOOL", [1], "'true'"),
        ([1], "BOOL", [1], "1"),
        ([True], "FP32", [1], "True"),
        ([None], "FP32", [1], "None"),
        ([{}], "FP32", [1], "{}"),
        ([1e300], "FP32", [1], "FP32"),
        ([10**300], "FP32", [1], "FP32"),
        ([10**310], "FP64", [1], "FP64"),
        ([10**20], "INT64", [1], str(10**20)),
        ([True, 1.5], "FP32", [2], "True"),
        ([1, True], "INT32", [2], "True"),
        ([[1], [True]], "INT32", [2, 1], "True"),
        ([[True], 1], "BOOL", [2], "True"),
        ([[1, None]], "FP32", [1, 2], "None"),
        (["a" * 100_000, *[0] * 100_000], "FP32", [100_001], "'aaa"),
        ([["a" * 100_000], *[[0]] * 100_000], "FP32", [100_001, 1], "'aaa"),
        ([70000], "FP16", [1], "FP16"),
        ([[1, 2], [3]], "FP32", [3], "regularly nested"),
        ([[1, 2], [3, 4]], "FP32", [4, 1], "nested as shape [4, 1]"),
        ([1, 2], "FP32", [3], "expected 3 elements"),
        ([1, 2], "FP32", [-1, 3], "without negative sizes"),
        ([1, 2], "FP32", [-1, -1], "without negative sizes"),
        ([1, 2], "FP32", [-2, -1], "without negative sizes"),
        ([1, 2], "FP32", [], "expected 1 elements for shape [], got 2"),
        ([], "FP32", [], "expected 1 elements for shape [], got 0"),
        ([[1]], "FP32", [], "nested as shape []"),
        ([1], "FP32", [1] * 40, "dimensions"),
        ([], "FP32", [0, 2**31], "that memory can hold"),
        ([], "FP32", [2**20, 0, 2**20], "that memory can hold"),
        ([1], "FP8", [1], "datatype"),
        ([1], "BF16", [1], "datatype"),
    ],
)
def test_values_that_do_not_fit_are_refused(data, datatype, shape, expected_text):
    with pytest.raises(InvalidRequest) as caught:
        array_from_json(data, datatype, shape, "inputs[3]")
    assert expected_text in str(caught.value)
    assert str(caught.value).startswith("inputs[3]: expected")


@pytest.mark.parametrize(
    ("data", "shape", "texts", "full"),
    [
        (["a"], [1], ["a"], (1,)),
        (["a", "b"], [2, 1], ["a", "b"], (2, 1)),
        ([["a", "b"], ["c", "d"]], [2, 2], ["a", "b", "c", "d"], (2, 2)),
        ("a", [1], ["a"], (1,)),
        ("a", [], ["a"], ()),
        (["a"], [], ["a"], ()),
        (["a", "b"], [-1], ["a", "b"], (2,)),
        ([""], [1], [""], (1,)),
        (["a", {"b64": "//79"}], [2], ["a", b"\xff\xfe\xfd"], (2,)),
        ({"b64": ""}, [1], [b""], (1,)),
    ],
)
def test_elements_of_bytes_keep_their_order(data, shape, texts, full):
    assert elements_from_json(data, shape, "inputs[0]") == (texts, full)


@pytest.mark.parametrize(
    "data", [[1], [None], [b"x"], [{}], [True], ["a", 2], [{"b64": 1}], [{"b64": "", "x": ""}]]
)
def test_element_of_bytes_that_is_no_text_is_refused(data):
    with pytest.raises(InvalidRequest, match="to be a string"):
        elements_from_json(data, [len(data)], "inputs[0]")


def test_base64_that_is_none_is_refused_with_its_place():
    with pytest.raises(InvalidRequest, match=r"inputs\[0\]: data\[1\]: Unable to base64 decode"):
        elements_from_json(["a", {"b64": "?"}], [2], "inputs[0]")


def test_variable_dimension_must_be_an_integer():
    assert checked_shape([2, -1], 6, "x") == (2, 3)
    for shape, elements in (([2, -1], 5), ([0, -1], 0), ([-1, -1], 4)):
        with pytest.raises(InvalidRequest):
            checked_shape(shape, elements, "x")


@pytest.mark.parametrize(
    ("raw", "datatype", "shape", "expected"),
    [
        (bytes(24), "FP32", [-1, 3], (2, 3)),
        (bytes(24), "FP32", [2, -1], (2, 3)),
        (bytes(3), "BOOL", [-1], (3,)),
        (b"", "FP32", [-1, 3], (0, 3)),
        (bytes(8), "BYTES", [-1], (2,)),
        (bytes(20), "FP32", [-1, 3], None),
        (bytes(13), "FP32", [-1, 3], None),
        (bytes(4), "FP32", [-1] * 40, None),
        (bytes(4), "FP99", [-1], None),
    ],
)
def test_bytes_fill_a_variable_dimension(raw, datatype, shape, expected):
    if expected is None:
        with pytest.raises(InvalidRequest):
            from_raw(memoryview(raw), datatype, shape, "x")
        return
    data, full = from_raw(memoryview(raw), datatype, shape, "x")
    assert full == expected
    assert (len(data) if datatype == "BYTES" else data.shape) == (
        2 if datatype == "BYTES" else full
    )


def test_integers_on_both_sides_of_2_to_the_63_stay_exact():
    values = [2**64 - 1, 2**63, 1, 0]
    assert array_from_json(values, "UINT64", [4], "x").tolist() == values
    for wrong in ([2**63, -1], [2**63, 1.5], [2**64, 1]):
        with pytest.raises(InvalidRequest):
            array_from_json(wrong, "UINT64", [2], "x")

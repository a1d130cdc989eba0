"""The file of an inference's tensors: what stands in it, and its numbers by feature."""

import json
import struct

import numpy as np
import pytest

from quadriga.store.blobs.tensor_file import (
    MAX_FEATURES,
    encode_tensors,
    json_length,
    read_features,
)


def floats(name, values, shape=None):
    array = np.array(values, "<f4")
    return name, "FP32", array.shape if shape is None else shape, array.tobytes()


def test_the_file_is_a_v2_request_with_its_bytes_behind_a_line_of_json():
    data = encode_tensors([floats("x", [[1.5, 2.0]]), ("t", "BYTES", (1,), b"\x01\0\0\0\n")])
    line, raw = data[: json_length(data)], data[json_length(data) :]
    assert json.loads(line) == {
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}},
            {"name": "t", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 5}},
        ]
    }  # fmt: skip
    assert raw == struct.pack("<2f", 1.5, 2.0) + b"\x01\0\0\0\n"
    assert json_length(b"no line") == 0


FILES = {
    "a row": ([floats("x", [[1.5, 2.0]])], 1, (), 0, {"x[0]": 1.5, "x[1]": 2.0}),
    "names": ([floats("x", [[1.5, 2.0]])], 1, ("a", "b"), 0, {"a": 1.5, "b": 2.0}),
    "too few names": ([floats("x", [[1.5, 2.0]])], 1, ("a",), 0, {"x[0]": 1.5, "x[1]": 2.0}),
    "a scalar": ([floats("x", 3.0)], 0, (), 5, {"x": 3.0}),
    "the chosen row": ([floats("x", [[1], [2], [3]])], 3, (), 7, {"x": 2.0}),
    "no rows": ([floats("x", [])], 0, (), 7, {}),
    "columns": ([floats("a", [[1]]), floats("b", [[2]])], 1, (), 0, {"a": 1.0, "b": 2.0}),
    "what is not finite": ([floats("x", [np.nan, np.inf, 1])], 0, (), 0, {"x[2]": 1.0}),
    "no texts": ([("t", "BYTES", (1, 1), b"\x01\0\0\0a"), floats("x", [[1]])], 1, ("t", "x"), 0, {"x": 1.0}),
    "truth values": ([("b", "BOOL", (2,), b"\1\0")], 0, (), 0, {"b[0]": 1.0, "b[1]": 0.0}),
    "whole numbers": ([("i", "INT64", (1,), struct.pack("<q", -7))], 0, (), 0, {"i": -7.0}),
}  # fmt: skip


@pytest.mark.parametrize("case", FILES)
def test_features_are_named_and_finite(case):
    tensors, rows, features, choice, expected = FILES[case]
    assert read_features(encode_tensors(tensors, rows=rows, features=features), choice) == expected


def test_features_are_capped_with_a_sign_that_there_are_more():
    data = encode_tensors([floats("x", np.zeros(5000)), floats("y", [1.0])])
    assert list(read_features(data)) == [f"x[{index}]" for index in range(MAX_FEATURES + 1)]
    several = encode_tensors([floats(f"x{index}", [1.0]) for index in range(500)])
    assert len(read_features(several)) == MAX_FEATURES + 1


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\n", b"{}\n", b'{"inputs": 1}\n', b"\xff\xd8\xff\n", b"[" * 100_000,
        b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "parameters": {}}]}\nabcd',
        b'{"inputs": [{"name": "x", "datatype": "OX", "shape": [1], "parameters": {"binary_data_size": 4}}]}\nabcd',
        b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 3}}]}\nabc',
    ],
)  # fmt: skip
def test_another_file_has_no_features(data):
    assert read_features(data) == {}

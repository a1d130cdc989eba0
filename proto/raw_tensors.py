"""Tensors as bytes, row-major and little-endian: of binary REST and of gRPC's raw contents.

A BYTES tensor is each element's length as uint32 and then the element.

Source: Open Inference Protocol, "Raw Tensor Data"; KServe V2, binary tensor data extension.
"""

import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from proto.datatypes import NUMPY_TYPES, check_datatype, checked_shape
from proto.errors import InvalidRequest
from proto.messages import Tensor

_LENGTH = struct.Struct("<I")


def from_raw(
    raw: memoryview, datatype: str, shape: Sequence[int], where: str
) -> tuple[npt.NDArray[Any] | list[Any], tuple[int, ...]]:
    """Read a tensor from its bytes: an array on the same memory, or a list of BYTES; and the shape."""
    if datatype == "BYTES":
        elements = _elements(raw, where)
        return elements, checked_shape(shape, len(elements), where, variable=False)
    check_datatype(datatype, where)
    dtype = NUMPY_TYPES[datatype]
    checked = checked_shape(shape, None, where, variable=False)
    expected = math.prod(checked) * dtype.itemsize
    if expected != raw.nbytes:
        raise InvalidRequest(
            f"{where}: expected {expected} bytes for {datatype} of shape {list(checked)}, got {raw.nbytes}"
        )
    if datatype == "BOOL":  # any byte but 0 and 1 would be no truth value for numpy
        return (np.frombuffer(raw, np.uint8) != 0).reshape(checked), checked
    return np.frombuffer(raw, dtype.newbyteorder("<")).astype(dtype, copy=False).reshape(
        checked
    ), checked


def to_raw(tensor: Tensor) -> bytes:
    """Write a tensor as bytes."""
    if isinstance(tensor.data, np.ndarray):
        array = np.ascontiguousarray(tensor.data)
        return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    parts: list[bytes] = []
    for element in elements_as_bytes(tensor.data):
        parts += (_LENGTH.pack(len(element)), element)
    return b"".join(parts)


def elements_as_bytes(data: Iterable[Any]) -> list[bytes]:
    """Give the elements of a BYTES tensor as bytes: texts in UTF-8, predictions as JSON."""
    return [
        element
        if isinstance(element, bytes)
        else element.encode()
        if isinstance(element, str)
        else msgspec.json.encode(element)
        for element in data
    ]


def _elements(raw: memoryview, where: str) -> list[bytes]:
    elements: list[bytes] = []
    position = 0
    while position < raw.nbytes:
        start = position + _LENGTH.size
        if start > raw.nbytes:
            raise InvalidRequest(
                f"{where}: expected 4 bytes of length before data[{len(elements)}], "
                f"got {raw.nbytes - position}"
            )
        (length,) = _LENGTH.unpack_from(raw, position)
        position = start + length
        if position > raw.nbytes:
            raise InvalidRequest(
                f"{where}: expected {length} bytes in data[{len(elements)}], got {raw.nbytes - start}"
            )
        elements.append(bytes(raw[start:position]))
    return elements

"""V2 datatypes as numpy types, and strict conversion from JSON or bytes to arrays.

No value is changed silently: a fraction for an integer, a value out of range or a text for a number is an error. Bytes
are row-major and little-endian; BYTES have each element's length as uint32 before the element.

Source: Open Inference Protocol, "Tensor Data Types" and "Raw Tensor Data"; KServe V2, binary tensor
data extension.
"""

import math
import struct
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Literal, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.proto.errors import InvalidRequest, unexpected
from quadriga.proto.json_text import base64_bytes, is_base64
from quadriga.proto.messages import Tensor
from quadriga.quoting import quoted

Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "FP32", "FP64", "BYTES",
]  # fmt: skip
NAMES = get_args(Datatype)
NUMPY_TYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(name.lower().replace("fp", "float")) for name in NAMES if name != "BYTES"
}
_RAW_TYPES = {name: dtype.newbyteorder("<") for name, dtype in NUMPY_TYPES.items()}
DATATYPES: dict[np.dtype[Any], str] = {dtype: name for name, dtype in NUMPY_TYPES.items()}

MAX_DIMENSIONS = 32
"""Maximum dimensions of a shape, of which a scalar has none; numpy allows 64, and no model comes near."""

MAX_ELEMENTS = 2**48
"""Maximum product of the sizes that are not 0: numpy refuses even an empty array whose other sizes exceed memory."""

MAX_EMPTY_ELEMENTS = 2**26
"""Maximum of the same product for an empty tensor: a graph that reduces the empty axis returns all other elements."""

_LENGTH = struct.Struct("<I")


def check_datatype(datatype: str, location: str) -> None:
    """Check that a datatype is one of V2."""
    if datatype not in NAMES:
        raise unexpected(location, f"datatype to be one of {', '.join(NAMES)}", datatype, 40)


def checked_shape(shape: Sequence[int], elements: int | None, location: str) -> tuple[int, ...]:
    """Check a request's shape, and return it with the one -1 replaced that it may have.

    `elements` is the number of elements in the data; None if their bytes are counted instead.
    """
    if len(shape) > MAX_DIMENSIONS:
        raise InvalidRequest(
            f"{location}: expected shape to have at most {MAX_DIMENSIONS} dimensions, got {len(shape)}"
        )
    if elements is not None:
        shape = _filled(shape, elements)
    if any(size < 0 for size in shape):
        raise InvalidRequest(
            f"{location}: expected shape without negative sizes but one -1 that the data fill, got {list(shape)}"
        )
    limit = MAX_EMPTY_ELEMENTS if 0 in shape else MAX_ELEMENTS
    if math.prod(size for size in shape if size) > limit:
        raise InvalidRequest(
            f"{location}: expected a shape that memory can hold, got {list(shape)}"
        )
    if elements is not None and math.prod(shape) != elements:
        raise InvalidRequest(
            f"{location}: expected {math.prod(shape)} elements for shape {list(shape)}, got {elements}"
        )
    return tuple(shape)


def _filled(shape: Sequence[int], elements: int) -> Sequence[int]:
    """Return a shape with its -1 replaced by what so many elements make of it, if it has one and they fill it."""
    if len(shape) > MAX_DIMENSIONS or list(shape).count(-1) != 1:
        return shape
    known_size = math.prod(size for size in shape if size != -1)
    if known_size <= 0 or elements % known_size:
        return shape
    return [elements // known_size if size == -1 else size for size in shape]


def elements_from_json(
    data: Any, shape: Sequence[int], location: str
) -> tuple[list[str | bytes], tuple[int, ...]]:
    """Read the elements of a BYTES tensor, nested or flat, as a flat list of texts, and of bytes where sent so."""
    elements: list[str | bytes] = []
    pending = [data]
    while pending:
        item = pending.pop()
        if isinstance(item, list):
            pending.extend(reversed(item))
        elif isinstance(item, str):
            elements.append(item)
        elif is_base64(item):
            try:
                elements.append(base64_bytes(item))
            except InvalidRequest as error:
                raise InvalidRequest(f"{location}: data[{len(elements)}]: {error}") from error
        else:
            form = 'a string, or bytes as {"b64": "<base64>"}'
            raise unexpected(
                location, f"data[{len(elements)}] of a BYTES tensor to be {form}", item
            )
    return elements, checked_shape(shape, len(elements), location)


def array_from_json(
    data: Any, datatype: str, shape: Sequence[int], location: str
) -> npt.NDArray[Any]:
    """Read numbers or truth values, nested or flat, as an array of the declared shape."""
    check_datatype(datatype, location)
    dtype = NUMPY_TYPES[datatype]
    values = data if isinstance(data, list) else [data]
    _check_types(values, datatype, location)
    try:
        parsed = _parsed(values, datatype)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(
            f"{location}: expected data that fit {datatype}, flat or regularly nested: {error}"
        ) from error
    if parsed.size == 0:
        parsed = parsed.astype(dtype)
    elif dtype.kind in "iu" and parsed.dtype.kind == "f":
        # numpy has made floats of all values: the error quotes one as it was sent
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        misfit = next(
            value
            for value in np.asarray(values, dtype=object).ravel().tolist()
            if type(value) is float or not low <= value <= high
        )
        raise unexpected(location, f"data that fit {datatype}", misfit)
    return shaped_array(parsed, datatype, shape, location)


def _parsed(values: list[Any], datatype: str) -> npt.NDArray[Any]:
    """Return numbers or truth values as numpy reads them, without the loss of whole numbers beyond 63 bits."""
    dtype = NUMPY_TYPES[datatype]
    parsed = np.asarray(values)
    if parsed.dtype == object and dtype.kind == "f":  # whole numbers beyond 64 bits
        return parsed.astype(np.float64)
    if datatype == "UINT64" and parsed.dtype.kind == "f":
        # numpy reads a mix of integers below and above 2**63 as floats
        as_objects = np.asarray(values, dtype=object)
        if all(type(value) is int and value >= 0 for value in as_objects.flat):
            return as_objects.astype(dtype)
    return parsed


def shaped_array(
    parsed: npt.NDArray[Any], datatype: str, shape: Sequence[int], location: str
) -> npt.NDArray[Any]:
    """Cast numbers or truth values, nested or flat, to a datatype, and give them the declared shape."""
    array = cast_exactly(parsed, datatype, location)
    full_shape = checked_shape(shape, array.size, location)
    if array.ndim > 1 and array.shape != full_shape:
        raise InvalidRequest(
            f"{location}: expected data nested as shape {list(full_shape)}, got {list(array.shape)}"
        )
    return array.reshape(full_shape)


def _check_types(values: list[Any], datatype: str, location: str) -> None:
    """Check that nested or flat data hold only numbers, or only truth values.

    numpy would widen every element to the longest text among them, and read a truth value among numbers as a number.
    """
    types_so_far: set[type] = set()
    level = values
    while level:
        types = set(map(type, level))
        types_so_far |= types
        if not types <= {int, float, bool, list} or (
            bool in types_so_far and types_so_far & {int, float}
        ):
            unexpected = types - {int, float, list} or {bool}
            misfit = next((value for value in level if type(value) in unexpected), True)
            meant = ": texts and base64 have the datatype BYTES" if isinstance(misfit, str) else ""
            raise InvalidRequest(
                f"{location}: expected data that fit {datatype}, got {quoted(misfit, 60)}{meant}"
            )
        nested = list in types
        level = list(chain.from_iterable(v for v in level if type(v) is list)) if nested else []


def cast_exactly(array: npt.NDArray[Any], datatype: str, location: str) -> npt.NDArray[Any]:
    """Cast an array of any shape to a datatype; raises InvalidRequest if it cannot hold all values."""
    dtype = NUMPY_TYPES[datatype]
    if array.dtype == dtype:
        return array
    allowed = {"b": "b", "i": "biu", "u": "biu", "f": "iuf"}[dtype.kind]
    if array.dtype.kind not in allowed:
        candidates = array.ravel().tolist()
        misfit = next((v for v in candidates if v % 1 or abs(v) >= 2**64), candidates[0])
        raise unexpected(location, f"data that fit {datatype}", misfit)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
        if low < limits.min or high > limits.max:
            raise InvalidRequest(
                f"{location}: expected {datatype} values from {limits.min} to {limits.max}, "
                f"got {low if low < limits.min else high}"
            )
    with np.errstate(over="ignore"):
        cast = array.astype(dtype, copy=False)
    if dtype.kind == "f" and not np.isfinite(cast).all() and np.isfinite(array).all():
        raise InvalidRequest(
            f"{location}: expected {datatype} values up to {np.finfo(dtype).max}, "
            f"got {array.flat[int(np.argmax(np.abs(array)))]}"
        )
    return cast


def from_raw(
    raw: memoryview, datatype: str, shape: Sequence[int], location: str
) -> tuple[npt.NDArray[Any] | list[Any], tuple[int, ...]]:
    """Read a tensor from its bytes: return an array on the same memory, or a list of BYTES; and the shape."""
    if datatype == "BYTES":
        elements = _elements(raw, location)
        return elements, checked_shape(shape, len(elements), location)
    if -1 in shape and datatype in NUMPY_TYPES and not raw.nbytes % NUMPY_TYPES[datatype].itemsize:
        shape = _filled(shape, raw.nbytes // NUMPY_TYPES[datatype].itemsize)
    checked, expected = _raw_layout(datatype, tuple(shape), location)
    if expected != raw.nbytes:
        raise InvalidRequest(
            f"{location}: expected {expected} bytes for {datatype} of shape {list(checked)}, got {raw.nbytes}"
        )
    if datatype == "BOOL":  # numpy has no truth value for bytes other than 0 and 1
        return (np.frombuffer(raw, np.uint8) != 0).reshape(checked), checked
    array = np.frombuffer(raw, _RAW_TYPES[datatype]).astype(NUMPY_TYPES[datatype], copy=False)
    return array.reshape(checked), checked


@lru_cache(maxsize=256)
def _raw_layout(
    datatype: str, shape: tuple[int, ...], location: str
) -> tuple[tuple[int, ...], int]:
    """Check datatype and shape of a tensor that is sent as bytes; return the shape, and the size of the bytes."""
    check_datatype(datatype, location)
    checked = checked_shape(shape, None, location)
    return checked, math.prod(checked) * NUMPY_TYPES[datatype].itemsize


def to_raw(tensor: Tensor) -> bytes:
    """Encode a tensor as bytes."""
    if isinstance(tensor.data, np.ndarray):
        array = tensor.data
        if not (array.dtype.isnative and sys.byteorder == "little"):
            array = array.astype(array.dtype.newbyteorder("<"))
        return array.tobytes()
    chunks: list[bytes] = []
    for element in elements_as_bytes(tensor.data):
        chunks += (_LENGTH.pack(len(element)), element)
    return b"".join(chunks)


def elements_as_bytes(data: Iterable[Any]) -> list[bytes]:
    """Return the elements of a BYTES tensor as bytes: texts in UTF-8, predictions as JSON."""
    return [
        element
        if isinstance(element, bytes)
        else element.encode()
        if isinstance(element, str)
        else msgspec.json.encode(element)
        for element in data
    ]


def _elements(raw: memoryview, location: str) -> list[bytes]:
    elements: list[bytes] = []
    position = 0
    while position < raw.nbytes:
        start = position + _LENGTH.size
        if start > raw.nbytes:
            raise InvalidRequest(
                f"{location}: expected 4 bytes of length before data[{len(elements)}], "
                f"got {raw.nbytes - position}"
            )
        (length,) = _LENGTH.unpack_from(raw, position)
        position = start + length
        if position > raw.nbytes:
            raise InvalidRequest(
                f"{location}: expected {length} bytes in data[{len(elements)}], got {raw.nbytes - start}"
            )
        elements.append(bytes(raw[start:position]))
    return elements

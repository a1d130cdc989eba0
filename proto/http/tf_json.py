"""JSON as TensorFlow Serving reads and writes it: documents, and tensors by rows or columns.

Texts of errors are those of TensorFlow Serving, for clients that look for them. NaN, Infinity and -Infinity are
numbers; bytes behind the document are ignored. Numbers are written with as few digits as possible.

Source: TensorFlow Serving, "RESTful API"; util/json_tensor.cc where the page is silent.
"""

import codecs
import json
import math
import re
from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pybase64

from quadriga.proto.datatypes import MAX_DIMENSIONS, NUMPY_TYPES
from quadriga.proto.errors import InvalidRequest
from quadriga.proto.json_text import amount, base64_bytes, check_amount, is_base64
from quadriga.proto.messages import NotFinite, Tensor, TensorInfo

TYPES = {"FP16": "half", "FP32": "float", "FP64": "double", "BYTES": "string"}
"""TensorFlow's names of the datatypes whose names differ from V2's in lower case."""

_KINDS = {
    bool: "Bool",
    int: "Number",
    float: "Number",
    str: "String",
    list: "Array",
    dict: "Object",
}
MAX_LENIENT_AMOUNT = 1_000_000
"""Amount of JSON, as `quadriga.proto.json_text.amount`, beyond which it has to be JSON as RFC 8259 has it: Python's own
parser takes four times as long."""

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_BLANK = " \t\r\n"


def parse_document(body: bytes) -> dict[str, Any]:
    """Parse the JSON object at the start of a body.

    Raises:
        InvalidRequest: There is none.
        quadriga.proto.errors.TooLarge: As `quadriga.proto.json_text.check_amount`.
    """
    check_amount(body)
    body = body.removeprefix(codecs.BOM_UTF8)
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        if amount(body) > MAX_LENIENT_AMOUNT:
            raise InvalidRequest(f"JSON Parse error: {error}") from error
        document = _parse_leniently(body)
    if not isinstance(document, dict):
        raise InvalidRequest(f"JSON Value: {shorten_value(document)} Is not object")
    return document


def _parse_leniently(body: bytes) -> Any:
    try:
        text = body.decode()
        start = len(text) - len(text.lstrip(_BLANK))
        if start == len(text):
            raise InvalidRequest("JSON Parse error: The document is empty")
        document, end = json.JSONDecoder().raw_decode(text, start)
        if "\\u" in text and _LONE_SURROGATE.search(json.dumps(document, ensure_ascii=False)):
            raise InvalidRequest(
                f"JSON Parse error: The surrogate pair in string is invalid. at offset: {end}"
            )
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"JSON Parse error: Invalid encoding in string. at offset: {error.start}"
        ) from error
    except json.JSONDecodeError as error:
        offset = len(text[: error.pos].encode())
        raise InvalidRequest(f"JSON Parse error: Invalid value. at offset: {offset}") from error
    except ValueError as error:
        raise InvalidRequest(f"JSON Parse error: Number too big. {error}") from error
    except RecursionError as error:
        raise InvalidRequest("JSON Parse error: nested too deeply") from error
    return document


def shorten_value(value: Any) -> str:
    """Encode a value for an error, shortened to 60 characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def tensors_from_rows(instances: Sequence[Any], inputs: Sequence[TensorInfo]) -> list[Tensor]:
    """Read tensors by rows: each instance has one slice of every input along axis 0.

    There must be at least one instance; it is a value of the only input, or an object by input name.
    """
    are_objects = isinstance(instances[0], dict) and not is_base64(instances[0])
    if not are_objects and len(inputs) > 1:
        raise InvalidRequest(
            "instances is a plain list, but expecting list of objects as multiple input tensors "
            "required as per tensorinfo_map"
        )
    if not are_objects:
        for index, instance in enumerate(instances):
            if isinstance(instance, dict) and not is_base64(instance):
                raise InvalidRequest(
                    f"Expecting value/list but got object at item {index} of input list"
                )
        return [_stacked(instances, inputs[0], "")]
    _check_objects(instances, {info.name for info in inputs})
    return [
        _stacked([instance[info.name] for instance in instances], info, info.name)
        for info in inputs
    ]


def _check_objects(instances: Sequence[Any], names: set[str]) -> None:
    """Check that all instances are objects with a value for each input."""
    for index, instance in enumerate(instances):
        if not isinstance(instance, dict) or is_base64(instance):
            raise InvalidRequest(f"Expecting object but got list at item {index} of input list")
        for key in instance:
            if key not in names:
                raise _element(index, key, f"JSON object: does not have named input: {key}")
        if instance.keys() != names:
            raise InvalidRequest(
                f"Failed to process element: {index} of 'instances' list. JSON object: "
                f"{shorten_value(instance)} keys must be equal to: {','.join(sorted(names))}"
            )


def _stacked(items: Sequence[Any], info: TensorInfo, key: str) -> Tensor:
    try:
        return _tensor(list(items), info)
    except InvalidRequest:
        expected: tuple[int, ...] | None = None
        for index, item in enumerate(items):
            try:
                shape = _tensor(item, info).shape
            except InvalidRequest as error:
                raise _element(index, key, str(error)) from error
            expected = shape if expected is None else expected
            if math.prod(shape) != math.prod(expected):
                sizes = f"{math.prod(expected)} but got: {math.prod(shape)}"
                raise _element(index, key, f"Expecting tensor size: {sizes}") from None
            if shape != expected:
                shapes = f"{_bracketed(expected)} but got: {_bracketed(shape)}"
                raise _element(index, key, f"Expecting shape {shapes}") from None
        raise


def _element(index: int, key: str, text: str) -> InvalidRequest:
    position = f"{index} key: {key}" if key else f"{index}"
    return InvalidRequest(
        f"Failed to process element: {position} of 'instances' list. Error: {text:.600}"
    )


def _bracketed(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"


def tensors_from_columns(value: Any, inputs: Sequence[TensorInfo]) -> list[Tensor]:
    """Read tensors by columns: the only input, or an object of all of them by name."""
    if isinstance(value, dict) and not is_base64(value):
        for info in inputs:
            if info.name not in value:
                raise InvalidRequest(f"Missing named input: {info.name} in 'inputs' object.")
        return [_tensor(value[info.name], info) for info in inputs]
    if len(inputs) > 1:
        raise InvalidRequest(
            "inputs is a plain value/list, but expecting an object as multiple input tensors "
            "required as per tensorinfo_map"
        )
    return [_tensor(value, inputs[0])]


def _tensor(value: Any, info: TensorInfo) -> Tensor:
    values, shape = _flattened(value)
    return Tensor(info.name, info.datatype, shape, _typed(values, shape, info.datatype))


def _flattened(value: Any) -> tuple[list[Any], tuple[int, ...]]:
    """Return the values of nested lists and their shape; the first list of each level decides its size."""
    values: list[Any] = [value]
    shape: list[int] = []
    while values and isinstance(values[0], list):
        level, size = len(shape), len(values[0])
        if level == MAX_DIMENSIONS:
            raise InvalidRequest(f"Encountered list at unexpected level: {level}")
        for item in values:
            if not isinstance(item, list):
                raise InvalidRequest(
                    f"JSON Value: {shorten_value(item)} found at incorrect level: {level + 1} in the JSON DOM"
                )
            if len(item) != size:
                raise InvalidRequest(
                    f"Encountered list at unexpected size: {len(item)} at level: {level} "
                    f"expected size: {size}"
                )
        shape.append(size)
        values = list(chain.from_iterable(values))
    if list in set(map(type, values)):
        rank = len(shape)
        raise InvalidRequest(f"Encountered list at unexpected level: {rank} expected < {rank}")
    return values, tuple(shape)


def _typed(
    values: list[Any], shape: tuple[int, ...], datatype: str
) -> npt.NDArray[Any] | list[Any]:
    """Convert values to a datatype; out of a float's range they become an infinity or 0, as in TensorFlow Serving."""
    types = set(map(type, values))
    if datatype == "BYTES":
        for value in values:
            if not isinstance(value, str) and not is_base64(value):
                raise _type_error(value, datatype)
        return [value if isinstance(value, str) else base64_bytes(value) for value in values]
    dtype = NUMPY_TYPES[datatype]
    by_kind: dict[str, set[type]] = {"b": {bool}, "f": {int, float}}
    allowed = by_kind.get(dtype.kind, {int})
    if not types <= allowed:
        raise _type_error(next(value for value in values if type(value) not in allowed), datatype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        for value in (min(values, default=0), max(values, default=0)):
            if not limits.min <= value <= limits.max:
                raise _type_error(value, datatype)
    if dtype.kind != "f":
        return np.array(values, dtype).reshape(shape)
    try:
        wide = np.array(values, np.float64)
    except OverflowError:  # an integer beyond float64
        wide = np.array([_wide(value) for value in values])
    with np.errstate(over="ignore", under="ignore"):
        return wide.astype(dtype).reshape(shape)


def _wide(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _type_error(value: Any, datatype: str) -> InvalidRequest:
    kind = _KINDS.get(type(value), "Null")
    return InvalidRequest(
        f"JSON Value: {shorten_value(value)} Type: {kind} is not of expected type: "
        f"{TYPES.get(datatype, datatype.lower())}"
    )


def row_texts(tensor: Tensor, not_finite: NotFinite = "token") -> list[str]:
    """Encode a tensor as JSON texts, one for each slice along axis 0; a scalar is one text.

    Texts of an output whose name ends in `_bytes` are written as `{"b64": ...}`.

    Raises:
        InvalidRequest: A value is not finite and `not_finite` is `error`.
    """
    texts = _values(tensor, not_finite)
    for axis in range(len(tensor.shape) - 1, 0, -1):
        size = tensor.shape[axis]
        texts = [
            f"[{','.join(texts[number * size : (number + 1) * size])}]"
            for number in range(math.prod(tensor.shape[:axis]))
        ]
    return texts


def tensor_text(tensor: Tensor, not_finite: NotFinite = "token") -> str:
    """Encode a tensor as one JSON text; raises as `row_texts`."""
    texts = row_texts(tensor, not_finite)
    return f"[{','.join(texts)}]" if tensor.shape else texts[0]


def _values(tensor: Tensor, not_finite: NotFinite) -> list[str]:
    data = tensor.data
    if isinstance(data, np.ndarray):
        if data.dtype.kind == "f":
            return float_texts(data.ravel(), not_finite)
        if data.dtype.kind == "b":
            return ["true" if value else "false" for value in data.ravel().tolist()]
        return list(map(str, data.ravel().tolist()))
    if not tensor.name.endswith("_bytes"):
        return [msgspec.json.encode(value).decode() for value in data]
    encoded = [value.encode() if isinstance(value, str) else value for value in data]
    return [f'{{"b64":"{pybase64.b64encode(value).decode()}"}}' for value in encoded]


def float_texts(values: npt.NDArray[np.floating], not_finite: NotFinite = "token") -> list[str]:
    """Encode floats (N,) with six digits if they are exact, else with all; raises as `row_texts`.

    Source: TensorFlow Serving, util/json_tensor.cc, WriteDecimal.
    """
    if values.dtype == np.float16:
        values = values.astype(np.float32)
    numbers = values.tolist()
    texts = [f"{number:g}" for number in numbers]
    again = np.array(list(map(float, texts))).astype(values.dtype)
    digits = ".9g" if values.dtype == np.float32 else ".17g"
    finite = np.isfinite(values)
    for number in np.flatnonzero(again != values).tolist():
        texts[number] = format(numbers[number], digits)
    texts = [text if "." in text or "e" in text else f"{text}.0" for text in texts]
    for number in np.flatnonzero(~finite).tolist():
        texts[number] = _not_finite(numbers[number], not_finite)
    return texts


def _not_finite(value: float, not_finite: NotFinite) -> str:
    if not_finite == "error":
        raise InvalidRequest("expected outputs that JSON can write, got NaN or an infinity")
    return "null" if not_finite == "null" else json.dumps(value)

"""Tensors as TensorFlow Serving writes them in JSON: by rows or whole, numbers as short as they may be."""

import json
import math

import msgspec
import numpy as np
import numpy.typing as npt
import pybase64

from proto.errors import InvalidRequest
from proto.messages import NotFinite, Tensor


def rows(tensor: Tensor, not_finite: NotFinite = "token") -> list[str]:
    """Write a tensor as JSON, one text for each slice along axis 0; of a scalar the one text.

    Texts of an output whose name ends in `_bytes` are written as `{"b64": ...}`.

    Raises:
        InvalidRequest: A value is not finite, and `not_finite` is `error`.
    """
    texts = _values(tensor, not_finite)
    for axis in range(len(tensor.shape) - 1, 0, -1):
        size = tensor.shape[axis]
        texts = [
            f"[{','.join(texts[number * size : (number + 1) * size])}]"
            for number in range(math.prod(tensor.shape[:axis]))
        ]
    return texts


def whole(tensor: Tensor, not_finite: NotFinite = "token") -> str:
    """Write a tensor as JSON; raises as `rows`."""
    texts = rows(tensor, not_finite)
    return f"[{','.join(texts)}]" if tensor.shape else texts[0]


def _values(tensor: Tensor, not_finite: NotFinite) -> list[str]:
    data = tensor.data
    if isinstance(data, np.ndarray):
        if data.dtype.kind == "f":
            return floats(data.ravel(), not_finite)
        if data.dtype.kind == "b":
            return ["true" if value else "false" for value in data.ravel().tolist()]
        return list(map(str, data.ravel().tolist()))
    if not tensor.name.endswith("_bytes"):
        return [msgspec.json.encode(value).decode() for value in data]
    encoded = [value.encode() if isinstance(value, str) else value for value in data]
    return [f'{{"b64":"{pybase64.b64encode(value).decode()}"}}' for value in encoded]


def floats(values: npt.NDArray[np.floating], not_finite: NotFinite = "token") -> list[str]:
    """Write numbers in six digits where those give the same number again, else in all they need.

    Args:
        values: float16, float32 or float64 (N,).
        not_finite: What stands for NaN and infinities.

    Raises:
        InvalidRequest: A value is not finite, and `not_finite` is `error`.

    Source: TensorFlow Serving, util/json_tensor.cc, WriteDecimal.
    """
    if values.dtype == np.float16:
        values = values.astype(np.float32)
    numbers = values.tolist()
    texts = [f"{number:g}" for number in numbers]
    with np.errstate(over="ignore"):
        again = np.array(list(map(float, texts)), np.float64).astype(values.dtype)
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

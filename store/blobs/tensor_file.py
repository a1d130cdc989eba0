"""The tensors of an inference as one file: a line of JSON that describes them, then their bytes.

The file is a V2 request with binary tensor data, whose JSON ends with the first line break. Numbers are little-endian
and row-major; each element of BYTES has its length as uint32 before it.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

MEDIA_TYPE = "application/vnd.quadriga.tensors"
"""Media type of the file in records."""

MAX_FEATURES = 100
"""Maximum features of an inference that are signals."""


class TensorHeader(msgspec.Struct, frozen=True):
    """One tensor of the file."""

    name: str
    datatype: str
    shape: Sequence[int]
    parameters: dict[str, int]
    """`binary_data_size`, the length of its bytes."""


class TensorFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """Line of JSON at the start of a file."""

    inputs: list[TensorHeader]
    rows: int = 0
    """Length of the first axis of every tensor, if that is one of rows; else 0."""
    features: Sequence[str] = ()
    """Name of each feature of a row, in the order of the tensors and their elements; empty if nothing names them."""


_decoder = msgspec.json.Decoder(TensorFile)


def encode_tensors(
    tensors: Sequence[tuple[str, str, Sequence[int], bytes]],
    *,
    rows: int = 0,
    features: Sequence[str] = (),
) -> bytes:
    """Encode tensors, each as name, datatype, shape and bytes."""
    headers = [
        TensorHeader(name, datatype, shape, {"binary_data_size": len(raw)})
        for name, datatype, shape, raw in tensors
    ]
    line = msgspec.json.encode(TensorFile(headers, rows, features))
    return b"".join((line, b"\n", *(raw for _, _, _, raw in tensors)))


def json_length(data: bytes) -> int:
    """Return the length of the JSON of a file, with its line break."""
    return data.find(b"\n") + 1


def read_features(data: bytes, choice: int = 0) -> dict[str, float]:
    """Return the finite numbers of one row by feature, at most one more than `MAX_FEATURES`; none of another file.

    `choice`, modulo the number of rows, is the row. A feature has the name that the file gives, else that of its tensor, with its position if the tensor has several.
    """
    start = json_length(data)
    try:
        file = _decoder.decode(data[:start])
        return _read_numbers(file, data, start, row=choice % max(file.rows, 1))
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError):
        return {}


def _read_numbers(file: TensorFile, data: bytes, start: int, row: int) -> dict[str, float]:
    counts = [math.prod(tensor.shape) // max(file.rows, 1) for tensor in file.inputs]
    is_named = len(file.features) == sum(counts)
    features: dict[str, float] = {}
    position = 0
    for tensor, count in zip(file.inputs, counts, strict=True):
        end = start + tensor.parameters["binary_data_size"]
        if tensor.datatype != "BYTES":
            dtype = np.dtype(tensor.datatype.lower().replace("fp", "float")).newbyteorder("<")
            values = np.frombuffer(data[start:end], dtype)[row * count : (row + 1) * count]
            for index, value in enumerate(values[: MAX_FEATURES + 1].tolist()):
                if len(features) > MAX_FEATURES:
                    return features
                name = tensor.name if count == 1 else f"{tensor.name}[{index}]"
                if math.isfinite(value):
                    features[file.features[position + index] if is_named else name] = float(value)
        start, position = end, position + count
    return features

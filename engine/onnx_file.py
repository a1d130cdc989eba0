"""The header of an ONNX file, read without loading weights and without the onnx package.

Walks the protocol-buffer fields of `ModelProto` over a memory map and skips what it does not need.

Source: onnx/onnx.proto (field numbers), Protocol Buffers "Encoding".
"""

import mmap
from collections.abc import Iterator
from pathlib import Path

import msgspec

_PASSING = {
    "Identity",
    "Cast",
    "Clip",
    "Reshape",
    "Squeeze",
    "Unsqueeze",
    "Flatten",
    "Transpose",
    "QuantizeLinear",
    "DequantizeLinear",
}
"""Operators that leave the kind of value as it is."""
_SAME = {"QLinearSoftmax": "Softmax", "QLinearSigmoid": "Sigmoid"}
"""Operators of quantised graphs, and what they are there for."""
_LFS = b"version https://git-lfs"

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class OnnxFileError(ValueError):
    """The file is no ONNX model, or a file that it refers to is missing."""


class ExternalData(msgspec.Struct, frozen=True):
    """A part of another file that holds one tensor's bytes."""

    location: str
    offset: int
    length: int


class OnnxHeader(msgspec.Struct, frozen=True):
    """What the file says of itself."""

    ir_version: int
    opsets: dict[str, int]
    """Operator-set version by domain; the empty name is ONNX's own."""
    producer: str
    metadata: dict[str, str]
    external_data: tuple[ExternalData, ...]
    producers: dict[str, str] = {}
    """Operator that gives each graph output, looking through those that only move, cast or quantise
    values; Softmax also where a graph writes it out as Exp, ReduceSum and Div."""


def read_header(path: Path) -> OnnxHeader:
    """Read the header of an ONNX file.

    Raises:
        OnnxFileError: It is missing, empty, or no ONNX model.
    """
    try:
        with path.open("rb") as file:
            return _read(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
    except OSError as error:
        raise OnnxFileError(
            f"expected an ONNX file at {path.name}, got: {error.strerror}"
        ) from error
    except (ValueError, IndexError) as error:
        if path.read_bytes()[: len(_LFS)] == _LFS:
            raise OnnxFileError(
                f"expected {path.name} to be an ONNX model, got a pointer of Git LFS: run `git lfs pull`"
            ) from error
        raise OnnxFileError(f"expected {path.name} to be an ONNX model, got: {error}") from error


def check_external_data(path: Path, header: OnnxHeader) -> None:
    """Check that every file with external weights is there and long enough.

    Raises:
        OnnxFileError: One is missing, too short, or outside the model's folder.
    """
    folder = path.parent.resolve()
    for part in header.external_data:
        target = (folder / part.location).resolve()
        if not target.is_relative_to(folder):
            raise OnnxFileError(
                f"expected external data inside the model's folder, got {part.location!r}"
            )
        if not target.is_file():
            raise OnnxFileError(
                f"expected the weights in {part.location!r} beside {path.name}, got no such file: "
                "copy it there, or export again with external_data=False"
            )
        size = target.stat().st_size
        if part.offset + part.length > size:
            raise OnnxFileError(
                f"expected {part.location!r} to hold {part.offset + part.length} bytes, got {size}: "
                "the copy may be incomplete"
            )


def _read(data: memoryview) -> OnnxHeader:
    ir_version = 0
    producer = version = ""
    opsets: dict[str, int] = {}
    metadata: dict[str, str] = {}
    external: list[ExternalData] = []
    producers: dict[str, str] = {}
    for number, value in fields(data):
        if number == 1 and isinstance(value, int):
            ir_version = value
        elif isinstance(value, int):
            continue
        elif number == 2:
            producer = text_of(value)
        elif number == 3:
            version = text_of(value)
        elif number == 7:
            external.extend(_external_data(value))
            producers = _producers(value)
        elif number == 8:
            parts = dict(fields(value))
            opsets[text_of(parts.get(1, b""))] = _int(parts.get(2, 0))
        elif number == 14:
            parts = dict(fields(value))
            metadata[text_of(parts.get(1, b""))] = text_of(parts.get(2, b""))
    if not ir_version or not opsets:
        raise OnnxFileError("a file without IR version and operator set")
    return OnnxHeader(
        ir_version, opsets, f"{producer} {version}".strip(), metadata, tuple(external), producers
    )


def _producers(graph: memoryview) -> dict[str, str]:
    """Find the operator behind each graph output."""
    made_by: dict[str, tuple[str, list[str]]] = {}
    outputs: list[str] = []
    for number, value in fields(graph):
        if isinstance(value, int):
            continue
        if number == 1:
            parts = [(tag, part) for tag, part in fields(value) if tag in (1, 2, 4)]
            operator = next((text_of(part) for tag, part in parts if tag == 4), "")
            sources = [text_of(part) for tag, part in parts if tag == 1]
            made_by.update({text_of(part): (operator, sources) for tag, part in parts if tag == 2})
        elif number == 12:
            outputs.append(next((text_of(part) for tag, part in fields(value) if tag == 1), ""))
    producers = {}
    for name in outputs:
        operator, sources = _behind(name, made_by)
        if operator == "Div" and len(sources) == 2:
            above, below = (_behind(source, made_by) for source in sources)
            if above[0] == "Exp" and below[0] == "ReduceSum" and below[1][:1] == sources[:1]:
                operator = "Softmax"
        producers[name] = _SAME.get(operator, operator)
    return producers


def _behind(name: str, made_by: dict[str, tuple[str, list[str]]]) -> tuple[str, list[str]]:
    """Find the operator, and its inputs, that gives the values of a tensor."""
    operator, sources = made_by.get(name, ("", []))
    passed = {name}
    while operator in _PASSING and sources and sources[0] in made_by:
        if sources[0] in passed:  # a broken file may go round in circles
            break
        passed.add(sources[0])
        operator, sources = made_by[sources[0]]
    return operator, sources


def _external_data(graph: memoryview) -> Iterator[ExternalData]:
    """Find the external tensors among the graph's initializers."""
    for number, value in fields(graph):
        if number != 5 or isinstance(value, int):
            continue
        entries: dict[str, str] = {}
        external = False
        for tensor_number, part in fields(value):
            if tensor_number == 13 and not isinstance(part, int):
                entry = dict(fields(part))
                entries[text_of(entry.get(1, b""))] = text_of(entry.get(2, b""))
            elif tensor_number == 14:
                external = part == 1
        if external:
            yield ExternalData(
                entries.get("location", ""),
                int(entries.get("offset") or 0),
                int(entries.get("length") or 0),
            )


def fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Walk the fields of one message: number with an integer or with the bytes."""
    position, end = 0, len(data)
    while position < end:
        key, position = varint(data, position)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise OnnxFileError("a field numbered 0")
        if kind == _VARINT:
            value, position = varint(data, position)
            yield number, value
            continue
        if kind == _BYTES:
            length, position = varint(data, position)
        else:
            length = {_FIXED64: 8, _FIXED32: 4}.get(kind, -1)
        if length < 0 or position + length > end:
            raise OnnxFileError(f"a field that does not fit at byte {position}")
        yield number, data[position : position + length]
        position += length


def varint(data: memoryview, position: int) -> tuple[int, int]:
    """Read a number of variable length: its value, and the position after it."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise OnnxFileError(f"a number too long at byte {position}")


def text_of(value: int | memoryview | bytes) -> str:
    """Read a text; an integer, where a broken file has one, is an empty one."""
    return "" if isinstance(value, int) else bytes(value).decode("utf-8", "replace")


def _int(value: int | memoryview) -> int:
    return value if isinstance(value, int) else 0

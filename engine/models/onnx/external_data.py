"""External data of an ONNX file: the parts of other files that its tensors name, checked before anything reads them.

Tensors are looked for wherever a file may hold them: in graphs, in the graphs inside of nodes, in functions and in
training. Where a field is there twice, both count, as programs differ in which they take.

Source: onnx/onnx.proto (field numbers), "ONNX External Data".
"""

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import msgspec

from quadriga.engine.models.onnx.protobuf import Message, ProtobufError, read_fields

_MAX_DEPTH = 100
"""Maximum depth of messages; Protocol Buffers in C++ refuse more."""

_LOCATION = re.compile(rb"location")
"""Key of the file's name; an attribute without it is not read, as those of trees have millions of values."""

_EXTERNAL_DATA = 13
_FIELDS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {
        **dict.fromkeys((5, 10), "tensor"),
        **dict.fromkeys((6, 11), "graph"),
        **dict.fromkeys((22, 23), "sparse"),
    },
    "sparse": {1: "tensor", 2: "tensor"},
}
"""Kinds of the messages inside of a message that may hold tensors, by the number of their field."""


class ExternalDataError(ValueError):
    """A file that a model refers to is missing, too short, or not in the model's folder."""


class ExternalData(msgspec.Struct, frozen=True):
    """A part of another file that holds one tensor's bytes."""

    location: str
    offset: int
    length: int


def read_external_data(model: memoryview) -> Iterator[ExternalData]:
    """Yield the parts of other files that the tensors of a serialized model name; raises as `read_fields`."""
    if not _LOCATION.search(model):
        return
    waiting = [("model", model, 1)]
    while waiting:
        kind, message, depth = waiting.pop()
        if kind == "tensor":
            yield from _tensor_files(message)
            continue
        if depth > _MAX_DEPTH:
            raise ProtobufError(f"messages nested more than {_MAX_DEPTH} deep")
        for number, value in read_fields(message):
            inner = _FIELDS[kind].get(number)
            if inner is None or isinstance(value, int):
                continue
            if inner != "attribute" or _LOCATION.search(value):
                waiting.append((inner, value, depth + 1))


def _tensor_files(tensor: memoryview) -> Iterator[ExternalData]:
    values: dict[str, list[str]] = {}
    for entry in Message(tensor).messages(_EXTERNAL_DATA):
        for key, value in product(entry.texts(1), entry.texts(2) or ("",)):
            values.setdefault(key, []).append(value)
    offset, length = (int(values.get(key, ["0"])[-1] or 0) for key in ("offset", "length"))
    for location in values.get("location", ()):
        yield ExternalData(location, offset, length)


def check_external_data(path: Path, external_data: tuple[ExternalData, ...]) -> None:
    """Check that every file with external weights is in the folder of the model's file, and long enough.

    Raises:
        ExternalDataError: A file is missing, too short, or elsewhere, also behind a link.
    """
    folder = path.parent.resolve()
    for external in external_data:
        name, end = external.location, external.offset + external.length
        try:
            target = (folder / name).resolve()
            is_file = target.is_file()
        except (
            OSError,
            ValueError,
            RuntimeError,
        ) as error:  # no name of a file, or a circle of links
            raise ExternalDataError(f"expected the name of a file, got {name!r:.200}") from error
        if not target.is_relative_to(folder):
            raise ExternalDataError(
                f"expected external data inside the model's folder, got {name!r:.200}"
            )
        if not is_file:
            raise ExternalDataError(
                f"expected the weights in {name!r:.200} beside {path.name}, got no such file: "
                "copy it there, or export again with external_data=False"
            )
        if min(external.offset, external.length) < 0:
            raise ExternalDataError(f"expected {name!r:.200} from byte 0 on, got {external.offset}")
        if end > (size := target.stat().st_size):
            raise ExternalDataError(
                f"expected {name!r:.200} to hold {end} bytes, got {size}: the copy may be incomplete"
            )

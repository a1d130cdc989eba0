"""Read an ONNX file without its weights and without the onnx package, and add an output to a serialized model.

The file is memory-mapped and unneeded fields are skipped. Nodes inside control flow are not read.

Source: onnx/onnx.proto (field numbers), Protocol Buffers "Encoding" (messages are merged by joining bytes).
"""

import mmap
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path

import msgspec

Shape = tuple[int, ...]
"""Sizes of a tensor's axes, -1 where one is open."""

_VALUE_PRESERVING = {
    *("Identity", "Cast", "Clip", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose"),
    *("QuantizeLinear", "DequantizeLinear"),
}
"""Operators that keep the kind of a value, such as a probability."""
_UNQUANTISED = {"QLinearSoftmax": "Softmax", "QLinearSigmoid": "Sigmoid"}
"""Operators of quantised graphs, and the operators that they stand for."""
_LFS_POINTER = b"version https://git-lfs"
_INT64 = 7
_EXTERNAL = 1
_MAX_CONSTANTS = 8
"""Maximum number of integers of a constant that are read; longer ones are weights."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_GRAPH, _NODE, _OUTPUT = 7, 1, 12


class OnnxFileError(ValueError):
    """The file is not an ONNX model, or a file that it refers to is missing."""


class ExternalData(msgspec.Struct, frozen=True):
    """A part of another file that holds one tensor's bytes."""

    location: str
    offset: int
    length: int


class OnnxHeader(msgspec.Struct, frozen=True):
    """Facts about the file as a whole."""

    ir_version: int
    opsets: dict[str, int]
    """Operator-set version by domain; the empty name is ONNX's own."""
    producer: str
    metadata: dict[str, str]
    external_data: tuple[ExternalData, ...]
    producers: dict[str, str]
    """Operator that gives each graph output, looking through those that only move, cast or quantise
    values; Softmax also where a graph writes it out as Exp, ReduceSum and Div."""


class Node(msgspec.Struct, frozen=True):
    """One operator."""

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    numbers: dict[str, tuple[int, ...]]
    """Attributes that are integers, or lists of integers."""


_NO_NODE = Node("", (), (), {})


class Graph(msgspec.Struct, frozen=True):
    """Nodes, inputs, outputs and weights of a graph."""

    nodes: tuple[Node, ...]
    """Nodes, in an order in which they can run."""
    inputs: dict[str, Shape]
    """Inputs without the weights, which older files list among them."""
    outputs: dict[str, Shape]
    weights: dict[str, Shape]
    constants: dict[str, tuple[int, ...]]
    """Integer constants, where they are few; longer ones are weights."""


def read_onnx(path: Path) -> tuple[OnnxHeader, Graph]:
    """Read an ONNX file.

    Raises:
        OnnxFileError: The file is missing, empty, or not an ONNX model.
    """
    try:
        with path.open("rb") as file:
            return _parse(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
    except OSError as error:
        reason = error.strerror
        raise OnnxFileError(f"expected an ONNX file at {path.name}, got: {reason}") from error
    except (ValueError, IndexError) as error:
        if path.read_bytes()[: len(_LFS_POINTER)] == _LFS_POINTER:
            raise OnnxFileError(
                f"expected {path.name} to be an ONNX model, got a pointer of Git LFS: run `git lfs pull`"
            ) from error
        raise OnnxFileError(f"expected {path.name} to be an ONNX model, got: {error}") from error


def check_external_data(path: Path, header: OnnxHeader) -> None:
    """Check that every file with external weights is there and long enough.

    Raises:
        OnnxFileError: A file is missing, too short, or outside the model's folder.
    """
    folder = path.parent.resolve()
    for external in header.external_data:
        target = (folder / external.location).resolve()
        name, end = external.location, external.offset + external.length
        if not target.is_relative_to(folder):
            raise OnnxFileError(f"expected external data inside the model's folder, got {name!r}")
        if not target.is_file():
            raise OnnxFileError(
                f"expected the weights in {name!r} beside {path.name}, got no such file: "
                "copy it there, or export again with external_data=False"
            )
        if end > (size := target.stat().st_size):
            raise OnnxFileError(
                f"expected {name!r} to hold {end} bytes, got {size}: the copy may be incomplete"
            )


def add_output(model: bytes, tensor: str, average: str = "") -> bytes:
    """Return a serialized model whose outputs include one more tensor of its graph.

    If `average` is given, it names the output, which is the mean of a map (N, C, H, W) over its positions.
    """
    nodes = b""
    if average:
        named = _encode_bytes(1, tensor.encode()), _encode_bytes(2, average.encode())
        nodes = _encode_bytes(_NODE, b"".join([*named, _encode_bytes(4, b"GlobalAveragePool")]))
    output = _encode_bytes(_OUTPUT, _encode_bytes(1, (average or tensor).encode()))
    return model + _encode_bytes(_GRAPH, nodes + output)


class _Message:
    """The fields of one message by number: integers, and the bytes of longer values."""

    def __init__(self, data: memoryview) -> None:
        self._fields: dict[int, list[int | memoryview]] = {}
        for number, value in _read_fields(data):
            self._fields.setdefault(number, []).append(value)

    def parts(self, number: int) -> list[memoryview]:
        return [value for value in self._fields.get(number, ()) if not isinstance(value, int)]

    def messages(self, *path: int) -> list["_Message"]:
        messages = [self]
        for number in path:
            messages = [
                _Message(payload) for message in messages for payload in message.parts(number)
            ]
        return messages

    def texts(self, number: int) -> tuple[str, ...]:
        return tuple(bytes(payload).decode("utf-8", "replace") for payload in self.parts(number))

    def text(self, number: int) -> str:
        return "".join(self.texts(number)[-1:])

    def integers(self, number: int) -> tuple[int, ...]:
        """Return the integers of a field, which may be packed."""
        integers: list[int] = []
        for value in self._fields.get(number, ()):
            if isinstance(value, int):
                integers.append(value)
                continue
            position = 0
            while position < len(value):
                integer, position = _read_varint(value, position)
                integers.append(integer)
        return tuple(integers)

    def integer(self, number: int, default: int = 0) -> int:
        return next(iter(self.integers(number)), default)

    def pairs(self, number: int) -> dict[str, str]:
        """Return messages of a key and a value as a dictionary."""
        return {entry.text(1): entry.text(2) for entry in self.messages(number)}


def _parse(data: memoryview) -> tuple[OnnxHeader, Graph]:
    model = _Message(data)
    opsets = {opset.text(1): opset.integer(2) for opset in model.messages(8)}
    if not model.integer(1) or not opsets:
        raise OnnxFileError("a file without IR version and operator set")
    graphs = model.messages(_GRAPH)
    tensors = [tensor for graph in graphs for tensor in graph.messages(5)]
    sparse = [tensor for graph in graphs for tensor in graph.messages(15, 1)]
    weights = {tensor.text(8): tensor.integers(1) for tensor in (*tensors, *sparse)}
    constants = {tensor.text(8): _small_constant(tensor) for tensor in tensors}
    nodes: list[Node] = []
    for node in (node for graph in graphs for node in graph.messages(_NODE)):
        numbers = {
            attribute.text(1): _attribute_integers(attribute) for attribute in node.messages(5)
        }
        numbers = {name: values for name, values in numbers.items() if values}
        nodes.append(Node(node.text(4), node.texts(1), node.texts(2), numbers))
        if nodes[-1].operator == "Constant" and nodes[-1].outputs:
            constants[nodes[-1].outputs[0]] = next(iter(numbers.values()), ())
    inputs = dict(_name_and_shape(value) for graph in graphs for value in graph.messages(11))
    graph = Graph(
        nodes=_sort_nodes(nodes),
        inputs={name: shape for name, shape in inputs.items() if name not in weights},
        outputs=dict(
            _name_and_shape(value) for graph in graphs for value in graph.messages(_OUTPUT)
        ),
        weights=weights,
        constants=constants,
    )
    defaults = {"location": "", "offset": "0", "length": "0"}
    external = [
        defaults | tensor.pairs(13) for tensor in tensors if tensor.integer(14) == _EXTERNAL
    ]
    header = OnnxHeader(
        ir_version=model.integer(1),
        opsets=opsets,
        producer=f"{model.text(2)} {model.text(3)}".strip(),
        metadata=model.pairs(14),
        external_data=tuple(
            ExternalData(entry["location"], int(entry["offset"] or 0), int(entry["length"] or 0))
            for entry in external
        ),
        producers=_producers(graph),
    )
    return header, graph


def _attribute_integers(attribute: _Message) -> tuple[int, ...]:
    """Return the integers of an attribute: one, several, or those of a tensor."""
    tensors = [number for tensor in attribute.messages(5) for number in _small_constant(tensor)]
    return (*attribute.integers(3), *tensors, *attribute.integers(8))


def _small_constant(tensor: _Message) -> tuple[int, ...]:
    """Return the values of a weight or constant if they are a few integers, else none."""
    if tensor.integer(2) != _INT64:
        return ()
    raw = [payload for payload in tensor.parts(9) if len(payload) <= 8 * _MAX_CONSTANTS]
    words = [
        payload[offset : offset + 8] for payload in raw for offset in range(0, len(payload), 8)
    ]
    values = (*tensor.integers(7), *(int.from_bytes(word, "little") for word in words))
    return values if len(values) <= _MAX_CONSTANTS else ()


def _name_and_shape(value: _Message) -> tuple[str, Shape]:
    """Return name and shape of an input or output; no axes if the file does not have them."""
    sizes = [axis.integer(1, -1) for axis in value.messages(2, 1, 2, 1)]
    return value.text(1), tuple(size if size < 2**63 else -1 for size in sizes)


def _sort_nodes(nodes: list[Node]) -> tuple[Node, ...]:
    """Sort nodes so that each comes after those that it reads; some exporters write another order."""
    makers = {name: number for number, node in enumerate(nodes) for name in node.outputs if name}
    if len(makers) < sum(name != "" for node in nodes for name in node.outputs):
        raise OnnxFileError("a tensor that two nodes give")
    reads = [[makers[name] for name in node.inputs if name in makers] for node in nodes]
    if all(number > source for number, sources in enumerate(reads) for source in sources):
        return tuple(nodes)
    order = TopologicalSorter(dict(enumerate(reads))).static_order()
    return tuple(nodes[number] for number in order)


def _producers(graph: Graph) -> dict[str, str]:
    made_by = {name: node for node in graph.nodes for name in node.outputs if name}
    producers = {}
    for name in graph.outputs:
        node = _source_node(name, made_by)
        operator = node.operator
        if operator == "Div" and len(node.inputs) == 2:
            numerator, denominator = (_source_node(name_, made_by) for name_ in node.inputs)
            pattern = numerator.operator, denominator.operator, denominator.inputs[:1]
            operator = "Softmax" if pattern == ("Exp", "ReduceSum", node.inputs[:1]) else operator
        producers[name] = _UNQUANTISED.get(operator, operator)
    return producers


def _source_node(name: str, made_by: Mapping[str, Node]) -> Node:
    """Return the node that computes a tensor, looking through operators that preserve values."""
    node = made_by.get(name, _NO_NODE)
    while node.operator in _VALUE_PRESERVING and node.inputs and node.inputs[0] in made_by:
        node = made_by[node.inputs[0]]
    return node


def _read_fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the fields of one message: number with an integer or with the bytes."""
    position, end = 0, len(data)
    while position < end:
        key, position = _read_varint(data, position)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise OnnxFileError("a field numbered 0")
        if kind == _VARINT:
            value, position = _read_varint(data, position)
            yield number, value
            continue
        if kind == _BYTES:
            length, position = _read_varint(data, position)
        else:
            length = {_FIXED64: 8, _FIXED32: 4}.get(kind, -1)
        if length < 0 or position + length > end:
            raise OnnxFileError(f"a field that does not fit at byte {position}")
        yield number, data[position : position + length]
        position += length


def _read_varint(data: memoryview, position: int) -> tuple[int, int]:
    """Read an integer of variable length; return its value and the position after it."""
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


def _encode_bytes(number: int, payload: bytes) -> bytes:
    return bytes([*_encode_varint(number << 3 | _BYTES), *_encode_varint(len(payload))]) + payload


def _encode_varint(value: int) -> list[int]:
    groups = []
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return [*groups, value]

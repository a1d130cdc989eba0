"""The graph of an ONNX file: its nodes and shapes, and a further output put to a serialized model.

Weights are passed over. Nodes within control flow are not looked into.

Source: onnx/onnx.proto (field numbers), Protocol Buffers "Encoding" (messages are merged by joining bytes).
"""

import mmap
from graphlib import TopologicalSorter
from pathlib import Path

import msgspec

from engine.onnx_file import OnnxFileError, fields, text_of, varint

Shape = tuple[int, ...]
"""Sizes of a tensor's axes, -1 where one is open."""

_BYTES = 2
_GRAPH = 7
_NODE, _INITIALIZER, _SPARSE, _INPUT, _OUTPUT = 1, 5, 15, 11, 12
_INT64 = 7
_FEW = 8
"""Whole numbers of a constant that are read; longer ones are weights."""


class Node(msgspec.Struct, frozen=True):
    """One operator."""

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    numbers: dict[str, tuple[int, ...]]
    """Attributes that are whole numbers, or lists of them."""


class Graph(msgspec.Struct, frozen=True):
    """What a graph computes."""

    nodes: tuple[Node, ...]
    """In an order in which they can run."""
    inputs: dict[str, Shape]
    """Without the weights, which older files have among them."""
    outputs: dict[str, Shape]
    weights: dict[str, Shape]
    constants: dict[str, tuple[int, ...]]
    """Whole numbers that are the same for every image, where they are few."""


def read_graph(path: Path) -> Graph:
    """Read the graph of an ONNX file.

    Raises:
        OnnxFileError: It is missing, or no ONNX model.
    """
    nodes: list[Node] = []
    inputs: dict[str, Shape] = {}
    outputs: dict[str, Shape] = {}
    weights: dict[str, Shape] = {}
    constants: dict[str, tuple[int, ...]] = {}
    try:
        with path.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        for part in _parts(data, _GRAPH):
            for number, value in fields(part):
                if isinstance(value, int):
                    continue
                if number == _NODE:
                    nodes.append(_node(value, constants))
                elif number == _INITIALIZER:
                    name, shape, values = _tensor(value)
                    weights[name] = shape
                    constants[name] = values
                elif number == _SPARSE:
                    weights.update(_tensor(each)[:2] for each in _parts(value, 1))
                elif number in (_INPUT, _OUTPUT):
                    (inputs if number == _INPUT else outputs).update([_value(value)])
        nodes = _ordered(nodes)
    except (OSError, ValueError, IndexError) as error:
        raise OnnxFileError(f"expected {path.name} to be an ONNX model, got: {error}") from error
    inputs = {name: shape for name, shape in inputs.items() if name not in weights}
    return Graph(tuple(nodes), inputs, outputs, weights, constants)


def with_output(model: bytes, tensor: str, average: str = "") -> bytes:
    """Make a tensor of the graph one of its outputs.

    Args:
        model: The serialized model.
        tensor: Name of the tensor.
        average: Name of the output, where it is to be the average of a map (N, C, H, W) over its places.
    """
    added = b""
    if average:
        named = _bytes(1, tensor.encode()), _bytes(2, average.encode())
        added = _bytes(_NODE, b"".join([*named, _bytes(4, b"GlobalAveragePool")]))
    output = _bytes(_OUTPUT, _bytes(1, (average or tensor).encode()))
    return model + _bytes(_GRAPH, added + output)


def _ordered(nodes: list[Node]) -> list[Node]:
    """Sort nodes so that each stands after those that it reads; some exporters write them otherwise.

    Raises:
        ValueError: They go round in circles.
    """
    makers = {name: number for number, node in enumerate(nodes) for name in node.outputs}
    reads = [[makers[name] for name in node.inputs if name in makers] for node in nodes]
    if all(number > each for number, before in enumerate(reads) for each in before):
        return nodes
    order = TopologicalSorter(dict(enumerate(reads))).static_order()
    return [nodes[number] for number in order]


def _node(data: memoryview, constants: dict[str, tuple[int, ...]]) -> Node:
    """Read a node; the numbers of a node that is a constant are put into `constants`."""
    inputs: list[str] = []
    outputs: list[str] = []
    operator = ""
    numbers: dict[str, Shape] = {}
    for number, value in fields(data):
        if isinstance(value, int):
            continue
        if number == 1:
            inputs.append(text_of(value))
        elif number == 2:
            outputs.append(text_of(value))
        elif number == 4:
            operator = text_of(value)
        elif number == 5:
            name, given = _attribute(value)
            if given:
                numbers[name] = given
    if operator == "Constant" and outputs:
        constants[outputs[0]] = next(iter(numbers.values()), ())
    return Node(operator, tuple(inputs), tuple(outputs), numbers)


def _attribute(data: memoryview) -> tuple[str, Shape]:
    name = ""
    numbers: list[int] = []
    for number, value in fields(data):
        if number == 1:
            name = text_of(value)
        elif number == 5 and not isinstance(value, int):
            numbers.extend(_tensor(value)[2])
        elif number in (3, 8):
            numbers.extend(_integers(value))
    return name, tuple(numbers)


def _tensor(data: memoryview) -> tuple[str, Shape, tuple[int, ...]]:
    """Read name, shape and, where they are a few whole numbers, the values of a weight or constant."""
    name, kind = "", 0
    shape: list[int] = []
    values: list[int] = []
    for number, value in fields(data):
        if number == 1:
            shape.extend(_integers(value))
        elif number == 2 and isinstance(value, int):
            kind = value
        elif number == 7:
            values.extend(_integers(value))
        elif number == 8:
            name = text_of(value)
        elif number == 9 and not isinstance(value, int) and len(value) <= 8 * _FEW:
            values.extend(
                int.from_bytes(value[at : at + 8], "little") for at in range(0, len(value), 8)
            )
    return name, tuple(shape), tuple(values) if kind == _INT64 and len(values) <= _FEW else ()


def _value(data: memoryview) -> tuple[str, Shape]:
    """Read name and shape of an input or output; no axes where the file does not say them."""
    name = ""
    shape: list[int] = []
    for number, value in fields(data):
        if number == 1:
            name = text_of(value)
        elif number == 2 and not isinstance(value, int):
            for tensor in _parts(value, 1):
                for sizes in _parts(tensor, 2):
                    shape = [_size(axis) for axis in _parts(sizes, 1)]
    return name, tuple(shape)


def _size(axis: memoryview) -> int:
    given = [value for number, value in fields(axis) if number == 1 and isinstance(value, int)]
    return given[0] if given and given[0] < 2**63 else -1


def _parts(data: memoryview, wanted: int) -> list[memoryview]:
    """Give the messages of one number within a message."""
    return [
        value for number, value in fields(data) if number == wanted and not isinstance(value, int)
    ]


def _integers(value: int | memoryview) -> list[int]:
    """Read one integer, or several that are packed."""
    if isinstance(value, int):
        return [value]
    found: list[int] = []
    position = 0
    while position < len(value):
        number, position = varint(value, position)
        found.append(number)
    return found


def _bytes(number: int, payload: bytes) -> bytes:
    """Write a field that holds bytes."""
    return bytes(_written(number << 3 | _BYTES)) + bytes(_written(len(payload))) + payload


def _written(value: int) -> list[int]:
    found = []
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return [*found, value]

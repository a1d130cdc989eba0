"""Read an ONNX file without its weights and without the onnx package, and add an output to a serialized model.

The file is memory-mapped and unneeded fields are skipped. Nodes inside control flow are not read.

External data, the parts of other files that tensors name, is checked before anything reads it. Such tensors are looked for
wherever a file may hold them: in graphs, in the graphs inside of nodes, in functions and in training. Where a field is there
twice, both count, as programs differ in which they take.

Source: onnx/onnx.proto (field numbers), "ONNX External Data"; Protocol Buffers, "Encoding" (messages are merged by joining
bytes).
"""

import mmap
import re
from collections.abc import Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from itertools import product
from pathlib import Path

import msgspec
import numpy as np

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_KEY = (1 << 32) - 1
"""Largest key of a field; readers in C++ drop the bits above and see another field."""


class LoadError(RuntimeError):
    """The model cannot be loaded; the message says why and what to do. All that reads its files raises it."""


class ProtobufError(ValueError):
    """The bytes are not a message."""


class Message:
    """The fields of one message by number: integers, and the bytes of longer values."""

    def __init__(self, data: memoryview) -> None:
        self._fields: dict[int, list[int | memoryview]] = {}
        for number, value in read_fields(data):
            self._fields.setdefault(number, []).append(value)

    def parts(self, number: int) -> list[memoryview]:
        """Return the bytes of a field, once for each time that it is there."""
        return [value for value in self._fields.get(number, ()) if not isinstance(value, int)]

    def messages(self, *path: int) -> list["Message"]:
        """Return the messages of a field, or of fields within each other."""
        messages = [self]
        for number in path:
            messages = [
                Message(payload) for message in messages for payload in message.parts(number)
            ]
        return messages

    def texts(self, number: int) -> tuple[str, ...]:
        """Return the texts of a field."""
        return tuple(bytes(payload).decode("utf-8", "replace") for payload in self.parts(number))

    def text(self, number: int) -> str:
        """Return the last text of a field; empty if there is none."""
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
        """Return the first integer of a field, or the default."""
        return next(iter(self.integers(number)), default)

    def pairs(self, number: int) -> dict[str, str]:
        """Return messages of a key and a value as a dictionary."""
        return {entry.text(1): entry.text(2) for entry in self.messages(number)}


def read_fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the fields of one message: number with an integer or with the bytes."""
    position, end = 0, len(data)
    while position < end:
        key, position = _read_varint(data, position)
        number, kind = key >> 3, key & 7
        if number == 0 or key > _MAX_KEY:
            raise ProtobufError(f"a field numbered {number}")
        if kind == _VARINT:
            value, position = _read_varint(data, position)
            yield number, value
            continue
        if kind == _BYTES:
            length, position = _read_varint(data, position)
        else:
            length = {_FIXED64: 8, _FIXED32: 4}.get(kind, -1)
        if length < 0 or position + length > end:
            raise ProtobufError(f"a field that does not fit at byte {position}")
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
            raise ProtobufError(f"a number too long at byte {position}")


def encode_bytes(number: int, payload: bytes) -> bytes:
    """Return a field of bytes, a text or a message."""
    return bytes([*_encode_varint(number << 3 | _BYTES), *_encode_varint(len(payload))]) + payload


def _encode_varint(value: int) -> list[int]:
    groups = []
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return [*groups, value]


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
        LoadError: A file is missing, too short, or elsewhere, also behind a link.
    """
    folder = path.parent.resolve()
    for external in external_data:
        name, end = external.location, external.offset + external.length
        try:
            target = (folder / name).resolve()
            is_file = target.is_file()
        except (OSError, ValueError, RuntimeError) as error:
            # no name of a file, or a circle of links
            raise LoadError(f"expected the name of a file, got {name!r:.200}") from error
        if not target.is_relative_to(folder):
            raise LoadError(f"expected external data inside the model's folder, got {name!r:.200}")
        if not is_file:
            raise LoadError(
                f"expected the weights in {name!r:.200} beside {path.name}, got no such file: "
                "copy it there, or export again with external_data=False"
            )
        if min(external.offset, external.length) < 0:
            raise LoadError(f"expected {name!r:.200} from byte 0 on, got {external.offset}")
        if end > (size := target.stat().st_size):
            raise LoadError(
                f"expected {name!r:.200} to hold {end} bytes, got {size}: the copy may be incomplete"
            )


Shape = tuple[int, ...]
"""Sizes of a tensor's axes, -1 where one is open."""

_VALUE_PRESERVING = {
    *("Identity", "Cast", "Clip", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose"),
    *("QuantizeLinear", "DequantizeLinear", "Dropout", "Slice", "Split", "Gather", "Expand"),
    *("ReduceMean", "ReduceMax", "GlobalAveragePool", "GlobalMaxPool", "ZipMap"),
}
"""Operators that keep the kind of a value, such as a probability."""
_EQUIVALENT = {
    "QLinearSoftmax": "Softmax",
    "QLinearSigmoid": "Sigmoid",
    "HardSigmoid": "Sigmoid",
    "Hardmax": "Softmax",
}
"""Operators, and those whose range they have."""
_NEUTRAL = {"Mul": 1, "Div": 1, "Pow": 1, "Add": 0, "Sub": 0}
"""Constant with which an operator returns its other input, its first, unchanged."""
_ARITHMETIC = {
    *(*_NEUTRAL, "Sum", "Mean", "Min", "Max", "Concat", "Where"),
    *("Neg", "Abs", "Relu", "Sqrt"),
}
_ACTIVATIONS = frozenset({"Softmax", "Sigmoid"})
_UNBOUNDED = frozenset(
    {
        *("Loop", "Scan", "If", "SequenceMap", "Range", "ConstantOfShape", "Expand", "Tile", "Pad"),
        *("Resize", "Upsample", "OneHot", "NonMaxSuppression"),
    }
)
"""Operators whose work may follow from values, and not from shapes alone."""
_KNOWN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml"})
_CLASS_LABELS = ("classlabels_strings", "classlabels_int64s", "classlabels_ints")
"""Attributes of operators of ai.onnx.ml that list the classes."""
_LFS_POINTER = b"version https://git-lfs"
_NUMBERS = {1: "<f4", 7: "<i8", 10: "<f2", 11: "<f8"}
"""Types of the constants that are read, by `TensorProto.DataType`."""
_MAX_CONSTANTS = 8
"""Maximum number of values of a constant that are read; longer ones are weights."""

_MAX_ATTRIBUTE_BYTES = 1 << 16
"""Maximum size of an attribute that is read; larger ones are weights or the nodes of trees."""

_GRAPH, _NODE, _OUTPUT = 7, 1, 12


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
    values; Softmax also where a graph writes it out as Exp, ReduceSum and Div. `Mul of Sigmoid` is arithmetic on
    nothing but activations and constants."""
    class_labels: tuple[tuple[str, ...], ...] = ()
    """Class labels that operators of ai.onnx.ml name, those of ZipMap first; whole numbers as texts."""
    operators: frozenset[str] = frozenset()
    """Names of all operators outside of control flow."""

    @property
    def is_bounded(self) -> bool:
        """Whether the work of the graph follows from the shapes of its inputs; operators of others may do anything."""
        if not self.operators or not self.opsets.keys() <= _KNOWN_DOMAINS:
            return False
        return not self.operators & _UNBOUNDED


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
    constants: dict[str, tuple[float, ...]]
    """Numbers of a constant, where they are few; longer ones are weights."""


def read_onnx(path: Path) -> tuple[OnnxHeader, Graph]:
    """Read an ONNX file.

    Raises:
        LoadError: The file is missing, empty, or not an ONNX model.
    """
    try:
        with path.open("rb") as file:
            return _parse(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
    except OSError as error:
        reason = error.strerror
        raise LoadError(f"expected an ONNX file at {path.name}, got: {reason}") from error
    except (ValueError, IndexError) as error:
        if path.read_bytes()[: len(_LFS_POINTER)] == _LFS_POINTER:
            raise LoadError(
                f"expected {path.name} to be an ONNX model, got a pointer of Git LFS: run `git lfs pull`"
            ) from error
        raise LoadError(f"expected {path.name} to be an ONNX model, got: {error}") from error


def add_output(model: bytes, tensor: str, average: str = "") -> bytes:
    """Return a serialized model whose outputs include one more tensor of its graph.

    If `average` is given, it names the output, which is the mean of a map (N, C, H, W) over its positions.
    """
    nodes = b""
    if average:
        named = encode_bytes(1, tensor.encode()), encode_bytes(2, average.encode())
        nodes = encode_bytes(_NODE, b"".join([*named, encode_bytes(4, b"GlobalAveragePool")]))
    output = encode_bytes(_OUTPUT, encode_bytes(1, (average or tensor).encode()))
    return model + encode_bytes(_GRAPH, nodes + output)


def _parse(data: memoryview) -> tuple[OnnxHeader, Graph]:
    model = Message(data)
    opsets = {opset.text(1): opset.integer(2) for opset in model.messages(8)}
    if not model.integer(1) or not opsets:
        raise ProtobufError("a file without IR version and operator set")
    graphs = model.messages(_GRAPH)
    tensors = [tensor for graph in graphs for tensor in graph.messages(5)]
    sparse = [tensor for graph in graphs for tensor in graph.messages(15, 1)]
    weights = {tensor.text(8): tensor.integers(1) for tensor in (*tensors, *sparse)}
    constants = {tensor.text(8): _small_constant(tensor) for tensor in tensors}
    nodes: list[Node] = []
    class_labels: list[tuple[str, ...]] = []
    for message in (node for graph in graphs for node in graph.messages(_NODE)):
        attributes = [
            Message(part) for part in message.parts(5) if len(part) <= _MAX_ATTRIBUTE_BYTES
        ]
        node = _node(message, attributes)
        nodes.append(node)
        if node.operator == "Constant" and node.outputs:
            values = (_constant(attribute) for attribute in attributes)
            constants[node.outputs[0]] = next(filter(None, values), ())
        if labels := _class_labels(attributes):
            class_labels.insert(0 if node.operator == "ZipMap" else len(class_labels), labels)
    inputs, outputs = _names_and_shapes(graphs, 11), _names_and_shapes(graphs, _OUTPUT)
    graph = Graph(
        nodes=_sort_nodes(nodes),
        inputs={name: shape for name, shape in inputs.items() if name not in weights},
        outputs=outputs,
        weights=weights,
        constants=constants,
    )
    header = OnnxHeader(
        ir_version=model.integer(1),
        opsets=opsets,
        producer=f"{model.text(2)} {model.text(3)}".strip(),
        metadata=model.pairs(14),
        external_data=tuple(read_external_data(data)),
        producers=_producers(graph),
        class_labels=tuple(dict.fromkeys(class_labels)),
        operators=frozenset(node.operator for node in nodes),
    )
    return header, graph


def _node(message: Message, attributes: Sequence[Message]) -> Node:
    numbers = {part.text(1): (*part.integers(3), *part.integers(8)) for part in attributes}
    return Node(
        message.text(4),
        message.texts(1),
        message.texts(2),
        {name: values for name, values in numbers.items() if values},
    )


def _class_labels(attributes: Sequence[Message]) -> tuple[str, ...]:
    """Return the class labels among the attributes of a node; none if it has none."""
    for attribute in attributes:
        if attribute.text(1) in _CLASS_LABELS:
            numbers = attribute.integers(8)
            signed = (number - (1 << 64) if number >> 63 else number for number in numbers)
            return attribute.texts(9) or tuple(map(str, signed))
    return ()


def _constant(attribute: Message) -> tuple[float, ...]:
    """Return the numbers of an attribute: those of a tensor, one, or several."""
    tensors = [number for tensor in attribute.messages(5) for number in _small_constant(tensor)]
    floats = np.frombuffer(b"".join(attribute.parts(2) + attribute.parts(7)), "<f4").tolist()
    return (*tensors, *attribute.integers(3), *attribute.integers(8), *floats)


def _small_constant(tensor: Message) -> tuple[float, ...]:
    """Return the values of a weight or constant if they are a few numbers, else none."""
    kind = _NUMBERS.get(tensor.integer(2))
    parts = [*tensor.parts(9), *tensor.parts(4), *tensor.parts(10)]  # raw, float, double
    if kind is None or sum(map(len, parts)) > 8 * _MAX_CONSTANTS:
        return ()
    signed = (number - (number >> 63 << 64) for number in tensor.integers(7))
    values = (*signed, *np.frombuffer(b"".join(parts), kind).tolist())
    return values if len(values) <= _MAX_CONSTANTS else ()


def _names_and_shapes(graphs: Sequence[Message], field: int) -> dict[str, Shape]:
    """Return names and shapes of inputs or outputs, which are in a field; no axes if the file does not have them."""
    shapes = {}
    for value in (value for graph in graphs for value in graph.messages(field)):
        sizes = [axis.integer(1, -1) for axis in value.messages(2, 1, 2, 1)]
        shapes[value.text(1)] = tuple(size if size < 2**63 else -1 for size in sizes)
    return shapes


def _sort_nodes(nodes: list[Node]) -> tuple[Node, ...]:
    """Sort nodes so that each comes after those that it reads; some exporters write another order."""
    makers = {name: number for number, node in enumerate(nodes) for name in node.outputs if name}
    if len(makers) < sum(name != "" for node in nodes for name in node.outputs):
        raise ProtobufError("a tensor that two nodes give")
    reads = [[makers[name] for name in node.inputs if name in makers] for node in nodes]
    if all(number > source for number, sources in enumerate(reads) for source in sources):
        return tuple(nodes)
    order = TopologicalSorter(dict(enumerate(reads))).static_order()
    return tuple(nodes[number] for number in order)


def _producers(graph: Graph) -> dict[str, str]:
    made_by = {name: node for node in graph.nodes for name in node.outputs if name}
    return {name: _producer(name, graph, made_by) for name in graph.outputs}


def _producer(name: str, graph: Graph, made_by: Mapping[str, Node]) -> str:
    """Return the operator that computes a tensor, and the activations that arithmetic has changed, if nothing else."""
    pending, seen, behind = [_source_node(name, graph, made_by)], {name}, set[str]()
    varying, operator = made_by.keys() | graph.inputs.keys(), _operator(pending[0], graph, made_by)
    while operator in _ARITHMETIC and pending:
        for tensor in {*pending.pop().inputs} - seen:
            seen.add(tensor)
            source = _source_node(tensor, graph, made_by)
            if tensor in graph.inputs or varying & {*source.inputs}:
                kind = _operator(source, graph, made_by)
                pending += [source] * (kind in _ARITHMETIC)
                behind |= {kind} - _ARITHMETIC
    is_activated = behind and behind <= _ACTIVATIONS
    return f"{operator} of {' and '.join(sorted(behind))}" if is_activated else operator


def _operator(node: Node, graph: Graph, made_by: Mapping[str, Node]) -> str:
    """Return the operator of a node, or the activation that several nodes write out."""
    sources = [_source_node(name, graph, made_by) for name in node.inputs]
    operators = [_EQUIVALENT.get(source.operator, source.operator) for source in sources]
    if node.operator == "Concat" and set(operators) in ({"Sigmoid"}, {"Softmax"}):
        return operators[0]
    if operators == ["Exp", "ReduceSum"] and sources[1].inputs[:1] == node.inputs[:1]:
        return "Softmax" if node.operator == "Div" else node.operator
    if node.operator == "Exp" and operators == ["LogSoftmax"]:
        return "Softmax"
    has_constant = node.operator == "Div" and operators[:1] in ([""], ["Constant"])
    if (has_constant or node.operator == "Reciprocal") and operators[-1:] == ["Add"]:
        terms = {_source_node(name, graph, made_by).operator for name in sources[-1].inputs}
        if terms - {"", "Constant"} == {"Exp"}:
            return "Sigmoid"  # 1 / (1 + exp(-x))
    return _EQUIVALENT.get(node.operator, node.operator)


def _source_node(name: str, graph: Graph, made_by: Mapping[str, Node]) -> Node:
    """Return the node that computes a tensor, looking through operators that preserve values."""
    node = made_by.get(name, _NO_NODE)
    while (source := _kept(node, graph.constants)) in made_by:
        node = made_by[source]
    return node


def _kept(node: Node, constants: Mapping[str, tuple[float, ...]]) -> str:
    """Return the input whose values a node returns; empty for none."""
    if node.operator in _VALUE_PRESERVING:
        return next(iter(node.inputs), "")
    orders = (node.inputs, node.inputs[::-1])[: 2 if node.operator in ("Mul", "Add") else 1]
    for inputs in orders if node.operator in _NEUTRAL else ():
        if {*constants.get(inputs[-1], ())} == {_NEUTRAL[node.operator]}:
            return inputs[0]
    return ""

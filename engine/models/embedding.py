"""A model's own embedding of an image: a tensor of its graph, computed in the same run as the predictions.

The graph is loaded with one more output, which only `quadriga.engine.models.image_graph` sees. If a graph has no
embedding, or onnxruntime refuses the additional output, the model works without one.
"""

import difflib
import hashlib
import logging
from collections import defaultdict
from collections.abc import Sequence
from functools import partial, reduce
from math import prod
from operator import or_
from pathlib import Path

import msgspec

from quadriga.engine.models.image_graph import MAX_EMBEDDING_LENGTH, Vector
from quadriga.engine.models.onnx_file import Graph, LoadError, Node, read_onnx
from quadriga.engine.models.recognition.model_toml import ModelToml
from quadriga.engine.models.runners.session import Runner, Session
from quadriga.proto.messages import TensorInfo
from quadriga.tasks import full_name

AVERAGE = "average of the map"
TOKENS = "mean of the tokens"

_POOLS = {"GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceMax", "ReduceSum"}
_RESHAPES = {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose"}
_MOVES = {"Identity", "Cast", "Dropout", *_RESHAPES}
_VALUE_PRESERVING = {
    *_MOVES,
    *("Softmax", "LogSoftmax", "Sigmoid", "Relu", "Clip", "BatchNormalization", "AveragePool"),
    *("Gather", "QuantizeLinear", "DequantizeLinear", *_POOLS),
}
"""Operators that may come between a classifier's last linear layer and its output."""
_SCALES = {"Add", "Sub", "Mul", "Div"}
"""Further ones, if all but one of their inputs are weights."""
_STRIDES = {"Conv", "ConvInteger", "FusedConv", "MaxPool", "AveragePool", "LpPool"}
_ENLARGES = {"Resize", "Upsample", "ConvTranspose", "DepthToSpace", "MaxUnpool", "GridSample"}
_OTHER_AXES = {"Gather", "MatMul", "Gemm", "Einsum", *_RESHAPES}
"""Operators whose output is a map only if a later operator takes it as one."""
_ENDS = {"Shape", "Size", "RoiAlign", "NonMaxSuppression", "TopK", "ArgMax", "NonZero", *_POOLS}
"""Operators after which a tensor has no relation to positions in the image."""
_LAYERS = {
    *("Conv", "ConvInteger", "FusedConv", "ConvTranspose", "Gemm", "MatMul", "Einsum"),
    *("DynamicQuantizeLinear", *_ENDS),
}
"""Operators whose input is not a final output yet."""


class EmbeddingSource(msgspec.Struct, frozen=True):
    """Tensor, or other model, that provides a model's embedding."""

    tensor: str | None = None
    """Name of the tensor; None if there is no embedding, or if it is another model's."""
    pooling: str = ""
    """How it becomes one vector per image: `AVERAGE`, `TOKENS`, or empty if it is one already."""
    reason: str = ""
    """Reason for this tensor, or for having none."""
    length: int | None = None
    """Length of the embedding; None while unknown."""
    output: str = ""
    """Name of the session's output with the embedding."""
    other_model: str = msgspec.field(default="", name="other")
    """Name of the model whose embedding is used instead."""

    def space_id(self, sha256: str) -> str | None:
        """Return the embedding-space id, 16 hexadecimal digits: only embeddings of one space are compared."""
        if self.tensor is None:
            return None
        return hashlib.sha256(f"{sha256} {self.tensor}".encode()).hexdigest()[:16]


class _TensorPosition(msgspec.Struct, frozen=True):
    """Position of a tensor in the graph, relative to the image."""

    area: int
    """Pixels of the image per position of the tensor, as far as strides tell."""
    is_map: bool
    """Whether its axes are (N, C, H, W)."""
    depth: int
    """Number of convolutions before it."""
    enlarged: bool
    """Whether it depends on a feature map that was enlarged."""


class EmbeddingFinder:
    """Searches a graph for the embedding of the image in the input named `image`."""

    def __init__(self, graph: Graph, image: str) -> None:
        self._graph = graph
        self._producers = {name: node for node in graph.nodes for name in node.outputs if name}
        self._positions = _tensor_positions(graph, image)

    def find(self) -> EmbeddingSource:
        """Find the embedding."""
        none = EmbeddingSource(
            reason="no last linear layer, no feature map and no tokens were found"
        )
        return self._last_layer_input() or self._deepest_map() or self._tokens() or none

    def by_name(self, tensor: str) -> EmbeddingSource | None:
        """Return the source for a tensor's name; None if no node computes it."""
        if tensor not in self._producers:
            return None
        return EmbeddingSource(tensor, AVERAGE if self._is_map(tensor) else "", "model.toml")

    def names(self) -> list[str]:
        """Return the names of all tensors that nodes compute."""
        return list(self._producers)

    def _last_layer_input(self) -> EmbeddingSource | None:
        """Find the input of the last linear layer, going back from an output with one row per image."""
        for output, shape in self._graph.outputs.items():
            node = self._deciding_node(output)
            has_rows = len(shape) == 2 or shape[2:] == (1, 1)
            if not has_rows or node is None:
                continue
            if self._is_norm(node):
                return EmbeddingSource(output, "", "the output, as it is normalised features")
            if not self._is_linear(node):
                continue
            source = read = node.inputs[0]
            while source in self._producers and self._producers[source].operator in _MOVES:
                source = self._producers[source].inputs[0]
            if source not in self._producers:  # a linear layer on pixels
                continue
            reason = f"what the last linear layer reads, before {output!r}"
            if self._is_map(source):
                return EmbeddingSource(source, AVERAGE, reason)
            return EmbeddingSource(read, "", reason)
        return None

    def _is_map(self, tensor: str) -> bool:
        return tensor in self._positions and self._positions[tensor].is_map

    def _deciding_node(self, name: str, *, sums: bool = True) -> Node | None:
        """Find the first node, going back from an output, that does more than pass on values.

        With `sums`, it may also be the first of two linear layers whose outputs are added.
        """
        while (node := self._producers.get(name)) is not None and node.inputs:
            if node.operator in _SCALES:
                changing = [operand for operand in node.inputs if not self._is_weight(operand)]
                if sums and node.operator == "Add" and len(changing) == 2:
                    heads = [self._deciding_node(operand, sums=False) for operand in changing]
                    linear = [
                        operand
                        for operand in heads
                        if operand is not None and self._is_linear(operand)
                    ]
                    return linear[0] if len(linear) == 2 else node
                if len(changing) != 1:
                    return node
                (name,) = changing
            elif node.operator in _VALUE_PRESERVING:
                name = node.inputs[0]
            else:
                return node
        return None

    def _is_norm(self, node: Node) -> bool:
        """Check whether a node is a layer normalisation, or the division within one that is written out."""
        if node.operator != "Div":
            return node.operator == "LayerNormalization"
        divisor = self._producers.get(node.inputs[1])
        return divisor is not None and divisor.operator == "Sqrt"

    def _is_weight(self, name: str) -> bool:
        """Check whether a tensor is the same for every image."""
        if name in self._graph.weights:
            return True
        node = self._producers.get(name)
        if node is None or node.operator == "Constant":
            return node is not None
        is_same_values = node.operator in _MOVES or node.operator == "DequantizeLinear"
        return is_same_values and self._is_weight(node.inputs[0])

    def _is_linear(self, node: Node) -> bool:
        """Check whether a node is a linear layer: a product with weights, or a 1 x 1 convolution."""
        if node.operator == "Conv":
            return self._is_projection(node)
        return node.operator in ("Gemm", "MatMul") and self._is_weight(node.inputs[1])

    def _is_projection(self, node: Node) -> bool:
        """Check whether a node is a 1 x 1 convolution."""
        if node.operator != "Conv":
            return False
        weights = self._graph.weights.get(node.inputs[1], ())
        return prod(node.numbers.get("kernel_shape") or weights[2:] or (0,)) == 1

    def _deepest_map(self) -> EmbeddingSource | None:
        """Find the last of the maps of largest stride that lies on every path through the others."""
        answers = self._answers()
        maps: dict[int, list[str]] = {}
        for name, position in self._positions.items():
            if position.is_map and position.depth > 1 and not position.enlarged:
                maps.setdefault(position.area, []).append(name)
        for area, region in sorted(maps.items(), reverse=True):
            shared = [name for name in _on_every_path(self._graph, region) if name not in answers]
            if not shared:
                continue
            name = shared[-1]
            while self._is_projection(node := self._producers[name]) and node.inputs[0] in region:
                name = node.inputs[0]  # a projection adds nothing
            return EmbeddingSource(
                name, AVERAGE, f"the deepest feature map, of stride {area**0.5:.3g}"
            )
        return None

    def _answers(self) -> set[str]:
        """Return the tensors after which there is no layer and no pooling."""
        answers = set(self._graph.outputs)
        for node in reversed(self._graph.nodes):
            if not answers.isdisjoint(node.outputs) and node.operator not in _LAYERS:
                answers.update(node.inputs)
        return answers

    def _tokens(self) -> EmbeddingSource | None:
        """Find the last tensor on every path to an output, in the later half of the graph, that a layer reads."""
        layer_inputs = {node.inputs[0] for node in self._graph.nodes if self._is_linear(node)}
        names = [name for name in self._positions if name in self._producers]
        later = set(names[len(names) // 2 :])
        for name in reversed(_on_every_path(self._graph, names)):
            if name in layer_inputs and name in later and not self._positions[name].enlarged:
                return EmbeddingSource(name, TOKENS, "the tokens that all answers come from")
        return None


def _on_every_path(graph: Graph, names: Sequence[str]) -> list[str]:
    """Return the tensors that depend on, or lead to, each of the others, in their order."""
    bits = {name: 1 << number for number, name in enumerate(names)}
    above: defaultdict[str, int] = defaultdict(int)
    below: defaultdict[str, int] = defaultdict(int)
    for node in graph.nodes:
        mask = reduce(or_, (above[name] for name in node.inputs), 0)
        above.update({name: mask | bits.get(name, 0) for name in node.outputs})
    for node in reversed(graph.nodes):
        mask = reduce(or_, (below[name] | bits.get(name, 0) for name in node.outputs), 0)
        below.update({name: below[name] | mask for name in node.inputs})
    return [name for name in names if (above[name] | below[name]).bit_count() == len(names)]


def _tensor_positions(graph: Graph, image: str) -> dict[str, _TensorPosition]:
    """Follow the image through the graph: return the positions of the tensors that depend on it."""
    spatial = (node for node in graph.nodes if node.operator in _STRIDES | _ENLARGES)
    taken_as_map = {node.inputs[0] for node in spatial if node.inputs}
    positions = {image: _TensorPosition(1, is_map=image in taken_as_map, depth=0, enlarged=False)}
    for node in graph.nodes:
        position = _output_position(node, positions, graph)
        if position is None:
            continue
        for name in node.outputs:
            becomes_map = name in taken_as_map and not position.is_map
            positions[name] = (
                msgspec.structs.replace(position, is_map=True) if becomes_map else position
            )
    return positions


def _output_position(
    node: Node, places: dict[str, _TensorPosition], graph: Graph
) -> _TensorPosition | None:
    """Return the position of a node's outputs; None if they have no relation to positions in the image."""
    positions = [places[name] for name in node.inputs if name in places]
    if not positions or node.operator in _ENDS:
        return None
    depth = max(position.depth for position in positions)
    enlarged = any(position.enlarged for position in positions)
    if node.operator in _STRIDES | _ENLARGES:
        first = places.get(node.inputs[0])
        if first is None:  # a convolution whose weights come from the image
            return None
        if node.operator in _ENLARGES:
            return _TensorPosition(
                first.area, is_map=True, depth=depth, enlarged=enlarged or depth > 0
            )
        area = first.area * prod(node.numbers.get("strides", ()))
        depth += "Conv" in node.operator
        return _TensorPosition(area, is_map=True, depth=depth, enlarged=enlarged)
    if node.operator in _OTHER_AXES:
        return _TensorPosition(positions[0].area, is_map=False, depth=depth, enlarged=enlarged)
    leading = next((position for position in positions if position.is_map), positions[0])
    area = leading.area
    if node.operator == "Slice" and len(node.inputs) == 5:
        steps = graph.constants.get(node.inputs[4], ())
        area *= prod(abs(step) for step in steps if isinstance(step, int))
    return _TensorPosition(area, leading.is_map, depth, enlarged)


NONE = "none"
OTHER_MODEL_PREFIX = "model:"
"""Prefix in model.toml of the name of another model whose embedding is used instead."""

_AVERAGE_OUTPUT = "quadriga_embedding"
"""Name of the added output that is the average of a map."""
_MAX_MODEL_BYTES = 2**31 - 2**16
"""Maximum size of a model that is loaded from memory, a limit of protocol buffers."""
_POOLINGS = {2: "", 3: TOKENS, 4: AVERAGE}
"""Pooling by the number of dimensions of the tensor."""
_FLOATS = ("FP32", "FP16", "FP64")

_log = logging.getLogger("quadriga.models")


def load_session(
    name: str, path: Path, toml: ModelToml, *, runner: Runner
) -> tuple[Session, EmbeddingSource]:
    """Load a graph as model.toml says, with its embedding if it has one; `name` is for the log."""
    header, graph = read_onnx(path)
    runtime = toml.runtime
    session = partial(
        Session,
        path,
        runtime.providers,
        runtime.intra_op_threads,
        header=header,
        runner=runner,
        provider_fallback=runtime.provider_fallback,
    )
    source = _find_embedding(graph, toml)
    if source.tensor is None:
        return session(), source
    if path.stat().st_size > _MAX_MODEL_BYTES:
        reason = f"expected a file of at most {_MAX_MODEL_BYTES} bytes beside its external weights"
        return session(), EmbeddingSource(reason=reason)
    average = _AVERAGE_OUTPUT if source.pooling == AVERAGE else ""
    output = average or source.tensor
    try:
        if output in graph.outputs:
            loaded = session()
        else:
            loaded = session(added_output=(source.tensor, average))
        outputs = [*loaded.outputs, loaded.hidden_output]
        info = next(tensor for tensor in outputs if tensor and tensor.name == output)
        reason = _unfit_reason(info, (4,) if average else (2, 3, 4))
    except LoadError as error:
        reason = f"onnxruntime refuses it as an output: {error}"
    if reason:
        unmodified = session()  # raises if the file itself is at fault
        _log.warning("%s: no embedding of the tensor %r: %s", name, source.tensor, reason)
        return unmodified, EmbeddingSource(reason=f"tensor {source.tensor!r}: {reason}")
    pooling = _POOLINGS.get(len(info.shape), source.pooling)
    return loaded, EmbeddingSource(
        source.tensor, pooling, source.reason, length=_length(info), output=output
    )


def encoder_embedding(toml: ModelToml, tensor: str) -> EmbeddingSource:
    """Return the embedding of a model whose image tokens (N, T, D) are an output already."""
    written = toml.monitor.embedding
    if written is None:
        return EmbeddingSource(tensor, TOKENS, "the image encoder's output")
    if other_source := _parse_other_source(written):
        return other_source
    raise LoadError(
        f"expected [monitor] embedding in model.toml to be {NONE!r} or '{OTHER_MODEL_PREFIX}<name>' for an image-text "
        f"model, got {written!r}"
    )


def with_length(embedding: EmbeddingSource, vector: Vector | None) -> EmbeddingSource:
    """Complete a source with the length of an image's embedding; None means that it is no embedding."""
    if embedding.tensor is None:
        return embedding
    if vector is None:
        expected = f"expected one vector of at most {MAX_EMBEDDING_LENGTH} finite numbers per image"
        return EmbeddingSource(reason=f"tensor {embedding.tensor!r}: {expected}")
    return msgspec.structs.replace(embedding, length=len(vector))


def _parse_other_source(written: str) -> EmbeddingSource | None:
    """Return the source in model.toml if it is not a tensor: no embedding, or that of another model."""
    if written == NONE:
        return EmbeddingSource(reason="model.toml")
    other_model = written.removeprefix(OTHER_MODEL_PREFIX)
    return (
        None
        if other_model == written
        else EmbeddingSource(reason="model.toml", other_model=other_model)
    )


def _find_embedding(graph: Graph, toml: ModelToml) -> EmbeddingSource:
    written = toml.monitor.embedding
    if written is not None and (other_source := _parse_other_source(written)):
        return other_source
    ranks = {name: len(shape) for name, shape in graph.inputs.items()}
    images = [name for name in ranks if ranks[name] == (4 if 4 in ranks.values() else 3)]
    image = toml.input.get("name") or (images[0] if len(images) == 1 else "")
    finder = EmbeddingFinder(graph, image)
    if written is not None:
        source = finder.by_name(written)
        if source is None:
            near = difflib.get_close_matches(written, finder.names(), 3, 0)
            raise LoadError(
                f"expected [monitor] embedding in model.toml to be {NONE!r}, '{OTHER_MODEL_PREFIX}<name>' or a tensor of "
                f"the graph, such as {', '.join(map(repr, near))}, got {written!r}"
            )
        return source
    if toml.task is not None and full_name(toml.task) == "TENSOR":
        return EmbeddingSource(reason="the model takes tensors")
    if not image:
        return EmbeddingSource(
            reason="expected one input of 3 or 4 dimensions, which takes the image"
        )
    return finder.find()


def _unfit_reason(info: TensorInfo, ranks: Sequence[int]) -> str:
    """Return why an output cannot be an embedding; empty if it can."""
    if info.datatype not in _FLOATS:
        return f"expected floating numbers, got {info.datatype}"
    if info.shape and len(info.shape) not in ranks:  # empty where onnxruntime does not know it
        return f"expected {' or '.join(map(str, ranks))} dimensions, got {list(info.shape)}"
    if (_length(info) or 1) > MAX_EMBEDDING_LENGTH:
        return f"expected at most {MAX_EMBEDDING_LENGTH} numbers, got {_length(info)}"
    return ""


def _length(info: TensorInfo) -> int | None:
    size = {2: 1, 3: 2, 4: 1}.get(len(info.shape))
    return None if size is None or info.shape[size] < 1 else info.shape[size]

"""The features that a graph makes of an image before it decides: which tensor they are, by fixed rules.

A classifier's are what its last linear layer reads. Those of other graphs are their deepest feature map: the
one of largest stride that all later ones come from, before maps are enlarged again and before heads part.
Without such a map, as in transformers, they are the tokens that all answers come from.
"""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from functools import reduce
from math import prod
from operator import or_

import msgspec

from quadriga.engine.onnx_file import Graph, Node

AVERAGE = "average of the map"
TOKENS = "mean of the tokens"

_POOLS = {"GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceMax", "ReduceSum"}
_RESHAPES = {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose"}
_MOVES = {"Identity", "Cast", "Dropout", *_RESHAPES}
_PASSING = {
    *_MOVES,
    *("Softmax", "LogSoftmax", "Sigmoid", "Relu", "Clip", "BatchNormalization", "AveragePool"),
    *("Gather", "QuantizeLinear", "DequantizeLinear", *_POOLS),
}
"""What may stand between a classifier's last linear layer and its output."""
_SCALES = {"Add", "Sub", "Mul", "Div"}
"""These too, where all but one of their inputs are weights."""
_STRIDES = {"Conv", "ConvInteger", "FusedConv", "MaxPool", "AveragePool", "LpPool"}
_ENLARGES = {"Resize", "Upsample", "ConvTranspose", "DepthToSpace", "MaxUnpool", "GridSample"}
_OTHER_AXES = {"Gather", "MatMul", "Gemm", "Einsum", *_RESHAPES}
"""Operators whose output is a map only where a later one takes it as such."""
_ENDS = {"Shape", "Size", "RoiAlign", "NonMaxSuppression", "TopK", "ArgMax", "NonZero", *_POOLS}
"""Operators after which a tensor says nothing of places in the image."""
_LAYERS = {
    *("Conv", "ConvInteger", "FusedConv", "ConvTranspose", "Gemm", "MatMul", "Einsum"),
    *("DynamicQuantizeLinear", *_ENDS),
}
"""Operators whose input is no answer yet."""
_BACKWARDS = 2**62
"""Above it are the steps of a slice that are negative, as they are written."""


class Embedding(msgspec.Struct, frozen=True):
    """Where a model's embedding comes from."""

    tensor: str | None = None
    """None where there is none, or where it is another model's."""
    pooling: str = ""
    """What makes one vector an image of it: `AVERAGE`, `TOKENS`, or empty where it is one."""
    reason: str = ""
    """Why it is this tensor, or why there is none."""
    length: int | None = None
    """Numbers in it; None where nothing has shown it yet."""
    output: str = ""
    """Name of the session's output that has it."""
    other: str = ""
    """Name of the model whose embedding is taken instead."""

    def space_id(self, sha256: str) -> str | None:
        """Name the embedding in 16 hexadecimal digits: those of other spaces are not compared with it."""
        if self.tensor is None:
            return None
        return hashlib.sha256(f"{sha256} {self.tensor}".encode()).hexdigest()[:16]


class _Place(msgspec.Struct, frozen=True):
    """Where in the graph a tensor stands, seen from the image."""

    area: int
    """Pixels of the image to one of its places, as far as strides tell."""
    is_map: bool
    """Whether its axes are (N, C, H, W)."""
    depth: int
    """Convolutions before it."""
    enlarged: bool
    """Whether it comes from a feature map that was made larger."""


class EmbeddingFinder:
    """A graph, and what its tensors are of the image, which the input named `image` takes."""

    def __init__(self, graph: Graph, image: str) -> None:
        self._graph = graph
        self._made_by = {name: node for node in graph.nodes for name in node.outputs if name}
        self._places = _places(graph, image)

    def find(self) -> Embedding:
        """Find the embedding."""
        none = Embedding(reason="no last linear layer, no feature map and no tokens were found")
        return self._read_by_last_layer() or self._deepest_map() or self._tokens() or none

    def by_name(self, tensor: str) -> Embedding | None:
        """Take the tensor of a name; None where no node makes one."""
        if tensor not in self._made_by:
            return None
        return Embedding(tensor, AVERAGE if self._is_map(tensor) else "", "model.toml")

    def names(self) -> list[str]:
        """Give the names of all tensors that nodes make."""
        return list(self._made_by)

    def _read_by_last_layer(self) -> Embedding | None:
        """Find what the last linear layer reads, going back from an output of one row an image."""
        for output, shape in self._graph.outputs.items():
            node = self._behind(output)
            row = len(shape) == 2 or shape[2:] == (1, 1)
            if not row or node is None:
                continue
            if self._is_norm(node):
                return Embedding(output, "", "the output, as it is normalised features")
            if not self._is_linear(node):
                continue
            source = read = node.inputs[0]
            while source in self._made_by and self._made_by[source].operator in _MOVES:
                source = self._made_by[source].inputs[0]
            if source not in self._made_by:  # a linear layer on pixels
                continue
            reason = f"what the last linear layer reads, before {output!r}"
            if self._is_map(source):
                return Embedding(source, AVERAGE, reason)
            return Embedding(read, "", reason)
        return None

    def _is_map(self, tensor: str) -> bool:
        return tensor in self._places and self._places[tensor].is_map

    def _behind(self, name: str, *, sums: bool = True) -> Node | None:
        """Find the first node, going back from an output, that does more than pass values on.

        Where `sums` is set, that is the first of two linear layers whose answers are added.
        """
        while (node := self._made_by.get(name)) is not None and node.inputs:
            if node.operator in _SCALES:
                changing = [each for each in node.inputs if not self._is_weight(each)]
                if sums and node.operator == "Add" and len(changing) == 2:
                    heads = [self._behind(each, sums=False) for each in changing]
                    linear = [each for each in heads if each is not None and self._is_linear(each)]
                    return linear[0] if len(linear) == 2 else node
                if len(changing) != 1:
                    return node
                (name,) = changing
            elif node.operator in _PASSING:
                name = node.inputs[0]
            else:
                return node
        return None

    def _is_norm(self, node: Node) -> bool:
        """Tell whether a node is the norm of a layer, or the division within one that is written out."""
        if node.operator != "Div":
            return node.operator == "LayerNormalization"
        divisor = self._made_by.get(node.inputs[1])
        return divisor is not None and divisor.operator == "Sqrt"

    def _is_weight(self, name: str) -> bool:
        """Tell whether a tensor is the same for every image."""
        if name in self._graph.weights:
            return True
        node = self._made_by.get(name)
        if node is None or node.operator == "Constant":
            return node is not None
        kept = node.operator in _MOVES or node.operator == "DequantizeLinear"
        return kept and self._is_weight(node.inputs[0])

    def _is_linear(self, node: Node) -> bool:
        """Tell whether a node is a linear layer: a product with weights, or a convolution of single places."""
        if node.operator == "Conv":
            return self._is_projection(node)
        return node.operator in ("Gemm", "MatMul") and self._is_weight(node.inputs[1])

    def _is_projection(self, node: Node) -> bool:
        """Tell whether a node is a convolution that reads single places."""
        if node.operator != "Conv":
            return False
        weights = self._graph.weights.get(node.inputs[1], ())
        return prod(node.numbers.get("kernel_shape") or weights[2:] or (0,)) == 1

    def _deepest_map(self) -> Embedding | None:
        """Find the last of the maps of largest stride that the others come from or lead to."""
        answers = self._answers()
        maps: dict[int, list[str]] = {}
        for name, place in self._places.items():
            if place.is_map and place.depth > 1 and not place.enlarged:
                maps.setdefault(place.area, []).append(name)
        for area, region in sorted(maps.items(), reverse=True):
            passed = [name for name in _on_every_way(self._graph, region) if name not in answers]
            if not passed:
                continue
            name = passed[-1]
            while self._is_projection(node := self._made_by[name]) and node.inputs[0] in region:
                name = node.inputs[0]  # a projection adds nothing
            return Embedding(name, AVERAGE, f"the deepest feature map, of stride {area**0.5:.3g}")
        return None

    def _answers(self) -> set[str]:
        """Find the tensors that no layer and no pooling stands behind."""
        found = set(self._graph.outputs)
        for node in reversed(self._graph.nodes):
            if not found.isdisjoint(node.outputs) and node.operator not in _LAYERS:
                found.update(node.inputs)
        return found

    def _tokens(self) -> Embedding | None:
        """Find the last tensor on every way to an answer, in the graph's later half, that a layer reads."""
        read = {node.inputs[0] for node in self._graph.nodes if self._is_linear(node)}
        names = [name for name in self._places if name in self._made_by]
        later = set(names[len(names) // 2 :])
        for name in reversed(_on_every_way(self._graph, names)):
            if name in read and name in later and not self._places[name].enlarged:
                return Embedding(name, TOKENS, "the tokens that all answers come from")
        return None


def _on_every_way(graph: Graph, members: Sequence[str]) -> list[str]:
    """Find those of some tensors that each of the others comes from or leads to, in their order."""
    bits = {name: 1 << number for number, name in enumerate(members)}
    above: defaultdict[str, int] = defaultdict(int)
    below: defaultdict[str, int] = defaultdict(int)
    for node in graph.nodes:
        mask = reduce(or_, (above[name] for name in node.inputs), 0)
        above.update({name: mask | bits.get(name, 0) for name in node.outputs})
    for node in reversed(graph.nodes):
        mask = reduce(or_, (below[name] | bits.get(name, 0) for name in node.outputs), 0)
        below.update({name: below[name] | mask for name in node.inputs})
    return [name for name in members if (above[name] | below[name]).bit_count() == len(members)]


def _places(graph: Graph, image: str) -> dict[str, _Place]:
    """Follow the image through the graph: what each tensor that comes from it is."""
    spatial = (node for node in graph.nodes if node.operator in _STRIDES | _ENLARGES)
    taken_as_map = {node.inputs[0] for node in spatial if node.inputs}
    places = {image: _Place(1, is_map=image in taken_as_map, depth=0, enlarged=False)}
    for node in graph.nodes:
        place = _after(node, places, graph)
        if place is None:
            continue
        for name in node.outputs:
            more = name in taken_as_map and not place.is_map
            places[name] = msgspec.structs.replace(place, is_map=True) if more else place
    return places


def _after(node: Node, places: dict[str, _Place], graph: Graph) -> _Place | None:
    """Say where the outputs of a node stand; None where they say nothing of places."""
    known = [places[name] for name in node.inputs if name in places]
    if not known or node.operator in _ENDS:
        return None
    depth, enlarged = max(each.depth for each in known), any(each.enlarged for each in known)
    if node.operator in _STRIDES | _ENLARGES:
        first = places.get(node.inputs[0])
        if first is None:  # a convolution whose weights come from the image
            return None
        if node.operator in _ENLARGES:
            return _Place(first.area, is_map=True, depth=depth, enlarged=enlarged or depth > 0)
        area = first.area * prod(node.numbers.get("strides", ()))
        depth += "Conv" in node.operator
        return _Place(area, is_map=True, depth=depth, enlarged=enlarged)
    if node.operator in _OTHER_AXES:
        return _Place(known[0].area, is_map=False, depth=depth, enlarged=enlarged)
    leading = next((each for each in known if each.is_map), known[0])
    area = leading.area
    if node.operator == "Slice" and len(node.inputs) == 5:
        steps = graph.constants.get(node.inputs[4], ())
        area *= prod(step for step in steps if step < _BACKWARDS)
    return _Place(area, leading.is_map, depth, enlarged)

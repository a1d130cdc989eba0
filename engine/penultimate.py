"""The features that a graph makes of an image before it decides: which tensor they are, by fixed rules.

A classifier's are what its last linear layer reads. Those of other graphs are their deepest feature map: the
one of largest stride that everything after it comes from, before maps are enlarged again and before heads part.
Without such a map, as in transformers, they are the tokens that the heads read.
"""

from collections.abc import Collection, Sequence

import msgspec

from engine.onnx_graph import Graph, Node

AVERAGE = "average of the map"
TOKENS = "mean of the tokens"


class Found(msgspec.Struct, frozen=True):
    """The tensor that is a model's embedding, or why there is none."""

    tensor: str | None
    pooling: str
    """What makes one vector an image of it: `AVERAGE`, `TOKENS`, or empty where it is one."""
    reason: str


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


_POOLS = {"GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceMax", "ReduceSum"}
_PASSING = {
    *(
        "Identity",
        "Cast",
        "Clip",
        "Reshape",
        "Squeeze",
        "Unsqueeze",
        "Flatten",
        "Transpose",
        "Dropout",
    ),
    *("Softmax", "LogSoftmax", "Sigmoid", "Relu", "DequantizeLinear", "QuantizeLinear"),
    *("BatchNormalization", "AveragePool", *_POOLS),
}
"""Between a classifier's last linear layer and its output; those of two inputs only with a weight."""
_WITH_WEIGHT = {"Add", "Sub", "Mul", "Div"}
_RESHAPING = {"Identity", "Cast", "Reshape", "Squeeze", "Flatten", "Dropout", "Transpose"}
_STRIDING = {"Conv", "MaxPool", "AveragePool", "LpPool", "FusedConv"}
_ENLARGING = {"Resize", "Upsample", "ConvTranspose", "DepthToSpace", "MaxUnpool", "GridSample"}
_OTHER_AXES = {
    *(
        "Reshape",
        "Transpose",
        "Flatten",
        "Squeeze",
        "Unsqueeze",
        "Gather",
        "MatMul",
        "Gemm",
        "Einsum",
    ),
}
_ENDING = {"Shape", "Size", "RoiAlign", "NonMaxSuppression", "TopK", "ArgMax", "NonZero", *_POOLS}
"""Operators after which a tensor says nothing of places in the image."""
_BACKWARDS = 2**62
"""Above it are the steps of a slice that are negative, as they are written."""


def find(graph: Graph, image: str) -> Found:
    """Find the embedding of a graph.

    Args:
        graph: The graph.
        image: Name of the input that takes the image.
    """
    places = _places(graph, image)
    made_by = {name: node for node in graph.nodes for name in node.outputs}
    if any(len(shape) == 2 or shape[2:] == (1, 1) for shape in graph.outputs.values()):
        found = _read_by_last_layer(graph, places, made_by)
        if found is not None:
            return found
    return (
        _deepest_map(graph, places, made_by)
        or _tokens(graph, places)
        or Found(None, "", "no last linear layer, no feature map and no tokens were found")
    )


def tensors(graph: Graph) -> dict[str, None]:
    """Give the names of all tensors that nodes make, in their order."""
    return dict.fromkeys(name for node in graph.nodes for name in node.outputs if name)


def is_map(graph: Graph, image: str, tensor: str) -> bool:
    """Tell whether a tensor is a feature map, (N, C, H, W)."""
    place = _places(graph, image).get(tensor)
    return place is not None and place.is_map


def _read_by_last_layer(
    graph: Graph, places: dict[str, _Place], made_by: dict[str, Node]
) -> Found | None:
    """Find what the last linear layer reads, walking back from the outputs of classes."""
    for output, shape in graph.outputs.items():
        if len(shape) != 2 and shape[2:] != (1, 1):
            continue
        node = _behind(output, made_by, _PASSING, graph.weights)
        if node is None or not _is_linear(node, graph):
            continue
        read = node.inputs[0]
        source, before = read, made_by.get(read)
        while before is not None and before.operator in _RESHAPING:
            source = before.inputs[0]
            before = made_by.get(source)
        if source not in made_by:  # a linear layer on pixels
            continue
        reason = f"what the last linear layer reads, before {output!r}"
        flat = places.get(source)
        if flat is not None and flat.is_map:
            return Found(source, AVERAGE, reason)
        return Found(read, "", reason)
    return None


def _behind(
    name: str, made_by: dict[str, Node], passing: Collection[str], weights: Collection[str]
) -> Node | None:
    """Find the first node, going back from a tensor, that does more than `passing` operators do."""
    for _ in range(len(made_by)):  # a broken file may go round in circles
        node = made_by.get(name)
        if node is None or not node.inputs:
            return None
        name = node.inputs[0]
        if node.operator in _WITH_WEIGHT:
            changing = [each for each in node.inputs if not _is_weight(each, made_by, weights)]
            if len(changing) != 1:
                return node
            (name,) = changing
        elif node.operator not in passing:
            return node
    return None


def _is_weight(name: str, made_by: dict[str, Node], weights: Collection[str]) -> bool:
    """Tell whether a tensor is the same for every image: a weight, or a constant in the graph."""
    for _ in range(len(made_by) + 1):
        if name in weights:
            return True
        node = made_by.get(name)
        if node is None:
            return False
        if node.operator == "Constant":
            return True
        if node.operator not in ("DequantizeLinear", "Identity", "Cast", "Transpose", "Unsqueeze"):
            return False
        name = node.inputs[0]
    return False


def _is_linear(node: Node, graph: Graph) -> bool:
    """Tell whether a node is a linear layer: a product with weights, or a convolution of single places."""
    if node.operator == "Conv":
        return _kernel(node, graph) == 1
    made_by = {name: each for each in graph.nodes for name in each.outputs}
    return node.operator in ("Gemm", "MatMul") and _is_weight(
        node.inputs[1], made_by, graph.weights
    )


def _kernel(node: Node, graph: Graph) -> int:
    """Give the number of places that a convolution reads."""
    sizes = node.numbers.get("kernel_shape") or graph.weights.get(node.inputs[1], (0, 0, 0))[2:]
    return _product(sizes)


def _deepest_map(graph: Graph, places: dict[str, _Place], made_by: dict[str, Node]) -> Found | None:
    maps = [
        name
        for name, place in places.items()
        if place.is_map and not place.enlarged and place.depth > 1
    ]
    for area in sorted({places[name].area for name in maps}, reverse=True):
        region = [name for name in maps if places[name].area == area]
        passed = _all_pass(graph, region)
        if not passed:
            continue
        name = passed[-1]
        while (node := made_by[name]).operator == "Conv" and _kernel(node, graph) == 1:
            if node.inputs[0] not in region:
                break
            name = node.inputs[0]  # a projection adds nothing
        return Found(name, AVERAGE, f"the deepest feature map, of stride {area**0.5:.3g}")
    return None


def _tokens(graph: Graph, places: dict[str, _Place]) -> Found | None:
    """Find the last tensor, in the later half of the graph, that all answers come from and a linear layer reads."""
    made_by = {name: node for node in graph.nodes for name in node.outputs}
    read = {
        node.inputs[0]
        for node in graph.nodes
        if node.operator in ("Gemm", "MatMul")
        and _is_weight(node.inputs[1], made_by, graph.weights)
    }
    names = [name for name in places if name in made_by]
    later = set(names[len(names) // 2 :])
    for name in reversed(_all_pass(graph, names)):
        if name in read and name in later and not places[name].enlarged:
            return Found(name, TOKENS, "tokens that all answers come from")
    return None


def _all_pass(graph: Graph, members: Sequence[str]) -> list[str]:
    """Find those of some tensors that each of the others comes from or leads to, in their order."""
    bits = {name: 1 << number for number, name in enumerate(members)}
    above: dict[str, int] = {}
    below: dict[str, int] = {}
    for node in graph.nodes:
        mask = 0
        for name in node.inputs:
            mask |= above.get(name, 0)
        for name in node.outputs:
            above[name] = mask | bits.get(name, 0)
    for node in reversed(graph.nodes):
        mask = 0
        for name in node.outputs:
            mask |= below.get(name, 0) | bits.get(name, 0)
        for name in node.inputs:
            below[name] = below.get(name, 0) | mask
    return [
        name for name in members if (above[name] | below.get(name, 0)).bit_count() == len(members)
    ]


def _places(graph: Graph, image: str) -> dict[str, _Place]:
    """Follow the image through the graph: what each tensor that comes from it is."""
    taken_as_map = {
        node.inputs[0]
        for node in graph.nodes
        if node.inputs and node.operator in _STRIDING | _ENLARGING
    }
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
    if not known or node.operator in _ENDING:
        return None
    depth, enlarged = max(each.depth for each in known), any(each.enlarged for each in known)
    if node.operator in _STRIDING | _ENLARGING:
        first = places.get(node.inputs[0])
        if first is None:  # weights that are made of the image
            return None
        if node.operator in _ENLARGING:
            return _Place(first.area, is_map=True, depth=depth, enlarged=enlarged or depth > 0)
        area = first.area * _product(node.numbers.get("strides", ()))
        depth += node.operator.endswith("Conv")
        return _Place(area, is_map=True, depth=depth, enlarged=enlarged)
    if node.operator in _OTHER_AXES:
        return _Place(known[0].area, is_map=False, depth=depth, enlarged=enlarged)
    leading = next((each for each in known if each.is_map), known[0])
    area = leading.area
    if node.operator == "Slice" and len(node.inputs) == 5:
        steps = graph.constants.get(node.inputs[4], ())
        area *= _product([step for step in steps if step < _BACKWARDS])
    return _Place(area, leading.is_map, depth, enlarged)


def _product(numbers: Sequence[int]) -> int:
    found = 1
    for number in numbers:
        found *= number
    return found

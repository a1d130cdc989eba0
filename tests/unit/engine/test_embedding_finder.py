"""Which tensor of a graph is its embedding: by fixed rules, on graphs that are written down."""

import onnx
import pytest
from onnx import TensorProto, helper

from quadriga.engine.models.embedding import AVERAGE, TOKENS, EmbeddingFinder
from quadriga.engine.models.onnx_file import Graph, LoadError, Node, add_output, read_onnx
from tests.onnx_models import doubling, value
from tests.server_process import SAMPLE_MODELS

WEIGHTS = {"w1": (8, 8, 1, 1), "w3": (8, 8, 3, 3), "w": (8, 5)}


def graph(text, outputs):
    """Read lines as `output = Operator input input`; a number after the operator is its stride."""
    nodes = []
    for line in text.strip().splitlines():
        targets, _, expression = line.partition(" = ")
        operator, *inputs = expression.split()
        stride = int(operator[-1]) if operator[-1].isdecimal() else 1
        numbers = {"strides": (stride, stride)} if stride > 1 else {}
        output_names = targets.strip().split(",")
        nodes.append(Node(operator.rstrip("23"), tuple(inputs), tuple(output_names), numbers))
    return Graph(
        tuple(nodes), {"image": (1, 3, 64, 64)}, outputs, weights=WEIGHTS, constants={"by2": (2,)}
    )


STEM = """a = Conv2 image w3
b = Relu a
c = Conv2 b w3
d = Relu c
"""
MAPS = {"boxes": (1, 8, 4)}
CLASSES = {"scores": (1, 5)}
CASES = {
    "a classifier's pooled row": (
        STEM + "e = GlobalAveragePool d\nf = Flatten e\ng = Gemm f w\nscores = Softmax g",
        CLASSES,
        ("f", ""),
    ),
    "a map that is flattened as it is": (
        STEM + "f = Flatten d\ng = MatMul f w\nscores = Add g w",
        CLASSES,
        ("d", AVERAGE),
    ),
    "a head of single places": (
        STEM + "e = Conv d w1\nf = Relu e\ng = GlobalAveragePool f\nscores = Flatten g",
        CLASSES,
        ("d", AVERAGE),
    ),
    "a class token": (
        "p = Conv2 image w3\nt = Reshape p\nn = LayerNormalization t w\nc = Gather n\nscores = Gemm c w",
        CLASSES,
        ("c", ""),
    ),
    "a linear layer on pixels": ("f = Flatten image\nscores = Gemm f w", CLASSES, None),
    "two heads on one map": (
        STEM + "e = Conv d w3\nf = Relu e\ng = Conv f w3\nh = Conv d w3\nboxes = Concat g h",
        MAPS,
        ("d", AVERAGE),
    ),
    "heads that part for good": (
        STEM + "e = Conv d w3\nboxes = Reshape e\nf = Conv d w3\nlogits = Reshape f",
        MAPS,
        ("d", AVERAGE),
    ),
    "before maps are enlarged, without the projection": (
        STEM + "e = Conv d w1\nf = Resize e\ng = Add f b\nh = Conv3 g w3\nboxes = Reshape h",
        MAPS,
        ("d", AVERAGE),
    ),
    "an image made larger in the graph": (
        "i = Resize image\n" + STEM.replace("image", "i") + "e = Conv d w3\nboxes = Reshape e",
        MAPS,
        ("d", AVERAGE),
    ),
    "channels that squeeze and excite": (
        STEM
        + "s = GlobalAveragePool d\nt = Conv s w1\nu = Sigmoid t\ne = Mul d u\nf = Conv e w3\nboxes = Reshape f",
        MAPS,
        ("e", AVERAGE),
    ),
    "patches that are put together by slices": (
        (
            "p = Conv2 image w3\nt = Reshape p\nu = Slice t x x x by2\nv = MatMul u w\n"
            "y = Reshape v\nz = Conv y w3\nq = Reshape t\nr = Conv q w3\ns = Conv z w3\nboxes = Add s r"
        ),
        MAPS,
        ("z", AVERAGE),
    ),
    "tokens, and no map": (
        (
            "p = Conv2 image w3\nt = Reshape p\nu = MatMul t w\nv = Add u t\nn = LayerNormalization v w\n"
            "boxes = MatMul n w\nlogits = MatMul n w"
        ),
        MAPS,
        ("n", TOKENS),
    ),
    "features without a head": (
        STEM + "e = GlobalAveragePool d\nfeatures = Flatten e",
        {"features": (1, 8)},
        ("d", AVERAGE),
    ),
    "the mean of two heads": (
        STEM + "p = GlobalAveragePool d\ne = Gemm p w\nf = Gemm p w\ng = Add e f\nscores = Div g w",
        CLASSES,
        ("p", ""),
    ),
    "normalised features, one token of them": (
        "p = Conv2 image w3\nt = Reshape p\nu = MatMul t w\nn = LayerNormalization u w\nfeatures = Gather n",
        {"features": (1, 8)},
        ("features", ""),
    ),
    "nothing but pixels": ("m = ReduceMean image\nboxes = Mul m w", MAPS, None),
}


@pytest.mark.parametrize("case", CASES)
def test_the_tensor_is(case):
    text, outputs, expected = CASES[case]
    source = EmbeddingFinder(graph(text, outputs), "image").find()
    assert (source.tensor, source.pooling) == (expected or (None, ""))
    assert source.reason


def test_a_graph_is_read_as_the_onnx_package_does():
    path = SAMPLE_MODELS / "ships-oriented-detector" / "model.onnx"
    expected = onnx.load(path).graph
    _, read = read_onnx(path)
    assert [(node.operator, node.inputs, node.outputs) for node in read.nodes] == [
        (node.op_type, tuple(node.input), tuple(node.output)) for node in expected.node
    ]
    strides = [node.numbers["strides"] for node in read.nodes if node.operator == "Conv"]
    assert strides[:3] == [(2, 2), (2, 2), (2, 2)]
    assert read.inputs == {"images": (-1, 3, 160, 160)}
    assert read.outputs == {"output0": (-1, 8, 400)}
    assert read.weights == {
        initializer.name: tuple(initializer.dims) for initializer in expected.initializer
    }
    few = {
        node.output[0]: tuple(onnx.numpy_helper.to_array(node.attribute[0].t).tolist())
        for node in expected.node
        if node.op_type == "Constant" and node.attribute[0].t.data_type == TensorProto.INT64
    }
    assert {name: read.constants[name] for name in few} == few


def test_nodes_are_put_in_an_order_in_which_they_can_run(tmp_path):
    path = doubling(tmp_path / "model.onnx")
    model = onnx.load(path)
    model.graph.node.insert(0, helper.make_node("Relu", ["y"], ["z"]))
    model.graph.output.append(value("z", [1, 3]))
    onnx.save(model, path)
    _, read = read_onnx(path)
    assert [node.operator for node in read.nodes] == ["Add", "Relu"]


def test_a_graph_that_goes_round_in_circles_is_refused(tmp_path):
    path = doubling(tmp_path / "model.onnx")
    model = onnx.load(path)
    model.graph.node[0].input[0] = "y"
    onnx.save(model, path)
    with pytest.raises(LoadError, match="to be an ONNX model"):
        read_onnx(path)


@pytest.mark.parametrize("name", ["y", "longer" * 50])
def test_added_output_is_read_by_the_onnx_package(tmp_path, name):
    original = onnx.load(doubling(tmp_path / "model.onnx"))
    model = onnx.ModelProto.FromString(add_output(original.SerializeToString(), "x", name))
    assert [output.name for output in model.graph.output] == ["y", name]
    assert model.graph.node[-1] == helper.make_node("GlobalAveragePool", ["x"], [name])
    assert model.graph.node[:-1] == original.graph.node[:]
    plain = onnx.ModelProto.FromString(add_output(original.SerializeToString(), "x"))
    assert [output.name for output in plain.graph.output] == ["y", "x"]
    assert len(plain.graph.node) == 1

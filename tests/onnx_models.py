"""Small ONNX models for tests, built with the onnx package: weights are not the point."""

from pathlib import Path

import cv2
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CLASSIFIER_TOML = (
    'task = "classification"\n[input]\nresize = "stretch"\n[output]\nactivation = "softmax"\n'
)
"""What model.toml says of a `classifier`, but for the labels."""
COLOURS_TOML = f'labels = ["red", "green", "blue"]\n{CLASSIFIER_TOML}'

OPSET = 17
IR_VERSION = 8


def save(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    initializers: dict[str, np.ndarray] | None = None,
    *,
    metadata: dict[str, str] | None = None,
    opset: int = OPSET,
    ir_version: int = IR_VERSION,
    domains: dict[str, int] | None = None,
) -> Path:
    """Write a model of these nodes; `domains` has the versions of further operator sets."""
    tensors = [numpy_helper.from_array(array, name) for name, array in (initializers or {}).items()]
    graph = helper.make_graph(nodes, "test", inputs, outputs, tensors)
    sets = {"": opset, **(domains or {})}
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid(*pair) for pair in sets.items()]
    )
    model.ir_version = ir_version
    model.producer_name = "quadriga-tests"
    helper.set_model_props(model, metadata or {})
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


def value(name: str, shape: list[int | str], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    """Declare an input or output."""
    return helper.make_tensor_value_info(name, kind, shape)


def doubling(path: Path, batch: int | str = "batch") -> Path:
    """Y = 2 x, for rows of three."""
    return save(
        path,
        [helper.make_node("Add", ["x", "x"], ["y"])],
        [value("x", [batch, 3])],
        [value("y", [batch, 3])],
    )


def tripling(path: Path) -> Path:
    """Y = 3 x, for rows of three."""
    return save(
        path,
        [helper.make_node("Sum", ["x", "x", "x"], ["y"])],
        [value("x", ["batch", 3])],
        [value("y", ["batch", 3])],
    )


def classifier(path: Path, classes: int = 3, batch: int | str = "batch", size: int = 8) -> Path:
    """Logits that are the mean of each channel: red, green, blue."""
    return save(
        path,
        [
            helper.make_node("ReduceMean", ["image"], ["means"], axes=[2, 3], keepdims=0),
            helper.make_node("MatMul", ["means", "weights"], ["logits"]),
        ],
        [value("image", [batch, 3, size, size])],
        [value("logits", [batch, classes])],
        {"weights": np.eye(3, classes, dtype=np.float32) * 10},
    )


def answering(
    path: Path,
    outputs: dict[str, np.ndarray],
    *,
    image: tuple[str, list[int | str]] = ("images", ["batch", 3, 32, 32]),
    kind: int = TensorProto.FLOAT,
    further: dict[str, tuple[int, list[int | str]]] | None = None,
    metadata: dict[str, str] | None = None,
    batched: bool = True,
) -> Path:
    """A model that answers the same arrays for every image, one copy an image.

    Args:
        path: Where to write it.
        outputs: Arrays by output name, without the batch axis.
        image: Name and shape of the input that takes the image.
        kind: Its element type.
        further: Element type and shape of further inputs, which are not looked at.
        metadata: Of the file.
        batched: Whether outputs have the batch as their first axis.
    """
    name, shape = image
    nodes = [
        helper.make_node("Cast", [name], ["float"], to=TensorProto.FLOAT),
        helper.make_node(
            "ReduceMean", ["float"], ["mean"], axes=[*range(1, len(shape))], keepdims=0
        )
        if batched
        else helper.make_node("ReduceMean", ["float"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["mean", "zero"], ["nothing"]),
    ]
    weights: dict[str, np.ndarray] = {"zero": np.zeros((), np.float32)}
    infos = []
    for output, array in outputs.items():
        element = helper.np_dtype_to_tensor_dtype(array.dtype)
        weights[f"{output}_value"] = array[None] if batched else array
        nodes.append(helper.make_node("Cast", ["nothing"], [f"{output}_zero"], to=element))
        zero = f"{output}_zero"
        if batched:
            weights[f"{output}_shape"] = np.array([-1, *[1] * array.ndim], np.int64)
            zero = f"{output}_zeros"
            nodes.append(helper.make_node("Reshape", [f"{output}_zero", f"{output}_shape"], [zero]))
        nodes.append(helper.make_node("Add", [zero, f"{output}_value"], [output]))
        full = [shape[0], *array.shape] if batched else [f"n_{output}", *array.shape[1:]]
        infos.append(value(output, full, element))
    inputs = [value(name, shape, kind)]
    inputs += [
        value(name_, other_shape, other_kind)
        for name_, (other_kind, other_shape) in (further or {}).items()
    ]
    return save(path, nodes, inputs, infos, weights, metadata=metadata)


def detector(
    path: Path, rows: np.ndarray, size: int = 32, metadata: dict[str, str] | None = None
) -> Path:
    """A detector that answers the same raw head, float32 [4 + classes, anchors], for every image."""
    image: tuple[str, list[int | str]] = ("images", ["batch", 3, size, size])
    return answering(path, {"output0": rows.astype(np.float32)}, image=image, metadata=metadata)


def half_plus(path: Path, addend: float, shape: list[int | str]) -> Path:
    """Y = x / 2 + addend: TensorFlow Serving's half_plus_two and half_plus_three."""
    return save(
        path,
        [
            helper.make_node("Mul", ["x", "half"], ["product"]),
            helper.make_node("Add", ["product", "addend"], ["y"]),
        ],
        [value("x", shape)],
        [value("y", shape)],
        {"half": np.array(0.5, np.float32), "addend": np.array(addend, np.float32)},
    )


def several(path: Path) -> Path:
    """Texts, whole numbers and truth values, as they came."""
    kinds = {
        "tag_bytes": TensorProto.STRING,
        "signal": TensorProto.INT32,
        "flag": TensorProto.BOOL,
    }
    rank = {"tag_bytes": ["n"], "signal": ["n", 2], "flag": ["n"]}
    return save(
        path,
        [helper.make_node("Identity", [name], [f"same_{name}"]) for name in kinds],
        [value(name, rank[name], kind) for name, kind in kinds.items()],
        [value(f"same_{name}", rank[name], kind) for name, kind in kinds.items()],
    )


def counting(path: Path) -> Path:
    """Y = x + n, by adding 1 for n times: with a large n the graph runs for ever."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go_on"], ["goes_on"]),
            helper.make_node("Add", ["sum", "one"], ["next"]),
        ],
        "step",
        [
            value("step", [], TensorProto.INT64),
            value("go_on", [], TensorProto.BOOL),
            value("sum", [1]),
        ],
        [value("goes_on", [], TensorProto.BOOL), value("next", [1])],
        [numpy_helper.from_array(np.ones(1, np.float32), "one")],
    )
    return save(
        path,
        [
            helper.make_node("Squeeze", ["n"], ["count"]),
            helper.make_node("Loop", ["count", "true", "x"], ["y"], body=body),
        ],
        [value("x", [1]), value("n", [1], TensorProto.INT64)],
        [value("y", [1])],
        {"true": np.array(True)},
    )


def dividing(path: Path) -> Path:
    """Quotient = a / b of int32: -2**31 / -1 ends the process by SIGFPE."""
    kind = TensorProto.INT32
    return save(
        path,
        [helper.make_node("Div", ["a", "b"], ["quotient"])],
        [value("a", ["n"], kind), value("b", ["n"], kind)],
        [value("quotient", ["n"], kind)],
    )


def allocating(path: Path) -> Path:
    """Mean of n zeros: takes 4 n bytes."""
    return save(
        path,
        [
            helper.make_node("ConstantOfShape", ["n"], ["zeros"]),
            helper.make_node("ReduceMean", ["zeros"], ["mean"], keepdims=0),
        ],
        [value("n", [1], TensorProto.INT64)],
        [value("mean", [])],
    )


def greedy(path: Path, elements: int) -> Path:
    """Mean of x and of as many zeros, whatever x is: takes 4 bytes for each, and is a file of a few hundred bytes."""
    return save(
        path,
        [
            helper.make_node("Shape", ["x"], ["shape"]),
            helper.make_node("ReduceSum", ["shape"], ["sum"], keepdims=1),
            helper.make_node("Mul", ["sum", "elements"], ["n"]),
            helper.make_node("ConstantOfShape", ["n"], ["zeros"]),
            helper.make_node("ReduceMean", ["zeros"], ["mean"], keepdims=0),
        ],
        [value("x", ["batch", 1])],
        [value("mean", [])],
        {"elements": np.array([elements // 2], np.int64)},
    )


def endless(path: Path, name: str = "x") -> Path:
    """A loop without an end, whatever the input is."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["condition"], ["condition_out"]),
            helper.make_node("Add", ["carried", "carried"], ["carried_out"]),
        ],
        "body",
        [
            value("iteration", [], TensorProto.INT64),
            value("condition", [], TensorProto.BOOL),
            value("carried", ["batch", 3]),
        ],
        [value("condition_out", [], TensorProto.BOOL), value("carried_out", ["batch", 3])],
    )
    return save(
        path,
        [helper.make_node("Loop", ["", "true", name], ["y"], body=body)],
        [value(name, ["batch", 3])],
        [value("y", ["batch", 3])],
        {"true": np.array(True)},
    )


def dividing_by_itself(path: Path) -> Path:
    """Ends the process by SIGFPE at its first run, whatever the input is."""
    kind = TensorProto.INT32
    return save(
        path,
        [
            helper.make_node("Mul", ["x", "zero"], ["nothing"]),
            helper.make_node("Add", ["nothing", "least"], ["a"]),
            helper.make_node("Add", ["nothing", "minus"], ["b"]),
            helper.make_node("Div", ["a", "b"], ["quotient"]),
        ],
        [value("x", ["n"], kind)],
        [value("quotient", ["n"], kind)],
        {
            "zero": np.zeros(1, np.int32),
            "least": np.array([-(2**31)], np.int32),
            "minus": np.array([-1], np.int32),
        },
    )


def marking(folder: Path, classes: int, runtime: str) -> Path:
    """Write a classifier whose label is the number in the first pixel, red + 256 * green, with its model.toml."""
    numbers = np.arange(classes, dtype=np.float32)[None]
    save(
        folder / "model.onnx",
        [
            helper.make_node("Slice", ["image", "start", "end", "axes"], ["pixel"]),
            helper.make_node("Flatten", ["pixel"], ["colour"]),
            helper.make_node("MatMul", ["colour", "places"], ["number"]),
            helper.make_node("Sub", ["number", "numbers"], ["distances"]),
            helper.make_node("Abs", ["distances"], ["nearness"]),
            helper.make_node("Neg", ["nearness"], ["scores"]),
        ],
        [value("image", ["batch", 3, 8, 8])],
        [value("scores", ["batch", classes])],
        {
            "start": np.array([0, 0]),
            "end": np.array([1, 1]),
            "axes": np.array([2, 3]),
            "places": np.array([[1], [256], [0]], np.float32),
            "numbers": numbers,
        },
    )
    labels = [f"number {number}" for number in range(classes)]
    toml = CLASSIFIER_TOML.replace("[input]", "[input]\nscale = 1.0")
    (folder / "model.toml").write_text(f"labels = {labels}\n{toml}{runtime}")
    return folder


def number_image(number: int) -> bytes:
    """Make the PNG that `marking` reads as a number."""
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[:] = (0, number // 256, number % 256)
    return cv2.imencode(".png", pixels)[1].tobytes()

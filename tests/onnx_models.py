"""Small ONNX models for tests, built with the onnx package: weights are not the point."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

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
) -> Path:
    """Write a model of these nodes."""
    tensors = [numpy_helper.from_array(array, name) for name, array in (initializers or {}).items()]
    graph = helper.make_graph(nodes, "test", inputs, outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
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


def detector(
    path: Path, rows: np.ndarray, size: int = 32, metadata: dict[str, str] | None = None
) -> Path:
    """A detector that answers the same raw head, float32 [4 + classes, anchors], for every image."""
    return save(
        path,
        [
            helper.make_node("ReduceMean", ["images"], ["mean"], axes=[1, 2, 3], keepdims=1),
            helper.make_node("Squeeze", ["mean", "last"], ["flat"]),
            helper.make_node("Mul", ["flat", "zero"], ["nothing"]),
            helper.make_node("Add", ["nothing", "head"], ["output0"]),
        ],
        [value("images", ["batch", 3, size, size])],
        [value("output0", ["batch", *rows.shape])],
        {
            "last": np.array([3], np.int64),
            "zero": np.zeros((1, 1, 1), np.float32),
            "head": rows[None].astype(np.float32),
        },
        metadata=metadata,
    )

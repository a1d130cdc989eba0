"""One server for all public clients, and what a client's script is told of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper

from quadriga.engine.config.settings import Settings
from quadriga.engine.models.runners.session import Session
from quadriga.proto.datatypes import NUMPY_TYPES
from tests.onnx_models import doubling, half_plus, save, value
from tests.server_process import IMAGES, MODELS, SAMPLE_MODELS, ServerProcess, free_port


def identity(path: Path, datatype: str) -> Path:
    """Y = x, of any two dimensions."""
    kind = TensorProto.STRING
    if datatype != "BYTES":
        kind = helper.np_dtype_to_tensor_dtype(NUMPY_TYPES[datatype])
    node = helper.make_node("Identity", ["x"], ["y"])
    shape: list[int | str] = ["rows", "columns"]
    return save(path, [node], [value("x", shape, kind)], [value("y", shape, kind)])


def two_inputs(path: Path) -> Path:
    """Total = a + b, difference = a - b."""
    nodes = [
        helper.make_node("Add", ["a", "b"], ["total"]),
        helper.make_node("Sub", ["a", "b"], ["difference"]),
    ]
    inputs = [value(name, ["batch", 4]) for name in ("a", "b")]
    return save(
        path, nodes, inputs, [value(name, ["batch", 4]) for name in ("total", "difference")]
    )


def columns(path: Path) -> Path:
    """S = p + q, columns of one number a row, as a data frame has them."""
    node = helper.make_node("Add", ["p", "q"], ["s"])
    inputs = [value(name, ["batch", 1]) for name in ("p", "q")]
    return save(path, [node], inputs, [value("s", ["batch", 1])])


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the folder that the server serves."""
    root = tmp_path_factory.mktemp("models")
    for datatype in (*NUMPY_TYPES, "BYTES"):
        identity(root / f"identity-{datatype.lower()}" / "model.onnx", datatype)
    two_inputs(root / "sum" / "1" / "model.onnx")
    columns(root / "columns" / "model.onnx")
    doubling(root / "spare" / "model.onnx")
    half_plus(root / "half_plus_two" / "model.onnx", 2, ["batch", 2])
    half_plus(root / "half_plus_three" / "model.onnx", 3, ["batch"])
    (root / "broken").mkdir()
    (root / "broken" / "model.onnx").write_bytes(b"broken")
    for name in MODELS.values():
        (root / name).symlink_to(SAMPLE_MODELS / name)
    return root


def served_features(paths: list[str]) -> set[str]:
    """Return the optional features of the protocols that a server has, from its settings and its OpenAPI document."""
    ends = {
        "statistics": lambda path: path.endswith("/stats"),
        "config": lambda path: path.endswith("/config"),
        "repository": lambda path: path == "/v2/repository/index",
        "v1": lambda path: path.lower().startswith("/v1/models"),
        "generate": lambda path: path.endswith("/generate"),
    }
    features = {feature for feature, holds in ends.items() if any(map(holds, paths))}
    return features | (
        {"grpc"} & {name.removesuffix("_port") for name in Settings.__struct_fields__}
    )


@pytest.fixture(scope="session")
def grpc_address() -> str:
    """Choose where gRPC listens; empty where the server has none."""
    return f"127.0.0.1:{free_port()}" if "grpc_port" in Settings.__struct_fields__ else ""


@pytest.fixture(scope="session")
def server(
    models: Path, grpc_address: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """Serve all of it."""
    flags = ["--no-strict-readiness"]
    if grpc_address:
        flags += ["--grpc-port", grpc_address.rpartition(":")[2]]
    data = tmp_path_factory.mktemp("server") / "data"
    running = ServerProcess(data, models, *flags).start()
    yield running
    assert running.stop() == 0


def graph(model: str) -> dict[str, Any]:
    """Describe the graph of a sample model as its tensors, with a batch of one."""
    session = Session(SAMPLE_MODELS / model / "model.onnx")
    (input_,) = session.inputs
    labels = (SAMPLE_MODELS / model / "labels.txt").read_text().split("\n")
    return {
        "input": input_.name,
        "shape": [1, *input_.shape[1:]],
        "outputs": [output.name for output in session.outputs],
        "labels": labels,
    }


@pytest.fixture(scope="session")
def described(server: ServerProcess, models: Path, grpc_address: str) -> dict[str, Any]:
    """Return what a client's script reads: addresses, features, images and their predictions."""
    image_models = {task: model for task, model in MODELS.items() if task != "image-text"}
    images = {task: IMAGES / task / "scene_01.jpg" for task in image_models}
    predictions = {}
    for task, model in image_models.items():
        (predictions[task],) = server.infer(model, images[task].read_bytes())["data"]
    status, document = server.call("GET", "/schema/openapi.json")
    assert status == 200
    return {
        "http": server.host,
        "grpc": grpc_address,
        "features": sorted(served_features(list(document["paths"]))),
        "images": {task: str(path) for task, path in images.items()},
        "max_body_bytes": Settings().max_body_bytes,
        "models": image_models,
        "predictions": predictions,
        "classifier": graph("shapes-classifier"),
        "detector": graph("shapes-detector"),
        "file": str(models / "spare" / "model.onnx"),
    }

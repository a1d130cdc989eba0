"""Folders of models as exporters leave them, and what a request to one is answered."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import msgspec
import numpy as np
import onnx
from onnx import TensorProto

from quadriga.engine.models.model import Model
from quadriga.engine.serving.image_inference import ImageModel, infer_images
from quadriga.proto.messages import InferRequest, Tensor
from quadriga.tasks.image import MAX_PIXELS
from tests.onnx_models import answering

WIDTH, HEIGHT = 64, 48
"""Size of the image of every test."""
LABELS = ("ant", "cat", "dog")
NAMES = "{0: 'ant', 1: 'cat', 2: 'dog'}"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Case(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One export of one family: what its files hold, and what recognition must make of them."""

    name: str
    family: str
    outputs: dict[str, np.ndarray]
    """Without the batch axis, where `batched`."""
    answers: Sequence[Any]
    image: tuple[str, list[int | str]] = ("images", [1, 3, 96, 96])
    kind: int = TensorProto.FLOAT
    further: dict[str, tuple[int, list[int | str]]] = {}
    metadata: dict[str, str] = {}
    batched: bool = True
    files: dict[str, Any] = {}
    """Text, or what becomes JSON, by the name of the file."""
    nodes: Sequence[tuple[str, list[onnx.NodeProto]]] = ()
    """Operators put behind an output; see `extend`."""
    input: dict[str, Any] = {}
    """Fields of `InputSpec` that must come out."""


def ultralytics(task: str, **more: str) -> dict[str, str]:
    return {"task": task, "names": NAMES, "stride": "32", "imgsz": "[96, 96]", **more}


def toml(family: str, more: str = "", labels: Sequence[str] = LABELS) -> dict[str, str]:
    return {"model.toml": f'family = "{family}"\nlabels = {json.dumps(labels)}\n{more}'}


def load(case: Case, folder: Path) -> Model:
    """Write the folder and load it as a server does."""
    path = answering(
        folder / "model.onnx",
        case.outputs,
        image=case.image,
        kind=case.kind,
        further=case.further,
        metadata=case.metadata,
        batched=case.batched,
    )
    for output, nodes in case.nodes:
        extend(path, output, nodes)
    for name, content in case.files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name).write_text(text)
    model = Model("model", "1", path)
    assert model.recognition.family == case.family
    assert model.spec is not None
    input_spec = msgspec.structs.asdict(model.spec.input)
    assert {name: input_spec[name] for name in case.input} == case.input
    return model


def extend(path: Path, output: str, nodes: list[onnx.NodeProto]) -> None:
    """Put operators behind an output: they read it as `before`, and the last one writes it."""
    model = onnx.load(path)
    for node in model.graph.node:
        node.output[:] = ["before" if name == output else name for name in node.output]
    model.graph.node.extend(nodes)
    onnx.save(model, path)


def ask(model: Model, parameters: dict[str, Any] | None = None) -> list[Any]:
    """Ask about two images in one request, as a client does; both answers must be the same."""
    assert model.image_predictor is not None
    assert model.spec is not None
    pixels = np.random.default_rng(7).integers(0, 255, (2, HEIGHT, WIDTH, 3), np.uint8)
    data = [cv2.imencode(".png", picture)[1].tobytes() for picture in pixels]
    images = ImageModel(model.image_predictor, MAX_PIXELS, max_images=2)
    tensor = Tensor("image", "BYTES", (2,), data, parameters or {})
    _, (first, second) = infer_images(images, InferRequest("model", None, "", [tensor]))
    assert (first.width, first.height) == (WIDTH, HEIGHT)
    assert first.predictions == second.predictions
    return list(first.predictions)

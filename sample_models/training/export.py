"""Export of a trained network to one ONNX file, checked against torch, with its package files."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import nn

from sample_models.training.measurement import Figures, open_session

OPSET = 17

_CHECKED_BATCHES = (1, 2, 5)
_LARGEST_DIFFERENCE = 1e-3


@dataclass(frozen=True)
class Signature:
    """Names of the exported graph.

    Attributes:
        input_name: float32 (batch, 3, height, width).
        input_wh: width and height in pixels.
        output_name: the one output; its first axis is the batch.
    """

    input_name: str
    input_wh: tuple[int, int]
    output_name: str


def export_onnx(network: nn.Module, signature: Signature, path: Path) -> float:
    """Write the network as a single ONNX file with a dynamic batch axis.

    Args:
        network: in evaluation mode.
        signature: names and size.
        path: file to write.

    Returns:
        Largest difference between torch and onnxruntime at batch 1, 2 and 5, absolute.

    Raises:
        ValueError: the two runtimes disagree.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    names = (signature.input_name, signature.output_name)
    torch.onnx.export(
        network,
        (_noise(2, signature.input_wh),),
        path,
        dynamo=False,  # the newer exporter puts the weights into a second file
        opset_version=OPSET,
        input_names=[names[0]],
        output_names=[names[1]],
        dynamic_axes={name: {0: "batch"} for name in names},
    )
    _declare_output_shape(path, network(_noise(1, signature.input_wh)).shape)
    session = open_session(path)
    difference = 0.0
    for batch in _CHECKED_BATCHES:
        images = _noise(batch, signature.input_wh)
        with torch.no_grad():
            wanted = network(images).numpy()
        (given,) = session.run(None, {names[0]: images.numpy()})
        difference = max(difference, float(np.abs(np.asarray(given) - wanted).max()))
    if difference > _LARGEST_DIFFERENCE:
        raise ValueError(f"expected onnxruntime to agree with torch, got {difference:.2e} apart")
    return difference


def write_package(folder: Path, labels: tuple[str, ...], config: str, figures: Figures) -> None:
    """Write labels.txt, model.toml and figures.json beside the model, and print the figures."""
    (folder / "labels.txt").write_text("".join(f"{label}\n" for label in labels))
    (folder / "model.toml").write_text(config)
    text = json.dumps(figures, indent=2)
    (folder / "figures.json").write_text(text + "\n")
    print(text)


def _declare_output_shape(path: Path, shape: torch.Size) -> None:
    """State all sizes but the batch: the exporter leaves them open once one axis is dynamic."""
    model = onnx.load(path)
    sizes = model.graph.output[0].type.tensor_type.shape.dim
    for size, value in list(zip(sizes, shape, strict=True))[1:]:
        size.dim_value = value
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def _noise(batch: int, size_wh: tuple[int, int]) -> torch.Tensor:
    return torch.rand(batch, 3, size_wh[1], size_wh[0])

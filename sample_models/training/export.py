"""Export of trained networks to ONNX files, checked against torch."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from sample_models.training.measurement import open_session

_OPSET = 17
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
    dynamic = {0: "batch"}
    write_onnx(
        network,
        path,
        {signature.input_name: dynamic},
        outputs={signature.output_name: dynamic},
        example=(_noise(2, signature.input_wh),),
    )
    _declare_output_shape(path, network(_noise(1, signature.input_wh)).shape)
    return largest_difference(
        network, path, [(_noise(batch, signature.input_wh),) for batch in _CHECKED_BATCHES]
    )


def write_onnx(
    network: nn.Module,
    path: Path,
    inputs: dict[str, dict[int, str]],
    outputs: dict[str, dict[int, str]],
    example: tuple[Tensor, ...],
) -> None:
    """Write a network as a single file; inputs and outputs have the names of dynamic axes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.onnx.export(
        network,
        example,
        path,
        dynamo=False,  # the newer exporter puts the weights into a second file
        opset_version=_OPSET,
        input_names=list(inputs),
        output_names=list(outputs),
        dynamic_axes={**inputs, **outputs},
    )
    onnx.checker.check_model(onnx.load(path), full_check=True)


def largest_difference(network: nn.Module, path: Path, examples: list[tuple[Tensor, ...]]) -> float:
    """Compare torch with onnxruntime on inputs: the largest difference, absolute.

    Raises:
        ValueError: the two runtimes disagree.
    """
    session = open_session(path)
    difference = 0.0
    for example in examples:
        with torch.no_grad():
            answer = network(*example)
        expected = answer if isinstance(answer, tuple) else (answer,)
        feeds = {
            graph_input.name: tensor.numpy()
            for graph_input, tensor in zip(session.get_inputs(), example, strict=True)
        }
        for actual, expected_output in zip(session.run(None, feeds), expected, strict=True):
            difference = max(difference, float(np.abs(actual - expected_output.numpy()).max()))
    if difference > _LARGEST_DIFFERENCE:
        raise ValueError(f"expected onnxruntime to agree with torch, got {difference:.2e} apart")
    return difference


def _declare_output_shape(path: Path, shape: torch.Size) -> None:
    """State all sizes but the batch: the exporter leaves them open once one axis is dynamic."""
    model = onnx.load(path)
    sizes = model.graph.output[0].type.tensor_type.shape.dim
    for size, value in list(zip(sizes, shape, strict=True))[1:]:
        size.dim_value = value
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def _noise(batch: int, size_wh: tuple[int, int]) -> Tensor:
    return torch.rand(batch, 3, size_wh[1], size_wh[0])

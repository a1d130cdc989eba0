"""What scripts share that export models of torch: settled weights, both exporters, answers beside the graph."""

import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pictures import SIZES, picture, save_map, write_expected
from PIL import Image

LABELS = ["plate", "zebra", "apple", "key", "boat", "nut", "eel"]
NAMED = f"labels = {LABELS}\n".replace("'", '"')
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IMAGENET = f"mean = {list(MEAN)}\nstd = {list(STD)}\n"
SIZE_WH = (128, 96)
Answer = dict[str, Any]


def version(distribution: str, further: str = "") -> str:
    return f"{distribution} {importlib.metadata.version(distribution)}{further}"


@torch.no_grad()
def settle(model: torch.nn.Module, pixels: torch.Tensor, head: torch.nn.Module | None) -> Any:
    """Give each batch norm the mean and variance that it meets, and spread the scores of the head."""
    torch.manual_seed(5)
    model.eval()
    norms = [
        layer
        for layer in model.modules()
        if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm)
    ]
    for norm in norms:
        norm.weight.uniform_(0.8, 1.2)
        norm.bias.normal_(std=0.2)
        norm.momentum = 1.0
        norm.train()
    model(pixels)
    model.eval()
    if head is not None:
        seen: list[torch.Tensor] = []
        hook = head.register_forward_hook(lambda *arguments: seen.append(arguments[2]))
        model(pixels)
        hook.remove()
        scores = torch.cat([output.transpose(0, 1).flatten(1) for output in seen], dim=1)
        scale = 2 / scores.std(1)
        head.weight *= scale.reshape(-1, *[1] * (head.weight.ndim - 1))
        bias = torch.zeros(len(scores)) if head.bias is None else head.bias
        if head.bias is not None:
            head.bias.copy_((bias - scores.median(1).values) * scale)
    return model


def export(
    model: torch.nn.Module, pixels: torch.Tensor, path: Path, *, dynamo: bool = True
) -> None:
    """Export with an open batch, by the exporter of torch.export or by that of TorchScript."""
    shapes: dict[str, Any] = {
        "dynamo": dynamo,
        "input_names": ["input"],
        "output_names": ["output"],
    }
    if dynamo:
        shapes |= {"dynamic_shapes": ({0: "batch"},), "external_data": False, "verbose": False}
    else:
        shapes |= {
            "dynamic_axes": {"input": {0: "batch"}, "output": {0: "batch"}},
            "opset_version": 17,
        }
    torch.onnx.export(model.eval(), (pixels,), path, **shapes)


def write(
    folder: Path,
    exporter: str,
    toml: str,
    answer: Callable[[Path], Answer],
    export_to: Callable[[Path], Any],
    *,
    size_wh: tuple[int, int] | None = None,
    mode: str = "RGB",
) -> None:
    """Export a model, and write the library's answer to each picture."""
    folder.mkdir(parents=True)
    images = {}
    for name in SIZES:
        file = folder / f"{name}.png"
        picture(name, size_wh).convert(mode).save(file)
        images[file.name] = answer(file)
    export_to(folder / "model.onnx")
    write_expected(folder, exporter, toml, images)


def scored(probabilities: Any) -> Answer:
    return {"scores": dict(zip(LABELS, np.asarray(probabilities).tolist(), strict=True))}


def mapped(file: Path, classes: Any) -> Answer:
    return save_map(classes, file.with_name(f"{file.stem}-classes.png"))


def stacked(size_wh: tuple[int, int], mode: str = "RGB") -> torch.Tensor:
    """Pictures as float32 (3, C, H, W), 0 to 1."""
    rows = [np.asarray(picture(name, size_wh).convert(mode)) for name in SIZES]
    pixels = torch.from_numpy(np.stack(rows)).float() / 255
    return pixels[:, None] if mode == "L" else pixels.permute(0, 3, 1, 2)


def normalised(pixels: torch.Tensor, mean: Any = MEAN, std: Any = STD) -> torch.Tensor:
    return (pixels - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]


def opened(file: Path) -> torch.Tensor:
    """One image as float32 (1, C, H, W), 0 to 1."""
    pixels = torch.from_numpy(np.array(Image.open(file))).float() / 255
    return (pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1))[None]

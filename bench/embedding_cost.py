"""What the embedding costs: CPU of an answer with it beside one without, in one run.

An answer is what the server does of an image that is decoded: prepare, run, read. The models are the samples, a
residual network of 18 layers with random weights that is made here, and folders that are named. Rounds
interleave, so that a machine that changes its speed changes it for both; medians of the rounds' ratios are printed.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import cv2
import numpy as np
import onnx
from onnx import helper

from engine.inspection import open_model
from engine.model import Model
from engine.repository import find_model
from tasks.image import Image, decode
from tests.onnx_models import save, value
from tests.server_process import IMAGES, SAMPLE_MODELS

SAMPLES = [
    "shapes-classifier",
    "shapes-detector",
    "ships-oriented-detector",
    "shapes-segmenter",
    "shapes-image-text",
]
WITHOUT = {"monitor": {"embedding": "none"}}
LABELS = 10


def residual(folder: Path, size: int) -> Path:
    """Write a ResNet-18 with random weights, a classifier of ten labels."""
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, np.ndarray] = {}
    rng = np.random.default_rng(1)

    def convolved(before: str, shape: tuple[int, ...], stride: int) -> str:
        name = f"c{len(nodes)}"
        fan_in = np.prod(shape[1:])
        weights[f"{name}_w"] = (rng.normal(size=shape) / fan_in**0.5).astype(np.float32)
        pads = [shape[-1] // 2] * 4
        inputs = [before, f"{name}_w"]
        nodes.append(helper.make_node("Conv", inputs, [name], strides=[stride] * 2, pads=pads))
        return name

    def op(operator: str, *inputs: str, **attributes: object) -> str:
        name = f"o{len(nodes)}"
        nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        return name

    x = op("Relu", convolved("image", (64, 3, 7, 7), 2))
    x = op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for width, first in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for stride in (first, 1):
            y = op("Relu", convolved(x, (width, channels, 3, 3), stride))
            y = convolved(y, (width, width, 3, 3), 1)
            if width != channels or stride != 1:
                x = convolved(x, (width, channels, 1, 1), stride)
            x, channels = op("Relu", op("Add", x, y)), width
    weights["last"] = (rng.normal(size=(512, LABELS)) / 512**0.5).astype(np.float32)
    pooled = op("Flatten", op("GlobalAveragePool", x))
    nodes.append(helper.make_node("MatMul", [pooled, "last"], ["logits"]))
    shape = ["batch", 3, size, size]
    outputs = [value("logits", ["batch", LABELS])]
    save(folder / "model.onnx", nodes, [value("image", shape)], outputs, weights)
    labels = [f"label {number}" for number in range(LABELS)]
    (folder / "model.toml").write_text(f'family = "torchvision-classifier"\nlabels = {labels}\n')
    return folder


def images() -> list[Image]:
    """Decode the sample scenes."""
    return [decode(path.read_bytes()) for path in sorted((IMAGES / "detection").glob("*.jpg"))]


def answer_ms(model: Model, scenes: list[Image], count: int) -> float:
    """Answer images one by one; gives CPU milliseconds an image."""
    assert model.images is not None
    prompts = {"prompt": "How many circles?"} if model.recognition.task.endswith("TEXT") else {}
    options = model.images.options(prompts)
    begun = time.process_time()
    for number in range(count):
        model.images.answer([scenes[number % len(scenes)]], [options])
    return (time.process_time() - begun) / count * 1000


def compare(folder: Path, rounds: int, round_s: float) -> str:
    """Measure one model with and without its embedding."""
    file = find_model(folder)
    assert file is not None
    with_it, without = open_model(folder), Model(folder.name, "1", file, over=WITHOUT)
    if with_it.embedding.tensor is None:
        return f"{folder.name:26} none: {with_it.embedding.reason}"
    scenes = images()
    count = max(1, int(round_s * 1000 / answer_ms(without, scenes, 3)))
    ratios, bare = [], []
    for number in range(rounds):
        pair = (with_it, without) if number % 2 else (without, with_it)
        times = {model: answer_ms(model, scenes, count) for model in pair}
        ratios.append(times[with_it] / times[without])
        bare.append(times[without])
    low, middle, high = statistics.quantiles(ratios, n=4)
    return (
        f"{folder.name:26} {statistics.median(bare):8.2f} ms  {(middle - 1) * 100:+5.1f} %  "
        f"({(low - 1) * 100:+.1f} to {(high - 1) * 100:+.1f})  {with_it.embedding.length} numbers"
    )


def main() -> None:
    """Print a row a model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, help="further models")
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--round-s", type=float, default=0.1)
    asked = parser.parse_args()
    cv2.setNumThreads(1)
    print(f"{'model':26} {'without':>11}  {'more':>7}  (half of the rounds)")
    with tempfile.TemporaryDirectory() as temporary:
        made = [residual(Path(temporary) / f"resnet-18-of-{size}", size) for size in (64, 224)]
        for folder in [*(SAMPLE_MODELS / name for name in SAMPLES), *made, *asked.folders]:
            print(compare(folder, asked.rounds, asked.round_s), flush=True)


if __name__ == "__main__":
    main()

"""The cost of the embedding: CPU of a request with it and without, in one run.

An answer is what the server does of an image that is decoded: prepare, run, read. The models are the samples, a
residual network of 18 layers with random weights that is made here, and folders that are named. Answers with and
without take turns; that of each which one in ten is faster than is printed, as what else runs makes others slower.
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

from quadriga.engine.models.inspection import open_model
from quadriga.engine.models.model import Model
from quadriga.engine.models.model_folders import find_model
from quadriga.tasks.image import Image, decode
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

    def convolved(input_name: str, shape: tuple[int, ...], stride: int) -> str:
        name = f"c{len(nodes)}"
        fan_in = np.prod(shape[1:])
        weights[f"{name}_w"] = (rng.normal(size=shape) / fan_in**0.5).astype(np.float32)
        pads = [shape[-1] // 2] * 4
        inputs = [input_name, f"{name}_w"]
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
    save(
        folder / "model.onnx", nodes, [value("image", shape)], outputs=outputs, initializers=weights
    )
    labels = [f"label {number}" for number in range(LABELS)]
    (folder / "model.toml").write_text(f'family = "torchvision-classifier"\nlabels = {labels}\n')
    return folder


def images() -> list[Image]:
    """Decode the sample scenes."""
    return [decode(path.read_bytes()) for path in sorted((IMAGES / "detection").glob("*.jpg"))]


def compare(folder: Path, answers: int, most_s: float) -> str:
    """Measure one model with and without its embedding."""
    file = find_model(folder)
    assert file is not None
    with_it, without = open_model(folder), Model(folder.name, "1", file, overrides=WITHOUT)
    if with_it.embedding.tensor is None:
        return f"{folder.name:26} none: {with_it.embedding.reason}"
    prompts = {"prompt": "How many circles?"} if with_it.recognition.task.endswith("TEXT") else {}
    scene, until = images()[0], time.monotonic() + most_s
    spent: dict[bool, list[float]] = {True: [], False: []}
    while len(spent[True]) < answers and time.monotonic() < until:
        for model in (with_it, without):
            assert model.image_predictor is not None
            options = [model.image_predictor.read_options(prompts)]
            begun = time.process_time()
            model.image_predictor.predict([scene], options)
            spent[model is with_it].append(time.process_time() - begun)
    more, bare = (statistics.quantiles(spent[side], n=10)[0] for side in (True, False))
    return (
        f"{folder.name:26} {bare * 1000:8.2f} ms  {(more - bare) * 1e6:+6.0f} us  {(more / bare - 1) * 100:+5.1f} %"
        f"  {with_it.embedding.length} numbers, {len(spent[True])} answers"
    )


def main() -> None:
    """Print one row per model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, help="further models")
    parser.add_argument("--answers", type=int, default=3000)
    parser.add_argument("--most-s", type=float, default=20, help="of a model")
    arguments = parser.parse_args()
    cv2.setNumThreads(1)
    print(f"{'model':26} {'without':>11}  {'with it':>9}")
    with tempfile.TemporaryDirectory() as temporary:
        models = [residual(Path(temporary) / f"resnet-18-of-{size}", size) for size in (64, 224)]
        for folder in [*(SAMPLE_MODELS / name for name in SAMPLES), *models, *arguments.folders]:
            print(compare(folder, arguments.answers, arguments.most_s), flush=True)


if __name__ == "__main__":
    main()

"""Train the shapes classifier, export it and measure the exported file.

Run from the repository root: `python -m sample_models.training.train_classifier`.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import Tensor, nn

from sample_models.training.export import Signature, export_onnx, write_package
from sample_models.training.measurement import measure_classifier
from sample_models.training.networks import Classifier
from sample_models.training.optimisation import make_reproducible, optimise
from sample_models.training.preprocessing import stretch, to_tensor
from sample_models.training.scenes import (
    SHAPES,
    SINGLE_SHAPE,
    Image,
    Stream,
    draw_scene,
    draw_size_wh,
    scene_rng,
)

SIZE_WH = (64, 64)
LONG_SIDE_PX = (96, 800)
TRAINING_SCENES = 3000
EVALUATION_SCENES = 1000
BATCH = 48

CONFIG = """\
task = "classification"

[input]
size = [64, 64]               # width, height
color = "rgb"
scale = 0.00392156862745098   # 1/255
resize = "stretch"

[output]
activation = "softmax"        # the graph gives raw logits
"""


def main() -> None:
    """Train, export, measure and write the package."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=21)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--output", type=Path, default=Path("sample_models/shapes-classifier"))
    options = parser.parse_args()
    cv2.setNumThreads(1)
    make_reproducible(options.seed)
    started = time.process_time()
    pairs = list(draw_samples(options.seed, Stream.TRAINING, TRAINING_SCENES))
    images = torch.from_numpy(to_tensor(np.stack([stretch(image, SIZE_WH) for image, _ in pairs])))
    labels = torch.tensor([label for _, label in pairs])
    drawing_s = time.process_time() - started
    network = Classifier(len(SHAPES))
    training_s = optimise(network, options.steps, lambda: batch_loss(network, images, labels))
    path = options.output / "model.onnx"
    difference = export_onnx(network, Signature("input", SIZE_WH, "logits"), path)
    unseen = draw_samples(options.seed, Stream.EVALUATION, EVALUATION_SCENES)
    figures = {
        "seed": options.seed,
        "steps": options.steps,
        "batch": BATCH,
        "training_scenes": TRAINING_SCENES,
        "parameters": sum(one.numel() for one in network.parameters()),
        "cpu_seconds": {"scenes": round(drawing_s, 1), "training": round(training_s, 1)},
        "onnx_bytes": path.stat().st_size,
        "torch_to_onnxruntime_max_difference": difference,
        **measure_classifier(path, unseen, SHAPES),
    }
    write_package(options.output, SHAPES, CONFIG, figures)


def draw_samples(seed: int, stream: Stream, count: int) -> Iterator[tuple[Image, int]]:
    """Draw scenes of one shape: RGB image of varied size, and class index."""
    for index in range(count):
        rng = scene_rng(seed, stream, index)
        scene = draw_scene(rng, draw_size_wh(rng, LONG_SIDE_PX), SINGLE_SHAPE)
        yield scene.image, SHAPES.index(scene.objects[0].shape)


def batch_loss(network: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Compute the cross-entropy of a random batch, each image flipped or not along each axis."""
    chosen = torch.randint(len(images), (BATCH,))
    batch = images[chosen]
    for axis in (2, 3):
        flipped = torch.rand(BATCH) < 0.5
        batch[flipped] = batch[flipped].flip(axis)
    return nn.functional.cross_entropy(network(batch), labels[chosen])


if __name__ == "__main__":
    main()

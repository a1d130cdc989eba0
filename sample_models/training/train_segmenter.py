"""Train the shapes segmenter, export it and measure the exported file.

Run from the repository root: `python -m sample_models.training.train_segmenter`.
"""

import argparse
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import Tensor, nn

from sample_models.training.export import Signature, export_onnx, write_package
from sample_models.training.measurement import measure_segmenter
from sample_models.training.networks import Segmenter
from sample_models.training.optimisation import make_reproducible, optimise
from sample_models.training.preprocessing import stretch, to_tensor
from sample_models.training.scenes import (
    SEVERAL_SHAPES,
    SHAPES,
    SINGLE_SHAPE,
    Recipe,
    Scene,
    Stream,
    draw_class_map,
    draw_scene,
    draw_size_wh,
    scene_rng,
)

LABELS = ("background", *SHAPES)
SIZE_WH = (96, 96)
LONG_SIDE_PX = (96, 640)
TRAINING_SCENES = 2000
CLOSE_UP_SCENES = 400
"""Further training scenes, of one large shape."""
EVALUATION_SCENES = 200
BATCH = 16

CONFIG = """\
task = "segmentation"

[input]
size = [96, 96]               # width, height
color = "rgb"
scale = 0.00392156862745098   # 1/255
resize = "stretch"
"""


def main() -> None:
    """Train, export, measure and write the package."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=61)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--output", type=Path, default=Path("sample_models/shapes-segmenter"))
    options = parser.parse_args()
    cv2.setNumThreads(1)
    make_reproducible(options.seed)
    started = time.process_time()
    close_up_indices = range(TRAINING_SCENES, TRAINING_SCENES + CLOSE_UP_SCENES)
    images, classes = collect(
        chain(
            draw_scenes(options.seed, Stream.TRAINING, range(TRAINING_SCENES), SEVERAL_SHAPES),
            draw_scenes(options.seed, Stream.TRAINING, close_up_indices, SINGLE_SHAPE),
        )
    )
    drawing_s = time.process_time() - started
    network = Segmenter(len(LABELS))
    training_s = optimise(network, options.steps, lambda: batch_loss(network, images, classes))
    path = options.output / "model.onnx"
    difference = export_onnx(network, Signature("input", SIZE_WH, "logits"), path)
    unseen = (
        (scene.image, draw_class_map(scene, LABELS, scene.image.shape[1::-1]))
        for scene in draw_scenes(
            options.seed, Stream.EVALUATION, range(EVALUATION_SCENES), SEVERAL_SHAPES
        )
    )
    figures = {
        "seed": options.seed,
        "steps": options.steps,
        "batch": BATCH,
        "training_scenes": TRAINING_SCENES + CLOSE_UP_SCENES,
        "parameters": sum(one.numel() for one in network.parameters()),
        "cpu_seconds": {"scenes": round(drawing_s, 1), "training": round(training_s, 1)},
        "onnx_bytes": path.stat().st_size,
        "torch_to_onnxruntime_max_difference": difference,
        **measure_segmenter(path, unseen, LABELS),
    }
    write_package(options.output, LABELS, CONFIG, figures)


def draw_scenes(seed: int, stream: Stream, indices: range, recipe: Recipe) -> Iterator[Scene]:
    """Draw scenes of varied size by their numbers in a stream."""
    for index in indices:
        rng = scene_rng(seed, stream, index)
        yield draw_scene(rng, draw_size_wh(rng, LONG_SIDE_PX), recipe)


def collect(scenes: Iterator[Scene]) -> tuple[Tensor, Tensor]:
    """Stretch all scenes: images float32 (N, 3, H, W), 0..1, and classes int64 (N, H, W)."""
    images, classes = [], []
    for scene in scenes:
        images.append(stretch(scene.image, SIZE_WH))
        classes.append(draw_class_map(scene, LABELS, SIZE_WH))
    return torch.from_numpy(to_tensor(np.stack(images))), torch.from_numpy(np.stack(classes)).long()


def batch_loss(network: nn.Module, images: Tensor, classes: Tensor) -> Tensor:
    """Compute the loss of a random batch, each scene flipped or not along each axis.

    Cross-entropy of the pixels, and the Dice loss of the shapes, in which a small class weighs as
    much as a large one.
    """
    chosen = torch.randint(len(images), (BATCH,))
    batch, target = images[chosen], classes[chosen]
    for axis in (1, 2):
        flipped = torch.rand(BATCH) < 0.5
        batch[flipped] = batch[flipped].flip(axis + 1)
        target[flipped] = target[flipped].flip(axis)
    logits = network(batch)
    entropy = nn.functional.cross_entropy(logits, target)
    probability = logits.softmax(dim=1)
    wanted = nn.functional.one_hot(target, len(LABELS)).permute(0, 3, 1, 2).float()
    shared = (probability * wanted).sum(dim=(0, 2, 3))
    total = (probability + wanted).sum(dim=(0, 2, 3))
    dice = (2 * shared + 1) / (total + 1)
    loss: Tensor = entropy + (1 - dice).mean()
    return loss


if __name__ == "__main__":
    main()

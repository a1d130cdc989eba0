"""Train the shapes segmenter, export it and measure the exported file.

Run from the repository root: `python -m sample_models.training.train_segmenter`.
"""

from collections.abc import Iterator
from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn

from sample_models.training.export import Signature
from sample_models.training.measurement import measure_segmenter
from sample_models.training.networks import Segmenter
from sample_models.training.preprocessing import stretch, to_tensor
from sample_models.training.scenes import (
    SEVERAL_SHAPES,
    SHAPES,
    SINGLE_SHAPE,
    Scene,
    Stream,
    draw_class_map,
    draw_scenes,
)
from sample_models.training.training_run import TrainingRun

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
    run = TrainingRun(__doc__, "shapes-segmenter", seed=61, steps=1200)
    close_up_indices = range(TRAINING_SCENES, TRAINING_SCENES + CLOSE_UP_SCENES)
    images, classes = collect(
        chain(
            draw_scenes(
                run.seed, Stream.TRAINING, range(TRAINING_SCENES), LONG_SIDE_PX, SEVERAL_SHAPES
            ),
            draw_scenes(run.seed, Stream.TRAINING, close_up_indices, LONG_SIDE_PX, SINGLE_SHAPE),
        )
    )
    network = Segmenter(len(LABELS))
    run.optimise(network, BATCH, len(images), lambda: batch_loss(network, images, classes))
    unseen = (
        (scene.image, draw_class_map(scene, LABELS, scene.image.shape[1::-1]))
        for scene in draw_scenes(
            run.seed, Stream.EVALUATION, range(EVALUATION_SCENES), LONG_SIDE_PX, SEVERAL_SHAPES
        )
    )
    signature = Signature("input", SIZE_WH, "logits")
    run.write_package(
        network,
        signature,
        LABELS,
        config=CONFIG,
        measure=lambda path: measure_segmenter(path, unseen, LABELS),
    )


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
    expected = nn.functional.one_hot(target, len(LABELS)).permute(0, 3, 1, 2).float()
    shared = (probability * expected).sum(dim=(0, 2, 3))
    total = (probability + expected).sum(dim=(0, 2, 3))
    dice = (2 * shared + 1) / (total + 1)
    loss: Tensor = entropy + (1 - dice).mean()
    return loss


if __name__ == "__main__":
    main()

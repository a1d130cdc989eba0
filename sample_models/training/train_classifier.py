"""Train the shapes classifier, export it and measure the exported file.

Run from the repository root: `python -m sample_models.training.train_classifier`.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from sample_models.training.export import Signature
from sample_models.training.measurement import measure_classifier
from sample_models.training.networks import Classifier
from sample_models.training.preprocessing import stretch, to_tensor
from sample_models.training.scenes import SHAPES, SINGLE_SHAPE, Image, Stream, draw_scenes
from sample_models.training.training_run import TrainingRun

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
    run = TrainingRun(__doc__, "shapes-classifier", seed=21, steps=900)
    pairs = list(draw_samples(run.seed, Stream.TRAINING, TRAINING_SCENES))
    images = torch.from_numpy(to_tensor(np.stack([stretch(image, SIZE_WH) for image, _ in pairs])))
    labels = torch.tensor([label for _, label in pairs])
    network = Classifier(len(SHAPES))
    run.optimise(network, BATCH, len(pairs), lambda: batch_loss(network, images, labels))
    unseen = draw_samples(run.seed, Stream.EVALUATION, EVALUATION_SCENES)
    signature = Signature("input", SIZE_WH, "logits")
    run.write_package(
        network,
        signature,
        SHAPES,
        config=CONFIG,
        measure=lambda path: measure_classifier(path, unseen, SHAPES),
    )


def draw_samples(seed: int, stream: Stream, count: int) -> Iterator[tuple[Image, int]]:
    """Draw scenes of one shape: RGB image of varied size, and class index."""
    for scene in draw_scenes(seed, stream, range(count), LONG_SIDE_PX, SINGLE_SHAPE):
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

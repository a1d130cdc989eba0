"""Train the shapes detector, export it and measure the exported file.

Run from the repository root: `python -m sample_models.training.train_detector`.
"""

from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor

from sample_models.training.boxes import BoxSet
from sample_models.training.detection_loss import detection_loss
from sample_models.training.export import Signature
from sample_models.training.fitted_scenes import FittedScenes, fit_scenes
from sample_models.training.measurement import measure_detector, scene_boxes
from sample_models.training.networks import Detector
from sample_models.training.preprocessing import image_to_network
from sample_models.training.scenes import (
    SEVERAL_SHAPES,
    SHAPES,
    SINGLE_SHAPE,
    Image,
    Recipe,
    Stream,
    draw_scenes,
)
from sample_models.training.training_run import TrainingRun

SIZE_PX = 160
LONG_SIDE_PX = (160, 800)
TRAINING_SCENES = 1600
CLOSE_UP_SCENES = 400
"""Further training scenes, of one large shape: without them large shapes are found twice."""
EVALUATION_SCENES = 200
BATCH = 16

CONFIG = """\
task = "detection"

[input]
size = [160, 160]             # width, height
color = "rgb"
scale = 0.00392156862745098   # 1/255
resize = "letterbox"
pad_value = 114

[output]
decoder = "ultralytics"       # (batch, 4 + classes, anchors): cx, cy, w, h, then probabilities

[defaults]
score_threshold = 0.25
iou_threshold = 0.7
max_detections = 300
"""


def main() -> None:
    """Train, export, measure and write the package."""
    run = TrainingRun(__doc__, "shapes-detector", seed=32, steps=2600)
    close_up_indices = range(TRAINING_SCENES, TRAINING_SCENES + CLOSE_UP_SCENES)
    samples = chain(
        draw_samples(run.seed, Stream.TRAINING, range(TRAINING_SCENES), SEVERAL_SHAPES),
        draw_samples(run.seed, Stream.TRAINING, close_up_indices, SINGLE_SHAPE),
    )
    scenes = fit_scenes(samples, SIZE_PX, SEVERAL_SHAPES.count[1], image_to_network)
    network = Detector(len(SHAPES), SIZE_PX)
    run.optimise(network, BATCH, len(scenes.images), lambda: batch_loss(network, scenes))
    unseen = draw_samples(run.seed, Stream.EVALUATION, range(EVALUATION_SCENES), SEVERAL_SHAPES)
    signature = Signature("images", (SIZE_PX, SIZE_PX), "output0")
    run.write_package(
        network,
        signature,
        SHAPES,
        config=CONFIG,
        measure=lambda path: measure_detector(path, unseen, SHAPES),
    )


def draw_samples(
    seed: int, stream: Stream, indices: range, recipe: Recipe
) -> Iterator[tuple[Image, BoxSet]]:
    """Draw scenes by their numbers in a stream: RGB image of varied size, and true boxes."""
    for scene in draw_scenes(seed, stream, indices, LONG_SIDE_PX, recipe):
        yield scene.image, scene_boxes(scene, SHAPES)


def batch_loss(network: Detector, scenes: FittedScenes) -> Tensor:
    """Compute the loss of a random batch, each image flipped or not along each axis."""
    chosen = torch.randint(len(scenes.images), (BATCH,))
    images = scenes.images[chosen].float() / 255
    boxes = scenes.boxes[chosen]
    used = (boxes[..., 2:] > boxes[..., :2]).all(dim=2, keepdim=True)
    for axis, image_axis in ((0, 3), (1, 2)):
        flipped = torch.rand(BATCH) < 0.5
        images[flipped] = images[flipped].flip(image_axis)
        mirrored = boxes.clone()
        mirrored[..., axis] = SIZE_PX - boxes[..., axis + 2]
        mirrored[..., axis + 2] = SIZE_PX - boxes[..., axis]
        boxes = torch.where(flipped[:, None, None] & used, mirrored, boxes)
    return detection_loss(network.grid, network.predict(images), boxes, scenes.labels[chosen])


if __name__ == "__main__":
    main()

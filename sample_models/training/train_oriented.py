"""Train the oriented detector of ships, barges and planes, export it and measure the exported file.

Run from the repository root: `python -m sample_models.training.train_oriented`.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from sample_models.training.aerial_scenes import (
    CRAFT,
    AerialRecipe,
    aerial_boxes,
    draw_aerial_scene,
)
from sample_models.training.boxes import BoxSet
from sample_models.training.export import Signature
from sample_models.training.fitted_scenes import FittedScenes, fit_scenes
from sample_models.training.measurement import measure_oriented
from sample_models.training.networks import OrientedDetector
from sample_models.training.oriented_boxes import oriented_to_network
from sample_models.training.oriented_loss import oriented_loss
from sample_models.training.scenes import Image, Stream, draw_size_wh, scene_rng
from sample_models.training.training_run import TrainingRun

SIZE_PX = 160
LONG_SIDE_PX = (160, 800)
RECIPE = AerialRecipe()
TRAINING_SCENES = 2000
EVALUATION_SCENES = 200
BATCH = 16

CONFIG = """\
task = "oriented"

[input]
size = [160, 160]             # width, height
color = "rgb"
scale = 0.00392156862745098   # 1/255
resize = "letterbox"
pad_value = 114

[output]
decoder = "ultralytics_obb"   # (batch, 4 + classes + 1, anchors): cx, cy, w, h, probabilities, angle

[defaults]
score_threshold = 0.25
iou_threshold = 0.3
max_detections = 300
"""


def main() -> None:
    """Train, export, measure and write the package."""
    run = TrainingRun(__doc__, "ships-oriented-detector", seed=71, steps=2600)
    samples = draw_samples(run.seed, Stream.TRAINING, TRAINING_SCENES)
    scenes = fit_scenes(samples, SIZE_PX, RECIPE.count[1], oriented_to_network)
    network = OrientedDetector(len(CRAFT), SIZE_PX)
    run.optimise(network, BATCH, len(scenes.images), lambda: batch_loss(network, scenes))
    unseen = draw_samples(run.seed, Stream.EVALUATION, EVALUATION_SCENES)
    signature = Signature("images", (SIZE_PX, SIZE_PX), "output0")
    run.write_package(
        network,
        signature,
        CRAFT,
        config=CONFIG,
        measure=lambda path: measure_oriented(path, unseen, CRAFT),
    )


def draw_samples(seed: int, stream: Stream, count: int) -> Iterator[tuple[Image, BoxSet]]:
    """Draw scenes: RGB image of varied size, and true oriented boxes."""
    for index in range(count):
        rng = scene_rng(seed, stream, index)
        scene = draw_aerial_scene(rng, draw_size_wh(rng, LONG_SIDE_PX), RECIPE)
        yield scene.image, aerial_boxes(scene)


def batch_loss(network: OrientedDetector, scenes: FittedScenes) -> Tensor:
    """Compute the loss of a random batch, each scene mirrored or not along x, y and a diagonal."""
    chosen = torch.randint(len(scenes.images), (BATCH,))
    images = scenes.images[chosen].float() / 255
    boxes = scenes.boxes[chosen]
    used = boxes[..., 2] > 0
    for axis, image_axis in ((0, 3), (1, 2)):
        flipped = torch.rand(BATCH) < 0.5
        images[flipped] = images[flipped].flip(image_axis)
        mirrored = boxes.clone()
        mirrored[..., axis] = SIZE_PX - boxes[..., axis]
        mirrored[..., 4] = -boxes[..., 4]
        boxes = torch.where((flipped[:, None] & used)[..., None], mirrored, boxes)
    swapped = torch.rand(BATCH) < 0.5
    images[swapped] = images[swapped].transpose(2, 3)
    mirrored = boxes[..., [1, 0, 2, 3, 4]]
    mirrored[..., 4] = math.pi / 2 - boxes[..., 4]
    boxes = torch.where((swapped[:, None] & used)[..., None], mirrored, boxes)
    return oriented_loss(network.grid, network.predict(images), boxes, scenes.labels[chosen])


if __name__ == "__main__":
    main()

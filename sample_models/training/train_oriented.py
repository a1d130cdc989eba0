"""Train the oriented detector of ships, barges and planes, export it and measure the exported file.

Run from the repository root: `python -m sample_models.training.train_oriented`.
"""

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import Tensor

from sample_models.training.aerial_scenes import (
    CRAFT,
    AerialRecipe,
    aerial_boxes,
    draw_aerial_scene,
)
from sample_models.training.boxes import BoxSet
from sample_models.training.export import Signature, export_onnx, write_package
from sample_models.training.measurement import measure_oriented
from sample_models.training.networks import OrientedDetector
from sample_models.training.optimisation import make_reproducible, optimise
from sample_models.training.oriented_boxes import oriented_to_network
from sample_models.training.oriented_loss import oriented_loss
from sample_models.training.preprocessing import letterbox
from sample_models.training.scenes import Image, Stream, draw_size_wh, scene_rng

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


@dataclass(frozen=True)
class TrainingSet:
    """All training scenes in network form.

    Attributes:
        images: uint8 (N, 3, size, size), RGB.
        boxes: float32 (N, M, 5), cx, cy, w, h in network pixels, angle; unused rows are zero.
        labels: int64 (N, M).
    """

    images: Tensor
    boxes: Tensor
    labels: Tensor


def main() -> None:
    """Train, export, measure and write the package."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=71)
    parser.add_argument("--steps", type=int, default=2600)
    parser.add_argument(
        "--output", type=Path, default=Path("sample_models/ships-oriented-detector")
    )
    options = parser.parse_args()
    cv2.setNumThreads(1)
    make_reproducible(options.seed)
    started = time.process_time()
    scenes = collect(draw_samples(options.seed, Stream.TRAINING, TRAINING_SCENES))
    drawing_s = time.process_time() - started
    network = OrientedDetector(len(CRAFT), SIZE_PX)
    training_s = optimise(network, options.steps, lambda: batch_loss(network, scenes))
    path = options.output / "model.onnx"
    difference = export_onnx(network, Signature("images", (SIZE_PX, SIZE_PX), "output0"), path)
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
        **measure_oriented(path, unseen, CRAFT),
    }
    write_package(options.output, CRAFT, CONFIG, figures)


def draw_samples(seed: int, stream: Stream, count: int) -> Iterator[tuple[Image, BoxSet]]:
    """Draw scenes: RGB image of varied size, and true oriented boxes."""
    for index in range(count):
        rng = scene_rng(seed, stream, index)
        scene = draw_aerial_scene(rng, draw_size_wh(rng, LONG_SIDE_PX), RECIPE)
        yield scene.image, aerial_boxes(scene)


def collect(samples: Iterator[tuple[Image, BoxSet]]) -> TrainingSet:
    """Letterbox all samples and pad their boxes to one number."""
    most = RECIPE.count[1]
    images, boxes, labels = [], [], []
    for image, truth in samples:
        fitted, frame = letterbox(image, (SIZE_PX, SIZE_PX))
        unused = most - len(truth.boxes)
        images.append(fitted.transpose(2, 0, 1))
        boxes.append(np.pad(oriented_to_network(truth.boxes, frame), ((0, unused), (0, 0))))
        labels.append(np.pad(truth.labels, (0, unused)))
    return TrainingSet(
        torch.from_numpy(np.stack(images)),
        torch.from_numpy(np.stack(boxes)).float(),
        torch.from_numpy(np.stack(labels)),
    )


def batch_loss(network: OrientedDetector, scenes: TrainingSet) -> Tensor:
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

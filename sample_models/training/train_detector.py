"""Train the shapes detector, export it and measure the exported file.

Run from the repository root: `python -m sample_models.training.train_detector`.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import Tensor

from sample_models.training.boxes import BoxSet
from sample_models.training.detection_loss import detection_loss
from sample_models.training.export import Signature, export_onnx, write_package
from sample_models.training.measurement import measure_detector, scene_boxes
from sample_models.training.networks import Detector
from sample_models.training.optimisation import make_reproducible, optimise
from sample_models.training.preprocessing import image_to_network, letterbox
from sample_models.training.scenes import (
    SEVERAL_SHAPES,
    SHAPES,
    SINGLE_SHAPE,
    Image,
    Recipe,
    Stream,
    draw_scene,
    draw_size_wh,
    scene_rng,
)

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


@dataclass(frozen=True)
class TrainingSet:
    """All training scenes in network form.

    Attributes:
        images: uint8 (N, 3, size, size), RGB.
        boxes: float32 (N, M, 4), xyxy, network pixels; unused rows are zero.
        labels: int64 (N, M).
    """

    images: Tensor
    boxes: Tensor
    labels: Tensor


def main() -> None:
    """Train, export, measure and write the package."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=32)
    parser.add_argument("--steps", type=int, default=2600)
    parser.add_argument("--output", type=Path, default=Path("sample_models/shapes-detector"))
    options = parser.parse_args()
    cv2.setNumThreads(1)
    make_reproducible(options.seed)
    started = time.process_time()
    close_up_indices = range(TRAINING_SCENES, TRAINING_SCENES + CLOSE_UP_SCENES)
    scenes = collect(
        chain(
            draw_samples(options.seed, Stream.TRAINING, range(TRAINING_SCENES), SEVERAL_SHAPES),
            draw_samples(options.seed, Stream.TRAINING, close_up_indices, SINGLE_SHAPE),
        )
    )
    drawing_s = time.process_time() - started
    network = Detector(len(SHAPES), SIZE_PX)
    training_s = optimise(network, options.steps, lambda: batch_loss(network, scenes))
    path = options.output / "model.onnx"
    difference = export_onnx(network, Signature("images", (SIZE_PX, SIZE_PX), "output0"), path)
    unseen = draw_samples(options.seed, Stream.EVALUATION, range(EVALUATION_SCENES), SEVERAL_SHAPES)
    figures = {
        "seed": options.seed,
        "steps": options.steps,
        "batch": BATCH,
        "training_scenes": TRAINING_SCENES + CLOSE_UP_SCENES,
        "parameters": sum(one.numel() for one in network.parameters()),
        "cpu_seconds": {"scenes": round(drawing_s, 1), "training": round(training_s, 1)},
        "onnx_bytes": path.stat().st_size,
        "torch_to_onnxruntime_max_difference": difference,
        **measure_detector(path, unseen, SHAPES),
    }
    write_package(options.output, SHAPES, CONFIG, figures)


def draw_samples(
    seed: int, stream: Stream, indices: range, recipe: Recipe
) -> Iterator[tuple[Image, BoxSet]]:
    """Draw scenes by their numbers in a stream: RGB image of varied size, and true boxes."""
    for index in indices:
        rng = scene_rng(seed, stream, index)
        scene = draw_scene(rng, draw_size_wh(rng, LONG_SIDE_PX), recipe)
        yield scene.image, scene_boxes(scene, SHAPES)


def collect(samples: Iterator[tuple[Image, BoxSet]]) -> TrainingSet:
    """Letterbox all samples and pad their boxes to one number."""
    most = SEVERAL_SHAPES.count[1]
    images, boxes, labels = [], [], []
    for image, truth in samples:
        fitted, frame = letterbox(image, (SIZE_PX, SIZE_PX))
        unused = most - len(truth.boxes)
        images.append(fitted.transpose(2, 0, 1))
        boxes.append(np.pad(image_to_network(truth.boxes, frame), ((0, unused), (0, 0))))
        labels.append(np.pad(truth.labels, (0, unused)))
    return TrainingSet(
        torch.from_numpy(np.stack(images)),
        torch.from_numpy(np.stack(boxes)).float(),
        torch.from_numpy(np.stack(labels)),
    )


def batch_loss(network: Detector, scenes: TrainingSet) -> Tensor:
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

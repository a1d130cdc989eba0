"""Training scenes of detectors, fitted into the network's size."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sample_models.training.boxes import Boxes, BoxSet
from sample_models.training.preprocessing import Letterbox, letterbox
from sample_models.training.scenes import Image


@dataclass(frozen=True)
class FittedScenes:
    """All training scenes in network form.

    Attributes:
        images: uint8 (N, 3, size, size), RGB.
        boxes: float32 (N, M, K), in network pixels, as the samples have them; unused rows are zero.
        labels: int64 (N, M).
    """

    images: Tensor
    boxes: Tensor
    labels: Tensor


def fit_scenes(
    samples: Iterator[tuple[Image, BoxSet]],
    size_px: int,
    most: int,
    to_network: Callable[[Boxes, Letterbox], Boxes],
) -> FittedScenes:
    """Letterbox all samples and pad their boxes to one number.

    Args:
        samples: RGB images of any size, and their true boxes.
        size_px: width and height of the network input.
        most: number of boxes of each scene, the unused included.
        to_network: maps boxes from pixels of the image to pixels of the network.
    """
    images, boxes, labels = [], [], []
    for image, truth in samples:
        fitted, frame = letterbox(image, (size_px, size_px))
        unused = most - len(truth.boxes)
        images.append(fitted.transpose(2, 0, 1))
        boxes.append(np.pad(to_network(truth.boxes, frame), ((0, unused), (0, 0))))
        labels.append(np.pad(truth.labels, (0, unused)))
    return FittedScenes(
        torch.from_numpy(np.stack(images)),
        torch.from_numpy(np.stack(boxes)).float(),
        torch.from_numpy(np.stack(labels)),
    )

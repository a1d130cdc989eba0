"""Segmentation families: one file each turns raw outputs into masks in the image. Tables, no discovery."""

from collections.abc import Iterator
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from tasks.predictions import Outputs
from tasks.resize import Affine

SEGMENTERS = {
    "semantic_logits": "tasks.segmenters.semantic:class_logits",
    "class_map": "tasks.segmenters.semantic:class_map",
    "binary": "tasks.segmenters.semantic:single",
    "birefnet": "tasks.segmenters.semantic:last",
    "u2net": "tasks.segmenters.semantic:stretched",
    "ultralytics_segment": "tasks.segmenters.ultralytics:raw_head",
    "ultralytics_segment_end2end": "tasks.segmenters.ultralytics:end_to_end",
    "mask_rcnn": "tasks.segmenters.mask_rcnn:box_masks",
    "rf_detr_segment": "tasks.segmenters.queries:rf_detr",
    "maskformer_semantic": "tasks.segmenters.queries:maskformer_semantic",
    "maskformer_instance": "tasks.segmenters.queries:maskformer_instance",
    "mask2former_semantic": "tasks.segmenters.queries:mask2former_semantic",
    "mask2former_instance": "tasks.segmenters.queries:mask2former_instance",
}
"""Name to `module:attribute` of a `Segmenter`; `model.toml` may give such a reference of its own."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a segmenter is told beside the outputs."""

    score_threshold: float
    """Instances that do not score above it are left out."""
    iou_threshold: float
    """An instance whose box overlaps a better one of its class by more is left out."""
    limit: int
    """Most instances to answer; the best are kept."""
    label_count: int
    background: int | None = None
    """Class that is not answered."""
    activation: Literal["none", "softmax", "sigmoid"] = "none"
    """What is still to be applied to the scores of a pixel."""
    label_offset: int = 0
    """Class number of the first label."""


class Region(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """Pixels of one class, in a crop of the image."""

    class_id: int
    """From 0."""
    mask: npt.NDArray[np.uint8]
    """uint8 (H, W), zero outside the region."""
    left: int
    """Column of the image at which the mask starts."""
    top: int
    score: float = 1.0
    probabilities: npt.NDArray[np.float32] | None = None
    """float32 (H, W), of the class at each pixel; instead of a score of the whole."""
    instance: bool = False
    """Whether this is one thing, to be answered as one even where its parts lie apart."""


class Segmenter(Protocol):
    """A function from the outputs of one image to regions."""

    def __call__(self, outputs: Outputs, affine: Affine, asked: Asked) -> Iterator[Region]:
        """Give the regions one by one: their masks together may be larger than memory.

        `outputs` are without the batch axis; `affine` says how the image lies in the network's
        input.

        Raises:
            tasks.predictions.OutputError: An output is missing, has another shape, or is not
                finite.
        """
        ...


def are_probabilities(cells: npt.NDArray[Any]) -> bool:
    """Tell probabilities from logits: from 0 to 1, but for what a resize in the graph rounds."""
    rounding = 2e-3  # of float16 twice
    return bool(cells.min() >= -rounding and cells.max() <= 1 + rounding)

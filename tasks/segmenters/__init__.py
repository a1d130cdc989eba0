"""Segmenters: a function for each model family turns raw outputs into masks in the image. Tables, no discovery."""

import math
from collections.abc import Iterator
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.tasks.predictions import OutputError, Outputs, check_finite
from quadriga.tasks.resize import Affine
from quadriga.tasks.sampling import Floats, PixelRect, above_zero, bilinear

SEGMENTERS = {
    "semantic_logits": "quadriga.tasks.segmenters.semantic:class_logits",
    "class_map": "quadriga.tasks.segmenters.semantic:class_map",
    "ultralytics_semantic": "quadriga.tasks.segmenters.semantic:ultralytics_class_map",
    "binary": "quadriga.tasks.segmenters.semantic:single",
    "birefnet": "quadriga.tasks.segmenters.semantic:last",
    "u2net": "quadriga.tasks.segmenters.semantic:stretched",
    "ultralytics_segment": "quadriga.tasks.segmenters.ultralytics:raw_head",
    "yolov5_segment": "quadriga.tasks.segmenters.ultralytics:objectness_head",
    "ultralytics_segment_end2end": "quadriga.tasks.segmenters.ultralytics:end_to_end",
    "mask_rcnn": "quadriga.tasks.segmenters.mask_rcnn:box_masks",
    "rf_detr_segment": "quadriga.tasks.segmenters.queries:rf_detr",
    "maskformer_semantic": "quadriga.tasks.segmenters.queries:maskformer_semantic",
    "maskformer_instance": "quadriga.tasks.segmenters.queries:maskformer_instance",
    "mask2former_semantic": "quadriga.tasks.segmenters.queries:mask2former_semantic",
    "mask2former_instance": "quadriga.tasks.segmenters.queries:mask2former_instance",
}
"""Name to `module:attribute` of a `Segmenter`; `model.toml` may name a reference directly."""

OF_ONE_MAP = ("semantic_logits", "class_map", "ultralytics_semantic", "binary")
"""Segmenters that read one output, where others are auxiliary."""
OF_MAPS = (*OF_ONE_MAP, "birefnet", "u2net")
"""Segmenters of outputs with one channel for each class, or one alone."""


class SegmenterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a segmenter, from the request and the specification."""

    score_threshold: float
    """Minimum score of an instance, itself excluded."""
    iou_threshold: float
    """Overlap (IoU) of boxes with a better instance of the same class above which an instance is dropped."""
    limit: int
    """Maximum instances to return, the best ones."""
    label_count: int
    background: int | None = None
    """Position of the label that is not predicted."""
    activation: Literal["none", "softmax", "sigmoid"] = "none"
    """Function to apply to the scores of a pixel."""
    label_offset: int = 0
    """Class id of the first label."""
    nms: Literal["class", "agnostic"] = "class"
    """Whether an instance drops overlapping ones of its own class only, or of every class."""


class MaskRegion(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """Pixels of one class, in a crop of the image."""

    class_id: int
    """Position of the label, from 0."""
    mask: npt.NDArray[np.uint8]
    """uint8 (H, W), zero outside the region."""
    left: int
    """Column of the image at which the mask starts; `top` is its row."""
    top: int
    score: float = 1.0
    probabilities: npt.NDArray[np.float32] | None = None
    """float32 (H, W), probability of the class at each pixel, instead of one score."""
    instance: bool = False
    """Whether the region is one object, and one prediction even if its components lie apart."""


class Segmenter(Protocol):
    """A function from the outputs of one image to regions."""

    def __call__(
        self, outputs: Outputs, affine: Affine, options: SegmenterOptions
    ) -> Iterator[MaskRegion]:
        """Yield the regions one by one, as their masks together may be larger than memory.

        `outputs` are without the batch axis; `affine` maps the image to the network's input.

        Raises:
            quadriga.tasks.predictions.OutputError: An output is missing, has another shape, or is not
                finite.
        """
        ...


def region_of(
    logits: Floats,
    grid: Affine,
    within: PixelRect,
    class_id: int,
    score: float,
    *,
    upsample: int = 1,
) -> Iterator[MaskRegion]:
    """Enlarge the logits of one instance, float32 (h, w), to the image; above zero is inside.

    `grid` maps the image to their cells; the mask is cut off at `within`, and an empty mask yields no region.
    `upsample` is that of `quadriga.tasks.sampling.bilinear`.
    """
    window = above_zero(logits, grid).intersection(within)
    if window.empty:
        return
    mask = (bilinear(logits[None], grid, window, upsample)[0] > 0).view(np.uint8)
    if mask.any():
        yield MaskRegion(
            class_id=class_id,
            mask=mask,
            left=window.left,
            top=window.top,
            score=score,
            instance=True,
        )


def pixels_of_box(affine: Affine, box: Floats | list[float]) -> PixelRect:
    """Return the pixels whose left and top edges lie in a box, xyxy, pixels of the image.

    Source: Ultralytics 8.4, `utils/ops.py` crop_mask.
    """
    left, top, right, bottom = (math.ceil(value) for value in box)
    return PixelRect(
        max(left, 0), max(top, 0), min(right, affine.width), min(bottom, affine.height)
    )


def named(outputs: Outputs, name: str, position: int, rank: int) -> npt.NDArray[Any]:
    """Return an output of finite numbers and `rank` axes by its name, or by its position if no output has the name."""
    output = outputs.get(name)
    if output is None and position < len(outputs):
        output = list(outputs.values())[position]
    if output is None or output.ndim != rank:
        got = "none" if output is None else f"the shape {output.shape}"
        raise OutputError(f"expected output {name!r} to have {rank} axes, got {got}")
    if output.dtype.kind == "f":
        check_finite(output, subject=f"output {name!r}")
    return output

"""Mask R-CNN of torchvision and mmdeploy: boxes, labels, scores and a mask for each box."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.tasks.predictions import OutputError, Outputs, check_finite
from quadriga.tasks.resize import Affine
from quadriga.tasks.sampling import Floats, PixelRect, grid_of, visible
from quadriga.tasks.segmenters import MaskRegion, SegmenterOptions, region_of

_INSIDE = 0.5


def box_masks(outputs: Outputs, affine: Affine, options: SegmenterOptions) -> Iterator[MaskRegion]:
    """Read four outputs, recognised by their shapes and types, in any order.

    Boxes, float (N, 4), xyxy in pixels of the network's input, with scores, float (N,); or both in
    one, float (N, 5). Labels, integer (N,). Masks, probabilities, float (N, 1, h, w) or (N, h, w):
    as large as the network's input, or smaller and then each within its box. A pixel above one half is
    inside. Overlapping boxes are suppressed in the graph.

    Source: torchvision 0.28, `models/detection/roi_heads.py` paste_masks_in_image; mmdeploy.
    """
    boxes, scores, labels, masks = _read(outputs)
    order = np.argsort(-scores, kind="stable")
    rows = order[scores[order] > options.score_threshold][: options.limit]
    class_ids = labels.astype(np.int64) - options.label_offset
    for index in rows.tolist():
        if class_ids[index] < 0:
            continue  # the background
        label_score = int(class_ids[index]), float(scores[index])
        mask = masks[index].astype(np.float32) - np.float32(_INSIDE)
        check_finite(mask, subject="masks")
        if mask.shape == affine.network_wh[::-1]:
            grid = grid_of(affine, mask.shape)
            yield from region_of(mask, grid, visible(grid), *label_score)
        else:
            yield from _pasted(mask, boxes[index], affine, *label_score)


def _pasted(
    mask: Floats, box: npt.NDArray[np.float64], affine: Affine, class_id: int, score: float
) -> Iterator[MaskRegion]:
    """Enlarge a mask to its box, with a row of cells around it outside, as torchvision pads it."""
    left, top, right, bottom = affine.to_image(box[None])[0].tolist()
    if right <= left or bottom <= top:
        return
    height, width = mask.shape
    cell_w, cell_h = (right - left) / width, (bottom - top) / height
    # pretend that the image is larger than the box: cells beyond its edges would not be sampled
    shift_x, shift_y = max(0, math.ceil(cell_w - left)), max(0, math.ceil(cell_h - top))
    grid = Affine(
        sx=1 / cell_w,
        sy=1 / cell_h,
        px=1 - (left + shift_x) / cell_w,
        py=1 - (top + shift_y) / cell_h,
        width=shift_x + math.ceil(max(right + cell_w, affine.width)),
        height=shift_y + math.ceil(max(bottom + cell_h, affine.height)),
        network_wh=(width + 2, height + 2),
    )
    visible_rect = visible(affine)
    within = PixelRect(
        visible_rect.left + shift_x,
        visible_rect.top + shift_y,
        visible_rect.right + shift_x,
        visible_rect.bottom + shift_y,
    )
    padded = np.pad(mask, 1, constant_values=-_INSIDE)
    for region in region_of(padded, grid, within, class_id=class_id, score=score):
        left, top = region.left - shift_x, region.top - shift_y
        yield msgspec.structs.replace(region, left=left, top=top)


def _only(
    arrays: list[npt.NDArray[Any]], subject: str, fits: Callable[[npt.NDArray[Any]], bool]
) -> npt.NDArray[Any]:
    matches = [array for array in arrays if fits(array)]
    if len(matches) != 1:
        shapes = ", ".join(f"{array.dtype} {array.shape}" for array in arrays)
        raise OutputError(f"expected one output of {subject}, got {len(matches)} among {shapes}")
    return matches[0]


def _read(outputs: Outputs) -> tuple[npt.NDArray[Any], ...]:
    """Return boxes (N, 4), scores (N,), labels (N,) and masks (N, h, w)."""
    arrays = list(outputs.values())
    masks = _only(arrays, "masks", lambda array: array.ndim >= 3)
    labels = _only(arrays, "labels", lambda array: array.ndim == 1 and array.dtype.kind in "iu")
    boxes = _only(arrays, "boxes", lambda array: array.ndim == 2 and array.shape[1] in {4, 5})
    if boxes.shape[1] == 5:
        scores = boxes[:, 4]
    else:
        scores = _only(arrays, "scores", lambda a: a.ndim == 1 and a.dtype.kind == "f")
    if masks.ndim == 4 and masks.shape[1] == 1:
        masks = masks[:, 0]
    if masks.ndim != 3 or not len(boxes) == len(scores) == len(labels) == len(masks):
        shapes = ", ".join(str(array.shape) for array in arrays)
        raise OutputError(f"expected equally many boxes, scores, labels and masks, got {shapes}")
    if not (np.isfinite(boxes).all() and np.isfinite(scores).all()):
        raise OutputError("expected boxes and scores to be finite, got NaN or infinity")
    return boxes[:, :4].astype(np.float64), scores.astype(np.float64), labels, masks

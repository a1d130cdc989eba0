"""Segmenters: a function for each model family turns raw outputs into masks in the image. Tables, no discovery."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

import cv2
import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.tasks import decoders
from quadriga.tasks.classification import sigmoid, softmax
from quadriga.tasks.decoders import Candidates, class_numbers
from quadriga.tasks.geometry import Mask, clip_boxes, nms
from quadriga.tasks.predictions import ROUNDING, OutputError, Outputs, check_finite
from quadriga.tasks.resize import (
    Affine,
    Floats,
    PixelRect,
    above_zero,
    bilinear,
    cut,
    grid_of,
    nearest,
    visible,
)

SEGMENTERS = {
    "semantic_logits": "quadriga.tasks.segmenters:class_logits",
    "class_map": "quadriga.tasks.segmenters:class_map",
    "ultralytics_semantic": "quadriga.tasks.segmenters:ultralytics_class_map",
    "binary": "quadriga.tasks.segmenters:single",
    "birefnet": "quadriga.tasks.segmenters:last",
    "u2net": "quadriga.tasks.segmenters:stretched",
    "ultralytics_segment": "quadriga.tasks.segmenters:raw_head",
    "yolov5_segment": "quadriga.tasks.segmenters:objectness_head",
    "ultralytics_segment_end2end": "quadriga.tasks.segmenters:end_to_end",
    "mask_rcnn": "quadriga.tasks.segmenters:box_masks",
    "rf_detr_segment": "quadriga.tasks.segmenters:rf_detr",
    "maskformer_semantic": "quadriga.tasks.segmenters:maskformer_semantic",
    "maskformer_instance": "quadriga.tasks.segmenters:maskformer_instance",
    "mask2former_semantic": "quadriga.tasks.segmenters:mask2former_semantic",
    "mask2former_instance": "quadriga.tasks.segmenters:mask2former_instance",
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


Segmenter = Callable[[Outputs, Affine, SegmenterOptions], Iterator[MaskRegion]]
"""Yields the regions of one image one by one, as their masks together may be larger than memory.

The outputs are without the batch axis; the `Affine` maps the image to the network's input.

Raises:
    quadriga.tasks.predictions.OutputError: An output is missing, has another shape, or is not finite.
"""


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
    `upsample` is that of `quadriga.tasks.resize.bilinear`.
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


_ROUNDING_CELLS = 1e-6
"""Distance from an edge between cells that counts as none."""


def raw_head(outputs: Outputs, affine: Affine, options: SegmenterOptions) -> Iterator[MaskRegion]:
    """Read a head, float (4 + classes + k, anchors), and prototypes, float (k, h, w).

    The first rows are those of a detection head; the last k are the weights of the prototypes in the mask. Overlapping boxes are suppressed before masks are made.

    Source: Ultralytics 8.4, `models/yolo/segment/predict.py` and `utils/ops.py` process_mask_native.
    """
    head, prototypes = _split(outputs)
    count = 4 + options.label_count
    if head.shape[0] != count + len(prototypes):
        raise OutputError(
            f"expected output 0 to have 4 + {options.label_count} + {len(prototypes)} rows,"
            f" for boxes, labels and prototypes, got {head.shape[0]}"
        )
    threshold = options.score_threshold
    # not `>`: NaN passes, and is reported later
    scoring = head[:, ~(head[4:count].max(axis=0) <= threshold)]
    candidates = decoders.raw_head({"output0": scoring[:count]}, threshold, affine.network_wh)
    selected = nms(
        candidates.boxes,
        candidates.scores,
        options.iou_threshold,
        class_ids=candidates.class_ids if options.nms == "class" else None,
        limit=options.limit,
    )
    weights = scoring[count:].T
    return _regions(candidates, selected, weights, prototypes=prototypes, affine=affine)


def objectness_head(
    outputs: Outputs, affine: Affine, options: SegmenterOptions
) -> Iterator[MaskRegion]:
    """Read a head, float (anchors, 5 + classes + k), and prototypes, float (k, h, w).

    Its columns are box, objectness, class scores and weights; the score of a class is multiplied by the objectness.

    Source: YOLOv5 7.0, `utils/general.py` non_max_suppression and `segment/predict.py`.
    """
    rows, prototypes = _split(outputs)
    rows = rows[~(rows[:, 4] <= options.score_threshold)]
    with np.errstate(over="ignore", invalid="ignore"):  # reported by `raw_head`
        rows[:, 5 : 5 + options.label_count] *= rows[:, 4:5]
    head = np.delete(rows, 4, axis=1).T
    return raw_head({"head": head, "prototypes": prototypes}, affine, options)


def end_to_end(outputs: Outputs, affine: Affine, options: SegmenterOptions) -> Iterator[MaskRegion]:
    """Read rows, float (N, 6 + k), and prototypes, float (k, h, w); each object has one row.

    A row is left, top, right, bottom in pixels of the network's input, score, class and the weights of the
    prototypes.
    """
    rows, prototypes = _split(outputs)
    if rows.shape[1] != 6 + len(prototypes):
        raise OutputError(
            f"expected output 0 to have 6 + {len(prototypes)} columns, for boxes, scores, classes"
            f" and prototypes, got {rows.shape[1]}"
        )
    rows = rows[~(rows[:, 4] <= options.score_threshold)].astype(np.float32, copy=False)
    check_finite(rows, subject="output 0")
    selected = np.argsort(-rows[:, 4], kind="stable")[: options.limit]
    candidates = Candidates(rows[:, :4], rows[:, 4], class_numbers(rows[:, 5]))
    return _regions(candidates, selected, rows[:, 6:], prototypes=prototypes, affine=affine)


def _split(outputs: Outputs) -> tuple[npt.NDArray[Any], Floats]:
    heads = [output for output in outputs.values() if output.ndim == 2]
    prototypes = [output for output in outputs.values() if output.ndim == 3]
    if len(heads) != 1 or len(prototypes) != 1:
        shapes = ", ".join(str(output.shape) for output in outputs.values())
        raise OutputError(f"expected a head of 2 axes and prototypes of 3 axes, got {shapes}")
    check_finite(prototypes[0], subject="prototypes")
    return heads[0], prototypes[0].astype(np.float32, copy=False)


def _regions(
    candidates: Candidates,
    selected: npt.NDArray[np.int64],
    weights: npt.NDArray[Any],
    prototypes: Floats,
    affine: Affine,
) -> Iterator[MaskRegion]:
    check_finite(weights, subject="output 0")
    factor = _enlargement(affine, prototypes.shape[1:])
    grid = grid_of(affine, prototypes.shape[1:])
    boxes = clip_boxes(affine.to_image(candidates.boxes), affine.width, affine.height)
    for index in selected.tolist():
        window = pixels_of_box(affine, boxes[index].tolist()).intersection(visible(affine))
        if window.empty:
            continue
        crop, crop_grid = cut(prototypes, grid, window, margin=2)
        # only the pixels of the box; not a matrix product, whose threads would cost more than they save
        logits = np.einsum("k,khw->hw", weights[index].astype(np.float32), crop)
        label_score = int(candidates.class_ids[index]), float(candidates.scores[index])
        yield from region_of(logits, crop_grid, window, *label_score, upsample=factor)


def _enlargement(affine: Affine, cells_hw: tuple[int, ...]) -> int:
    """Return the factor, 1, 2 or 4, by which prototypes are enlarged so that the letterbox border is whole cells."""
    for factor in (1, 2, 4):
        height, width = cells_hw[0] * factor, cells_hw[1] * factor
        grid = grid_of(affine, (height, width))
        right, bottom = grid.px + grid.sx * grid.width, grid.py + grid.sy * grid.height
        edges = max(grid.px, 0), max(grid.py, 0), min(right, width), min(bottom, height)
        if all(abs(edge - round(edge)) < _ROUNDING_CELLS for edge in edges):
            return factor
    return 1


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


_MASK2FORMER_PX = 384
"""Side of the square to which Mask2Former's masks are enlarged before they are read, whatever the input size."""


def rf_detr(outputs: Outputs, affine: Affine, options: SegmenterOptions) -> Iterator[MaskRegion]:
    """Read `labels`, float (Q, classes) logits, and `masks`, float (Q, h, w) logits.

    Each class of each query is a candidate with the sigmoid of its logit as score; the mask is
    enlarged to the image, above zero is inside. The boxes, `dets`, are not needed.

    Source: RF-DETR, `models/lwdetr.py` PostProcess.
    """
    logits = _classes(named(outputs, "labels", position=1, rank=2), options)
    masks = _masks(named(outputs, "masks", position=2, rank=3), logits)
    scores = sigmoid(logits)
    return _best(scores, scores, masks, affine=affine, options=options)


def maskformer_instance(
    outputs: Outputs, affine: Affine, options: SegmenterOptions, side_px: int = 0
) -> Iterator[MaskRegion]:
    """Read `class_queries_logits`, float (Q, classes + 1), and `masks_queries_logits`, (Q, h, w).

    Each class of each query is a candidate; the Q most probable ones are taken. The score is the
    softmax of the class, without the last, times the mean probability of the mask where it is above
    one half. Masks are enlarged before they are cut, not after; with `side_px` first to a square.

    Source: transformers 4.57, MaskFormer and Mask2Former, `post_process_instance_segmentation`.
    """
    probabilities, masks = _maskformer(outputs, options, side_px)
    inside = masks > 0
    sizes = inside.sum(axis=(1, 2))
    certainty = np.where(inside, sigmoid(masks), 0).sum(axis=(1, 2)) / np.maximum(sizes, 1)
    scores = probabilities * certainty[:, None]
    return _best(probabilities, scores, masks, affine=affine, options=options)


def maskformer_semantic(
    outputs: Outputs, affine: Affine, options: SegmenterOptions, side_px: int = 0
) -> Iterator[MaskRegion]:
    """Read the outputs of `maskformer_instance` for a class at each pixel.

    The score of a class in a cell is the sum over the queries of the probability of the class times
    that of the mask. It is enlarged to the image, where the best class wins, with at most 1.

    Source: transformers 4.57, MaskFormer and Mask2Former, `post_process_semantic_segmentation`.
    """
    probabilities, masks = _maskformer(outputs, options, side_px)
    scores = probabilities.T @ sigmoid(masks).reshape(len(masks), -1)
    return best_classes(scores.reshape(-1, *masks.shape[1:]), affine, options, "none")


mask2former_instance = partial(maskformer_instance, side_px=_MASK2FORMER_PX)
mask2former_semantic = partial(maskformer_semantic, side_px=_MASK2FORMER_PX)


def _maskformer(outputs: Outputs, options: SegmenterOptions, side_px: int) -> tuple[Floats, Floats]:
    """Return the probability of each label, float32 (Q, classes), and the masks, float32 (Q, h, w).

    With `side_px` each mask is enlarged, or shrunk without a filter, to a square of that side.
    """
    logits = named(outputs, "class_queries_logits", position=0, rank=2).astype(np.float32)
    if logits.shape[1] != options.label_count + 1:
        raise OutputError(
            f"expected class_queries_logits to have {options.label_count} + 1 columns,"
            f" one for each label and one for no object, got {logits.shape[1]}"
        )
    masks = _masks(named(outputs, "masks_queries_logits", position=1, rank=3), logits)
    if side_px:
        squares = [cv2.resize(mask, (side_px, side_px)) for mask in masks]  # bilinear
        masks = np.stack(squares).astype(np.float32, copy=False)
    return softmax(logits)[:, :-1], masks


def _classes(logits: npt.NDArray[Any], options: SegmenterOptions) -> Floats:
    """Drop the columns before the first label, and those for no object after the last."""
    stop = options.label_offset + options.label_count
    if logits.shape[1] < stop:
        raise OutputError(f"expected labels to have at least {stop} columns, got {logits.shape[1]}")
    return logits[:, options.label_offset : stop].astype(np.float32)


def _masks(masks: npt.NDArray[Any], queries: Floats) -> Floats:
    if len(masks) != len(queries) or not masks.size:
        raise OutputError(
            f"expected a mask for each of {len(queries)} queries, got the shape {masks.shape}"
        )
    return masks.astype(np.float32, copy=False)


def _best(
    ranking: Floats,
    scores: npt.NDArray[np.floating[Any]],
    masks: Floats,
    affine: Affine,
    options: SegmenterOptions,
) -> Iterator[MaskRegion]:
    """Take as many candidates as there are queries by their rank, then yield them by score."""
    count = ranking.shape[1]
    top = np.argsort(-ranking.ravel(), kind="stable")[: len(masks)]
    flat = scores.ravel()
    top = top[flat[top] > options.score_threshold]
    top = top[np.argsort(-flat[top], kind="stable")][: options.limit]
    grid = grid_of(affine, masks.shape[1:])
    for index in top.tolist():
        query, class_id = divmod(index, count)
        yield from region_of(
            masks[query], grid, visible(grid), class_id=class_id, score=float(flat[index])
        )


_TILE_WIDTH, _TILE_MIN_ROWS = 128, 16


_TILE_PX = 512
"""Side of a tile if there is one class alone, pixels."""


_TILE_ELEMENTS = 1 << 17
"""Number of scores in a tile: as float32 they stay in the cache."""


_NEGLIGIBLE = 12.0
"""A class this far below the best has a share of less than 6.2e-6 in the softmax."""


def class_logits(
    outputs: Outputs, affine: Affine, options: SegmenterOptions
) -> Iterator[MaskRegion]:
    """Read the first output, float (classes, h, w): the class of the highest score wins each pixel.

    Scores are enlarged to the image before they are compared. The probability of a pixel is the
    softmax of its enlarged scores, unless all scores lie in 0 to 1, but for rounding, and some are not 0: then
    they are the probabilities.

    Source: transformers 4.57, SegFormer, `post_process_semantic_segmentation`.
    """
    scores = next(iter(outputs.values()))
    if scores.ndim != 3 or scores.shape[0] != options.label_count or options.label_count < 2:
        raise OutputError(
            f"expected output 0 to have the shape (classes, height, width) with"
            f" {max(options.label_count, 2)} classes, got {scores.shape}"
        )
    check_finite(scores, subject="output 0")
    activation = options.activation
    # a network of dead logits returns zeros alone, which are nobody's probabilities
    if activation == "none" and not (_are_probabilities(scores) and scores.any()):
        activation = "softmax"
    return best_classes(scores.astype(np.float32, copy=False), affine, options, activation)


def best_classes(
    scores: Floats, affine: Affine, options: SegmenterOptions, activation: str
) -> Iterator[MaskRegion]:
    """Yield the pixels that each class wins, with the probability of the class there.

    `scores` are float32 (C, h, w), C at least 1, which `activation` turns into probabilities; with `none` they
    are probabilities, and are cut at 1.
    """
    grid = grid_of(affine, scores.shape[1:])
    window = visible(grid)
    if window.empty:
        return
    classes = np.empty(window.size_hw, np.uint8 if len(scores) <= 256 else np.uint16)
    certainty = np.empty(window.size_hw, np.float32)
    won = np.zeros(len(scores), np.bool_)
    rows = max(_TILE_MIN_ROWS, _TILE_ELEMENTS // (_TILE_WIDTH * len(scores)))
    for tile in window.tiles(rows, _TILE_WIDTH):
        tile_slices = tile.slices_of(window)
        crop, crop_grid = cut(scores, grid, tile)
        deficits = _deficits(crop)
        candidates = np.flatnonzero(deficits <= (_NEGLIGIBLE if activation == "softmax" else 0))
        enlarged = bilinear(crop[candidates], crop_grid, tile)
        best = enlarged.max(axis=0)
        # Descending: the first of equal classes wins.
        for index in np.flatnonzero(deficits[candidates] <= 0)[::-1]:
            is_winner, class_id = enlarged[index] == best, candidates[index]
            if is_winner.any():
                won[class_id] = True
                np.copyto(classes[tile_slices], classes.dtype.type(class_id), where=is_winner)
        certainty[tile_slices] = _certainty(enlarged, best, activation)
    for class_id in np.flatnonzero(won).tolist():
        if class_id != options.background:
            mask = (classes == class_id).view(np.uint8)
            yield from trimmed(mask, class_id, window, certainty)


def class_map(outputs: Outputs, affine: Affine, options: SegmenterOptions) -> Iterator[MaskRegion]:
    """Read the first output, integer (h, w) or (1, h, w): the class of each cell.

    A model of one label marks its pixels by numbers above 0. A pixel of the image has the class of the cell in
    which its centre lies.
    """
    return _map_regions(_class_cells(outputs, options), affine, options)


def ultralytics_class_map(
    outputs: Outputs, affine: Affine, options: SegmenterOptions
) -> Iterator[MaskRegion]:
    """Read the output of `class_map`; a pixel has the class of the cell in which its left top corner lies.

    Source: Ultralytics 8.4, `models/yolo/semantic/predict.py` postprocess: torch's `nearest`.
    """
    cells = _class_cells(outputs, options)
    width, height = affine.network_wh
    if cells.shape != (height, width):
        unmoved = Affine(
            sx=1, sy=1, px=0, py=0, width=width, height=height, network_wh=affine.network_wh
        )
        network = PixelRect(0, 0, width, height)
        cells = nearest(cells, grid_of(unmoved, cells.shape), network, by_corner=True)
    return _map_regions(cells, affine, options, by_corner=True)


def _class_cells(outputs: Outputs, options: SegmenterOptions) -> npt.NDArray[Any]:
    """Return the class of each cell, integer (h, w), checked against the number of labels."""
    cells = next(iter(outputs.values()))
    if cells.ndim == 3 and cells.shape[0] == 1:
        cells = cells[0]
    if cells.ndim != 2 or cells.dtype.kind not in "iub" or not cells.size:
        raise OutputError(
            f"expected output 0 to be integers of the shape (height, width),"
            f" got {cells.dtype} of the shape {cells.shape}"
        )
    if options.label_count == 1:
        cells = np.where(cells > 0, 0, 1)
    low, high = int(cells.min()), int(cells.max())
    if low < 0 or high >= max(options.label_count, 2):
        raise OutputError(
            f"expected output 0 to hold class numbers from 0 to {options.label_count - 1},"
            f" got {low} to {high}"
        )
    return cells.astype(np.uint8 if high < 256 else np.uint16)


def _map_regions(
    cells: npt.NDArray[Any], affine: Affine, options: SegmenterOptions, *, by_corner: bool = False
) -> Iterator[MaskRegion]:
    grid = grid_of(affine, cells.shape)
    window = visible(grid)
    if window.empty:
        return
    classes = nearest(cells, grid, window, by_corner=by_corner)
    for class_id in range(min(int(cells.max()) + 1, options.label_count)):
        if class_id != options.background:
            yield from trimmed((classes == class_id).view(np.uint8), class_id, window)


def _deficits(scores: Floats) -> Floats:
    """Return how far the score of each class stays below the best one all over a tile; at most 0 if it may win."""
    flat = scores.reshape(len(scores), -1)
    return np.asarray(flat.min(axis=1).max() - flat.max(axis=1))


def _certainty(scores: Floats, best: Floats, activation: str) -> Floats:
    """Return the probability of the best class of each pixel; `scores` is overwritten."""
    if activation == "softmax":
        scores -= best
        return np.asarray(1 / np.exp(scores, out=scores).sum(axis=0))
    if activation == "sigmoid":
        return sigmoid(best)
    return np.clip(best, 0, 1)


def trimmed(
    mask: Mask, class_id: int, window: PixelRect, certainty: Floats | None = None
) -> Iterator[MaskRegion]:
    """Yield the region of a mask (H, W) of the window, with its probabilities; an empty mask yields none."""
    left, top, width, height = cv2.boundingRect(mask)
    if width:
        crop = slice(top, top + height), slice(left, left + width)
        yield MaskRegion(
            class_id=class_id,
            mask=mask[crop],
            left=window.left + left,
            top=window.top + top,
            probabilities=None if certainty is None else certainty[crop],
        )


def single(
    outputs: Outputs, affine: Affine, options: SegmenterOptions, position: int = 0
) -> Iterator[MaskRegion]:
    """Read an output, float (1, h, w) or (h, w): probabilities, or logits if a value is outside of 0 to 1.

    The output is the first, or that of a position. A pixel belongs to the object if its probability, enlarged to the image, is above one half. The object has
    the last of at most two labels.
    """
    cells = _cells(list(outputs.values())[position])
    if options.activation == "sigmoid" or not _are_probabilities(cells):
        cells = sigmoid(cells)
    return _object_region(np.clip(cells, 0, 1), affine, options)


last = partial(single, position=-1)
"""Segmenter of the last of several outputs: the finest of BiRefNet."""


def stretched(outputs: Outputs, affine: Affine, options: SegmenterOptions) -> Iterator[MaskRegion]:
    """Read the first of several outputs, its lowest value as 0 and its highest as 1.

    U2Net and IS-Net are used this way; they expect an object in every image.

    Source: U2Net, `u2net_test.py`, normPRED.
    """
    cells = _cells(next(iter(outputs.values())))
    low, high = float(cells.min()), float(cells.max())
    return _object_region((cells - low) / max(high - low, 1e-12), affine, options)


def _cells(output: npt.NDArray[Any]) -> Floats:
    if output.ndim == 3 and output.shape[0] == 1:
        output = output[0]
    if output.ndim != 2 or not output.size:
        raise OutputError(
            f"expected an output to have the shape (1, height, width), got {output.shape}"
        )
    cells = output.astype(np.float32, copy=False)
    check_finite(cells, subject="the output")
    return cells


def _object_region(
    cells: Floats, affine: Affine, options: SegmenterOptions
) -> Iterator[MaskRegion]:
    if options.label_count not in {1, 2}:
        raise OutputError(
            f"expected one label, or two with the background first, got {options.label_count}"
        )
    grid = grid_of(affine, cells.shape)
    window = visible(grid)
    if window.empty:
        return
    probabilities = np.empty(window.size_hw, np.float32)
    for tile in window.tiles(_TILE_PX, _TILE_PX):
        probabilities[tile.slices_of(window)] = bilinear(cells[None], grid, tile)[0]
    mask = (probabilities > 0.5).view(np.uint8)
    yield from trimmed(mask, options.label_count - 1, window, probabilities)


def _are_probabilities(cells: npt.NDArray[Any]) -> bool:
    """Tell probabilities from logits: they lie in 0 to 1, but for the rounding of a resize in the graph."""
    return bool(cells.min() >= -ROUNDING and cells.max() <= 1 + ROUNDING)

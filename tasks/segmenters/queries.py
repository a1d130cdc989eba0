"""Networks with a fixed number of queries, each a class and a mask: RF-DETR, MaskFormer, Mask2Former."""

from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from quadriga.tasks.activations import sigmoid, softmax
from quadriga.tasks.predictions import OutputError, Outputs
from quadriga.tasks.resize import Affine
from quadriga.tasks.sampling import Floats, grid_of, visible
from quadriga.tasks.segmenters import MaskRegion, SegmenterOptions, named, region_of
from quadriga.tasks.segmenters.semantic import best_classes

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
    outputs: Outputs, affine: Affine, options: SegmenterOptions
) -> Iterator[MaskRegion]:
    """Read `class_queries_logits`, float (Q, classes + 1), and `masks_queries_logits`, (Q, h, w).

    Each class of each query is a candidate; the Q most probable ones are taken. The score is the
    softmax of the class, without the last, times the mean probability of the mask where it is above
    one half. Masks are enlarged before they are cut, not after.

    Source: transformers 4.57, MaskFormer and Mask2Former, `post_process_instance_segmentation`.
    """
    return _instances(*_maskformer(outputs, options), affine, options)


def mask2former_instance(
    outputs: Outputs, affine: Affine, options: SegmenterOptions
) -> Iterator[MaskRegion]:
    """Read the outputs of `maskformer_instance`, with masks enlarged to 384 x 384."""
    return _instances(*_squared(outputs, options), affine, options)


def _instances(
    probabilities: Floats, masks: Floats, affine: Affine, options: SegmenterOptions
) -> Iterator[MaskRegion]:
    inside = masks > 0
    sizes = inside.sum(axis=(1, 2))
    certainty = np.where(inside, sigmoid(masks), 0).sum(axis=(1, 2)) / np.maximum(sizes, 1)
    return _best(
        probabilities,
        probabilities * certainty[:, None],
        masks,
        affine=affine,
        options=options,
    )


def maskformer_semantic(
    outputs: Outputs, affine: Affine, options: SegmenterOptions
) -> Iterator[MaskRegion]:
    """Read the outputs of `maskformer_instance` for a class at each pixel.

    The score of a class in a cell is the sum over the queries of the probability of the class times
    that of the mask. It is enlarged to the image, where the best class wins, with at most 1.

    Source: transformers 4.57, MaskFormer and Mask2Former, `post_process_semantic_segmentation`.
    """
    return _classes_of(*_maskformer(outputs, options), affine, options)


def mask2former_semantic(
    outputs: Outputs, affine: Affine, options: SegmenterOptions
) -> Iterator[MaskRegion]:
    """Read the outputs of `maskformer_semantic`, with masks enlarged to 384 x 384."""
    return _classes_of(*_squared(outputs, options), affine, options)


def _classes_of(
    probabilities: Floats, masks: Floats, affine: Affine, options: SegmenterOptions
) -> Iterator[MaskRegion]:
    scores = probabilities.T @ sigmoid(masks).reshape(len(masks), -1)
    return best_classes(scores.reshape(-1, *masks.shape[1:]), affine, options, "none")


def _maskformer(outputs: Outputs, options: SegmenterOptions) -> tuple[Floats, Floats]:
    """Return the probability of each label, float32 (Q, classes), and the masks, float32 (Q, h, w)."""
    logits = named(outputs, "class_queries_logits", position=0, rank=2).astype(np.float32)
    if logits.shape[1] != options.label_count + 1:
        raise OutputError(
            f"expected class_queries_logits to have {options.label_count} + 1 columns,"
            f" one for each label and one for no object, got {logits.shape[1]}"
        )
    return softmax(logits)[:, :-1], _masks(
        named(outputs, "masks_queries_logits", position=1, rank=3), logits
    )


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


def _squared(outputs: Outputs, options: SegmenterOptions) -> tuple[Floats, Floats]:
    """Enlarge, or shrink without a filter, each mask to the square that Mask2Former reads."""
    probabilities, masks = _maskformer(outputs, options)
    square = (_MASK2FORMER_PX, _MASK2FORMER_PX)
    enlarged = [cv2.resize(mask, square, interpolation=cv2.INTER_LINEAR) for mask in masks]
    return probabilities, np.stack(enlarged).astype(np.float32, copy=False)


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

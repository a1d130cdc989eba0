"""A class for each pixel (SegFormer, DeepLab, FCN, U-Net, argmax), or one object (BiRefNet, U2Net).

Needs about ten bytes a pixel of the image, whatever the number of classes: scores are enlarged tile
by tile, and only for the classes that may win in a tile or matter in its softmax.
"""

from collections.abc import Callable, Iterator
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from quadriga.tasks.activations import sigmoid
from quadriga.tasks.contours import Mask
from quadriga.tasks.predictions import ROUNDING, OutputError, Outputs, check_finite
from quadriga.tasks.resize import Affine
from quadriga.tasks.sampling import (
    Floats,
    PixelRect,
    bilinear,
    cut,
    grid_of,
    nearest,
    nearest_by_corner,
    visible,
)
from quadriga.tasks.segmenters import MaskRegion, SegmenterOptions

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
    return _map_regions(_class_cells(outputs, options), affine, options, nearest)


def ultralytics_class_map(
    outputs: Outputs, affine: Affine, options: SegmenterOptions
) -> Iterator[MaskRegion]:
    """Read the output of `class_map`; a pixel has the class of the cell in which its left top corner lies.

    Source: Ultralytics 8.4, `models/yolo/semantic/predict.py` postprocess: torch's `nearest`.
    """
    cells = _class_cells(outputs, options)
    width, height = affine.network_wh
    if cells.shape != (height, width):
        network = PixelRect(0, 0, width, height)
        stretched_map = Affine(
            sx=cells.shape[1] / width,
            sy=cells.shape[0] / height,
            px=0,
            py=0,
            width=width,
            height=height,
            network_wh=cells.shape[::-1],
        )
        cells = nearest_by_corner(cells, stretched_map, network)
    return _map_regions(cells, affine, options, nearest_by_corner)


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
    cells: npt.NDArray[Any],
    affine: Affine,
    options: SegmenterOptions,
    sample: Callable[[npt.NDArray[Any], Affine, PixelRect], npt.NDArray[Any]],
) -> Iterator[MaskRegion]:
    grid = grid_of(affine, cells.shape)
    window = visible(grid)
    if window.empty:
        return
    classes = sample(cells, grid, window)
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


def single(outputs: Outputs, affine: Affine, options: SegmenterOptions) -> Iterator[MaskRegion]:
    """Read the first output, float (1, h, w) or (h, w): probabilities, or logits if a value is outside of 0 to 1.

    A pixel belongs to the object if its probability, enlarged to the image, is above one half. The object has
    the last of at most two labels.
    """
    return _object_region(_probabilities(next(iter(outputs.values())), options), affine, options)


def last(outputs: Outputs, affine: Affine, options: SegmenterOptions) -> Iterator[MaskRegion]:
    """Read the last of several outputs as `single` does: the finest of BiRefNet."""
    return _object_region(_probabilities(list(outputs.values())[-1], options), affine, options)


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


def _probabilities(output: npt.NDArray[Any], options: SegmenterOptions) -> Floats:
    cells = _cells(output)
    if options.activation == "sigmoid" or not _are_probabilities(cells):
        return sigmoid(cells)
    return np.clip(cells, 0, 1)


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

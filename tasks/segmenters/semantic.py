"""A class for each pixel (SegFormer, DeepLab, FCN, U-Net, argmax), or one thing (BiRefNet, U2Net).

Needs about ten bytes a pixel of the image, whatever the number of classes: scores are enlarged tile
by tile, and of a tile only those classes that may win or matter in the softmax.
"""

from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from quadriga.tasks.activations import sigmoid
from quadriga.tasks.contours import Mask
from quadriga.tasks.predictions import OutputError, Outputs, check_finite
from quadriga.tasks.resize import Affine
from quadriga.tasks.sampling import Floats, PixelRect, bilinear, cut, grid_of, nearest, visible
from quadriga.tasks.segmenters import Region, SegmenterOptions

_TILE_WIDTH, _TILE_MIN_ROWS = 128, 16
_TILE_PX = 512
"""Of one thing alone."""
_TILE_ELEMENTS = 1 << 17
"""Of the scores of one tile: as float32 they stay in the cache."""
_NEGLIGIBLE = 12.0
"""A class this far below the best has a share of less than 6.2e-6 in the softmax."""


def class_logits(outputs: Outputs, affine: Affine, asked: SegmenterOptions) -> Iterator[Region]:
    """Read the first output, float (classes, h, w): the class of the highest score wins each pixel.

    Scores are enlarged to the image before they are compared. The probability of a pixel is the
    softmax of its enlarged scores, unless all lie in 0 to 1, but for rounding: then they are it.

    Source: transformers 4.57, SegFormer, `post_process_semantic_segmentation`.
    """
    scores = next(iter(outputs.values()))
    if scores.ndim != 3 or scores.shape[0] != asked.label_count or asked.label_count < 2:
        raise OutputError(
            f"expected output 0 to have the shape (classes, height, width) with"
            f" {max(asked.label_count, 2)} classes, got {scores.shape}"
        )
    check_finite(scores, what="output 0")
    activation = asked.activation
    if activation == "none" and not _are_probabilities(scores):
        activation = "softmax"
    return best_classes(scores.astype(np.float32, copy=False), affine, asked, activation)


def best_classes(
    scores: Floats, affine: Affine, asked: SegmenterOptions, activation: str
) -> Iterator[Region]:
    """Give the pixels that each class wins, with the probability of the class there.

    `scores` are float32 (C, h, w), C at least 1, of which `activation` makes probabilities; with
    `none` they are, and are cut at 1.
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
        place = tile.slices_of(window)
        part, part_grid = cut(scores, grid, tile)
        behind = _behind(part)
        likely = np.flatnonzero(behind <= (_NEGLIGIBLE if activation == "softmax" else 0))
        enlarged = bilinear(part[likely], part_grid, tile)
        best = enlarged.max(axis=0)
        for index in np.flatnonzero(behind[likely] <= 0)[::-1]:  # of equal ones the first stays
            where = enlarged[index] == best
            if where.any():
                won[likely[index]] = True
                np.copyto(classes[place], classes.dtype.type(likely[index]), where=where)
        certainty[place] = _certainty(enlarged, best, activation)
    for class_id in np.flatnonzero(won).tolist():
        if class_id != asked.background:
            mask = (classes == class_id).view(np.uint8)
            yield from trimmed(mask, class_id, window, certainty)


def class_map(outputs: Outputs, affine: Affine, asked: SegmenterOptions) -> Iterator[Region]:
    """Read the first output, integer (h, w) or (1, h, w): the class of each cell.

    A model of one label says where it is by numbers above 0.

    Source: Ultralytics 8.4, `models/yolo/semantic/predict.py`.
    """
    cells = next(iter(outputs.values()))
    if cells.ndim == 3 and cells.shape[0] == 1:
        cells = cells[0]
    if cells.ndim != 2 or cells.dtype.kind not in "iub" or not cells.size:
        raise OutputError(
            f"expected output 0 to be integers of the shape (height, width),"
            f" got {cells.dtype} of the shape {cells.shape}"
        )
    if asked.label_count == 1:
        cells = np.where(cells > 0, 0, 1)
    low, high = int(cells.min()), int(cells.max())
    if low < 0 or high >= max(asked.label_count, 2):
        raise OutputError(
            f"expected output 0 to hold class numbers from 0 to {asked.label_count - 1},"
            f" got {low} to {high}"
        )
    grid = grid_of(affine, cells.shape)
    window = visible(grid)
    if window.empty:
        return
    classes = nearest(cells.astype(np.uint8 if high < 256 else np.uint16), grid, window)
    for class_id in range(min(high + 1, asked.label_count)):
        if class_id != asked.background:
            yield from trimmed((classes == class_id).view(np.uint8), class_id, window)


def _behind(part: Floats) -> Floats:
    """Give how far each class stays behind the best all over a tile; at most 0 if it may win."""
    flat = part.reshape(len(part), -1)
    return np.asarray(flat.min(axis=1).max() - flat.max(axis=1))


def _certainty(scores: Floats, best: Floats, activation: str) -> Floats:
    """Give the probability of the best class of each pixel; `scores` is used up."""
    if activation == "softmax":
        scores -= best
        return np.asarray(1 / np.exp(scores, out=scores).sum(axis=0))
    if activation == "sigmoid":
        return sigmoid(best)
    return np.clip(best, 0, 1)


def trimmed(
    mask: Mask, class_id: int, window: PixelRect, certainty: Floats | None = None
) -> Iterator[Region]:
    """Give the region of a mask (H, W) of the window, with its probabilities; none of an empty one."""
    left, top, width, height = cv2.boundingRect(mask)
    if width:
        crop = slice(top, top + height), slice(left, left + width)
        yield Region(
            class_id=class_id,
            mask=mask[crop],
            left=window.left + left,
            top=window.top + top,
            probabilities=None if certainty is None else certainty[crop],
        )


def single(outputs: Outputs, affine: Affine, asked: SegmenterOptions) -> Iterator[Region]:
    """Read the first output, float (1, h, w) or (h, w): probabilities, or logits if any is none.

    A pixel belongs to the thing whose probability, enlarged to the image, is above one half. The
    thing has the last of at most two labels.
    """
    return _thing(_probabilities(next(iter(outputs.values())), asked), affine, asked)


def last(outputs: Outputs, affine: Affine, asked: SegmenterOptions) -> Iterator[Region]:
    """Read the last of several outputs as `single` does: the finest of BiRefNet."""
    return _thing(_probabilities(list(outputs.values())[-1], asked), affine, asked)


def stretched(outputs: Outputs, affine: Affine, asked: SegmenterOptions) -> Iterator[Region]:
    """Read the first of several outputs, its lowest value as 0 and its highest as 1.

    U2Net and IS-Net are used so; they expect that there is a thing in every image.

    Source: U2Net, `u2net_test.py`, normPRED.
    """
    cells = _cells(next(iter(outputs.values())))
    low, high = float(cells.min()), float(cells.max())
    return _thing((cells - low) / max(high - low, 1e-12), affine, asked)


def _cells(output: npt.NDArray[Any]) -> Floats:
    if output.ndim == 3 and output.shape[0] == 1:
        output = output[0]
    if output.ndim != 2 or not output.size:
        raise OutputError(
            f"expected an output to have the shape (1, height, width), got {output.shape}"
        )
    cells = output.astype(np.float32, copy=False)
    check_finite(cells, what="the output")
    return cells


def _probabilities(output: npt.NDArray[Any], asked: SegmenterOptions) -> Floats:
    cells = _cells(output)
    if asked.activation == "sigmoid" or not _are_probabilities(cells):
        return sigmoid(cells)
    return np.clip(cells, 0, 1)


def _thing(cells: Floats, affine: Affine, asked: SegmenterOptions) -> Iterator[Region]:
    if asked.label_count not in {1, 2}:
        raise OutputError(
            f"expected one label, or two with the background first, got {asked.label_count}"
        )
    grid = grid_of(affine, cells.shape)
    window = visible(grid)
    if window.empty:
        return
    probabilities = np.empty(window.size_hw, np.float32)
    for tile in window.tiles(_TILE_PX, _TILE_PX):
        probabilities[tile.slices_of(window)] = bilinear(cells[None], grid, tile)[0]
    mask = (probabilities > 0.5).view(np.uint8)
    yield from trimmed(mask, asked.label_count - 1, window, probabilities)


def _are_probabilities(cells: npt.NDArray[Any]) -> bool:
    """Tell probabilities from logits: from 0 to 1, but for what a resize in the graph rounds."""
    rounding = 2e-3  # of float16 twice
    return bool(cells.min() >= -rounding and cells.max() <= 1 + rounding)

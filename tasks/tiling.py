"""Large images in tiles: the positions of the tiles, and the merging of boxes that several tiles have."""

import io
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import cv2
import msgspec
import numpy as np
import numpy.typing as npt
from PIL.Image import fromarray

from quadriga.tasks.decoders import Candidates, select
from quadriga.tasks.geometry import (
    Floats,
    Integers,
    ios_matrix,
    iou_matrix,
    relative_to_pixels,
    suppress_greedily,
    xywhr_to_corners,
)
from quadriga.tasks.image import Image
from quadriga.tasks.predictions import Classification, Detection, OrientedDetection, Prediction
from quadriga.tasks.resize import PixelRect
from quadriga.tasks.specification import Tiling


def tiles(width: int, height: int, size_wh: tuple[int, int], overlap: float) -> list[PixelRect]:
    """Cover an image with tiles of one size, row by row; a smaller image is one tile.

    The last tile of a row or column is moved back into the image. An object that is no longer than the
    overlap, a fraction of the tile below 1, lies in one tile at least.
    """
    tile_w, tile_h = min(size_wh[0], width), min(size_wh[1], height)
    return [
        PixelRect(left, top, left + tile_w, top + tile_h)
        for top in _starts(height, tile_h, overlap)
        for left in _starts(width, tile_w, overlap)
    ]


def count_tiles(width: int, height: int, size_wh: tuple[int, int], overlap: float) -> int:
    """Return the number of tiles without making them; see `tiles`."""
    rows = _starts(height, min(size_wh[1], height), overlap)
    return len(rows) * len(_starts(width, min(size_wh[0], width), overlap))


def _starts(length: int, tile: int, overlap: float) -> list[int]:
    step = max(tile - round(tile * overlap), 1)
    return [*range(0, length - tile, step), length - tile]


def merge(
    tiles: Sequence[tuple[PixelRect, Candidates]], tiling: Tiling, limit: int | None = None
) -> Candidates:
    """Merge the candidates of the tiles of one image, one tile at least, each in its own pixels.

    Returns `limit` candidates at most, by descending score, in pixels of the image. A merged box has the score
    and the class of the best one in it.

    Source: SAHI 0.11, `postprocess/combine.py`, for the names; unlike its greedy merging, a box
    that has grown is compared again, so that an object over three tiles in a row becomes one.
    """
    candidates = _joined(tiles)
    if tiling.merge == "nmm":
        count = -1
        while count != len(candidates.scores):
            count = len(candidates.scores)
            candidates = _merged_once(candidates, tiling)
        return select(candidates, np.arange(len(candidates.scores))[:limit])

    def overlapping(rows: Integers, columns: Integers) -> npt.NDArray[np.bool_]:
        return _overlapping(select(candidates, rows), select(candidates, columns), tiling)

    return select(candidates, suppress_greedily(candidates.scores, overlapping, limit))


def _joined(tiles: Sequence[tuple[PixelRect, Candidates]]) -> Candidates:
    boxes = []
    for tile, candidates in tiles:
        size_shift = (tile.left, tile.top) if candidates.boxes.shape[1] == 4 else (0, 0, 0)
        shift = np.array([tile.left, tile.top, *size_shift])
        boxes.append(candidates.boxes.astype(np.float64) + shift)
    return msgspec.structs.replace(
        tiles[0][1],
        boxes=np.concatenate(boxes),
        scores=np.concatenate([candidates.scores for _, candidates in tiles]),
        class_ids=np.concatenate([candidates.class_ids for _, candidates in tiles]),
    )


def _overlapping(rows: Candidates, columns: Candidates, tiling: Tiling) -> npt.NDArray[np.bool_]:
    """Tell which pairs of candidates are the same object: bool (rows, columns)."""
    matrix = iou_matrix if tiling.metric == "iou" else ios_matrix
    over = matrix(rows.boxes, columns.boxes) > tiling.threshold
    return np.asarray(over & (rows.class_ids[:, None] == columns.class_ids))


def _merged_once(candidates: Candidates, tiling: Tiling) -> Candidates:
    """Let each box, the best first, absorb the boxes that overlap it; the result is sorted by score."""
    candidates = select(candidates, np.argsort(-candidates.scores, kind="stable"))
    boxes, free = candidates.boxes.copy(), np.ones(len(candidates.scores), bool)
    best = []
    for index in range(len(free)):
        if not free[index]:
            continue
        best.append(index)
        remaining = np.flatnonzero(free)
        is_same = _overlapping(
            select(candidates, np.array([index])), select(candidates, remaining), tiling
        )[0]
        members = remaining[is_same | (remaining == index)]
        free[members] = False
        boxes[index] = _hull(boxes[index], boxes[members])
    return select(msgspec.structs.replace(candidates, boxes=boxes), np.array(best, np.int64))


def _hull(leader: Floats, boxes: Floats) -> Floats:
    """Return the smallest box that holds all; a rotated one has the rotation of the leader."""
    if len(leader) == 4:
        return np.concatenate([boxes[:, :2].min(axis=0), boxes[:, 2:].max(axis=0)])
    cos, sin = np.cos(leader[4]), np.sin(leader[4])
    axes = np.array([[cos, sin], [-sin, cos]])
    points = xywhr_to_corners(boxes).reshape(-1, 2) @ axes.T
    low, high = points.min(axis=0), points.max(axis=0)
    return np.concatenate([(low + high) / 2 @ axes, high - low, leader[4:]])


CellRect = tuple[int, int, int, int]
"""Rectangle of a grid: top, bottom, left and right in cells, the ends excluded."""


def cell_rects(rows: int, columns: int) -> list[CellRect]:
    """Return the rectangles that cover a grid: two cells each way, one at its edges."""
    return [
        (max(0, top), min(rows, top + 2), max(0, left), min(columns, left + 2))
        for top in range(-1, rows)
        for left in range(-1, columns)
    ]


def occluded_images(
    image: Image, rows: int, columns: int, cell_rects: Sequence[CellRect]
) -> Iterator[Image]:
    """Yield the image with each rectangle covered by the mean colour; a cell has at least a pixel."""
    colour = image.pixels.reshape(-1, 3).mean(0).round().astype(np.uint8)
    y = np.linspace(0, image.height, rows + 1).round().astype(int)
    x = np.linspace(0, image.width, columns + 1).round().astype(int)
    for top, bottom, left, right in cell_rects:
        pixels = image.pixels.copy()
        pixels[y[top] : y[bottom], x[left] : x[right]] = colour
        yield Image(pixels, image.mime)


def score(target: Classification | Detection, predictions: Sequence[Prediction]) -> float:
    """Return how well predictions repeat a target: the score of its class, or the best overlap (IoU) times score of a box.

    It is 0 if no prediction has the label of the target.
    """
    same: list[Any] = [
        prediction
        for prediction in predictions
        if isinstance(prediction, type(target)) and prediction.label == target.label
    ]
    scores = np.array([prediction.score for prediction in same], np.float64)
    if isinstance(target, Detection) and same:
        boxes = np.array([(box.xmin, box.ymin, box.xmax, box.ymax) for box in (target, *same)])
        scores *= iou_matrix(boxes[:1], boxes[1:])[0]
    return float(scores.max(initial=0.0))


def saliency(
    uncovered_score: float,
    scores: Sequence[float],
    rows: int,
    columns: int,
    cell_rects: Sequence[CellRect],
) -> npt.NDArray[np.float64]:
    """Spread the drops of the covered scores over the covered cells.

    Returns:
        Mean drop of each cell, float64 (rows, columns); below 0 if covering raises the score.
    """
    drops, covers = np.zeros((rows, columns)), np.zeros((rows, columns))
    for covered_score, (top, bottom, left, right) in zip(scores, cell_rects, strict=True):
        drops[top:bottom, left:right] += uncovered_score - covered_score
        covers[top:bottom, left:right] += 1
    return drops / covers


_PNG_CHANNELS = (1, 3, 4)


_FAST = (*(cv2.IMWRITE_PNG_COMPRESSION, 1), *(cv2.IMWRITE_PNG_FILTER, cv2.IMWRITE_PNG_FILTER_UP))
"""Options of OpenCV: one filter for all rows takes half the time of choosing one for each, for 4 % more bytes."""


AnyDetection = Detection | OrientedDetection


class Crop(msgspec.Struct, frozen=True, eq=False):
    """The part of an image that one detection lies in."""

    position: int
    """Position of the detection among the predictions of its image."""
    rect: PixelRect
    """Place of the crop in the image."""
    image: Image


def choose_detections(
    predictions: Sequence[Any], labels: Collection[str] | None, min_score: float
) -> list[int]:
    """Return the positions of the detections of some labels, None for all, by descending score."""
    chosen = [
        position
        for position, prediction in enumerate(predictions)
        if isinstance(prediction, AnyDetection)
        and prediction.score >= min_score
        and (labels is None or prediction.label in labels)
    ]
    return sorted(chosen, key=lambda position: -predictions[position].score)


def crop_rect(detection: AnyDetection, margin: float, size_wh: tuple[int, int]) -> PixelRect:
    """Return the pixels of an image that a box touches; the rectangle is empty for a box outside of the image.

    Args:
        detection: The box; of an oriented one, the upright rectangle around it is taken.
        margin: Fraction of its width, and of its height, that is added on each side.
        size_wh: Width and height of the image.
    """
    if isinstance(detection, Detection):
        left, top, right, bottom = detection.xmin, detection.ymin, detection.xmax, detection.ymax
    else:
        box = np.array([[detection.cx, detection.cy, detection.w, detection.h, detection.r]])
        corners = xywhr_to_corners(relative_to_pixels(box, np.array([size_wh], np.float64)))[0]
        (left, top), (right, bottom) = corners.min(axis=0), corners.max(axis=0)
    width, height = size_wh
    beside, above = (right - left) * margin, (bottom - top) * margin
    return PixelRect(
        math.floor(max(left - beside, 0)),
        math.floor(max(top - above, 0)),
        math.ceil(min(right + beside, width)),
        math.ceil(min(bottom + above, height)),
    )


def cut(image: Image, rect: PixelRect) -> Image:
    """Return a part of an image, as a copy, so that it does not hold the rest of it in memory."""
    return Image(np.ascontiguousarray(rect.cut(image.pixels)).copy(), "", bit_depth=image.bit_depth)


def encode_losslessly(image: Image) -> tuple[bytes, str]:
    """Return an image as a file, and its media type; the file is decoded to the same pixels.

    That is a PNG for 1, 3 or 4 channels, else a TIFF with a gray page for each.
    """
    pixels, channels = image.pixels, image.pixels.shape[2]
    if channels in _PNG_CHANNELS:
        order = {1: [0], 3: [2, 1, 0], 4: [2, 1, 0, 3]}[channels]
        is_encoded, encoded = cv2.imencode(".png", pixels[..., order], _FAST)
        assert is_encoded, "OpenCV writes PNG of 8 and 16 bits with these channels"
        return encoded.tobytes(), "image/png"
    first, *others = (
        fromarray(np.ascontiguousarray(pixels[..., band])) for band in range(channels)
    )
    file = io.BytesIO()
    first.save(file, "TIFF", save_all=True, append_images=others)
    return file.getvalue(), "image/tiff"

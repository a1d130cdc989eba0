"""Large images in tiles: the positions of the tiles, and the merging of boxes that several tiles have."""

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.tasks.decoders import Candidates, select
from quadriga.tasks.geometry import Floats, Integers, ios_matrix, iou_matrix, suppress_greedily
from quadriga.tasks.rotated import xywhr_to_corners
from quadriga.tasks.sampling import PixelRect
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

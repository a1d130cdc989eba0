"""Large images in parts: where the tiles lie, and one object for what several tiles saw."""

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
    """Cover an image with tiles of one size, row by row; of a smaller image the tile is as small.

    The last of a row or column is moved back into the image. An object that is no longer than the
    overlap, a fraction of the tile below 1, is seen whole by one tile at least.
    """
    tile_w, tile_h = min(size_wh[0], width), min(size_wh[1], height)
    return [
        PixelRect(left, top, left + tile_w, top + tile_h)
        for top in _starts(height, tile_h, overlap)
        for left in _starts(width, tile_w, overlap)
    ]


def count_tiles(width: int, height: int, size_wh: tuple[int, int], overlap: float) -> int:
    """Count what `tiles` gives, without making it."""
    rows = _starts(height, min(size_wh[1], height), overlap)
    return len(rows) * len(_starts(width, min(size_wh[0], width), overlap))


def _starts(length: int, tile: int, overlap: float) -> list[int]:
    step = max(tile - round(tile * overlap), 1)
    return [*range(0, length - tile, step), length - tile]


def merge(
    found: Sequence[tuple[PixelRect, Candidates]], tiling: Tiling, limit: int | None = None
) -> Candidates:
    """Join what was found in the tiles of one image, one at least, each in its own pixels.

    Gives `limit` at most, by descending score, in pixels of the image. A merged one has score and
    class of its best part.

    Source: SAHI 0.11, `postprocess/combine.py`, for the names; unlike its greedy merging, a box
    that has grown is compared again, so that an object over three tiles in a row becomes one.
    """
    whole = _joined(found)
    if tiling.merge == "nmm":
        count = -1
        while count != len(whole.scores):
            count = len(whole.scores)
            whole = _merged_once(whole, tiling)
        return select(whole, np.arange(len(whole.scores))[:limit])

    def overlapping(rows: Integers, columns: Integers) -> npt.NDArray[np.bool_]:
        return _overlapping(select(whole, rows), select(whole, columns), tiling)

    return select(whole, suppress_greedily(whole.scores, overlapping, limit))


def _joined(found: Sequence[tuple[PixelRect, Candidates]]) -> Candidates:
    moved = []
    for tile, each in found:
        rest = (tile.left, tile.top) if each.boxes.shape[1] == 4 else (0, 0, 0)
        shift = np.array([tile.left, tile.top, *rest])
        moved.append(each.boxes.astype(np.float64) + shift)
    return msgspec.structs.replace(
        found[0][1],
        boxes=np.concatenate(moved),
        scores=np.concatenate([each.scores for _, each in found]),
        class_ids=np.concatenate([each.class_ids for _, each in found]),
    )


def _overlapping(these: Candidates, those: Candidates, tiling: Tiling) -> npt.NDArray[np.bool_]:
    """Which of these is the same object as which of those: bool (these, those)."""
    matrix = iou_matrix if tiling.metric == "iou" else ios_matrix
    over = matrix(these.boxes, those.boxes) > tiling.threshold
    return np.asarray(over & (these.class_ids[:, None] == those.class_ids))


def _merged_once(whole: Candidates, tiling: Tiling) -> Candidates:
    """Let each box, the best first, take in the others that overlap it; the result is sorted."""
    whole = select(whole, np.argsort(-whole.scores, kind="stable"))
    boxes, free = whole.boxes.copy(), np.ones(len(whole.scores), bool)
    best = []
    for index in range(len(free)):
        if not free[index]:
            continue
        best.append(index)
        rest = np.flatnonzero(free)
        same = _overlapping(select(whole, np.array([index])), select(whole, rest), tiling)[0]
        parts = rest[same | (rest == index)]
        free[parts] = False
        boxes[index] = _hull(boxes[index], boxes[parts])
    return select(msgspec.structs.replace(whole, boxes=boxes), np.array(best, np.int64))


def _hull(leader: Floats, boxes: Floats) -> Floats:
    """The smallest box that holds all; of rotated ones, that with the rotation of the leader."""
    if len(leader) == 4:
        return np.concatenate([boxes[:, :2].min(axis=0), boxes[:, 2:].max(axis=0)])
    cos, sin = np.cos(leader[4]), np.sin(leader[4])
    axes = np.array([[cos, sin], [-sin, cos]])
    points = xywhr_to_corners(boxes).reshape(-1, 2) @ axes.T
    low, high = points.min(axis=0), points.max(axis=0)
    return np.concatenate([(low + high) / 2 @ axes, high - low, leader[4:]])

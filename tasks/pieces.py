"""Regions of one class as rings, and the merging of regions that several tiles have."""

from collections.abc import Sequence

import cv2
import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.tasks.contours import Mask, Ring, fill, rings
from quadriga.tasks.sampling import PixelRect

_WHOLE = PixelRect(0, 0, 0, 0)
"""Frame of pieces that are in pixels of the image already."""


class Piece(msgspec.Struct, frozen=True, eq=False):
    """A region of one class with its score and its rings."""

    class_id: int
    score: float
    area_px: int
    rings: list[Ring]
    instance: bool = False
    """Whether the region is one object, or the visible section of one object in a tile."""


class Pieces(msgspec.Struct, frozen=True, eq=False):
    """Regions of one image or tile."""

    pieces: Sequence[Piece] = ()
    left_out: int = 0
    """Number of further regions, which the limit of a request left out before they were traced."""


class _Placed(msgspec.Struct, frozen=True, eq=False):
    tile: PixelRect
    piece: Piece
    mask: Mask
    box: PixelRect

    def within(self, box: PixelRect) -> npt.NDArray[np.bool_]:
        """Return the mask inside a box that the piece covers: bool (H, W)."""
        return self.mask[box.slices_of(self.box)] > 0


def join(tiles: Sequence[tuple[PixelRect, Sequence[Piece]]], threshold: float) -> list[Piece]:
    """Join regions across the tiles of one image; each tile has its regions in its own pixels.

    Two regions of a class are one if they share more than `threshold` of the smaller one's pixels in the
    overlap of their tiles; if the tiles only touch, the regions have to touch. A joined region has the mean
    score of its pieces, by area.
    """
    placed = [_place(piece, tile) for tile, pieces in tiles for piece in pieces]
    leaders = list(range(len(placed)))

    def leader(index: int) -> int:
        while leaders[index] != index:
            leaders[index] = leaders[leaders[index]]
            index = leaders[index]
        return index

    for first in range(len(placed)):
        for second in range(first):
            a, b = placed[first], placed[second]
            if a.tile == b.tile or a.piece.class_id != b.piece.class_id:
                continue
            if _same(a, b, threshold):
                leaders[leader(first)] = leader(second)
    groups: dict[int, list[_Placed]] = {}
    for index, piece in enumerate(placed):
        groups.setdefault(leader(index), []).append(piece)
    return [_united(group) for group in groups.values()]


def by_class(pieces: Sequence[Piece]) -> list[Piece]:
    """Unite all pieces of a class into one region, except instances; scores are those of `join`."""
    merged = [piece for piece in pieces if piece.instance]
    groups: dict[int, list[_Placed]] = {}
    for piece in pieces:
        if not piece.instance:
            groups.setdefault(piece.class_id, []).append(_place(piece))
    return merged + [_united(group) for group in groups.values()]


def without_small_parts(piece: Piece, min_area: float) -> Piece | None:
    """Drop connected components of fewer pixels; None if none remains."""
    placed = _place(piece)
    _, components, measures, _ = cv2.connectedComponentsWithStats(placed.mask, connectivity=8)
    small = measures[:, cv2.CC_STAT_AREA] < min_area
    if not small[1:].any():
        return piece
    mask = np.where(small[components], 0, placed.mask).astype(np.uint8)
    area = int(np.count_nonzero(mask))
    if not area:
        return None
    return msgspec.structs.replace(
        piece, area_px=area, rings=rings(mask, placed.box.left, placed.box.top)
    )


def _place(piece: Piece, tile: PixelRect = _WHOLE) -> _Placed:
    points = np.concatenate(piece.rings)
    left, top = points.min(axis=0).tolist()
    right, bottom = (points.max(axis=0) + 1).tolist()
    shift = np.array([left, top], np.int32)
    mask = fill([ring - shift for ring in piece.rings], right - left, bottom - top)
    box = PixelRect(left + tile.left, top + tile.top, right + tile.left, bottom + tile.top)
    return _Placed(tile, piece, mask, box)


def _same(first: _Placed, second: _Placed, threshold: float) -> bool:
    """Tell whether two regions belong to one object; see `join`."""
    zone = first.tile.intersection(second.tile)
    if not zone.empty:
        boxes = [placed.box.intersection(zone) for placed in (first, second)]
        areas = [
            int(np.count_nonzero(placed.within(box)))
            for placed, box in zip((first, second), boxes, strict=True)
        ]
        common = boxes[0].intersection(boxes[1])
        shared = int(np.count_nonzero(first.within(common) & second.within(common)))
        return min(areas) > 0 and shared > threshold * min(areas)
    grown = cv2.dilate(np.pad(first.mask, 1), np.ones((3, 3), np.uint8))
    box = first.box
    around = PixelRect(box.left - 1, box.top - 1, box.right + 1, box.bottom + 1)
    wider = _Placed(first.tile, first.piece, grown.astype(np.uint8), around)
    common = around.intersection(second.box)
    return bool((wider.within(common) & second.within(common)).any())


def _united(group: Sequence[_Placed]) -> Piece:
    boxes = [placed.box for placed in group]
    left, top = min(box.left for box in boxes), min(box.top for box in boxes)
    frame = PixelRect(left, top, max(box.right for box in boxes), max(box.bottom for box in boxes))
    mask = np.zeros(frame.size_hw, np.uint8)
    for placed in group:
        mask[placed.box.slices_of(frame)] |= placed.mask
    weights = [placed.piece.area_px for placed in group]
    score = float(np.average([placed.piece.score for placed in group], weights=weights))
    area = int(np.count_nonzero(mask))
    first = group[0].piece
    return Piece(
        class_id=first.class_id,
        score=score,
        area_px=area,
        rings=rings(mask, left, top),
        instance=first.instance,
    )

"""Regions of one class as rings, and one region for what several tiles saw of it."""

from collections.abc import Sequence

import cv2
import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.tasks.contours import Mask, Ring, fill, rings
from quadriga.tasks.sampling import PixelRect

_WHOLE = PixelRect(0, 0, 0, 0)
"""For pieces that are in pixels of the image already."""


class Piece(msgspec.Struct, frozen=True, eq=False):
    """A region with its score and its rings."""

    class_id: int
    score: float
    area_px: int
    rings: list[Ring]
    instance: bool = False
    """Whether it is one thing, or all that a tile shows of one."""


class _Placed(msgspec.Struct, frozen=True, eq=False):
    tile: PixelRect
    piece: Piece
    mask: Mask
    box: PixelRect

    def within(self, box: PixelRect) -> npt.NDArray[np.bool_]:
        """Give the part of the mask inside a box that it covers."""
        return self.mask[box.slices_of(self.box)] > 0


def join(found: Sequence[tuple[PixelRect, Sequence[Piece]]], threshold: float) -> list[Piece]:
    """Join what was found in the tiles of one image, each tile with its regions in its own pixels.

    Two regions of a class are one if, where their tiles overlap, they share more than `threshold`
    of the smaller one's pixels; where tiles only touch, if the regions do. A joined region has the
    mean score of its parts, by area.
    """
    placed = [_place(piece, tile) for tile, pieces in found for piece in pieces]
    leaders = list(range(len(placed)))

    def leader(index: int) -> int:
        while leaders[index] != index:
            leaders[index] = leaders[leaders[index]]
            index = leaders[index]
        return index

    for one in range(len(placed)):
        for other in range(one):
            a, b = placed[one], placed[other]
            if a.tile == b.tile or a.piece.class_id != b.piece.class_id:
                continue
            if _same(a, b, threshold):
                leaders[leader(one)] = leader(other)
    groups: dict[int, list[_Placed]] = {}
    for index, item in enumerate(placed):
        groups.setdefault(leader(index), []).append(item)
    return [_united(group) for group in groups.values()]


def by_class(pieces: Sequence[Piece]) -> list[Piece]:
    """Make one region of all of a class, but for instances; scores as in `join`."""
    found = [piece for piece in pieces if piece.instance]
    groups: dict[int, list[_Placed]] = {}
    for piece in pieces:
        if not piece.instance:
            groups.setdefault(piece.class_id, []).append(_place(piece))
    return found + [_united(group) for group in groups.values()]


def without_small_parts(piece: Piece, min_area: float) -> Piece | None:
    """Leave out connected parts of fewer pixels; None where no part is left."""
    whole = _place(piece)
    _, parts, measures, _ = cv2.connectedComponentsWithStats(whole.mask, connectivity=8)
    small = measures[:, cv2.CC_STAT_AREA] < min_area
    if not small[1:].any():
        return piece
    mask = np.where(small[parts], 0, whole.mask).astype(np.uint8)
    area = int(np.count_nonzero(mask))
    if not area:
        return None
    return msgspec.structs.replace(
        piece, area_px=area, rings=rings(mask, whole.box.left, whole.box.top)
    )


def _place(piece: Piece, tile: PixelRect = _WHOLE) -> _Placed:
    points = np.concatenate(piece.rings)
    left, top = points.min(axis=0).tolist()
    right, bottom = (points.max(axis=0) + 1).tolist()
    shift = np.array([left, top], np.int32)
    mask = fill([ring - shift for ring in piece.rings], right - left, bottom - top)
    box = PixelRect(left + tile.left, top + tile.top, right + tile.left, bottom + tile.top)
    return _Placed(tile, piece, mask, box)


def _same(one: _Placed, other: _Placed, threshold: float) -> bool:
    """Tell whether two regions are parts of one object; see `join`."""
    zone = one.tile.intersection(other.tile)
    if not zone.empty:
        boxes = [each.box.intersection(zone) for each in (one, other)]
        areas = [
            int(np.count_nonzero(each.within(box)))
            for each, box in zip((one, other), boxes, strict=True)
        ]
        both = boxes[0].intersection(boxes[1])
        shared = int(np.count_nonzero(one.within(both) & other.within(both)))
        return min(areas) > 0 and shared > threshold * min(areas)
    grown = cv2.dilate(
        cv2.copyMakeBorder(one.mask, 1, 1, 1, 1, cv2.BORDER_CONSTANT), np.ones((3, 3), np.uint8)
    )
    box = one.box
    around = PixelRect(box.left - 1, box.top - 1, box.right + 1, box.bottom + 1)
    wider = _Placed(one.tile, one.piece, grown.astype(np.uint8), around)
    both = around.intersection(other.box)
    return bool((wider.within(both) & other.within(both)).any())


def _united(group: Sequence[_Placed]) -> Piece:
    boxes = [item.box for item in group]
    left, top = min(box.left for box in boxes), min(box.top for box in boxes)
    whole = PixelRect(left, top, max(box.right for box in boxes), max(box.bottom for box in boxes))
    mask = np.zeros(whole.size_hw, np.uint8)
    for item in group:
        mask[item.box.slices_of(whole)] |= item.mask
    weights = [item.piece.area_px for item in group]
    score = float(np.average([item.piece.score for item in group], weights=weights))
    area = int(np.count_nonzero(mask))
    first = group[0].piece
    return Piece(first.class_id, score, area, rings(mask, left, top), first.instance)

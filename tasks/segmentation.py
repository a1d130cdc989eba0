"""Image segmentation: labelled regions as contours.

The score of an instance is that of its network. The score of a region of a class map is the mean,
over its pixels in the image, of the probability that the network gives the class there; it is 1 if the
network outputs classes alone.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import cv2
import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.tasks import parameters as read
from quadriga.tasks.geometry import Mask, Ring, fill, rings, simplify, to_points
from quadriga.tasks.image import Image
from quadriga.tasks.predictions import (
    OutputError,
    Outputs,
    Prediction,
    Segment,
    TruncatedPredictions,
    check_probabilities,
)
from quadriga.tasks.resize import Affine, PixelRect, preprocess
from quadriga.tasks.segmenters import SEGMENTERS, MaskRegion, Segmenter, SegmenterOptions
from quadriga.tasks.specification import ModelSpec, Tiling, resolve

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


Integers = npt.NDArray[np.int64]

_BAND_PX = 1 << 18
_BACKGROUNDS = frozenset({"background", "bg", "void", "unlabelled", "unlabeled"})


class SegmentationOptions(msgspec.Struct, frozen=True):
    """Options of one image for a segmentation."""

    action: str
    score_threshold: float
    """Minimum score, itself excluded; 0 leaves no region of a class map out."""
    iou_threshold: float
    """Overlap (IoU) of boxes with a better instance of the same class above which an instance is dropped."""
    max_segments: int
    """Maximum segments to return: the largest regions of a class map, the best instances."""
    regions: Literal["component", "class"]
    """How a class map becomes regions: one for each connected component, or one for each class."""
    min_area: float
    """Minimum pixels of a connected component; smaller ones are dropped."""
    simplify: bool
    """Whether to drop points that change a contour by less than `epsilon`."""
    epsilon: float
    """Tolerance of `simplify`, pixels of the image."""


class ImageSegmentation:
    """Predicts contours: regions of a class map by descending area, instances by descending score.

    `predict` and `segment` are two names for the same action.
    Pixels that touch at a corner are connected. `regions` decides about a class map: a prediction for each
    connected component, as a person would outline it, or for each class. An instance is always one
    prediction, with several outer rings if its components lie apart.
    """

    actions: tuple[str, ...] = ("predict", "segment")

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._segment: Segmenter = resolve(spec.output.decoder, SEGMENTERS, "output.decoder")
        self._background = background(spec)

    def options(self, parameters: Mapping[str, Any]) -> SegmentationOptions:
        """Read `action`, the two thresholds, `max_segments` and the parameters of contours."""
        defaults = self._spec.defaults
        by_class = read.choice(parameters, "regions", ("component", "class")) == "class"
        return SegmentationOptions(
            action=read.action(parameters, self.actions),
            score_threshold=read.share(parameters, "score_threshold", defaults.score_threshold),
            iou_threshold=read.share(parameters, "iou_threshold", defaults.iou_threshold),
            max_segments=read.whole_number(
                parameters, "max_segments", low=1, high=10_000, default=defaults.max_detections
            ),
            regions="class" if by_class else "component",
            min_area=read.number(
                parameters, "min_area", low=0, high=math.inf, default=defaults.min_area
            ),
            simplify=read.flag(parameters, "simplify", default=defaults.simplify),
            epsilon=read.number(
                parameters, "epsilon", low=0, high=math.inf, default=defaults.epsilon
            ),
        )

    def preprocess(self, image: Image) -> tuple[npt.NDArray[Any], Affine]:
        """Make the input tensor of one image, without the batch axis, and the map to undo it."""
        return preprocess(image, self._spec.input)

    def predict(
        self, outputs: Outputs, affine: Affine, options: SegmentationOptions
    ) -> list[Prediction]:
        """Read masks at the resolution of the image, and trace their contours."""
        pieces = self._read_pieces(outputs, affine, options)
        return self.to_predictions(pieces, affine.width, affine.height, options)

    def detect(self, outputs: Outputs, affine: Affine, options: SegmentationOptions) -> Pieces:
        """Read the regions of one tile, also small ones: a border of the tile may cut a large region into pieces."""
        return self._read_pieces(outputs, affine, msgspec.structs.replace(options, min_area=0))

    def _read_pieces(
        self, outputs: Outputs, affine: Affine, options: SegmentationOptions
    ) -> Pieces:
        pieces: list[Piece] = []
        left_out = 0
        if self._spec.output.layout == "nhwc":
            outputs = {
                name: np.ascontiguousarray(np.moveaxis(maps, -1, 0)) if maps.ndim == 3 else maps
                for name, maps in outputs.items()
            }
        for region in self._segment(outputs, affine, self._segmenter_options(options)):
            if not 0 <= region.class_id < len(self._spec.labels):
                raise OutputError(
                    f"expected a label for each class, got class {region.class_id}"
                    f" and {len(self._spec.labels)} labels"
                )
            check_probabilities(np.array(region.score))
            if region.class_id != self._background:
                traced = _pieces_of(region, options)
                pieces.extend(traced.pieces)
                left_out += traced.left_out
        return Pieces(pieces, left_out)

    def merge(
        self,
        tiles: Sequence[tuple[PixelRect, Pieces]],
        tiling: Tiling,
        options: SegmentationOptions,
    ) -> Pieces:
        """Merge regions that several tiles have, or all of a class; then drop small components."""
        left_out = sum(traced.left_out for _, traced in tiles)
        joined = join([(tile, traced.pieces) for tile, traced in tiles], tiling.threshold)
        if options.regions == "class":
            joined = by_class(joined)
        if options.min_area > 1:
            large = (without_small_parts(piece, options.min_area) for piece in joined)
            joined = [piece for piece in large if piece is not None]
        return Pieces(joined, left_out)

    def to_predictions(
        self,
        candidates: Pieces,
        width: int,  # noqa: ARG002 - only boxes are clipped to the image
        height: int,  # noqa: ARG002 - as width
        options: SegmentationOptions,
    ) -> list[Prediction]:
        """Label the regions, the largest or the best first, and shape their contours."""
        pieces = [
            piece
            for piece in candidates.pieces
            if _scores_enough(piece.score, options, instance=piece.instance)
        ]
        pieces.sort(key=_rank)
        segments: list[Prediction] = [
            Segment(
                self._spec.labels[piece.class_id],
                piece.score,
                [to_points(_shaped(ring, options)) for ring in piece.rings],
            )
            for piece in pieces[: options.max_segments]
        ]
        total = len(pieces) + candidates.left_out
        if total <= options.max_segments:
            return segments
        has_instances = any(piece.instance for piece in pieces)
        return TruncatedPredictions(segments, None if has_instances else total)

    def _segmenter_options(self, options: SegmentationOptions) -> SegmenterOptions:
        output = self._spec.output
        return SegmenterOptions(
            score_threshold=options.score_threshold,
            iou_threshold=options.iou_threshold,
            limit=options.max_segments + 1,  # one more tells that there were more
            label_count=len(self._spec.labels),
            background=self._background,
            activation=output.activation,
            label_offset=output.label_offset,
            nms=output.nms,
        )


def background(spec: ModelSpec) -> int | None:
    """Return the background label, which is not predicted: the specified one, or the first if its name says so."""
    if spec.output.background is not None:
        return spec.output.background
    return 0 if begins_with_background(spec.labels) else None


def begins_with_background(labels: Sequence[str]) -> bool:
    """Check whether the first of several labels names the background."""
    return len(labels) > 1 and labels[0].strip("_ ").lower() in _BACKGROUNDS


def _scores_enough(scores: Any, options: SegmentationOptions, *, instance: bool) -> Any:
    """Compare a score, or an array of them, with the threshold."""
    # where all classes have the probability 0, the first one wins with a score of 0
    if options.score_threshold == 0 and not instance:
        return scores >= 0
    return scores > options.score_threshold


def _rank(piece: Piece) -> tuple[float, float]:
    """Return the sort key: an instance by its score, a region of a class map by its area."""
    by_score, by_area = -piece.score, -piece.area_px
    return (by_score, by_area) if piece.instance else (by_area, by_score)


def _shaped(ring: Ring, options: SegmentationOptions) -> Ring:
    return simplify(ring, options.epsilon) if options.simplify else ring


def _pieces_of(region: MaskRegion, options: SegmentationOptions) -> Pieces:
    """Trace a region: no piece, one piece, or a piece for each connected component."""
    if region.instance and options.min_area <= 1:
        area = cv2.countNonZero(region.mask)
        outlines = rings(region.mask, region.left, region.top) if area else []
        return _whole(region, region.score, area, outlines)
    components = cv2.connectedComponents(region.mask, connectivity=8)[1].astype(
        np.int32, copy=False
    )
    areas, sums = _measured(region, components)
    selected = np.flatnonzero(areas >= max(options.min_area, 1))
    if region.instance or options.regions == "class":
        area = int(areas[selected].sum())
        score = float(sums[selected].sum() / area) if sums is not None and area else region.score
        outlines = _rings_of(region, components, areas, selected) if area else []
        return _whole(region, score, area, outlines)
    scores = np.full(len(areas), region.score) if sums is None else sums / np.maximum(areas, 1)
    selected = selected[_scores_enough(scores[selected], options, instance=False)]
    # noise may have a million components: only those that may be returned are traced
    order = np.lexsort([-scores[selected], -areas[selected]])
    left_out = max(len(order) - options.max_segments, 0)
    selected = selected[order[: options.max_segments]]
    pieces = [
        Piece(
            region.class_id, float(scores[component]), area_px=int(areas[component]), rings=outlines
        )
        for component, outlines in _rings_by_component(region, components, areas, selected).items()
    ]
    return Pieces(pieces, left_out)


def _whole(region: MaskRegion, score: float, area_px: int, outlines: list[Ring]) -> Pieces:
    """Return a region as one piece; none if it has no pixels."""
    if not area_px:
        return Pieces()
    piece = Piece(region.class_id, score, area_px=area_px, rings=outlines, instance=region.instance)
    return Pieces([piece])


def _rings_by_component(
    region: MaskRegion, components: npt.NDArray[np.int32], areas: Integers, selected: Integers
) -> dict[int, list[Ring]]:
    """Trace the selected components, in their order."""
    by_component: dict[int, list[Ring]] = {component: [] for component in selected.tolist()}
    for ring in _rings_of(region, components, areas, selected) if len(selected) else ():
        x, y = ring[0]
        by_component[int(components[y - region.top, x - region.left])].append(ring)
    return by_component


def _rings_of(
    region: MaskRegion, components: npt.NDArray[np.int32], areas: Integers, selected: Integers
) -> list[Ring]:
    mask = region.mask
    if len(selected) < np.count_nonzero(areas):
        is_selected = np.zeros(len(areas), np.uint8)
        is_selected[selected] = 1
        mask = np.empty_like(region.mask)
        for band in _bands(mask):
            mask[band] = is_selected[components[band]]
    return rings(mask, region.left, region.top)


def _bands(mask: Mask) -> Iterator[slice]:
    """Yield bands of rows of a mask: they bound the temporary arrays of numpy."""
    rows = max(1, _BAND_PX // mask.shape[1])
    for top in range(0, len(mask), rows):
        yield slice(top, top + rows)


def _measured(
    region: MaskRegion, components: npt.NDArray[np.int32]
) -> tuple[Integers, npt.NDArray[np.float64] | None]:
    """Count the pixels of each connected component and sum their probabilities.

    This is faster than OpenCV's own statistics, which also count the pixels outside of the region.
    """
    count = int(components.max()) + 1
    areas, sums = np.zeros(count, np.int64), np.zeros(count, np.float64)
    for band in _bands(region.mask):
        inside = region.mask[band] > 0
        numbers = components[band][inside]
        areas += np.bincount(numbers, minlength=count)
        if region.probabilities is not None:
            weights = region.probabilities[band][inside]
            sums += np.bincount(numbers, weights=weights, minlength=count)
    return areas, None if region.probabilities is None else sums

"""Image segmentation: labelled regions as contours.

The score of an instance is that of its network. The score of a region of a class map is the mean,
over its pixels in the image, of the probability that the network gives the class there; 1 where it
answers classes alone.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import cv2
import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.tasks import parameters as read
from quadriga.tasks.contours import Mask, Ring, rings, simplify, to_points
from quadriga.tasks.image import Image
from quadriga.tasks.pieces import Piece, by_class, join, without_small_parts
from quadriga.tasks.predictions import OutputError, Outputs, Prediction, Segment
from quadriga.tasks.references import resolve
from quadriga.tasks.resize import Affine, preprocess
from quadriga.tasks.sampling import PixelRect
from quadriga.tasks.segmenters import SEGMENTERS, Region, Segmenter, SegmenterOptions
from quadriga.tasks.specification import ModelSpec, Tiling

Integers = npt.NDArray[np.int64]

_BAND_PX = 1 << 18
_BACKGROUNDS = frozenset({"background", "bg", "void", "unlabelled", "unlabeled"})


class SegmentationOptions(msgspec.Struct, frozen=True):
    """What a request asks of a segmentation."""

    action: str
    score_threshold: float
    """Regions must score above it."""
    iou_threshold: float
    """An instance whose box overlaps a better one of its class by more is dropped."""
    max_segments: int
    """Most regions to answer; the best are kept, of equal scores the largest."""
    regions: Literal["component", "class"]
    """Of a class map: one region for each connected part, or one for each class."""
    min_area: float
    """Connected parts of fewer pixels are left out."""
    simplify: bool
    """Whether to leave out points that change a contour by less than `epsilon`."""
    epsilon: float
    """Pixels of the image."""


class ImageSegmentation:
    """Answers contours by descending score; `predict` and `segment` are two names for the same.

    Pixels that touch at a corner are connected. Of a class map, `regions` says what one prediction
    is: each connected part, as a person would outline it, or all pixels of a class. An instance is
    always one prediction, of several outer rings where its parts lie apart.
    """

    actions: tuple[str, ...] = ("predict", "segment")

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._segment: Segmenter = resolve(spec.output.decoder, SEGMENTERS, "output.decoder")
        self._background = background(spec)

    def options(self, parameters: Mapping[str, Any]) -> SegmentationOptions:
        """Read `action`, the two thresholds, `max_segments` and how contours are made."""
        defaults = self._spec.defaults
        by_class = read.choice(parameters, "regions", ("component", "class")) == "class"
        return SegmentationOptions(
            action=read.action(parameters, self.actions),
            score_threshold=read.number(
                parameters, "score_threshold", 0, 1, defaults.score_threshold
            ),
            iou_threshold=read.number(parameters, "iou_threshold", 0, 1, defaults.iou_threshold),
            max_segments=read.whole_number(
                parameters, "max_segments", 1, 10_000, min(defaults.max_detections, 10_000)
            ),
            regions="class" if by_class else "component",
            min_area=read.number(parameters, "min_area", 0, math.inf, defaults.min_area),
            simplify=read.flag(parameters, "simplify", default=defaults.simplify),
            epsilon=read.number(parameters, "epsilon", 0, math.inf, defaults.epsilon),
        )

    def preprocess(self, image: Image) -> tuple[npt.NDArray[Any], Affine]:
        """Make the input tensor of one image, without the batch axis, and the map to undo it."""
        return preprocess(image, self._spec.input)

    def predict(
        self, outputs: Outputs, affine: Affine, options: SegmentationOptions
    ) -> list[Prediction]:
        """Make masks at the resolution of the image, then contours."""
        found = self._find(outputs, affine, options)
        return self.to_predictions(found, affine.width, affine.height, options)

    def read_tile(
        self, outputs: Outputs, affine: Affine, options: SegmentationOptions
    ) -> list[Piece]:
        """Find the regions of one tile, of whatever area: a border may cut a large one into small parts."""
        return self._find(outputs, affine, msgspec.structs.replace(options, min_area=0))

    def _find(self, outputs: Outputs, affine: Affine, options: SegmentationOptions) -> list[Piece]:
        found: list[Piece] = []
        for region in self._segment(outputs, affine, self._asked(options)):
            if not 0 <= region.class_id < len(self._spec.labels):
                raise OutputError(
                    f"expected a label for each class, got class {region.class_id}"
                    f" and {len(self._spec.labels)} labels"
                )
            if region.class_id != self._background:
                found.extend(_found(region, options))
        return found

    def merge_tiles(
        self,
        found: Sequence[tuple[PixelRect, list[Piece]]],
        tiling: Tiling,
        options: SegmentationOptions,
    ) -> list[Piece]:
        """Make one region of what several tiles saw, or of a class; then leave out small parts."""
        joined = join(found, tiling.threshold)
        if options.regions == "class":
            joined = by_class(joined)
        if options.min_area <= 1:
            return joined
        large = (without_small_parts(piece, options.min_area) for piece in joined)
        return [piece for piece in large if piece is not None]

    def to_predictions(
        self,
        found: list[Piece],
        width: int,  # noqa: ARG002 - boxes are clipped to the image; masks lie inside
        height: int,  # noqa: ARG002 - as width
        options: SegmentationOptions,
    ) -> list[Prediction]:
        """Name the regions, the best first; the second half of `predict`."""
        found = [item for item in found if item.score > options.score_threshold]
        found.sort(key=lambda item: (-item.score, -item.area_px))
        return [
            Segment(
                self._spec.labels[item.class_id],
                item.score,
                [to_points(_shaped(ring, options)) for ring in item.rings],
            )
            for item in found[: options.max_segments]
        ]

    def _asked(self, options: SegmentationOptions) -> SegmenterOptions:
        output = self._spec.output
        return SegmenterOptions(
            score_threshold=options.score_threshold,
            iou_threshold=options.iou_threshold,
            limit=options.max_segments,
            label_count=len(self._spec.labels),
            background=self._background,
            activation=output.activation,
            label_offset=output.label_offset,
        )


def background(spec: ModelSpec) -> int | None:
    """Give the label that is not answered: the specified one, or the first if its name says so."""
    if spec.output.background is not None:
        return spec.output.background
    first = spec.labels[0].strip("_ ").lower() if len(spec.labels) > 1 else ""
    return 0 if first in _BACKGROUNDS else None


def _shaped(ring: Ring, options: SegmentationOptions) -> Ring:
    return simplify(ring, options.epsilon) if options.simplify else ring


def _found(region: Region, options: SegmentationOptions) -> Iterator[Piece]:
    """Turn a region into what is answered of it: nothing, one, or one for each connected part."""
    if region.instance and options.min_area <= 1:
        area = cv2.countNonZero(region.mask)
        if area:
            found = rings(region.mask, region.left, region.top)
            yield Piece(region.class_id, region.score, area, found, instance=True)
        return
    parts = cv2.connectedComponents(region.mask, connectivity=8)[1].astype(np.int32, copy=False)
    areas, sums = _measured(region, parts)
    kept = np.flatnonzero(areas >= max(options.min_area, 1))
    if not len(kept):
        return
    if region.instance or options.regions == "class":
        area = int(areas[kept].sum())
        score = region.score if sums is None else float(sums[kept].sum() / area)
        found = _rings_of(region, parts, areas, kept)
        yield Piece(region.class_id, score, area, found, region.instance)
        return
    scores = np.full(len(areas), region.score) if sums is None else sums / np.maximum(areas, 1)
    kept = kept[scores[kept] > options.score_threshold]
    # of noise there may be a million parts: contours are made of those alone that may be answered
    kept = kept[np.lexsort([-areas[kept], -scores[kept]])[: options.max_segments]]
    by_part: dict[int, list[Ring]] = {part: [] for part in kept.tolist()}
    for ring in _rings_of(region, parts, areas, kept):
        x, y = ring[0]
        by_part[int(parts[y - region.top, x - region.left])].append(ring)
    for part, own in by_part.items():
        yield Piece(region.class_id, float(scores[part]), int(areas[part]), own)


def _rings_of(
    region: Region, parts: npt.NDArray[np.int32], areas: Integers, kept: Integers
) -> list[Ring]:
    mask = region.mask
    if len(kept) < np.count_nonzero(areas):
        wanted = np.zeros(len(areas), np.uint8)
        wanted[kept] = 1
        mask = np.empty_like(region.mask)
        for band in _bands(mask):
            mask[band] = wanted[parts[band]]
    return rings(mask, region.left, region.top)


def _bands(mask: Mask) -> Iterator[slice]:
    """Cut a picture into bands of rows: numpy makes large temporary arrays."""
    rows = max(1, _BAND_PX // mask.shape[1])
    for top in range(0, len(mask), rows):
        yield slice(top, top + rows)


def _measured(
    region: Region, parts: npt.NDArray[np.int32]
) -> tuple[Integers, npt.NDArray[np.float64] | None]:
    """Count the pixels of each connected part and sum their probabilities.

    Faster than OpenCV's own statistics, which also count what is not in the region.
    """
    count = int(parts.max()) + 1
    areas, sums = np.zeros(count, np.int64), np.zeros(count, np.float64)
    for band in _bands(region.mask):
        inside = region.mask[band] > 0
        numbers = parts[band][inside]
        areas += np.bincount(numbers, minlength=count)
        if region.probabilities is not None:
            weights = region.probabilities[band][inside]
            sums += np.bincount(numbers, weights=weights, minlength=count)
    return areas, None if region.probabilities is None else sums

"""Oriented boxes: how they come from the wire, how far two overlap, and the two rules they are judged by."""

from collections.abc import Sequence

import msgspec
import numpy as np

from quadriga.monitor.evaluation.evaluators import Composed, Evaluated
from quadriga.monitor.evaluation.item_tables import (
    Listed,
    predictions_table,
    read_lists,
    truths_table,
)
from quadriga.monitor.evaluation.objects.dota import DotaObjects
from quadriga.monitor.evaluation.objects.matching import Overlap
from quadriga.monitor.evaluation.objects.object_metrics import EvaluatedObjects
from quadriga.monitor.evaluation.state import (
    EvaluatedImage,
    Labels,
    Magnitude,
    Number,
    State,
    Table,
    Truth,
)
from quadriga.tasks.arrays import BoolArray, Float64Array, Int64Array
from quadriga.tasks.geometry import ratio
from quadriga.tasks.rotated import (
    convex_intersection_areas,
    polygon_areas,
    relative_to_pixels,
    xywhr_to_corners,
)
from quadriga.tasks.shapes import ORIENTED_BOX_KEYS

_Pair = tuple[Number, Number]

_AT_ONCE = 4096
"""Pairs of boxes that are clipped at once: their corners stay in the cache."""


class _Found(msgspec.Struct, gc=False):
    label: str
    score: Number
    cx: Number
    cy: Number
    w: Magnitude
    h: Magnitude
    r: Number


class _There(Truth):
    cx: Number | None = None
    cy: Number | None = None
    w: Magnitude | None = None
    h: Magnitude | None = None
    r: Number | None = None
    corners: tuple[_Pair, _Pair, _Pair, _Pair] | None = None


class OrientedDetection:
    """The evaluation of `ORIENTED_OBJECT_DETECTION`.

    Its tables hold each object as `centre` (N, 2), in pixels of the image, and `corners` (N, 8): x and y
    of four, from the centre, clockwise on the screen and convex.
    """

    def tables(self, images: Sequence[EvaluatedImage], labels: Labels) -> dict[str, Table]:
        """Read oriented boxes; see `Evaluator.tables`."""
        found = read_lists(images, "predictions", list[_Found], labels)
        there = read_lists(images, "ground_truth", list[_There], labels)
        sizes = np.array([(one.width or 0, one.height or 0) for one in images], np.float64)
        boxes = _boxes(found, sizes.reshape(-1, 2))
        centre, corners = _shapes(there, sizes.reshape(-1, 2))
        around = _around(boxes).reshape(-1, 8)
        return {
            "predictions": predictions_table(
                found, boxes[:, 2] * boxes[:, 3], centre=boxes[:, :2], corners=around
            ),
            "truths": truths_table(
                there, polygon_areas(corners), centre=centre, corners=corners.reshape(-1, 8)
            ),
        }

    def evaluate(self, state: State) -> Evaluated:
        """Look into a whole state, by COCO's rule and by DOTA's."""
        overlap = oriented_overlap(state)
        coco = EvaluatedObjects(state, overlap, "oriented box")
        return Composed([coco, DotaObjects(state, oriented_overlap(state, crowds=False))])


def oriented_overlap(state: State, *, crowds: bool = True) -> Overlap:
    """Return the overlap of oriented boxes: intersection over union, exact.

    With `crowds`, of a crowd it is the part of the prediction that lies in it.
    """
    found, there = state.tables["predictions"], state.tables["truths"]
    shapes, others = (table["corners"].reshape(-1, 4, 2) for table in (found, there))
    areas, wholes = polygon_areas(shapes), polygon_areas(others)
    crowd = there["crowd"] & crowds

    def overlap(prediction: Int64Array, truth: Int64Array) -> Float64Array:
        common = np.zeros(len(prediction))
        for first in range(0, len(prediction), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            one, other = prediction[part], truth[part]
            away = found["centre"][one] - there["centre"][other]
            common[part] = _common_areas(shapes[one] + away[:, None], others[other])
        own = areas[prediction]
        of = np.where(crowd[truth], own, own + wholes[truth] - common)
        share: Float64Array = np.minimum(ratio(common, of), 1)  # rounding may pass it
        return share

    return overlap


def _common_areas(shapes: Float64Array, others: Float64Array) -> Float64Array:
    """Return the common area of pairs (P, 4, 2); only those are clipped whose upright frames meet."""
    meet = (shapes.min(axis=1) < others.max(axis=1)) & (others.min(axis=1) < shapes.max(axis=1))
    at = np.flatnonzero(meet.all(axis=1))
    areas = np.zeros(len(shapes))
    areas[at] = convex_intersection_areas(shapes[at], others[at])
    return areas


def _boxes(listed: Listed, sizes: Float64Array) -> Float64Array:
    """Return boxes (N, 5), xywhr, in pixels, of images whose sizes are (I, 2)."""
    scale = sizes[listed.table["image"]]
    listed.check(scale.min(axis=1) > 0, "width and height of the image")
    return relative_to_pixels(listed.numbers(*ORIENTED_BOX_KEYS), scale)


def _shapes(listed: Listed, sizes: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Return centres (N, 2) and corners (N, 4, 2) from there, given as corners or as boxes."""
    given: BoolArray = np.array([one.corners is not None for one in listed.rows], bool)
    turned = np.flatnonzero(~given)
    rest = listed.of(turned)
    boxes = _boxes(rest, sizes)
    rest.check(~np.isnan(boxes.sum(axis=1)), "corners, or cx, cy, w, h and r")
    centre, corners = np.zeros((len(given), 2)), np.zeros((len(given), 4, 2))
    centre[turned], corners[turned] = boxes[:, :2], _around(boxes)
    quads = np.array([one.corners for one in listed.rows if one.corners], np.float64)
    quads = quads.reshape(-1, 4, 2)
    centre[given] = quads.mean(axis=1)
    corners[given] = convex(quads - centre[given][:, None])
    return centre, corners


def _around(boxes: Float64Array) -> Float64Array:
    """Return the corners (N, 4, 2) of boxes (N, 5), xywhr, from their centres: small numbers round less."""
    return xywhr_to_corners(boxes * (0, 0, 1, 1, 1))


def convex(corners: Float64Array) -> Float64Array:
    """Put four corners into the order in which they surround what they span.

    Args:
        corners: float64 (N, 4, 2), from about their middle, in any order.

    Returns:
        Clockwise on the screen; a corner within the other three becomes a double of its neighbour.
    """
    away = corners - corners.mean(axis=1, keepdims=True)
    order = np.argsort(np.arctan2(away[..., 1], away[..., 0]), axis=1, kind="stable")
    ordered = np.take_along_axis(corners, order[..., None], axis=1)
    before, after = np.roll(ordered, 1, axis=1), np.roll(ordered, -1, axis=1)
    arriving, leaving = ordered - before, after - ordered
    turn = arriving[..., 0] * leaving[..., 1] - arriving[..., 1] * leaving[..., 0]
    return np.where((turn < 0)[..., None], before, ordered)

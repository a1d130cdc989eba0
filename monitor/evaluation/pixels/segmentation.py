"""Segmentation as a label for each pixel: regions are painted one over the other, see docs/evaluation-reference.md."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from quadriga.monitor.evaluation.arrays import ratio
from quadriga.monitor.evaluation.evaluators import Composed, Evaluated, Findings, Headline
from quadriga.monitor.evaluation.labels.label_counts import LabelCounts, confusion, per_label
from quadriga.monitor.evaluation.pixels.instances import (
    BACKGROUND,
    FARTHEST_PX,
    IGNORED,
    NO_OBJECTS,
    Found,
    Instances,
    There,
    object_tables,
    tables_of_each,
)
from quadriga.monitor.evaluation.state import EvaluatedImage, EvaluationError, Labels, State, Table
from quadriga.tasks.arrays import Float64Array, Int64Array
from quadriga.tasks.contours import paint, to_rings

_LARGEST_PX = 1 << 28
_NOTHING, _HIDDEN = -1, -2


class Segmentation:
    """Evaluates `IMAGE_SEGMENTATION`, instances first; without pixels, as of COCO's files, them alone."""

    def tables(self, images: Sequence[EvaluatedImage], labels: Labels) -> dict[str, Table]:
        """Read contours, as masks and as labels of pixels; see `Evaluator.tables`."""
        return tables_of_each(
            images, lambda *image: object_tables(labels, *image) | _pixels(labels, *image)
        )

    def evaluate(self, state: State) -> Evaluated:
        """Look into a whole state."""
        parts = (Instances(), Semantic()) if "pixels" in state.tables else (Instances(),)
        return Composed([part.evaluate(state) for part in parts])


class Semantic:
    """Evaluates the regions of `IMAGE_SEGMENTATION` pixel by pixel.

    Table "pixels": image, truth_label, predicted_label, both -1 for nothing, and count, of all pixels of the
    image that count.
    """

    def tables(self, images: Sequence[EvaluatedImage], labels: Labels) -> dict[str, Table]:
        """Paint and count; see `Evaluator.tables`."""
        return tables_of_each(images, partial(_pixels, labels))

    def evaluate(self, state: State) -> Evaluated:
        """Look into a whole state."""
        return EvaluatedPixels(state)


def _pixels(
    labels: Labels, image: EvaluatedImage, found: list[Found], there: list[There]
) -> dict[str, Table]:
    """Paint and count one image."""
    where = f"image {image.id!r}"
    width, height = image.width or 0, image.height or 0
    if width <= 0 or height <= 0 or width * height > _LARGEST_PX:
        raise EvaluationError(
            f"{where}: expected width and height, and at most {_LARGEST_PX} pixels,"
            f" got {image.width} and {image.height}"
        )

    def label(one: Found | There) -> int:
        return _NOTHING if one.label == BACKGROUND else labels[one.label]

    found = sorted(found, key=lambda one: one.score)
    predicted = _painted(
        found, [label(one) for one in found], (height, width), f"{where}: predictions"
    )
    hidden = [one.crowd or one.label in IGNORED for one in there]
    true_labels = [
        _HIDDEN if is_hidden else label(one) for one, is_hidden in zip(there, hidden, strict=True)
    ]
    true = _painted(there, true_labels, (height, width), f"{where}: ground_truth")
    truth, prediction, count = _counted(true, predicted)
    table = {"image": np.zeros(len(count), np.int64), "truth_label": truth}
    return {"pixels": table | {"predicted_label": prediction, "count": count}}


_Painted = tuple[npt.NDArray[np.uint8 | np.int32], Int64Array]
"""A canvas (H, W) of positions in labels, and these: those of the image."""


def _painted(
    segments: Sequence[Found | There], labels: Sequence[int], size_hw: tuple[int, int], where: str
) -> _Painted:
    """Paint segments, each with its label, one over the other."""
    canvas = np.zeros(size_hw, np.uint8 if len(segments) < 255 else np.int32)
    places = {_NOTHING: 0}
    for at, (one, label) in enumerate(zip(segments, labels, strict=True)):
        with np.errstate(invalid="ignore"):  # of numbers beyond int32, which are refused
            outlines = to_rings(one.contour)
        if any((np.abs(ring.astype(np.int64)) > FARTHEST_PX).any() for ring in outlines):
            raise EvaluationError(
                f"{where}[{at}]: expected points near the image, got one beyond {FARTHEST_PX} pixels"
            )
        paint(canvas, outlines, places.setdefault(label, len(places)))
    return canvas, np.array([*places], np.int64)


def _counted(true: _Painted, predicted: _Painted) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Count (N,) the pixels of each pair of a true and a predicted label."""
    (canvas, labels), (other_canvas, other_labels) = true, predicted
    width = len(other_labels)
    cells = canvas.ravel().astype(np.int64)
    cells *= width  # in place: the image may be large
    cells += other_canvas.ravel()
    if len(labels) * width < len(cells):
        counts = np.bincount(cells)
        pairs = np.flatnonzero(counts)
        counts = counts[pairs]
    else:
        pairs, counts = np.unique(cells, return_counts=True)
    truth, prediction = labels[pairs // width], other_labels[pairs % width]
    kept = truth != _HIDDEN
    return truth[kept], prediction[kept], counts[kept]


class EvaluatedPixels:
    """A whole state, looked into once."""

    def __init__(self, state: State) -> None:
        pixels = state.tables["pixels"]
        self._image, self._pixels = pixels["image"], pixels["count"]
        sides = pixels["truth_label"], pixels["predicted_label"]
        painted = np.isin(np.arange(len(state.labels)), np.concatenate(sides))
        kept = [
            at for at, label in enumerate(state.labels) if painted[at] or label not in NO_OBJECTS
        ]
        place = np.full(len(state.labels) + 1, _NOTHING)
        place[kept] = np.arange(len(kept))
        self._true, self._predicted = (place[side] for side in sides)
        self._same = self._true == self._predicted
        self._images, self._labels = len(state.ids), [state.labels[at] for at in kept]

    def _counts(self, weights: Float64Array, nothing: int = 0) -> LabelCounts:
        """Count pixels per label; with 1, what is nothing is the first of them."""
        labels = len(self._labels) + nothing
        right = np.where(self._same, self._true, _NOTHING - nothing)
        sides = right, self._predicted, self._true
        rows = (*((self._image, label + nothing) for label in sides),)
        return LabelCounts.of(weights, rows, labels, self._pixels)

    def headlines(self, weights: Float64Array) -> list[Headline]:
        """Compute the headlines over weightings (B, I) of the images."""
        with_nothing = self._counts(weights, 1)
        counts = LabelCounts(*(one[:, 1:] for one in with_nothing))
        return [
            Headline("mIOU", {"background": False}, counts.macro(counts.iou())),
            Headline("mDice", {"background": False}, counts.macro(counts.rates()["F1"])),
            Headline(
                "PixelAccuracy",
                {"background": True},
                ratio(with_nothing.right.sum(axis=1), with_nothing.true.sum(axis=1)),
            ),
            Headline("mIOU", {"background": True}, with_nothing.macro(with_nothing.iou())),
        ]

    def findings(self) -> Findings:
        """Compute everything else, over all images."""
        counts = self._counts(np.ones((1, self._images)))
        rates = counts.rates()
        values = {
            "IOU": counts.iou(),
            "Dice": rates["F1"],
            "Precision": rates["Precision"],
            "Recall": rates["Recall"],
        }
        return Findings(
            metrics=per_label(self._labels, values, counts.true, of="pixels"),
            confusion_pixels=confusion(
                self._labels, self._true, self._predicted, self._pixels, of="pixels"
            ),
            badness={"wrong_pixels": self._wrong()},
            parameters={"ignored": [*sorted(IGNORED), "crowd"], "nothing": BACKGROUND},
        )

    def _wrong(self) -> Float64Array:
        """Return 1 less the intersection over union (I,) of all that has a label, in each image."""
        named = (self._true >= 0) | (self._predicted >= 0)
        union = np.bincount(self._image[named], self._pixels[named], self._images)
        both = named & self._same
        found = np.bincount(self._image[both], self._pixels[both], self._images)
        return np.nan_to_num(1 - ratio(found, union))

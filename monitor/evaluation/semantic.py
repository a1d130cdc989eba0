"""Segmentation as a label for each pixel: regions are painted one over the other, and pixels compared.

Predictions are painted by rising score, so that of two the surer is seen; truths in their order, so that
the later is seen. What no region covers, or one of `background`, is nothing: no label, but an answer like
another to pixel accuracy. Pixels under a truth that is a crowd, or whose label is `ignore` or `void`, do
not count.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from monitor.evaluation.arrays import Doubles, Integers, ratio
from monitor.evaluation.evaluators import Evaluated, Findings, Headline
from monitor.evaluation.label_counts import LabelCounts, confusion, per_label, totals
from monitor.evaluation.state import EvaluatedImage, EvaluationError, Labels, State, Table
from monitor.evaluation.wire_tables import read
from tasks.contours import paint, to_rings
from tasks.predictions import Point, Segment

IGNORED = frozenset({"ignore", "void"})
"""Labels of truths whose pixels do not count."""

_LARGEST_PX = 1 << 28
_FARTHEST_PX = 1 << 20
BACKGROUND = "background"
_NOTHING, _HIDDEN = -1, -2


class _Truth(msgspec.Struct, frozen=True):
    label: str
    contour: list[list[Point]]
    crowd: bool = False


_ANSWERS = msgspec.json.Decoder(list[Segment])
_TRUTHS = msgspec.json.Decoder(list[_Truth])


class Semantic:
    """Evaluates the regions of `IMAGE_SEGMENTATION` pixel by pixel.

    Table "pixels": image, truth_label, predicted_label, both -1 for nothing, and count, of all pixels of the
    image that count.
    """

    def tables(self, images: Sequence[EvaluatedImage], labels: Labels) -> dict[str, Table]:
        """Paint and count.

        Raises:
            EvaluationError: They are no regions, or the size of an image is not known.
        """
        rows: list[Integers] = [np.zeros((4, 0), np.int64)]
        for at, image in enumerate(images):
            where = f"image {image.id!r}"
            size = _size(image, where)
            answers = read(_ANSWERS, image, "predictions")
            truths = read(_TRUTHS, image, "ground_truth")
            predicted = _painted(
                [(_label(one.label, labels), one.contour) for one in sorted(answers, key=_score)],
                size,
                f"{where}: predictions",
            )
            true = _painted(
                [(_true_label(one, labels), one.contour) for one in truths],
                size,
                f"{where}: ground_truth",
            )
            rows.append(_counted(at, true, predicted))
        image_at, truth, prediction, count = np.concatenate(rows, axis=1)
        return {
            "pixels": {
                "image": image_at,
                "truth_label": truth,
                "predicted_label": prediction,
                "count": count,
            }
        }

    def evaluate(self, state: State) -> Evaluated:
        """Look into a whole state."""
        return EvaluatedPixels(state)


def _size(image: EvaluatedImage, where: str) -> tuple[int, int]:
    width, height = image.width or 0, image.height or 0
    if width <= 0 or height <= 0 or width * height > _LARGEST_PX:
        raise EvaluationError(
            f"{where}: expected width and height, and at most {_LARGEST_PX} pixels,"
            f" got {image.width} and {image.height}"
        )
    return width, height


def _score(segment: Segment) -> float:
    return segment.score


def _label(label: str, labels: Labels) -> int:
    return _NOTHING if label == BACKGROUND else labels[label]


def _true_label(truth: _Truth, labels: Labels) -> int:
    return _HIDDEN if truth.crowd or truth.label in IGNORED else _label(truth.label, labels)


class _Painted(NamedTuple):
    """An image of labels."""

    canvas: npt.NDArray[np.int32]
    """(H, W) positions in `labels`."""
    labels: Integers
    """Those of the image."""


def _painted(
    regions: Sequence[tuple[int, Sequence[Sequence[Point]]]], size: tuple[int, int], where: str
) -> _Painted:
    """Paint regions, given as label and contour, one over the other."""
    width, height = size
    canvas = np.zeros((height, width), np.int32)
    places = {_NOTHING: 0}
    for at, (label, contour) in enumerate(regions):
        with np.errstate(invalid="ignore"):  # of numbers beyond int32, which are refused
            outlines = to_rings(contour)
        if any((np.abs(ring.astype(np.int64)) > _FARTHEST_PX).any() for ring in outlines):
            raise EvaluationError(
                f"{where}[{at}]: expected points near the image, got one beyond {_FARTHEST_PX} pixels"
            )
        paint(canvas, outlines, places.setdefault(label, len(places)))
    return _Painted(canvas, np.array([*places], np.int64))


def _counted(image: int, true: _Painted, predicted: _Painted) -> Integers:
    """Count the pixels of each pair of labels: rows (4, N) of the table."""
    width = len(predicted.labels)
    cells = (true.canvas.astype(np.int64) * width + predicted.canvas).ravel()
    if len(true.labels) * width < len(cells):
        counts = np.bincount(cells)
        pairs = np.flatnonzero(counts)
        counts = counts[pairs]
    else:
        pairs, counts = np.unique(cells, return_counts=True)
    truth, prediction = true.labels[pairs // width], predicted.labels[pairs % width]
    rows = np.stack([np.full(len(pairs), image), truth, prediction, counts])
    return rows[:, truth != _HIDDEN]


class EvaluatedPixels:
    """A whole state, looked into once."""

    def __init__(self, state: State) -> None:
        pixels = state.tables["pixels"]
        self._image, self._pixels = pixels["image"], pixels["count"]
        sides = pixels["truth_label"], pixels["predicted_label"]
        painted = np.isin(np.arange(len(state.labels)), np.concatenate(sides))
        kept = [
            at
            for at, label in enumerate(state.labels)
            if painted[at] or label not in IGNORED | {BACKGROUND}
        ]
        place = np.full(len(state.labels) + 1, _NOTHING)
        place[kept] = np.arange(len(kept))
        self._true, self._predicted = (place[side] for side in sides)
        self._same = self._true == self._predicted
        self._images, self._labels = len(state.ids), [state.labels[at] for at in kept]

    def _counts(self, weights: Doubles, nothing: int = 0) -> LabelCounts:
        """Count pixels per label; with 1, what is nothing is the first of them."""
        labels = len(self._labels) + nothing
        right = np.where(self._same, self._true, _NOTHING - nothing)
        return LabelCounts(
            *(
                totals(weights, self._image, label + nothing, labels, self._pixels)
                for label in (right, self._predicted, self._true)
            )
        )

    def headlines(self, weights: Doubles) -> list[Headline]:
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
            metrics=per_label(
                self._labels,
                values,
                counts.true,
                of="pixels",
            ),
            confusion_pixels=confusion(
                self._labels, self._true, self._predicted, self._pixels, of="pixels"
            ),
            badness={"wrong_pixels": self._wrong()},
            parameters={"ignored": [*sorted(IGNORED), "crowd"], "nothing": BACKGROUND},
        )

    def _wrong(self) -> Doubles:
        """Return 1 less the intersection over union (I,) of all that has a label, in each image."""
        named = (self._true >= 0) | (self._predicted >= 0)
        union = np.bincount(self._image[named], self._pixels[named], self._images)
        both = named & self._same
        found = np.bincount(self._image[both], self._pixels[both], self._images)
        return np.nan_to_num(1 - ratio(found, union))

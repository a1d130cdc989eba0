"""Semantic segmentation: a label for each pixel, from painted regions; see docs/evaluation-reference.md."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from quadriga.monitor.evaluation.arrays import ratio
from quadriga.monitor.evaluation.evaluators import (
    CombinedMetrics,
    EvaluationDetails,
    Headline,
    TaskMetrics,
)
from quadriga.monitor.evaluation.labels.label_counts import (
    LabelCounts,
    count_confusion,
    label_metrics,
)
from quadriga.monitor.evaluation.metric_settings import DEFAULT_SETTINGS, MetricSettings
from quadriga.monitor.evaluation.pixels.instances import (
    BACKGROUND,
    IGNORED_LABELS,
    NON_OBJECT_LABELS,
    InstanceEvaluator,
    PredictedSegment,
    TrueSegment,
    object_tables,
    outlines_of,
    tables_by_image,
)
from quadriga.monitor.evaluation.state import (
    EvaluatedImage,
    EvaluationError,
    EvaluationState,
    LabelNumbers,
    Table,
)
from quadriga.tasks.arrays import Float64Array, Int64Array
from quadriga.tasks.geometry import paint

_LARGEST_PX = 1 << 28
_NOTHING, _HIDDEN = -1, -2


class SegmentationEvaluator:
    """Evaluates `IMAGE_SEGMENTATION`, instances first; only instances if there are no pixels, as in COCO's files."""

    settings: ClassVar = InstanceEvaluator.settings

    def tables(self, images: Sequence[EvaluatedImage], labels: LabelNumbers) -> dict[str, Table]:
        """Read contours as masks and as labels of pixels; see `Evaluator.tables`."""
        return tables_by_image(
            images, lambda *image: object_tables(labels, *image) | pixel_tables(labels, *image)
        )

    def evaluate(
        self, state: EvaluationState, settings: MetricSettings = DEFAULT_SETTINGS
    ) -> TaskMetrics:
        """Compute metrics of a merged state."""
        parts = [InstanceEvaluator().evaluate(state, settings)]
        if "pixels" in state.tables:
            parts.append(PixelMetrics(state))
        return CombinedMetrics(parts)


def pixel_tables(
    labels: LabelNumbers,
    image: EvaluatedImage,
    predictions: list[PredictedSegment],
    annotations: list[TrueSegment],
) -> dict[str, Table]:
    """Paint the regions of one image, and count its pixels.

    Table "pixels": image, truth_label, predicted_label, both -1 for background, and the count of pixels, of all
    pixels that count.
    """
    location = f"image {image.id!r}"
    width, height = image.width or 0, image.height or 0
    if width <= 0 or height <= 0 or width * height > _LARGEST_PX:
        raise EvaluationError(
            f"{location}: expected width and height, and at most {_LARGEST_PX} pixels,"
            f" got {image.width} and {image.height}"
        )

    def label(segment: PredictedSegment | TrueSegment) -> int:
        return _NOTHING if segment.label == BACKGROUND else labels[segment.label]

    predicted = _painted(
        predictions,
        [label(segment) for segment in predictions],
        (height, width),
        f"{location}: predictions",
        order=sorted(range(len(predictions)), key=lambda index: predictions[index].score),
    )
    is_ignored = [segment.crowd or segment.label in IGNORED_LABELS for segment in annotations]
    true_labels = [
        _HIDDEN if is_hidden else label(segment)
        for segment, is_hidden in zip(annotations, is_ignored, strict=True)
    ]
    true = _painted(annotations, true_labels, (height, width), f"{location}: ground_truth")
    truth, prediction, count = _counted(true, predicted)
    table = {"image": np.zeros(len(count), np.int64), "truth_label": truth}
    return {"pixels": table | {"predicted_label": prediction, "count": count}}


_Painted = tuple[npt.NDArray[np.uint8 | np.int32], Int64Array]
"""A canvas (H, W) of indices, and the labels of the image that they refer to."""


def _painted(
    segments: Sequence[PredictedSegment | TrueSegment],
    labels: Sequence[int],
    size_hw: tuple[int, int],
    location: str,
    *,
    order: Sequence[int] = (),
) -> _Painted:
    """Paint segments with their labels, later ones over earlier ones, as they stand or in an order."""
    canvas = np.zeros(size_hw, np.uint8 if len(segments) < 255 else np.int32)
    canvas_values = {_NOTHING: 0}
    regions = outlines_of(segments, lambda index: f"{location}[{index}]")
    for index in order or range(len(regions)):
        paint(canvas, regions[index], canvas_values.setdefault(labels[index], len(canvas_values)))
    return canvas, np.array([*canvas_values], np.int64)


def _counted(
    true_canvas: _Painted, predicted_canvas: _Painted
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Count the pixels of each pair of true and predicted label, (N,)."""
    (true_values, true_labels), (predicted_values, predicted_labels) = true_canvas, predicted_canvas
    width = len(predicted_labels)
    cells = true_values.ravel().astype(np.int64)
    cells *= width  # in place: the image may be large
    cells += predicted_values.ravel()
    if len(true_labels) * width < len(cells):
        counts = np.bincount(cells)
        pairs = np.flatnonzero(counts)
        counts = counts[pairs]
    else:
        pairs, counts = np.unique(cells, return_counts=True)
    truth, prediction = true_labels[pairs // width], predicted_labels[pairs % width]
    is_counted = truth != _HIDDEN
    return truth[is_counted], prediction[is_counted], counts[is_counted]


class PixelMetrics:
    """Metrics of the regions of a merged state, pixel by pixel, from its table "pixels"."""

    def __init__(self, state: EvaluationState) -> None:
        pixels = state.tables["pixels"]
        self._image, self._pixels = pixels["image"], pixels["count"]
        label_columns = pixels["truth_label"], pixels["predicted_label"]
        is_painted = np.isin(np.arange(len(state.labels)), np.concatenate(label_columns))
        shown_labels = [
            index
            for index, label in enumerate(state.labels)
            if is_painted[index] or label not in NON_OBJECT_LABELS
        ]
        position = np.full(len(state.labels) + 1, _NOTHING)
        position[shown_labels] = np.arange(len(shown_labels))
        self._true, self._predicted = (position[side] for side in label_columns)
        self._same = self._true == self._predicted
        self._images, self._labels = len(state.ids), [state.labels[index] for index in shown_labels]

    def _counts(self, weights: Float64Array, background_count: int = 0) -> LabelCounts:
        """Count pixels per label; if `background_count` is 1, the background is the first label."""
        labels = len(self._labels) + background_count
        correct = np.where(self._same, self._true, _NOTHING - background_count)
        label_columns = correct, self._predicted, self._true
        rows = (*((self._image, label + background_count) for label in label_columns),)
        return LabelCounts.from_rows(weights, rows, labels, self._pixels)

    def headlines(self, weights: Float64Array) -> list[Headline]:
        """Compute the headlines over weightings (B, I) of the images."""
        with_nothing = self._counts(weights, 1)
        counts = LabelCounts(*(counts_with_nothing[:, 1:] for counts_with_nothing in with_nothing))
        return [
            Headline("mIOU", {"background": False}, counts.macro(counts.iou())),
            Headline("mDice", {"background": False}, counts.macro(counts.rates()["F1"])),
            Headline(
                "PixelAccuracy",
                {"background": True},
                ratio(with_nothing.correct.sum(axis=1), with_nothing.actual.sum(axis=1)),
            ),
            Headline("mIOU", {"background": True}, with_nothing.macro(with_nothing.iou())),
        ]

    def details(self) -> EvaluationDetails:
        """Compute all other results, over all images."""
        counts = self._counts(np.ones((1, self._images)))
        rates = counts.rates()
        values = {
            "IOU": counts.iou(),
            "Dice": rates["F1"],
            "Precision": rates["Precision"],
            "Recall": rates["Recall"],
        }
        return EvaluationDetails(
            metrics=label_metrics(self._labels, values, counts.actual, of="pixels"),
            confusion_pixels=count_confusion(
                self._labels, self._true, self._predicted, self._pixels, unit="pixels"
            ),
            badness={"wrong_pixels": self._wrong()},
            parameters={"ignored": [*sorted(IGNORED_LABELS), "crowd"], "nothing": BACKGROUND},
        )

    def _wrong(self) -> Float64Array:
        """Return 1 minus the intersection over union of labelled pixels in each image, (I,)."""
        has_label = (self._true >= 0) | (self._predicted >= 0)
        union = np.bincount(self._image[has_label], self._pixels[has_label], self._images)
        is_correct = has_label & self._same
        correct = np.bincount(self._image[is_correct], self._pixels[is_correct], self._images)
        return np.nan_to_num(1 - ratio(correct, union))

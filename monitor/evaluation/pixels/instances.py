"""Instance segmentation: tables of masks from the wire, and the overlap of two masks."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import msgspec
import numpy as np

from quadriga.monitor.evaluation.arrays import concat_tables, joint_key
from quadriga.monitor.evaluation.evaluators import TaskMetrics
from quadriga.monitor.evaluation.metric_settings import DEFAULT_SETTINGS, MetricSettings
from quadriga.monitor.evaluation.objects.matching import OverlapFunction, OverlapPairs
from quadriga.monitor.evaluation.objects.object_metrics import OBJECT_SETTINGS, ObjectMetrics
from quadriga.monitor.evaluation.pixels.masks import Masks, from_contours, mask_overlaps
from quadriga.monitor.evaluation.state import (
    BoundedNumber,
    EvaluatedImage,
    EvaluationError,
    EvaluationState,
    ItemKind,
    ItemTable,
    LabelNumbers,
    Table,
    TrueObject,
    annotations_table,
    predictions_table,
    read_items,
    tabulate,
)
from quadriga.tasks.geometry import Ring, to_rings
from quadriga.tasks.predictions import Point

IGNORED_LABELS = frozenset({"ignore", "void"})
"""Labels of annotations whose pixels do not count."""

BACKGROUND = "background"

NON_OBJECT_LABELS = IGNORED_LABELS | {BACKGROUND}
"""Labels of segments that are regions, not objects: they are skipped here."""

MAX_OUTSIDE_PX = 1 << 20
"""Maximum distance of a contour from its image, in pixels."""


class PredictedSegment(msgspec.Struct):
    """A segment that a model predicted."""

    label: str
    score: BoundedNumber
    contour: list[list[Point]]


class TrueSegment(TrueObject, kw_only=True):
    """A segment of the ground truth."""

    contour: list[list[Point]]


_NOTHING = EvaluatedImage("", width=1, height=1)


ImageTables = Callable[
    [EvaluatedImage, list[PredictedSegment], list[TrueSegment]], dict[str, Table]
]
"""Returns the tables of one image."""


def tables_by_image(images: Sequence[EvaluatedImage], tables_of: ImageTables) -> dict[str, Table]:
    """Read image by image, because points take much memory, and concatenate the tables."""
    empty = tables_of(_NOTHING, [], []).items()
    table_sets = [
        {name: {key: columns[:0] for key, columns in table.items()} for name, table in empty}
    ]
    for index, image in enumerate(images):
        predictions = read_items(list[PredictedSegment], image, "predictions")
        tables = tables_of(image, predictions, read_items(list[TrueSegment], image, "ground_truth"))
        table_sets.append(
            {
                name: columns | {"image": columns["image"] + index}
                for name, columns in tables.items()
            }
        )
    return concat_tables(table_sets)


class InstanceEvaluator:
    """Evaluates the segments of `IMAGE_SEGMENTATION` as objects.

    Beside the tables of objects, the table `pairs` has the numbers of a prediction and an annotation of an image
    that share a pixel, of any labels, with their overlap: intersection over union; with a crowd, over the area of
    the prediction.
    """

    settings: ClassVar = OBJECT_SETTINGS

    def tables(self, images: Sequence[EvaluatedImage], labels: LabelNumbers) -> dict[str, Table]:
        """Read contours; see `Evaluator.tables`."""
        return tables_by_image(images, partial(object_tables, labels))

    def evaluate(
        self, state: EvaluationState, settings: MetricSettings = DEFAULT_SETTINGS
    ) -> TaskMetrics:
        """Compute metrics of a merged state."""
        return ObjectMetrics(state, pair_overlap(state), "mask", settings)


def pair_overlap(state: EvaluationState) -> OverlapFunction:
    """Return the overlap from the table `pairs`; that of any other pair is 0."""
    predictions, annotations, pairs = (
        state.tables[name] for name in ("predictions", "truths", "pairs")
    )
    prediction, annotation = (
        np.searchsorted(
            joint_key(objects["image"], objects["number"]), joint_key(pairs["image"], pairs[name])
        )
        for objects, name in ((predictions, "prediction"), (annotations, "truth"))
    )
    return OverlapPairs(prediction, annotation, pairs["overlap"]).overlaps()


def object_tables(
    labels: LabelNumbers,
    image: EvaluatedImage,
    predictions: list[PredictedSegment],
    truths: list[TrueSegment],
) -> dict[str, Table]:
    """Return the tables of one image."""

    def objects(kind: ItemKind, segments: list[Any]) -> tuple[ItemTable, Masks]:
        items = tabulate([image], kind, [segments], labels=labels, without=NON_OBJECT_LABELS)
        if items.rows and not (image.width and image.height):
            raise EvaluationError(f"image {image.id!r}: width and height are required")
        outlines = outlines_of(items.rows, items.locate)
        return items, from_contours(outlines, image.width or 0, image.height or 0)

    return mask_tables(objects("predictions", predictions), objects("ground_truth", truths))


def mask_tables(
    predicted: tuple[ItemTable, Masks], annotations: tuple[ItemTable, Masks]
) -> dict[str, Table]:
    """Return the tables of predictions, annotations and overlapping pairs, from items by image and their masks."""
    (prediction_items, predicted_masks), (annotation_items, true_masks) = predicted, annotations
    prediction_table, annotation_table = (
        predictions_table(prediction_items, predicted_masks.area),
        annotations_table(annotation_items, true_masks.area),
    )
    images = prediction_table["image"], annotation_table["image"]
    predicted_rows, annotated_rows, overlap = mask_overlaps(
        predicted_masks, true_masks, images, annotation_table["crowd"]
    )
    pairs = {
        "image": images[0][predicted_rows],
        "prediction": prediction_table["number"][predicted_rows],
        "truth": annotation_table["number"][annotated_rows],
        "overlap": overlap,
    }
    return {"predictions": prediction_table, "truths": annotation_table, "pairs": pairs}


def outlines_of(
    segments: Sequence[PredictedSegment | TrueSegment], name_of: Callable[[int], str]
) -> list[list[Ring]]:
    """Return the rings of segments, each point rounded to its pixel; `name_of` names one, for messages."""
    with np.errstate(invalid="ignore"):  # numbers beyond int32 are refused below
        outlines = [to_rings(segment.contour) for segment in segments]
    for index, rings in enumerate(outlines):
        if any((np.abs(ring.astype(np.int64)) > MAX_OUTSIDE_PX).any() for ring in rings):
            raise EvaluationError(
                f"{name_of(index)}: expected points near the image, got one beyond {MAX_OUTSIDE_PX} pixels"
            )
    return outlines

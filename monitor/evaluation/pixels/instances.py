"""Instance masks: how segments on the wire become tables, and how far two masks overlap."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from quadriga.monitor.evaluation.arrays import concat_tables, joint_key
from quadriga.monitor.evaluation.evaluators import TaskMetrics
from quadriga.monitor.evaluation.item_tables import (
    ItemTable,
    annotations_table,
    predictions_table,
    read_items,
    tabulate,
)
from quadriga.monitor.evaluation.objects.matching import OverlapFunction, OverlapPairs
from quadriga.monitor.evaluation.objects.object_metrics import ObjectMetrics
from quadriga.monitor.evaluation.pixels.masks import Contours, Masks, from_contours, mask_overlaps
from quadriga.monitor.evaluation.state import (
    BoundedNumber,
    EvaluatedImage,
    EvaluationError,
    EvaluationState,
    LabelNumbers,
    Table,
    TrueObject,
)
from quadriga.tasks.predictions import Point

IGNORED_LABELS = frozenset({"ignore", "void"})
"""Labels of truths whose pixels do not count."""

BACKGROUND = "background"

NON_OBJECT_LABELS = IGNORED_LABELS | {BACKGROUND}
"""Labels of segments that are regions, not objects: they are passed over here."""

MAX_OUTSIDE_PX = 1 << 20
"""How far a contour may lie outside of its image."""


class PredictedSegment(msgspec.Struct):
    """A segment that a model found."""

    label: str
    score: BoundedNumber
    contour: list[list[Point]]


class TrueSegment(TrueObject, kw_only=True):
    """A segment that is there."""

    contour: list[list[Point]]


_NOTHING = EvaluatedImage("", width=1, height=1)


ImageTables = Callable[
    [EvaluatedImage, list[PredictedSegment], list[TrueSegment]], dict[str, Table]
]
"""Gives the tables of one image."""


def tables_by_image(images: Sequence[EvaluatedImage], tables_of: ImageTables) -> dict[str, Table]:
    """Read image by image, whose points take much memory, and put the tables of all together."""
    nothing = tables_of(_NOTHING, [], []).items()
    parts = [{name: {key: of[:0] for key, of in table.items()} for name, table in nothing}]
    for at, image in enumerate(images):
        found = read_items(list[PredictedSegment], image, "predictions")
        tables = tables_of(image, found, read_items(list[TrueSegment], image, "ground_truth"))
        parts.append({name: of | {"image": of["image"] + at} for name, of in tables.items()})
    return concat_tables(parts)


class InstanceEvaluator:
    """The evaluation of the segments of `IMAGE_SEGMENTATION` as objects.

    Beside the tables of objects there are `pairs` of numbers of a prediction and a truth of an image that share
    a pixel, whatever their labels, with their overlap: intersection over union; of a crowd over the prediction.
    """

    def tables(self, images: Sequence[EvaluatedImage], labels: LabelNumbers) -> dict[str, Table]:
        """Read contours; see `Evaluator.tables`."""
        return tables_by_image(images, partial(object_tables, labels))

    def evaluate(self, state: EvaluationState) -> TaskMetrics:
        """Look into a whole state."""
        return ObjectMetrics(state, pair_overlap(state), "mask")


def pair_overlap(state: EvaluationState) -> OverlapFunction:
    """Return the overlap that the table `pairs` has; that of any other pair is 0."""
    found, there, pairs = (state.tables[name] for name in ("predictions", "truths", "pairs"))
    prediction, truth = (
        np.searchsorted(
            joint_key(objects["image"], objects["number"]), joint_key(pairs["image"], pairs[name])
        )
        for objects, name in ((found, "prediction"), (there, "truth"))
    )
    return OverlapPairs(prediction, truth, pairs["overlap"]).overlaps()


def object_tables(
    labels: LabelNumbers,
    image: EvaluatedImage,
    predictions: list[PredictedSegment],
    truths: list[TrueSegment],
) -> dict[str, Table]:
    """Return the tables of one image."""
    found = tabulate([image], "predictions", [predictions], labels, NON_OBJECT_LABELS)
    there = tabulate([image], "ground_truth", [truths], labels, NON_OBJECT_LABELS)
    return mask_tables(
        (found, _masks(image, "predictions", found.rows)),
        (there, _masks(image, "ground_truth", there.rows)),
    )


def mask_tables(found: tuple[ItemTable, Masks], there: tuple[ItemTable, Masks]) -> dict[str, Table]:
    """Return the tables of predictions and of objects, rows by image with the mask of each."""
    (rows, masks), (others, true_masks) = found, there
    predictions, truths = (
        predictions_table(rows, masks.area),
        annotations_table(others, true_masks.area),
    )
    images = predictions["image"], truths["image"]
    one, other, overlap = mask_overlaps(masks, true_masks, images, truths["crowd"])
    pairs = {
        "image": images[0][one],
        "prediction": predictions["number"][one],
        "truth": truths["number"][other],
        "overlap": overlap,
    }
    return {"predictions": predictions, "truths": truths, "pairs": pairs}


def _masks(image: EvaluatedImage, kind: str, rows: list[Any]) -> Masks:
    """Make masks of contours; each point is rounded to its pixel."""
    if rows and not (image.width and image.height):
        raise EvaluationError(f"image {image.id!r}: expected width and height, got none")
    rings = [ring for one in rows for ring in one.contour]
    flat = list(chain.from_iterable(rings))
    points = np.empty((len(flat), 2))
    for axis, name in enumerate("xy"):
        points[:, axis] = np.fromiter(map(attrgetter(name), flat), np.float64, len(flat))
    if not (np.abs(points) < MAX_OUTSIDE_PX).all():
        raise EvaluationError(
            f"image {image.id!r}: {kind}: expected points near the image, got {np.abs(points).max()}"
        )
    contours = Contours(
        np.rint(points).astype(np.int32),
        np.array([len(ring) for ring in rings], np.int64),
        np.array([len(one.contour) for one in rows], np.int64),
    )
    return from_contours(contours, image.width or 0, image.height or 0)

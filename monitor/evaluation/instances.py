"""Instance masks: how segments on the wire become tables, and how far two masks overlap.

Segments of `background`, `ignore` and `void` are regions, not objects: they are passed over.
"""

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter

import msgspec
import numpy as np

from monitor.evaluation.arrays import Doubles, Integers, joined
from monitor.evaluation.evaluators import Evaluated
from monitor.evaluation.masks import Contours, Masks, from_contours, overlaps
from monitor.evaluation.matching import Overlap, Pairs
from monitor.evaluation.objects import EvaluatedObjects
from monitor.evaluation.semantic import BACKGROUND, IGNORED
from monitor.evaluation.state import (
    EvaluatedImage,
    EvaluationError,
    Labels,
    Magnitude,
    Number,
    State,
    Table,
)
from monitor.evaluation.wire_tables import Listed, predictions_table, read_lists, truths_table

NO_OBJECTS = IGNORED | {BACKGROUND}
"""Labels of segments that are no objects."""

_FARTHEST = 1 << 20
"""Pixels that a contour may lie outside of its image."""


class _Point(msgspec.Struct, gc=False):
    x: float
    y: float


class _Found(msgspec.Struct):
    label: str
    score: Number
    contour: list[list[_Point]]


class _There(msgspec.Struct):
    label: str
    contour: list[list[_Point]]
    crowd: bool = False
    difficult: bool = False
    area: Magnitude | None = None


_FOUND = msgspec.json.Decoder(list[_Found])
_THERE = msgspec.json.Decoder(list[_There])


_NO_OBJECTS = EvaluatedImage("", ground_truth=msgspec.Raw(b"[]"))


class Instances:
    """The evaluation of the segments of `IMAGE_SEGMENTATION` as objects."""

    def tables(self, images: Sequence[EvaluatedImage], labels: Labels) -> dict[str, Table]:
        """Read contours; see `Evaluator.tables`.

        Beside the tables of objects there are `pairs`, see `pairs_table`.

        Raises:
            EvaluationError: A segment lacks a field or has a number that is none, or an image its size.
        """
        none = _tables(_NO_OBJECTS, labels)  # says what the columns are
        parts = [none, *(_tables(image, labels) for image in images)]
        tables = {}
        for name, columns in none.items():
            of = [part[name] for part in parts]
            image = np.repeat(np.arange(-1, len(images)), [len(part["image"]) for part in of])
            joined = {key: np.concatenate([part[key] for part in of]) for key in columns}
            tables[name] = joined | {"image": image}
        return tables

    def evaluate(self, state: State) -> Evaluated:
        """Look into a whole state."""
        return EvaluatedObjects(state, pair_overlap(state), parameters={"overlap": "mask"})


def pairs_table(image: Integers, prediction: Integers, truth: Integers, overlap: Doubles) -> Table:
    """Return the table of pairs that share a pixel, whatever their labels.

    Args:
        image: Position of the image.
        prediction: Number of the prediction in the image.
        truth: Number of the truth in the image.
        overlap: Intersection over union; of a crowd over the prediction.
    """
    return {"image": image, "prediction": prediction, "truth": truth, "overlap": overlap}


def pair_overlap(state: State) -> Overlap:
    """Return the overlap that the table `pairs` has; that of any other pair is 0."""
    found, there, pairs = (state.tables[name] for name in ("predictions", "truths", "pairs"))
    prediction, truth = (
        np.searchsorted(
            joined(objects["image"], objects["number"]), joined(pairs["image"], pairs[name])
        )
        for objects, name in ((found, "prediction"), (there, "truth"))
    )
    return Pairs(prediction, truth, pairs["overlap"]).overlaps()


def _tables(image: EvaluatedImage, labels: Labels) -> dict[str, Table]:
    """Read one image.

    Raises:
        EvaluationError: As `Instances.tables`.
    """
    found = read_lists([image], "predictions", _FOUND, labels, NO_OBJECTS)
    there = read_lists([image], "ground_truth", _THERE, labels, NO_OBJECTS)
    masks, others = _masks(image, found), _masks(image, there)
    truths = truths_table(there.rows, there.table, others.area)
    of, taken, overlap = overlaps(
        masks, others, (found.table["image"], truths["image"]), truths["crowd"]
    )
    numbers = found.table["number"][of], truths["number"][taken]
    return {
        "predictions": predictions_table(found.rows, found.table, masks.area),
        "truths": truths,
        "pairs": pairs_table(np.zeros(len(of), np.int64), *numbers, overlap),
    }


def _masks(image: EvaluatedImage, listed: Listed) -> Masks:
    """Make masks of contours; each point is rounded to its pixel."""
    contours: list[list[list[_Point]]] = [one.contour for one in listed.rows]
    if contours and not (image.width and image.height):
        raise EvaluationError(f"image {image.id!r}: expected width and height, got none")
    rings = [ring for contour in contours for ring in contour]
    flat = list(chain.from_iterable(rings))
    points = np.empty((len(flat), 2))
    points[:, 0] = np.fromiter(map(attrgetter("x"), flat), np.float64, len(flat))
    points[:, 1] = np.fromiter(map(attrgetter("y"), flat), np.float64, len(flat))
    if not (np.abs(points) < _FARTHEST).all():
        raise EvaluationError(
            f"image {image.id!r}: {listed.kind}: expected points near the image,"
            f" got {np.abs(points).max()}"
        )
    return from_contours(
        Contours(
            np.rint(points).astype(np.int32),
            np.array([len(ring) for ring in rings], np.int64),
            np.array([len(contour) for contour in contours], np.int64),
        ),
        image.width or 0,
        image.height or 0,
    )

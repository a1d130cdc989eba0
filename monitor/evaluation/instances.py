"""Instance masks: how segments on the wire become tables, and how far two masks overlap."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec
import numpy as np

from monitor.evaluation.evaluators import Evaluated, decode
from monitor.evaluation.masks import Masks, from_contours, overlaps
from monitor.evaluation.matching import Doubles, Integers, Overlap
from monitor.evaluation.objects import EvaluatedObjects
from monitor.evaluation.state import EvaluatedImage, EvaluationError, Labels, State, Table
from tasks.contours import Ring

_FARTHEST = 1 << 20
"""Pixels that a contour may lie outside of its image."""

_NONE = np.zeros(0, np.int64)


class _Point(msgspec.Struct, gc=False):
    x: float
    y: float


class _Found(msgspec.Struct):
    label: str
    score: float
    contour: list[list[_Point]]


class _There(msgspec.Struct):
    label: str
    contour: list[list[_Point]]
    crowd: bool = False
    difficult: bool = False
    area: float | None = None


_FOUND = msgspec.json.Decoder(list[_Found])
_THERE = msgspec.json.Decoder(list[_There])


class _Read(NamedTuple):
    """One image."""

    found: list[_Found]
    there: list[_There]
    areas: tuple[Integers, Integers]
    """Pixels of each of them."""
    pairs: tuple[Integers, Integers, Doubles]
    """As `overlaps` returns them."""


class Instances:
    """The evaluation of the segments of `IMAGE_SEGMENTATION` as objects."""

    def tables(self, images: Sequence[EvaluatedImage], labels: Labels) -> dict[str, Table]:
        """Read contours; see `Evaluator.tables`.

        Beside the tables of objects there are `pairs`, see `pairs_table`.

        Raises:
            EvaluationError: A segment lacks a field or has a number that is none, or an image its size.
        """
        read = [_read(image) for image in images]
        found = [one for image in read for one in image.found]
        there = [one for image in read for one in image.there]
        area = np.concatenate([_NONE, *(image.areas[1] for image in read)]).astype(np.float64)
        given = np.array([np.nan if one.area is None else one.area for one in there], np.float64)
        pairs = [
            np.concatenate([np.zeros(0, kind), *(image.pairs[column] for image in read)])
            for column, kind in enumerate((np.int64, np.int64, np.float64))
        ]
        of = np.repeat(np.arange(len(read)), [len(image.pairs[0]) for image in read])
        return {
            "predictions": {
                **_objects([image.found for image in read], labels),
                "score": np.array([one.score for one in found], np.float64),
                "area": np.concatenate([_NONE, *(image.areas[0] for image in read)]).astype(
                    np.float64
                ),
            },
            "truths": {
                **_objects([image.there for image in read], labels),
                "area": np.where(np.isnan(given), area, given),
                "crowd": np.array([one.crowd for one in there], bool),
                "difficult": np.array([one.difficult for one in there], bool),
            },
            "pairs": pairs_table(of, *pairs),
        }

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
    rows = [
        np.searchsorted(
            objects["image"] << 32 | objects["number"], pairs["image"] << 32 | pairs[name]
        )
        for objects, name in ((found, "prediction"), (there, "truth"))
    ]
    width = len(there["image"]) + 1
    keys = rows[0] * width + rows[1]
    order = np.argsort(keys)
    keys = np.append(keys[order], -1)  # found by what is beyond all
    overlaps = np.append(pairs["overlap"][order], 0.0)

    def overlap(prediction: Integers, truth: Integers) -> Doubles:
        asked = prediction * width + truth
        at = np.searchsorted(keys[:-1], asked)
        result: Doubles = np.where(keys[at] == asked, overlaps[at], 0.0)
        return result

    return overlap


def _read(image: EvaluatedImage) -> _Read:
    """Read one image.

    Raises:
        EvaluationError: As `Instances.tables`.
    """
    places = [f"image {image.id!r}: {kind}" for kind in ("predictions", "ground_truth")]
    found: list[_Found] = decode(_FOUND, image.predictions, places[0])
    there: list[_There] = decode(_THERE, image.ground_truth, places[1])
    for at, one in enumerate(there):
        if one.area is not None and one.area < 0:
            raise EvaluationError(
                f"{places[1]}[{at}]: expected an area of 0 or more, got {one.area}"
            )
    predictions = _masks(image, [one.contour for one in found], places[0])
    truths = _masks(image, [one.contour for one in there], places[1])
    here = np.zeros(len(found), np.int64), np.zeros(len(there), np.int64)
    crowd = np.array([one.crowd for one in there], bool)
    return _Read(
        found, there, (predictions.area, truths.area), overlaps(predictions, truths, here, crowd)
    )


def _masks(image: EvaluatedImage, contours: list[list[list[_Point]]], place: str) -> Masks:
    """Make masks of contours; each point is rounded to its pixel."""
    if contours and not (image.width and image.height):
        raise EvaluationError(f"image {image.id!r}: expected width and height, got none")
    points = np.array(
        [(point.x, point.y) for contour in contours for ring in contour for point in ring]
    ).reshape(-1, 2)
    if not (np.abs(points) < _FARTHEST).all():
        raise EvaluationError(
            f"{place}: expected points near the image, got {np.abs(points).max()}"
        )
    pixels = np.rint(points).astype(np.int32)
    ends = np.cumsum([len(ring) for contour in contours for ring in contour], dtype=np.int64)
    rings: Iterator[Ring] = iter(np.split(pixels, ends[:-1]))
    return from_contours(
        [[one for one in islice(rings, len(contour)) if len(one)] for contour in contours],
        image.width or 0,
        image.height or 0,
    )


def _objects(objects: Sequence[Sequence[_Found | _There]], labels: Labels) -> Table:
    """Return the columns that predictions and truths share."""
    counts = np.array([len(one) for one in objects], np.int64)
    image = np.repeat(np.arange(len(counts)), counts)
    return {
        "image": image,
        "label": np.array([labels[one.label] for each in objects for one in each], np.int64),
        "number": np.arange(len(image)) - np.repeat(np.cumsum(counts) - counts, counts),
    }

"""What the decoders share: outputs found, their shapes and numbers checked, boxes above a threshold."""

from typing import Any

import numpy as np
import numpy.typing as npt

from quadriga.tasks.decoders import Candidates
from quadriga.tasks.geometry import Floats, xywh_to_xyxy
from quadriga.tasks.predictions import OutputError, Outputs, Size, check_finite


def first(outputs: Outputs, *shape: str | int) -> Floats:
    """Read the first output, whatever its name, as float32 of a shape.

    Of the shape a number is a length, a text names an axis of any length: `classes` has at least 1,
    as has `4 + classes` beside its 4.

    Raises:
        OutputError: It has another shape.
    """
    return _shaped(next(iter(outputs.values())), "output 0", shape)


def named(outputs: Outputs, name: str, *shape: str | int) -> Floats:
    """Read an output by its name; else as `first`."""
    if name not in outputs:
        raise OutputError(f"expected an output {name!r}, got {', '.join(map(repr, outputs))}")
    return _shaped(outputs[name], f"output {name!r}", shape)


def _shaped(array: npt.NDArray[Any], where: str, shape: tuple[str | int, ...]) -> Floats:
    fits = array.ndim == len(shape) and all(
        found == wanted if isinstance(wanted, int) else found >= _least(wanted)
        for found, wanted in zip(array.shape, shape, strict=True)
    )
    if not fits:
        axes = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
        raise OutputError(f"expected {where} to have the shape ({axes}), got {array.shape}")
    # class numbers are exact up to 2 ** 24
    return array.astype(np.float32, copy=False)


def _least(axis: str) -> int:
    """Shortest length of a named axis: the numbers of a sum such as `4 + classes`, and one class."""
    terms = axis.split(" + ")
    return sum(int(term) if term.isdecimal() else term == "classes" for term in terms)


def above(scores: Floats, score_threshold: float) -> npt.NDArray[np.int64]:
    """Find what scores above the threshold; NaN comes along, to be reported."""
    return np.flatnonzero(~(scores <= score_threshold))


def of_first_image(rows: Floats) -> Floats:
    """Keep the rows of image 0: `rows` is float32 (N, ...), whose first column numbers images."""
    check_finite(rows[:, 0])
    return np.asarray(rows[rows[:, 0] == 0])


@np.errstate(over="ignore", invalid="ignore")
def fractions_to_pixels(boxes: Floats, size_wh: Size) -> Floats:
    """Turn fractions of the network's input, float32 (N, 4), into its pixels; NaN stays NaN."""
    return boxes * np.array([*size_wh, *size_wh], np.float32)


@np.errstate(over="ignore", invalid="ignore")
def centred_to_pixels(boxes: Floats, size_wh: Size) -> Floats:
    """Turn centre and size, fractions of the network's input, into corners; as `fractions_to_pixels`."""
    return fractions_to_pixels(xywh_to_xyxy(boxes), size_wh)


def finished(
    boxes: Floats, scores: Floats, class_ids: Floats, score_threshold: float
) -> Candidates:
    """Take what scores above the threshold of boxes that are free of overlaps.

    Args:
        boxes: float32 (N, 4), xyxy, or (N, 5), xywhr, pixels of the network's input.
        scores: float32 (N,).
        class_ids: float32 (N,), whole numbers.
        score_threshold: 0 to 1; what is above it must be finite.
    """
    kept = above(scores, score_threshold)
    boxes, scores, class_ids = boxes[kept], scores[kept], class_ids[kept]
    check_finite(boxes, scores, class_ids)
    return Candidates(boxes, scores, class_ids.astype(np.int64), suppress=False)

"""What the decoders share: outputs found, their shapes and numbers checked, boxes above a threshold."""

from typing import Any

import numpy as np
import numpy.typing as npt

from tasks.decoders import Candidates
from tasks.geometry import Floats, xywh_to_xyxy
from tasks.predictions import OutputError, Outputs


def first(outputs: Outputs, *shape: str | int) -> Floats:
    """Read the first output, whatever its name.

    Args:
        outputs: At least one.
        shape: Its axes: a number is a length, a text names an axis of any length. `classes` has at
            least 1, as has `4 + classes` beside its 4.

    Returns:
        float32 of that shape.

    Raises:
        OutputError: It has another shape.
    """
    return _shaped(next(iter(outputs.values())), "output 0", shape)


def named(outputs: Outputs, name: str, *shape: str | int) -> Floats:
    """Read an output by its name; else as `first`.

    Raises:
        OutputError: There is none of that name, or it has another shape.
    """
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
    """Keep the rows of image 0: `rows` is float32 (N, ...), whose first column numbers images.

    Raises:
        OutputError: A number of an image is not finite.
    """
    check_finite(rows[:, 0])
    return np.asarray(rows[rows[:, 0] == 0])


def check_finite(*arrays: npt.NDArray[np.floating]) -> None:
    """Refuse numbers that would become boxes or scores and are none.

    Raises:
        OutputError: One of the arrays holds NaN or infinity.
    """
    if not all(np.isfinite(array).all() for array in arrays):
        raise OutputError("expected the outputs to hold finite numbers, got NaN or infinity")


@np.errstate(over="ignore", invalid="ignore")
def fractions_to_pixels(boxes: Floats, size_wh: tuple[int, int]) -> Floats:
    """Turn fractions of the network's input into its pixels; what is not finite stays so, silently.

    Args:
        boxes: float32 (N, 4), xyxy, 0 to 1.
        size_wh: Width and height of the network's input, pixels.

    Returns:
        float32 (N, 4), xyxy.
    """
    return boxes * np.array([*size_wh, *size_wh], np.float32)


@np.errstate(over="ignore", invalid="ignore")
def centred_to_pixels(boxes: Floats, size_wh: tuple[int, int]) -> Floats:
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
        score_threshold: 0 to 1.

    Raises:
        OutputError: A box above the threshold is not finite.
    """
    kept = above(scores, score_threshold)
    boxes, scores, class_ids = boxes[kept], scores[kept], class_ids[kept]
    check_finite(boxes, scores, class_ids)
    return Candidates(boxes, scores, class_ids.astype(np.int64), suppress=False)

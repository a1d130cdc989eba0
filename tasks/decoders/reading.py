"""Shared steps of the decoders: read and check outputs, and select boxes above a threshold."""

from typing import Any

import numpy as np
import numpy.typing as npt

from quadriga.tasks.decoders import Candidates
from quadriga.tasks.geometry import Floats, xywh_to_xyxy
from quadriga.tasks.predictions import OutputError, Outputs, Size, check_finite


def first(outputs: Outputs, *shape: str | int) -> Floats:
    """Read the first output, whatever its name, as float32 of a shape.

    In the shape, a number is a length; a text names an axis of any length, and a sum such as `4 + classes` of
    at least 4 and one class.

    Raises:
        OutputError: The output has another shape.
    """
    return _shaped(next(iter(outputs.values())), "output 0", shape)


def plain_name(name: str) -> str:
    """Return the name of an output without the marks of TensorFlow and super-gradients: `scores:0`, `graph2_scores`."""
    return name.removeprefix("graph2_").removesuffix(":0")


def named(outputs: Outputs, name: str, *shape: str | int) -> Floats:
    """Read an output by its name, one of several divided by `|`; see `first` for the shape."""
    matching = [known for known in outputs if plain_name(known) in name.split("|")]
    if not matching:
        raise OutputError(
            f"output not found: {name!r}, the graph has {', '.join(map(repr, outputs))}"
        )
    return _shaped(outputs[matching[0]], f"output {matching[0]!r}", shape)


def _shaped(array: npt.NDArray[Any], subject: str, shape: tuple[str | int, ...]) -> Floats:
    fits = array.ndim == len(shape) and all(
        length == axis if isinstance(axis, int) else length >= _min_length(axis)
        for length, axis in zip(array.shape, shape, strict=True)
    )
    if not fits:
        axes = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
        raise OutputError(f"expected {subject} to have the shape ({axes}), got {array.shape}")
    # class numbers are exact up to 2 ** 24
    return array.astype(np.float32, copy=False)


def _min_length(axis: str) -> int:
    """Return the minimum length of a named axis: the numbers of a sum such as `4 + classes`, and one class."""
    terms = axis.split(" + ")
    return sum(int(term) if term.isdecimal() else term == "classes" for term in terms)


def above(scores: Floats, score_threshold: float) -> npt.NDArray[np.int64]:
    """Return the indices of scores above the threshold, and of NaN, which is reported later."""
    return np.flatnonzero(~(scores <= score_threshold))


def of_first_image(rows: Floats, images: Floats) -> Floats:
    """Keep the rows of the first image that has any: `images`, float32 (N,), numbers them, and a negative one ends them.

    It is image 0 of a run of several, or the image itself where its rows were cut out of a batch.
    """
    check_finite(images)
    ends = np.flatnonzero(images < 0)
    images = images[: ends[0]] if len(ends) else images
    return np.asarray(rows[: len(images)][images == images.min(initial=np.inf)])


@np.errstate(over="ignore", invalid="ignore")
def fractions_to_pixels(boxes: Floats, size_wh: Size) -> Floats:
    """Turn fractions of the network's input, float32 (N, 4), into its pixels; NaN stays NaN."""
    return boxes * np.array([*size_wh, *size_wh], np.float32)


@np.errstate(over="ignore", invalid="ignore")
def centred_to_pixels(boxes: Floats, size_wh: Size) -> Floats:
    """Turn xywh boxes, as fractions of the network's input, into xyxy in its pixels."""
    return fractions_to_pixels(xywh_to_xyxy(boxes), size_wh)


def finished(
    boxes: Floats, scores: Floats, class_ids: Floats, score_threshold: float
) -> Candidates:
    """Select boxes above the threshold, from a network that has suppressed overlaps itself.

    Args:
        boxes: float32 (N, 4), xyxy, or (N, 5), xywhr, pixels of the network's input.
        scores: float32 (N,).
        class_ids: float32 (N,), whole numbers.
        score_threshold: Minimum score, 0 to 1; boxes above it must be finite.
    """
    rows = above(scores, score_threshold)
    boxes, scores, class_ids = boxes[rows], scores[rows], class_ids[rows]
    check_finite(boxes, scores, class_ids)
    return Candidates(boxes, scores, class_numbers(class_ids), suppress=False)


def class_numbers(class_ids: Floats) -> npt.NDArray[np.int64]:
    """Return class ids, float32 (N,), as whole numbers.

    Raises:
        OutputError: One is no whole number, such as a score in the place of a class.
    """
    numbers = class_ids.astype(np.int64)
    if (broken := np.flatnonzero(numbers != class_ids)).size:
        raise OutputError(f"expected class numbers, got {class_ids[broken[0]]:.5g}")
    return numbers

"""Predictions of the tasks: structs whose fields are Chariot's JSON, in its order.

Source: Chariot, Inference Protocols, "Responses".
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

Outputs = Mapping[str, npt.NDArray[Any]]
"""Outputs of a graph for one image by name, in its order, without the batch axis."""


Size = tuple[int, int]
"""Width and height, pixels."""


class OutputError(ValueError):
    """The outputs do not fit the specification of the model: status 500, as no request can mend it."""


def check_finite(*arrays: npt.NDArray[Any], subject: str = "the outputs") -> None:
    """Refuse NaN and infinities, with an OutputError; `subject` names the arrays in its message."""
    if not all(np.isfinite(array).all() for array in arrays):
        raise OutputError(f"expected {subject} to hold finite numbers, got NaN or infinity")


ROUNDING = 2e-3
"""Distance from 0 to 1 that a probability may have through rounding: that of float16 twice."""


def check_probabilities(scores: npt.NDArray[Any], subject: str = "scores") -> npt.NDArray[Any]:
    """Return scores cut to 0 to 1.

    Raises:
        OutputError: A score lies outside by more than rounding, so that it is no probability.
    """
    low, high = float(scores.min(initial=0)), float(scores.max(initial=0))
    if low < -ROUNDING or high > 1 + ROUNDING:
        raise OutputError(
            f"expected {subject} from 0 to 1, got {low if low < -ROUNDING else high:.5g}"
        )
    return np.clip(scores, 0, 1) if low < 0 or high > 1 else scores


class Classification(msgspec.Struct, frozen=True):
    """A label with its probability, 0 to 1."""

    label: str
    score: float


class Detection(msgspec.Struct, frozen=True):
    """A box in pixels of the image as a person sees it; y grows downwards."""

    label: str
    score: float
    xmin: float
    ymin: float
    xmax: float
    ymax: float


class OrientedDetection(msgspec.Struct, frozen=True):
    """A rotated box as fractions of the image, rotated in pixels.

    Multiply `cx` and `w` by the image's width, `cy` and `h` by its height, and then rotate by `r`: the other
    order gives another box wherever the image is not square.
    """

    label: str
    score: float
    cx: float
    cy: float
    w: float
    h: float
    r: float
    """Radians, clockwise on the screen."""
    corners: list[list[float]] | msgspec.UnsetType = msgspec.UNSET
    """Four pairs of x and y, pixels of the image, clockwise; present only if a request asks for them."""


class CropBox(msgspec.Struct, frozen=True):
    """The part of an image that was cut out, in whole pixels; `xmax` and `ymax` are the first ones outside of it."""

    xmin: int
    ymin: int
    xmax: int
    ymax: int


class CropAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Answer of the model behind a detector about the crop of a detection."""

    model: str
    version: str
    crop: CropBox
    predictions: Sequence[Any]
    """Predictions of that model; places are in pixels of the crop, or fractions of it."""
    inference_id: str = ""
    """Id of the inference of the crop; empty, and left out, where it is not stored."""
    crops_left_out: int = 0
    """Number of these predictions whose crops a limit kept from a further model."""


class AnsweredDetection(Detection, frozen=True):
    """A detection in a response, with what the model behind the detector says of its crop."""

    then: CropAnswer


class AnsweredOrientedDetection(OrientedDetection, frozen=True, kw_only=True):
    """A rotated detection in a response, with what the model behind the detector says of its crop."""

    then: CropAnswer


def with_answer(
    detection: Detection | OrientedDetection, answer: CropAnswer
) -> AnsweredDetection | AnsweredOrientedDetection:
    """Return a detection with the answer about its crop."""
    fields = msgspec.structs.asdict(detection)
    if isinstance(detection, Detection):
        return AnsweredDetection(**fields, then=answer)
    return AnsweredOrientedDetection(**fields, then=answer)


class Point(msgspec.Struct, frozen=True):
    """The centre of a pixel by its column and row; (0, 0) is the first pixel of the image."""

    x: float
    y: float


class Segment(msgspec.Struct, frozen=True):
    """A region: the pixels on its rings or inside an odd number of them; see `quadriga.tasks.geometry.fill`."""

    label: str
    score: float
    contour: list[list[Point]]


class Answer(msgspec.Struct, frozen=True):
    """The text that a model gives to one prompt about the image."""

    prompt: str
    answer: str


Prediction = Classification | Detection | OrientedDetection | Segment | Answer


class TruncatedPredictions(list[Prediction]):
    """The predictions of an image up to a limit, where the model made more.

    Args:
        predictions: Predictions within the limit.
        total: Number without the limit; None where it was not counted.
    """

    def __init__(self, predictions: Iterable[Prediction], total: int | None = None) -> None:
        super().__init__(predictions)
        self.total = total


class AnyPrediction(msgspec.Struct, frozen=True):
    """A stored prediction of any task, or an annotation: a field that it lacks is None, or 0."""

    label: str | None = None
    score: float | None = None
    xmin: float | None = None
    ymin: float = 0.0
    xmax: float = 0.0
    ymax: float = 0.0
    cx: float | None = None
    cy: float = 0.0
    w: float = 0.0
    h: float = 0.0
    r: float = 0.0
    contour: list[list[Point]] | None = None
    answer: str | None = None

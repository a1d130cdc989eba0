"""Predictions of the tasks: structs whose fields are Chariot's JSON, in its order.

Source: Chariot, Inference Protocols, "Responses".
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

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


XY = tuple[float, float]
"""x and y, pixels of the image."""


Xyxy = tuple[float, float, float, float]
"""xmin, ymin, xmax, ymax; pixels of the image as a person sees it."""


RelativeXywhr = tuple[float, float, float, float, float]
"""Centre x and y, width and height as fractions of the image, and the rotation in radians, clockwise on the screen."""


Kind = Literal["box", "oriented box", "corners", "contour"]


Value = TypeVar("Value", float, npt.NDArray[np.float64])
"""One number, or an array with a number for each of several boxes."""


BOX_KEYS = ("xmin", "ymin", "xmax", "ymax")


ORIENTED_BOX_KEYS = ("cx", "cy", "w", "h", "r")


MAX_COORDINATE = 1e50
"""Largest magnitude of a coordinate that is computed with: areas and products of areas are finite, too."""


_NUMBERS = (float, int)


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """Geometry of one prediction or annotation, as its fields have it; an empty one lies nowhere in the image.

    A valid item has one kind of shape. Stored JSON may have several: each method names the one that it prefers.
    """

    box: Xyxy | None = None
    oriented_box: RelativeXywhr | None = None
    corners: Sequence[XY] | None = None
    """Four corners of an oriented box, as annotations may give it."""
    rings: Sequence[Sequence[XY]] | None = None
    """Rings of a contour through centres of pixels; (0, 0) is the first pixel."""

    @property
    def kind(self) -> Kind | None:
        """Kind of the shape, the most exact one of several; None without a shape."""
        if self.rings is not None:
            return "contour"
        if self.corners is not None:
            return "corners"
        if self.oriented_box is not None:
            return "oriented box"
        return None if self.box is None else "box"

    def oriented_corners(self, width: int, height: int) -> list[XY] | None:
        """Return the corners of the oriented box, clockwise on the screen.

        The last bits may differ from those of `quadriga.tasks.geometry.xywhr_to_corners`, which adds in another order.
        """
        if self.oriented_box is None:
            return None
        cx, cy, w, h, r = self.oriented_box
        x, y, half_w, half_h = cx * width, cy * height, w * width / 2, h * height / 2
        cosine, sine = math.cos(r), math.sin(r)
        return [
            (x + dx * cosine - dy * sine, y + dx * sine + dy * cosine)
            for dx, dy in (
                (-half_w, -half_h), (half_w, -half_h), (half_w, half_h), (-half_w, half_h),
            )
        ]  # fmt: skip

    def upright_box(self, width: int | None, height: int | None) -> Xyxy | None:
        """Return the box, else the one around an oriented box, which needs the image's size, or around points.

        A contour's box goes through centres of pixels, as its rings do; see `relative_box` for whole pixels.
        """
        if self.box is not None:
            return self.box
        points = None if width is None or height is None else self.oriented_corners(width, height)
        return bounding_box(points or [point for ring in self.rings or () for point in ring])

    def relative_box(self, width: int, height: int) -> Xyxy | None:
        """Return width, height, centre x and centre y as fractions of the image.

        Sides of an oriented box, preferred to a box, are its own. A contour covers its pixels wholly.
        """
        if self.oriented_box is not None:
            cx, cy, w, h, _ = self.oriented_box
            return w, h, cx, cy
        extent = 0
        box = self.box
        if box is None:
            box = bounding_box([point for ring in self.rings or () for point in ring])
            extent = 1
        if box is None:
            return None
        xmin, ymin, xmax, ymax = box
        w, h = (xmax - xmin + extent) / width, (ymax - ymin + extent) / height
        return w, h, (xmin + xmax) / 2 / width, (ymin + ymax) / 2 / height


def shape_of(prediction: AnyPrediction, corners: Sequence[XY] | None = None) -> Shape:
    """Return the shape of a decoded prediction or annotation; `corners` are those that it has beside its fields."""
    box = oriented_box = rings = None
    if prediction.xmin is not None:
        box = prediction.xmin, prediction.ymin, prediction.xmax, prediction.ymax
    if prediction.cx is not None:
        oriented_box = prediction.cx, prediction.cy, prediction.w, prediction.h, prediction.r
    if prediction.contour is not None:
        rings = [[(point.x, point.y) for point in ring] for ring in prediction.contour]
    return Shape(box=box, oriented_box=oriented_box, corners=corners, rings=rings)


def shape_of_json(item: Mapping[str, Any]) -> Shape:
    """Return the shape of a prediction or an annotation that nobody has checked.

    A field counts only if its type is right: a box needs four numbers, a boolean is none. Points that are none are
    left out of their rings, and rings without points out of the contour.
    """
    box = oriented_box = None
    if (edges := numbers(item, BOX_KEYS)) is not None:
        box = edges[0], edges[1], edges[2], edges[3]
    if (turned := numbers(item, ORIENTED_BOX_KEYS)) is not None:
        oriented_box = turned[0], turned[1], turned[2], turned[3], turned[4]
    contour = item.get("contour")
    rings = []
    for ring in contour if isinstance(contour, list) else []:
        points = [
            numbers(point, ("x", "y"))
            for point in (ring if isinstance(ring, list) else [])
            if isinstance(point, dict)
        ]
        pairs = [(point[0], point[1]) for point in points if point is not None]
        if pairs:
            rings.append(pairs)
    return Shape(box=box, oriented_box=oriented_box, rings=rings or None)


def numbers(item: Mapping[str, Any], keys: Sequence[str]) -> list[float] | None:
    """Return the values of some keys; None unless all of them are numbers."""
    values = []
    for key in keys:
        value: Any = item.get(key)
        if type(value) not in _NUMBERS:  # a boolean is an int, too
            return None
        values.append(value)
    return values


def bounding_box(points: Sequence[XY]) -> Xyxy | None:
    """Return the smallest box around points; None without points."""
    if not points:
        return None
    xs, ys = zip(*points, strict=True)
    return min(xs), min(ys), max(xs), max(ys)


def xyxy_to_ltwh(box: Xyxy) -> Xyxy:
    """Turn edges into left, top, width and height, which COCO's `bbox` has."""
    xmin, ymin, xmax, ymax = box
    return xmin, ymin, xmax - xmin, ymax - ymin


def ltwh_to_xyxy(
    left: Value, top: Value, width: Value, height: Value
) -> tuple[Value, Value, Value, Value]:
    """Turn left, top, width and height, which COCO's `bbox` has, into edges; of one box, or of arrays (N,) of boxes."""
    return left, top, left + width, top + height


def contour_area(rings: Sequence[Sequence[XY]]) -> float:
    """Return the area of rings in either direction, in square pixels; a ring inside an odd number of others is a hole."""
    area = 0.0
    for ring in rings:
        nesting = sum(is_inside(ring[0], outer) for outer in rings if outer is not ring)
        area += (-1) ** nesting * abs(sum(_cross_products(ring))) / 2
    return area


def directed_area(rings: Iterable[Sequence[XY]]) -> float:
    """Return the area of rings whose holes run the other way round, in square pixels; faster than `contour_area`."""
    doubled = 0.0
    for ring in rings:
        # the closing edge comes first, and plain additions: `sum` of Python 3.12 rounds otherwise
        for product in _cross_products([*ring[-1:], *ring[:-1]]):
            doubled += product
    return abs(doubled) / 2


def _cross_products(ring: Sequence[XY]) -> list[float]:
    """Return the cross product of the ends of each edge; the last edge closes the ring."""
    edges = zip(ring, (*ring[1:], ring[0]), strict=True) if ring else ()
    return [x0 * y1 - x1 * y0 for (x0, y0), (x1, y1) in edges]


def is_inside(point: XY, ring: Sequence[XY]) -> bool:
    """Tell whether a point lies within a ring, by the edges that a ray to its right crosses."""
    x, y = point
    inside = False
    for (x0, y0), (x1, y1) in zip(ring, (*ring[1:], ring[0]), strict=True):
        if (y0 > y) != (y1 > y) and x < x0 + (y - y0) * (x1 - x0) / (y1 - y0):
            inside = not inside
    return inside

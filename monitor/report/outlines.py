"""Predictions and truths of any task as outlines over a picture, or as words beside it."""

from collections.abc import Sequence
from typing import Any

import cv2
import msgspec
import numpy as np

from quadriga.monitor.report.metric_texts import plain
from quadriga.tasks.arrays import Float64Array
from quadriga.tasks.predictions import AnyPrediction
from quadriga.tasks.rotated import relative_to_pixels, xywhr_to_corners
from quadriga.tasks.shapes import Shape, shape_of

FINE_PX = 480
"""Longer side at which pictures are shown: outlines are no finer."""

LETTERS = 26
"""Heights of a letter that the longer side of a picture takes."""

_MOST_WORDS = 5


class Drawn(AnyPrediction, frozen=True):
    """A prediction or a truth, in the form of the wire."""

    label: str = ""
    corners: list[tuple[float, float]] | None = None
    prompt: str | None = None
    answers: list[str] = msgspec.field(default_factory=list)

    @property
    def is_placed(self) -> bool:
        """Whether it lies somewhere in the image."""
        return self.shape.kind is not None

    @property
    def shape(self) -> Shape:
        """Its geometry."""
        return shape_of(self, self.corners)

    @property
    def name(self) -> str:
        """Its label and score."""
        score = "" if self.score is None else f" {self.score:.2f}"
        return plain(self.label, 24) + score

    @property
    def words(self) -> str:
        """What it says, where it lies nowhere."""
        answers = self.answers if self.answer is None else [self.answer]
        if not answers:
            return self.name
        said = " / ".join(plain(answer, 200) for answer in answers[:_MOST_WORDS])
        return f"{plain(self.prompt, 120)} → {said}" if self.prompt else said


class Outline(msgspec.Struct, frozen=True):
    """A shape over a picture, in pixels of the image."""

    kind: str
    """`truth` or `prediction`."""
    path: str
    """Of SVG."""
    name: str
    x: float
    y: float
    """Where the name stands."""
    anchor: str
    """The end of the name that stands there: `start` or `end`."""


def read(items: Any) -> list[Drawn]:
    """Read predictions or truths: JSON, or what became of it.

    Raises:
        msgspec.ValidationError: They have no form of the wire.
    """
    if isinstance(items, msgspec.Raw):
        items = msgspec.json.decode(items)
    return msgspec.convert(items or [], list[Drawn])


def words(items: Sequence[Drawn]) -> list[str]:
    """Say the first ones that lie nowhere in the image."""
    said = [item.words for item in items if not item.is_placed]
    more = len(said) - _MOST_WORDS
    return said[:_MOST_WORDS] + ([f"{more} more"] if more > 0 else [])


def outline(kind: str, item: Drawn, size_wh: tuple[float, float]) -> Outline | None:
    """Draw what lies in an image of that size; None where it has no points.

    Names of truths stand above, those of predictions below, so that both of one object can be read.
    """
    rings = _rings(item, size_wh)
    points = np.concatenate([np.zeros((0, 2)), *rings])
    if not points.size or not np.isfinite(points).all():
        return None
    width, height = size_wh
    letter = max(size_wh) / LETTERS
    (left, top), (_, bottom) = points.min(axis=0), points.max(axis=0)
    is_wide = left + 0.55 * letter * len(item.name) > width
    y = top - 0.3 * letter if kind == "truth" else bottom + 0.95 * letter
    x = width - 0.2 * letter if is_wide else max(left, 0)
    y = np.clip(y, 0.9 * letter, height - 0.3 * letter)
    path = "".join(f"M{'L'.join(f'{x:.5g} {y:.5g}' for x, y in ring)}Z" for ring in rings)
    anchor = "end" if is_wide else "start"
    return Outline(kind, path, item.name, round(float(x), 1), round(float(y), 1), anchor)


def _rings(item: Drawn, size_wh: tuple[float, float]) -> list[Float64Array]:
    """Return closed rings of points, each (N, 2) x and y in pixels; the first pixel is 0 to 1."""
    shape = item.shape
    if shape.rings is not None:
        tolerance = max(size_wh) / FINE_PX / 2
        return [_simple(np.array(ring) + 0.5, tolerance) for ring in shape.rings if ring]
    if shape.corners is not None:
        return [np.array(shape.corners, np.float64).reshape(-1, 2)]
    if shape.oriented_box is not None:
        box = relative_to_pixels(np.array([shape.oriented_box]), np.array([size_wh]))
        return [xywhr_to_corners(box)[0]]
    left, top, right, bottom = shape.box or (0, 0, 0, 0)
    left = left or 0  # the path has no -0
    return [np.array([(left, top), (right, top), (right, bottom), (left, bottom)], np.float64)]


def _simple(ring: Float64Array, tolerance: float) -> Float64Array:
    """Leave out what nobody sees at this size."""
    kept = cv2.approxPolyDP(ring.astype(np.float32), tolerance, closed=True)
    return kept.reshape(-1, 2).astype(np.float64)

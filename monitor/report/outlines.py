"""Predictions and annotations of any task as outlines over a picture, or as text beside it."""

from collections.abc import Iterable, Sequence
from typing import Any

import cv2
import msgspec
import numpy as np

from quadriga.quoting import one_line
from quadriga.tasks.arrays import Float64Array
from quadriga.tasks.geometry import relative_to_pixels, xywhr_to_corners
from quadriga.tasks.predictions import AnyPrediction, Shape, shape_of

MAX_SIDE_PX = 480
"""Longer side of shown pictures, in pixels: outlines are no finer."""

LETTERS_PER_SIDE, SMALL_LETTERS_PER_SIDE = 26, 16
"""Longer side of a picture, and of a small one, in heights of a letter."""

_LETTER_WIDTH = 0.55
"""Width of a letter in heights of it, on average."""

_MAX_TEXTS = 5


class DrawnItem(AnyPrediction, frozen=True):
    """A prediction or an annotation, in the form of the wire."""

    label: str = ""
    corners: list[tuple[float, float]] | None = None
    prompt: str | None = None
    answers: list[str] = msgspec.field(default_factory=list)

    @property
    def has_shape(self) -> bool:
        """Whether the item has a position in the image."""
        return self.shape.kind is not None

    @property
    def shape(self) -> Shape:
        """Geometry of the item."""
        return shape_of(self, self.corners)

    @property
    def name(self) -> str:
        """Label and score."""
        score = "" if self.score is None else f" {self.score:.2f}"
        return one_line(self.label, 24) + score

    @property
    def text(self) -> str:
        """Prompt and answers of a text, or label and score."""
        answers = self.answers if self.answer is None else [self.answer]
        if not answers:
            return self.name
        joined = " / ".join(one_line(answer, 200) for answer in answers[:_MAX_TEXTS])
        return f"{one_line(self.prompt, 120)} → {joined}" if self.prompt else joined


class Outline(msgspec.Struct, frozen=True):
    """A shape over a picture, in pixels of the image."""

    kind: str
    """`truth` or `prediction`."""
    path: str
    """SVG path."""
    name: str
    x: float
    y: float
    """Position of the name."""
    anchor: str
    """End of the name that is at this position: `start` or `end`."""


def decode_items(items: Any) -> list[DrawnItem]:
    """Decode predictions or annotations, from JSON or from builtin types.

    Raises:
        msgspec.ValidationError: They are not in the form of the wire.
    """
    if isinstance(items, msgspec.Raw):
        items = msgspec.json.decode(items)
    return msgspec.convert(items or [], list[DrawnItem])


def item_texts(items: Sequence[DrawnItem]) -> list[str]:
    """Return the texts of the first items without a position in the image."""
    texts = [item.text for item in items if not item.has_shape]
    extra_count = len(texts) - _MAX_TEXTS
    return texts[:_MAX_TEXTS] + ([f"{extra_count} more"] if extra_count > 0 else [])


def item_outline(
    kind: str,
    item: DrawnItem,
    size_wh: tuple[float, float],
    letters_per_side: float = LETTERS_PER_SIDE,
) -> Outline | None:
    """Draw an item in an image of that size; None if it has no points.

    Names of annotations are above, those of predictions below the outline, so that both of one object can be read. The
    longer side of the image is so many letters high.
    """
    rings = _rings(item, size_wh)
    points = points_of(item, size_wh)
    if not points.size or not np.isfinite(points).all():
        return None
    width, height = size_wh
    letter_px = max(size_wh) / letters_per_side
    (left, top), (_, bottom) = points.min(axis=0), points.max(axis=0)
    is_wide = left + _LETTER_WIDTH * letter_px * len(item.name) > width
    y = top - 0.3 * letter_px if kind == "truth" else bottom + 0.95 * letter_px
    x = width - 0.2 * letter_px if is_wide else max(left, 0)
    y = np.clip(y, 0.9 * letter_px, height - 0.3 * letter_px)
    path = "".join(f"M{'L'.join(f'{x:.5g} {y:.5g}' for x, y in ring)}Z" for ring in rings)
    anchor = "end" if is_wide else "start"
    return Outline(
        kind=kind,
        path=path,
        name=item.name,
        x=round(float(x), 1),
        y=round(float(y), 1),
        anchor=anchor,
    )


def names_that_fit(outlines: Iterable[Outline], letter_px: float) -> list[Outline]:
    """Return the outlines whose names have room: each that is not over the name of one before it.

    Args:
        outlines: The outlines, the most important first.
        letter_px: Height of a letter, in pixels of the image.
    """
    named: list[Outline] = []
    taken: list[tuple[float, float, float, float]] = []
    for outline in outlines:
        width = _LETTER_WIDTH * letter_px * len(outline.name)
        left = outline.x - width if outline.anchor == "end" else outline.x
        box = left, outline.y - 0.8 * letter_px, left + width, outline.y + 0.2 * letter_px
        is_over = any(
            box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]
            for other in taken
        )
        if outline.name and not is_over:
            named.append(outline)
            taken.append(box)
    return named


def points_of(item: DrawnItem, size_wh: tuple[float, float]) -> Float64Array:
    """Return the points of an item's outline, (N, 2) x and y in pixels of an image of that size."""
    return np.concatenate([np.zeros((0, 2)), *_rings(item, size_wh)])


def _rings(item: DrawnItem, size_wh: tuple[float, float]) -> list[Float64Array]:
    """Return closed rings of points, each (N, 2) x and y in pixels; the first pixel is 0 to 1."""
    shape = item.shape
    if shape.rings is not None:
        tolerance = max(size_wh) / MAX_SIDE_PX / 2
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
    """Drop points of a ring that make no visible difference at this size."""
    simplified = cv2.approxPolyDP(ring.astype(np.float32), tolerance, closed=True)
    return simplified.reshape(-1, 2).astype(np.float64)

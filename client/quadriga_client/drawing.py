"""Predictions on a picture, by Pillow, and for notebooks."""

import colorsys
import html
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from .errors import ClientError, load_package
from .results import OrientedBoxes, box_around, box_xyxy, ring_points, summary

COLOURS = (
    "#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#9a6324", "#808000", "#f032e6", "#000075",
    "#800000", "#0aa2c0", "#5b8c00", "#c2410c", "#7c3aed", "#475569", "#be185d", "#166534", "#1d4ed8", "#a16207",
)  # fmt: skip
"""Colours of the first labels of a model, in their order; each is readable behind white text."""

MAX_PLACED = 300
"""Maximum objects of a picture whose texts look for room; among more there is none, and the search takes minutes."""

_GOLDEN_ANGLE = 0.38196601
_SHOWN_ROWS = 20

Box = tuple[float, float, float, float]
"""Left, top, right, bottom, in pixels."""


def draw_predictions(picture: Any, result: Any) -> Any:
    """Return a copy of a Pillow image with boxes, rotated boxes, regions, classes and answers.

    Texts stand beside the objects, where there is room. A label has the same colour in every picture: its own, if the server
    tells the labels of the model.

    Raises:
        MissingPackage: Pillow is not installed.
    """
    drawing = load_package("PIL.ImageDraw", "to draw")
    picture = picture.convert("RGB")
    pen = drawing.Draw(picture)
    colours = LabelColours(_known_labels(result))
    shaped: list[tuple[Box, str, str]] = []
    notes = []
    for row in result.predictions:
        colour = colours.of(str(row.get("label", "")))
        box = _draw_shape(picture, pen, row, colour)
        if box is None:
            notes.append(caption(row))
        else:
            shaped.append((box, caption(row), colour))
    font_px = max(12, max(picture.size) // 45)
    _write_captions(pen, shaped, picture.size, font_px)
    for number, note in enumerate(notes[:_SHOWN_ROWS]):
        plate = Plate(pen, note, font_px)
        plate.write(2, 2 + number * (font_px + 6), "#000000")
    return picture


def _draw_shape(picture: Any, pen: Any, row: Mapping[str, Any], colour: str) -> Box | None:
    """Draw the shape of a prediction, and return the box around it; None if it has no shape."""
    width_px = max(2, max(picture.size) // 320)
    if "contour" in row:
        pillow = load_package("PIL.Image", "to draw")
        mask = region_mask(ring_points(row), picture.size).point(lambda value: value // 3)
        picture.paste(pillow.new("RGB", picture.size, colour), mask=mask)
        for ring in ring_points(row):
            pen.line([*ring, *ring[:1]], fill=colour, width=width_px)
        left, top, right, bottom = box_xyxy(row)
    elif "xmin" in row:
        left, top, right, bottom = box_xyxy(row)
        right, bottom = max(left, right), max(top, bottom)
        pen.rectangle((left, top, right, bottom), outline=colour, width=width_px)
    elif "cx" in row:
        corners = OrientedBoxes([row], lambda: picture.size).corners[0].tolist()
        points = [(across, down) for across, down in corners]
        pen.line([*points, points[0]], fill=colour, width=width_px)
        left, top, right, bottom = box_around([points])
    else:
        return None
    return left, top, right, bottom


def region_mask(rings: Sequence[Sequence[tuple[float, float]]], size: tuple[int, int]) -> Any:
    """Return the pixels of a region as a Pillow image of mode L, 0 or 255.

    Args:
        rings: Rings in pixels; a pixel inside an odd number of them, or on one, belongs to it.
        size: Width and height.
    """
    pillow = load_package("PIL.Image", "a mask")
    chops = load_package("PIL.ImageChops", "a mask")
    drawing = load_package("PIL.ImageDraw", "a mask")
    mask, lines = pillow.new("1", size), pillow.new("1", size)
    edges = drawing.Draw(lines)
    for ring in rings:
        layer = pillow.new("1", size)
        if len(ring) > 2:
            drawing.Draw(layer).polygon(ring, fill=1)
        mask = chops.logical_xor(mask, layer)
        edges.line([*ring, *ring[:1]], fill=1)
    return chops.logical_or(mask, lines).convert("L")


class LabelColours:
    """One colour for each label: that of its place among the model's labels, or one that its name alone decides.

    Args:
        labels: Labels of the model in their order; none if nobody knows them.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self._numbers = {label: number for number, label in reversed([*enumerate(labels)])}

    def of(self, label: str) -> str:
        """Return the colour of a label."""
        number = self._numbers.get(label)
        if number is None:
            number = len(COLOURS) + zlib.crc32(label.encode(errors="replace")) % 10_000
        if number < len(COLOURS):
            return COLOURS[number]
        lightness = (0.24, 0.3, 0.36)[number % 3]
        rgb = colorsys.hls_to_rgb(number * _GOLDEN_ANGLE % 1.0, lightness, 0.8)
        return "#" + "".join(f"{round(255 * part):02x}" for part in rgb)


def _known_labels(result: Any) -> Sequence[str]:
    """Return the labels of the model; none if the server does not tell them: then names decide about colours."""
    try:
        return () if result.labels_of is None else tuple(result.labels_of())
    except (ClientError, OSError):
        return ()


def caption(row: Mapping[str, Any]) -> str:
    """Return what a picture says of a prediction."""
    if "answer" in row:
        return str(row["answer"])[:200]
    score = row.get("score")
    return f"{row.get('label', '')}" + ("" if score is None else f" {score:.2f}")


def html_of(result: Any, jpeg: str) -> str:
    """Return the HTML of a result: its picture, as base64 if there is one, and its predictions as a table.

    Every text is escaped: labels and answers come from a model.
    """
    rows = [
        f"<tr><td>{html.escape(str(row.get('label', row.get('answer', ''))))}</td>"
        f"<td>{html.escape(str(row.get('score', '')))[:8]}</td></tr>"
        for row in result.predictions[:_SHOWN_ROWS]
    ]
    picture = f'<img src="data:image/jpeg;base64,{jpeg}" alt="">' if jpeg else ""
    title = html.escape(f"{result.model}: {summary(result.predictions)}")
    return f"<div>{picture}<p>{title}</p><table>{''.join(rows)}</table></div>"


@lru_cache(maxsize=8)
def _font(size_px: int) -> Any:
    return load_package("PIL.ImageFont", "to draw").load_default(size_px)


class Plate:
    """A text on a coloured ground.

    Args:
        pen: Draws.
        text: The text; of several lines one.
        font_px: Height of the letters.
    """

    def __init__(self, pen: Any, text: str, font_px: int) -> None:
        self._pen = pen
        self._font = _font(font_px)
        self._text = text.replace("\n", " ")
        try:
            bounds = pen.textbbox((0, 0), self._text, font=self._font)
        except UnicodeEncodeError:  # a Pillow without FreeType has Latin letters alone
            self._text = self._text.encode("ascii", "replace").decode()
            bounds = pen.textbbox((0, 0), self._text, font=self._font)
        self._left, self._top, right, bottom = bounds
        self.width: float = right - self._left + 4
        self.height: float = bottom - self._top + 4

    def write(self, across: float, down: float, colour: str) -> None:
        """Write it with its left top corner at a place."""
        self._pen.rectangle((across, down, across + self.width, down + self.height), fill=colour)
        place = across + 2 - self._left, down + 2 - self._top
        self._pen.text(place, self._text, fill="#ffffff", font=self._font)


def _write_captions(
    pen: Any, shaped: Sequence[tuple[Box, str, str]], size: tuple[int, int], font_px: int
) -> None:
    """Write the text of each object where it hides the least of the objects, and no other text if there is room."""
    looks_for_room = len(shaped) <= MAX_PLACED
    objects = [box for box, _, _ in shaped] if looks_for_room else []
    written: list[Box] = []
    for box, text, colour in shaped:
        plate = Plate(pen, text, font_px)
        place = _best_place(box, (plate.width, plate.height), objects, written, size=size)
        if looks_for_room:
            written.append(place)
        plate.write(place[0], place[1], colour)


def _best_place(
    box: Box,
    plate: tuple[float, float],
    objects: Sequence[Box],
    written: Sequence[Box],
    *,
    size: tuple[int, int],
) -> Box:
    """Return the place of a text above, below, right or left of a box, or within its top, that hides the least.

    Args:
        box: The object.
        plate: Width and height of the text.
        objects: All objects of the picture.
        written: Places of texts that are written already.
        size: Width and height of the picture.
    """
    left, top, right, bottom = box
    width, height = plate
    corners = [(left, top - height - 1), (left, bottom + 1), (right + 1, top), (left - width - 1, top), (left, top)]  # fmt: skip
    places: list[tuple[float, Box]] = []
    for across, down in corners:
        within_x = max(0.0, min(across, size[0] - width))
        within_y = max(0.0, min(down, size[1] - height))
        place = (within_x, within_y, within_x + width, within_y + height)
        hidden = sum(_hidden_share(other, place) for other in objects)
        hidden += sum(2 * _hidden_share(other, place) for other in written)
        if not hidden:
            return place
        places.append((hidden, place))
    return min(places, key=lambda scored: scored[0])[1]


def _hidden_share(box: Box, plate: Box) -> float:
    """Return the share of a box that a text covers, 0 to 1."""
    across = min(box[2], plate[2]) - max(box[0], plate[0])
    down = min(box[3], plate[3]) - max(box[1], plate[1])
    if across <= 0 or down <= 0:
        return 0.0
    return across * down / max((box[2] - box[0]) * (box[3] - box[1]), 1.0)

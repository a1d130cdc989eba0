"""Predictions on a picture, by Pillow, and for notebooks."""

import html
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from quadriga_client.errors import load_package
from quadriga_client.results import box_xyxy, ring_points, summary

COLOURS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#9a6324", "#808000")
"""Colours of labels; a label has the same one in every picture."""

_SHOWN_ROWS = 20


def draw_predictions(picture: Any, result: Any) -> Any:
    """Return a copy of a Pillow image with boxes, rotated boxes, regions, classes and answers.

    Raises:
        quadriga_client.errors.MissingPackage: Pillow is not installed.
    """
    pillow = load_package("PIL.Image", "images", "to draw")
    drawing = load_package("PIL.ImageDraw", "images", "to draw")
    picture = picture.convert("RGB")
    pen = drawing.Draw(picture)
    width_px = max(2, max(picture.size) // 320)
    font_px = max(12, max(picture.size) // 45)
    notes = []
    for row in result.predictions:
        colour = label_colour(str(row.get("label", "")))
        if "contour" in row:
            mask = region_mask(ring_points(row), picture.size)
            picture.paste(
                pillow.new("RGB", picture.size, colour), mask=mask.point(lambda v: v // 3)
            )
            for ring in ring_points(row):
                pen.line([*ring, *ring[:1]], fill=colour, width=width_px)
            corner = box_xyxy(row)[:2]
        elif "xmin" in row:
            left, top, right, bottom = box_xyxy(row)
            pen.rectangle(
                (left, top, max(left, right), max(top, bottom)), outline=colour, width=width_px
            )
            corner = [left, top]
        elif "cx" in row:
            points = _corners(row, picture.size)
            pen.line([*points, points[0]], fill=colour, width=width_px)
            corner = [*min(points, key=lambda point: point[1])]
        else:
            notes.append(caption(row))
            continue
        _write(pen, caption(row), corner, colour=colour, font_px=font_px)
    for number, note in enumerate(notes[:_SHOWN_ROWS]):
        _write(pen, note, [2, 2 + number * (font_px + 6)], colour="#000000", font_px=font_px)
    return picture


def region_mask(rings: Sequence[Sequence[tuple[float, float]]], size: tuple[int, int]) -> Any:
    """Return the pixels of a region as a Pillow image of mode L, 0 or 255.

    Args:
        rings: Rings in pixels; a pixel inside an odd number of them, or on one, belongs to it.
        size: Width and height.
    """
    pillow = load_package("PIL.Image", "images", "a mask")
    chops = load_package("PIL.ImageChops", "images", "a mask")
    drawing = load_package("PIL.ImageDraw", "images", "a mask")
    mask, lines = pillow.new("1", size), pillow.new("1", size)
    edges = drawing.Draw(lines)
    for ring in rings:
        layer = pillow.new("1", size)
        if len(ring) > 2:
            drawing.Draw(layer).polygon(ring, fill=1)
        mask = chops.logical_xor(mask, layer)
        edges.line([*ring, *ring[:1]], fill=1)
    return chops.logical_or(mask, lines).convert("L")


def label_colour(label: str) -> str:
    """Return the colour of a label."""
    return COLOURS[zlib.crc32(label.encode(errors="replace")) % len(COLOURS)]


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


def _corners(row: Mapping[str, Any], size: tuple[int, int]) -> list[tuple[float, float]]:
    from quadriga_client.results import OrientedBoxes

    corners = OrientedBoxes([row], lambda: size).corners[0]
    return [(float(across), float(down)) for across, down in corners]


@lru_cache(maxsize=8)
def _font(size_px: int) -> Any:
    return load_package("PIL.ImageFont", "images", "to draw").load_default(size_px)


def _write(pen: Any, text: str, corner: Sequence[float], *, colour: str, font_px: int) -> None:
    """Write a text above a corner, or below it at the top of the picture."""
    font = _font(font_px)
    shown = text.replace("\n", " ")
    try:
        left, top, right, bottom = pen.textbbox((0, 0), shown, font=font)
    except UnicodeEncodeError:  # a Pillow without FreeType has Latin letters alone
        shown = shown.encode("ascii", "replace").decode()
        left, top, right, bottom = pen.textbbox((0, 0), shown, font=font)
    height = bottom - top + 4
    across, down = max(0.0, corner[0]), corner[1] - height if corner[1] >= height else corner[1]
    down = max(0.0, down)
    pen.rectangle((across, down, across + right - left + 4, down + height), fill=colour)
    pen.text((across + 2 - left, down + 2 - top), shown, fill="#ffffff", font=font)

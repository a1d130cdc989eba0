"""Tags of predictions in a picture: plates with label and score, and a legend where there are too many of them."""

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from quadriga.tasks.image import Pixels
from quadriga.tasks.overlays import Box
from quadriga.tasks.pen import INK, PAPER, Pen, ink_on
from quadriga.tasks.predictions import Detection, OrientedDetection, Segment

Tagged = Detection | OrientedDetection | Segment

_CROWD = 0.12
"""Share of the picture that tags may cover before they are a crowd."""
_SMALL = 8
"""Area of an object over that of a tag below which a tag would hide what is in it."""
_LETTER = 0.6
"""Width of a letter over the height of the font, on average."""
_MAX_LEGEND_LABELS = 40


def is_crowd(pen: Pen, predictions: Sequence[Tagged]) -> bool:
    """Estimate whether the tags of all predictions would hide the picture."""
    letters = sum(len(prediction.label) + 6 for prediction in predictions)
    tags_px = letters * _LETTER * pen.font_px * _height(pen)
    height, width = pen.canvas.shape[:2]
    return bool(tags_px > _CROWD * height * width)


def draw_tags(pen: Pen, boxes: Sequence[tuple[Tagged, Box]], *, crowded: bool) -> int:
    """Draw a tag at each box, the best first; in a crowd only where it hides neither a tag nor a small object.

    Returns:
        Number of boxes without a tag.
    """
    occupied = np.zeros(pen.canvas.shape[:2], np.bool_)
    if crowded:
        for prediction, box in boxes:
            area = (box[2] - box[0] + 1) * (box[3] - box[1] + 1)
            if area < _SMALL * tag_px(pen, prediction) * _height(pen):
                occupied[_slices(box)] = True
    left_out = 0
    for prediction, box in boxes:
        positions = _positions(pen, tag_px(pen, prediction), box)
        free = (position for position in positions if not occupied[_slices(position)].any())
        tag = next(free, None if crowded else positions[0])
        if tag is None:
            left_out += 1
            continue
        occupied[_slices(tag)] = True
        color = pen.color(prediction.label)
        pen.fill(tag, color)
        middle = (tag[1] + tag[3]) / 2
        pen.write(
            _tag_text(pen, prediction), tag[0] + pen.font_px * 0.35, middle, color=ink_on(color)
        )
    return left_out


def legend(pen: Pen, predictions: Sequence[Tagged]) -> Pixels:
    """Return a strip with the colour of each label and the number of its predictions, the most frequent first."""
    counts = Counter(prediction.label for prediction in predictions)
    margin, row = round(pen.font_px * 0.7), round(pen.font_px * 1.6)
    width = pen.canvas.shape[1]
    entries = [
        (label, pen.shorten(f"{label} {count}", width - 2 * margin - row))
        for label, count in counts.most_common(_MAX_LEGEND_LABELS)
    ]
    if len(counts) > len(entries):
        entries.append(("", f"and {len(counts) - len(entries)} more labels"))
    places: list[tuple[int, int]] = []
    left, top = margin, margin
    for _, text in entries:
        entry_px = row + pen.width_of(text)
        if left > margin and left + entry_px > width - margin:
            left, top = margin, top + row
        places.append((left, top))
        left += entry_px + margin
    strip = np.full((top + row + margin, width, 3), PAPER, np.uint8)
    pen = msgspec.structs.replace(pen, canvas=strip)
    side = round(row * 0.6)
    for (label, text), (left, top) in zip(entries, places, strict=True):
        if label:
            middle = top + (row - side) // 2
            pen.fill((left, middle, left + side, middle + side), pen.color(label))
        pen.write(text, left + side + margin // 2, top + row / 2, color=INK)
    return strip


def tag_px(pen: Pen, prediction: Tagged) -> int:
    """Return the width of a tag."""
    return pen.width_of(_tag_text(pen, prediction)) + round(pen.font_px * 0.7)


def _tag_text(pen: Pen, prediction: Tagged) -> str:
    return pen.shorten(
        f"{prediction.label} {prediction.score:.2f}", pen.canvas.shape[1] - pen.font_px
    )


def _positions(pen: Pen, width: int, box: Box) -> list[Box]:
    """Return the positions of a tag by preference: above the box, inside at its top or bottom, or below it."""
    canvas_h, canvas_w = pen.canvas.shape[:2]
    height = _height(pen)
    left = max(0, min(box[0], canvas_w - width))
    positions: list[Box] = []
    for preferred_top in (box[1] - height, box[1], box[3] - height, box[3]):
        top = max(0, min(preferred_top, canvas_h - height))
        positions.append((left, top, left + width - 1, top + height - 1))
    return positions


def _height(pen: Pen) -> int:
    return round(pen.font_px * 1.4)


def _slices(box: Box) -> tuple[slice, slice]:
    return slice(max(box[1], 0), box[3] + 1), slice(max(box[0], 0), box[2] + 1)

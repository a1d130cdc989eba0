"""Predictions drawn on their image, for people to look at."""

import colorsys
import hashlib
import math
from collections.abc import Sequence

import cv2
import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.tasks.image import Image, Pixels
from quadriga.tasks.overlays import Box, Color, outline, overlay_of, tint
from quadriga.tasks.predictions import (
    Answer,
    Classification,
    Detection,
    OrientedDetection,
    Prediction,
    Segment,
)
from quadriga.tasks.rotated import xywhr_to_corners

_MIN_WIDTH_PX = 320
_MAX_ENLARGED_HEIGHT_PX = 2000
_SHADES = ((0.55, 1.0), (0.42, 0.75), (0.74, 0.85))
"""Lightness and saturation of HLS: three shades tell labels apart whose hues lie close."""
_GOLDEN_RATIO = (5**0.5 - 1) / 2
"""Steps of it around a circle never come close to where one was before."""
_PAPER, _TROUGH = (24, 26, 30), (52, 56, 64)
_INK, _FAINT = (244, 244, 244), (150, 150, 155)
_MAX_CAPTIONS = 10
_MAX_ANSWER_ROWS = 24
_WEIGHT = 500
"""Of the font, 400 being regular."""

_Tagged = Detection | OrientedDetection | Segment

Corners = npt.NDArray[np.float64]
"""float64 (4, 2), x and y, pixels of the canvas."""


class _Pen(msgspec.Struct, frozen=True, eq=False):
    """Writes and draws on an array in place, in a size that suits it.

    OpenCV's built-in font holds Latin, Greek, Cyrillic and Chinese.
    """

    canvas: Pixels
    face: cv2.FontFace
    labels: Sequence[str]
    font_px: int
    line_px: int

    def color(self, label: str) -> Color:
        return label_color(label, self.labels)

    def width_of(self, text: str) -> int:
        rectangle = cv2.getTextSize((1, 1), text, (0, 0), self.face, self.font_px, _WEIGHT)
        return int(rectangle[2])

    def write(self, text: str, left: float, middle: float, color: Color) -> None:
        """Write from `left`, the capitals centred on the row `middle`."""
        origin = round(left), round(middle + 0.36 * self.font_px)
        cv2.putText(self.canvas, text, origin, color, self.face, self.font_px, _WEIGHT)

    def fill(self, box: Box, color: Color) -> None:
        cv2.rectangle(self.canvas, box[:2], box[2:], color, cv2.FILLED)

    def frame(self, box: Box, color: Color) -> None:
        """Draw the edge of a box inside of it, with a dark rim that shows on ground of its colour."""
        for inset in range(-1, self.line_px + 1):
            rim = inset in {-1, self.line_px}
            low, high = (box[0] + inset, box[1] + inset), (box[2] - inset, box[3] - inset)
            if inset <= 0 or (low[0] < high[0] and low[1] < high[1]):
                cv2.rectangle(self.canvas, low, high, (0, 0, 0) if rim else color)

    def outline(self, corners: Corners, color: Color) -> None:
        """Draw the edge of a polygon, with a dark rim, and a dot where its first side starts."""
        points = [np.round(np.clip(corners, -1e6, 1e6)).astype(np.int32)]
        cv2.polylines(self.canvas, points, True, (0, 0, 0), self.line_px + 2, cv2.LINE_AA)
        cv2.polylines(self.canvas, points, True, color, self.line_px, cv2.LINE_AA)
        cv2.circle(self.canvas, points[0][0].tolist(), self.line_px * 2, color, cv2.FILLED)

    def shorten(self, text: str, width_px: float) -> str:
        """Cut the middle out of a text that is too wide; its end may be a score."""
        text = " ".join(text.split())
        while self.width_of(text) > width_px and len(text) > 9:
            keep = max(8, int(len(text) * 0.9) - 1)
            text = text[: keep - 6].rstrip("… ") + "…" + text[-5:]
        return text

    def wrap(self, text: str, width_px: float, max_rows: int) -> list[str]:
        """Break a text into rows, at spaces where it has any; the last of too many ends as the text does."""
        rows: list[str] = []
        words = text.split()
        while words and len(rows) < max_rows:
            length = len(words[0])
            while length > 1 and self.width_of(words[0][:length]) > width_px:
                length = min(length - 1, int(length * 0.9) + 1)
            if length < len(words[0]):
                words[:1] = words[0][:length], words[0][length:]
            fitting = 1
            while (
                fitting < len(words) and self.width_of(" ".join(words[: fitting + 1])) <= width_px
            ):
                fitting += 1
            if len(rows) == max_rows - 1:
                fitting = len(words)  # what is too much is cut out of the middle
            rows.append(self.shorten(" ".join(words[:fitting]), width_px))
            words = words[fitting:]
        return rows or [""]


def draw(image: Image, predictions: Sequence[Prediction], labels: Sequence[str] = ()) -> Pixels:
    """Draw predictions, by descending score, on a copy of their image: uint8 (H, W, 3), RGB.

    Images narrower than 320 px are enlarged first. Boxes and segments carry their label and score, the
    best drawn last, rotated boxes with a dot at the corner where their width starts; classifications and
    answers stand in a strip below the image, at most ten. `labels` are all those of the model.
    """
    scale = max(1.0, min(_MIN_WIDTH_PX / image.width, _MAX_ENLARGED_HEIGHT_PX / image.height))
    size_wh = round(image.width * scale), round(image.height * scale)
    canvas = image.rgb()
    if scale > 1:
        canvas = cv2.resize(canvas, size_wh, interpolation=cv2.INTER_CUBIC).astype(np.uint8)
    detections = [item for item in predictions if isinstance(item, Detection | OrientedDetection)]
    captions = [item for item in predictions if isinstance(item, Classification)]
    # by its longer side, a panorama's text would fill its height
    side = math.sqrt(size_wh[0] * size_wh[1])
    font_px, line_px = max(13, round(side / 48)), max(2, round(side / 345))
    pen = _Pen(canvas, cv2.FontFace("sans"), labels, font_px, line_px)
    boxes = _draw_segments(pen, predictions, (image.width, image.height), scale)
    boxes += _draw_detections(pen, detections, image, scale)
    _draw_tags(pen, boxes)
    if captions:
        canvas = np.concatenate([canvas, _captions(pen, captions[:_MAX_CAPTIONS])])
    answers = [item for item in predictions if isinstance(item, Answer)]
    if answers:
        canvas = np.concatenate([canvas, _answers(pen, answers[:_MAX_CAPTIONS])])
    return canvas


def label_color(label: str, labels: Sequence[str] = ()) -> Color:
    """Choose the colour of a label: red, green, blue; the same in every image and every process.

    All `labels` of the model get colours that lie far apart; another may by chance be near to one.
    """
    if label in labels:
        index = labels.index(label)
        hue, shade = index * _GOLDEN_RATIO % 1, index // 8
    else:
        digest = hashlib.sha256(label.encode()).digest()
        hue, shade = int.from_bytes(digest[2:4], "big") / 65536, digest[1]
    lightness, saturation = _SHADES[shade % len(_SHADES)]
    red, green, blue = colorsys.hls_to_rgb(hue, lightness, saturation)
    return round(red * 255), round(green * 255), round(blue * 255)


def _ink_on(color: Color) -> Color:
    """Black or white, whichever stands out; Source: ITU-R BT.601 luma."""
    red, green, blue = color
    return (0, 0, 0) if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else (255, 255, 255)


def _draw_detections(
    pen: _Pen, detections: Sequence[Detection | OrientedDetection], image: Image, scale: float
) -> list[tuple[_Tagged, Box]]:
    """Draw boxes, the best last; give for the tag of each its frame, of rotated ones from their top."""
    anchors: list[tuple[_Tagged, Box]] = []
    for item in reversed(detections):
        corners = _corners(item, image) * scale
        box = _frame(corners, pen.canvas)
        if isinstance(item, OrientedDetection):
            pen.outline(corners, pen.color(item.label))
            box = _from_top(pen, corners, box, _tag_px(pen, item))
        else:
            pen.frame(box, pen.color(item.label))
        anchors.append((item, box))
    return anchors[::-1]


def _draw_segments(
    pen: _Pen, predictions: Sequence[Prediction], image_wh: tuple[int, int], scale: float
) -> list[tuple[_Tagged, Box]]:
    """Fill all segments before any is outlined; give a box for the tag of each, from its topmost point."""
    overlays = [
        (item, overlay)
        for item in predictions
        if isinstance(item, Segment) and (overlay := overlay_of(item, image_wh, scale)) is not None
    ]
    for item, overlay in reversed(overlays):
        tint(pen.canvas, overlay, pen.color(item.label))
    for item, overlay in reversed(overlays):
        outline(pen.canvas, overlay, pen.color(item.label), pen.line_px)
    tops = [int(overlay.mask[0].argmax()) for _, overlay in overlays]
    return [
        (item, (overlay.box[0] + top, *overlay.box[1:]))
        for (item, overlay), top in zip(overlays, tops, strict=True)
    ]


def _draw_tags(pen: _Pen, boxes: Sequence[tuple[_Tagged, Box]]) -> None:
    taken: list[Box] = []
    for item, box in boxes:
        text = _tag_text(pen, item)
        tag = _place_tag(pen, _tag_px(pen, item), box, taken)
        taken.append(tag)
        color = pen.color(item.label)
        pen.fill(tag, color)
        pen.write(text, tag[0] + pen.font_px * 0.35, (tag[1] + tag[3]) / 2, _ink_on(color))


def _tag_text(pen: _Pen, item: _Tagged) -> str:
    return pen.shorten(f"{item.label} {item.score:.2f}", pen.canvas.shape[1] - pen.font_px)


def _tag_px(pen: _Pen, item: _Tagged) -> int:
    return pen.width_of(_tag_text(pen, item)) + round(pen.font_px * 0.7)


def _corners(item: Detection | OrientedDetection, image: Image) -> Corners:
    if isinstance(item, OrientedDetection):
        fractions = np.array([[item.cx, item.cy, item.w, item.h, item.r]])
        sides = image.width, image.height
        corners: Corners = xywhr_to_corners(fractions * (*sides, *sides, 1))[0]
        return corners
    low, high = (item.xmin, item.ymin), (item.xmax, item.ymax)
    return np.array([low, (high[0], low[1]), high, (low[0], high[1])])


def _frame(corners: Corners, canvas: Pixels) -> Box:
    """Upright frame of a box on the canvas, never inside out."""
    edge = np.array([canvas.shape[1] - 1, canvas.shape[0] - 1])
    left, top = (int(v) for v in np.round(np.clip(corners.min(axis=0), 0, edge)))
    right, bottom = (int(v) for v in np.round(corners.max(axis=0)) - 1)
    return left, top, max(left, min(right, int(edge[0]))), max(top, min(bottom, int(edge[1])))


def _from_top(pen: _Pen, corners: Corners, frame: Box, tag_px: int) -> Box:
    """Begin the frame of a rotated box where a tag touches the topmost corner, but for its dot."""
    rim = 2 * pen.line_px
    corner = round(float(corners[corners[:, 1].argmin(), 0]))
    left = corner - rim if 2 * corner < frame[0] + frame[2] else corner + rim - tag_px
    return min(max(left, 0), frame[2]), max(frame[1] - rim, 0), frame[2], frame[3]


def _place_tag(pen: _Pen, width: int, box: Box, taken: Sequence[Box]) -> Box:
    """Find a free place for a tag: above the box, else at its top inside, its bottom, or below."""
    canvas_h, canvas_w = pen.canvas.shape[:2]
    height = round(pen.font_px * 1.4)
    left = max(0, min(box[0], canvas_w - width))
    places: list[Box] = []
    for wanted in (box[1] - height, box[1], box[3] - height, box[3]):
        top = max(0, min(wanted, canvas_h - height))
        places.append((left, top, left + width - 1, top + height - 1))
    free = (place for place in places if not any(_meet(place, other) for other in taken))
    return next(free, places[0])


def _meet(first: Box, second: Box) -> bool:
    return all(first[i] <= second[i + 2] and second[i] <= first[i + 2] for i in (0, 1))


def _captions(pen: _Pen, items: Sequence[Classification]) -> Pixels:
    """Make a strip of rows: the label, a bar for its score, the number."""
    width = pen.canvas.shape[1]
    row, margin = round(pen.font_px * 1.9), round(pen.font_px * 0.7)
    strip = np.full((row * len(items) + 2 * margin, width, 3), _PAPER, np.uint8)
    pen = msgspec.structs.replace(pen, canvas=strip)
    number_left = width - margin - pen.width_of("0.000")
    bar_left, bar_right = round(width * 0.55), number_left - margin
    for index, item in enumerate(items):
        middle = margin + row * index + row // 2
        pen.write(pen.shorten(item.label, bar_left - 2 * margin), margin, middle, _INK)
        top, bottom = middle - row // 5, middle + row // 5
        pen.fill((bar_left, top, bar_right, bottom), _TROUGH)
        filled = round((bar_right - bar_left) * min(max(item.score, 0), 1))
        if filled:
            pen.fill((bar_left, top, bar_left + filled, bottom), pen.color(item.label))
        pen.write(f"{item.score:.3f}", number_left, middle, _INK)
    return strip


def _answers(pen: _Pen, items: Sequence[Answer]) -> Pixels:
    """Make a strip of rows: each prompt, and its answer under it, both whole where there is room."""
    width = pen.canvas.shape[1]
    row, gap, margin = (round(pen.font_px * share) for share in (1.5, 0.5, 0.7))
    written: list[tuple[str, int, Color]] = []
    middle = margin + row // 2
    for item in items:
        texts = [(item.prompt, _FAINT)] if item.prompt.strip() else []
        for text, color in (*texts, (item.answer, _INK)):
            for line in pen.wrap(text, width - 2 * margin, _MAX_ANSWER_ROWS):
                written.append((line, middle, color))
                middle += row
        middle += gap
    strip = np.full((middle - gap - row // 2 + margin, width, 3), _PAPER, np.uint8)
    pen = msgspec.structs.replace(pen, canvas=strip)
    for line, middle, color in written:
        pen.write(line, margin, middle, color)
    return strip

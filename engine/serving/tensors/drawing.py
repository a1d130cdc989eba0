"""Predictions drawn on their image, for people to look at."""

import colorsys
import hashlib
import math
from collections import Counter
from collections.abc import Sequence

import cv2
import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.tasks.geometry import (
    Mask,
    Ring,
    fill,
    relative_to_pixels,
    rings,
    to_rings,
    xywhr_to_corners,
)
from quadriga.tasks.image import Image, Pixels
from quadriga.tasks.predictions import (
    Answer,
    Classification,
    Detection,
    OrientedDetection,
    Prediction,
    Segment,
)

Tagged = Detection | OrientedDetection | Segment


_CROWD = 0.12
"""Share of the picture that tags may cover before they are a crowd."""


_SMALL = 8
"""Area of an object over that of a tag below which a tag would hide what is in it."""


_LETTER = 0.6
"""Width of a letter over the height of the font, on average."""


_MAX_LEGEND_LABELS = 40


Color = tuple[int, int, int]


Box = tuple[int, int, int, int]
"""Left, top, right, bottom, whole pixels of the canvas, all included."""


Corners = npt.NDArray[np.float64]
"""float64 (4, 2), x and y, pixels of the canvas."""


class Pen(msgspec.Struct, frozen=True, eq=False):
    """Writes and draws on an array in place, in sizes that suit it.

    OpenCV's built-in font holds Latin, Greek, Cyrillic and Chinese.
    """

    canvas: Pixels
    face: cv2.FontFace
    labels: Sequence[str]
    font_px: int
    line_px: int

    def color(self, label: str) -> Color:
        """Return the colour of a label."""
        return label_color(label, self.labels)

    def width_of(self, text: str) -> int:
        """Measure the width of a text, pixels."""
        rectangle = cv2.getTextSize((1, 1), text, (0, 0), self.face, self.font_px, _WEIGHT)
        return int(rectangle[2])

    def write(self, text: str, left: float, middle: float, color: Color) -> None:
        """Write text from `left`, its capitals centred on the row `middle`."""
        origin = round(left), round(middle + 0.36 * self.font_px)
        cv2.putText(self.canvas, text, origin, color, self.face, self.font_px, _WEIGHT)

    def fill(self, box: Box, color: Color) -> None:
        """Fill a box."""
        cv2.rectangle(self.canvas, box[:2], box[2:], color=color, thickness=cv2.FILLED)

    def frame(self, box: Box, color: Color) -> None:
        """Draw the edge of a box inside of it, with a dark rim that shows on a background of its colour."""
        for inset in range(-1, self.line_px + 1):
            rim = inset in {-1, self.line_px}
            low, high = (box[0] + inset, box[1] + inset), (box[2] - inset, box[3] - inset)
            if inset <= 0 or (low[0] < high[0] and low[1] < high[1]):
                cv2.rectangle(self.canvas, low, high, color=(0, 0, 0) if rim else color)

    def outline(self, corners: Corners, color: Color) -> None:
        """Draw the edge of a polygon, with a dark rim, and a dot where its first side starts."""
        points = np.round(np.clip(corners, -1e6, 1e6)).astype(np.int32)
        self.trace([points], color)
        start = points[0].tolist()
        cv2.circle(self.canvas, start, self.line_px * 2, color=color, thickness=cv2.FILLED)

    def trace(self, lines: Sequence[Ring], color: Color) -> None:
        """Draw closed lines over a dark rim that shows on a background of the same colour."""
        for ink, line_px in (((0, 0, 0), self.line_px + 2), (color, self.line_px)):
            cv2.polylines(
                self.canvas,
                lines,
                isClosed=True,
                color=ink,
                thickness=line_px,
                lineType=cv2.LINE_AA,
            )

    def shorten(self, text: str, width_px: float) -> str:
        """Cut the middle out of a text that is too wide; its end, maybe a score, stays."""
        text = " ".join(text.split())
        while self.width_of(text) > width_px and len(text) > 9:
            keep = max(8, int(len(text) * 0.9) - 1)
            text = text[: keep - 6].rstrip("… ") + "…" + text[-5:]
        return text

    def wrap(self, text: str, width_px: float, max_rows: int) -> list[str]:
        """Break a text into rows, at spaces if it has any; the last of too many rows is shortened in the middle."""
        rows: list[str] = []
        words = text.split()
        while words and len(rows) < max_rows:
            words[:1] = self._break_word(words[0], width_px)
            fitting = 1
            while (
                fitting < len(words) and self.width_of(" ".join(words[: fitting + 1])) <= width_px
            ):
                fitting += 1
            if len(rows) == max_rows - 1:  # all remaining words, and `shorten` cuts their middle
                fitting = len(words)
            rows.append(self.shorten(" ".join(words[:fitting]), width_px))
            words = words[fitting:]
        return rows or [""]

    def _break_word(self, word: str, width_px: float) -> list[str]:
        """Cut the beginning that fits off a word that is too wide."""
        length = len(word)
        while length > 1 and self.width_of(word[:length]) > width_px:
            length = min(length - 1, int(length * 0.9) + 1)
        return [word[:length], word[length:]] if length < len(word) else [word]


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


_MIN_WIDTH_PX = 320


_MAX_ENLARGED_HEIGHT_PX = 2000


_TROUGH, _FAINT = (52, 56, 64), (150, 150, 155)


_MAX_CAPTIONS = 10


_MAX_ANSWER_ROWS = 24


def draw(image: Image, predictions: Sequence[Prediction], labels: Sequence[str] = ()) -> Pixels:
    """Draw predictions, by descending score, on a copy of their image: uint8 (H, W, 3), RGB.

    Images narrower than 320 px are enlarged first. Boxes and segments have tags with label and score, and the
    best is drawn last; where tags would hide the picture, only those are drawn that hide nothing, and a strip below
    has the labels. A rotated box has a dot at the corner where its width starts. At most ten
    classifications or answers stand in a strip below the image. `labels` are all labels of the model.
    """
    scale = max(1.0, min(_MIN_WIDTH_PX / image.width, _MAX_ENLARGED_HEIGHT_PX / image.height))
    size_wh = round(image.width * scale), round(image.height * scale)
    canvas = image.rgb()
    if scale > 1:
        canvas = cv2.resize(canvas, size_wh, interpolation=cv2.INTER_CUBIC).astype(np.uint8)
    detections = [
        prediction
        for prediction in predictions
        if isinstance(prediction, Detection | OrientedDetection)
    ]
    captions = [prediction for prediction in predictions if isinstance(prediction, Classification)]
    # the geometric mean of the sides: by the longer one, text would fill the height of a panorama
    side = math.sqrt(size_wh[0] * size_wh[1])
    font_px, line_px = max(13, round(side / 48)), max(2, round(side / 345))
    pen = Pen(canvas, cv2.FontFace("sans"), labels, font_px=font_px, line_px=line_px)
    tagged = [p for p in predictions if isinstance(p, Tagged)]
    crowded = is_crowd(pen, tagged)
    if crowded:
        pen = msgspec.structs.replace(pen, line_px=max(1, line_px // 2))
    boxes = _draw_segments(pen, predictions, (image.width, image.height), scale)
    boxes += _draw_detections(pen, detections, image, scale)
    if draw_tags(pen, boxes, crowded=crowded):
        canvas = np.concatenate([canvas, legend(pen, tagged)])
    if captions:
        canvas = np.concatenate([canvas, _captions(pen, captions[:_MAX_CAPTIONS])])
    answers = [prediction for prediction in predictions if isinstance(prediction, Answer)]
    if answers:
        canvas = np.concatenate([canvas, _answers(pen, answers[:_MAX_CAPTIONS])])
    return canvas


def _draw_detections(
    pen: Pen, detections: Sequence[Detection | OrientedDetection], image: Image, scale: float
) -> list[tuple[Tagged, Box]]:
    """Draw boxes, the best last; return for each tag the frame of its box, from the top of a rotated one."""
    anchors: list[tuple[Tagged, Box]] = []
    for detection in reversed(detections):
        corners = _corners(detection, image) * scale
        box = _frame(corners, pen.canvas)
        if isinstance(detection, OrientedDetection):
            pen.outline(corners, pen.color(detection.label))
            box = _from_top(pen, corners, box, tag_px(pen, detection))
        else:
            pen.frame(box, pen.color(detection.label))
        anchors.append((detection, box))
    return anchors[::-1]


def _draw_segments(
    pen: Pen, predictions: Sequence[Prediction], image_wh: tuple[int, int], scale: float
) -> list[tuple[Tagged, Box]]:
    """Fill all segments, then outline them; return a box for the tag of each, from its topmost point."""
    overlays = [
        (segment, overlay)
        for segment in predictions
        if isinstance(segment, Segment)
        and (overlay := overlay_of(segment, image_wh, scale)) is not None
    ]
    for segment, overlay in reversed(overlays):
        tint(pen.canvas, overlay, pen.color(segment.label))
    for segment, overlay in reversed(overlays):
        pen.trace(rings(overlay.mask, *overlay.box[:2]), pen.color(segment.label))
    tops = [int(overlay.mask[0].argmax()) for _, overlay in overlays]
    return [
        (segment, (overlay.box[0] + top, *overlay.box[1:]))
        for (segment, overlay), top in zip(overlays, tops, strict=True)
    ]


def _corners(detection: Detection | OrientedDetection, image: Image) -> Corners:
    if isinstance(detection, OrientedDetection):
        fractions = np.array([[detection.cx, detection.cy, detection.w, detection.h, detection.r]])
        boxes = relative_to_pixels(fractions, np.array([(image.width, image.height)], np.float64))
        corners: Corners = xywhr_to_corners(boxes)[0]
        return corners
    low, high = (detection.xmin, detection.ymin), (detection.xmax, detection.ymax)
    return np.array([low, (high[0], low[1]), high, (low[0], high[1])])


def _frame(corners: Corners, canvas: Pixels) -> Box:
    """Return the upright frame of a box, clipped to the canvas, of at least one pixel."""
    edge = np.array([canvas.shape[1] - 1, canvas.shape[0] - 1])
    left, top = (int(v) for v in np.round(np.clip(corners.min(axis=0), 0, edge)))
    right, bottom = (int(v) for v in np.round(corners.max(axis=0)) - 1)
    return left, top, max(left, min(right, int(edge[0]))), max(top, min(bottom, int(edge[1])))


def _from_top(pen: Pen, corners: Corners, frame: Box, tag_px: int) -> Box:
    """Move the left edge of a frame so that a tag touches the topmost corner, beside its dot."""
    rim = 2 * pen.line_px
    corner = round(float(corners[corners[:, 1].argmin(), 0]))
    left = corner - rim if 2 * corner < frame[0] + frame[2] else corner + rim - tag_px
    return min(max(left, 0), frame[2]), max(frame[1] - rim, 0), frame[2], frame[3]


def _captions(pen: Pen, classifications: Sequence[Classification]) -> Pixels:
    """Return a strip with a row for each classification: label, bar, score."""
    width = pen.canvas.shape[1]
    row, margin = round(pen.font_px * 1.9), round(pen.font_px * 0.7)
    strip = np.full((row * len(classifications) + 2 * margin, width, 3), PAPER, np.uint8)
    pen = msgspec.structs.replace(pen, canvas=strip)
    number_left = width - margin - pen.width_of("0.000")
    bar_left, bar_right = round(width * 0.55), number_left - margin
    for index, classification in enumerate(classifications):
        middle = margin + row * index + row // 2
        pen.write(pen.shorten(classification.label, bar_left - 2 * margin), margin, middle, INK)
        top, bottom = middle - row // 5, middle + row // 5
        pen.fill((bar_left, top, bar_right, bottom), _TROUGH)
        filled = round((bar_right - bar_left) * min(max(classification.score, 0), 1))
        if filled:
            pen.fill((bar_left, top, bar_left + filled, bottom), pen.color(classification.label))
        pen.write(f"{classification.score:.3f}", number_left, middle, INK)
    return strip


def _answers(pen: Pen, answers: Sequence[Answer]) -> Pixels:
    """Return a strip with each prompt and its answer below it, in full if there is room."""
    width = pen.canvas.shape[1]
    row, gap, margin = (round(pen.font_px * share) for share in (1.5, 0.5, 0.7))
    lines: list[tuple[str, int, Color]] = []
    middle = margin + row // 2
    for answer in answers:
        texts = [(answer.prompt, _FAINT)] if answer.prompt.strip() else []
        for text, color in (*texts, (answer.answer, INK)):
            for line in pen.wrap(text, width - 2 * margin, _MAX_ANSWER_ROWS):
                lines.append((line, middle, color))
                middle += row
        middle += gap
    strip = np.full((middle - gap - row // 2 + margin, width, 3), PAPER, np.uint8)
    pen = msgspec.structs.replace(pen, canvas=strip)
    for line, middle, color in lines:
        pen.write(line, margin, middle, color)
    return strip


_FILL = 0.38
"""Share of the colour in the fill; the image below stays visible."""


class Overlay(msgspec.Struct, frozen=True, eq=False):
    """A segment at the scale of the canvas."""

    mask: Mask
    """uint8 (H, W), the size of the box."""
    box: Box


def overlay_of(segment: Segment, image_wh: tuple[int, int], scale: float) -> Overlay | None:
    """Prepare a segment for a canvas, enlarged by `scale`; None if the segment lies outside of the image."""
    outlines = to_rings(segment.contour)
    if not outlines:
        return None
    points = np.concatenate(outlines)
    low = np.maximum(points.min(axis=0), 0)
    high = np.minimum(points.max(axis=0) + 1, image_wh)
    if (low >= high).any():
        return None
    width, height = (high - low).tolist()
    mask = fill([ring - low.astype(np.int32) for ring in outlines], width, height)
    left, top, right, bottom = (round(edge * scale) for edge in [*low.tolist(), *high.tolist()])
    if scale != 1:
        # nearest: enlarged pixels stay squares
        size_wh = right - left, bottom - top
        mask = cv2.resize(mask, size_wh, interpolation=cv2.INTER_NEAREST).astype(np.uint8)
    return Overlay(mask, (left, top, right - 1, bottom - 1))


def tint(canvas: Pixels, overlay: Overlay, color: Color) -> None:
    """Mix a colour into the pixels of the segment, in place."""
    left, top, right, bottom = overlay.box
    crop = canvas[top : bottom + 1, left : right + 1]
    inside = overlay.mask > 0
    below = crop[inside].astype(np.float32)
    crop[inside] = np.rint(below * (1 - _FILL) + np.multiply(color, _FILL)).astype(np.uint8)


PAPER, INK = (24, 26, 30), (244, 244, 244)
"""Ground of the strips below a picture, and their text."""


_SHADES = ((0.55, 1.0), (0.42, 0.75), (0.74, 0.85))
"""Lightness and saturation (HLS) of three shades, which separate labels whose hues are close."""


_GOLDEN_RATIO = (5**0.5 - 1) / 2
"""Step between hues, as a share of the circle: no two of the first labels come close."""


_WEIGHT = 500
"""Weight of the font; 400 is regular."""


def label_color(label: str, labels: Sequence[str] = ()) -> Color:
    """Return the colour of a label: red, green, blue; the same in every image and every process.

    All `labels` of the model get colours that lie far apart; an unlisted label may get a similar one by chance.
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


def ink_on(color: Color) -> Color:
    """Return black or white, whichever stands out. Source: ITU-R BT.601 luma."""
    red, green, blue = color
    return (0, 0, 0) if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else (255, 255, 255)

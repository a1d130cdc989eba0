"""A pen that writes and draws on a picture, and the colours of labels."""

import colorsys
import hashlib
from collections.abc import Sequence

import cv2
import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.tasks.image import Pixels
from quadriga.tasks.overlays import Box, Color

PAPER, INK = (24, 26, 30), (244, 244, 244)
"""Ground of the strips below a picture, and their text."""
_SHADES = ((0.55, 1.0), (0.42, 0.75), (0.74, 0.85))
"""Lightness and saturation (HLS) of three shades, which separate labels whose hues are close."""
_GOLDEN_RATIO = (5**0.5 - 1) / 2
"""Step between hues, as a share of the circle: no two of the first labels come close."""
_WEIGHT = 500
"""Weight of the font; 400 is regular."""

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
        points = [np.round(np.clip(corners, -1e6, 1e6)).astype(np.int32)]
        for ink, line_px in (((0, 0, 0), self.line_px + 2), (color, self.line_px)):
            cv2.polylines(
                self.canvas,
                points,
                isClosed=True,
                color=ink,
                thickness=line_px,
                lineType=cv2.LINE_AA,
            )
        start = points[0][0].tolist()
        cv2.circle(self.canvas, start, self.line_px * 2, color=color, thickness=cv2.FILLED)

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

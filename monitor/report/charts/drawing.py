"""Drawing of the pictures of a report: axes that turn numbers into shapes of an SVG.

The shapes have classes of the page around them, so the same picture is readable on light, dark and printed paper. Sizes are in
points of 1/72 inch.
"""

import math
from collections.abc import Iterable, Sequence

import msgspec
from markupsafe import Markup

WIDE, NARROW = 532.8, 302.4
"""Widths: of a picture across the page, and of one of two in a row."""
LETTER = 4.9
"""About the width of a letter."""
LINE = 12.0
"""Height of a line of text."""
BELOW = 33.0
"""Space below axes for their ticks and their name."""
MARGIN = 10.0
"""Space right of axes, into which the last tick reaches."""
Ticks = Sequence[tuple[float, str]]
UNIT: Ticks = [(at / 5, f"{at / 5:.1f}") for at in range(6)]
"""Ticks from 0 to 1."""
MAX_LETTERS = 24
"""Maximum number of letters of a name in a chart."""


class Chart(msgspec.Struct, frozen=True):
    """A chart of a report."""

    title: str
    caption: str
    svg: Markup


class Axes:
    """A pair of axes within a picture.

    Args:
        frame: Left, upper, right and lower side in the picture.
        x: Numbers at the left and the right side.
        y: Numbers at the lower and the upper side.
    """

    def __init__(
        self,
        frame: tuple[float, float, float, float],
        x: tuple[float, float],
        y: tuple[float, float],
    ) -> None:
        self.left, self.top, self.right, self.bottom = frame
        self._x, self._y = x, y
        self.parts: list[Markup] = []

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Return the place of two numbers in the picture."""
        across = (x - self._x[0]) / (self._x[1] - self._x[0])
        up = (y - self._y[0]) / (self._y[1] - self._y[0])
        return (
            self.left + across * (self.right - self.left),
            self.bottom - up * (self.bottom - self.top),
        )

    def line(self, style: str, points: Iterable[tuple[float, float]]) -> None:
        """Draw a line through some points, with a gap where one is not a number."""
        path, command = "", "M"
        for point in points:
            if any(map(math.isnan, point)):
                command = "M"
                continue
            path += "{} {:.1f} {:.1f} ".format(command, *self.place(*point))
            command = "L"
        self.parts.append(shape("{}", style, path.rstrip()))

    def box(self, style: str, x: tuple[float, float], y: tuple[float, float]) -> None:
        """Draw a rectangle between two corners."""
        left, top = self.place(x[0], y[1])
        right, bottom = self.place(x[1], y[0])
        path = "M {:.1f} {:.1f} H {:.1f} V {:.1f} H {:.1f} Z"
        self.parts.append(shape(path, style, left, top, right, bottom, left))

    def dot(self, style: str, x: float, y: float, radius: float = 2.5) -> None:
        """Draw a circle."""
        circle = Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="{}"/>')
        self.parts.append(circle.format(style, *self.place(x, y), radius))

    def diamond(self, style: str, x: float, y: float, radius: float = 3.5) -> None:
        """Draw a square that stands on a corner."""
        left, middle = self.place(x, y)
        path = "M {0:.1f} {1:.1f} l {2} {2} l {2} -{2} l -{2} -{2} Z"
        self.parts.append(shape(path, style, left - radius, middle, radius))

    def name_x(self, ticks: Ticks, name: str = "", *, has_grid: bool = False) -> None:
        """Draw the lower axis with its ticks and its name."""
        self.parts.append(shape("M {:.1f} {:.1f} H {:.1f}", "thin", self.left, self.bottom, self.right))  # fmt: skip
        up = self.top - self.bottom if has_grid else 3
        for tick, words in ticks:
            x, _ = self.place(tick, 0)
            self.parts.append(shape("M {:.1f} {:.1f} v {:.1f}", "thin", x, self.bottom, up))
            x = min(x, self.right + MARGIN - LETTER * len(words) / 2)  # or its end would be cut
            self.parts += [text(x, self.bottom + 13, words)] if words else []
        if name:
            self.parts.append(text((self.left + self.right) / 2, self.bottom + 27, name))

    def name_y(self, ticks: Ticks, name: str = "", *, has_grid: bool = False) -> None:
        """Draw the left axis with its ticks and its name."""
        self.parts.append(shape("M {:.1f} {:.1f} V {:.1f}", "thin", self.left, self.top, self.bottom))  # fmt: skip
        for tick, words in ticks:
            _, y = self.place(0, tick)
            if has_grid:
                self.parts.append(shape("M {:.1f} {:.1f} H {:.1f}", "thin", self.left, y, self.right))  # fmt: skip
            self.parts.append(text(self.left - 4, y + 3, words, "end"))
        if name:
            self.parts.append(text(MARGIN, (self.top + self.bottom) / 2, name, is_upright=True))

    def name_rows(self, names: Sequence[str]) -> None:
        """Write the names of the rows, whose middles are the whole numbers."""
        for row, name in enumerate(names):
            self.parts.append(text(self.left - 5, self.place(0, row)[1] + 3, name, "end"))

    def key(self, entries: Iterable[tuple[str, str]], y: float) -> None:
        """Explain styles of shapes in a row above the axes: their names, and what they stand for."""
        x = self.left
        for style, words in entries:
            self.parts.append(shape("M {:.1f} {:.1f} h 9 v 7 h -9 Z", style, x, y - 7))
            self.parts.append(text(x + 12, y, words, "start"))
            x += 22 + LETTER * len(words)


def row_axes(
    names: Sequence[str],
    x: tuple[float, float],
    *,
    left: float = 0.0,
    width: float = NARROW,
    row: float = 18.7,
    top: float = 6.0,
) -> Axes:
    """Return axes with a row for each name, from top to bottom, and the names left of them.

    Args:
        names: The names.
        x: Numbers at the left and the right side.
        left: Left side of the room for names and axes.
        width: Width of this room.
        row: Height of a row.
        top: Upper side of the axes.
    """
    room = left + 12 + LETTER * max(map(len, names))
    frame = room, top, left + width - MARGIN, top + row * len(names)
    axes = Axes(frame, x, (len(names) - 0.5, -0.5))
    axes.name_rows(names)
    return axes


def draw_chart(
    title: str, caption: str, axes: Sequence[Axes], size_wh: tuple[float, float] | None = None
) -> Chart:
    """Return the picture of some axes; by default one of two in a row, and so high that the last axes have room."""
    width, height = size_wh or (NARROW, axes[-1].bottom + BELOW)
    svg = Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {:.1f} {:.1f}" width="{:.0f}" height="{:.0f}"'
        ' class="chart" role="img" aria-label="{}. {}">{}</svg>'
    ).format(
        *(width, height, width * 4 / 3, height * 4 / 3, title, caption),
        Markup("").join(part for pair in axes for part in pair.parts),
    )
    return Chart(title, caption, svg)


def ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Return up to six round numbers between two others, and their texts."""
    span = high - low
    if not 1e-200 < span < 1e300 or span < 1e-12 * max(abs(low), abs(high)):
        return [(value, f"{value:g}") for value in (low, high)]
    step = 10.0 ** math.floor(math.log10(span / 5))
    step *= next(times for times in (1, 2, 5, 10) if span / (step * times) <= 5)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    digits = math.floor(math.log10(max(abs(low), abs(high)))) - math.floor(math.log10(step)) + 1
    return [(at * step, f"{at * step:.{max(digits, 6)}g}") for at in range(first, last + 1)]


def shape(path: str, style: str, *values: float | str, opacity: str = "") -> Markup:
    """Return a path with these values, in some classes."""
    more = Markup(' fill-opacity="{}"').format(opacity) if opacity else ""
    return Markup('<path d="{}" class="{}"{}/>').format(path.format(*values), style, more)


def text(
    x: float,
    y: float,
    words: str,
    anchor: str = "middle",
    *,
    style: str = "text",
    is_upright: bool = False,
) -> Markup:
    """Return a text at a place of the picture; an upright one is read from below."""
    place = "translate({:.1f} {:.1f}) rotate(-90)" if is_upright else "translate({:.1f} {:.1f})"
    return Markup('<text transform="{}" class="{}" text-anchor="{}">{}</text>').format(
        place.format(x, y), style, anchor, words
    )

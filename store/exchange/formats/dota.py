"""DOTA: `images/` and `labelTxt/`, where a line has four corners in pixels, a category and whether it is difficult.

Source: DOTA, "Annotation format" (https://captain-whu.github.io/DOTA/dataset.html).
"""

import math
import re
from urllib.parse import unquote

from quadriga.store.exchange.archives import Archive
from quadriga.store.exchange.formats.writing import Picture, check_any_written
from quadriga.tasks.predictions import shape_of_json

_SEPARATORS = re.compile(r"[\s%\x00-\x1f\x7f]")
_ESCAPED = re.compile("(?:%[0-9A-F]{2})+")


class DotaWriter:
    """Writes oriented boxes; a box is one without rotation, a contour the box around it."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    def add(self, picture: Picture) -> str:
        """Write the labels of a picture; see `FormatWriter.add`."""
        lines = []
        for label, item in picture.labelled():
            shape = shape_of_json(item)
            corners = None
            if shape.oriented_box is not None:
                corners = shape.oriented_corners(*picture.size_wh())
            elif (box := shape.upright_box(None, None)) is not None:
                xmin, ymin, xmax, ymax = box
                corners = [(xmin, ymin), (xmax, ymin), (xmax, ymax), (xmin, ymax)]
            if corners and all(math.isfinite(value) for corner in corners for value in corner):
                numbers = " ".join(repr(float(value)) for corner in corners for value in corner)
                lines.append(f"{numbers} {_escaped(label)} {int(item.get('difficult') is True)}\n")
        check_any_written(picture, len(lines))
        folder = f"{picture.split}/" if picture.split else ""
        self._archive.write_text(f"{folder}labelTxt/{picture.stem}.txt", "".join(lines))
        return f"{folder}images/{picture.name}"

    def finish(self) -> None:
        """Write nothing more: each line has its category."""


def _escaped(label: str) -> str:
    """Return a label as one word: spaces would end it."""
    return _SEPARATORS.sub(
        lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), label
    )


def unescaped(category: str) -> str:
    """Return the label of a category, with what was %-encoded decoded."""
    return _ESCAPED.sub(lambda match: unquote(match[0], errors="replace"), category)

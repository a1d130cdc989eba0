"""DOTA: `images/` and `labelTxt/`, where a line has four corners in pixels, a category and whether it is difficult.

Source: DOTA, "Annotation format" (https://captain-whu.github.io/DOTA/dataset.html).
"""

import math
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

from quadriga.store.exchange.archives import Archive
from quadriga.store.exchange.dataset_files import DatasetFiles
from quadriga.store.exchange.formats.reading import (
    AnnotatedImage,
    DatasetImages,
    box_around,
    read_text,
    split_of_name,
)
from quadriga.store.exchange.formats.writing import Picture, check_any_written
from quadriga.store.exchange.outlines import oriented_box
from quadriga.store.exchange.tool_datasets import ToolFormat
from quadriga.store.records.errors import QueryError
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


_FOLDERS = {"labelTxt", "labelTxt-v1.0", "labelTxt-v1.5", "labelTxt-v2.0"}
_HEADERS = ("imagesource", "gsd", "acquisition")


def is_dota(files: DatasetFiles) -> bool:
    """Check whether a dataset has DOTA's labels."""
    return any(map(_is_labels, files.names))


def read_dota(images: DatasetImages, task: str | None) -> Iterator[AnnotatedImage]:
    """Yield the images of a dataset with oriented boxes; or with boxes, if the task is detection.

    Raises:
        QueryError: A line is none; the message names it.
    """
    for name in filter(_is_labels, images.files.names):
        folders = PurePosixPath(name).parts[:-1]
        position = max(index for index, part in enumerate(folders) if part in _FOLDERS)
        image = images.of_labels(name, position)
        about = images.about(image)
        wanted = task or about.get("task")
        annotations = []
        size_wh = None
        for number, line in enumerate(read_text(images.files, name).splitlines(), 1):
            if not line.strip() or line.lower().startswith(_HEADERS):
                continue
            label, corners, is_difficult = _parse(line, f"{name}:{number}")
            item: dict[str, Any] = {"label": label}
            if wanted == "OBJECT_DETECTION":
                item |= box_around((_plain(x), _plain(y)) for x, y in corners)
            else:
                size_wh = size_wh or images.size_wh(image, name)
                item |= oriented_box(corners, *size_wh)
            annotations.append(item | ({"difficult": True} if is_difficult else {}))
        split = split_of_name(folders[position - 1] if position else None) or about.get("split")
        yield AnnotatedImage(
            place=name, path=image, annotations=annotations, split=split, about=about
        )


def _plain(value: float) -> float:
    return int(value) if value.is_integer() else value


def _is_labels(name: str) -> bool:
    path = PurePosixPath(name)
    return path.suffix == ".txt" and bool(_FOLDERS & {*path.parts[:-1]})


def _parse(line: str, place: str) -> tuple[str, list[tuple[float, float]], bool]:
    """Return the label, the corners in pixels and the difficulty of a line; its end may be missing, as in old files."""
    words = line.split()
    try:
        numbers = [float(word) for word in words[:8]]
    except ValueError:
        numbers = []
    if len(numbers) != 8 or len(words) < 9 or not all(map(math.isfinite, numbers)):
        raise QueryError(
            f"{place}: expected 8 numbers, a category and whether it is difficult, got {line[:80]!r}"
        )
    has_difficulty = len(words) > 9 and words[-1] in ("0", "1", "2")
    category = " ".join(words[8 : -1 if has_difficulty else None])
    corners = list(zip(numbers[::2], numbers[1::2], strict=True))
    return unescaped(category), corners, has_difficulty and words[-1] != "0"


DOTA = ToolFormat(writer=lambda archive, _: DotaWriter(archive), is_format=is_dota, read=read_dota)

"""Reads CVAT for images 1.1, an image at a time; entities and document types are refused, as they expand without bounds.

Source: CVAT, "CVAT for images" (XML annotation format, version 1.1); Python, "XML security".
"""

import math
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any, BinaryIO, NamedTuple, NoReturn
from xml.parsers import expat

import msgspec

from quadriga.store.exchange.dataset_files import MAX_LABEL_BYTES, DatasetFiles, nearest_to_root
from quadriga.store.exchange.formats.reading import (
    AnnotatedImage,
    DatasetImages,
    box_around,
    contour_of,
    oriented_if,
    split_of_name,
    turned_box,
)
from quadriga.store.exchange.outlines import unbridged
from quadriga.store.records.errors import QueryError

_CHUNK = 1 << 16
_MAX_PIECES = 64  # up to the root element
_PIECE = 64  # bytes; so few that no entity is expanded before the document type is seen
_OWN_NAME = "annotations.xml"
_SHAPES = {"box", "polygon", "tag"}
_UNREAD = {"mask", "polyline", "points", "ellipse", "cuboid", "skeleton"}


class _Image(NamedTuple):
    """An image whose element is being read."""

    values: dict[str, str]
    shapes: list[tuple[str, dict[str, str], dict[str, str]]]


class _Reader:
    """Collects images from the events of the parser."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._parser = expat.ParserCreate()
        self._parser.StartDoctypeDeclHandler = self._refuse_doctype
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._text
        self._image: _Image | None = None
        self._attribute: str | None = None
        self._pieces: list[str] = []
        self._since_event = 0
        self._depth = 0
        self.is_cvat = False  # as long as no root element says so
        self.complete: deque[_Image] = deque()

    def feed(self, chunk: bytes) -> None:
        """Parse a further part of the file; an empty one is its end."""
        self._since_event += len(chunk)
        if self._since_event > MAX_LABEL_BYTES:
            raise QueryError(f"{self._name}: expected elements of at most {MAX_LABEL_BYTES} bytes")
        try:
            self._parser.Parse(chunk, not chunk)
        except expat.ExpatError as error:
            raise QueryError(f"{self._name}: expected XML, got: {error}") from error

    def _refuse_doctype(self, *_: Any) -> NoReturn:
        raise QueryError(f"{self._name}: expected no document type, which CVAT does not write")

    def _start(self, tag: str, values: dict[str, str]) -> None:
        self._depth += 1
        if self._depth == 1 and tag != "annotations":
            raise QueryError(f"{self._name}: expected CVAT's <annotations>, got <{tag[:40]}>")
        self.is_cvat = True
        if tag == "track":
            raise QueryError(f"{self._name}: expected CVAT for images, got tracks of a video")
        if tag == "image" and self._depth == 2:
            self._image = _Image(values, [])
        elif self._image is not None and (tag in _SHAPES or tag in _UNREAD):
            self._image.shapes.append((tag, values, {}))
        elif tag == "attribute" and self._image is not None:
            self._attribute, self._pieces = values.get("name"), []
        self._since_event = 0 if self._image is None else self._since_event

    def _end(self, tag: str) -> None:
        self._depth -= 1
        if self._image is None:
            self._since_event = 0
        elif tag == "image":
            self.complete.append(self._image)
            self._image, self._since_event = None, 0
        elif tag == "attribute" and self._attribute is not None:
            if self._image.shapes:
                self._image.shapes[-1][2][self._attribute] = "".join(self._pieces)
            self._attribute = None

    def _text(self, text: str) -> None:
        if self._attribute is not None:
            self._pieces.append(text)


def cvat_files(files: DatasetFiles) -> list[str]:
    """Return the names of CVAT's files: `annotations.xml`, or one for each subset, as Datumaro writes it."""
    own = nearest_to_root(files, lambda name: name == _OWN_NAME)[:1]
    return own or [
        name
        for name in nearest_to_root(files, lambda name: name.lower().endswith(".xml"))
        if _is_cvat(files, name)
    ]


def _is_cvat(files: DatasetFiles, name: str) -> bool:
    """Check whether the root of a file is CVAT's `<annotations>`, after no document type; Pascal VOC's is `<annotation>`."""
    reader = _Reader(name)
    with files.open(name) as file, suppress(QueryError):  # what was read until then says it
        for _ in range(_MAX_PIECES):
            reader.feed(file.read(_PIECE))
            if reader.is_cvat:
                break
    return reader.is_cvat


def read_cvat(images: DatasetImages, task: str | None) -> Iterator[AnnotatedImage]:
    """Yield the images of a dataset.

    Raises:
        QueryError: A file is none of CVAT for images; the message names the image.
    """
    for name in cvat_files(images.files):
        path = PurePosixPath(name)
        folder = str(path.parent / "_")[:-1]
        subset = None if path.name == _OWN_NAME else split_of_name(path.stem)
        with images.files.open(name) as file:
            for image in read_cvat_file(file, name, images, task, folder=folder):
                yield msgspec.structs.replace(image, split=image.split or subset)


def read_cvat_file(
    file: BinaryIO, name: str, images: DatasetImages, task: str | None, *, folder: str = ""
) -> Iterator[AnnotatedImage]:
    """Yield the images of an open file; `folder` is where it lies, with a slash at its end."""
    reader = _Reader(name)
    while True:
        chunk = file.read(_CHUNK)
        reader.feed(chunk)
        while reader.complete:
            yield _annotated(reader.complete.popleft(), name, images, task, folder=folder)
        if not chunk:
            return


def _annotated(
    image: _Image, name: str, images: DatasetImages, task: str | None, *, folder: str
) -> AnnotatedImage:
    values = image.values
    file_name, subset = values.get("name", ""), values.get("subset")
    place = f"{name}: image {file_name[:200]}"
    candidates = [f"{folder}images/{file_name}", f"{folder}{file_name}"]
    if subset:
        candidates.insert(0, f"{folder}images/{subset}/{file_name}")
    path = images.find(*candidates)
    size_wh = _size(values, place)
    about = images.about(path)
    annotations = [
        _annotation(shape, size_wh, f"{place}: shape {number}")
        for number, shape in enumerate(image.shapes)
    ]
    return AnnotatedImage(
        place=place,
        path=path,
        annotations=oriented_if(annotations, task or about.get("task"), size_wh),
        split=split_of_name(subset) or about.get("split"),
        about=about,
    )


def _size(values: dict[str, str], place: str) -> tuple[int, int]:
    try:
        width, height = int(values["width"]), int(values["height"])
    except (KeyError, ValueError):
        width = height = 0
    if width <= 0 or height <= 0:
        raise QueryError(f"{place}: width and height are required")
    return width, height


def _annotation(
    shape: tuple[str, dict[str, str], dict[str, str]], size_wh: tuple[int, int], place: str
) -> dict[str, Any]:
    tag, values, attributes = shape
    if tag in _UNREAD:
        raise QueryError(f"{place}: expected boxes, polygons and tags, got a {tag}")
    if "label" not in values:
        raise QueryError(f"{place}: a label is required")
    item: dict[str, Any] = {"label": values["label"]}
    try:
        if tag == "box":
            item |= _box(values, size_wh)
        elif tag == "polygon":
            pairs = [point.split(",") for point in values.get("points", "").split(";")]
            item |= contour_of(unbridged([(_number(x), _number(y)) for x, y in pairs]))
    except (KeyError, ValueError) as error:
        raise QueryError(
            f"{place}: expected coordinates as finite numbers, got: {error}"
        ) from error
    flags = (key for key in ("crowd", "difficult") if attributes.get(key) == "true")
    return item | dict.fromkeys(flags, True)


def _box(values: dict[str, str], size_wh: tuple[int, int]) -> dict[str, float]:
    xmin, ymin, xmax, ymax = (_number(values[key]) for key in ("xtl", "ytl", "xbr", "ybr"))
    if "rotation" not in values:
        return box_around([(xmin, ymin), (xmax, ymax)])
    radians = math.remainder(math.radians(_number(values["rotation"])), math.tau)
    return turned_box((xmin, ymin, xmax, ymax), size_wh, radians)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text[:40])
    return int(value) if value.is_integer() else value

"""CVAT for images 1.1: `annotations.xml` with the shapes of each image, and `images/`.

With splits it is the file of a project with a task for each, as only images of projects have subsets. It is read an image at a
time; entities and document types are refused, as they expand without bounds.

Source: CVAT, "CVAT for images" (XML annotation format, version 1.1); Python, "XML security".
"""

import math
import shutil
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any, BinaryIO, NamedTuple, NoReturn
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

import msgspec

from quadriga.store.exchange.archives import Archive
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
from quadriga.store.exchange.formats.writing import Picture, check_any_written, xml_text
from quadriga.store.exchange.outlines import bridged, unbridged
from quadriga.store.exchange.predictions import score_of
from quadriga.store.exchange.tool_datasets import ToolFormat
from quadriga.store.records.errors import QueryError
from quadriga.tasks.predictions import shape_of_json

ATTRIBUTES = {"score": "number", "difficult": "checkbox", "crowd": "checkbox"}
"""Attributes of each label, and how CVAT shows them."""


class CvatWriter:
    """Writes boxes, rotated boxes, polygons and tags.

    Args:
        archive: The archive.
        splits: Names of the splits, which are CVAT's subsets.
    """

    def __init__(self, archive: Archive, splits: Sequence[str]) -> None:
        self._file = archive.add_text_file("annotations.xml")
        self._images = archive.side_file()  # labels come first in the file, and are known last
        self._labels: dict[str, None] = {}
        self._counts = dict.fromkeys(splits, 0)  # without splits all images count under ""
        self._count = 0

    def add(self, picture: Picture) -> str:
        """Write the element of a picture; see `FormatWriter.add`."""
        width, height = picture.size_wh()
        shapes = []
        for label, item in picture.labelled():
            shape = _element(item, label, (width, height), picture.source)
            if shape:
                shapes.append((label, shape))
        check_any_written(picture, len(shapes))
        self._labels |= dict.fromkeys(label for label, _ in shapes)
        values = {"id": self._count, "name": picture.name}
        if picture.split:
            values["subset"] = picture.split
        text = _start("image", {**values, "width": width, "height": height})
        self._images.write(
            f"  {text}\n{''.join(shape for _, shape in shapes)}  </image>\n".encode()
        )
        self._counts[picture.split] = self._counts.get(picture.split, 0) + 1
        self._count += 1
        return "/".join(filter(None, ("images", picture.split, picture.name)))

    def finish(self) -> None:
        """Write the labels in front of the images."""
        self._file.write(
            '<?xml version="1.0" encoding="utf-8"?>\n<annotations>\n  <version>1.1</version>\n'
            f"  <meta>{self._meta()}</meta>\n".encode()
        )
        self._images.seek(0)
        shutil.copyfileobj(self._images, self._file)
        self._file.write(b"</annotations>\n")

    def _meta(self) -> str:
        """Return the element of the project, or without splits that of its only task."""
        labels = "".join(_label_element(label) for label in self._labels)
        labels = f"<labels>\n{labels}  </labels>"
        counts = {split: count for split, count in self._counts.items() if split and count}
        if not counts:
            return f"<task>{_task_elements('quadriga', self._count)}{labels}</task>"
        tasks = "".join(
            f"    <task><id>{number}</id>{_task_elements(split, count)}<subset>{split}</subset></task>\n"
            for number, (split, count) in enumerate(counts.items(), 1)
        )
        subsets = "\n".join(counts)
        return (
            f"<project><name>quadriga</name><tasks>\n{tasks}  </tasks>{labels}"
            f"<subsets>{subsets}</subsets></project>"
        )


def _task_elements(name: str, count: int) -> str:
    return f"<name>{name}</name><size>{count}</size><mode>annotation</mode>"


def _element(item: dict[str, Any], label: str, size_wh: tuple[int, int], source: str) -> str:
    """Return the element of an annotation; empty if it has a shape that is none in pixels."""
    shape = shape_of_json(item)
    values: dict[str, Any] = {
        "label": label,
        "source": "auto" if source == "predictions" else "manual",
    }
    name = "tag"
    numbers: list[float] = []
    if shape.oriented_box is not None:
        name = "box"
        box, rotation = _unrotated(shape.oriented_box, size_wh)
        numbers = [*box, rotation]
        values |= _edges(box) | {"rotation": repr(rotation)}
    elif shape.box is not None:
        name, numbers = "box", [*shape.box]
        values |= _edges(shape.box)
    elif shape.rings:
        name = "polygon"
        line = bridged(shape.rings)
        numbers = [value for point in line for value in point]
        values["points"] = ";".join(f"{x!r},{y!r}" for x, y in line)
    if not all(map(math.isfinite, numbers)):
        return ""
    if name != "tag":
        values |= {"occluded": 0, "z_order": 0}
    attributes = _attributes(item)
    start = _start(name, values)
    return f"    {start}{attributes}</{name}>\n"


def _unrotated(
    oriented_box: Sequence[float], size_wh: tuple[int, int]
) -> tuple[tuple[float, ...], float]:
    """Return the edges of an oriented box before its rotation, pixels, and the rotation in degrees, from 0 to 360."""
    cx, cy, w, h, r = oriented_box
    x, y, half_w, half_h = (
        value * size / divisor
        for value, size, divisor in zip((cx, cy, w, h), size_wh * 2, (1, 1, 2, 2), strict=True)
    )
    degrees = math.degrees(r) % 360 if math.isfinite(r) else math.nan
    return (x - half_w, y - half_h, x + half_w, y + half_h), degrees


def _edges(box: Sequence[float]) -> dict[str, str]:
    return dict(zip(("xtl", "ytl", "xbr", "ybr"), map(repr, box), strict=True))


def _attributes(item: dict[str, Any]) -> str:
    values = {"score": score_of(item)} | {key: item.get(key) for key in ("difficult", "crowd")}
    return "".join(
        f'<attribute name="{name}">{_attribute_text(value)}</attribute>'
        for name, value in values.items()
        if value is not None and (value is not False)
    )


def _attribute_text(value: Any) -> str:
    return "true" if value is True else escape(str(value))


def _label_element(label: str) -> str:
    attributes = "".join(
        f"<attribute><name>{name}</name><mutable>False</mutable><input_type>{kind}</input_type>"
        "<default_value></default_value><values></values></attribute>"
        for name, kind in ATTRIBUTES.items()
    )
    name = escape(xml_text(label))
    return f"    <label><name>{name}</name><attributes>{attributes}</attributes></label>\n"


def _start(name: str, values: dict[str, Any]) -> str:
    texts = (f"{key}={quoteattr(xml_text(str(value)), _ENTITIES)}" for key, value in values.items())
    return f"<{name} {' '.join(texts)}>"


_ENTITIES = {"\n": "&#10;", "\r": "&#13;", "\t": "&#9;"}


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


CVAT = ToolFormat(
    writer=lambda archive, parameters: CvatWriter(archive, [*parameters.split]),
    is_format=cvat_files,
    read=read_cvat,
    read_file=read_cvat_file,
)

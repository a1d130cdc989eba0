"""CVAT for images 1.1: `annotations.xml` with the shapes of each image, and `images/`.

With splits it is the file of a project with a task for each, as only images of projects have subsets.

Source: CVAT, "CVAT for images" (XML annotation format, version 1.1).
"""

import math
import re
import shutil
from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from quadriga.store.exchange.archives import Archive
from quadriga.store.exchange.formats.writing import Picture, check_any_written
from quadriga.store.exchange.outlines import bridged
from quadriga.store.exchange.predictions import score_of
from quadriga.tasks.predictions import shape_of_json

ATTRIBUTES = {"score": "number", "difficult": "checkbox", "crowd": "checkbox"}
"""Attributes of each label, and how CVAT shows them."""

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


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


def xml_text(text: str) -> str:
    """Return a text with what XML 1.0 cannot say, such as control characters, replaced by U+FFFD."""
    return _NOT_XML.sub("\ufffd", text)

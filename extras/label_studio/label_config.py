"""Reads the labeling interface of a project of Label Studio: which control takes the model's labels, on which image.

Source: Label Studio, "Tags" (RectangleLabels, PolygonLabels, Choices, Image).
"""

from collections.abc import Mapping
from typing import Any
from xml.parsers import expat

import msgspec

from quadriga.proto.errors import InvalidRequest, Unsupported
from quadriga.quoting import quoted

MAX_CHARACTERS = 1 << 20
"""Maximum length of a labeling interface."""

CONTROLS: Mapping[str, str] = {
    "OBJECT_DETECTION": "RectangleLabels",
    "ORIENTED_OBJECT_DETECTION": "RectangleLabels",
    "IMAGE_SEGMENTATION": "PolygonLabels",
    "IMAGE_CLASSIFICATION": "Choices",
}
"""The tag that takes the predictions of each task."""

_KNOWN = {name.lower(): name for name in (*CONTROLS.values(), "BrushLabels")}
_CHILDREN = {"label", "choice"}


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """A control of the labeling interface, and the image that it is for."""

    tag: str
    """Name of the tag, such as `RectangleLabels`."""
    name: str
    to_name: str
    """Name of the image's tag."""
    data_key: str
    """Key of the image in the data of a task."""
    labels: frozenset[str]
    """Labels as results name them: their aliases, or else their values."""
    can_rotate: bool = True


class _Tag(msgspec.Struct):
    tag: str
    values: dict[str, str]
    labels: set[str]


class _Reader:
    """Collects controls and images from the events of the parser."""

    def __init__(self) -> None:
        self.controls: list[_Tag] = []
        self.images: dict[str, str] = {}
        self._open: list[_Tag | None] = []
        self.parser = expat.ParserCreate()
        self.parser.StartDoctypeDeclHandler = self._refuse_doctype
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end

    def _refuse_doctype(self, *_: Any) -> None:
        raise InvalidRequest("label_config: expected XML without a document type")

    def _start(self, name: str, values: dict[str, str]) -> None:
        tag, control = name.lower(), None
        if tag in _KNOWN:
            control = _Tag(_KNOWN[tag], values, set())
            self.controls.append(control)
        elif tag == "image":
            self.images[values.get("name", "")] = values.get("value", "")
        elif tag in _CHILDREN and (parent := next(filter(None, reversed(self._open)), None)):
            parent.labels.add(values.get("alias") or values.get("value", ""))
        self._open.append(control)

    def _end(self, _: str) -> None:
        self._open.pop()


def find_control(label_config: str, task: str, model: str) -> Control:
    """Return the control of a labeling interface that takes the predictions of a model.

    Args:
        label_config: The labeling interface, XML.
        task: Full name of the model's task.
        model: Name of the model, for messages.

    Raises:
        InvalidRequest: It is no XML, or has no such control; the message names the tag that is missing.
        Unsupported: Label Studio has no control for the task that this server fills.
    """
    wanted = CONTROLS.get(task)
    if wanted is None:
        known = ", ".join(sorted(CONTROLS))
        raise Unsupported(
            f"expected a model of {known} for Label Studio, got {quoted(model, 100)}, of {task}"
        )
    reader = _read(label_config)
    for control in reader.controls:
        image = next((n for n in _names(control) if n in reader.images), None)
        if control.tag != wanted or image is None or not control.values.get("name"):
            continue
        value = reader.images[image]
        if not value.startswith("$"):
            raise InvalidRequest(
                f"label_config: expected the value of the Image {quoted(image, 60)} to be a key of the tasks' data, "
                f"such as $image, got {quoted(value, 60)}"
            )
        return Control(
            tag=wanted,
            name=control.values["name"],
            to_name=image,
            data_key=value[1:],
            labels=frozenset(control.labels),
            can_rotate=control.values.get("canRotate", "true").lower() != "false",
        )
    raise InvalidRequest(_missing(wanted, reader, model))


def _read(label_config: str) -> _Reader:
    if len(label_config) > MAX_CHARACTERS:
        raise InvalidRequest(
            f"label_config: expected at most {MAX_CHARACTERS} characters, got {len(label_config)}"
        )
    reader = _Reader()
    try:
        reader.parser.Parse(label_config.encode(errors="replace"), True)
    except expat.ExpatError as error:
        raise InvalidRequest(f"label_config: expected XML, got: {error}") from error
    return reader


def _names(control: _Tag) -> list[str]:
    return [name.strip() for name in control.values.get("toName", "").split(",")]


def _missing(wanted: str, reader: _Reader, model: str) -> str:
    tags = sorted({f"<{control.tag}>" for control in reader.controls})
    tags += [f"<Image> {quoted(name, 40)}" for name in [*reader.images][:10]]
    hint = ""
    if wanted == "PolygonLabels" and "<BrushLabels>" in tags:
        hint = "; brush masks are not filled, polygons are"
    return (
        f"label_config: a tag <{wanted}> with toName of an <Image> is required for the predictions of "
        f"{quoted(model, 100)}, got {', '.join(tags) or 'no control of images'}{hint}"
    )

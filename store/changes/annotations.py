"""Parsing of annotations: the ground truth of an image, as predictions without scores.

Accepted in the wire form or in that of Chariot's datasets, and stored in the wire form.

Source: Chariot, dataset archives, `annotations.jsonl` ("Image annotations", "Text annotations").
"""

from typing import Any

from quadriga.quoting import quoted
from quadriga.store.database.rows import is_number
from quadriga.store.records import metadata
from quadriga.store.records.errors import ChangeError, MetadataError

MAX_ANNOTATIONS = 10_000  # of one image
_BOX = ("xmin", "ymin", "xmax", "ymax")
_ORIENTED = ("cx", "cy", "w", "h", "r")
_NESTED = {"bbox": _BOX, "oriented_bbox": _ORIENTED}
_ALIASES = {
    "class_label": "label",
    "contours": "contour",
    "context": "prompt",
    "generated_text": "answer",
}
"""Names in Chariot's datasets, and those on the wire."""

_SHAPES = {
    "a box": _BOX,
    "an oriented box": _ORIENTED,
    "a contour": ("contour",),
    "an answer": ("prompt", "answer", "answers"),
}
_SHAPELESS = ("crowd", "difficult", "area", "attributes", "task_type")
_ALLOWED = {"label", *_SHAPELESS, *(name for names in _SHAPES.values() for name in names)}


def parse_annotations(value: Any, where: str = "annotations") -> list[dict[str, Any]]:
    """Parse the annotations of one image, in pixels; an empty list means that there is nothing in it.

    Args:
        value: Decoded JSON: a list of objects with `label` (or `class_label`) and at most one of a box
            (`bbox`, or its keys), an oriented box (fractions of the image, radians), a contour;
            or with an `answer` to a `prompt`.
        where: What the list is called in errors.

    Raises:
        ChangeError: The annotations are invalid; the message names the place, as `annotations[3].bbox.xmin`.
    """
    if not isinstance(value, list):
        raise _unexpected(where, "a list of annotations", value)
    if len(value) > MAX_ANNOTATIONS:
        raise ChangeError(
            f"{where}: expected at most {MAX_ANNOTATIONS} annotations, got {len(value)}"
        )
    return [_Annotation(node, f"{where}[{number}]").read() for number, node in enumerate(value)]


class _Annotation:
    """One annotation: its values by their names on the wire, and the location of each."""

    def __init__(self, node: Any, where: str) -> None:
        if not isinstance(node, dict):
            raise _unexpected(where, "an object", node)
        self._where = where
        self._values: dict[str, Any] = {}
        self._locations: dict[str, str] = {}
        for key, value in node.items():
            if key in _NESTED:
                self._take_nested(key, value)
            else:
                name = _ALIASES.get(str(key), str(key))
                self._take(name, value, f"{where}.{key}")

    def read(self) -> dict[str, Any]:
        """Return the annotation in the wire form."""
        shapes = [
            shape for shape, names in _SHAPES.items() if any(name in self._values for name in names)
        ]
        if len(shapes) > 1:
            raise ChangeError(f"{self._where}: expected one shape, got {' and '.join(shapes)}")
        if shapes == ["an answer"]:
            return self._answer() | self._beside()
        read: dict[str, Any] = {"label": self._text("label")}
        if shapes == ["a box"]:
            read |= self._box()
        elif shapes == ["an oriented box"]:
            read |= self._oriented()
        elif shapes == ["a contour"]:
            read["contour"] = _contour(self._values["contour"], self._locations["contour"])
        return read | self._beside()

    def _take_nested(self, key: str, value: Any) -> None:
        location, names = f"{self._where}.{key}", _NESTED[key]
        if not isinstance(value, dict) or value.keys() - set(names):
            raise _unexpected(location, f"an object with {', '.join(names)}", value)
        for name in names:
            self._take(name, value.get(name), f"{location}.{name}")

    def _take(self, name: str, value: Any, place: str) -> None:
        if name not in _ALLOWED:
            raise ChangeError(
                f"{self._where}: expected keys of an annotation, got {quoted(place[len(self._where) + 1 :], 80)}; "
                f"known are {', '.join(sorted(_ALLOWED))}"
            )
        if name in self._values:
            raise ChangeError(f"{place}: expected it once, got {self._locations[name]} too")
        self._values[name], self._locations[name] = value, place

    def _place(self, name: str) -> str:
        return self._locations.get(name, f"{self._where}.{name}")

    def _text(self, name: str) -> str:
        value = self._values.get(name)
        if not isinstance(value, str) or not value:
            raise _unexpected(self._place(name), "a text", value)
        return value

    def _number(self, name: str) -> float:
        return _number(self._values.get(name), self._place(name))

    def _box(self) -> dict[str, float]:
        box = {name: self._number(name) for name in _BOX}
        for low, high in (("xmin", "xmax"), ("ymin", "ymax")):
            if box[low] > box[high]:
                raise ChangeError(
                    f"{self._place(low)}: expected {low} <= {high}, got {box[low]} and {box[high]}"
                )
        return box

    def _oriented(self) -> dict[str, float]:
        box = {name: self._number(name) for name in _ORIENTED}
        for name in ("w", "h"):
            if box[name] < 0:
                raise ChangeError(f"{self._place(name)}: expected 0 or more, got {box[name]}")
        return box

    def _answer(self) -> dict[str, Any]:
        read: dict[str, Any] = {}
        if "prompt" in self._values:
            read["prompt"] = self._text("prompt")
        answer_keys = [name for name in ("label", "answer", "answers") if name in self._values]
        if len(answer_keys) != 1:
            got = " and ".join(answer_keys) or "none"
            raise ChangeError(f"{self._where}: expected an answer, answers or a label, got {got}")
        if answer_keys != ["answers"]:
            return read | {answer_keys[0]: self._text(answer_keys[0])}
        answers = self._values["answers"]
        if not isinstance(answers, list) or not answers:
            raise _unexpected(self._locations["answers"], "a list of texts", answers)
        for number, answer in enumerate(answers):
            if not isinstance(answer, str):
                raise _unexpected(f"{self._locations['answers']}[{number}]", "a text", answer)
        return read | {"answers": answers}

    def _beside(self) -> dict[str, Any]:
        read: dict[str, Any] = {}
        for name in ("crowd", "difficult"):
            if name in self._values:
                read[name] = self._values[name]
                if not isinstance(read[name], bool):
                    raise _unexpected(self._locations[name], "true or false", read[name])
        if "area" in self._values:
            read["area"] = self._number("area")
            if read["area"] < 0:
                raise ChangeError(
                    f"{self._locations['area']}: expected 0 or more, got {read['area']}"
                )
        if "attributes" in self._values:
            read["attributes"] = self._values["attributes"]
            try:
                metadata.check_rules(read["attributes"])
            except MetadataError as error:
                raise ChangeError(f"{self._locations['attributes']}: {error}") from error
        return read


def _contour(value: Any, location: str) -> list[list[dict[str, float]]]:
    if not isinstance(value, list) or not value:
        raise _unexpected(location, "a list of rings", value)
    rings = []
    for ring_index, ring in enumerate(value):
        ring_location = f"{location}[{ring_index}]"
        if not isinstance(ring, list) or not ring:
            raise _unexpected(ring_location, "a list of points", ring)
        rings.append(
            [_point(point, f"{ring_location}[{index}]") for index, point in enumerate(ring)]
        )
    return rings


def _point(value: Any, location: str) -> dict[str, float]:
    if not isinstance(value, dict) or value.keys() != {"x", "y"}:
        raise _unexpected(location, "an object with x and y", value)
    return {name: _number(value[name], f"{location}.{name}") for name in ("x", "y")}


def _number(value: Any, location: str) -> float:
    if not is_number(value) or not -1e15 < value < 1e15:
        raise _unexpected(location, "a finite number", value)
    return value


def _unexpected(location: str, expected: str, value: Any) -> ChangeError:
    got = "none" if value is None else f"{quoted(value, 60)}"
    return ChangeError(f"{location}: expected {expected}, got {got}")

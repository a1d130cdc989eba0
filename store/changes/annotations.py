"""Annotations, the ground truth of an image: their parser, and the task that they fit.

Accepted in the wire form, as predictions without scores, or in that of Chariot's datasets; stored in the wire form.

Source: Chariot, dataset archives, `annotations.jsonl` ("Image annotations", "Text annotations").
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

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

Annotations = Sequence[Mapping[str, Any]]


class _Kind(NamedTuple):
    """A kind of annotations: what it is called, and its keys."""

    name: str
    names: str
    keys: tuple[str, ...] = ()


_KINDS = {
    "box": _Kind("a box", "boxes", _BOX),
    "oriented": _Kind("an oriented box", "oriented boxes", _ORIENTED),
    "contour": _Kind("a contour", "contours", ("contour",)),
    "answer": _Kind("an answer", "answers", ("prompt", "answer", "answers")),
    "label": _Kind("a label", "labels alone"),
}
"""Kinds of annotations; a label alone comes last, because the others have labels too."""

_KINDS_OF_TASK = {
    "IMAGE_CLASSIFICATION": ("label",),
    "OBJECT_DETECTION": ("box",),
    "ORIENTED_OBJECT_DETECTION": ("oriented",),
    "IMAGE_SEGMENTATION": ("contour",),
    "IMAGE_TEXT_TO_TEXT": ("answer", "label"),
}
"""Kinds of annotations that an evaluation of each task reads; other tasks take any. A label alone is the first's."""


def annotated_task(annotations: Annotations) -> str | None:
    """Return the task that annotations in the wire form are of; None for an empty list, or if they are of several."""
    return next((task for task in _KINDS_OF_TASK if annotations and fits(task, annotations)), None)


def derived_task(annotations: Annotations | None, inference_task: str | None) -> str:
    """Return the task of a statement that names none, as one of a file may.

    Args:
        annotations: Annotations in the wire form.
        inference_task: Task of the inference that the statement is joined to by id, if that is stored.

    Returns:
        The inference's task if the annotations fit it, else the annotations' own; any task if there are none.
    """
    if inference_task is not None and fits(inference_task, annotations or ()):
        return inference_task
    kinds = [kind for kind in _KINDS if kind in set(map(_kind, annotations or ()))]
    tasks_by_kind = {kinds_[0]: task for task, kinds_ in _KINDS_OF_TASK.items()}
    return tasks_by_kind[kinds[0]] if kinds else ""


def fits(task: str, annotations: Annotations) -> bool:
    """Check whether annotations in the wire form are of a task."""
    allowed = _KINDS_OF_TASK.get(task, _KINDS)
    return all(_kind(annotation) in allowed for annotation in annotations)


def check_fit(task: str, annotations: Annotations, where: str = "annotations") -> None:
    """Check that annotations in the wire form are of a task.

    Raises:
        ChangeError: One is not; the message names the first, below `where`.
    """
    for index, annotation in enumerate(annotations):
        if not fits(task, [annotation]):
            expected = " or ".join(_KINDS[name].names for name in _KINDS_OF_TASK[task])
            got = _KINDS[_kind(annotation)].names
            raise ChangeError(
                f"{where}[{index}]: expected {expected} as ground truth of {task}, got one of {got}"
            )


def describe_kinds(annotations: Annotations) -> str:
    """Return the kinds that annotations in the wire form are of, as text."""
    kinds = set(map(_kind, annotations))
    return " and ".join(kind.names for key, kind in _KINDS.items() if key in kinds)


def _kind(annotation: Mapping[str, Any]) -> str:
    return next(
        (name for name, kind in _KINDS.items() if not annotation.keys().isdisjoint(kind.keys)),
        "label",
    )


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
    return [_annotation(node, f"{where}[{number}]") for number, node in enumerate(value)]


def _annotation(node: Any, where: str) -> dict[str, Any]:
    """Return an annotation in the wire form."""
    if not isinstance(node, dict):
        raise _unexpected(where, "an object", node)
    values, places = _named(node, where)
    shapes = [name for name, kind in _KINDS.items() if not values.keys().isdisjoint(kind.keys)]
    if len(shapes) > 1:
        got = " and ".join(_KINDS[shape].name for shape in shapes)
        raise ChangeError(f"{where}: expected one shape, got {got}")
    required = {"label"}
    if shapes == ["answer"]:
        required = values.keys() & {"label", "answer", "answers"}
        if len(required) != 1:
            got = " and ".join(name for name in _READERS if name in required) or "none"
            raise ChangeError(f"{where}: expected an answer, answers or a label, got {got}")
    elif shapes:
        required.update(_KINDS[shapes[0]].keys)
    parsed = {
        name: read(values.get(name), places.get(name, f"{where}.{name}"))
        for name, read in _READERS.items()
        if name in values or name in required
    }
    for low, high in (("xmin", "xmax"), ("ymin", "ymax")):
        if low in parsed and parsed[low] > parsed[high]:
            raise ChangeError(
                f"{places[low]}: expected {low} <= {high}, got {parsed[low]} and {parsed[high]}"
            )
    return parsed


def _named(node: dict[str, Any], where: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return values by their names on the wire, and the place of each in the annotation."""
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    for key, value in node.items():
        nested = {_ALIASES.get(key, key): value}
        place = f"{where}.{key}"
        if names := _NESTED.get(key):
            if not isinstance(value, dict) or value.keys() - set(names):
                raise _unexpected(place, f"an object with {', '.join(names)}", value)
            nested = {name: value.get(name) for name in names}
        for name, inner in nested.items():
            if name not in _KNOWN:
                raise ChangeError(
                    f"{where}: expected keys of an annotation, got {quoted(key, 80)}; known are {', '.join(sorted(_KNOWN))}"
                )
            at = f"{place}.{name}" if names else place
            if name in values:
                raise ChangeError(f"{at}: expected it once, got {places[name]} too")
            values[name], places[name] = inner, at
    return values, places


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str) or not value:
        raise _unexpected(place, "a text", value)
    return value


def _texts(value: Any, place: str) -> list[str]:
    if not isinstance(value, list) or not value:
        raise _unexpected(place, "a list of texts", value)
    for number, text in enumerate(value):
        if not isinstance(text, str):
            raise _unexpected(f"{place}[{number}]", "a text", text)
    return value


def _number(value: Any, place: str) -> float:
    if not is_number(value) or not -1e15 < value < 1e15:
        raise _unexpected(place, "a finite number", value)
    return value


def _size(value: Any, place: str) -> float:
    number = _number(value, place)
    if number < 0:
        raise ChangeError(f"{place}: expected 0 or more, got {number}")
    return number


def _contour(value: Any, place: str) -> list[list[dict[str, float]]]:
    if not isinstance(value, list) or not value:
        raise _unexpected(place, "a list of rings", value)
    return [_ring(ring, f"{place}[{index}]") for index, ring in enumerate(value)]


def _ring(value: Any, place: str) -> list[dict[str, float]]:
    if not isinstance(value, list) or not value:
        raise _unexpected(place, "a list of points", value)
    for index, point in enumerate(value):
        if not isinstance(point, dict) or point.keys() != {"x", "y"}:
            raise _unexpected(f"{place}[{index}]", "an object with x and y", point)
        for name, coordinate in point.items():
            _number(coordinate, f"{place}[{index}].{name}")
    return value


def _flag(value: Any, place: str) -> bool:
    if not isinstance(value, bool):
        raise _unexpected(place, "true or false", value)
    return value


def _attributes(value: Any, place: str) -> Any:
    try:
        metadata.check_rules(value)
    except MetadataError as error:
        raise ChangeError(f"{place}: {error}") from error
    return value


_READERS: dict[str, Callable[[Any, str], Any]] = {
    "prompt": _text,
    "label": _text,
    "answer": _text,
    "answers": _texts,
    **dict.fromkeys((*_BOX, *_ORIENTED), _number),
    "w": _size,
    "h": _size,
    "contour": _contour,
    "crowd": _flag,
    "difficult": _flag,
    "area": _size,
    "attributes": _attributes,
}
"""Checks of the values by their keys, in the order of the wire form."""

_KNOWN = {*_READERS, "task_type"}  # the last is of datasets, and changes nothing


def _unexpected(place: str, expected: str, value: Any) -> ChangeError:
    got = "none" if value is None else f"{quoted(value, 60)}"
    return ChangeError(f"{place}: expected {expected}, got {got}")

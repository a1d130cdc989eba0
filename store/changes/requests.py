"""What clients ask to change, read from the bodies of their requests, or a `ChangeError`."""

import math
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, TypeVar

import msgspec

from quadriga.store.changes.annotations import parse_annotations
from quadriga.store.changes.ground_truth import join_text
from quadriga.store.errors import JSON_ERRORS, ChangeError
from quadriga.store.ids import LARGEST_ID
from quadriga.store.records import Feedback, MetadataChange, RetentionRule, TruthStatement
from quadriga.store.rows import storable_text

MAX_STATEMENTS = 10_000  # of one request
MAX_JOIN_BYTES = 2000  # of a join and its value, as UTF-8: what an index of PostgreSQL takes
MAX_DAYS = 1_000_000
MAX_MODEL_BYTES = 2000
MAX_KIND_CHARACTERS = 64
MAX_SOURCE_CHARACTERS = 256
MAX_COMMENT_CHARACTERS = 10_000
_LINE_KEYS = {
    "path": "meta.path",
    "datum_id": "meta.datum_id",
    "data_hash": "input.hash",
    "inference_id": "id",
    "request_id": "request_id",
}
"""What tells the datum of a line of `annotations.jsonl`, and the join that it is."""

_HASH = re.compile(r"blake3:[0-9a-f]{64}", re.ASCII)
_T = TypeVar("_T")
_OBJECTS = msgspec.Meta(extra_json_schema={"items": {"type": "object"}})  # as is seen later
_Annotations = Annotated[list[Any], _OBJECTS]
_Days = Annotated[float, msgspec.Meta(ge=0, le=MAX_DAYS)]


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a request; no key of it goes unread."""


class GroundTruthBody(_Body, frozen=True):
    """What is true of one inference."""

    annotations: _Annotations
    source: str = ""


class _Statement(_Body, frozen=True):
    value: Any
    annotations: _Annotations | None


class StatementsBody(_Body, frozen=True):
    """What is true of many inferences."""

    join: str
    items: list[_Statement]
    source: str = ""


class FeedbackBody(_Body, frozen=True):
    """What a user says of an inference."""

    kind: str
    value: float | bool | None = None
    comment: str = ""
    source: str = ""


class DeleteBody(_Body, frozen=True):
    """Which inferences to delete."""

    where: Any = None
    dry_run: bool = False
    all: bool = False


class RetentionBody(_Body, frozen=True):
    """How long a model's inferences and inputs are kept."""

    inputs_days: _Days | None = None
    inferences_days: _Days | None = None


def decode_change(body: bytes, type_: type[_T], wanted: str) -> _T:
    """Read the body of a request, or say what was wanted."""
    try:
        return msgspec.json.decode(body, type=type_)
    except JSON_ERRORS as error:
        raise ChangeError(f"expected the body to be {wanted}, got: {error}") from error


def parse_metadata_change(
    target: int, body: bytes, read_metadata: Callable[[Any, str], dict[str, Any]]
) -> MetadataChange:
    """Read a change of metadata: `{"set": {…}, "remove": […]}`, or metadata to set in any other form."""
    asked = decode_change(body, object, "a JSON object")
    if isinstance(asked, dict) and asked and asked.keys() <= {"set", "remove"}:
        new, remove = asked.get("set", {}), asked.get("remove", [])
    else:
        new, remove = read_metadata(asked, "body"), []
    if not isinstance(new, dict):
        raise ChangeError(f"expected set to be an object, got {new!r:.60}")
    if not isinstance(remove, list) or not all(isinstance(key, str) for key in remove):
        raise ChangeError(f"expected remove to be a list of keys, got {remove!r:.60}")
    if not new and not remove:
        raise ChangeError("expected keys to set or to remove, got none")
    if both := new.keys() & set(remove):
        raise ChangeError(f"expected each key to be set or removed, got {min(both)!r:.80} in both")
    return MetadataChange(target, new, remove)


def parse_ground_truth(target: str, body: bytes) -> TruthStatement:
    """Read what is true of one inference: `{"annotations": […], "source": …}`, or the list alone."""
    wanted = "a list of annotations, or a JSON object with annotations and source"
    asked: Any = decode_change(body, GroundTruthBody | list[Any], wanted)  # type: ignore[arg-type]  # a union is one
    if isinstance(asked, list):
        asked = GroundTruthBody(asked)
    source = _short("source", asked.source, MAX_SOURCE_CHARACTERS)
    return TruthStatement("id", target, parse_annotations(asked.annotations), source)


def parse_statements(body: bytes) -> list[TruthStatement]:
    """Read many statements: `{"join", "source", "items": [{"value", "annotations"}]}`, or JSON lines.

    A line is one of Chariot's `annotations.jsonl`: `{"path": …, "annotations": […]}`, or with `datum_id`,
    `data_hash`, `inference_id` or `request_id` for the path.
    """
    whole = None
    with suppress(*JSON_ERRORS):
        whole = msgspec.json.decode(body)
    if not isinstance(whole, dict) or whole.keys() & _LINE_KEYS.keys():
        return _lines(body)
    asked = decode_change(
        body, StatementsBody, "a JSON object with join, items and source, or JSON lines"
    )
    source = _short("source", asked.source, MAX_SOURCE_CHARACTERS)
    _check_number(len(asked.items))
    return [
        _statement(asked.join, item.value, item.annotations, source, f"items[{number}]")
        for number, item in enumerate(asked.items)
    ]


def _lines(body: bytes) -> list[TruthStatement]:
    found = []
    for number, line in enumerate(body.splitlines(), 1):
        if not line.strip():
            continue
        where = f"line {number}"
        try:
            node = msgspec.json.decode(line)
        except JSON_ERRORS as error:
            raise ChangeError(f"{where}: expected a JSON object, got: {error}") from error
        named = node.keys() & _LINE_KEYS.keys() if isinstance(node, dict) else set()
        if len(named) != 1 or node.keys() - named - {"annotations", "source"}:
            raise ChangeError(
                f"{where}: expected an object with annotations, source and one of "
                f"{', '.join(_LINE_KEYS)}, got {line!r:.80}"
            )
        (key,) = named
        source = _short(f"{where}: source", node.get("source", ""), MAX_SOURCE_CHARACTERS)
        if "annotations" not in node:
            raise ChangeError(f"{where}: expected annotations, got none")
        found.append(_statement(_LINE_KEYS[key], node[key], node["annotations"], source, where))
        _check_number(len(found))
    _check_number(len(found))
    return found


def _check_number(number: int) -> None:
    if not 0 < number <= MAX_STATEMENTS:
        raise ChangeError(f"expected 1 to {MAX_STATEMENTS} statements, got {number} or more")


def _statement(
    join: str, value: Any, annotations: list[Any] | None, source: str, where: str
) -> TruthStatement:
    if annotations is not None:
        annotations = parse_annotations(annotations, f"{where}.annotations")
    made = TruthStatement(join, _join_value(join, value, where), annotations, source)
    size = len(made.join.encode()) + len(made.value.encode())
    if size > MAX_JOIN_BYTES:
        raise ChangeError(
            f"{where}: expected a value of at most {MAX_JOIN_BYTES} bytes, got {size}"
        )
    return made


def _join_value(join: str, value: Any, where: str) -> str:
    is_text = isinstance(value, str) and value != ""
    if join.startswith("meta.") and len(join) > 5:
        is_right = "\0" not in join and (is_text or isinstance(value, int | float))
        wanted = "a text, number or boolean"
    elif join == "id":
        is_right = is_text and value.isascii() and value.isdigit() and len(value) < 20
        wanted = "an id as a string of digits"
    elif join == "input.hash":
        is_right = is_text and _HASH.fullmatch(value) is not None
        wanted = "'blake3:' and 64 hex digits"
    elif join == "request_id":
        is_right, wanted = is_text, "a request id"
    else:
        raise ChangeError(
            f"expected join to be id, request_id, input.hash or meta.<path>, got {join!r:.80}"
        )
    if not is_right:
        raise ChangeError(f"{where}: expected {wanted}, got {value!r:.80}")
    return str(min(int(value), LARGEST_ID)) if join == "id" else storable_text(join_text(value))


def parse_feedback(target: int, body: bytes) -> Feedback:
    """Read feedback."""
    asked = decode_change(body, FeedbackBody, "a JSON object with kind, value, comment and source")
    if not asked.kind:
        raise ChangeError("expected kind to be a text such as 'thumbs', got an empty one")
    value = None if asked.value is None else float(asked.value)
    if value is not None and not math.isfinite(value):
        raise ChangeError(f"expected value to be a finite number, got {value}")
    return Feedback(
        target,
        _short("kind", asked.kind, MAX_KIND_CHARACTERS),
        value,
        _short("comment", asked.comment, MAX_COMMENT_CHARACTERS),
        _short("source", asked.source, MAX_SOURCE_CHARACTERS),
    )


def parse_retention_rule(model: str, body: bytes) -> RetentionRule:
    """Read how long a model's inferences and inputs are kept."""
    wanted = "a JSON object with inputs_days and inferences_days, numbers or null"
    asked = decode_change(body, RetentionBody, wanted)
    inputs, inferences = asked.inputs_days, asked.inferences_days
    if inputs is not None and inferences is not None and inputs > inferences:
        raise ChangeError(
            f"expected inputs_days to be at most inferences_days ({inferences:g}), got {inputs:g}"
        )
    size = len(model.encode(errors="replace"))
    if size > MAX_MODEL_BYTES:
        raise ChangeError(f"expected a model's name of at most {MAX_MODEL_BYTES} bytes, got {size}")
    return RetentionRule(model, inputs, inferences)


def _short(name: str, value: Any, most: int) -> str:
    if not isinstance(value, str) or len(value) > most:
        got = f"{len(value)}" if isinstance(value, str) else f"{value!r:.60}"
        raise ChangeError(f"expected {name} to be a text of at most {most} characters, got {got}")
    return value

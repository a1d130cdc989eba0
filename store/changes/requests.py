"""Parsing of the request bodies that change stored data, with a `ChangeError` for invalid ones."""

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

MAX_STATEMENTS = 10_000  # per request
MAX_JOIN_BYTES = 2000  # of a join and its value in UTF-8, limited by PostgreSQL's index
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
"""Keys that identify the datum of a line of `annotations.jsonl`, and their joins."""

_HASH = re.compile(r"blake3:[0-9a-f]{64}", re.ASCII)
_T = TypeVar("_T")
_OBJECTS = msgspec.Meta(extra_json_schema={"items": {"type": "object"}})  # validated later
_Annotations = Annotated[list[Any], _OBJECTS]
_Days = Annotated[float, msgspec.Meta(ge=0, le=MAX_DAYS)]


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base class of request bodies, without unknown keys."""


class GroundTruthBody(_Body, frozen=True):
    """Ground truth of one inference."""

    annotations: _Annotations
    source: str = ""


class _Statement(_Body, frozen=True):
    value: Any
    annotations: _Annotations | None


class StatementsBody(_Body, frozen=True):
    """Ground truth of many inferences."""

    join: str
    items: list[_Statement]
    source: str = ""


class FeedbackBody(_Body, frozen=True):
    """Feedback of a user on an inference."""

    kind: str
    value: float | bool | None = None
    comment: str = ""
    source: str = ""


class DeleteBody(_Body, frozen=True):
    """Selection of inferences to delete."""

    where: Any = None
    dry_run: bool = False
    all: bool = False


class RetentionBody(_Body, frozen=True):
    """Retention of a model's inferences and inputs, in days."""

    inputs_days: _Days | None = None
    inferences_days: _Days | None = None


def decode_change(body: bytes, struct: type[_T], expected: str) -> _T:
    """Decode the body of a request; raise a `ChangeError` that says what was expected."""
    try:
        return msgspec.json.decode(body, type=struct)
    except JSON_ERRORS as error:
        raise ChangeError(f"expected the body to be {expected}, got: {error}") from error


def parse_metadata_change(
    target: int, body: bytes, read_metadata: Callable[[Any, str], dict[str, Any]]
) -> MetadataChange:
    """Parse a change of metadata: `{"set": {…}, "remove": […]}`, or metadata to set in any other form."""
    change = decode_change(body, object, "a JSON object")
    if isinstance(change, dict) and change and change.keys() <= {"set", "remove"}:
        updates, remove = change.get("set", {}), change.get("remove", [])
    else:
        updates, remove = read_metadata(change, "body"), []
    if not isinstance(updates, dict):
        raise ChangeError(f"expected set to be an object, got {updates!r:.60}")
    if not isinstance(remove, list) or not all(isinstance(key, str) for key in remove):
        raise ChangeError(f"expected remove to be a list of keys, got {remove!r:.60}")
    if not updates and not remove:
        raise ChangeError("set or remove is required, with at least one key")
    if conflicts := updates.keys() & set(remove):
        raise ChangeError(
            f"expected each key to be set or removed, got {min(conflicts)!r:.80} in both"
        )
    return MetadataChange(target, updates, remove)


def parse_ground_truth(target: str, body: bytes) -> TruthStatement:
    """Parse the ground truth of one inference: `{"annotations": […], "source": …}`, or only the list."""
    expected = "a list of annotations, or a JSON object with annotations and source"
    statement: Any = decode_change(body, GroundTruthBody | list[Any], expected)  # type: ignore[arg-type]  # a union is one
    if isinstance(statement, list):
        statement = GroundTruthBody(statement)
    source = _short("source", statement.source, MAX_SOURCE_CHARACTERS)
    return TruthStatement("id", target, parse_annotations(statement.annotations), source)


def parse_statements(body: bytes) -> list[TruthStatement]:
    """Parse many statements: `{"join", "source", "items": [{"value", "annotations"}]}`, or JSON lines.

    A line is one of Chariot's `annotations.jsonl`: `{"path": …, "annotations": […]}`, or with `datum_id`,
    `data_hash`, `inference_id` or `request_id` for the path.
    """
    document = None
    with suppress(*JSON_ERRORS):
        document = msgspec.json.decode(body)
    if not isinstance(document, dict) or document.keys() & _LINE_KEYS.keys():
        return _lines(body)
    statements = decode_change(
        body, StatementsBody, "a JSON object with join, items and source, or JSON lines"
    )
    source = _short("source", statements.source, MAX_SOURCE_CHARACTERS)
    _check_number(len(statements.items))
    return [
        _statement(
            statements.join, item.value, item.annotations, source=source, location=f"items[{index}]"
        )
        for index, item in enumerate(statements.items)
    ]


def _lines(body: bytes) -> list[TruthStatement]:
    statements = []
    for line_number, line in enumerate(body.splitlines(), 1):
        if not line.strip():
            continue
        location = f"line {line_number}"
        try:
            node = msgspec.json.decode(line)
        except JSON_ERRORS as error:
            raise ChangeError(f"{location}: expected a JSON object, got: {error}") from error
        keys = node.keys() & _LINE_KEYS.keys() if isinstance(node, dict) else set()
        if len(keys) != 1 or node.keys() - keys - {"annotations", "source"}:
            raise ChangeError(
                f"{location}: expected an object with annotations, source and one of "
                f"{', '.join(_LINE_KEYS)}, got {line!r:.80}"
            )
        (key,) = keys
        source = _short(f"{location}: source", node.get("source", ""), MAX_SOURCE_CHARACTERS)
        if "annotations" not in node:
            raise ChangeError(f"{location}: annotations is required")
        join = _LINE_KEYS[key]
        statements.append(
            _statement(join, node[key], node["annotations"], source=source, location=location)
        )
        _check_number(len(statements))
    _check_number(len(statements))
    return statements


def _check_number(count: int) -> None:
    if not 0 < count <= MAX_STATEMENTS:
        raise ChangeError(f"expected 1 to {MAX_STATEMENTS} statements, got {count} or more")


def _statement(
    join: str, value: Any, annotations: list[Any] | None, *, source: str, location: str
) -> TruthStatement:
    if annotations is not None:
        annotations = parse_annotations(annotations, f"{location}.annotations")
    statement = TruthStatement(join, _join_value(join, value, location), annotations, source)
    size_bytes = len(statement.join.encode()) + len(statement.value.encode())
    if size_bytes > MAX_JOIN_BYTES:
        raise ChangeError(
            f"{location}: expected a value of at most {MAX_JOIN_BYTES} bytes, got {size_bytes}"
        )
    return statement


def _join_value(join: str, value: Any, location: str) -> str:
    is_text = isinstance(value, str) and value != ""
    if join.startswith("meta.") and len(join) > 5:
        is_valid = "\0" not in join and (is_text or isinstance(value, int | float))
        expected = "a text, number or boolean"
    elif join == "id":
        is_valid = is_text and value.isascii() and value.isdigit() and len(value) < 20
        expected = "an id as a string of digits"
    elif join == "input.hash":
        is_valid = is_text and _HASH.fullmatch(value) is not None
        expected = "'blake3:' and 64 hex digits"
    elif join == "request_id":
        is_valid, expected = is_text, "a request id"
    else:
        raise ChangeError(
            f"expected join to be id, request_id, input.hash or meta.<path>, got {join!r:.80}"
        )
    if not is_valid:
        raise ChangeError(f"{location}: expected {expected}, got {value!r:.80}")
    return str(min(int(value), LARGEST_ID)) if join == "id" else storable_text(join_text(value))


def parse_feedback(target: int, body: bytes) -> Feedback:
    """Parse feedback."""
    feedback = decode_change(
        body, FeedbackBody, "a JSON object with kind, value, comment and source"
    )
    if not feedback.kind:
        raise ChangeError("expected kind to be a text such as 'thumbs', got an empty one")
    value = None if feedback.value is None else float(feedback.value)
    if value is not None and not math.isfinite(value):
        raise ChangeError(f"expected value to be a finite number, got {value}")
    return Feedback(
        target=target,
        kind=_short("kind", feedback.kind, MAX_KIND_CHARACTERS),
        value=value,
        comment=_short("comment", feedback.comment, MAX_COMMENT_CHARACTERS),
        source=_short("source", feedback.source, MAX_SOURCE_CHARACTERS),
    )


def parse_retention_rule(model: str, body: bytes) -> RetentionRule:
    """Parse how long the inferences and inputs of a model are kept."""
    expected = "a JSON object with inputs_days and inferences_days, numbers or null"
    rule = decode_change(body, RetentionBody, expected)
    inputs, inferences = rule.inputs_days, rule.inferences_days
    if inputs is not None and inferences is not None and inputs > inferences:
        raise ChangeError(
            f"expected inputs_days to be at most inferences_days ({inferences:g}), got {inputs:g}"
        )
    size_bytes = len(model.encode(errors="replace"))
    if size_bytes > MAX_MODEL_BYTES:
        raise ChangeError(
            f"expected a model's name of at most {MAX_MODEL_BYTES} bytes, got {size_bytes}"
        )
    return RetentionRule(model, inputs, inferences)


def _short(name: str, value: Any, max_characters: int) -> str:
    if not isinstance(value, str) or len(value) > max_characters:
        got = f"{len(value)}" if isinstance(value, str) else f"{value!r:.60}"
        raise ChangeError(
            f"expected {name} to be a text of at most {max_characters} characters, got {got}"
        )
    return value

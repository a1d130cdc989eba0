"""Parsing of the request bodies that change stored data, with a `ChangeError` for invalid ones."""

import math
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec

from quadriga.quoting import quoted
from quadriga.store.query.request import decode_filtered
from quadriga.store.records.errors import JSON_ERRORS, ChangeError
from quadriga.store.records.records import Feedback, MetadataChange, RetentionRule

MAX_DAYS = 1_000_000
MAX_MODEL_BYTES = 2000
MAX_KIND_CHARACTERS = 64
MAX_SOURCE_CHARACTERS = 256
MAX_COMMENT_CHARACTERS = 10_000
_T = TypeVar("_T")
_Days = Annotated[float, msgspec.Meta(ge=0, le=MAX_DAYS)]


class RequestBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base class of request bodies, without unknown keys."""


class FeedbackBody(RequestBody, frozen=True):
    """Feedback of a user on an inference."""

    kind: str
    value: float | bool | None = None
    comment: str = ""
    source: str = ""


class DeleteBody(RequestBody, frozen=True):
    """Selection of inferences to delete."""

    where: Any = None
    dry_run: bool = False
    all: bool = False
    erase: bool = False


class RetentionBody(RequestBody, frozen=True):
    """Retention of a model's inferences and inputs, in days."""

    inputs_days: _Days | None = None
    inferences_days: _Days | None = None


def decode_change(body: bytes, struct: type[_T], expected: str) -> _T:
    """Decode the body of a request; raise a `ChangeError` that says what was expected."""
    try:
        return decode_filtered(body, struct)
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
        raise ChangeError(f"expected set to be an object, got {quoted(updates, 60)}")
    if not isinstance(remove, list) or not all(isinstance(key, str) for key in remove):
        raise ChangeError(f"expected remove to be a list of keys, got {quoted(remove, 60)}")
    if not updates and not remove:
        raise ChangeError("set or remove is required, with at least one key")
    if conflicts := updates.keys() & set(remove):
        raise ChangeError(
            f"expected each key to be set or removed, got {quoted(min(conflicts), 80)} in both"
        )
    return MetadataChange(target, updates, remove)


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
        kind=short_text("kind", feedback.kind, MAX_KIND_CHARACTERS),
        value=value,
        comment=short_text("comment", feedback.comment, MAX_COMMENT_CHARACTERS),
        source=short_text("source", feedback.source, MAX_SOURCE_CHARACTERS),
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


def short_text(name: str, value: Any, max_characters: int) -> str:
    """Return a value that has to be a text of limited length; raise a `ChangeError` that names it."""
    if not isinstance(value, str) or len(value) > max_characters:
        got = f"{len(value)}" if isinstance(value, str) else f"{quoted(value, 60)}"
        raise ChangeError(
            f"expected {name} to be a text of at most {max_characters} characters, got {got}"
        )
    return value

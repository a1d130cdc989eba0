"""Checks and error messages that all forms of filters share."""

import math
from collections.abc import Collection
from typing import Any

import msgspec
from msgspec import inspect

from quadriga.store.records.errors import QueryError
from quadriga.store.records.metadata import LARGEST_INTEGER, MAX_BYTES, SMALLEST_INTEGER

_KINDS = {bool: "a boolean", int: "an integer", float: "a number", str: "a string", list: "a list",
          dict: "an object", type(None): "null"}  # fmt: skip


def check_text(value: str, path: str) -> None:
    """Raise a `QueryError` unless a text can be compared in a database."""
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise QueryError(f"expected {path!a} to be Unicode, got a surrogate") from error
    if size > MAX_BYTES:
        raise QueryError(f"expected {path[:80]} to be at most {MAX_BYTES} bytes, got {size}")
    if "\0" in value:
        raise QueryError(f"expected {path!r} to be text without NUL, got one")


def check_number(
    value: int | float,  # noqa: PYI041 - each type has its own check
    path: str,
) -> None:
    """Raise a `QueryError` unless a number is valid in metadata."""
    if isinstance(value, float) and not math.isfinite(value):
        raise unexpected_value(path, "a finite number", value)
    if isinstance(value, int) and not SMALLEST_INTEGER <= value <= LARGEST_INTEGER:
        bits = value.bit_length() + 1
        raise QueryError(f"expected {path} to be a number of 64 bits, got one of {bits}")


def check_count(count: int, limit: int, subject: str) -> int:
    """Return a count; raise a `QueryError` if it exceeds its limit."""
    if count > limit:
        raise QueryError(f"expected at most {limit} {subject}, got more")
    return count


def unexpected_value(path: str, expected: str, value: Any) -> QueryError:
    """Return the error of a value at `path` that is not what was expected."""
    type_name = _KINDS.get(type(value), type(value).__name__)
    shown = "" if value is None or isinstance(value, list | dict) else f" {str(value)[:80]!r}"
    return QueryError(f"expected {path} to be {expected}, got {type_name}{shown}")


def field_names(struct: type[msgspec.Struct], only: Collection[str] = ()) -> str:
    """Return the names of all or some fields of a struct, with their allowed words, for messages."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    return ", ".join(
        f"{field.encode_name}{_allowed_words(field.type)}"
        for field in info.fields
        if not only or field.encode_name in only
    )


def _allowed_words(type_: inspect.Type) -> str:
    for member in type_.types if isinstance(type_, inspect.UnionType) else (type_,):
        value_type = member.item_type if isinstance(member, inspect.ListType) else member
        if isinstance(value_type, inspect.LiteralType):
            return f" ({', '.join(map(str, value_type.values))})"
    return ""

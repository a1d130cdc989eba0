"""What is wrong with a filter, in words: bounds that all forms share, and the errors they raise."""

import math
from collections.abc import Collection
from typing import Any

import msgspec
from msgspec import inspect

from quadriga.store.errors import QueryError
from quadriga.store.metadata import LARGEST_INTEGER, MAX_BYTES, SMALLEST_INTEGER

_KINDS = {bool: "a boolean", int: "an integer", float: "a number", str: "a string", list: "a list",
          dict: "an object", type(None): "null"}  # fmt: skip


def check_text(value: str, path: str) -> None:
    """Raise a `QueryError` unless text is one that a database can be asked for."""
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise QueryError(f"expected {path!a} to be Unicode, got a surrogate") from error
    if size > MAX_BYTES:
        raise QueryError(f"expected {path[:80]} to be at most {MAX_BYTES} bytes, got {size}")
    if "\0" in value:
        raise QueryError(f"expected {path!r} to be text without NUL, got one")


def check_number(
    value: int | float,  # noqa: PYI041 - each is checked its way
    path: str,
) -> None:
    """Raise a `QueryError` unless a number is one that metadata can have."""
    if isinstance(value, float) and not math.isfinite(value):
        raise unexpected_value(path, "a finite number", value)
    if isinstance(value, int) and not SMALLEST_INTEGER <= value <= LARGEST_INTEGER:
        bits = value.bit_length() + 1
        raise QueryError(f"expected {path} to be a number of 64 bits, got one of {bits}")


def check_count(count: int, limit: int, what: str) -> int:
    """Return a count; raise a `QueryError` unless it is within its limit."""
    if count > limit:
        raise QueryError(f"expected at most {limit} {what}, got more")
    return count


def unexpected_value(path: str, expected: str, value: Any) -> QueryError:
    """Return the error that says what was expected at a place, and what was there."""
    kind = _KINDS.get(type(value), type(value).__name__)
    shown = "" if value is None or isinstance(value, list | dict) else f" {str(value)[:80]!r}"
    return QueryError(f"expected {path} to be {expected}, got {kind}{shown}")


def field_names(struct: type[msgspec.Struct], only: Collection[str] = ()) -> str:
    """Return the names of a struct's fields, or of some, with the words that one may be, for messages."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    return ", ".join(
        f"{field.encode_name}{_words(field.type)}"
        for field in info.fields
        if not only or field.encode_name in only
    )


def _words(of: inspect.Type) -> str:
    for one in of.types if isinstance(of, inspect.UnionType) else (of,):
        inner = one.item_type if isinstance(one, inspect.ListType) else one
        if isinstance(inner, inspect.LiteralType):
            return f" ({', '.join(map(str, inner.values))})"
    return ""

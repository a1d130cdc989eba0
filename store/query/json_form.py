"""Filters as JSON: `{"meta.altitude": {"ge": 100, "lt": 300}, "not": {"label": "circle"}}`.

Several fields in one object, and several operators on one field, must all hold; a bare value means `eq`.
"""

import math
import re
from typing import Any

from store.errors import QueryError
from store.metadata import LARGEST_INTEGER, SMALLEST_INTEGER
from store.query.moments import microseconds
from store.query.syntax import (
    FIELDS,
    OPERATORS,
    And,
    Compare,
    Filter,
    Kind,
    Label,
    Not,
    Or,
    Scalar,
)

MAX_DEPTH = 16
MAX_LEAVES = 200
MAX_OBJECTS = 1000
MAX_IN = 1000
MAX_VALUES = 10_000
"""Of all `in` lists together: a statement binds so many values at most."""

_BOUNDS = ("eq", "gt", "ge", "lt", "le")
_ID = re.compile(r"\d{1,19}", re.ASCII)
_KINDS = {bool: "a boolean", int: "an integer", float: "a number", str: "a string", list: "a list",
          dict: "an object", type(None): "null"}  # fmt: skip


def parse(where: Any, now_us: int) -> Filter:
    """Read a filter; `None` and `{}` match everything.

    Args:
        where: Decoded JSON.
        now_us: What `now` means, in microseconds since the epoch.

    Raises:
        QueryError: It is no filter; the message names the place, as `where.and[1].meta.altitude`.
    """
    return _Parser(now_us).tree({} if where is None else where, "where", 1)


class _Parser:
    def __init__(self, now_us: int) -> None:
        self._now_us = now_us
        self._leaves = self._objects = self._values = 0

    def tree(self, node: Any, path: str, depth: int) -> Filter:
        if not isinstance(node, dict):
            raise _unexpected(path, "an object", node)
        if depth > MAX_DEPTH:
            raise QueryError(
                f"expected the filter to be at most {MAX_DEPTH} deep, got more at {path}"
            )
        self._objects = _counted(self._objects + 1, MAX_OBJECTS, "objects in a filter")
        parts: list[Filter] = []
        for key, value in node.items():
            here = f"{path}.{key}"
            if key in {"and", "or"}:
                if not isinstance(value, list):
                    raise _unexpected(here, "a list of filters", value)
                inner = tuple(
                    self.tree(part, f"{here}[{position}]", depth + 1)
                    for position, part in enumerate(value)
                )
                parts.append(And(inner) if key == "and" else Or(inner))
            elif key == "not":
                parts.append(Not(self.tree(value, here, depth + 1)))
            elif key == "label":
                parts += self._label(value, here)
            else:
                parts += self._field(key, value, here)
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _field(self, field: str, value: Any, path: str) -> list[Filter]:
        kind: Kind | None = "meta" if field.startswith("meta.") and field != "meta." else None
        kind = kind or FIELDS.get(field)
        if kind is None:
            known = ", ".join(("and", "or", "not", *FIELDS, "label", "meta.<key>"))
            raise QueryError(f"expected {path} to name one of {known}, got {field!r}")
        found = []
        for operator, operand, here in _operators(value, path, OPERATORS[kind]):
            self._leaves = _counted(self._leaves + 1, MAX_LEAVES, "comparisons in a filter")
            found.append(self._compare(field, kind, operator, operand, here))
        return found

    def _compare(self, field: str, kind: Kind, operator: str, value: Any, path: str) -> Filter:
        if operator == "exists":
            if not isinstance(value, bool):
                raise _unexpected(path, "true or false", value)
            present = Compare(field, "exists", True)
            return present if value else Not(present)
        if operator == "in":
            return Compare(field, "in", self._list(kind, value, path))
        scalar = self._scalar(kind, value, path)
        if operator == "contains" and not isinstance(scalar, str):
            raise _unexpected(path, "a string", value)
        if operator in {"gt", "ge", "lt", "le"} and isinstance(scalar, bool):
            raise _unexpected(path, "a number or a string", value)
        if operator == "ne":
            return Not(Compare(field, "eq", scalar))
        return Compare(field, operator, scalar)  # type: ignore[arg-type]  # one of OPERATORS

    def _label(self, value: Any, path: str) -> list[Filter]:
        if isinstance(value, dict) and ("name" in value or "score" in value):
            return [self._scored_label(value, path)]
        found: list[Filter] = []
        for operator, operand, here in _operators(value, path, ("eq", "ne", "in")):
            self._leaves = _counted(self._leaves + 1, MAX_LEAVES, "comparisons in a filter")
            if operator == "in":
                found.append(Label(tuple(map(str, self._list("text", operand, here)))))
            else:
                label = Label((str(self._scalar("text", operand, here)),))
                found.append(Not(label) if operator == "ne" else label)
        return found

    def _scored_label(self, value: dict[str, Any], path: str) -> Label:
        self._leaves = _counted(self._leaves + 1, MAX_LEAVES, "comparisons in a filter")
        unknown = value.keys() - {"name", "score"}
        if unknown:
            raise QueryError(f"expected {path} to have name and score only, got {min(unknown)!r}")
        name = str(self._scalar("text", value.get("name"), f"{path}.name"))
        if "score" not in value:
            return Label((name,))
        bounds = [
            (operator, float(self._scalar("number", bound, here)))
            for operator, bound, here in _operators(value["score"], f"{path}.score", _BOUNDS)
        ]
        return Label((name,), tuple(bounds))  # type: ignore[arg-type]  # operators of _BOUNDS

    def _list(self, kind: Kind, value: Any, path: str) -> tuple[Scalar, ...]:
        if not isinstance(value, list):
            raise _unexpected(path, "a list", value)
        _counted(len(value), MAX_IN, f"values in {path}")
        self._values = _counted(
            self._values + len(value), MAX_VALUES, "values in all lists together"
        )
        return tuple(
            self._scalar(kind, item, f"{path}[{position}]") for position, item in enumerate(value)
        )

    def _scalar(self, kind: Kind, value: Any, path: str) -> Scalar:
        """Check one value and give the form in which it is compared."""
        if isinstance(value, float) and not math.isfinite(value):
            raise _unexpected(path, "a finite number", value)
        if isinstance(value, int) and not SMALLEST_INTEGER <= value <= LARGEST_INTEGER:
            bits = value.bit_length() + 1
            raise QueryError(f"expected {path} to be a number of 64 bits, got one of {bits}")
        if kind == "id":
            if isinstance(value, str) and _ID.fullmatch(value):
                return int(value)
            raise _unexpected(path, "an id as a string of digits", value)
        if kind == "time":
            return self._moment(value, path)
        if kind == "number":
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise _unexpected(path, "a number", value)
            return float(value)
        if kind in {"text", "name"}:
            if not isinstance(value, str):
                raise _unexpected(path, "a string", value)
        elif value is None:
            raise QueryError(
                f'expected {path} to be a value, got null; ask for {{"exists": false}}'
            )
        elif not isinstance(value, str | int | float):
            raise _unexpected(path, "a string, a number or a boolean", value)
        scalar: Scalar = value
        return scalar

    def _moment(self, value: Any, path: str) -> int:
        expected = "a moment such as 2026-01-31T12:00:00Z, -24h or now"
        if not isinstance(value, str):
            raise _unexpected(path, expected, value)
        try:
            return microseconds(value, self._now_us)
        except ValueError as error:
            raise _unexpected(path, expected, value) from error


def _operators(value: Any, path: str, allowed: tuple[str, ...]) -> list[tuple[str, Any, str]]:
    """Return (operator, operand, path) of each; a bare value is `eq`."""
    if not isinstance(value, dict):
        return [("eq", value, path)]
    if not value:
        raise QueryError(f"expected {path} to have one of {', '.join(allowed)}, got nothing")
    for operator in value:
        if operator not in allowed:
            raise QueryError(
                f"expected {path} to have one of {', '.join(allowed)}, got {operator!r}"
            )
    return [(operator, operand, f"{path}.{operator}") for operator, operand in value.items()]


def _counted(count: int, limit: int, what: str) -> int:
    if count > limit:
        raise QueryError(f"expected at most {limit} {what}, got more")
    return count


def _unexpected(path: str, expected: str, value: Any) -> QueryError:
    kind = _KINDS.get(type(value), type(value).__name__)
    shown = "" if value is None or isinstance(value, list | dict) else f" {str(value)[:80]!r}"
    return QueryError(f"expected {path} to be {expected}, got {kind}{shown}")

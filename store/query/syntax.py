"""The filter as a tree, whatever form it was written in.

Filters are two-valued: a comparison with an absent key, or across types, is false, so its `Not` is true.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

Scalar = str | int | float | bool

Ordering = Literal["gt", "ge", "lt", "le"]
Operator = Literal["eq", "gt", "ge", "lt", "le", "in", "exists", "contains"]


class And(msgspec.Struct, frozen=True):
    """All of the parts; true of no parts."""

    parts: tuple["Filter", ...]


class Or(msgspec.Struct, frozen=True):
    """Any of the parts; false of no parts."""

    parts: tuple["Filter", ...]


class Not(msgspec.Struct, frozen=True):
    """Not the part; `ne` is `Not` of `eq`."""

    part: "Filter"


class Compare(msgspec.Struct, frozen=True):
    """A field compared with a value."""

    field: str
    """A name in `FIELDS`, or `meta.` and a dotted path."""
    operator: Operator
    value: Scalar | tuple[Scalar, ...]
    """A tuple for `in`, `True` for `exists`; `id` is an integer, `ts` microseconds since the epoch."""


class Range(msgspec.Struct, frozen=True):
    """Bounds of one type on one metadata key, as `merged` makes them: one range of an index."""

    field: str
    bounds: tuple[tuple[Ordering, Scalar], ...]


class Label(msgspec.Struct, frozen=True):
    """Some prediction has one of these labels, and a score within all bounds."""

    names: tuple[str, ...]
    bounds: tuple[tuple[Literal["eq", "gt", "ge", "lt", "le"], float], ...] = ()


Filter = And | Or | Not | Compare | Range | Label

Kind = Literal["id", "time", "text", "name", "number", "meta"]

_ORDERED = ("eq", "ne", "gt", "ge", "lt", "le", "in", "exists")
OPERATORS: dict[Kind, tuple[str, ...]] = {
    "id": _ORDERED,
    "time": _ORDERED,
    "number": _ORDERED,
    "text": (*_ORDERED, "contains"),
    "meta": (*_ORDERED, "contains"),
    "name": ("eq", "ne", "in", "exists"),
}
"""What each kind of field can be asked."""

FIELDS: dict[str, Kind] = {
    "id": "id",
    "request_id": "text",
    "model": "name",
    "task": "name",
    "action": "text",
    "ts": "time",
    "latency_ms": "number",
    "input.hash": "text",
}
"""Fields beside `label` and `meta.<path>`."""


def merged(parts: Iterable[Filter]) -> list[Filter]:
    """Join the bounds that the parts of an AND set on the same metadata key."""
    result: list[Filter] = []
    ranges: dict[tuple[str, bool], list[tuple[Ordering, Scalar]]] = {}
    for part in parts:
        if (
            isinstance(part, Compare)
            and part.field.startswith("meta.")
            and part.operator in {"gt", "ge", "lt", "le"}
            and not isinstance(part.value, tuple)
        ):
            bounds = ranges.setdefault((part.field, isinstance(part.value, str)), [])
            bounds.append((part.operator, part.value))
        else:
            result.append(part)
    return result + [Range(field, tuple(bounds)) for (field, _), bounds in ranges.items()]


def leaves(tree: Filter) -> list[Compare | Range | Label]:
    """Return all comparisons of a tree."""
    if isinstance(tree, And | Or):
        return [leaf for part in tree.parts for leaf in leaves(part)]
    if isinstance(tree, Not):
        return leaves(tree.part)
    return [tree]

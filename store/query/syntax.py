"""The filter as a tree, whatever form it was written in.

Filters are two-valued: a comparison with an absent key, or across types, is false, so its `Not` is true.
"""

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


class Label(msgspec.Struct, frozen=True):
    """Some prediction has one of these labels, and a score within all bounds."""

    names: tuple[str, ...]
    bounds: tuple[tuple[Literal["eq", "gt", "ge", "lt", "le"], float], ...] = ()


Filter = And | Or | Not | Compare | Label

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


def leaves(tree: Filter) -> list[Compare | Label]:
    """Return all comparisons of a tree."""
    if isinstance(tree, And | Or):
        return [leaf for part in tree.parts for leaf in leaves(part)]
    if isinstance(tree, Not):
        return leaves(tree.part)
    return [tree]

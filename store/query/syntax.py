"""The filter as a tree, whatever form it was written in.

Filters are two-valued: a comparison with an absent key, or across types, is false, so its `Not` is true.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import msgspec

Scalar = str | int | float | bool

BoundOperator = Literal["eq", "gt", "ge", "lt", "le"]
Operator = Literal["eq", "gt", "ge", "lt", "le", "in", "exists", "contains"]
Property = Literal["score", "area", "cx", "cy", "width", "height"]


class And(msgspec.Struct, frozen=True):
    """All of the parts; true of no parts."""

    operands: tuple["Filter", ...]


class Or(msgspec.Struct, frozen=True):
    """Any of the parts; false of no parts."""

    operands: tuple["Filter", ...]


class Not(msgspec.Struct, frozen=True):
    """Not the part; `ne` is `Not` of `eq`."""

    operand: "Filter"


class Compare(msgspec.Struct, frozen=True):
    """A field compared with a value."""

    field: str
    """A name in `FIELDS`, or `meta.` or `std.` and a dotted path."""
    operator: Operator
    value: Scalar | tuple[Scalar, ...]
    """A tuple for `in`, `True` for `exists`; `id` is an integer, `ts` microseconds since the epoch."""


class Range(msgspec.Struct, frozen=True):
    """Bounds of one type on one metadata key, as `conjuncts` makes them: one range of an index."""

    field: str
    bounds: tuple[tuple[BoundOperator, Scalar], ...]


class PredictionCondition(msgspec.Struct, frozen=True):
    """Some prediction has one of the labels and properties within all bounds; or so many have."""

    labels: tuple[str, ...] | None
    """`None` is any label, or none."""
    bounds: tuple[tuple[Property, BoundOperator, float], ...] = ()
    """Lengths in pixels of the image."""
    count: tuple[tuple[BoundOperator, float], ...] = ()
    """Of the predictions that have all that; no bounds mean at least one."""


class GeoCircle(msgspec.Struct, frozen=True):
    """Places within a distance on the sphere."""

    latitude: float
    longitude: float
    metres: float


class GeoBox(msgspec.Struct, frozen=True):
    """Places between parallels and meridians; from west eastwards to east, across 180 degrees too."""

    south: float
    west: float
    north: float
    east: float


class GeoPolygon(msgspec.Struct, frozen=True):
    """Places inside a ring of (latitude, longitude), whose edges are straight on a map of both.

    An edge takes the shorter way around the earth; a ring around a pole holds the pole.
    """

    points: tuple[tuple[float, float], ...]


class PlaceCondition(msgspec.Struct, frozen=True):
    """The metadata's `latitude` and `longitude` lie in a shape; both ends of all ranges included."""

    shape: GeoCircle | GeoBox | GeoPolygon


Leaf = Compare | Range | PredictionCondition | PlaceCondition
Filter = And | Or | Not | Leaf

FieldKind = Literal["id", "time", "text", "texts", "name", "number", "value", "presence"]

_ORDERED = ("eq", "ne", "gt", "ge", "lt", "le", "in", "exists")
OPERATORS: dict[FieldKind, tuple[str, ...]] = {
    "id": _ORDERED,
    "time": _ORDERED,
    "number": _ORDERED,
    "text": (*_ORDERED, "contains"),
    "value": (*_ORDERED, "contains"),
    "texts": ("eq", "ne", "in", "exists", "contains"),
    "name": ("eq", "ne", "in", "exists"),
    "presence": ("exists",),
}
"""What each kind of field can be asked; `texts` are several, one of which is looked for."""

FIELDS: dict[str, FieldKind] = {
    "id": "id",
    "request_id": "text",
    "model": "name",
    "version": "name",
    "task": "name",
    "action": "text",
    "ts": "time",
    "latency_ms": "number",
    "status": "number",
    "predictions": "number",
    "answer": "texts",
    "input.hash": "text",
    "ground_truth": "presence",
    "ground_truth.label": "texts",
    "feedback": "presence",
}
"""Fields beside `label`, `box`, `geo`, `meta.<path>` and `std.<path>`."""

PROPERTIES: tuple[Property, ...] = get_args(Property)
BOUNDS: tuple[BoundOperator, ...] = get_args(BoundOperator)


def kind_of(field: str) -> FieldKind | None:
    """Return what kind of field this is; `None` where it is none that is compared with values."""
    if field.startswith(("meta.", "std.")) and not field.endswith("."):
        return "value"
    return FIELDS.get(field)


def join_operands(kind: type[And] | type[Or], parts: Sequence[Filter]) -> Filter:
    """Return the parts under one node; one part needs none."""
    return parts[0] if len(parts) == 1 else kind(tuple(parts))


def conjuncts(tree: Filter) -> list[Filter]:
    """Return what must all hold, the bounds on the same metadata key joined."""
    result: list[Filter] = []
    ranges: dict[tuple[str, bool], list[tuple[BoundOperator, Scalar]]] = {}
    for part in _flat(tree):
        if (
            isinstance(part, Compare)
            and part.field.startswith(("meta.", "std."))
            and part.operator in {"gt", "ge", "lt", "le"}
            and not isinstance(part.value, tuple)
        ):
            bounds = ranges.setdefault((part.field, isinstance(part.value, str)), [])
            bounds.append((part.operator, part.value))
        else:
            result.append(part)
    return result + [Range(field, tuple(bounds)) for (field, _), bounds in ranges.items()]


def _flat(tree: Filter) -> list[Filter]:
    if isinstance(tree, And):
        return [leaf for part in tree.operands for leaf in _flat(part)]
    return [tree]


def leaves(tree: Filter) -> list[Leaf]:
    """Return all comparisons of a tree."""
    if isinstance(tree, And | Or):
        return [leaf for part in tree.operands for leaf in leaves(part)]
    if isinstance(tree, Not):
        return leaves(tree.operand)
    return [tree]

"""Tree of a filter, whatever form it was written in.

Filters are two-valued: a comparison with an absent key, or across types, is false, so its `Not` is true.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, get_args

import msgspec

from quadriga.store.records.records import IMAGE_STATISTICS

Scalar = str | int | float | bool

BoundOperator = Literal["eq", "gt", "ge", "lt", "le"]
Operator = Literal["eq", "gt", "ge", "lt", "le", "in", "exists", "contains"]
Property = Literal["score", "area", "cx", "cy", "width", "height"]


class And(msgspec.Struct, frozen=True):
    """Conjunction of the operands; true if there are none."""

    operands: tuple["Filter", ...]


class Or(msgspec.Struct, frozen=True):
    """Disjunction of the operands; false if there are none."""

    operands: tuple["Filter", ...]


class Not(msgspec.Struct, frozen=True):
    """Negation of the operand; `ne` is `Not` of `eq`."""

    operand: "Filter"


class Compare(msgspec.Struct, frozen=True):
    """Comparison of a field with a value."""

    field: str
    """Name in `FIELDS`, or `meta.` or `std.` and a dotted path."""
    operator: Operator
    value: Scalar | tuple[Scalar, ...]
    """Tuple for `in`, `True` for `exists`; `id` is an integer, `ts` microseconds since 1970."""

    @property
    def values(self) -> tuple[Scalar, ...]:
        """The values that the field is compared with."""
        return self.value if isinstance(self.value, tuple) else (self.value,)


class Range(msgspec.Struct, frozen=True):
    """Bounds of one type on one metadata key, created by `conjuncts`: one index range."""

    field: str
    bounds: tuple[tuple[BoundOperator, Scalar], ...]


class PredictionCondition(msgspec.Struct, frozen=True):
    """Condition that some prediction, or a number of them, has one of the labels and is within all bounds."""

    labels: tuple[str, ...] | None
    """Labels, one of which is required; `None` allows any label, or none."""
    bounds: tuple[tuple[Property, BoundOperator, float], ...] = ()
    """Bounds of properties; lengths in pixels of the image."""
    count: tuple[tuple[BoundOperator, float], ...] = ()
    """Bounds of the number of such predictions; without bounds at least one is required."""
    is_best: bool = False
    """Whether a label of a classification has to be its best one, that of the highest score."""


class GeoCircle(msgspec.Struct, frozen=True):
    """Circle on the sphere."""

    latitude: float
    longitude: float
    metres: float


class GeoBox(msgspec.Struct, frozen=True):
    """Area between parallels and meridians; from west eastwards to east, also across 180 degrees."""

    south: float
    west: float
    north: float
    east: float


class GeoPolygon(msgspec.Struct, frozen=True):
    """Area inside a ring of (latitude, longitude), whose edges are straight on a map of both.

    An edge takes the shorter way around the earth; a ring around a pole holds the pole.
    """

    points: tuple[tuple[float, float], ...]


class PlaceCondition(msgspec.Struct, frozen=True):
    """Condition that the `latitude` and `longitude` of the metadata lie in a shape, bounds included."""

    shape: GeoCircle | GeoBox | GeoPolygon


class ReportCells(msgspec.Struct, frozen=True):
    """Condition that some cells of a report's confusion matrix list the inference: `report=ID & truth=star & predicted=cross`.

    A report lists its inferences in a file that this package does not know: who opens the store says how they are found.
    """

    report: str
    """Id of the report."""
    truth: tuple[str, ...] | None = None
    """True labels, one of which is required, empty for predictions without an object; `None` allows any."""
    predicted: tuple[str, ...] | None = None
    """Predicted labels, as above; empty for objects without a prediction."""

    def has(self, truth: str, predicted: str) -> bool:
        """Check whether a cell is one of these; empty labels are no object and no prediction."""
        return (self.truth is None or truth in self.truth) and (
            self.predicted is None or predicted in self.predicted
        )


class IdList(msgspec.Struct, frozen=True):
    """Condition that the id is one of many, rising."""

    ids: tuple[int, ...]


Leaf = Compare | Range | PredictionCondition | PlaceCondition | ReportCells | IdList
Filter = And | Or | Not | Leaf


class ResolvedFilter(NamedTuple):
    """Filter whose names mean what there is, made by `quadriga.store.query.names.resolve`."""

    tree: Filter
    paths: tuple[str, ...] = ()
    """Paths of the metadata that it compares."""
    ids: tuple[int, ...] = ()
    """Ids that `eq` and `in` name."""
    with_replays: bool = False
    """Whether it can mean replays: by their names, their ids, or what links them to others."""


FieldKind = Literal[
    "id",
    "time",
    "text",
    "texts",
    "name",
    "hash",
    "number",
    "value",
    "presence",
    "review",
    "report",
    "cell",
]

_ORDERED = ("eq", "ne", "gt", "ge", "lt", "le", "in", "exists")
OPERATORS: dict[FieldKind, tuple[str, ...]] = {
    "id": _ORDERED,
    "time": _ORDERED,
    "number": _ORDERED,
    "text": (*_ORDERED, "contains"),
    "value": (*_ORDERED, "contains"),
    "texts": ("eq", "ne", "in", "exists", "contains"),
    "name": ("eq", "ne", "in", "exists"),
    "hash": ("eq", "ne", "in", "exists"),
    "review": ("eq", "ne", "in", "exists"),
    "presence": ("exists",),
    "report": ("eq",),
    "cell": ("eq", "in"),
}
"""Operators of each kind of field; `texts` are several texts, one of which must match."""

FIELDS: dict[str, FieldKind] = {
    "id": "id",
    "request_id": "text",
    "model": "name",
    "version": "name",
    "model.sha256": "hash",
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
    "ground_truth.review": "review",
    "feedback": "presence",
    "report": "report",
    "truth": "cell",
    "predicted": "cell",
}
"""Fields beside `label`, `box`, `geo`, `meta.<path>` and `std.<path>`."""

MIN_HASH_DIGITS = 8
"""Fewest digits that stand for the hash of a model's file that begins with them."""

SIGNAL_FIELDS = tuple(f"sig.image.{name}" for name in IMAGE_STATISTICS)
"""Fields of the numbers that were measured on the image, for drift; not every image has them."""

PROPERTIES: tuple[Property, ...] = get_args(Property)
BOUNDS: tuple[BoundOperator, ...] = get_args(BoundOperator)


def kind_of(field: str) -> FieldKind | None:
    """Return the kind of a field, or `None` if it cannot be compared with values."""
    if field.startswith(("meta.", "std.")) and not field.endswith("."):
        return "value"
    if field in SIGNAL_FIELDS:
        return "number"
    return FIELDS.get(field)


def join_operands(node_type: type[And] | type[Or], operands: Sequence[Filter]) -> Filter:
    """Return the operands under one node, or the operand itself if there is only one."""
    return operands[0] if len(operands) == 1 else node_type(tuple(operands))


def conjuncts(tree: Filter) -> list[Filter]:
    """Return the operands of the outermost AND, with bounds on the same metadata key combined."""
    result: list[Filter] = []
    ranges: dict[tuple[str, bool], list[tuple[BoundOperator, Scalar]]] = {}
    for operand in _flat(tree):
        if (
            isinstance(operand, Compare)
            and operand.field.startswith(("meta.", "std."))
            and operand.operator in {"gt", "ge", "lt", "le"}
            and not isinstance(operand.value, tuple)
        ):
            bounds = ranges.setdefault((operand.field, isinstance(operand.value, str)), [])
            bounds.append((operand.operator, operand.value))
        else:
            result.append(operand)
    return result + [Range(field, tuple(bounds)) for (field, _), bounds in ranges.items()]


def _flat(tree: Filter) -> list[Filter]:
    if isinstance(tree, And):
        return [leaf for operand in tree.operands for leaf in _flat(operand)]
    return [tree]


def leaves(tree: Filter) -> list[Leaf]:
    """Return all comparisons of a tree."""
    if isinstance(tree, And | Or):
        return [leaf for operand in tree.operands for leaf in leaves(operand)]
    if isinstance(tree, Not):
        return leaves(tree.operand)
    return [tree]


def map_leaves(tree: Filter, convert: Callable[[Leaf], Leaf]) -> Filter:
    """Return a tree with each comparison converted."""
    if isinstance(tree, And | Or):
        return type(tree)(tuple(map_leaves(operand, convert) for operand in tree.operands))
    if isinstance(tree, Not):
        return Not(map_leaves(tree.operand, convert))
    return convert(tree)

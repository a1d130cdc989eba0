"""Writes a filter's tree in the compact form, from which the same tree is read again."""

import re
from datetime import UTC, datetime, timedelta

import msgspec

from quadriga.store.query.filters.syntax import (
    And,
    Compare,
    Filter,
    GeoBox,
    GeoCircle,
    Leaf,
    Not,
    Or,
    PlaceCondition,
    PredictionCondition,
    Range,
    Scalar,
)

_BARE = re.compile(r"[A-Za-z_][\w./-]*", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def render(tree: Filter) -> str:
    """Return a filter as text; moments are absolute in it."""
    if isinstance(tree, And):
        return " & ".join(map(_unit, tree.operands)) or "()"
    if isinstance(tree, Or):
        return " | ".join(map(_unit, tree.operands)) or "(|)"
    if isinstance(tree, Not):
        return f"!{_unit(tree.operand)}"
    return _leaf(tree)


def _leaf(leaf: Leaf) -> str:
    if isinstance(leaf, PredictionCondition):
        return _predicted(leaf)
    if isinstance(leaf, PlaceCondition):
        return f"geo={_shape(leaf)}"
    if isinstance(leaf, Range):
        compares = (Compare(leaf.field, operator, value) for operator, value in leaf.bounds)
        return _unit(And(tuple(compares)))
    return f"{_text(leaf.field)}={_operand(leaf)}"


def _unit(tree: Filter) -> str:
    text = render(tree)
    return f"({text})" if isinstance(tree, And | Or) and tree.operands else text


def _operand(leaf: Compare) -> str:
    if leaf.operator == "exists":
        return "exists:true"
    values = leaf.value if isinstance(leaf.value, tuple) else (leaf.value,)
    text = ",".join(_value(leaf.field, value) for value in values)
    return text if leaf.operator == "eq" else f"{leaf.operator}:{text}"


def _value(field: str, value: Scalar) -> str:
    if field == "ts":
        return (_EPOCH + timedelta(microseconds=int(value))).isoformat()
    if isinstance(value, str):
        return _text(value)
    return msgspec.json.encode(value).decode()


def _text(value: str) -> str:
    is_bare = _BARE.fullmatch(value) and value not in {"true", "false"}
    return value if is_bare else msgspec.json.encode(value).decode()


def _predicted(leaf: PredictionCondition) -> str:
    within = [*leaf.bounds, *(("n", operator, number) for operator, number in leaf.count)]
    bounds = ":".join(f"{name}:{operator}:{number!r}" for name, operator, number in within)
    if leaf.labels is None:
        return f"box={bounds}"
    field = "best" if leaf.is_best else "label"
    names = ",".join(map(_text, leaf.labels))
    if len(leaf.labels) != 1:
        names = f"in:{names}"
    elif names in {"eq", "ne", "in"}:
        names = f'"{names}"'
    return f"{field}={names}:{bounds}" if bounds else f"{field}={names}"


def _shape(place: PlaceCondition) -> str:
    shape = place.shape
    if isinstance(shape, GeoCircle):
        return f"{shape.latitude!r},{shape.longitude!r},{shape.metres!r}m"
    if isinstance(shape, GeoBox):
        return f"box:{shape.south!r},{shape.west!r},{shape.north!r},{shape.east!r}"
    return "polygon:" + ",".join(f"{number!r}" for point in shape.points for number in point)

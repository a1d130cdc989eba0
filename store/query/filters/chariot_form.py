"""Parser of Chariot's filters: lists of `{key, type, operator, value}`, a box, a time range.

They stand in a filter as JSON, or in a body beside `where`, of which they then become a part.

Source: Chariot, Inference Store, `MetadataFilter`, `GPSBox`, `TimeRange`.
"""

from typing import Any, TypeVar

import msgspec

from quadriga.store.query.filters.comparisons import ComparisonParser, check_count, unexpected_value
from quadriga.store.query.filters.syntax import And, Filter, Not, join_operands
from quadriga.store.records.errors import JSON_ERRORS, QueryError

CHARIOT_OPERATORS = {
    "eq": "eq", "neq": "ne", "gt": "gt", "gte": "ge", "lt": "lt", "lte": "le", "in": "in",
    "=": "eq", "==": "eq", "!=": "ne", ">": "gt", ">=": "ge", "<": "lt", "<=": "le",
    "ne": "ne", "ge": "ge", "le": "le", "contains": "contains", "exists": "exists",
}  # fmt: skip
"""Names and signs of Chariot's operators, and the operators of this store."""

CHARIOT_TYPES: dict[str, type] = {
    "str": str, "string": str, "float": float, "int": int, "bool": bool, "dict": dict,
}  # fmt: skip
MAX_FILTERS = 200
_Meaning = TypeVar("_Meaning")


class MetadataFilter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Comparison with a metadata key."""

    key: str
    value: Any
    """Text of the type, or a JSON value."""
    type: str = "string"
    operator: str = "eq"


class GPSBox(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Degrees."""

    min_lat: float
    min_lon: float
    max_lat: float
    max_lon: float


class TimeRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Moments, both included."""

    start: str | None = None
    end: str | None = None


class ChariotFilter(msgspec.Struct, frozen=True):
    """Filters of Chariot's clients, all of which must hold."""

    metadata_filter: list[MetadataFilter] = []
    gps_box: GPSBox | None = None
    time_range: TimeRange | None = None


NAMES = ChariotFilter.__struct_fields__


def move_into_where(body: Any) -> Any:
    """Return a decoded body whose filters of Chariot are a part of its `where`, which may be another filter too."""
    if not isinstance(body, dict) or not any(name in body for name in NAMES):
        return body
    where = body.get("where")
    chariot_filter = {name: body[name] for name in NAMES if body.get(name) is not None}
    rest = {name: value for name, value in body.items() if name not in NAMES}
    if not chariot_filter:
        return rest
    is_alone = where in (None, {})
    return rest | {"where": chariot_filter if is_alone else {"and": [where, chariot_filter]}}


def parse(node: dict[str, Any], parser: ComparisonParser) -> list[Filter]:
    """Read the filters of Chariot in an object of JSON; none if there are none.

    Raises:
        QueryError: One means nothing; the message names its place, as `metadata_filter[0].value`.
    """
    present = {name: node[name] for name in NAMES if name in node}
    if not present:
        return []
    try:
        filters = msgspec.convert(present, ChariotFilter)
    except JSON_ERRORS as error:
        raise QueryError(
            "expected metadata_filter to be a list of objects with key, type, operator and value, gps_box an object "
            f"with min_lat, min_lon, max_lat and max_lon, time_range one with start and end, got: {error}"
        ) from error
    check_count(len(filters.metadata_filter), MAX_FILTERS, "filters in metadata_filter")
    operands: list[Filter] = []
    for position, item in enumerate(filters.metadata_filter):
        operands += _metadata(item, f"metadata_filter[{position}]", parser)
    if (box := filters.gps_box) is not None:
        corners = {"box": [box.min_lat, box.min_lon, box.max_lat, box.max_lon]}
        operands += parser.read("geo", corners, "gps_box")
    if (times := filters.time_range) is not None:
        ends = {"ge": times.start, "le": times.end}
        for operator, moment in ends.items():
            if moment is not None:
                operands += parser.read("ts", {operator: moment}, "time_range")
    return operands


def _metadata(item: MetadataFilter, path: str, parser: ComparisonParser) -> list[Filter]:
    operator = _lookup(CHARIOT_OPERATORS, item.operator, f"{path}.operator")
    type_ = _lookup(CHARIOT_TYPES, item.type, f"{path}.type")
    field = f"meta.{item.key}"
    if operator == "exists":
        return parser.read(field, {"exists": _typed(item.value, bool, path)}, path)
    if operator == "in":
        values = _split(item.value) if isinstance(item.value, str) else item.value
        if not isinstance(values, list) or type_ is dict:
            raise unexpected_value(
                f"{path}.value",
                "a list, its JSON as a text, or a text with commas, of one type",
                item.value,
            )
        typed = [_typed(value, type_, path) for value in values]
        return parser.read(field, {"in": typed}, path)
    value = _typed(item.value, type_, path)
    if type_ is not dict:
        return parser.read(field, {operator: value}, path)
    if operator not in {"eq", "ne"}:
        raise QueryError(
            f"expected {path}.operator to be eq or neq for a dict, got {item.operator!r}"
        )
    entries = join_operands(And, _entries(field, value, path, parser))
    return [Not(entries) if operator == "ne" else entries]


def _split(text: str) -> Any:
    """Return the values of a text: of a list in JSON, or those between commas; None for a list that is none."""
    if not text.lstrip().startswith("["):
        return [value.strip() for value in text.split(",")]
    try:
        return msgspec.json.decode(text)
    except JSON_ERRORS:
        return None


def _lookup(table: dict[str, _Meaning], name: str, path: str) -> _Meaning:
    if name.lower() not in table:
        raise QueryError(f"expected {path} to be one of {', '.join(table)}, got {name[:80]!r}")
    return table[name.lower()]


def _entries(
    field: str, value: dict[str, Any], path: str, parser: ComparisonParser, *, depth: int = 1
) -> list[Filter]:
    """Return that each entry of a dict is there: there may be more."""
    conditions = parser.read(field, {"exists": True}, path)
    check_count(depth, 16, f"levels in {path}.value")
    for key, inner in value.items():
        if isinstance(inner, dict):
            conditions += _entries(f"{field}.{key}", inner, path, parser, depth=depth + 1)
        else:
            conditions += parser.read(f"{field}.{key}", inner, f"{path}.value.{key[:80]}")
    return conditions


def _typed(value: Any, type_: type, path: str) -> Any:
    """Return the value that text of a type stands for, or a value of that type itself."""
    path = f"{path}.value"
    if isinstance(value, str) and type_ is not str:
        text = value.strip().lower() if type_ is bool else value
        try:
            value = msgspec.json.decode(text)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise unexpected_value(path, f"text of type {type_.__name__}", value) from error
    allowed = (int, float) if type_ is float else type_
    if not isinstance(value, allowed) or (isinstance(value, bool) and type_ is not bool):
        expected = "a string" if type_ is str else f"of type {type_.__name__}"
        raise unexpected_value(path, expected, value)
    return value

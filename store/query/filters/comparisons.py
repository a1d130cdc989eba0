"""Parser of the operands of fields, which returns leaves of the filter tree: the same for every form.

A bare value means `eq`; several operators on one field must all hold.
"""

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec

from quadriga.store.query.filters.syntax import (
    BOUNDS,
    FIELDS,
    MIN_HASH_DIGITS,
    OPERATORS,
    PROPERTIES,
    SIGNAL_FIELDS,
    Compare,
    FieldKind,
    Filter,
    GeoBox,
    GeoCircle,
    GeoPolygon,
    Not,
    PlaceCondition,
    PredictionCondition,
    Scalar,
    kind_of,
)
from quadriga.store.records.errors import QueryError
from quadriga.store.records.geo import is_within
from quadriga.store.records.metadata import LARGEST_INTEGER, MAX_BYTES, SMALLEST_INTEGER
from quadriga.store.records.records import REVIEWS

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_RELATIVE = re.compile(r"-(\d{1,9})([smhdw])", re.ASCII)
EXPECTED_MOMENT = "a moment such as 2026-01-31T12:00:00Z, -24h or now"
"""Description of a moment, for error messages."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_moment_us(text: str, now_us: int) -> int:
    """Return a moment in microseconds since 1970.

    Args:
        text: `2026-01-31T12:00:00Z` with any offset, `now`, or `-` number and one of s, m, h, d, w.
        now_us: Time that `now` stands for.

    Raises:
        ValueError: The text is not a moment.
    """
    if text == "now":
        return now_us
    relative = _RELATIVE.fullmatch(text)
    if relative:
        # Ids begin after 1970, and a much earlier time could not be converted to a date.
        return max(now_us - int(relative[1]) * UNITS_S[relative[2]] * 1_000_000, 0)
    try:
        moment: datetime = msgspec.convert(text, Annotated[datetime, msgspec.Meta(tz=True)])
    except msgspec.ValidationError as error:
        raise ValueError(f"expected a moment of RFC 3339 with an offset, got {text!r}") from error
    return (moment - _EPOCH) // timedelta(microseconds=1)


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


MAX_CORNERS = 100
_UNITS_M = {"m": 1.0, "km": 1000.0, "mi": 1609.344, "nmi": 1852.0}
_DISTANCE = re.compile(r"(\d{1,9}(?:\.\d{1,20})?(?:e[+-]?\d{1,3})?)(m|km|mi|nmi)", re.ASCII)
_SHAPES = '{"near": [latitude, longitude], "within": "5km"}, {"box": [south, west, north, east]} or {"polygon": [[latitude, longitude], …]}'


def parse_shape(value: Any, path: str) -> PlaceCondition:
    """Parse a shape; raise a `QueryError` with the allowed shapes if it is invalid."""
    keys = value.keys() if isinstance(value, dict) else set()
    if keys == {"near", "within"}:
        latitude, longitude = _point(value["near"], f"{path}.near")
        return PlaceCondition(
            GeoCircle(latitude, longitude, _metres(value["within"], f"{path}.within"))
        )
    if keys == {"box"}:
        return PlaceCondition(_box(value["box"], f"{path}.box"))
    if keys == {"polygon"}:
        return PlaceCondition(_polygon(value["polygon"], f"{path}.polygon"))
    raise unexpected_value(path, _SHAPES, value)


def _box(value: Any, path: str) -> GeoBox:
    if not isinstance(value, list) or len(value) != 4:
        raise unexpected_value(path, "[south, west, north, east]", value)
    south, west = _point(value[:2], path)
    north, east = _point(value[2:], path)
    if south > north:
        raise QueryError(f"expected {path} to have its south first, got {south} before {north}")
    return GeoBox(south, west, north, east)


def _polygon(value: Any, path: str) -> GeoPolygon:
    if not isinstance(value, list) or not 3 <= len(value) <= MAX_CORNERS:
        raise unexpected_value(path, f"3 to {MAX_CORNERS} pairs [latitude, longitude]", value)
    return GeoPolygon(tuple(_point(pair, f"{path}[{index}]") for index, pair in enumerate(value)))


def _point(value: Any, path: str) -> tuple[float, float]:
    if isinstance(value, list) and len(value) == 2:
        latitude, longitude = value
        if is_within(latitude, 90) and is_within(longitude, 180):
            return float(latitude), float(longitude)
    raise unexpected_value(
        path, "a latitude of -90 to 90 degrees and a longitude of -180 to 180", value
    )


def _metres(value: Any, path: str) -> float:
    match = _DISTANCE.fullmatch(value) if isinstance(value, str) else None
    metres = float(match[1]) * _UNITS_M[match[2]] if match else math.inf
    if not math.isfinite(metres):
        raise unexpected_value(path, "a distance with m, km, mi or nmi, such as 5km", value)
    return metres


MAX_DEPTH = 16
MAX_LEAVES = 200
MAX_OBJECTS = 1000
MAX_IN = 1000
MAX_VALUES = 10_000
"""Maximum values of all `in` lists together, to bound the values of one statement."""

_TEXTS = {"text", "texts", "name", "hash", "review", "report", "cell"}
_ID = re.compile(r"\d{1,19}", re.ASCII)
_STANDARD = re.compile(r"std(\.[\w-]+)+", re.ASCII)


class ComparisonParser:
    """Parses the comparisons of one filter, and counts them.

    Args:
        now_us: Time that `now` stands for, in microseconds since 1970.
    """

    def __init__(self, now_us: int) -> None:
        self._now_us = now_us
        self._leaves = self._values = self._objects = 0

    def read(self, field: str, value: Any, path: str) -> list[Filter]:
        """Parse the value that a field is compared with, or its operators and operands, as decoded JSON.

        Raises:
            QueryError: The field or the value is invalid; the message says what is allowed at `path`.
        """
        check_text(field, "the name of a field")
        if field == "best":
            return self._label_alone(value, path, is_best=True)
        if field in {"label", "box"}:
            return self._prediction(field, value, path)
        if field == "geo" and not (isinstance(value, dict) and "exists" in value):
            self._count_leaf()
            return [parse_shape(value, path)]
        kind = "presence" if field == "geo" else kind_of(field)
        if kind is None:
            raise _unknown_field(field, path)
        if field.startswith("std.") and not _STANDARD.fullmatch(field):
            raise QueryError(
                f"expected {path} to name letters, digits, _, - and dots, got {field!r}"
            )
        if kind == "presence" and not isinstance(value, dict):
            raise unexpected_value(path, '{"exists": true} or {"exists": false}', value)
        return [
            self._compare(field, kind, operator, operand, path=operand_path)
            for operator, operand, operand_path in _operators(value, path, OPERATORS[kind])
        ]

    def _compare(
        self, field: str, kind: FieldKind, operator: str, value: Any, *, path: str
    ) -> Filter:
        self._count_leaf()
        if operator == "exists":
            if not isinstance(value, bool):
                raise unexpected_value(path, "true or false", value)
            present = Compare(field, "exists", True)
            return present if value else Not(present)
        if operator == "in":
            return Compare(field, "in", self._list(kind, value, path))
        scalar = self._scalar(kind, value, path)
        if operator == "contains" and not isinstance(scalar, str):
            raise unexpected_value(path, "a string", value)
        if operator in {"gt", "ge", "lt", "le"} and isinstance(scalar, bool):
            raise unexpected_value(path, "a number or a string", value)
        if operator == "ne":
            return Not(Compare(field, "eq", scalar))
        return Compare(field, operator, scalar)  # type: ignore[arg-type]  # one of OPERATORS

    def _prediction(self, field: str, value: Any, path: str) -> list[Filter]:
        names = ("name", *PROPERTIES, "n") if field == "label" else (*PROPERTIES, "n")
        has_properties = isinstance(value, dict) and not value.keys().isdisjoint(names)
        if field == "label" and not has_properties:
            return self._label_alone(value, path)
        if not isinstance(value, dict) or not value:
            raise unexpected_value(path, f"an object with some of {', '.join(names)}", value)
        labels: tuple[str, ...] | None = None
        if field == "box":
            self._count_leaf()
        else:
            ((operator, name, operand_path),) = _operators(
                value.get("name"), f"{path}.name", ("in",)
            )
            labels = self._labels(operator, name, operand_path)
        bounds: list[tuple[str, str, float]] = []
        for name, operand in value.items():
            if name not in names:
                raise QueryError(
                    f"expected {path} to have some of {', '.join(names)}, got {str(name)[:80]!r}"
                )
            if name != "name":
                bounds += self._bounds(name, operand, f"{path}.{name}")
        count = tuple((operator, bound) for name, operator, bound in bounds if name == "n")
        properties = tuple(bound for bound in bounds if bound[0] != "n")
        return [PredictionCondition(labels, properties, count)]  # type: ignore[arg-type]  # as checked

    def _label_alone(self, value: Any, path: str, *, is_best: bool = False) -> list[Filter]:
        """Parse what a label is compared with, without properties of its predictions."""
        conditions: list[Filter] = []
        for operator, operand, operand_path in _operators(value, path, ("eq", "ne", "in")):
            labels = self._labels(operator, operand, operand_path)
            condition = PredictionCondition(labels, is_best=is_best)
            conditions.append(Not(condition) if operator == "ne" else condition)
        return conditions

    def _bounds(self, name: str, value: Any, path: str) -> list[tuple[str, str, float]]:
        """Parse the bounds of a property as (name, operator, bound)."""
        return [
            (name, operator, float(self._scalar("number", bound, bound_path)))
            for operator, bound, bound_path in _operators(value, path, BOUNDS)
        ]

    def _labels(self, operator: str, value: Any, path: str) -> tuple[str, ...]:
        self._count_leaf()
        if operator == "in":
            return tuple(map(str, self._list("text", value, path)))
        return (str(self._scalar("text", value, path)),)

    def count_object(self) -> None:
        """Count an object with comparisons; raise a `QueryError` if there are too many."""
        self._objects = check_count(self._objects + 1, MAX_OBJECTS, "objects in a filter")

    def _count_leaf(self) -> None:
        self._leaves = check_count(self._leaves + 1, MAX_LEAVES, "comparisons in a filter")

    def _list(self, kind: FieldKind, value: Any, path: str) -> tuple[Scalar, ...]:
        if not isinstance(value, list):
            raise unexpected_value(path, "a list", value)
        check_count(len(value), MAX_IN, f"values in {path}")
        self._values = check_count(
            self._values + len(value), MAX_VALUES, "values in all lists together"
        )
        return tuple(
            self._scalar(kind, item, f"{path}[{position}]") for position, item in enumerate(value)
        )

    def _scalar(self, kind: FieldKind, value: Any, path: str) -> Scalar:
        """Check one value and return it in the form in which it is compared."""
        if isinstance(value, str):
            check_text(value, path)
        elif isinstance(value, int | float):
            check_number(value, path)
        if kind == "id":
            if isinstance(value, str) and _ID.fullmatch(value):
                return int(value)
            raise unexpected_value(path, "an id as a string of digits", value)
        if kind == "time":
            return self._moment(value, path)
        if kind == "number":
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise unexpected_value(path, "a number", value)
            return float(value)
        if kind in _TEXTS:
            _check_text_of(kind, value, path)
        elif value is None:
            raise QueryError(
                f'expected {path} to be a value, got null; ask for {{"exists": false}}'
            )
        elif not isinstance(value, str | int | float):
            raise unexpected_value(path, "a string, a number or a boolean", value)
        scalar: Scalar = value
        return scalar

    def _moment(self, value: Any, path: str) -> int:
        if not isinstance(value, str):
            raise unexpected_value(path, EXPECTED_MOMENT, value)
        try:
            return parse_moment_us(value, self._now_us)
        except ValueError as error:
            raise unexpected_value(path, EXPECTED_MOMENT, value) from error


def _unknown_field(field: str, path: str) -> QueryError:
    """Return the error of a field that there is not."""
    fields = (*FIELDS, "label", "best", "box", "geo", "meta.<key>", "std.<key>", "sig.<signal>")
    allowed = ", ".join(SIGNAL_FIELDS if field.startswith("sig.") else fields)
    key = "<key>" if field == "metadata" else field.removeprefix("metadata.")[:80]
    hint = "of a prediction it stands in label or box, " if field in PROPERTIES else ""
    return QueryError(
        f"expected {path} to name one of {allowed}, got {field[:80]!r}; {hint}of the metadata it is "
        f"meta.{key}"
    )


def _check_text_of(kind: FieldKind, value: Any, path: str) -> None:
    """Raise a `QueryError` unless a value is a text that a kind of field can have."""
    if kind == "review" and value not in REVIEWS:
        raise unexpected_value(path, f"one of {', '.join(REVIEWS)}", value)
    if not isinstance(value, str):
        raise unexpected_value(path, "a string", value)
    if kind == "hash" and len(value) < MIN_HASH_DIGITS:
        expected = f"the hash of a model's file, or its first {MIN_HASH_DIGITS} digits or more"
        raise unexpected_value(path, expected, value)


def _operators(value: Any, path: str, allowed: tuple[str, ...]) -> list[tuple[str, Any, str]]:
    """Return (operator, operand, path) for each operator; a bare value means `eq`."""
    if not isinstance(value, dict):
        return [("eq", value, path)]
    unknown = next((operator for operator in value if operator not in allowed), None)
    if unknown is not None or not value:
        got = "nothing" if unknown is None else repr(str(unknown)[:80])
        raise QueryError(f"expected {path} to have one of {', '.join(allowed)}, got {got}")
    return [(operator, operand, f"{path}.{operator}") for operator, operand in value.items()]

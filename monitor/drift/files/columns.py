"""Columns of files as numbers, labels, lists of numbers, or times."""

import math
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.monitor.drift.files.tables import ColumnValues, FileTable, parse_numbers, parse_vector
from quadriga.monitor.drift.samples import DriftError, value_label
from quadriga.store.records import timestamp_text
from quadriga.tasks.arrays import Float32Array, Float64Array, Int64Array

_MAX_FLOAT16 = float(np.finfo(np.float16).max)
"""Largest number of an embedding: summaries store float16."""
TimeSpan = tuple[str | None, str | None]
"""First and last time, RFC 3339; None where times are not dates."""
ColumnContent = Literal["number", "list", "text", "other"]
"""Type that all values of a column have in common."""


class ColumnTypeError(DriftError):
    """A value of a column has the wrong type."""


def _type_error(table: FileTable, row: int, expected: str, got: str) -> ColumnTypeError:
    return ColumnTypeError(f"{table.name}:{table.lines[row]}: expected {expected}, got {got}")


def infer_content(table: FileTable, name: str) -> ColumnContent | None:
    """Return the type that all values of a column have in common; None without values, or without the column."""
    values = table.columns.get(name, [])
    if isinstance(values, np.ndarray):
        return "number" if values.ndim == 1 else "list"
    present = [value for value in values if value is not None]
    if not present:
        return None
    if name in table.texts:
        return "list" if all(value.startswith("[") for value in present) else "text"
    types = set(map(type, present))
    if types <= {int, float}:
        return "number"
    if types == {np.ndarray}:
        return "list"
    return "other" if types & {np.ndarray, list} else "text"


def as_numbers(table: FileTable, name: str) -> Float64Array:
    """Return a column of numbers (N,), NaN where a value is missing.

    Raises:
        ColumnTypeError: A value is not a number.
    """
    values = table.columns[name]
    if isinstance(values, np.ndarray):
        if values.ndim == 1:
            return values
        raise ColumnTypeError(f"{table.name}: expected {name} to hold numbers, got lists")
    numbers = np.full(len(values), np.nan)
    for row, value in enumerate(values):
        if value is None:
            continue
        parsed = parse_numbers([value]) if name in table.texts else None
        number = _to_number(value) if parsed is None else float(parsed[0])
        if number is None:
            raise _type_error(table, row, f"{name} to be a number", f"{value!r:.60}")
        numbers[row] = number
    return numbers


def _to_number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def as_vectors(table: FileTable, name: str) -> ColumnValues:
    """Return a column of lists of numbers, float32 (N, D), NaN where a value is missing; N times None if all are.

    Raises:
        ColumnTypeError: A value is not a list of numbers, its length differs from those before, or it is too large.
    """
    values = table.columns[name]
    if isinstance(values, np.ndarray) and values.ndim == 2:
        return _check_range(table, name, values)
    values = table.texts.get(name, values)
    vectors: Float32Array | None = None
    for row, value in enumerate(values):
        if value is None:
            continue
        vector = _cell_vector(value)
        if vector is None:
            raise _type_error(table, row, f"{name} to be a list of numbers", f"{value!r:.60}")
        if vectors is None:
            vectors = np.full((len(values), len(vector)), np.nan, np.float32)
        if len(vector) != vectors.shape[1]:
            expected = f"{name} to have {vectors.shape[1]} numbers as before"
            raise _type_error(table, row, expected, f"{len(vector)}")
        vectors[row] = vector
    return [None] * len(values) if vectors is None else _check_range(table, name, vectors)


def _check_range(table: FileTable, name: str, vectors: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return vectors (N, D) after checking that float16 can hold them.

    Raises:
        ColumnTypeError: A number is too large.
    """
    too_large = np.flatnonzero(np.abs(vectors).max(axis=1) > _MAX_FLOAT16)
    if len(too_large):
        got = vectors[too_large[0]][np.abs(vectors[too_large[0]]).argmax()]
        expected = f"{name} to have numbers up to {_MAX_FLOAT16:.0f}"
        raise _type_error(table, int(too_large[0]), expected, f"{got:.6g}")
    return vectors


def _cell_vector(value: Any) -> Float32Array | None:
    if isinstance(value, np.ndarray):
        return value
    try:
        return parse_vector(msgspec.json.decode(value) if isinstance(value, str) else value)
    except (msgspec.DecodeError, RecursionError):
        return None


def as_labels(table: FileTable, name: str) -> list[str | None]:
    """Return a column of labels; numbers without a fraction are written as integers.

    Raises:
        ColumnTypeError: A value is a list.
    """
    if name in table.texts:
        return table.texts[name]
    labels = []
    for row, value in enumerate(table.columns[name]):
        if isinstance(value, list | np.ndarray):
            raise _type_error(table, row, f"{name} to be a label", "a list")
        labels.append(value_label(value))
    return labels


def time_order(table: FileTable, name: str | None) -> tuple[Int64Array, TimeSpan]:
    """Return the rank of each row in time (N,), and the first and last time if the column holds dates.

    The column holds dates, or numbers of any unit; without a column, rows are in time order.

    Raises:
        ColumnTypeError: A value is not a time.
    """
    n = len(table.lines)
    if name is None or not n:
        return np.arange(n), (None, None)
    values = table.columns[name]
    times = np.empty(n)
    for row, value in enumerate(values):
        time = _parse_time(value)
        if time is None:
            got = (
                "nothing"
                if np.ndim(value) == 0 and value_label(value) is None
                else f"{value!s:.60}"
            )
            raise _type_error(table, row, f"{name} to be a time in RFC 3339 or a number", got)
        times[row] = time
    order = np.empty(n, np.int64)
    order[np.argsort(times, kind="stable")] = np.arange(n)
    if not all(isinstance(value, str | datetime) for value in values):
        return order, (None, None)
    first, last = (math.floor(1000 * float(value)) for value in (times.min(), times.max()))
    return order, (timestamp_text(first), timestamp_text(last))


def _parse_time(value: Any) -> float | None:
    """Return a date as seconds since 1970, in UTC unless it has a zone, and a number as it is; None of other values."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if isinstance(value, datetime):
        try:
            value = value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
            return float(value.timestamp())
        except OverflowError:
            return None
    number = None if isinstance(value, bool) else _to_number(value)
    return number if number is not None and math.isfinite(number) else None

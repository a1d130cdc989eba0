"""The values of a column of a file, as what they are said to be."""

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
TimeSpan = tuple[str | None, str | None]
"""The first and the last time, RFC 3339; None where nothing says when."""
ColumnContent = Literal["number", "list", "text", "other"]


class ColumnTypeError(DriftError):
    """A column does not hold what it should."""


def _type_error(table: FileTable, row: int, wanted: str, got: str) -> ColumnTypeError:
    return ColumnTypeError(f"{table.name}:{table.lines[row]}: expected {wanted}, got {got}")


def infer_content(table: FileTable, name: str) -> ColumnContent | None:
    """Tell what all values of a column are; None of no values, and of a column that is not there."""
    values = table.columns.get(name, [])
    if isinstance(values, np.ndarray):
        return "number" if values.ndim == 1 else "list"
    present = [one for one in values if one is not None]
    if not present:
        return None
    if name in table.texts:
        return "list" if all(one.startswith("[") for one in present) else "text"
    kinds = set(map(type, present))
    if kinds <= {int, float}:
        return "number"
    if kinds == {np.ndarray}:
        return "list"
    return "other" if kinds & {np.ndarray, list} else "text"


def as_numbers(table: FileTable, name: str) -> Float64Array:
    """Return numbers (N,), NaN where there is none.

    Raises:
        UnlikeError: A value is none.
    """
    values = table.columns[name]
    if isinstance(values, np.ndarray):
        if values.ndim == 1:
            return values
        raise ColumnTypeError(f"{table.name}: expected {name} to hold numbers, got lists")
    made = np.full(len(values), np.nan)
    for row, one in enumerate(values):
        if one is None:
            continue
        found = parse_numbers([one]) if name in table.texts else None
        number = _to_number(one) if found is None else float(found[0])
        if number is None:
            raise _type_error(table, row, f"{name} to be a number", f"{one!r:.60}")
        made[row] = number
    return made


def _to_number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def as_vectors(table: FileTable, name: str) -> ColumnValues:
    """Return lists of numbers, float32 (N, D), NaN where there is none; of none at all N times None.

    Raises:
        UnlikeError: A value is no list, of another length than those before, or too large.
    """
    values = table.columns[name]
    if isinstance(values, np.ndarray) and values.ndim == 2:
        return _check_range(table, name, values)
    values = table.texts.get(name, values)
    made: Float32Array | None = None
    for row, given in enumerate(values):
        if given is None:
            continue
        one = _cell_vector(given)
        if one is None:
            raise _type_error(table, row, f"{name} to be a list of numbers", f"{given!r:.60}")
        if made is None:
            made = np.full((len(values), len(one)), np.nan, np.float32)
        if len(one) != made.shape[1]:
            wanted = f"{name} to have {made.shape[1]} numbers as before"
            raise _type_error(table, row, wanted, f"{len(one)}")
        made[row] = one
    return [None] * len(values) if made is None else _check_range(table, name, made)


def _check_range(table: FileTable, name: str, made: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """See that summaries can keep these numbers."""
    over = np.flatnonzero(np.abs(made).max(axis=1) > _MAX_FLOAT16)
    if len(over):
        got = made[over[0]][np.abs(made[over[0]]).argmax()]
        wanted = f"{name} to have numbers up to {_MAX_FLOAT16:.0f}"
        raise _type_error(table, int(over[0]), wanted, f"{got:.6g}")
    return made


def _cell_vector(given: Any) -> Float32Array | None:
    if isinstance(given, np.ndarray):
        return given
    try:
        return parse_vector(msgspec.json.decode(given) if isinstance(given, str) else given)
    except (msgspec.DecodeError, RecursionError):
        return None


def as_labels(table: FileTable, name: str) -> list[str | None]:
    """Return texts; a number without fraction is written without.

    Raises:
        UnlikeError: A value is a list.
    """
    if name in table.texts:
        return table.texts[name]
    made = []
    for row, one in enumerate(table.columns[name]):
        if isinstance(one, list | np.ndarray):
            raise _type_error(table, row, f"{name} to be a label", "a list")
        made.append(value_label(one))
    return made


def time_order(table: FileTable, name: str | None) -> tuple[Int64Array, TimeSpan]:
    """Return each row's place in time (N,), and the first and the last time where these are dates.

    The column has dates, or numbers of any unit; without one rows are in order.

    Raises:
        UnlikeError: A value is no time.
    """
    n = len(table.lines)
    if name is None or not n:
        return np.arange(n), (None, None)
    values = table.columns[name]
    times = np.empty(n)
    for row, one in enumerate(values):
        at = _parse_time(one)
        if at is None:
            got = "nothing" if np.ndim(one) == 0 and value_label(one) is None else f"{one!s:.60}"
            raise _type_error(table, row, f"{name} to be a time in RFC 3339 or a number", got)
        times[row] = at
    order = np.empty(n, np.int64)
    order[np.argsort(times, kind="stable")] = np.arange(n)
    if not all(isinstance(one, str | datetime) for one in values):
        return order, (None, None)
    first, last = (math.floor(1000 * float(one)) for one in (times.min(), times.max()))
    return order, (timestamp_text(first), timestamp_text(last))


def _parse_time(value: Any) -> float | None:
    """Return seconds since 1970 of a date, and a number as it is; a date without zone is in UTC."""
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

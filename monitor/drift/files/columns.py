"""Columns of files as numbers, labels, lists of numbers, or times."""

import math
import re
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import date
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.monitor.drift.files.tables import ColumnValues, FileTable, parse_number, parse_vector
from quadriga.monitor.drift.samples import DriftError, value_label
from quadriga.store.records.records import parse_time, timestamp_text
from quadriga.tasks.arrays import Float32Array, Float64Array, Int64Array

_MAX_FLOAT16 = float(np.finfo(np.float16).max)
"""Largest number of an embedding: summaries store float16."""
_ONE_OTHER_IN = 10
"""Number of values of a column of numbers, one of which may be no number: it counts as missing."""
_MISSING = frozenset({
    "NA", "N/A", "n/a", "#N/A", "#NA", "<NA>", "NULL", "Null", "null", "(null)", "\\N", "NaN", "nan", "-nan", "None",
    "NaT", "-", "--", "#VALUE!", "#REF!", "#DIV/0!", "#NUM!",
})  # fmt: skip
"""Words for a missing value, as pandas, R, spreadsheets and databases write them."""
_MISSING_NUMBERS = frozenset(map(str.casefold, _MISSING))
"""The same among numbers, in any case: among labels `none` and `na` are labels."""
_NO_UNIT = "missing"
_NOTHING = math.nan, _NO_UNIT
_WHOLE = re.compile(r"(-?\d+)\.0+", re.ASCII)

TimeSpan = tuple[str | None, str | None]
"""First and last time, RFC 3339; None where times are not dates."""
ColumnContent = Literal["number", "list", "text", "other"]
"""Type that the values of a column have in common."""


class ColumnTypeError(DriftError):
    """A value of a column has the wrong type."""


class Numbers(NamedTuple):
    """Values of a column as numbers."""

    table: FileTable
    name: str
    values: Float64Array
    """(N,), NaN where a value is missing or no number."""
    others: Sequence[int] = ()
    """Rows whose value is neither missing nor a number of the unit."""
    unit: str = ""
    """Sign of the unit or currency of all numbers, such as `%`; empty without one."""

    @property
    def present(self) -> int:
        """Number of values that are not missing."""
        return int(np.count_nonzero(~np.isnan(self.values))) + len(self.others)

    @property
    def is_numeric(self) -> bool:
        """Whether there are numbers, and few other values."""
        return self.present > 0 and len(self.others) <= self.present // _ONE_OTHER_IN


def _type_error(table: FileTable, row: int, expected: str, got: str) -> ColumnTypeError:
    return ColumnTypeError(f"{table.name}:{table.lines[row]}: expected {expected}, got {got}")


def read_numbers(table: FileTable, name: str) -> Numbers:
    """Return a column as numbers, whatever it holds."""
    values = table.columns[name]
    if isinstance(values, np.ndarray) and values.ndim == 1:
        return Numbers(table, name, values)
    is_text = isinstance(values, list) and table.decimal == "."
    if is_text and not any("_" in value for value in values if value):
        with suppress(ValueError):  # most columns are plain numbers, and are read faster so
            plain = [np.nan if value is None else float(value) for value in values]
            return Numbers(table, name, np.array(plain))
    parsed = [_number(value, table.decimal) for value in values]
    units = Counter(number[1] for number in parsed if number is not None)
    units.pop(_NO_UNIT, 0)
    unit = units.most_common(1)[0][0] if units else ""
    return Numbers(
        table,
        name,
        np.array([np.nan if n is None or n[1] != unit else n[0] for n in parsed], np.float64),
        [row for row, n in enumerate(parsed) if n is None or n[1] not in (unit, _NO_UNIT)],
        unit,
    )


def _number(value: Any, decimal: str | None) -> tuple[float, str] | None:
    """Return a value as a number with its unit, None if it is none; text is one only in formats without types."""
    if isinstance(value, str):
        if value.casefold() in _MISSING_NUMBERS:
            return _NOTHING
        return None if decimal is None else parse_number(value, decimal)
    if value is None:
        return _NOTHING
    is_number = type(value) is float or (type(value) is int and abs(value) <= sys.float_info.max)
    return (float(value), "") if is_number else None


def infer_content(numbers: Numbers) -> ColumnContent | None:
    """Return the type that the values of a column have in common; None without values."""
    values = numbers.table.columns[numbers.name]
    if isinstance(values, np.ndarray):
        return "number" if values.ndim == 1 else "list"
    if numbers.is_numeric:
        return "number"
    present = [value for value in values if not _is_missing(value)]
    if not present:
        return None
    if numbers.table.decimal is not None:
        return "list" if all(value.startswith("[") for value in present) else "text"
    types = set(map(type, present))
    if types == {np.ndarray}:
        return "list"
    return "other" if types & {np.ndarray, list} else "text"


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value in _MISSING)


def as_numbers(numbers: Numbers) -> Float64Array:
    """Return a column of numbers (N,), NaN where a value is missing or one of a few that are no numbers.

    Raises:
        ColumnTypeError: Too many values are no numbers.
    """
    if numbers.others and not numbers.is_numeric:
        row, got = _first_other(numbers)
        raise _type_error(numbers.table, row, f"{numbers.name} to be a number", got)
    return numbers.values


def others_text(numbers: Numbers) -> str:
    """Say how many values of a column are no numbers, with the first of them and its line; empty if all are."""
    if not numbers.others:
        return ""
    unit = f" in {numbers.unit}" if numbers.unit else ""
    row, got = _first_other(numbers)
    return (
        f"{len(numbers.others):,} of {numbers.present:,} values are no numbers{unit}, the first in"
        f" {numbers.table.name}:{numbers.table.lines[row]}: {got}"
    )


def _first_other(numbers: Numbers) -> tuple[int, str]:
    """Return the row of the first value that is no number, and its text."""
    value = numbers.table.columns[numbers.name][row := numbers.others[0]]
    return row, "a list" if isinstance(value, list | np.ndarray) else f"{value!r:.60}"


def as_vectors(table: FileTable, name: str) -> ColumnValues:
    """Return a column of lists of numbers, float32 (N, D), NaN where a value is missing; N times None if all are.

    Raises:
        ColumnTypeError: A value is not a list of numbers, its length differs from those before, or it is too large.
    """
    values = table.columns[name]
    if isinstance(values, np.ndarray) and values.ndim == 2:
        return _check_range(table, name, values)
    vectors: Float32Array | None = None
    for row, value in enumerate(values):
        if _is_missing(value):
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


def as_labels(table: FileTable, name: str, *, with_missing: bool = False) -> list[str | None]:
    """Return a column of labels: numbers without a fraction as integers, booleans as in JSON, however they are written.

    Args:
        table: The file.
        name: Name of the column.
        with_missing: Whether words for a missing value are labels.

    Raises:
        ColumnTypeError: A value is a list.
    """
    labels: list[str | None] = []
    for row, value in enumerate(table.columns[name]):
        if isinstance(value, list | np.ndarray):
            raise _type_error(table, row, f"{name} to be a label", "a list")
        if not isinstance(value, str):
            labels.append(value_label(value))
        elif value in _MISSING and not with_missing:
            labels.append(None)
        elif value.casefold() in {"true", "false"}:
            labels.append(value.casefold())
        else:
            integer = None if table.decimal is None else _WHOLE.fullmatch(value)
            labels.append(value if integer is None else integer[1])
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
    times = read_numbers(table, name).values
    dated = np.flatnonzero(~np.isfinite(times)).tolist()
    for row in dated:
        value = values[row]
        try:
            times[row] = parse_time(str(value if isinstance(value, str | date) else "")).timestamp()
        except ValueError as error:
            is_missing = np.ndim(value) == 0 and value_label(value) is None
            got = "nothing" if is_missing else f"{value!s:.60}"
            expected = f"{name} to be a time in RFC 3339 or a number"
            raise _type_error(table, row, expected, got) from error
    order = np.empty(n, np.int64)
    order[np.argsort(times, kind="stable")] = np.arange(n)
    if len(dated) < n:
        return order, (None, None)
    first, last = (math.floor(1000 * float(value)) for value in (times.min(), times.max()))
    return order, (timestamp_text(first), timestamp_text(last))

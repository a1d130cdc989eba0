"""Drift of files: a row for each inference, a column for each signal.

The kind of a column is inferred from both files together: labels that happen to look like numbers in one of them
are compared as labels.
"""

import math
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from quadriga.monitor.drift.comparison import compare
from quadriga.monitor.drift.files.tables import (
    ColumnValues,
    FileTable,
    parse_number,
    parse_vector,
    read_table,
)
from quadriga.monitor.drift.metadata import find_source, identifier_reason, with_presence
from quadriga.monitor.drift.samples import DriftError, Kind, build_sample, value_label
from quadriga.monitor.drift.significance.decision import ComparisonSettings
from quadriga.monitor.drift.summary import as_summary
from quadriga.monitor.report.schema import Data, Report, Window, provenance
from quadriga.store.records.records import now_text, parse_time, timestamp_text
from quadriga.tasks.arrays import Float32Array, Float64Array, Int64Array

SOURCE_KEYS = ("camera_id", "stream", "recording")
"""Columns that hold the source if none is named; also nested in `metadata`."""
TIME_COLUMNS = ("created_at", "timestamp")
"""Columns that hold the time if none is named."""
_ID_COLUMNS = ("id", "inference_id", "request_id")


class ColumnOptions(msgspec.Struct, frozen=True):
    """Options that say what columns hold, instead of inferring it."""

    numeric: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    embedding: tuple[str, ...] = ()
    """Columns of lists of numbers; or NAME if the numbers are in columns NAME_0, NAME_1 and so on."""
    ignore: tuple[str, ...] = ()
    source_key: str | None = None
    """Column of the source; None: the first of `SOURCE_KEYS` that both files have."""
    time: str | None = None
    """Column of the time; None: the first of `TIME_COLUMNS` that both files have."""

    def kinds(self) -> dict[str, Kind]:
        """Return the kinds of the columns that the options name."""
        kinds: dict[str, Kind] = dict.fromkeys(self.numeric, "numeric")
        kinds |= dict.fromkeys(self.categorical, "categorical")
        return kinds | dict.fromkeys(self.embedding, "embedding")


Tables = tuple[FileTable, FileTable]
_Sides = tuple[dict[str, ColumnValues], dict[str, ColumnValues]]


def compare_files(
    baseline: Path,
    current: Path,
    options: ColumnOptions = ColumnOptions(),  # noqa: B008 - it is immutable
    settings: ComparisonSettings | None = None,
) -> Report:
    """Compare two files, CSV, JSON lines or Parquet, not necessarily of the same format.

    Raises:
        DriftError: A file has another format, or a named column is missing or holds something else; the message
            names the file and, where there is one, the line.
        OSError: A file cannot be read.
    """
    started = time.monotonic()
    tables = (_read_with_vectors(baseline, options), _read_with_vectors(current, options))
    _check_options(tables, options)
    paths = [prefix + key for prefix in ("", "metadata.") for key in SOURCE_KEYS]
    time_column = options.time or _first_shared_column(tables, TIME_COLUMNS, options)
    source_key = options.source_key or _first_shared_column(tables, paths, options)
    columns, kinds, left_out, others = _columns(tables, options, {time_column, source_key})
    samples, windows = [], []
    for table, values in zip(tables, columns, strict=True):
        order, (start, end) = time_order(table, time_column)
        sources = None if source_key is None else as_labels(table, source_key)
        try:
            samples.append(build_sample(values, kinds=kinds, sources=sources, order=order))
        except DriftError as error:
            raise DriftError(f"{table.name}: {error}") from error
        windows.append({"start": start, "end": end})
    settings = settings or ComparisonSettings()
    sides = as_summary(samples[0], settings), as_summary(samples[1], settings)
    left_out |= {
        name: (kinds.get(name) == "categorical" and others.get(name)) or reason
        for name in columns[0].keys() - options.kinds().keys()
        if (reason := identifier_reason(name, sides[0].sample, sides[1].sample))
    }
    sides = sides[0].without(left_out), sides[1].without(left_out)
    left_out |= {
        f"values of {name}": reason
        for name, reason in others.items()
        if reason and name not in left_out and kinds.get(name, "numeric") == "numeric"
    }
    shown_parameters = {
        "baseline": _json_path(baseline),
        "current": _json_path(current),
        "time": time_column,
        "source_key": source_key,
        "left_out": left_out,
    }
    if (explanation := find_source(*sides)) is not None:
        source, sides = explanation
        shown_parameters |= {"source_key": source.column, "source_key_reason": source.reason}
    report = compare(*with_presence(*sides, names=columns[0]), settings)
    data = report.data
    return replace(
        report,
        created=now_text(),
        data=Data(
            replace(data.current, **windows[1]), replace(data.baseline or Window(), **windows[0])
        ),
        parameters=shown_parameters | report.parameters,
        provenance=provenance(started),
    )


def _column_names(tables: Tables) -> list[str]:
    """Return the names of the columns of both files, in their order there."""
    return list(dict.fromkeys(name for table in tables for name in table.columns))


def _first_shared_column(
    tables: Tables, names: Iterable[str], options: ColumnOptions
) -> str | None:
    """Return the first of these names that is a column of both files and not ignored."""
    shared = tables[0].columns.keys() & tables[1].columns.keys() - {*options.ignore}
    return next((name for name in names if name in shared), None)


def _read_with_vectors(path: Path, options: ColumnOptions) -> FileTable:
    """Read a file, with columns NAME_0, NAME_1 and so on joined to the embedding NAME."""
    table = read_table(path)
    for name in options.embedding:
        if name in table.columns:
            continue
        columns: list[Any] = []
        while f"{name}_{len(columns)}" in table.columns:
            column = f"{name}_{len(columns)}"
            columns.append(as_numbers(read_numbers(table, column)))
            del table.columns[column]
        if columns:
            table.columns[name] = np.stack(columns, axis=1)
    return table


def _check_options(tables: Tables, options: ColumnOptions) -> None:
    """Check that all columns that the options name exist, and that none has two kinds."""
    counts = Counter((*options.numeric, *options.categorical, *options.embedding, *options.ignore))
    either = " or ".join(table.name for table in tables), _column_names(tables)
    needed = [(name, *either) for name in counts] + [
        (name, table.name, list(table.columns))
        for name in filter(None, (options.source_key, options.time))
        for table in tables
    ]
    for name, place, names in needed:
        if name not in names:
            listed = _join_names(names)
            raise DriftError(f"column not found in {place}: {name!r:.80}; there are: {listed}")
        if counts[name] > 1:
            raise DriftError(
                f"expected column {name!r:.80} in one option, got it in {counts[name]}"
            )


def _join_names(names: list[str]) -> str:
    rest = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return (", ".join(f"{name:.80}" for name in names[:20]) or "none") + rest


def _columns(
    tables: Tables, options: ColumnOptions, used_names: set[str | None]
) -> tuple[_Sides, dict[str, Kind], dict[str, str], dict[str, str]]:
    """Return the columns of both sides, the kinds that are certain, why other columns are left out, and which values among numbers are none."""
    columns_by_side: _Sides = ({}, {})
    named_kinds, kinds, left_out = options.kinds(), dict[str, Kind](), dict[str, str]()
    others: dict[str, str] = {}
    for name in _column_names(tables):
        for table in tables:
            table.columns.setdefault(name, [None] * len(table.lines))
        if name in options.ignore or (name in used_names and name not in named_kinds):
            continue
        if name in _ID_COLUMNS and name not in named_kinds:
            left_out[name] = "names inferences"
            continue
        try:
            numbers = [read_numbers(table, name) for table in tables]
            kind = named_kinds.get(name) or _infer_kind(numbers)
            is_named = name in named_kinds
            sides = [_column_values(side, kind, with_missing=is_named) for side in numbers]
        except ColumnTypeError as error:
            if name in named_kinds:
                raise
            left_out[name] = str(error)
            continue
        if any(len(side.others) < side.present for side in numbers):
            others[name] = "; ".join(filter(None, map(others_text, numbers)))
        for columns, values in zip(columns_by_side, sides, strict=True):
            columns[name] = values
        if name in named_kinds or kind != "numeric":
            kinds[name] = kind
    return columns_by_side, kinds, left_out, others


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


def _infer_kind(numbers: list[Numbers]) -> Kind:
    """Infer the kind of a column; counts are distinguished from other numbers later."""
    contents = {infer_content(side) for side in numbers} - {None}
    if contents <= {"number"}:
        units = {side.unit or "without a unit" for side in numbers if side.present}
        if len(units) > 1:
            raise ColumnTypeError(
                f"expected numbers of one unit in both files, got {' and '.join(sorted(units))}"
            )
        return "numeric"
    if contents == {"list"}:
        return "embedding"
    if contents & {"list", "other"}:
        raise ColumnTypeError(
            "expected numbers, labels, or lists of numbers of one length, got others"
        )
    return "categorical"


def _column_values(numbers: Numbers, kind: Kind, *, with_missing: bool) -> ColumnValues:
    """Return the values of a column for `build_sample`."""
    if kind == "numeric":
        return as_numbers(numbers)
    if kind == "embedding":
        return as_vectors(numbers.table, numbers.name)
    return as_labels(numbers.table, numbers.name, with_missing=with_missing)


def _json_path(path: Path) -> str:
    """Return a path as text that JSON can encode, whatever its bytes."""
    return str(path).encode(errors="replace").decode()


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

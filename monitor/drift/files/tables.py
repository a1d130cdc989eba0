"""Readers of files of rows, as columns: CSV, JSON lines, Parquet. The kinds of columns are not decided here.

Source: RFC 4180 for CSV, whose separator and decimal mark may be others.
"""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from json import detect_encoding
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from quadriga.monitor.drift.samples import DriftError
from quadriga.store.exchange.text_files import json_lines, utf8_lines
from quadriga.store.records.errors import PYARROW_MISSING, QueryError
from quadriga.tasks.arrays import Float32Array

MAX_COLUMNS = 4096
_MAX_DEPTH = 16
_MAX_EXACT = 1 << 53
"""Magnitude from which float64 does not hold every integer."""

_MAX_HEADER = 1 << 20
"""Characters in which the first row ends, else its separator is a comma."""
_SEPARATORS = ",;\t|"
_UNITS = "%‰°$€£¥₹"
_AMOUNT = re.compile(rf"([+-]?)([{_UNITS}]?)([^{_UNITS}]*)([{_UNITS}]?)")
_MAX_DIGITS = 100
_SPACES = " \u00a0\u202f'\u2019"
_DIGITS = {
    decimal: re.compile(
        rf"[+-]?(?=[{decimal}]?\d)(?:[1-9]\d{{0,2}}(?:[{_SPACES}{group}]\d{{3}})+|\d*)(?:[{decimal}]\d*)?(?:e[+-]?\d+)?|[+-]?inf(?:inity)?",
        re.IGNORECASE,
    )
    for decimal, group in (".,", ",.")
}
"""Digits of a number by its decimal mark, thousands maybe apart."""

ColumnValues = list[Any] | npt.NDArray[Any]
"""Values of a column, one per row; None if missing. Where Parquet types the column they are arrays with NaN for missing
values: float64 (N,) of numbers, float32 (N, D) of lists of equal length. Otherwise they are the values of the file, in
CSV its cells as text, with lists of numbers in JSON as float32 (D,)."""


class FileTable(NamedTuple):
    """Columns of a file."""

    name: str
    columns: dict[str, ColumnValues]
    lines: Sequence[int]
    """(N,) line in which each row ends; in Parquet, the row's number from 1."""
    decimal: str | None = None
    """Decimal mark of CSV, in which numbers are text; None in other formats."""


def read_table(path: Path) -> FileTable:
    """Read a file in the format of its suffix: .csv, .jsonl, .ndjson or .parquet.

    Raises:
        DriftError: The file does not have this format; the message begins with its name and the line.
        OSError: The file cannot be read.
    """
    suffix = path.suffix.lower()
    try:
        if suffix == ".csv":
            return _read_csv(path)
        if suffix in {".jsonl", ".ndjson"}:
            with path.open("rb") as file:
                return _read_json_lines(utf8_lines(file, path.name), path.name)
        if suffix == ".parquet":
            return _read_parquet(path)
    except UnicodeError as error:
        raise DriftError(
            f"{path.name}: expected UTF-8 or UTF-16, got {error}; save it as UTF-8"
        ) from error
    except QueryError as error:
        raise DriftError(str(error)) from error
    raise DriftError(f"expected a file .csv, .jsonl, .ndjson or .parquet, got {path.name}")


def _read_csv(path: Path) -> FileTable:
    with path.open("rb") as head:
        encoding = detect_encoding(head.read(4))
    with path.open(encoding=encoding, newline="") as file:
        names = re.sub('"[^"]*"', "", file.read(_MAX_HEADER)).partition("\n")[0]
        separator = max(_SEPARATORS, key=names.count)
        file.seek(0)
        rows = csv.reader(
            file, delimiter=separator, skipinitialspace=separator != "\t", strict=True
        )
        try:
            header = [name.strip() for name in next(rows, [])]
            _check_header(header, path.name)
            lines: list[int] = []
            columns: list[list[str | None]] = [[] for _ in header]
            appends = [column.append for column in columns]
            for row in rows:
                if len(row) != len(header):
                    if not "".join(row).strip() and len(row) < 2:
                        continue  # an empty line
                    raise DriftError(
                        f"{path.name}:{rows.line_num}: expected {len(header)} cells, got {len(row)}"
                    )
                for append, cell in zip(appends, row, strict=True):
                    append(cell.strip() or None)
                lines.append(rows.line_num)
        except csv.Error as error:
            raise DriftError(f"{path.name}:{rows.line_num}: expected CSV, got: {error}") from error
    decimal = _decimal_mark(columns, separator)
    return FileTable(path.name, dict(zip(header, columns, strict=True)), lines, decimal)


def _decimal_mark(columns: Sequence[Sequence[str | None]], separator: str) -> str:
    """Return the decimal mark of most numbers that are none with the other mark; without any, of most numbers with a mark."""
    if not any(cell is not None and "," in cell for cells in columns for cell in cells):
        return "."
    certain, possible = Counter[str](), Counter[str]()
    for cells in columns:
        for cell in cells:
            if cell is not None and ("," in cell or "." in cell):
                marks = [mark for mark in ".," if parse_number(cell, mark) is not None]
                if len(marks) == 1:
                    certain.update(marks)
                elif marks:  # 1,234 or 1.234
                    possible["," if "," in cell else "."] += 1
    counts = certain or (possible if separator != "," else certain)
    return "," if counts[","] > counts["."] else "."


def parse_number(text: str, decimal: str) -> tuple[float, str] | None:
    """Return the number that a cell has, and the sign of its unit or currency, such as `%`; None if it is no number."""
    amount = _AMOUNT.fullmatch(text.strip()) if len(text) < _MAX_DIGITS else None
    if amount is None or (amount[2] and amount[4]):
        return None
    digits = amount[1] + amount[3].strip()
    if not _DIGITS[decimal].fullmatch(digits):
        return None
    digits = re.sub(rf"[{_SPACES}{',' if decimal == '.' else '.'}]", "", digits)
    return float(digits.replace(decimal, ".")), amount[2] or amount[4]


def _check_header(header: list[str], name: str) -> None:
    if not header:
        raise DriftError(f"{name}:1: expected names of columns, got nothing")
    if "" in header:
        raise DriftError(f"{name}:1: column {header.index('') + 1} has no name")
    duplicate = next((column for column in header if header.count(column) > 1), None)
    if duplicate is not None:
        raise DriftError(f"{name}:1: expected each column once, got {duplicate!r:.80} again")


def _read_json_lines(texts: Iterable[bytes], name: str) -> FileTable:
    columns: dict[str, list[Any]] = {}
    lines: list[int] = []
    for line_number, row in json_lines(texts, name, Any):
        try:
            for key, value in _leaves(row):
                column = columns.setdefault(key, [])
                if len(columns) > MAX_COLUMNS:
                    raise DriftError(f"expected at most {MAX_COLUMNS:,} columns, got {key!r:.80}")
                if len(column) > len(lines):
                    raise DriftError(f"expected {key!r:.80} once, got it twice once flattened")
                column.extend([None] * (len(lines) - len(column)))
                numbers = parse_vector(value)
                column.append(value if numbers is None else numbers)
        except DriftError as error:
            raise DriftError(f"{name}:{line_number}: {error}") from error
        lines.append(line_number)
    for column in columns.values():
        column.extend([None] * (len(lines) - len(column)))
    return FileTable(name, dict(columns), lines)


def parse_vector(value: Any) -> Float32Array | None:
    """Return a list of at least one number as float32 (D,); None of any other value."""
    if not isinstance(value, list) or not value or not set(map(type, value)) <= {int, float}:
        return None
    with np.errstate(over="ignore"):
        return np.array(value, np.float64).astype(np.float32)


def _leaves(node: Any, prefix: str = "", depth: int = 1) -> Iterator[tuple[str, Any]]:
    """Yield the values of a nested object with their dotted paths; lists stay, nulls are dropped.

    Raises:
        DriftError: It is not an object, or nested too deeply.
    """
    if not isinstance(node, dict):
        raise DriftError(f"expected a JSON object, got {str(node)!r:.40}")
    if depth > _MAX_DEPTH:
        raise DriftError(f"expected objects at most {_MAX_DEPTH} deep, got {prefix[:-1]!r:.80}")
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.", depth + 1)
        elif value is not None:
            yield prefix + key, value


def _read_parquet(path: Path) -> FileTable:
    if find_spec("pyarrow") is None:
        raise DriftError(PYARROW_MISSING)
    import pyarrow as pa  # noqa: PLC0415 - it is an extra
    import pyarrow.parquet as pq  # noqa: PLC0415 - as above

    from quadriga.store.exchange import arrow_tables  # noqa: PLC0415 - as above

    try:
        schema = pq.read_schema(path)
        if set(arrow_tables.EXPORT_SCHEMA.names) <= set(
            schema.names
        ):  # what it nests stands there as JSON
            return _read_json_lines(
                (row for row, _ in arrow_tables.read_parquet(path, images=False)), path.name
            )
        names = [
            field.name
            for field in schema
            if not pa.types.is_binary(field.type) and not pa.types.is_large_binary(field.type)
        ]
        table = pq.read_table(path, columns=names)
        while any(pa.types.is_struct(field.type) for field in table.schema):
            table = table.flatten()
        _check_header([*table.column_names, "-"], path.name)
        columns = {name: _arrow_values(table[name]) for name in table.column_names}
    except DriftError:
        raise
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise DriftError(f"{path.name}: expected Parquet, got: {error}") from error
    return FileTable(path.name, columns, range(1, table.num_rows + 1))


def _arrow_values(column: Any) -> ColumnValues:
    """Return numbers, and lists of numbers of equal length, as arrays; other values as Python objects."""
    import pyarrow as pa  # noqa: PLC0415 - it is an extra
    import pyarrow.compute as pc  # noqa: PLC0415 - as above

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    type_ = column.type
    if _is_number(type_):
        numbers = np.asarray(column.cast(pa.float64(), safe=False).to_numpy(), np.float64)
        if not pa.types.is_integer(type_) or not (np.abs(numbers) >= _MAX_EXACT).any():
            return numbers
    if pa.types.is_timestamp(type_):
        column = column.cast(pa.timestamp("us", type_.tz), safe=False)
    is_list = pa.types.is_list(type_) or pa.types.is_large_list(type_)
    if (is_list or pa.types.is_fixed_size_list(type_)) and _is_number(type_.value_type):
        is_present = column.is_valid().to_numpy()
        lengths = np.unique(pc.list_value_length(column).drop_null().to_numpy())
        if len(lengths) == 1 and lengths[0] > 0:
            numbers = pc.list_flatten(column.drop_null()).cast(pa.float32(), safe=False)
            vectors = np.full((len(column), int(lengths[0])), np.nan, np.float32)
            vectors[is_present] = numbers.to_numpy().reshape(-1, int(lengths[0]))
            return vectors
    values: list[Any] = column.to_pylist()
    return values


def _is_number(type_: Any) -> bool:
    import pyarrow as pa  # noqa: PLC0415 - it is an extra

    return bool(
        pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_)
    )

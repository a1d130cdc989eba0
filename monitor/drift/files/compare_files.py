"""Drift of files: a row for each inference, a column for each signal.

The kind of a column is inferred from both files together: labels that happen to look like numbers in one of them
are compared as labels.
"""

import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from quadriga.monitor.drift.comparison import compare
from quadriga.monitor.drift.files import columns as cells
from quadriga.monitor.drift.files.columns import ColumnTypeError, Numbers
from quadriga.monitor.drift.files.tables import ColumnValues, FileTable, read_table
from quadriga.monitor.drift.metadata import find_source, identifier_reason, with_presence
from quadriga.monitor.drift.samples import DriftError, Kind, build_sample
from quadriga.monitor.drift.significance.decision import ComparisonSettings
from quadriga.monitor.drift.summary import as_summary
from quadriga.monitor.report.schema import Data, Report, Window, provenance
from quadriga.monitor.spans import now_text

SOURCE_KEYS = ("camera_id", "stream", "recording")
"""Columns that hold the source if none is named; also nested in `metadata`."""

TIME_COLUMNS = ("created_at", "timestamp")
"""Columns that hold the time if none is named."""

_ID_COLUMNS = ("id", "inference_id", "request_id")
_MAX_LABELS = 50
"""Number of distinct texts above which a column holds identifiers, not labels, if they are also more than half of all."""


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
        order, (start, end) = cells.time_order(table, time_column)
        sources = None if source_key is None else cells.as_labels(table, source_key)
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
            columns.append(cells.as_numbers(cells.read_numbers(table, column)))
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
            numbers = [cells.read_numbers(table, name) for table in tables]
            kind = named_kinds.get(name) or _infer_kind(numbers)
            is_named = name in named_kinds
            sides = [_column_values(side, kind, with_missing=is_named) for side in numbers]
        except ColumnTypeError as error:
            if name in named_kinds:
                raise
            left_out[name] = str(error)
            continue
        if any(len(side.others) < side.present for side in numbers):
            others[name] = "; ".join(filter(None, map(cells.others_text, numbers)))
        if kind == "categorical" and name not in named_kinds and _are_identifiers(sides):
            left_out[name] = others.get(name) or "hardly any text is there twice"
            continue
        for columns, values in zip(columns_by_side, sides, strict=True):
            columns[name] = values
        if name in named_kinds or kind != "numeric":
            kinds[name] = kind
    return columns_by_side, kinds, left_out, others


def _infer_kind(numbers: list[Numbers]) -> Kind:
    """Infer the kind of a column; counts are distinguished from other numbers later."""
    contents = {cells.infer_content(side) for side in numbers} - {None}
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


def _are_identifiers(sides: list[ColumnValues]) -> bool:
    """Check whether each side has too many distinct texts for labels."""
    texts = [[text for text in side if text is not None] for side in sides]
    counts = [(len(set(side)), len(side)) for side in texts if side]
    return all(distinct > max(_MAX_LABELS, n / 2) for distinct, n in counts) and bool(counts)


def _column_values(numbers: Numbers, kind: Kind, *, with_missing: bool) -> ColumnValues:
    """Return the values of a column for `build_sample`."""
    if kind == "numeric":
        return cells.as_numbers(numbers)
    if kind == "embedding":
        return cells.as_vectors(numbers.table, numbers.name)
    return cells.as_labels(numbers.table, numbers.name, with_missing=with_missing)


def _json_path(path: Path) -> str:
    """Return a path as text that JSON can encode, whatever its bytes."""
    return str(path).encode(errors="replace").decode()

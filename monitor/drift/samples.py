"""What is compared: columns of values, a row for each inference, in time order, with its source.

A source is what rows that resemble each other come from: a camera, a stream, a recording.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from quadriga.tasks.arrays import Int64Array

Kind = Literal["numeric", "count", "categorical", "embedding"]

EMBEDDING = "embedding"
"""The column of embeddings, where there is one."""

MAX_NUMBER = 1e150
"""Numbers beyond, either way, count as this: their squares would be infinite."""

MAX_COUNT_VALUES = 32
"""Integers with no more distinct values than this are counts."""


class DriftError(ValueError):
    """What is to be compared cannot be; the message names the column."""


class Column(msgspec.Struct, frozen=True, eq=False):
    """The values of one signal; what is missing is left out."""

    name: str
    kind: Kind
    rows: Int64Array
    """(P,) positions of the rows that have a value, ascending."""
    values: npt.NDArray[Any]
    """(P,) float64 of a number; (P,) int64, positions in `labels`, of a category; (P, D) float32 of an
    embedding. All finite."""
    labels: tuple[str, ...] = ()
    """Of a category, in the order of their text."""


class Sample(msgspec.Struct, frozen=True, eq=False):
    """Rows in time order."""

    columns: tuple[Column, ...]
    order: Int64Array
    """(N,) ascending: what puts rows in time order, such as milliseconds or ids; unique in a source."""
    sources: Int64Array
    """(N,) positions in `source_names`; zeros where there are none."""
    source_names: tuple[str, ...] = ()
    """In the order of their text; empty where no source is known."""

    def column(self, name: str) -> Column | None:
        """Return a column by its name."""
        return next((column for column in self.columns if column.name == name), None)

    def with_columns(self, columns: Iterable[Column]) -> "Sample":
        """Return these rows with other columns."""
        return replace(self, columns=tuple(columns))


def build_sample(
    columns: Mapping[str, Sequence[Any] | npt.NDArray[Any]],
    *,
    kinds: Mapping[str, Kind] | None = None,
    sources: Sequence[Any] | None = None,
    order: Sequence[int] | Int64Array | None = None,
) -> Sample:
    """Put columns together: numbers, texts, booleans, or lists of numbers of equal length.

    None, NaN and infinite values are missing. Kinds that are not given are inferred; a source that is None is one
    of its own; without an order rows are taken as they come.

    Raises:
        DriftError: Lengths differ, or values are not of their kind.
    """
    lengths = {name: len(values) for name, values in columns.items()}
    lengths |= {"sources": len(sources)} if sources is not None else {}
    lengths |= {"order": len(order)} if order is not None else {}
    n = next(iter(lengths.values()), 0)
    for name, length in lengths.items():
        if length != n:
            raise DriftError(f"expected {n} rows of {name}, got {length}")
    source_values = [""] * n if sources is None else sources
    names, codes = _encode_labels(
        ["" if source is None else str(source) for source in source_values]
    )
    positions = np.arange(n) if order is None else np.asarray(order, np.int64)
    built = (
        _build_column(name, values, (kinds or {}).get(name)) for name, values in columns.items()
    )
    unsorted = Sample(tuple(built), positions, codes, () if sources is None else names)
    return take_rows(unsorted, np.lexsort((codes, positions)))


def take_rows(sample: Sample, rows: Int64Array) -> Sample:
    """Return these rows (positions, each once) of a sample, in the order given."""
    new_positions = np.full(len(sample.order), -1, np.int64)
    new_positions[rows] = np.arange(len(rows))
    columns = []
    for column in sample.columns:
        positions = new_positions[column.rows]
        selected = np.flatnonzero(positions >= 0)
        selected = selected[np.argsort(positions[selected], kind="stable")]
        columns.append(replace(column, rows=positions[selected], values=column.values[selected]))
    return replace(
        sample, columns=tuple(columns), order=sample.order[rows], sources=sample.sources[rows]
    )


def merge_names(
    coded: Sequence[tuple[tuple[str, ...], Int64Array]],
) -> tuple[tuple[str, ...], list[Int64Array]]:
    """Return positions in several lists of names as positions in one list of all of them."""
    names = tuple(sorted({name for names_of_side, _ in coded for name in names_of_side}))
    positions = {name: position for position, name in enumerate(names)}
    return names, [
        np.array([positions[name] for name in names_of_side] or [0], np.int64)[codes]
        for names_of_side, codes in coded
    ]


def drop_unused_names(
    names: Sequence[str], codes: Int64Array
) -> tuple[tuple[str, ...], Int64Array]:
    """Leave out names that no position names."""
    used, codes = np.unique(codes, return_inverse=True)
    return tuple(names[position] for position in used), codes.astype(np.int64)


def kind_conflict(baseline: Column, current: Column) -> tuple[str, str] | None:
    """Say what two columns are that cannot be compared; integers may be few on one side only."""
    if not len(baseline.rows) or not len(current.rows):
        return None
    if baseline.kind != current.kind and {baseline.kind, current.kind} != {"numeric", "count"}:
        return baseline.kind, current.kind
    length, other = baseline.values.shape[1:], current.values.shape[1:]
    return None if length == other else (f"of length {length[0]}", f"{other[0]}")


def infer_kind(values: Sequence[Any] | npt.NDArray[Any]) -> Kind:
    """Infer what a column holds: numbers, counts (few distinct integers), categories or embeddings."""
    if _is_typed(values):
        if np.ndim(values) == 2:
            return "embedding"
        numbers = np.asarray(values)
        return _number_kind(numbers) if numbers.dtype.kind in "iuf" else "categorical"
    present = [value for value in values if value is not None]
    if present and all(isinstance(value, list | tuple | np.ndarray) for value in present):
        return "embedding"
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in present):
        return "categorical"
    return _number_kind(np.array(present, np.float64))


def _is_typed(values: Sequence[Any] | npt.NDArray[Any]) -> bool:
    return isinstance(values, np.ndarray) and values.dtype != object


def _number_kind(values: npt.NDArray[Any]) -> Kind:
    distinct = np.unique(values[np.isfinite(values)].astype(np.float64))
    is_count = 0 < len(distinct) <= MAX_COUNT_VALUES and bool(
        (distinct == np.round(distinct)).all()
    )
    return "count" if is_count else "numeric"


def _build_column(name: str, values: Sequence[Any] | npt.NDArray[Any], kind: Kind | None) -> Column:
    kind = kind or infer_kind(values)
    rows = np.arange(len(values))
    if not _is_typed(values):
        rows = np.flatnonzero([value is not None for value in values])
    present = values if len(rows) == len(values) else [values[row] for row in rows.tolist()]
    if kind == "categorical":
        labels, codes = _encode_labels([_label_text(value) for value in present])
        return Column(name, kind, rows, codes, labels)
    is_embedding = kind == "embedding"
    try:
        numbers = np.asarray(present, np.float32 if is_embedding else np.float64)
    except (TypeError, ValueError) as error:
        raise DriftError(f"expected {name} to hold {kind} values, got {error}") from error
    if is_embedding and not len(rows):
        numbers = numbers.reshape(0, 0)
    if numbers.ndim != 1 + is_embedding:
        raise DriftError(f"expected {name} to hold {kind} values, got shape {numbers.shape}")
    finite = np.isfinite(numbers).all(axis=tuple(range(1, numbers.ndim)))
    values_ = numbers[finite] if is_embedding else np.clip(numbers[finite], -MAX_NUMBER, MAX_NUMBER)
    return Column(name, kind, rows[finite], values_)


def value_label(value: Any) -> str | None:
    """Return the text of a value, the same for 7 and 7.0; None where there is none."""
    if value is None or value != value:  # noqa: PLR0124 - NaN
        return None
    return (
        str(int(value)) if isinstance(value, float) and value.is_integer() else _label_text(value)
    )


def _label_text(value: Any) -> str:
    """Return a label's text: booleans and numbers as JSON writes them."""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    return str(value)


def _encode_labels(texts: list[str]) -> tuple[tuple[str, ...], Int64Array]:
    labels = sorted(set(texts))
    codes = {label: code for code, label in enumerate(labels)}
    return tuple(labels), np.array([codes[text] for text in texts], np.int64)

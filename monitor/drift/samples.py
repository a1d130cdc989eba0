"""Samples: columns of signal values, one row per inference, in time order, with the source of each row.

A source is where rows that resemble each other come from: a camera, a stream, a recording.
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
"""Name of the column of embeddings."""

MAX_NUMBER = 1e150
"""Largest magnitude of a number; larger ones are clipped, as their squares would be infinite."""

MAX_COUNT_VALUES = 32
"""Maximum number of distinct integers of a column of counts; columns with more are numeric."""


class DriftError(ValueError):
    """The data cannot be compared; the message says which column or file."""


class Column(msgspec.Struct, frozen=True, eq=False):
    """Values of one signal, without rows where it is missing."""

    name: str
    kind: Kind
    rows: Int64Array
    """(P,) positions of the rows that have a value, ascending."""
    values: npt.NDArray[Any]
    """Values, all finite: float64 (P,) of numbers and counts; int64 (P,), positions in `labels`, of categories;
    float32 (P, D) of embeddings."""
    labels: tuple[str, ...] = ()
    """Labels of a category, sorted; empty for other kinds."""


class Sample(msgspec.Struct, frozen=True, eq=False):
    """Columns of rows in time order."""

    columns: tuple[Column, ...]
    order: Int64Array
    """(N,) ascending sort keys of the rows, such as milliseconds or ids; unique within a source."""
    sources: Int64Array
    """(N,) positions in `source_names`; zeros if that is empty."""
    source_names: tuple[str, ...] = ()
    """Names of the sources, sorted; empty if sources are not known."""

    def column(self, name: str) -> Column | None:
        """Return a column by its name; None if there is none."""
        return next((column for column in self.columns if column.name == name), None)

    def with_columns(self, columns: Iterable[Column]) -> "Sample":
        """Return the same rows with other columns."""
        return replace(self, columns=tuple(columns))


def build_sample(
    columns: Mapping[str, Sequence[Any] | npt.NDArray[Any]],
    *,
    kinds: Mapping[str, Kind] | None = None,
    sources: Sequence[Any] | None = None,
    order: Sequence[int] | Int64Array | None = None,
) -> Sample:
    """Build a sample from columns of numbers, texts, booleans, or lists of numbers of equal length.

    None, NaN and infinite values are missing.

    Args:
        columns: Values of each row, by column.
        kinds: Kinds of columns; the others are inferred.
        sources: Source of each row; rows whose source is None share one. None: sources are not known.
        order: Sort keys of the rows; None: they are in time order.

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
    keys = np.arange(n) if order is None else np.asarray(order, np.int64)
    built = (
        _build_column(name, values, (kinds or {}).get(name)) for name, values in columns.items()
    )
    unsorted = Sample(tuple(built), keys, codes, () if sources is None else names)
    return take_rows(unsorted, np.lexsort((codes, keys)))


def take_rows(sample: Sample, rows: Int64Array) -> Sample:
    """Return some rows of a sample (distinct positions), in that order."""
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
    """Merge lists of names, each with codes that are positions in it; return the merged list and the new codes."""
    names = tuple(sorted({name for names_of_side, _ in coded for name in names_of_side}))
    positions = {name: position for position, name in enumerate(names)}
    return names, [
        np.array([positions[name] for name in names_of_side] or [0], np.int64)[codes]
        for names_of_side, codes in coded
    ]


def drop_unused_names(
    names: Sequence[str], codes: Int64Array
) -> tuple[tuple[str, ...], Int64Array]:
    """Drop names that no code refers to; return the remaining names and the new codes."""
    used, codes = np.unique(codes, return_inverse=True)
    return tuple(names[position] for position in used), codes.astype(np.int64)


def kind_conflict(baseline: Column, current: Column) -> tuple[str, str] | None:
    """Return how two columns differ if they cannot be compared, else None.

    Numbers and counts are comparable: one side may have few distinct integers by chance.
    """
    if not len(baseline.rows) or not len(current.rows):
        return None
    if baseline.kind != current.kind and {baseline.kind, current.kind} != {"numeric", "count"}:
        return baseline.kind, current.kind
    shape, current_shape = baseline.values.shape[1:], current.values.shape[1:]
    return None if shape == current_shape else (f"of length {shape[0]}", f"{current_shape[0]}")


def infer_kind(values: Sequence[Any] | npt.NDArray[Any]) -> Kind:
    """Infer the kind of a column: numbers, counts (few distinct integers), categories or embeddings."""
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
        return Column(name, kind, rows, codes, labels=labels)
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
    numbers = numbers[finite]
    if not is_embedding:
        numbers = np.clip(numbers, -MAX_NUMBER, MAX_NUMBER)
    return Column(name, kind, rows[finite], numbers)


def value_label(value: Any) -> str | None:
    """Return the label of a value, the same for 7 and 7.0; None for a missing value."""
    if value is None or value != value:  # noqa: PLR0124 - NaN
        return None
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return _label_text(value)


def _label_text(value: Any) -> str:
    """Return the text of a label, with booleans written as in JSON."""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    return str(value)


def _encode_labels(texts: list[str]) -> tuple[tuple[str, ...], Int64Array]:
    labels = sorted(set(texts))
    codes = {label: code for code, label in enumerate(labels)}
    return tuple(labels), np.array([codes[text] for text in texts], np.int64)

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
        return next((one for one in self.columns if one.name == name), None)

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
    given = [""] * n if sources is None else sources
    names, codes = _encode_labels(["" if one is None else str(one) for one in given])
    placed = np.arange(n) if order is None else np.asarray(order, np.int64)
    made = (
        _build_column(name, values, (kinds or {}).get(name)) for name, values in columns.items()
    )
    whole = Sample(tuple(made), placed, codes, () if sources is None else names)
    return take_rows(whole, np.lexsort((codes, placed)))


def take_rows(one: Sample, rows: Int64Array) -> Sample:
    """Return these rows (positions, each once) of a sample, in the order given."""
    place = np.full(len(one.order), -1, np.int64)
    place[rows] = np.arange(len(rows))
    columns = []
    for column in one.columns:
        moved = place[column.rows]
        kept = np.flatnonzero(moved >= 0)
        kept = kept[np.argsort(moved[kept], kind="stable")]
        columns.append(replace(column, rows=moved[kept], values=column.values[kept]))
    return replace(one, columns=tuple(columns), order=one.order[rows], sources=one.sources[rows])


def merge_names(
    coded: Sequence[tuple[tuple[str, ...], Int64Array]],
) -> tuple[tuple[str, ...], list[Int64Array]]:
    """Return positions in several lists of names as positions in one list of all of them."""
    names = tuple(sorted({name for each, _ in coded for name in each}))
    place = {name: at for at, name in enumerate(names)}
    return names, [
        np.array([place[name] for name in each] or [0], np.int64)[codes] for each, codes in coded
    ]


def drop_unused_names(
    names: Sequence[str], codes: Int64Array
) -> tuple[tuple[str, ...], Int64Array]:
    """Leave out names that no position names."""
    there, codes = np.unique(codes, return_inverse=True)
    return tuple(names[at] for at in there), codes.astype(np.int64)


def kind_conflict(before: Column, now: Column) -> tuple[str, str] | None:
    """Say what two columns are that cannot be compared; integers may be few on one side only."""
    if not len(before.rows) or not len(now.rows):
        return None
    if before.kind != now.kind and {before.kind, now.kind} != {"numeric", "count"}:
        return before.kind, now.kind
    length, other = before.values.shape[1:], now.values.shape[1:]
    return None if length == other else (f"of length {length[0]}", f"{other[0]}")


def infer_kind(values: Sequence[Any] | npt.NDArray[Any]) -> Kind:
    """Infer what a column holds: numbers, counts (few distinct integers), categories or embeddings."""
    if _is_typed(values):
        if np.ndim(values) == 2:
            return "embedding"
        numbers = np.asarray(values)
        return _number_kind(numbers) if numbers.dtype.kind in "iuf" else "categorical"
    present = [one for one in values if one is not None]
    if present and all(isinstance(one, list | tuple | np.ndarray) for one in present):
        return "embedding"
    if any(isinstance(one, bool) or not isinstance(one, int | float) for one in present):
        return "categorical"
    return _number_kind(np.array(present, np.float64))


def _is_typed(values: Sequence[Any] | npt.NDArray[Any]) -> bool:
    return isinstance(values, np.ndarray) and values.dtype != object


def _number_kind(values: npt.NDArray[Any]) -> Kind:
    distinct = np.unique(values[np.isfinite(values)].astype(np.float64))
    few = 0 < len(distinct) <= MAX_COUNT_VALUES and bool((distinct == np.round(distinct)).all())
    return "count" if few else "numeric"


def _build_column(name: str, values: Sequence[Any] | npt.NDArray[Any], kind: Kind | None) -> Column:
    kind = kind or infer_kind(values)
    rows = np.arange(len(values))
    if not _is_typed(values):
        rows = np.flatnonzero([one is not None for one in values])
    present = values if len(rows) == len(values) else [values[at] for at in rows.tolist()]
    if kind == "categorical":
        labels, codes = _encode_labels([_label_text(one) for one in present])
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
    kept = numbers[finite] if is_embedding else np.clip(numbers[finite], -MAX_NUMBER, MAX_NUMBER)
    return Column(name, kind, rows[finite], kept)


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

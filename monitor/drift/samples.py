"""What is compared: columns of values, a row for each inference, in time order, with its source.

A source is what rows that resemble each other come from: a camera, a stream, a recording.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

Kind = Literal["numeric", "count", "categorical", "embedding"]

LARGEST = 1e150
"""Numbers beyond, either way, count as this: their squares would be infinite."""

MOST_COUNTS = 32
"""Integers with no more distinct values than this are counts."""


class DriftError(ValueError):
    """What is to be compared cannot be; the message names the column."""


class Column(msgspec.Struct, frozen=True, eq=False):
    """The values of one signal; what is missing is left out."""

    name: str
    kind: Kind
    rows: npt.NDArray[np.int64]
    """(P,) positions of the rows that have a value, ascending."""
    values: npt.NDArray[Any]
    """(P,) float64 of a number; (P,) int64, positions in `labels`, of a category; (P, D) float32 of an
    embedding. All finite."""
    labels: tuple[str, ...] = ()
    """Of a category, in the order of their text."""


class Sample(msgspec.Struct, frozen=True, eq=False):
    """Rows in time order."""

    columns: tuple[Column, ...]
    order: npt.NDArray[np.int64]
    """(N,) ascending: what puts rows in time order, such as milliseconds or ids; unique in a source."""
    sources: npt.NDArray[np.int64]
    """(N,) positions in `source_names`; zeros where there are none."""
    source_names: tuple[str, ...] = ()
    """In the order of their text; empty where no source is known."""


def sample(
    columns: Mapping[str, Sequence[Any] | npt.NDArray[Any]],
    *,
    kinds: Mapping[str, Kind] | None = None,
    sources: Sequence[Any] | None = None,
    order: Sequence[int] | npt.NDArray[np.int64] | None = None,
) -> Sample:
    """Put columns of equal length together; None, NaN and infinite values are missing.

    Args:
        columns: Values by name: numbers, texts, booleans, or lists of numbers of equal length.
        kinds: By name, where they shall not be inferred (see `kind_of`).
        sources: Of each row; None is a source of its own.
        order: Of each row; without it rows are taken as they come.

    Raises:
        DriftError: Lengths differ, or values are not of their kind.
    """
    kinds = kinds or {}
    lengths = {name: len(values) for name, values in columns.items()}
    lengths |= {"sources": len(sources)} if sources is not None else {}
    lengths |= {"order": len(order)} if order is not None else {}
    n = next(iter(lengths.values()), 0)
    wrong = next((name for name, length in lengths.items() if length != n), None)
    if wrong is not None:
        raise DriftError(f"expected {n} rows of {wrong}, got {lengths[wrong]}")
    texts = (
        ["" if one is None else str(one) for one in sources] if sources is not None else [""] * n
    )
    names, codes = _coded(texts)
    placed = np.arange(n) if order is None else np.asarray(order, np.int64)
    made = Sample(
        tuple(_column(name, values, kinds.get(name)) for name, values in columns.items()),
        placed,
        codes,
        names if sources is not None else (),
    )
    return take(made, np.lexsort((codes, placed)))


def take(one: Sample, rows: npt.NDArray[np.int64]) -> Sample:
    """Return these rows (positions, each once) of a sample, in the order given."""
    place = np.full(len(one.order), -1, np.int64)
    place[rows] = np.arange(len(rows))
    columns = []
    for column in one.columns:
        moved = place[column.rows]
        kept = np.flatnonzero(moved >= 0)
        kept = kept[np.argsort(moved[kept], kind="stable")]
        columns.append(
            msgspec.structs.replace(column, rows=moved[kept], values=column.values[kept])
        )
    return msgspec.structs.replace(
        one, columns=tuple(columns), order=one.order[rows], sources=one.sources[rows]
    )


def kind_of(values: Sequence[Any] | npt.NDArray[Any]) -> Kind:
    """Infer what a column holds: numbers, counts (few distinct integers), categories or embeddings."""
    if isinstance(values, np.ndarray) and values.dtype != object:
        if values.ndim == 2:
            return "embedding"
        if values.dtype.kind not in "iuf":
            return "categorical"
        return _number_kind(np.asarray(values, np.float64))
    present = [one for one in values if one is not None]
    if present and all(isinstance(one, list | tuple | np.ndarray) for one in present):
        return "embedding"
    if any(isinstance(one, bool) or not isinstance(one, int | float) for one in present):
        return "categorical"
    return _number_kind(np.array(present, np.float64))


def _number_kind(values: npt.NDArray[np.float64]) -> Kind:
    distinct = np.unique(values[np.isfinite(values)])
    few = 0 < len(distinct) <= MOST_COUNTS and bool((distinct == np.round(distinct)).all())
    return "count" if few else "numeric"


def _column(name: str, values: Sequence[Any] | npt.NDArray[Any], kind: Kind | None) -> Column:
    kind = kind or kind_of(values)
    if isinstance(values, np.ndarray) and values.dtype != object:
        rows = np.arange(len(values))
    else:
        rows = np.array([at for at, one in enumerate(values) if one is not None], np.int64)
    if kind == "categorical":
        labels, codes = _coded([_text(values[at]) for at in rows.tolist()])
        return Column(name, kind, rows, codes, labels)
    try:
        numbers = np.asarray(
            values if len(rows) == len(values) else [values[at] for at in rows.tolist()],
            np.float32 if kind == "embedding" else np.float64,
        )
    except (TypeError, ValueError) as error:
        raise DriftError(f"expected {name} to hold {kind} values, got {error}") from error
    if kind == "embedding" and not len(rows):
        numbers = numbers.reshape(0, 0)
    if numbers.ndim != (2 if kind == "embedding" else 1):
        raise DriftError(f"expected {name} to hold {kind} values, got shape {numbers.shape}")
    finite = np.isfinite(numbers)
    if kind == "embedding":
        kept = finite.all(axis=1)
        return Column(name, kind, rows[kept], numbers[kept])
    return Column(name, kind, rows[finite], np.clip(numbers[finite], -LARGEST, LARGEST))


def _text(value: Any) -> str:
    """Return a label's text: booleans and numbers as JSON writes them."""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    return str(value)


def _coded(texts: list[str]) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    labels = sorted(set(texts))
    codes = {label: code for code, label in enumerate(labels)}
    return tuple(labels), np.array([codes[text] for text in texts], np.int64)

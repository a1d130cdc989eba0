"""What a column of metadata is: a source of rows, a name of rows, or a value that may be missing.

Rows of cameras that take turns look independent of their neighbours. They are not: each resembles the row before of its
own camera. The column that names the sources is the one within whose values neighbours resemble each other most. Columns
that name or number rows, such as paths, ids, counters and clocks, always differ between two windows, so they are no
signals. Whether a value is there at all is a signal: values that become more or fewer are a change.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from quadriga.monitor.drift.samples import EMBEDDING, Column, Sample
from quadriga.monitor.drift.summary import Summary

PRESENCE_SUFFIX = " (is there)"
"""End of the name of a signal that says whether another signal has a value."""

_LABELS = ("no", "yes")


def with_presence(
    baseline: Summary, current: Summary, names: Iterable[str]
) -> tuple[Summary, Summary]:
    """Add a signal `<name> (is there)` for each of these signals that some rows of either side lack.

    Signals that no row of the baseline has are passed over, as nothing is known about them.
    """
    sides = baseline, current
    partial_names = [
        name
        for name in names
        if (column := baseline.sample.column(name)) is not None
        and column.kind != EMBEDDING
        and len(column.rows)
        and any(_presence_count(side, name) < len(side.sample.order) for side in sides)
    ]
    if not all(len(side.sample.order) for side in sides):
        return sides
    return _with_columns(baseline, partial_names), _with_columns(current, partial_names)


def _presence_count(side: Summary, name: str) -> int:
    column = side.sample.column(name)
    return 0 if column is None else len(column.rows)


def _with_columns(side: Summary, names: list[str]) -> Summary:
    columns = [_presence_column(side, name) for name in names]
    sample = side.sample.with_columns((*side.sample.columns, *columns))
    return replace(side, sample=sample)


def _presence_column(side: Summary, name: str) -> Column:
    row_count = len(side.sample.order)
    codes = np.zeros(row_count, np.int64)
    column = side.sample.column(name)
    if column is not None:
        codes[column.rows] = 1
    return Column(
        name + PRESENCE_SUFFIX, "categorical", np.arange(row_count), codes, labels=_LABELS
    )


_MIN_VALUES = 10
"""Number of values below which nothing is said about a column."""
_DISTINCT_SHARE = 0.9
"""Share of distinct texts above which a column holds names of rows."""
_FEW_ROWS_SHARE = 0.25
"""Share of distinct texts above which they may be names that each have a few rows, as two versions answer one image."""
_MIN_NAMES = 20
"""Number of distinct texts below which they are not taken for names that have a few rows each."""
_MAX_SHARED = 0.1
"""Share of the distinct texts of the window above which the baseline has the same ones, so that they name no rows."""
_RISING_SHARE = 0.95
"""Share of neighbours of which the later one is larger, above which a column numbers rows."""
_MIN_CLOCK = 1e8
"""Smallest number that may be a time, in seconds since 1970."""


def identifier_reason(name: str, baseline: Sample, current: Sample) -> str:
    """Return why a column identifies rows; an empty text if it does not, or if there are too few values to tell.

    Args:
        name: Name of the column.
        baseline: Sample with the column, in time order.
        current: Sample in time order. Where it has too few values to tell, the baseline alone decides.
    """
    columns = baseline.column(name), current.column(name)
    if columns[0] is None:
        return ""
    reason = _reason(columns[0], baseline)
    if columns[1] is None or len(columns[1].rows) < _MIN_VALUES:
        return reason
    if reason and _reason(columns[1], current) == reason:
        return reason
    is_name = _are_names(columns[0], columns[1])
    return "each text is there in few rows, and in one of the windows alone" if is_name else ""


def _are_names(baseline: Column, current: Column) -> bool:
    """Check whether texts have few rows each, and hardly any of the window is in the baseline, as where versions answer the same files."""
    if baseline.kind != "categorical" or current.kind != "categorical":
        return False
    texts = [
        {baseline.labels[code] for code in np.unique(baseline.values)},
        {current.labels[code] for code in np.unique(current.values)},
    ]
    rows = [len(baseline.rows), len(current.rows)]
    has_few_rows = all(
        len(distinct) >= max(_MIN_NAMES, _FEW_ROWS_SHARE * n)
        for distinct, n in zip(texts, rows, strict=True)
    )
    return has_few_rows and len(texts[0] & texts[1]) <= _MAX_SHARED * len(texts[1])


def _reason(column: Column, sample: Sample) -> str:
    if len(column.rows) < _MIN_VALUES or column.kind == "embedding":
        return ""
    if column.kind == "categorical":
        distinct = len(np.unique(column.values))
        return (
            "hardly any text is there twice"
            if distinct > _DISTINCT_SHARE * len(column.rows)
            else ""
        )
    return (
        "rises from row to row, as a counter or a clock does" if _is_rising(column, sample) else ""
    )


def _is_rising(column: Column, sample: Sample) -> bool:
    """Check whether integers, or times, rise from row to row within each source."""
    values = column.values
    if not ((values == np.round(values)).all() or values.min() > _MIN_CLOCK):
        return False
    sources = sample.sources[column.rows]
    order = np.lexsort((column.rows, sources))
    is_same_source = np.diff(sources[order]) == 0
    rises = np.diff(values[order])[is_same_source] > 0
    return len(rises) >= _MIN_VALUES - 1 and float(rises.mean()) >= _RISING_SHARE


MAX_SOURCES = 64
"""Maximum number of values of a column that may name sources."""

_MIN_ROWS_PER_SOURCE = 3
_MIN_LIKENESS = 0.1
"""Minimum correlation of neighbours within a source."""
_MIN_STANDARD_ERRORS = 5.0
"""Minimum rise of that correlation over the one of plain neighbours: several columns are tried on many signals."""


class FoundSource(NamedTuple):
    """A column that explains why rows resemble each other."""

    column: str
    signal: str
    """The signal whose neighbours resemble each other most within a source."""
    likeness: float
    """Correlation of the signal between neighbours within a source."""
    plain_likeness: float
    """Correlation between neighbours whatever their source."""

    @property
    def reason(self) -> str:
        """Why the column was chosen, as a sentence."""
        return (
            f"found: neighbours with the same {self.column} resemble each other "
            f"({self.signal}: correlation {self.likeness:.2f}, {self.plain_likeness:.2f} between all neighbours)"
        )


def find_source(
    baseline: Summary, current: Summary, *, prefix: str = ""
) -> tuple[FoundSource, tuple[Summary, Summary]] | None:
    """Find the column that names the sources of two sides that have none.

    Args:
        baseline: The baseline.
        current: The current window.
        prefix: Prefix of the names of columns that may name sources.

    Returns:
        What was found, and both sides with these sources; None if a side has sources already, or no column explains a
        likeness of rows.
    """
    sides = baseline, current
    if any(side.sample.source_names for side in sides):
        return None
    explanations: list[tuple[FoundSource, tuple[Summary, Summary]]] = []
    for column in current.sample.columns:
        if column.name.startswith(prefix) and _names_sources(column):
            with_sources = _with_sources(baseline, column.name), _with_sources(current, column.name)
            source = _explained(sides, with_sources, column.name)
            if source is not None:
                explanations.append((source, with_sources))
    return max(explanations, key=lambda item: item[0].likeness, default=None)


def _names_sources(column: Column) -> bool:
    if column.kind == EMBEDDING or not len(column.rows):
        return False
    distinct = len(np.unique(column.values))
    return 1 < distinct <= min(MAX_SOURCES, len(column.rows) // _MIN_ROWS_PER_SOURCE)


def _with_sources(side: Summary, name: str) -> Summary:
    """Return a side whose sources are the values of a column; rows without a value share one."""
    column = side.sample.column(name)
    values = [""] * len(side.sample.order)
    if column is not None:
        texts = (
            [column.labels[code] for code in column.values]
            if column.kind == "categorical"
            else [f"{value:g}" for value in column.values]
        )
        for row, text in zip(column.rows.tolist(), texts, strict=True):
            values[row] = text
    names, codes = np.unique(values, return_inverse=True)
    sample = replace(
        side.sample, source_names=tuple(names.tolist()), sources=codes.astype(np.int64)
    )
    return replace(side, sample=sample)


def _explained(
    sides: tuple[Summary, Summary], with_sources: tuple[Summary, Summary], name: str
) -> FoundSource | None:
    """Return the signal that a column explains best; None if it explains none."""
    best: FoundSource | None = None
    for side, with_source in zip(sides, with_sources, strict=True):
        for column in side.sample.columns:
            is_measured = column.kind != "categorical" and len(column.rows) > 1
            if column.name == name or not is_measured:
                continue
            plain, _ = _likeness(column, side.sample)
            within, pairs = _likeness(column, with_source.sample)
            rise = (within - plain) * np.sqrt(pairs)
            is_explained = rise >= _MIN_STANDARD_ERRORS and within >= _MIN_LIKENESS
            if is_explained and (best is None or within > best.likeness):
                best = FoundSource(name, column.name, within, plain)
    return best


def _likeness(column: Column, sample: Sample) -> tuple[float, int]:
    """Return the correlation of a signal's neighbours within each source, and their pairs.

    Of numbers it is that of their positions among the distinct ones.
    """
    scores = column.values.astype(np.float64)
    if column.kind != EMBEDDING:
        scores = np.unique(scores, return_inverse=True)[1].astype(np.float64)[:, None]
    sources = sample.sources[column.rows]
    order = np.argsort(sources, kind="stable")  # rows are in time order
    sources, scores = sources[order], scores[order]
    for source in np.unique(sources):
        scores[sources == source] -= scores[sources == source].mean(axis=0)
    total = float((scores**2).sum())
    follows = sources[1:] == sources[:-1]
    pairs = int(follows.sum())
    if not pairs or total <= 0:
        return 0.0, pairs
    products = np.einsum("ij,ij->i", scores[1:], scores[:-1])[follows]
    return float(products.sum()) / pairs / (total / len(scores)), pairs

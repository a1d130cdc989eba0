"""Search for the column that names the source of each row, where nobody said which one does.

Rows of cameras that take turns look independent of their neighbours. They are not: each resembles the row before of its
own camera. The column that explains this is the one within whose values neighbours resemble each other most.
"""

from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from quadriga.monitor.drift.samples import EMBEDDING, Column, Sample
from quadriga.monitor.drift.summary import Summary

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

"""Whether values are there at all, as signals: values that become more or fewer are a change."""

from collections.abc import Iterable

import numpy as np
from msgspec.structs import replace

from quadriga.monitor.drift.samples import EMBEDDING, Column
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

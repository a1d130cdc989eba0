"""Columns that name or number rows instead of describing them: paths, ids, counters, clocks.

They always differ between two windows, so they are no signals.
"""

import numpy as np

from quadriga.monitor.drift.samples import Column, Sample

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

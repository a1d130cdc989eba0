"""Arrays as all evaluations have them: their types, rows in groups, and means of what is known."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from quadriga.tasks.arrays import Float64Array, Int64Array


def index_within_groups(counts: Int64Array) -> Int64Array:
    """Number the rows of groups of so many rows each, from 0 in each group."""
    return expand_ranges(np.zeros_like(counts), counts)[1]


def expand_ranges(starts: Int64Array, counts: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Write ranges out: the position of the range, and the number, of each of its `counts` from `first` on."""
    range_index = np.repeat(np.arange(len(counts)), counts)
    return range_index, np.arange(len(range_index)) - np.repeat(
        np.cumsum(counts) - counts - starts, counts
    )


def run_starts(keys: Int64Array) -> Int64Array:
    """Return where each run of equal keys, of 0 or more, begins."""
    return np.flatnonzero(np.diff(keys, prepend=-1))


def index_within_runs(keys: Int64Array) -> Int64Array:
    """Number the rows of each run of equal keys, of 0 or more, from 0."""
    return index_within_groups(np.diff(run_starts(keys), append=len(keys)))


def joint_key(first: Int64Array, second: Int64Array) -> Int64Array:
    """Make one key of two, which sorts as the pair does."""
    return first << 32 | second


def find_keys(keys: Int64Array, queries: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Look up in ascending keys where each of those that are asked stands first, and how often."""
    starts = np.searchsorted(keys, queries, "left")
    return starts, np.searchsorted(keys, queries, "right") - starts


def concat_tables(table_sets: Sequence[dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Put the tables of parts, one at least, together by their names; all have the same columns (N, ...)."""
    return {
        name: {key: np.concatenate([tables[name][key] for tables in table_sets]) for key in table}
        for name, table in table_sets[0].items()
    }


def cumulative_before(values: Float64Array) -> Float64Array:
    """Return sums (..., N + 1, B) of the rows (..., N, B) before each place."""
    sums = np.zeros((*values.shape[:-2], values.shape[-2] + 1, values.shape[-1]))
    np.cumsum(values, axis=-2, out=sums[..., 1:, :])
    return sums


def ratio(
    numerator: Float64Array | Int64Array, denominator: Float64Array | Int64Array
) -> Float64Array:
    """Divide; NaN where the whole is 0."""
    quotient: Float64Array = np.divide(
        numerator, denominator, out=np.full(denominator.shape, np.nan), where=denominator != 0
    )
    return quotient


def nan_mean(values: Float64Array) -> Float64Array:
    """Average the last axis over what is not NaN; NaN where nothing is."""
    is_defined = ~np.isnan(values)
    return ratio(np.where(is_defined, values, 0.0).sum(axis=-1), is_defined.sum(axis=-1))

"""Array functions that all evaluations share: rows in groups, lookups in sorted keys, ratios with NaN."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from quadriga.tasks.arrays import Float64Array, Int64Array


def index_within_groups(counts: Int64Array) -> Int64Array:
    """Number the rows of consecutive groups of these sizes, from 0 in each group."""
    return expand_ranges(np.zeros_like(counts), counts)[1]


def expand_ranges(starts: Int64Array, counts: Int64Array) -> tuple[Int64Array, Int64Array]:
    """List the members of ranges that begin at `starts` and have `counts` members: index of the range, and value."""
    range_index = np.repeat(np.arange(len(counts)), counts)
    return range_index, np.arange(len(range_index)) - np.repeat(
        np.cumsum(counts) - counts - starts, counts
    )


def run_starts(keys: Int64Array) -> Int64Array:
    """Return the index at which each run of equal keys begins; keys are 0 or more."""
    return np.flatnonzero(np.diff(keys, prepend=-1))


def index_within_runs(keys: Int64Array) -> Int64Array:
    """Number the rows of each run of equal keys from 0; keys are 0 or more."""
    return index_within_groups(np.diff(run_starts(keys), append=len(keys)))


def joint_key(first: Int64Array, second: Int64Array) -> Int64Array:
    """Combine two keys below 2**32 into one that sorts as the pair does."""
    return first << 32 | second


def find_keys(keys: Int64Array, queries: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Look up queries in ascending keys: first index of each, and number of occurrences."""
    starts = np.searchsorted(keys, queries, "left")
    return starts, np.searchsorted(keys, queries, "right") - starts


def concat_tables(table_sets: Sequence[dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Concatenate tables of the same name, of at least one set of tables; all have the same columns (N, ...)."""
    return {
        name: {key: np.concatenate([tables[name][key] for tables in table_sets]) for key in table}
        for name, table in table_sets[0].items()
    }


def cumulative_before(values: Float64Array) -> Float64Array:
    """Return sums (..., N + 1, B) of the rows (..., N, B) before each position."""
    sums = np.zeros((*values.shape[:-2], values.shape[-2] + 1, values.shape[-1]))
    np.cumsum(values, axis=-2, out=sums[..., 1:, :])
    return sums


def ratio(
    numerator: Float64Array | Int64Array, denominator: Float64Array | Int64Array
) -> Float64Array:
    """Divide elementwise; NaN where the denominator is 0."""
    quotient: Float64Array = np.divide(
        numerator, denominator, out=np.full(denominator.shape, np.nan), where=denominator != 0
    )
    return quotient


def nan_mean(values: Float64Array) -> Float64Array:
    """Average over the last axis, ignoring NaN; NaN if all values are."""
    is_defined = ~np.isnan(values)
    return ratio(np.where(is_defined, values, 0.0).sum(axis=-1), is_defined.sum(axis=-1))


def finite_or_none(value: float) -> float | None:
    """Return a number for a report: None if it is not finite."""
    return float(value) if np.isfinite(value) else None

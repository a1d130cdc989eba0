"""Summaries of many rows: a random sample of bounded size, and the counts of all labels.

Rows are drawn by a hash of their source and time, so which rows are drawn does not depend on the order of reading.
"""

import zlib
from collections.abc import Container, Iterable

import msgspec
import numpy as np
from msgspec.structs import replace

from quadriga.monitor.array_packing import pack, unpack
from quadriga.monitor.drift import samples
from quadriga.monitor.drift.significance.decision import ComparisonSettings
from quadriga.tasks.arrays import BoolArray, Int64Array, UInt64Array

_TARGET_RUN_ROWS = 50
"""Rows of a source in a typical run."""
_MAX_RUN_RATIO, _DENSEST_SHARE = 10, 0.02
"""Maximum length of a run in multiples of the target; only in the densest share of the time are runs longer."""


class Summary(msgspec.Struct, frozen=True, eq=False):
    """Summary of the rows of a baseline or a window."""

    sample: samples.Sample
    """Drawn rows; embeddings of fewer of them, as float16."""
    n: int
    """Number of rows that were summarised."""
    labels: dict[str, dict[str, int]]
    """Counts of all labels, by column."""
    rows: int = 10_000
    """Maximum number of rows in the sample."""
    embeddings: int = 2_000
    """Maximum number of embeddings in the sample."""
    run: int = 1
    """Span of `sample.order` that is drawn as a whole: rows with the same `order // run`."""
    seed: int = 0
    """Seed of the hash that draws rows."""
    first_left: int | None = None
    """Smallest row key that was excluded; None if all rows are in the sample."""
    first_embedding_left: int | None = None
    """Smallest row key whose embedding was excluded; None if all embeddings are in the sample."""

    def is_sampled(self, kind: samples.Kind) -> bool:
        """Check whether values of columns of this kind were excluded."""
        first_excluded = self.first_embedding_left if kind == "embedding" else self.first_left
        return first_excluded is not None

    def without(self, names: Container[str]) -> "Summary":
        """Return a summary without some columns."""
        remaining = (column for column in self.sample.columns if column.name not in names)
        return replace(self, sample=self.sample.with_columns(remaining))

    def with_max_embeddings(self, max_embeddings: int = 2_000) -> "Summary":
        """Return a summary with at most that many embeddings."""
        return _limit_rows(replace(self, embeddings=min(max_embeddings, self.embeddings)))


def summarise(
    sample: samples.Sample,
    *,
    rows: int = 10_000,
    embeddings: int = 2_000,
    run: int | None = None,
    seed: int = 0,
    n: int | None = None,
    first_excluded: tuple[int | None, int | None] = (None, None),
) -> Summary:
    """Summarise rows for a comparison.

    Args:
        sample: All rows, or those that were drawn of them.
        rows: Maximum number of rows to draw.
        embeddings: Maximum number of embeddings to draw.
        run: Span of `sample.order` that is drawn as a whole, so that rows that resemble their neighbours, as
            in a video, stay together. It must be the same for all shards. None: about 50 rows of a source.
        seed: Seed of the hash that draws rows.
        n: Number of all rows, if `sample` was drawn from more; only labels in `sample` are counted then.
        first_excluded: Smallest excluded keys, from `draw_rows`, of all rows and of those with an embedding.

    Raises:
        DriftError: The run is less than 1.
    """
    if run is None:
        run = typical_run_length(sample.order, sample.sources)
    if run < 1:
        raise samples.DriftError(f"expected run to be 1 or more, got {run}")
    n = len(sample.order) if n is None else n
    labels = {
        column.name: dict(
            zip(
                column.labels,
                np.bincount(column.values, minlength=len(column.labels)).tolist(),
                strict=True,
            )
        )
        for column in sample.columns
        if column.kind == "categorical"
    }
    summary = Summary(
        sample,
        n,
        labels,
        rows=rows,
        embeddings=embeddings,
        run=run,
        seed=seed,
        first_left=first_excluded[0],
        first_embedding_left=first_excluded[1],
    )
    return _limit_rows(summary)


def as_summary(side: Summary | samples.Sample, settings: ComparisonSettings) -> Summary:
    """Return a summary as it is, and a sample as a summary with the number of rows that are compared."""
    if isinstance(side, Summary):
        return side
    return summarise(
        side, rows=settings.rows, embeddings=settings.embedding_rows, seed=settings.seed
    )


def typical_run_length(order: Int64Array, sources: Int64Array) -> int:
    """Return the span of an ascending order (N,) that typically holds about 50 rows of a source (N,).

    It is shorter where rows are unevenly spread: otherwise the most frequent source, or the busiest hour, would
    fall into a few long runs, of which a draw includes too many or none.
    """
    sizes = np.bincount(sources).astype(np.float64)
    target_rows = int(_TARGET_RUN_ROWS * len(order) ** 2 / max((sizes**2).sum(), 1.0))
    if len(order) <= target_rows:
        return max(int(order[-1]) - int(order[0]), 1) if len(order) else 1
    span = float(np.median(order[target_rows:] - order[:-target_rows]))
    dense_rows = _MAX_RUN_RATIO * target_rows
    if len(order) > dense_rows:
        span = min(
            span, float(np.quantile(order[dense_rows:] - order[:-dense_rows], _DENSEST_SHARE))
        )
    return max(int(span), 1)


def draw_rows(
    sample: samples.Sample, max_rows: int, *, run: int, seed: int = 0
) -> tuple[Int64Array, int | None]:
    """Draw the rows that a summary would, from their order and sources alone.

    Returns:
        Positions of the rows by ascending key, and the smallest key that was excluded; None if all rows are
        drawn.
    """
    keys = _row_keys(sample, run, seed)
    first_excluded = _first_excluded_key(keys, max_rows, None)
    order = np.argsort(keys, kind="stable")
    return order[_is_included(keys[order], first_excluded)], first_excluded


def _smallest_key(keys: Iterable[int | None]) -> int | None:
    return min((key for key in keys if key is not None), default=None)


def _row_keys(sample: samples.Sample, run: int, seed: int) -> UInt64Array:
    """Return the keys (N,) that rows are drawn by, smallest first: hashes of source, run and seed.

    Source: Steele, Lea, Flood, Fast Splittable Pseudorandom Number Generators (2014), the mixing of SplitMix64.
    """
    names = [zlib.crc32(name.encode()) for name in sample.source_names or ("",)]
    mixed = np.array(names, np.uint64)[sample.sources] << np.uint64(32)
    mixed ^= (sample.order // run).astype(np.uint64)
    mixed += np.uint64((seed * 0x9E3779B97F4A7C15) % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


def _first_excluded_key(
    keys: UInt64Array, max_rows: int, excluded_before: int | None
) -> int | None:
    """Return the smallest key whose rows do not fit any more; the smallest key of all always fits."""
    values, counts = np.unique(keys, return_counts=True)
    excluded = np.flatnonzero(counts.cumsum() > max_rows)
    excluded = excluded[excluded > 0]
    return _smallest_key((int(values[excluded[0]]) if len(excluded) else None, excluded_before))


def _is_included(keys: UInt64Array, first_excluded: int | None) -> BoolArray:
    return (
        np.ones(len(keys), np.bool_) if first_excluded is None else keys < np.uint64(first_excluded)
    )


def _limit_rows(summary: Summary) -> Summary:
    """Draw rows and embeddings until the summary has at most as many as its limits allow."""
    sample = summary.sample
    keys = _row_keys(sample, summary.run, summary.seed)
    first_excluded = _first_excluded_key(keys, summary.rows, summary.first_left)
    embedded_rows = [column.rows for column in sample.columns if column.kind == "embedding"]
    embedded_keys = keys[np.unique(np.concatenate(embedded_rows))] if embedded_rows else keys
    first_excluded_embedding = _first_excluded_key(
        embedded_keys, summary.embeddings, summary.first_embedding_left
    )
    first_excluded_embedding = _smallest_key((first_excluded_embedding, first_excluded))
    included = np.flatnonzero(_is_included(keys, first_excluded))
    sample, keys = samples.take_rows(sample, included), keys[included]
    if sample.source_names:
        names, sources = samples.drop_unused_names(sample.source_names, sample.sources)
        sample = replace(sample, source_names=names, sources=sources)
    columns = []
    for column in sample.columns:
        if column.kind == "embedding":
            is_included = _is_included(keys[column.rows], first_excluded_embedding)
            values = column.values[is_included].astype(np.float16)
            columns.append(replace(column, rows=column.rows[is_included], values=values))
        elif column.kind == "categorical":
            labels, codes = samples.drop_unused_names(column.labels, column.values)
            columns.append(replace(column, values=codes, labels=labels))
        else:
            columns.append(column)
    sample = sample.with_columns(columns)
    return replace(
        summary,
        sample=sample,
        first_left=first_excluded,
        first_embedding_left=first_excluded_embedding,
    )


def encode_summary(summary: Summary) -> bytes:
    """Encode a summary as MessagePack, with the bytes of its arrays."""
    return pack(summary)


def decode_summary(data: bytes) -> Summary:
    """Decode what `encode_summary` encoded, bit for bit; the arrays are read-only.

    Raises:
        DriftError: The bytes are not an encoded summary.
    """
    try:
        summary: Summary = unpack(data, Summary)
    except ValueError as error:
        raise samples.DriftError(f"expected a saved summary, got: {error}") from error
    return summary

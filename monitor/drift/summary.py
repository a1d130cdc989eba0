"""What is kept of a baseline: rows drawn by chance, small enough to keep, and the labels of all.

Rows are drawn by a hash of their source and time, so shards need not know of each other: put together, they
hold the rows that one would have drawn from the whole, however they were dealt out.
"""

import zlib
from collections import Counter
from collections.abc import Container, Iterable, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from quadriga.monitor.array_packing import pack, unpack
from quadriga.monitor.drift.samples import (
    Column,
    DriftError,
    Kind,
    Sample,
    drop_unused_names,
    merge_names,
    take_rows,
)
from quadriga.tasks.arrays import BoolArray, Int64Array, UInt64Array

_TARGET_RUN_ROWS = 50
_MAX_RUN_RATIO, _DENSEST_SHARE = 10, 0.02
"""A run has no more times as many rows, but for the densest share of all."""


class Summary(msgspec.Struct, frozen=True, eq=False):
    """A baseline, frozen."""

    sample: Sample
    """The rows that are kept; embeddings of fewer of them, as float16."""
    n: int
    """Rows that there were."""
    labels: dict[str, dict[str, int]]
    """How often each label was there, by column."""
    rows: int = 10_000
    """Kept, at most."""
    embeddings: int = 2_000
    """Kept, at most."""
    run: int = 1
    """Rows are drawn together whose order, divided by this, has the same whole number."""
    seed: int = 0
    first_left: int | None = None
    """Smallest key that was left out; None if all rows are kept."""
    first_embedding_left: int | None = None

    def is_sampled(self, kind: Kind) -> bool:
        """Tell whether values were left out."""
        first_excluded = self.first_embedding_left if kind == "embedding" else self.first_left
        return first_excluded is not None

    def without(self, names: Container[str]) -> "Summary":
        """Return these rows without some columns."""
        remaining = (column for column in self.sample.columns if column.name not in names)
        return replace(self, sample=self.sample.with_columns(remaining))

    def with_max_embeddings(self, max_embeddings: int = 2_000) -> "Summary":
        """Return this with no more embeddings than so many."""
        return _limit_rows(replace(self, embeddings=min(max_embeddings, self.embeddings)))


def summarise(
    sample: Sample,
    *,
    rows: int = 10_000,
    embeddings: int = 2_000,
    run: int | None = None,
    seed: int = 0,
    n: int | None = None,
    first_excluded: tuple[int | None, int | None] = (None, None),
) -> Summary:
    """Keep what a comparison needs.

    Args:
        sample: The baseline, or a shard of it.
        rows: Kept, at most.
        embeddings: As `rows`.
        run: Span of `sample.order` that is drawn as a whole, so that rows that resemble their neighbours, as
            in a video, stay together. Shards need the same. None: one of about 50 rows of a source.
        seed: Of the draw.
        n: Rows that there were, if the sample was drawn of more; its labels are all that are counted then.
        left: As `draw_rows` returned it for all rows, and for those that have an embedding.

    Raises:
        DriftError: The run is none.
    """
    if run is None:
        run = typical_run_length(sample.order, sample.sources)
    if run < 1:
        raise DriftError(f"expected run to be 1 or more, got {run}")
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
    return _limit_rows(Summary(sample, n, labels, rows, embeddings, run, seed, *first_excluded))


def typical_run_length(order: Int64Array, sources: Int64Array) -> int:
    """Return the span of an order (N,), ascending, that mostly has about 50 rows of a source (N,).

    Where many came at once it has less: otherwise the most frequent source, or the busiest hour, would come in
    few long runs, of which a draw holds too many or none.
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
    sample: Sample, max_rows: int, *, run: int, seed: int = 0
) -> tuple[Int64Array, int | None]:
    """Draw rows as summaries do, by their order and sources alone.

    Returns:
        Positions of the rows in the order of their draw, and the smallest key that was left out; None if all
        rows are drawn.
    """
    keys = _row_keys(sample, run, seed)
    first_excluded = _first_excluded_key(keys, max_rows, None)
    order = np.argsort(keys, kind="stable")
    return order[_is_included(keys[order], first_excluded)], first_excluded


def merge_summaries(summaries: Iterable[Summary]) -> Summary:
    """Put summaries of shards together, one at least, made with the same settings.

    Raises:
        DriftError: Settings or columns differ, or a row is in two of them.
    """
    shards = list(summaries)
    first = shards[0]
    labels: dict[str, Counter[str]] = {}
    for shard in shards:
        if _merge_key(shard) != _merge_key(first):
            raise DriftError(
                f"expected summaries alike, {_merge_key(first)}, got {_merge_key(shard)}"
            )
        for name, counts in shard.labels.items():
            labels.setdefault(name, Counter()).update(counts)
    merged = replace(
        first,
        sample=_concatenate_samples([shard.sample for shard in shards]),
        n=sum(shard.n for shard in shards),
        labels={name: dict(sorted(counts.items())) for name, counts in labels.items()},
        first_left=_smallest_key(shard.first_left for shard in shards),
        first_embedding_left=_smallest_key(shard.first_embedding_left for shard in shards),
    )
    return _limit_rows(merged)


def _merge_key(summary: Summary) -> tuple[object, ...]:
    kinds = tuple((column.name, column.kind) for column in summary.sample.columns)
    has_sources = bool(summary.sample.source_names)
    return (summary.rows, summary.embeddings, summary.run, summary.seed, has_sources, kinds)


def _smallest_key(keys: Iterable[int | None]) -> int | None:
    return min((key for key in keys if key is not None), default=None)


def _row_keys(sample: Sample, run: int, seed: int) -> UInt64Array:
    """Return what rows are drawn by, smallest first: a hash of source, run and seed."""
    names = [zlib.crc32(name.encode()) for name in sample.source_names or ("",)]
    mixed = np.array(names, np.uint64)[sample.sources] << np.uint64(32)
    mixed ^= (sample.order // run).astype(np.uint64)
    mixed += np.uint64((seed * 0x9E3779B97F4A7C15) % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


def _first_excluded_key(keys: UInt64Array, max_rows: int, known_key: int | None) -> int | None:
    """Return the smallest key whose rows do not fit any more; the first always fits."""
    values, counts = np.unique(keys, return_counts=True)
    excluded = np.flatnonzero(counts.cumsum() > max_rows)
    excluded = excluded[excluded > 0]
    return _smallest_key((int(values[excluded[0]]) if len(excluded) else None, known_key))


def _is_included(keys: UInt64Array, first_excluded: int | None) -> BoolArray:
    return (
        np.ones(len(keys), np.bool_) if first_excluded is None else keys < np.uint64(first_excluded)
    )


def _limit_rows(summary: Summary) -> Summary:
    """Leave out what is too much."""
    sample = summary.sample
    keys = _row_keys(sample, summary.run, summary.seed)
    first_excluded = _first_excluded_key(keys, summary.rows, summary.first_left)
    embedded = [one.rows for one in sample.columns if one.kind == "embedding"]
    embedded_keys = keys[np.unique(np.concatenate(embedded))] if embedded else keys
    first_excluded_embedding = _first_excluded_key(
        embedded_keys, summary.embeddings, summary.first_embedding_left
    )
    first_excluded_embedding = _smallest_key((first_excluded_embedding, first_excluded))
    included = np.flatnonzero(_is_included(keys, first_excluded))
    sample, keys = take_rows(sample, included), keys[included]
    if sample.source_names:
        names, sources = drop_unused_names(sample.source_names, sample.sources)
        sample = replace(sample, source_names=names, sources=sources)
    columns = []
    for column in sample.columns:
        if column.kind == "embedding":
            is_included_embedding = _is_included(keys[column.rows], first_excluded_embedding)
            values = column.values[is_included_embedding].astype(np.float16)
            columns.append(replace(column, rows=column.rows[is_included_embedding], values=values))
        elif column.kind == "categorical":
            labels, codes = drop_unused_names(column.labels, column.values)
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


def _concatenate_samples(samples: Sequence[Sample]) -> Sample:
    """Put samples together, in time order."""
    names, sources = merge_names([(sample.source_names, sample.sources) for sample in samples])
    offsets = np.cumsum([0, *(len(sample.order) for sample in samples[:-1])])
    columns = [
        _concatenate_columns(columns_of_shards, offsets)
        for columns_of_shards in zip(*(sample.columns for sample in samples), strict=True)
    ]
    order = np.concatenate([sample.order for sample in samples])
    joined = Sample(tuple(columns), order, np.concatenate(sources), names)
    sorted_sample = take_rows(joined, np.lexsort((joined.sources, joined.order)))
    duplicates = np.flatnonzero(
        (np.diff(sorted_sample.order) == 0) & (np.diff(sorted_sample.sources) == 0)
    )
    if len(duplicates):
        raise DriftError(
            f"expected each row of a source once, got order {sorted_sample.order[duplicates[0]]} twice"
        )
    return sorted_sample


def _concatenate_columns(shards: Sequence[Column], offsets: Int64Array) -> Column:
    labels: tuple[str, ...] = ()
    values = [column.values for column in shards]
    if shards[0].kind == "categorical":
        labels, values = merge_names([(column.labels, column.values) for column in shards])
    rows = np.concatenate(
        [column.rows + offset for column, offset in zip(shards, offsets, strict=True)]
    )
    nonempty = [array for array in values if len(array)] or values[:1]
    return replace(shards[0], rows=rows, values=np.concatenate(nonempty), labels=labels)


def encode_summary(summary: Summary) -> bytes:
    """Encode a summary for a file or another machine: MessagePack, with the arrays' own bytes."""
    return pack(summary)


def decode_summary(data: bytes) -> Summary:
    """Decode a summary, as `encode_summary` encoded it, bit for bit; its arrays cannot be written to.

    Raises:
        DriftError: The bytes are no summary.
    """
    try:
        summary: Summary = unpack(data, Summary)
    except ValueError as error:
        raise DriftError(f"expected a saved summary, got: {error}") from error
    return summary

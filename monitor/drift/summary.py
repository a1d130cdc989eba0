"""What is kept of a baseline: rows drawn by chance, small enough to keep, and the labels of all.

Rows are drawn by a hash of their source and time, so shards need not know of each other: put together, they
hold the rows that one would have drawn from the whole, however they were dealt out.
"""

import zlib
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from monitor.drift.samples import Column, DriftError, Kind, Sample, take

_RUN_ROWS = 50
_DENSE, _DENSEST = 10, 0.02
"""A run has no more times as many rows, but for the densest share of all."""
Keys = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]


class Place(NamedTuple):
    """What rows are drawn by: order, sources and names of these, as of a `Sample`."""

    order: npt.NDArray[np.int64]
    sources: npt.NDArray[np.int64]
    source_names: tuple[str, ...] = ()


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

    def drawn(self, kind: Kind) -> bool:
        """Tell whether values were left out."""
        left = self.first_embedding_left if kind == "embedding" else self.first_left
        return left is not None

    def with_embeddings(self, most: int = 2_000) -> "Summary":
        """Return this with no more embeddings than so many."""
        return _cut(msgspec.structs.replace(self, embeddings=min(most, self.embeddings)))


def summarise(
    sample: Sample,
    *,
    rows: int = 10_000,
    embeddings: int = 2_000,
    run: int | None = None,
    seed: int = 0,
) -> Summary:
    """Keep what a comparison needs.

    Args:
        sample: The baseline, or a shard of it.
        rows: Kept, at most.
        embeddings: Kept, at most.
        run: Span of `sample.order` that is drawn as a whole, so that rows that resemble their neighbours, as
            in a video, stay together. Shards need the same. None: one of about 50 rows of a source.
        seed: Of the draw.

    Raises:
        DriftError: A source has two rows of one order.
    """
    if run is None:
        run = usual_run(sample.order, sample.sources)
    if run < 1:
        raise DriftError(f"expected run to be 1 or more, got {run}")
    labels = counted(sample)
    return _cut(Summary(sample, len(sample.order), labels, rows, embeddings, run, seed))


def counted(sample: Sample) -> dict[str, dict[str, int]]:
    """Return how often each label is there, by column."""
    return {
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


def usual_run(order: npt.NDArray[np.int64], sources: npt.NDArray[np.int64]) -> int:
    """Return the span of an order (N,), ascending, that mostly has about 50 rows of a source (N,).

    As seen by the rows, and where many came at once less: otherwise the most frequent source, or the busiest
    hour, would come in few long runs, of which a draw holds too many or none.
    """
    sizes = np.bincount(sources).astype(np.float64)
    together = int(_RUN_ROWS * len(order) ** 2 / max((sizes**2).sum(), 1.0))
    if len(order) <= together:
        return max(int(order[-1]) - int(order[0]), 1) if len(order) else 1
    span = float(np.median(order[together:] - order[:-together]))
    dense = _DENSE * together
    if len(order) > dense:
        span = min(span, float(np.quantile(order[dense:] - order[:-dense], _DENSEST)))
    return max(int(span), 1)


def drawn(place: Place, most: int, *, run: int, seed: int = 0) -> tuple[Rows, int | None]:
    """Draw rows as summaries do, by their places alone.

    Args:
        place: Of the rows.
        most: Rows to be drawn, at most.
        run: As of `summarise`.
        seed: Of the draw.

    Returns:
        Positions of the rows in the order of their draw, and the smallest key that was left out; None if all
        rows are drawn.
    """
    keys = _hashed(place, run, seed)
    left = _first_left(keys, most, None)
    order = np.argsort(keys, kind="stable")
    return (order if left is None else order[keys[order] < np.uint64(left)]), left


def of_drawn(
    sample: Sample,
    n: int,
    left: int | None,
    embedding_left: int | None,
    *,
    rows: int,
    embeddings: int,
    run: int,
    seed: int = 0,
) -> Summary:
    """Return the summary of n rows of which those of `drawn` were read.

    Args:
        sample: What was read; its labels are all that are counted.
        n: Rows that there were.
        left: As `drawn` returned it.
        embedding_left: As it returned it for the rows that have an embedding.
        rows: As of `summarise`, and as `drawn` was given.
        embeddings: As `rows`.
        run: As `drawn` was given.
        seed: As `drawn` was given.
    """
    labels = counted(sample)
    return _cut(Summary(sample, n, labels, rows, embeddings, run, seed, left, embedding_left))


def merge(summaries: Iterable[Summary]) -> Summary:
    """Put summaries of shards together, one at least, made with the same settings.

    Raises:
        DriftError: Settings or columns differ, or a row is in two of them.
    """
    parts = list(summaries)
    first = parts[0]
    for part in parts[1:]:
        if _settings(part) != _settings(first):
            raise DriftError(f"expected summaries alike, {_settings(first)}, got {_settings(part)}")
    labels: dict[str, dict[str, int]] = {}
    for part in parts:
        for name, counts in part.labels.items():
            merged = labels.setdefault(name, {})
            for label, count in counts.items():
                merged[label] = merged.get(label, 0) + count
    return _cut(
        msgspec.structs.replace(
            first,
            sample=_joined([part.sample for part in parts]),
            n=sum(part.n for part in parts),
            labels={name: dict(sorted(counts.items())) for name, counts in labels.items()},
            first_left=_least(part.first_left for part in parts),
            first_embedding_left=_least(part.first_embedding_left for part in parts),
        )
    )


def _settings(summary: Summary) -> tuple[object, ...]:
    kinds = tuple((column.name, column.kind) for column in summary.sample.columns)
    keyed = bool(summary.sample.source_names)
    return (summary.rows, summary.embeddings, summary.run, summary.seed, keyed, kinds)


def _least(keys: Iterable[int | None]) -> int | None:
    return min((key for key in keys if key is not None), default=None)


def _keys(summary: Summary) -> Keys:
    """Return what rows are drawn by, smallest first: a hash of source, run and seed."""
    sample = summary.sample
    place = Place(sample.order, sample.sources, sample.source_names)
    return _hashed(place, summary.run, summary.seed)


def _hashed(place: Place, run: int, seed: int) -> Keys:
    names = [zlib.crc32(name.encode()) for name in place.source_names or ("",)]
    mixed = np.array(names, np.uint64)[place.sources] << np.uint64(32)
    mixed ^= (place.order // run).astype(np.uint64)
    mixed += np.uint64((seed * 0x9E3779B97F4A7C15) % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


def _cut(summary: Summary) -> Summary:
    """Leave out what is too much."""
    keys = _keys(summary)
    left = _first_left(keys, summary.rows, summary.first_left)
    embedded = [one.rows for one in summary.sample.columns if one.kind == "embedding"]
    with_one = np.unique(np.concatenate(embedded)) if embedded else np.arange(len(keys))
    embedding_left = _least(
        (_first_left(keys[with_one], summary.embeddings, summary.first_embedding_left), left)
    )
    kept = np.arange(len(keys)) if left is None else np.flatnonzero(keys < np.uint64(left))
    sample = take(summary.sample, kept)
    keys = keys[kept]
    columns = []
    for column in sample.columns:
        if column.kind == "embedding":
            held = column.rows >= 0
            if embedding_left is not None:
                held = keys[column.rows] < np.uint64(embedding_left)
            values = column.values[held].astype(np.float16)
            columns.append(Column(column.name, column.kind, column.rows[held], values))
        elif column.kind == "categorical":
            columns.append(_used(column))
        else:
            columns.append(column)
    return msgspec.structs.replace(
        summary,
        sample=msgspec.structs.replace(_named(sample), columns=tuple(columns)),
        first_left=left,
        first_embedding_left=embedding_left,
    )


def _first_left(keys: Keys, most: int, left: int | None) -> int | None:
    """Return the smallest key whose rows do not fit any more; the first always fits."""
    values, counts = np.unique(keys, return_counts=True)
    over = np.flatnonzero(counts.cumsum() > most)
    over = over[over > 0]
    found = int(values[over[0]]) if len(over) else None
    return _least((found, left))


def _used(column: Column) -> Column:
    """Leave out labels that no value has."""
    used, codes = np.unique(column.values, return_inverse=True)
    labels = tuple(column.labels[at] for at in used)
    return msgspec.structs.replace(column, values=codes.astype(np.int64), labels=labels)


def _named(sample: Sample) -> Sample:
    """Leave out sources that no row has."""
    if not sample.source_names:
        return sample
    used, codes = np.unique(sample.sources, return_inverse=True)
    names = tuple(sample.source_names[at] for at in used)
    return msgspec.structs.replace(sample, sources=codes.astype(np.int64), source_names=names)


def _joined(samples: list[Sample]) -> Sample:
    """Put samples together, in time order."""
    names = tuple(sorted({name for one in samples for name in one.source_names}))
    place = {name: at for at, name in enumerate(names)}
    sources = [
        np.array([place[name] for name in one.source_names] or [0], np.int64)[one.sources]
        for one in samples
    ]
    before = np.cumsum([0, *(len(one.order) for one in samples)])
    columns = tuple(
        _column([one.columns[at] for one in samples], before)
        for at in range(len(samples[0].columns))
    )
    joined = Sample(
        columns, np.concatenate([one.order for one in samples]), np.concatenate(sources), names
    )
    order = np.lexsort((joined.sources, joined.order))
    made = take(joined, order)
    twice = np.flatnonzero((np.diff(made.order) == 0) & (np.diff(made.sources) == 0))
    if len(twice):
        raise DriftError(
            f"expected each row of a source once, got order {made.order[twice[0]]} twice"
        )
    return made


def _column(parts: list[Column], before: npt.NDArray[np.int64]) -> Column:
    labels = tuple(sorted({label for part in parts for label in part.labels}))
    place = {label: at for at, label in enumerate(labels)}
    values = [
        np.array([place[label] for label in part.labels], np.int64)[part.values]
        if part.kind == "categorical"
        else part.values
        for part in parts
    ]
    rows = [part.rows + at for part, at in zip(parts, before[:-1], strict=True)]
    filled = [one for one in values if len(one)] or values[:1]
    return Column(
        parts[0].name, parts[0].kind, np.concatenate(rows), np.concatenate(filled), labels
    )

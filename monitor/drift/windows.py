"""Summaries of windows of stored inferences: rows are drawn first, then only those are read."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from quadriga.monitor.drift.parameters import SOURCE_KEYS, StoredWindow, window_filter
from quadriga.monitor.drift.row_signals import (
    COORDINATES,
    INPUT_PREFIX,
    METADATA_PREFIX,
    SIGNAL_KINDS,
)
from quadriga.monitor.drift.samples import EMBEDDING, Column, Kind, Sample, build_sample
from quadriga.monitor.drift.signal_reading import (
    SHARD_SIZE,
    SignalShard,
    count_other_labels,
    merge_shards,
    read_embeddings,
    read_signal_shard,
    read_sources,
    source_name,
)
from quadriga.monitor.drift.summary import Summary, draw_rows, summarise, typical_run_length
from quadriga.monitor.executors import MapShards, OnProgress
from quadriga.monitor.report.schema import ReportedModel, Window, reported_model
from quadriga.store.blobs.tensor_file import MAX_FEATURES
from quadriga.store.query.columns import label_counts
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.ids import time_ms
from quadriga.store.records.records import timestamp_text
from quadriga.tasks.arrays import Int64Array

MAX_TEXTS = 1000
"""Maximum number of distinct texts of a metadata key that is a signal."""

MAX_KEYS = 100
"""Maximum number of metadata keys that are signals: the most frequent ones."""

SINGLE_LABEL = "IMAGE_CLASSIFICATION"
_SMALL_TEXTS = 50
"""Number of distinct texts up to which a metadata key is a signal, however rare each text is."""


class WindowQuery(msgspec.Struct, frozen=True):
    """Query of the inferences of a model to read, and how many of them."""

    model: str
    window: StoredWindow
    newest_id: int
    """Largest id that counts."""
    now_us: int
    """Time that `now` means in filters, microseconds since 1970."""
    max_rows: int = 100_000
    """Maximum number of rows to draw."""
    max_embeddings: int = 2_000
    """Maximum number of embeddings to draw."""
    source_keys: Sequence[str] = tuple(SOURCE_KEYS)
    seed: int = 0
    task: str = ""
    """Task of the inferences that count; empty: the task of the newest."""
    space: str = ""
    """Embedding space of the embeddings that count; empty: the most frequent."""


class WindowInfo(msgspec.Struct, frozen=True):
    """The model and the circumstances of a window."""

    model: ReportedModel
    task: str
    window: Window
    source_key: str | None = None
    """Metadata key that holds the source; None where no inference has any."""
    space: str = ""
    """Embedding space; empty where there are no embeddings."""
    excluded: dict[str, int] = {}
    """Numbers of inferences or embeddings that were drawn and do not count, by reason."""
    left_out: dict[str, str] = {}
    """Reasons why columns are no signals, by name."""


class WindowSummary(NamedTuple):
    """The signals of a window, and its circumstances."""

    summary: Summary
    """Signals of the window; the order of the rows is that of their ids."""
    info: WindowInfo


class _DrawnRows(NamedTuple):
    """The rows to be read."""

    ids: Int64Array
    """(N,) ids, ascending."""
    first_excluded: int | None = None
    """Smallest row key that was excluded; None if all rows are read."""
    run: int | None = None
    """Span of ids that is drawn as a whole; None if all rows are read."""
    source_key: str | None = None
    sources: list[str] | None = None
    """(N,) sources of rows that were drawn; None where no source is known, or all rows are read."""


def read_window(
    reader: InferenceReader,
    query: WindowQuery,
    on_progress: OnProgress,
    map_shards: MapShards = None,
) -> WindowSummary:
    """Read the summary of a window; a window without inferences has no signals.

    Raises:
        StoreError: The database does not answer, or the filter is invalid.
    """
    ids = _matching_ids(reader, query)
    if not len(ids):
        return _empty_window(query)
    task = query.task or reader.get(str(ids[-1])).task
    drawn_rows = _draw_rows(reader, ids, query)
    shard = _read_shards(reader, task, drawn_rows.ids, on_progress, map_shards)
    columns, left_out = _columns(shard.signals)
    read_ids = np.array(shard.ids, np.int64)
    source_key, sources = _sources(drawn_rows, shard, query.source_keys)
    rows = build_sample(columns, kinds=_kinds(columns), sources=sources, order=read_ids)
    run = drawn_rows.run or typical_run_length(read_ids, rows.sources)
    excluded = shard.excluded
    first_excluded_embedding = None
    query = replace(query, space=_embedding_space(query, shard))
    if query.space:
        excluded = excluded | _count_without_embedding(query, shard)
        column, first_excluded_embedding = _embeddings(reader, rows, shard, query=query, run=run)
        rows = rows.with_columns((*rows.columns, column))
    n = round(len(ids) * len(read_ids) / len(drawn_rows.ids))
    first_excluded = (drawn_rows.first_excluded, first_excluded_embedding)
    summary = summarise(rows, **_sizes(query), run=run, n=n, first_excluded=first_excluded)
    labels = summary.labels.setdefault("label", {})
    is_single = task == SINGLE_LABEL
    if drawn_rows.first_excluded is not None:
        labels |= count_other_labels(reader, query.model, ids, known_labels=labels, best=is_single)
    elif not is_single:
        labels |= label_counts(reader, read_ids.tolist())
    start, end = (timestamp_text(time_ms(int(id_))) for id_ in (ids[0], ids[-1]))
    info = WindowInfo(
        reported_model(query.model, query.window.version, shard.models),
        task,
        Window(start, end, n, filter=query.window.where),
        source_key=source_key,
        space=query.space,
        excluded={reason: count for reason, count in excluded.items() if count},
        left_out=left_out,
    )
    return WindowSummary(summary, info)


def _matching_ids(reader: InferenceReader, query: WindowQuery) -> Int64Array:
    """Return the ids of the window (N,), ascending."""
    filter_tree = {
        "and": [window_filter(query.model, query.window), {"id": {"le": str(query.newest_id)}}]
    }
    pages = reader.matching_ids(filter_tree, query.now_us)
    return np.concatenate([np.array(page, np.int64) for page in pages])


def _empty_window(query: WindowQuery) -> WindowSummary:
    summary = summarise(build_sample({}, order=[]), **_sizes(query), run=1)
    model = reported_model(query.model, query.window.version)
    window = Window(filter=query.window.where)
    return WindowSummary(summary, WindowInfo(model, query.task, window))


def _sizes(query: WindowQuery) -> dict[str, Any]:
    return {"rows": query.max_rows, "embeddings": query.max_embeddings, "seed": query.seed}


def _draw_rows(reader: InferenceReader, ids: Int64Array, query: WindowQuery) -> _DrawnRows:
    """Choose which rows to read: all, or a random choice by their sources and ids."""
    if len(ids) <= query.max_rows:
        return _DrawnRows(ids)
    looked_up = read_sources(reader, ids, query.source_keys)
    key, names, sources = looked_up or (None, (), np.zeros(len(ids), np.int64))
    run = typical_run_length(ids, sources)
    rows, first_excluded = draw_rows(
        Sample((), ids, sources, names), query.max_rows, run=run, seed=query.seed
    )
    rows.sort()
    row_sources = [names[code] for code in sources[rows].tolist()] if names else None
    return _DrawnRows(ids[rows], first_excluded, run, source_key=key, sources=row_sources)


def _read_shards(
    reader: InferenceReader,
    task: str,
    ids: Int64Array,
    on_progress: OnProgress,
    map_shards: MapShards,
) -> SignalShard:
    """Read the signals of inferences (N,) in shards, and merge these."""
    shard_ids = [
        ids[start : start + SHARD_SIZE].tolist() for start in range(0, len(ids), SHARD_SIZE)
    ]
    shards: list[SignalShard] = []
    on_progress(0, len(ids))
    read = partial(read_signal_shard, task)
    for shard in (
        map_shards(read, shard_ids) if map_shards else map(partial(read, reader), shard_ids)
    ):
        shards.append(shard)
        on_progress(min(len(shards) * SHARD_SIZE, len(ids)), len(ids))
    return merge_shards(shards)


def _columns(signals: dict[str, list[Any]]) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """Return the signals in the order of a report, and the reasons why metadata keys are no signals."""
    counts = {name: len(values) - values.count(None) for name, values in signals.items()}
    frequent = sorted(counts, key=lambda name: (-counts[name], name))
    keys = [name for name in frequent if name.startswith(METADATA_PREFIX)]
    left_out = dict.fromkeys(keys[MAX_KEYS:], f"{MAX_KEYS} keys are there more often")
    features = [name for name in signals if name.startswith(INPUT_PREFIX)]
    beyond = f"this and later features are beyond the first {MAX_FEATURES}"
    left_out |= dict.fromkeys(features[MAX_FEATURES:], beyond)
    positions = {name: position for position, name in enumerate(SIGNAL_KINDS)}
    columns = {}
    for name in sorted(
        counts.keys() - left_out.keys(),
        key=lambda name: (
            name.startswith(METADATA_PREFIX),
            positions.get(name, len(positions)),
            name,
        ),
    ):
        reason = _not_categorical(signals[name]) if name.startswith(METADATA_PREFIX) else ""
        if reason:
            left_out[name] = reason
        else:
            columns[name] = signals[name]
    return columns, left_out


def _not_categorical(values: Sequence[Any]) -> str:
    """Return why texts cannot be categories; an empty text if they can, and for numbers."""
    present = [value for value in values if value is not None]
    if not any(isinstance(value, str) for value in present):
        return ""
    distinct = len(set(present))
    if distinct > MAX_TEXTS:
        return f"more than {MAX_TEXTS:,} different texts"
    is_rare = distinct > max(_SMALL_TEXTS, len(present) / 2)
    return "hardly any text is there twice" if is_rare else ""


def _kinds(columns: dict[str, list[Any]]) -> dict[str, Kind]:
    """Return the kinds of columns that are fixed; all others are inferred from the values."""
    kinds = {name: kind for name, kind in SIGNAL_KINDS.items() if name in columns}
    for name, values in columns.items():
        is_coordinate = name.startswith(METADATA_PREFIX) and name.rpartition(".")[2] in COORDINATES
        has_texts = is_coordinate and any(isinstance(value, str | bool) for value in values)
        if name.startswith(("image.", INPUT_PREFIX)) or (is_coordinate and not has_texts):
            kinds[name] = "numeric"
    return kinds


def _sources(
    drawn_rows: _DrawnRows, shard: SignalShard, keys: Sequence[str]
) -> tuple[str | None, list[str] | None]:
    """Return the metadata key that holds the source, and the source of each row that was read."""
    if drawn_rows.first_excluded is not None:
        positions = np.searchsorted(drawn_rows.ids, shard.ids).tolist()
        sources = drawn_rows.sources
        return drawn_rows.source_key, sources and [sources[position] for position in positions]
    key = next((key for key in keys if METADATA_PREFIX + key in shard.signals), None)
    if key is None:
        return None, None
    return key, [source_name(value) for value in shard.signals[METADATA_PREFIX + key]]


def _embedding_space(query: WindowQuery, shard: SignalShard) -> str:
    """Return the embedding space that counts; an empty text if there are no embeddings."""
    counts = Counter(space for space in shard.embedding_spaces if space)
    return (query.space or counts.most_common(1)[0][0]) if counts else ""


def _count_without_embedding(query: WindowQuery, shard: SignalShard) -> dict[str, int]:
    """Return the numbers of inferences without an embedding of the space, by reason."""
    counts = Counter(shard.embedding_spaces)
    missing = counts[None]
    return {
        "no_signals": missing,
        "other_space": counts.total() - missing - counts[query.space],
    }


def _embeddings(
    reader: InferenceReader, sample: Sample, shard: SignalShard, *, query: WindowQuery, run: int
) -> tuple[Column, int | None]:
    """Draw some of the rows with an embedding of the query's space, and read those.

    Returns:
        The column of embeddings, and the smallest excluded key, from `draw_rows`.
    """
    rows = np.flatnonzero([space == query.space for space in shard.embedding_spaces])
    order = sample.order[rows]
    embedded = Sample((), order, sample.sources[rows], sample.source_names)
    chosen, first_excluded = draw_rows(embedded, query.max_embeddings, run=run, seed=query.seed)
    chosen.sort()
    embeddings = read_embeddings(reader, order[chosen].tolist(), query.space)
    chosen = chosen[np.isin(order[chosen], [*embeddings])]
    values = np.array([embeddings[id_] for id_ in order[chosen].tolist()], np.float32)
    values = values.reshape(len(chosen), -1 if len(chosen) else 0)
    return Column(EMBEDDING, "embedding", rows[chosen], values), first_excluded

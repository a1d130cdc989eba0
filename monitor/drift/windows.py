"""A window of stored inferences as a summary: which rows are drawn is chosen first, then those are read."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from quadriga.monitor.drift.parameters import SOURCE_KEYS, StoredWindow, where_of
from quadriga.monitor.drift.row_signals import COORDINATES, KINDS, META
from quadriga.monitor.drift.samples import EMBEDDING, Column, Kind, Sample, sample
from quadriga.monitor.drift.signal_reading import (
    SHARD,
    Ids,
    Shard,
    embeddings_of,
    labels_of,
    merged,
    other_labels,
    read_shard,
    source_name,
    sources_of,
)
from quadriga.monitor.drift.summary import Summary, drawn, summarise, usual_run
from quadriga.monitor.executors import Places, Tell
from quadriga.monitor.report.schema import ReportedModel, Window
from quadriga.store.ids import milliseconds
from quadriga.store.inferences import Inferences
from quadriga.store.records import ModelReference, timestamp_text

MOST_TEXTS = 1000
"""A key of the metadata with more different texts than this is no signal, nor one with more than a few, \
hardly any of which is there twice."""

MOST_KEYS = 100
"""Keys of the metadata that are signals, those that most inferences have."""

SINGLE_LABEL = "IMAGE_CLASSIFICATION"
_FEW_TEXTS = 50


class Reading(msgspec.Struct, frozen=True):
    """What is to be read."""

    model: str
    window: StoredWindow
    newest: int
    """The largest id that counts."""
    now_us: int
    """What `now` means in filters."""
    rows: int = 100_000
    """That are drawn, at most."""
    embeddings: int = 2_000
    """As `rows`."""
    source_keys: Sequence[str] = tuple(SOURCE_KEYS)
    seed: int = 0
    task: str = ""
    """Inferences of another do not count; empty: that of the newest."""
    space: str = ""
    """Embeddings of another do not count; empty: the most frequent."""


class About(msgspec.Struct, frozen=True):
    """What was read."""

    model: ReportedModel
    task: str
    window: Window
    source_key: str | None = None
    """What tells the sources; None where nothing does."""
    space: str = ""
    """Of the embeddings; empty where there are none."""
    excluded: dict[str, int] = {}
    """Inferences or embeddings that do not count, by reason; of those that were drawn."""
    left_out: dict[str, str] = {}
    """Why a signal is none, by its name."""


class WindowRead(NamedTuple):
    """A window, read."""

    summary: Summary
    """Its order are ids."""
    about: About


class _Chosen(NamedTuple):
    """The rows to be read."""

    ids: Ids
    """(N,) ascending."""
    left: int | None = None
    run: int | None = None
    source_key: str | None = None
    sources: list[str] | None = None
    """(N,) of rows that were drawn, where anything tells them; all others tell it themselves."""


def read_window(inferences: Inferences, asked: Reading, tell: Tell, places: Places) -> WindowRead:
    """Read a window; one without inferences has no signals.

    Raises:
        StoreError: The database does not answer, or a filter means nothing.
    """
    where = {"and": [where_of(asked.model, asked.window), {"id": {"le": str(asked.newest)}}]}
    ids = np.concatenate([np.array(some, np.int64) for some in inferences.ids(where, asked.now_us)])
    filter_ = asked.window.where
    if not len(ids):
        empty = summarise(sample({}, order=[]), **_sizes(asked), run=1)
        model = ReportedModel(asked.model, asked.window.version or "")
        return WindowRead(empty, About(model, asked.task, Window(filter=filter_)))
    task = asked.task or inferences.get(str(ids[-1])).task
    chosen = _choose(inferences, ids, asked)
    parts = [chosen.ids[at : at + SHARD].tolist() for at in range(0, len(chosen.ids), SHARD)]
    shards = []
    tell(0, len(chosen.ids))
    for shard in places.map(partial(read_shard, task), parts):
        shards.append(shard)
        tell(min(len(shards) * SHARD, len(chosen.ids)), len(chosen.ids))
    whole = merged(shards)
    excluded = Counter(whole.excluded)
    columns, left_out = _columns(whole.signals)
    read = np.array(whole.ids, np.int64)
    key, sources = _sources(chosen, whole, asked.source_keys)
    made = sample(columns, kinds=_kinds(columns), sources=sources, order=read)
    run = chosen.run or usual_run(read, made.sources)
    spaces = whole.spaces
    counts = Counter(one for one in spaces if one)
    space = (asked.space or counts.most_common(1)[0][0]) if counts else ""
    embeddings_left = None
    if space:
        excluded["no_signals"] = spaces.count(None)
        excluded["other_space"] = len(spaces) - spaces.count(None) - counts[space]
        rows = np.flatnonzero([one == space for one in spaces])
        asked = replace(asked, space=space)
        column, embeddings_left = _embedded(inferences, made, rows, asked, run)
        made = made.of((*made.columns, column))
    n = round(len(ids) * len(read) / len(chosen.ids))
    left = (chosen.left, embeddings_left)
    summary = summarise(made, **_sizes(asked), run=run, n=n, left=left)
    known = summary.labels.setdefault("label", {})
    is_single = task == SINGLE_LABEL
    if chosen.left is not None:
        known |= other_labels(inferences, asked.model, ids, known, best=is_single)
    elif not is_single:
        known |= labels_of(inferences, read)
    start, end = (timestamp_text(milliseconds(int(one))) for one in (ids[0], ids[-1]))
    window = Window(start, end, n, filter=filter_)
    about = About(_model(asked, whole.models), task, window, key, space, dict(+excluded), left_out)
    return WindowRead(summary, about)


def _sizes(asked: Reading) -> dict[str, Any]:
    return {"rows": asked.rows, "embeddings": asked.embeddings, "seed": asked.seed}


def _choose(inferences: Inferences, ids: Ids, asked: Reading) -> _Chosen:
    """Choose which rows to read: all, or as many as are drawn, by their sources and ids."""
    if len(ids) <= asked.rows:
        return _Chosen(ids)
    found = sources_of(inferences, ids, asked.source_keys)
    key, names, sources = found or (None, (), np.zeros(len(ids), np.int64))
    run = usual_run(ids, sources)
    rows, left = drawn(Sample((), ids, sources, names), asked.rows, run=run, seed=asked.seed)
    rows.sort()
    named = [names[at] for at in sources[rows].tolist()] if names else None
    return _Chosen(ids[rows], left, run, key, named)


def _columns(signals: dict[str, list[Any]]) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """Put signals in order, and say which keys of the metadata are none."""
    counts = {name: len(values) - values.count(None) for name, values in signals.items()}
    frequent = sorted(counts, key=lambda name: (-counts[name], name))
    keys = [name for name in frequent if name.startswith(META)]
    left_out = dict.fromkeys(keys[MOST_KEYS:], f"{MOST_KEYS} keys are there more often")
    places = {name: at for at, name in enumerate(KINDS)}
    columns = {}
    for name in sorted(
        counts.keys() - left_out.keys(),
        key=lambda name: (name.startswith(META), places.get(name, len(places)), name),
    ):
        reason = _no_label(signals[name]) if name.startswith(META) else ""
        if reason:
            left_out[name] = reason
        else:
            columns[name] = signals[name]
    return columns, left_out


def _no_label(values: Sequence[Any]) -> str:
    """Say why texts are no labels; nothing where they are, and of numbers."""
    texts = [one for one in values if one is not None]
    if not any(isinstance(one, str) for one in texts):
        return ""
    distinct = len(set(texts))
    if distinct > MOST_TEXTS:
        return f"more than {MOST_TEXTS:,} different texts"
    return "hardly any text is there twice" if distinct > max(_FEW_TEXTS, len(texts) / 2) else ""


def _kinds(columns: dict[str, list[Any]]) -> dict[str, Kind]:
    """Return the kinds that are known; a key with a text or a boolean is one of labels."""
    kinds = {name: kind for name, kind in KINDS.items() if name in columns}
    for name, values in columns.items():
        is_place = name.startswith(META) and name.rpartition(".")[2] in COORDINATES
        has_texts = is_place and any(isinstance(one, str | bool) for one in values)
        if name.startswith("image.") or (is_place and not has_texts):
            kinds[name] = "numeric"
    return kinds


def _sources(
    chosen: _Chosen, read: Shard, keys: Sequence[str]
) -> tuple[str | None, list[str] | None]:
    """Return what tells the sources, and the source of each row that was read."""
    if chosen.left is not None:
        at = np.searchsorted(chosen.ids, read.ids).tolist()
        return chosen.source_key, chosen.sources and [chosen.sources[one] for one in at]
    key = next((one for one in keys if META + one in read.signals), None)
    return key, None if key is None else [source_name(one) for one in read.signals[META + key]]


def _embedded(
    inferences: Inferences, made: Sample, rows: Ids, asked: Reading, run: int
) -> tuple[Column, int | None]:
    """Draw among the rows (N,) with an embedding, and read those; returns also what was left, as `drawn`."""
    order = made.order[rows]
    place = Sample((), order, made.sources[rows], made.source_names)
    best, left = drawn(place, asked.embeddings, run=run, seed=asked.seed)
    best.sort()
    found = embeddings_of(inferences, order[best].tolist(), asked.space)
    best = best[np.isin(order[best], [*found])]
    values = np.array([found[one] for one in order[best].tolist()], np.float32)
    values = values.reshape(len(best), -1 if len(best) else 0)
    return Column(EMBEDDING, "embedding", rows[best], values), left


def _model(asked: Reading, models: Sequence[ModelReference]) -> ReportedModel:
    """Name the model by all of its versions that answered."""
    versions = sorted({model.version for model in models}) or [asked.window.version or ""]
    digests = {model.sha256 for model in models}
    digest = digests.pop() if len(digests) == 1 else ""
    return ReportedModel(asked.model, ", ".join(versions), digest)

"""Reads the signals of stored inferences, in shards, in any order."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from quadriga.monitor.drift import row_signals
from quadriga.monitor.drift.samples import drop_unused_names, value_label
from quadriga.store.blobs.tensor_file import MEDIA_TYPE, read_features
from quadriga.store.database.schema import INDEXED_CHARACTERS
from quadriga.store.query.columns import InferenceColumns, labelled_ids, scan, source_values
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.records import IMAGE_STATISTICS, ModelReference, StoredSignals
from quadriga.tasks.arrays import Float32Array, Int64Array

SHARD_SIZE = 1000
"""Number of inferences that are read at once."""

MAX_INPUT_BYTES = 64 << 10
"""Maximum size of stored tensors that are read as signals."""

RARE_KEY_RATIO = 100
"""A metadata key is a signal if at least one of so many inferences has it."""

_ROW_CHOICES = 1 << 31
"""Number of values from which the row of a request is chosen."""

_NO_SIGNALS = StoredSignals(None, None, None)


class SignalShard(msgspec.Struct):
    """The signals of some inferences."""

    ids: list[int]
    """Ids of the inferences that count, oldest first."""
    signals: dict[str, list[Any]]
    """(N,) values by name; None where there is none."""
    embedding_spaces: list[str | None]
    """(N,) embedding spaces; None where there is no embedding."""
    models: list[ModelReference]
    """The models that answered."""
    excluded: dict[str, int]
    """Numbers of inferences that do not count, by reason."""


def read_signal_shard(task: str, reader: InferenceReader, ids: Sequence[int]) -> SignalShard:
    """Read the signals of some inferences of a task.

    Raises:
        StoreError: The database does not answer.
    """
    rows = scan(reader, ids)
    excluded = Counter(deleted=len(ids) - len(rows))
    stored_signals = reader.signals(ids)
    features = _input_signals(reader, rows)
    counted_ids: list[int] = []
    signal_rows: list[dict[str, row_signals.SignalValue]] = []
    embedding_spaces: list[str | None] = []
    models: dict[ModelReference, None] = {}
    for inference_id, model, row_task, status, latency_us, *size, predictions, metadata in rows:
        if status != 200 or row_task != task:
            excluded["failed" if status != 200 else "other_task"] += 1
            continue
        models[model] = None
        stored = stored_signals.get(inference_id, _NO_SIGNALS)
        width, height, bytes_ = size
        row = row_signals.SignalInputs(
            id=inference_id,
            task=task,
            predictions=predictions,
            metadata=metadata,
            latency_ms=latency_us / 1000,
            width=width,
            height=height,
            bytes=bytes_,
        )
        signals_of_input = features.get(inference_id) or _pixel_signals(stored.picture)
        signal_rows.append(row_signals.derive_signals(row) | signals_of_input)
        embedding_spaces.append(stored.space if stored.embedding else None)
        counted_ids.append(inference_id)
    counts = Counter(name for row in signal_rows for name in row)
    signals = {
        name: [row.get(name) for row in signal_rows]
        for name, count in counts.items()
        if count * RARE_KEY_RATIO >= len(counted_ids)
        or not name.startswith(row_signals.METADATA_PREFIX)
    }
    return SignalShard(
        counted_ids,
        signals,
        embedding_spaces,
        models=list(models),
        excluded=dict(+excluded),
    )


def merge_shards(shards: Sequence[SignalShard]) -> SignalShard:
    """Merge shards, in their order."""
    names = dict.fromkeys(name for shard in shards for name in shard.signals)
    signals = {
        name: [
            value
            for shard in shards
            for value in shard.signals.get(name) or [None] * len(shard.ids)
        ]
        for name in names
    }
    return SignalShard(
        [id_ for shard in shards for id_ in shard.ids],
        signals,
        [space for shard in shards for space in shard.embedding_spaces],
        models=list(dict.fromkeys(model for shard in shards for model in shard.models)),
        excluded=sum((Counter(shard.excluded) for shard in shards), Counter()),
    )


def _input_signals(
    reader: InferenceReader, rows: Sequence[InferenceColumns]
) -> dict[int, dict[str, row_signals.SignalValue]]:
    """Return the numeric features of stored tensors as signals, by inference; of several rows, one counts."""
    ids = [row.id for row in rows if row.width is None and row.size_bytes is not None]
    signals: dict[int, dict[str, row_signals.SignalValue]] = {}
    for id_, data in reader.stored_inputs(ids, MEDIA_TYPE, MAX_INPUT_BYTES):
        features = read_features(data, row_signals.choose_index(id_, _ROW_CHOICES))
        signals[id_] = {row_signals.INPUT_PREFIX + name: value for name, value in features.items()}
    return signals


def _pixel_signals(picture: bytes | None) -> dict[str, row_signals.SignalValue]:
    """Return the stored image statistics as signals; none if there are none, or they are of another release."""
    if picture is None or len(picture) != 4 * len(IMAGE_STATISTICS):
        return {}
    numbers = np.frombuffer(picture, "<f4").tolist()
    return {f"image.{name}": number for name, number in zip(IMAGE_STATISTICS, numbers, strict=True)}


def read_embeddings(
    reader: InferenceReader, ids: Sequence[int], space: str
) -> dict[int, Float32Array]:
    """Return the embeddings (D,) of one space by inference.

    Embeddings of another space are passed over, and so are those of another length or that are not finite.
    """
    embeddings = {}
    for start in range(0, len(ids), SHARD_SIZE):
        for id_, stored in reader.signals(ids[start : start + SHARD_SIZE]).items():
            if stored.embedding and stored.space == space and len(stored.embedding) % 2 == 0:
                numbers = np.frombuffer(stored.embedding, "<f2").astype(np.float32)
                if np.isfinite(numbers).all():
                    embeddings[id_] = numbers
    lengths = Counter(len(numbers) for numbers in embeddings.values())
    usual = lengths.most_common(1)[0][0] if lengths else 0
    return {id_: numbers for id_, numbers in embeddings.items() if len(numbers) == usual}


def read_sources(
    reader: InferenceReader, ids: Int64Array, keys: Iterable[str]
) -> tuple[str, tuple[str, ...], Int64Array] | None:
    """Look up the sources of inferences (N,), ascending, in the index of the metadata.

    Returns:
        The first of the keys that any of them has, its values in the order of their text, and (N,) positions
        in these; without a value it is the empty text. None where nothing has any of the keys.
    """
    for key in keys:
        sources = _rows_by_source(reader, ids, key)
        if sources:
            names = sorted({"", *(name for name, _ in sources)})
            codes_by_name = {name: code for code, name in enumerate(names)}
            codes = np.zeros(len(ids), np.int64)
            for name, rows in sources:
                codes[rows] = codes_by_name[name]
            return key, *drop_unused_names(names, codes)
    return None


def _rows_by_source(
    reader: InferenceReader, ids: Int64Array, key: str
) -> list[tuple[str, Int64Array]]:
    """Return the values of a key, each with the positions of the inferences that have it."""
    sources = []
    for value, with_value in source_values(reader, key, int(ids[0]), int(ids[-1])):
        positions = np.minimum(np.searchsorted(ids, with_value), len(ids) - 1)
        rows = positions[ids[positions] == with_value]
        if len(rows):
            sources.append((source_name(value), rows.astype(np.int64)))
    return sources


def source_name(value: Any) -> str:
    """Return the text of a source, the same for 7 and 7.0."""
    return (value_label(value) or "")[:INDEXED_CHARACTERS]


def count_other_labels(
    reader: InferenceReader,
    model: str,
    ids: Int64Array,
    known_labels: Iterable[str],
    *,
    best: bool = False,
) -> dict[str, int]:
    """Return how many inferences of a model (N,), ascending, have each label that is not known already.

    With `best`, a label counts where none has a larger score.
    """
    rows = labelled_ids(
        reader, model, int(ids[0]), int(ids[-1]), exclude=set(known_labels), best=best
    )
    labelled = np.array([id_ for _, id_ in rows], np.int64)
    is_counted = ids[np.minimum(np.searchsorted(ids, labelled), len(ids) - 1)] == labelled
    counts = Counter(label for (label, _), counted in zip(rows, is_counted, strict=True) if counted)
    return dict(sorted(counts.items()))

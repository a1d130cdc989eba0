"""Embeddings of stored inferences for a choice: those of one embedding space, as two cannot be compared."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from quadriga.monitor.selection.diversity import Embedded, is_usable
from quadriga.store.query.columns import scan_embeddings
from quadriga.store.query.inferences import InferenceReader
from quadriga.tasks.arrays import Float16Array, Int64Array

MAX_LABELLED = 5000
"""Maximum labelled images that the chosen ones are kept apart from."""

MAX_BAND_BYTES = 512 << 20
"""Maximum size of the embeddings of a band in memory, as float32."""

_CHUNK = 1000


class _Kind(NamedTuple):
    """Space and size of embeddings that can be compared."""

    space: str
    size_bytes: int
    """Size of one, as float16."""


class StoredEmbeddings:
    """Embeddings of stored inferences, of the space that most of the band has; of two as frequent the newest.

    Args:
        reader: The stored inferences.
        labelled_ids: (A,) inferences of images that have ground truth.
    """

    def __init__(self, reader: InferenceReader, labelled_ids: Int64Array) -> None:
        self._reader = reader
        self._labelled_ids = labelled_ids

    def max_rows(self, ids: Int64Array) -> int:
        """Return of how many of these inferences the embeddings fit into memory."""
        kind = self._kind(ids)
        return len(ids) if kind is None else MAX_BAND_BYTES // (2 * kind.size_bytes)

    def read(self, ids: Int64Array) -> Embedded:
        """Return the embeddings of those inferences (N,) that have one, and up to `MAX_LABELLED` of labelled images."""
        kind = self._kind(ids)
        if kind is None:
            nothing = np.empty((0, 1), np.float16)
            return Embedded(np.empty(0, np.int64), nothing, nothing, np.empty(0, np.int64))
        rows, embeddings = self._read(ids, kind, len(ids))
        labelled_rows, labelled = self._read(self._labelled_ids, kind, MAX_LABELLED)
        return Embedded(rows, embeddings, labelled, self._labelled_ids[labelled_rows])

    def _kind(self, ids: Int64Array) -> _Kind | None:
        """Return the kind of embedding that most of these inferences have."""
        counts: Counter[_Kind] = Counter()
        newest: dict[_Kind, int] = {}
        for start in range(0, len(ids), _CHUNK):
            for row in scan_embeddings(self._reader, ids[start : start + _CHUNK].tolist()):
                if row.size_bytes % 2 == 0:
                    kind = _Kind(row.space, row.size_bytes)
                    counts[kind] += 1
                    newest[kind] = max(newest.get(kind, 0), row.id)
        return max(counts, key=lambda kind: (counts[kind], newest[kind]), default=None)

    def _read(self, ids: Int64Array, kind: _Kind, limit: int) -> tuple[Int64Array, Float16Array]:
        """Return rows (M,) of the first inferences, up to a limit, that have an embedding of a kind, and these (M, D)."""
        rows: list[Int64Array] = []
        blocks: list[Float16Array] = []
        count = 0
        for chunk_rows, embeddings in self._chunks(ids, kind):
            rows.append(chunk_rows[: limit - count])
            blocks.append(embeddings[: limit - count])
            count += len(rows[-1])
            if count >= limit:
                break
        if not rows:
            return np.empty(0, np.int64), np.empty((0, kind.size_bytes // 2), np.float16)
        return np.concatenate(rows), np.concatenate(blocks)

    def _chunks(self, ids: Int64Array, kind: _Kind) -> Iterator[tuple[Int64Array, Float16Array]]:
        for start in range(0, len(ids), _CHUNK):
            chunk = ids[start : start + _CHUNK].tolist()
            signals = self._reader.signals(chunk)
            rows = [
                start + place
                for place, id_ in enumerate(chunk)
                if (stored := signals.get(id_)) is not None
                and (stored.space or "", len(stored.embedding or b"")) == kind
            ]
            joined = b"".join(signals[int(ids[row])].embedding or b"" for row in rows)
            block = np.frombuffer(joined, "<f2").astype(np.float16).reshape(len(rows), kind.size_bytes // 2)  # fmt: skip
            usable = is_usable(block)
            yield np.array(rows, np.int64)[usable], block[usable]

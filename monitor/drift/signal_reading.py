"""Reads the signals of stored inferences, in parts, in any order."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import sqlalchemy as sa

from quadriga.monitor.drift.row_signals import META, Answered, Value, derived
from quadriga.monitor.drift.samples import label_of, used
from quadriga.monitor.signals import PICTURE
from quadriga.store.database import run, run_in
from quadriga.store.inferences import Inferences
from quadriga.store.records import ModelReference, StoredSignals
from quadriga.store.rollups import minute
from quadriga.store.schema import INDEXED_CHARACTERS, KeyType

SHARD = 1000
"""Inferences that are read at once."""

RARE = 100
"""A key of the metadata that fewer than one of so many inferences have is no signal."""

Ids = npt.NDArray[np.int64]
Vector = npt.NDArray[np.float32]
_NOTHING = StoredSignals(None, None, None)
_counts = msgspec.json.Decoder(dict[int, int])
_ROWS = (
    "SELECT seq, model_id, status, latency_us, input_width, input_height, input_bytes,"
    " predictions, coalesce(CAST(meta_flat AS TEXT), meta) FROM inference WHERE seq IN ({})"
)
_COUNTED = (
    "SELECT labels FROM rollup WHERE model_id IN (SELECT id FROM model WHERE name = ?)"
    " AND minute BETWEEN ? AND ?"
)
_LABELLED = "SELECT label, seq FROM pred WHERE seq BETWEEN ? AND ? AND label IN ({})"
_HAD = "SELECT label, count(*) FROM pred WHERE seq IN ({}) GROUP BY label"
_BEST = " AND NOT EXISTS (SELECT 1 FROM pred p WHERE p.seq = pred.seq AND p.score > pred.score)"


class Shard(msgspec.Struct):
    """What was read of some inferences."""

    ids: list[int]
    """That count, oldest first."""
    signals: dict[str, list[Any]]
    """(N,) values by name; None where there is none."""
    spaces: list[str | None]
    """(N,) of the embeddings; None where there is none."""
    models: list[ModelReference]
    """That answered."""
    excluded: dict[str, int]
    """Inferences that do not count, by reason."""


def read_shard(task: str, inferences: Inferences, ids: Sequence[int]) -> Shard:
    """Read the signals of some inferences of a task.

    Raises:
        StoreError: The database does not answer.
    """
    with inferences.snapshot() as connection:
        models = _models(connection)
        rows = sorted(tuple(row) for row in run_in(connection, _ROWS, ids))
    excluded = Counter(deleted=len(ids) - len(rows))
    made = inferences.signals(ids)
    kept: list[int] = []
    found: list[dict[str, Value]] = []
    spaces: list[str | None] = []
    answered: dict[ModelReference, None] = {}
    for seq, model_id, status, latency_us, *size, predictions, flat in rows:
        model, of = models[model_id]
        if status != 200 or of != task:
            excluded["failed" if status != 200 else "other_task"] += 1
            continue
        answered[model] = None
        of_image = made.get(seq, _NOTHING)
        one = Answered(seq, task, predictions, flat, latency_us / 1000, *size)
        found.append(derived(one) | _pictured(of_image.picture))
        spaces.append(of_image.space if of_image.embedding else None)
        kept.append(seq)
    counts = Counter(name for one in found for name in one)
    signals = {
        name: [one.get(name) for one in found]
        for name, count in counts.items()
        if count * RARE >= len(kept) or not name.startswith(META)
    }
    return Shard(kept, signals, spaces, list(answered), dict(+excluded))


def merged(shards: Sequence[Shard]) -> Shard:
    """Put shards together, in their order."""
    names = dict.fromkeys(name for shard in shards for name in shard.signals)
    signals = {
        name: [
            one for shard in shards for one in shard.signals.get(name) or [None] * len(shard.ids)
        ]
        for name in names
    }
    return Shard(
        [one for shard in shards for one in shard.ids],
        signals,
        [one for shard in shards for one in shard.spaces],
        list(dict.fromkeys(model for shard in shards for model in shard.models)),
        sum((Counter(shard.excluded) for shard in shards), Counter()),
    )


def _pictured(picture: bytes | None) -> dict[str, Value]:
    """Return what was measured in the pixels of an image."""
    if picture is None or len(picture) != 4 * len(PICTURE):
        return {}
    numbers = np.frombuffer(picture, "<f4").tolist()
    return {f"image.{name}": number for name, number in zip(PICTURE, numbers, strict=True)}


def embeddings_of(inferences: Inferences, ids: Sequence[int], space: str) -> dict[int, Vector]:
    """Return the embeddings (D,) of one space by inference.

    Those of another are passed over, and so is what is none: of another length, or not finite.
    """
    found = {}
    for first in range(0, len(ids), SHARD):
        for seq, one in inferences.signals(ids[first : first + SHARD]).items():
            if one.embedding and one.space == space and len(one.embedding) % 2 == 0:
                numbers = np.frombuffer(one.embedding, "<f2").astype(np.float32)
                if np.isfinite(numbers).all():
                    found[seq] = numbers
    lengths = Counter(len(one) for one in found.values())
    usual = lengths.most_common(1)[0][0] if lengths else 0
    return {seq: one for seq, one in found.items() if len(one) == usual}


def _models(connection: sa.Connection) -> dict[int, tuple[ModelReference, str]]:
    """Return all models, with their task, by their number in the database."""
    rows: Iterable[Any] = run(connection, "SELECT id, name, version, sha256, task FROM model")
    return {
        number: (ModelReference(name, version, sha256), task)
        for number, name, version, sha256, task in rows
    }


def sources_of(
    inferences: Inferences, ids: Ids, keys: Iterable[str]
) -> tuple[str, tuple[str, ...], Ids] | None:
    """Look up what inferences (N,), ascending, come from, in the index of the metadata.

    Returns:
        The first of the keys that any of them has, its values in the order of their text, and (N,) positions
        in these; without a value it is the empty text. None where nothing has any of the keys.
    """
    for key in keys:
        with inferences.snapshot() as connection:
            found = _indexed(connection, key, ids)
        if found:
            names = sorted({"", *(name for name, _ in found)})
            place = {name: at for at, name in enumerate(names)}
            codes = np.zeros(len(ids), np.int64)
            for name, rows in found:
                codes[rows] = place[name]
            return key, *used(names, codes)
    return None


def _indexed(connection: sa.Connection, key: str, ids: Ids) -> list[tuple[str, Ids]]:
    """Return the values of a key, each with the positions of the inferences that have it."""
    types: Iterable[Any] = run(connection, "SELECT id, type FROM meta_key WHERE path = ?", (key,))
    made = []
    for number, type_ in list(types):
        table = "meta_str" if type_ == KeyType.STR else "meta_num"
        if type_ in (KeyType.OTHER, KeyType.CELL):
            continue
        rows = run(
            connection,
            f"SELECT val, seq FROM {table} WHERE key = ? AND seq BETWEEN ? AND ?",  # noqa: S608 - of two
            (number, int(ids[0]), int(ids[-1])),
        ).cursor.fetchall()  # plain tuples: there may be a million
        seqs: dict[Any, list[int]] = {}
        for value, seq in rows:
            seqs.setdefault(value, []).append(seq)
        for value, of in seqs.items():
            at = np.minimum(np.searchsorted(ids, of), len(ids) - 1)
            there = at[ids[at] == of]
            if len(there):
                name = source_name(bool(value) if type_ == KeyType.BOOL else value)
                made.append((name, there.astype(np.int64)))
    return made


def source_name(value: Any) -> str:
    """Return the text of what an inference comes from, the same for 7 and 7.0."""
    return (label_of(value) or "")[:INDEXED_CHARACTERS]


def labels_of(inferences: Inferences, ids: Ids) -> dict[str, int]:
    """Return how many of some inferences (N,) have each label, in any of their predictions."""
    found: Counter[str] = Counter()
    with inferences.snapshot() as connection:
        names = _labels(connection)
        for label, count in run_in(connection, _HAD, ids.tolist()):
            found[names[label]] += count
    return dict(sorted(found.items()))


def _labels(connection: sa.Connection) -> dict[int, str]:
    rows: Iterable[Any] = run(connection, "SELECT id, name FROM label")
    return {number: name[:INDEXED_CHARACTERS] for number, name in rows}


def other_labels(
    inferences: Inferences, model: str, ids: Ids, known: Iterable[str], *, best: bool = False
) -> dict[str, int]:
    """Return how many inferences of a model (N,), ascending, have each label that is not known already.

    Of labels, those that the counts of the model's minutes name are looked for: rare ones. With `best` a label
    counts where none has a larger score.
    """
    told = set(known)
    ends = int(ids[0]), int(ids[-1])
    with inferences.snapshot() as connection:
        names = _labels(connection)
        counted: set[int] = set()
        for (labels,) in run(connection, _COUNTED, (model, *map(minute, ends))):
            counted.update(_counts.decode(labels))
        asked = [one for one in sorted(counted) if one in names and names[one] not in told]
        rows = list(run_in(connection, _LABELLED + _BEST * best, asked, ends))
    seqs = np.array([seq for _, seq in rows], np.int64)
    there = ids[np.minimum(np.searchsorted(ids, seqs), len(ids) - 1)] == seqs
    found = Counter(names[label] for (label, _), is_one in zip(rows, there, strict=True) if is_one)
    return dict(sorted(found.items()))

"""From journaled records to rows of the database, a batch at a time."""

import math
from typing import Any

import msgspec
import sqlalchemy as sa

from store import metadata
from store.records import JournaledRecord, ModelReference
from store.schema import INDEXED_CHARACTERS, KeyType

_NAMES = {
    "model": "SELECT id, name, version, sha256, task FROM model",
    "label": "SELECT id, name FROM label",
    "meta_key": "SELECT id, path, type FROM meta_key",
}
_INSERTS = {
    "model": "INSERT INTO model (id, name, version, sha256, task) VALUES (?, ?, ?, ?, ?)",
    "label": "INSERT INTO label (id, name) VALUES (?, ?)",
    "meta_key": "INSERT INTO meta_key (id, path, type) VALUES (?, ?, ?)",
    "inference": "INSERT INTO inference (seq, request_id, image_no, model_id, action, latency_us,"
    " input_name, input_hash, input_width, input_height, input_mime, input_kept, predictions, meta,"
    " meta_flat) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    "meta_num": "INSERT INTO meta_num (key, val, seq) VALUES (?, ?, ?)",
    "meta_str": "INSERT INTO meta_str (key, val, seq) VALUES (?, ?, ?)",
    "pred": "INSERT INTO pred (label, score, seq) VALUES (?, ?, ?)",
}


class _Scored(msgspec.Struct, frozen=True):
    label: Any = None
    score: Any = None


_METADATA: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])
_PREDICTIONS = msgspec.json.Decoder(list[_Scored])


class Names:
    """Ids of models, labels and metadata keys; a name not seen before is given the next one.

    Right as long as one writer gives them out, and made anew after a transaction that failed.
    """

    def __init__(self, connection: sa.Connection) -> None:
        self.ids: dict[str, dict[tuple[Any, ...], int]] = {
            table: {tuple(name): number for number, *name in connection.exec_driver_sql(statement)}
            for table, statement in _NAMES.items()
        }
        self._largest = {table: max(ids.values(), default=0) for table, ids in self.ids.items()}
        self.new: list[tuple[str, tuple[Any, ...]]] = []

    def id(self, table: str, *name: Any) -> int:
        """Return the id of a name, a new one if need be."""
        known = self.ids[table].get(name)
        if known is not None:
            return known
        self._largest[table] += 1
        given = self.ids[table][name] = self._largest[table]
        self.new.append((table, (given, *name)))
        return given


class Rows:
    """Rows of one transaction."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._rows: dict[str, list[tuple[Any, ...]]] = {table: [] for table in _INSERTS}

    def add(self, record: JournaledRecord) -> None:
        """Add all rows of a record, or none.

        Raises:
            MetadataError: The metadata breaks a rule.
            msgspec.MsgspecError: The metadata is no JSON object.
        """
        paths = metadata.index(_METADATA.decode(record.metadata))
        numbers, strings = [], []
        for path, value in paths.items():
            if isinstance(value, str):
                key = self._names.id("meta_key", path, KeyType.STR)
                strings.append((key, value[:INDEXED_CHARACTERS], record.seq))
            elif isinstance(value, bool):
                key = self._names.id("meta_key", path, KeyType.BOOL)
                numbers.append((key, float(value), record.seq))
            elif isinstance(value, int | float):
                key = self._names.id("meta_key", path, KeyType.NUM)
                numbers.append((key, float(value), record.seq))
            else:
                key = self._names.id("meta_key", path, KeyType.OTHER)
                numbers.append((key, 0.0, record.seq))
        scores = best_scores(record.predictions)
        self._rows["pred"] += [
            (self._names.id("label", name), score, record.seq) for name, score in scores.items()
        ]
        self._rows["meta_num"] += numbers
        self._rows["meta_str"] += strings
        self._rows["inference"].append(self._inference(record, paths))

    def insert(self, connection: sa.Connection) -> None:
        """Insert what was added; rows that are there already stay as they are."""
        for table, row in self._names.new:
            self._rows[table].append(row)
        for table, rows in self._rows.items():
            if rows:
                rows.sort()  # neighbours in the index are written together
                # so that a replay is harmless
                connection.exec_driver_sql(_INSERTS[table] + " ON CONFLICT DO NOTHING", rows)
        self._names.new.clear()

    def _inference(self, record: JournaledRecord, paths: dict[str, Any]) -> tuple[Any, ...]:
        model: ModelReference = record.model
        image = record.input
        given = bytes(record.metadata).decode()
        flat = None
        if any(value == {} for value in paths.values()):
            flat = msgspec.json.encode(paths).decode()
        return (
            record.seq,
            record.request_id,
            record.image_no,
            self._names.id("model", model.name, model.version, model.sha256, record.task),
            record.action,
            round(record.latency_ms * 1000),
            image.name,
            image.hash,
            image.width,
            image.height,
            image.mime,
            int(image.kept),
            bytes(record.predictions).decode(),
            given,
            flat if flat != given else None,
        )


def best_scores(predictions: msgspec.Raw) -> dict[str, float]:
    """Return the best score of each label, -inf for a label without scores.

    Predictions that are no list of objects, such as raw tensors, have no labels.
    """
    try:
        scored = _PREDICTIONS.decode(predictions)
    except msgspec.ValidationError:
        return {}
    best: dict[str, float] = {}
    for one in scored:
        if isinstance(one.label, str):
            is_number = isinstance(one.score, int | float) and not isinstance(one.score, bool)
            score = float(one.score) if is_number else -math.inf
            best[one.label] = max(score, best.get(one.label, -math.inf))
    return best

"""From journaled records to rows of the database, a batch at a time, and back."""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeGuard

import msgspec
import sqlalchemy as sa

from quadriga.store import metadata
from quadriga.store.database import (
    check_in_place,
    delete,
    execute,
    execute_in,
    insert,
    lock_rows,
    placeholders,
)
from quadriga.store.partitions import create_partitions
from quadriga.store.query import geo
from quadriga.store.records import InputReference, JournaledRecord, ModelReference, json_text
from quadriga.store.rollups import RollupChanges
from quadriga.store.schema import (
    COLUMNS,
    INDEX_TABLES,
    INDEXED_CHARACTERS,
    MAX_KEYS,
    KeyType,
    score_band,
)

_NAMES = {
    "model": ("name", "version", "sha256", "task"),
    "label": ("name",),
    "meta_key": ("path", "type"),
}
"""Tables that give a number to a name, which is these columns."""

_DERIVED = ("prediction_count", "meta_flat")
RECORD_COLUMNS = ", ".join(f"i.{name}" for name in COLUMNS["inference"] if name not in _DERIVED)
"""Of `inference AS i`: what a record is made of, beside its model, whose id is the fourth."""

_KEYS_LOCK = 0x6B657973
_EXACT = 1 << 53
_FROM_64_BITS = float(1 << 63)


class LabelScore(msgspec.Struct, frozen=True):
    """What is indexed of a prediction."""

    label: Any = None
    score: Any = None


_PREDICTIONS = msgspec.json.Decoder(list[LabelScore])


class NameIds:
    """Ids of models, labels and metadata keys; a name not seen before is given one.

    Made anew after a transaction that failed.
    """

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self.is_sqlite = connection.dialect.name == "sqlite"
        self._has_all_paths = False
        self._ids = {table: self._read(table) for table in _NAMES}

    def _read(self, table: str) -> dict[tuple[Any, ...], int]:
        columns = ", ".join(_NAMES[table])
        rows = execute(self._connection, f"SELECT id, {columns} FROM {table}")
        return {(*name,): int(number) for number, *name in rows}

    @contextmanager
    def transaction(
        self, engine: sa.Engine, seqs: Iterable[int] | None = None, *, exclusive: bool
    ) -> Iterator[sa.Connection]:
        """Begin one that writes, in its turn (`take_turn`); new names are given their ids in it.

        With the ids of new rows there is room for them, see `make_room`.
        """
        if seqs is not None:
            with engine.connect() as connection:
                create_partitions(connection, seqs)
        with engine.begin() as connection:
            check_in_place(connection)
            lock_rows(connection, exclusive=exclusive)
            self._connection = connection
            yield connection

    def flat_beside(self, paths: dict[str, Any], given: str) -> str | None:
        """Return `meta_flat` of metadata, beside its JSON as given."""
        by_path = flat_json(paths)
        return None if self.is_sqlite and by_path == given else by_path

    def key(self, path: str, type_: KeyType) -> int | None:
        """Return the id of a metadata key, a new one if need be; None where its path is not indexed."""
        known = self._ids["meta_key"].get((path, type_))
        if known is not None:
            return known
        if not self._has_all_paths:
            if not self.is_sqlite:  # another server may add the last one at the same time
                execute(self._connection, "SELECT pg_advisory_xact_lock(?)", (_KEYS_LOCK,))
            counted = execute(self._connection, "SELECT count(*) FROM meta_key").scalar_one()
            if counted < MAX_KEYS:
                return self.id("meta_key", path, type_)
            self._ids["meta_key"] = self._read("meta_key")
            self._has_all_paths = True
        is_indexed = any((path, known) in self._ids["meta_key"] for known in KeyType)
        return self.id("meta_key", path, type_) if is_indexed else None

    def id(self, table: str, *name: Any) -> int:
        """Return the id of a name, a new one if need be."""
        known = self._ids[table].get(name)
        if known is not None:
            return known
        columns = ", ".join(_NAMES[table])
        # Another server may give one at the same time.
        text = (
            f"INSERT INTO {table} ({columns}) VALUES ({placeholders(name)}) ON CONFLICT DO NOTHING"
        )
        execute(self._connection, text, name)
        text = f"SELECT id FROM {table} WHERE ({columns}) = ({placeholders(name)})"
        given = self._ids[table][name] = int(execute(self._connection, text, name).scalar_one())
        return given


class RowBatch:
    """Rows of one transaction, to be inserted or deleted."""

    def __init__(self, names: NameIds) -> None:
        self._names = names
        self.by_table: dict[str, list[tuple[Any, ...]]] = {  # by table
            table: [] for table in ("inference", *INDEX_TABLES)
        }
        self._counts = RollupChanges()

    def add(self, record: JournaledRecord) -> None:
        """Add all rows of a record, or none.

        Raises:
            MetadataError: The metadata breaks a rule.
            msgspec.MsgspecError: The metadata is no JSON object.
        """
        paths = metadata.index_paths(metadata.decode(record.metadata))
        predictions = decode_label_scores(record.predictions)
        row = self._inference(record, paths, predictions)
        labelled = self.derive(record.seq, paths, predictions or [])
        self.by_table["inference"].append(row)
        tally = self._counts.tally_of(row[3], record.seq)
        tally.count(record.status, row[6], record.input.kept, record.input.bytes)
        for label, *_, n in labelled:
            tally.count_label(label, n)

    def derive(
        self, seq: int, paths: dict[str, Any], predictions: Sequence[LabelScore] = ()
    ) -> list[tuple[Any, ...]]:
        """Add what an inference is found by, its metadata and its labels; return the latter's rows."""
        numbers, strings = self.by_table["meta_num"], self.by_table["meta_str"]
        for path, value in paths.items():
            type_, indexed = _indexed(value)
            key = self._names.key(path, type_)
            if key is not None:
                (strings if type_ is KeyType.STR else numbers).append((key, indexed, seq))
        place = geo.cell_of(paths)
        if place is not None:
            numbers.append((self._names.id("meta_key", "", KeyType.CELL), float(place), seq))
        labelled = self._labelled(seq, predictions)
        self.by_table["pred"] += labelled
        return labelled

    def insert(self, connection: sa.Connection, records: Iterable[JournaledRecord] = ()) -> None:
        """Insert what was added, these records too, and count it; errors as of `add`."""
        for record in records:
            self.add(record)
        for table, rows in self.by_table.items():
            insert(connection, table, rows)
        self._counts.apply(connection)

    def _labelled(self, seq: int, predictions: Sequence[LabelScore]) -> list[tuple[Any, ...]]:
        scores: dict[str, list[float]] = {}
        for one in predictions:
            if isinstance(one.label, str):
                score = float(one.score) if is_number(one.score) else -math.inf
                scores.setdefault(one.label, []).append(score)
        return [
            (
                self._names.id("label", storable_text(name)),
                score_band(max(of)),
                seq,
                max(of),
                min(of),
                len(of),
            )
            for name, of in scores.items()
        ]

    def _inference(
        self, record: JournaledRecord, paths: dict[str, Any], predictions: list[LabelScore] | None
    ) -> tuple[Any, ...]:
        model, image = record.model, record.input
        model_id = self._names.id("model", model.name, model.version, model.sha256, record.task)
        given, standard = bytes(record.metadata).decode(), bytes(record.standard).decode()
        return (
            record.seq, storable_text(record.request_id), record.image_no, model_id, storable_text(record.action),
            record.status, round(record.latency_ms * 1000), storable_text(image.name), image.hash,
            image.width, image.height, image.mime, image.bytes, int(image.kept),
            None if predictions is None else len(predictions), bytes(record.predictions).decode(),
            given, self._names.flat_beside(paths, given), standard,
        )  # fmt: skip


def models_by_id(
    connection: sa.Connection, rows: Iterable[Sequence[Any]]
) -> dict[int, tuple[ModelReference, str]]:
    """Return models with their tasks by id, with those of rows of `RECORD_COLUMNS` among them.

    They stay what they are, so those found before are known of the connection.
    """
    known: dict[int, tuple[ModelReference, str]] = connection.info.setdefault("models", {})
    new = {row[3] for row in rows} - known.keys()
    text = "SELECT id, name, version, sha256, task FROM model WHERE id IN ({})"
    for number, name, version, sha256, task in execute_in(connection, text, new):
        known[number] = ModelReference(name, version, sha256), task
    return known


def read_records(connection: sa.Connection, seqs: Collection[int]) -> list[JournaledRecord]:
    """Read inferences as they were journaled, but with their metadata of today."""
    text = f"SELECT {RECORD_COLUMNS} FROM inference AS i WHERE i.seq IN ({{}})"
    rows = execute_in(connection, text, seqs)
    models = models_by_id(connection, rows)
    return [_record_of(row, *models[row[3]]) for row in rows]


def _record_of(row: Sequence[Any], model: ModelReference, task: str) -> JournaledRecord:
    seq, request_id, image_no, _, action, status, latency_us = row[:7]
    input_name, digest, width, height, mime, size, kept = row[7:14]
    predictions, given, standard = (msgspec.Raw(json.encode()) for json in row[14:17])
    image = InputReference(input_name, digest, width, height, mime, bool(kept), size)
    return JournaledRecord(
        seq, request_id, image_no, model, task, action,
        latency_us / 1000, image, predictions, given, status, standard,
    )  # fmt: skip


def derived_rows(
    names: NameIds, inferences: Iterable[Sequence[Any]]
) -> dict[str, list[tuple[Any, ...]]]:
    """Return what stored inferences are found by, by table, of their ids, metadata and predictions as JSON.

    Without predictions that is what their metadata tells.
    """
    rows = RowBatch(names)
    for seq, meta, *predictions in inferences:
        found = decode_label_scores(msgspec.Raw(predictions[0].encode())) if predictions else None
        rows.derive(seq, metadata.index_paths(metadata.decode(meta)), found or ())
    return rows.by_table


def remove_inferences(connection: sa.Connection, names: NameIds, seqs: Collection[int]) -> None:
    """Remove inferences with what they are found by, which their own metadata tells."""
    stored = "SELECT seq, meta FROM inference WHERE seq IN ({})"
    rows = derived_rows(names, execute_in(connection, stored, seqs))
    for table in ("meta_num", "meta_str"):
        delete(connection, table, rows[table])
    for table in ("pred", "inference"):
        execute_in(connection, f"DELETE FROM {table} WHERE seq IN ({{}})", seqs)


def flat_json(paths: dict[str, Any]) -> str:
    """Return metadata as JSON, path to value, in which equal numbers are written alike."""
    whole = {
        path: int(value)
        for path, value in paths.items()
        if isinstance(value, float) and _EXACT <= abs(value) < _FROM_64_BITS
    }
    return json_text(paths | whole)


def _indexed(value: Any) -> tuple[KeyType, Any]:
    """Return the type of a value of metadata, and what of it is indexed."""
    if isinstance(value, str):
        return KeyType.STR, value[:INDEXED_CHARACTERS]
    if isinstance(value, bool):
        return KeyType.BOOL, float(value)
    if isinstance(value, int | float):
        return KeyType.NUM, float(value)
    return KeyType.OTHER, 0.0


def is_number(value: object) -> TypeGuard[float]:
    """Tell whether a value of JSON is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def storable_text(value: str) -> str:
    """Return a string as every database takes it."""
    return value.replace("\0", "\ufffd")


def decode_label_scores(predictions: msgspec.Raw) -> list[LabelScore] | None:
    """Return labels and scores; None for predictions that are no list of objects, as raw tensors."""
    try:
        return _PREDICTIONS.decode(predictions)
    except msgspec.ValidationError:
        return None

"""Conversion between journaled records and rows of the database, a batch of rows per transaction."""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeGuard

import msgspec
import sqlalchemy as sa

from quadriga.store.database.database import (
    check_in_place,
    check_revision,
    delete,
    execute,
    execute_in,
    insert,
    lock_rows,
    placeholders,
)
from quadriga.store.database.partitions import create_partitions
from quadriga.store.database.rollups import RollupChanges
from quadriga.store.database.schema import (
    INDEX_TABLES,
    INDEXED_CHARACTERS,
    MAX_KEYS,
    InferenceRow,
    KeyType,
    score_band,
)
from quadriga.store.records import geo, metadata
from quadriga.store.records.ids import time_ms
from quadriga.store.records.records import (
    InputReference,
    JournaledRecord,
    ModelReference,
    StoredInference,
    json_text,
    timestamp_text,
)

_NAMES = {
    "model": ("name", "version", "sha256", "task", "team"),
    "label": ("name", "team"),
    "meta_key": ("path", "type", "team"),
}
"""Tables that assign an id to a name of a team, and the columns that make up the name, the team at the end."""

_MAX_CACHED = 500_000
"""Names that are kept in memory when those of another team are read."""


class RecordRow(NamedTuple):
    """A row read by `RECORD_COLUMNS`: an `InferenceRow` without derived columns."""

    seq: int
    request_id: str
    image_no: int
    model_id: int
    action: str
    status: int
    latency_us: int
    input_name: str
    input_hash: str | None
    input_width: int | None
    input_height: int | None
    input_mime: str | None
    input_bytes: int | None
    input_kept: int
    predictions: str
    meta: str
    standard: str
    annotations: str | None = None
    """Ground truth as JSON, a column that only some queries add, as the next."""
    review: str | None = None

    def input(self) -> InputReference:
        """Return the reference to the image."""
        return InputReference(
            name=self.input_name,
            hash=self.input_hash,
            width=self.input_width,
            height=self.input_height,
            mime=self.input_mime,
            kept=bool(self.input_kept),
            bytes=self.input_bytes,
        )


_TRUTH_COLUMNS = ("annotations", "review")
RECORD_COLUMNS = ", ".join(f"i.{name}" for name in RecordRow._fields if name not in _TRUTH_COLUMNS)
"""Columns of `inference AS i` that a `RecordRow` holds."""

_KEYS_LOCK = 0x6B657973
_EXACT = 1 << 53
_FROM_64_BITS = float(1 << 63)


class LabelScore(msgspec.Struct, frozen=True):
    """Indexed fields of a prediction."""

    label: Any = None
    score: Any = None


_PREDICTIONS = msgspec.json.Decoder(list[LabelScore])
_raw = msgspec.json.Decoder(msgspec.Raw).decode
"""Checks JSON, and leaves it as it is: hardly slower than not to look at it."""

_EMPTY_TEXTS: dict[str, Any] = {
    "predictions": "null",
    "meta": "{}",
    "standard": "{}",
    "annotations": None,
}
"""Columns of JSON, and what stands in place of JSON that is left out."""

_FIELDS = {"meta": "metadata", "standard": "standard_metadata", "annotations": "ground_truth"}
"""Fields of `StoredInference` whose columns have other names."""


class NameIds:
    """Cache of the ids of models, labels and metadata keys of each team, which assigns ids to new names.

    To be created again after a transaction that failed.
    """

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self.is_sqlite = connection.dialect.name == "sqlite"
        self._ids: dict[tuple[str, str], dict[tuple[Any, ...], int]] = {}
        self._full_teams: set[str] = set()

    def _of_team(self, table: str, team: str) -> dict[tuple[Any, ...], int]:
        """Return the ids of a team by name, without the team."""
        cached = self._ids.get((table, team))
        if cached is not None:
            return cached
        if sum(map(len, self._ids.values())) > _MAX_CACHED:
            self._ids.clear()
        *columns, _ = _NAMES[table]
        statement = f"SELECT id, {', '.join(columns)} FROM {table} WHERE team = ?"
        rows = execute(self._connection, statement, (team,))
        ids = self._ids[table, team] = {(*name,): int(id_) for id_, *name in rows}
        return ids

    @contextmanager
    def transaction(
        self, engine: sa.Engine, seqs: Iterable[int] | None = None, *, exclusive: bool
    ) -> Iterator[sa.Connection]:
        """Begin a write transaction, see `lock_rows`; new names get their ids in it.

        With the ids of new rows their partitions are created first, see `create_partitions`.
        """
        if seqs is not None and not self.is_sqlite:
            with engine.connect() as connection:
                create_partitions(connection, seqs)
        with engine.begin() as connection:
            check_in_place(connection)
            lock_rows(connection, exclusive=exclusive)
            check_revision(connection)
            self._connection = connection
            yield connection

    def flat_beside(self, paths: dict[str, Any], metadata_json: str) -> str | None:
        """Return the column `meta_flat` of metadata, given its JSON too; None if the two are equal in SQLite."""
        by_path = flat_json(paths) if paths else "{}"
        return None if self.is_sqlite and by_path == metadata_json else by_path

    def key(self, path: str, type_: KeyType, team: str) -> int | None:
        """Return the id of a metadata key, assigning one if needed; None if the team's path is not indexed."""
        cached = self._of_team("meta_key", team).get((path, type_))
        if cached is not None:
            return cached
        if not self._is_full(team):
            return self.id("meta_key", path, type_, team)
        ids = self._of_team("meta_key", team)
        is_indexed = any((path, key_type) in ids for key_type in KeyType)
        return self.id("meta_key", path, type_, team) if is_indexed else None

    def _is_full(self, team: str) -> bool:
        """Check whether a team may have no further paths; then readers see that in the transaction's state too."""
        if team in self._full_teams:
            return True
        if not self.is_sqlite:  # another server may add the last allowed key at the same time
            execute(self._connection, "SELECT pg_advisory_xact_lock(?)", (_KEYS_LOCK,))
        statement = "SELECT count(*) FROM meta_key WHERE team = ?"
        key_count = execute(self._connection, statement, (team,)).scalar_one()
        if key_count < MAX_KEYS and ("", KeyType.FULL) not in self._of_team("meta_key", team):
            return False
        self._ids.pop(("meta_key", team), None)  # others may have added keys
        self.id("meta_key", "", KeyType.FULL, team)
        self._full_teams.add(team)
        return True

    def id(self, table: str, *name: Any) -> int:
        """Return the id of a name, whose last part is the team, assigning one if needed."""
        *key, team = name
        ids = self._of_team(table, team)
        cached = ids.get((*key,))
        if cached is not None:
            return cached
        columns = ", ".join(_NAMES[table])
        # Another server may assign one at the same time, hence ON CONFLICT.
        statement = (
            f"INSERT INTO {table} ({columns}) VALUES ({placeholders(name)}) ON CONFLICT DO NOTHING"
        )
        execute(self._connection, statement, name)
        statement = f"SELECT id FROM {table} WHERE ({columns}) = ({placeholders(name)})"
        id_ = ids[*key,] = int(execute(self._connection, statement, name).scalar_one())
        return id_


class RowBatch:
    """Rows of one transaction by table, to be inserted or deleted."""

    def __init__(self, names: NameIds) -> None:
        self._names = names
        self.by_table: dict[str, list[tuple[Any, ...]]] = {
            table: [] for table in ("inference", *INDEX_TABLES)
        }
        self._counts = RollupChanges()

    def add(self, record: JournaledRecord) -> None:
        """Add all rows of a record, or none.

        Raises:
            MetadataError: The metadata breaks a rule.
            msgspec.MsgspecError: The metadata is no JSON object.
        """
        encoded = bytes(record.metadata)
        # Most have none, and it is a third of the work.
        paths = {} if encoded == b"{}" else metadata.index_paths(metadata.decode(encoded))
        predictions = decode_label_scores(record.predictions)
        row = self._inference(record, paths, predictions)
        labelled = self.derive(record.seq, record.team or "", paths, predictions or [])
        self.by_table["inference"].append(row)
        tally = self._counts.tally_of(row.model_id, record.seq)
        tally.count(record.status, row.latency_us, record.input.kept, record.input.bytes)
        for label, *_, n in labelled:
            tally.count_label(label, n)

    def derive(
        self, seq: int, team: str, paths: dict[str, Any], predictions: Sequence[LabelScore] = ()
    ) -> list[tuple[Any, ...]]:
        """Add the index rows of an inference, of its metadata and its labels; return those of the labels."""
        numbers, strings = self.by_table["meta_num"], self.by_table["meta_str"]
        for path, value in paths.items():
            type_, indexed = _indexed(value)
            key = self._names.key(path, type_, team)
            if key is not None:
                (strings if type_ is KeyType.STR else numbers).append((key, indexed, seq))
        cell = geo.cell_of(paths) if paths else None
        if cell is not None:
            key = self._names.id("meta_key", "", KeyType.CELL, team)
            numbers.append((key, float(cell), seq))
        labelled = self._labelled(seq, team, predictions)
        self.by_table["pred"] += labelled
        return labelled

    def insert(self, connection: sa.Connection, records: Iterable[JournaledRecord] = ()) -> None:
        """Insert the added rows and those of `records`, and update the rollups; errors as for `add`."""
        for record in records:
            self.add(record)
        for table, rows in self.by_table.items():
            insert(connection, table, rows)
        self._counts.apply(connection)

    def _labelled(
        self, seq: int, team: str, predictions: Sequence[LabelScore]
    ) -> list[tuple[Any, ...]]:
        scores: dict[str, list[float]] = {}
        for prediction in predictions:
            if isinstance(prediction.label, str):
                score = float(prediction.score) if is_number(prediction.score) else -math.inf
                scores.setdefault(prediction.label, []).append(score)
        return [
            (
                self._names.id("label", storable_text(name), team),
                score_band(max(label_scores)),
                seq,
                max(label_scores),
                min(label_scores),
                len(label_scores),
            )
            for name, label_scores in scores.items()
        ]

    def _inference(
        self, record: JournaledRecord, paths: dict[str, Any], predictions: list[LabelScore] | None
    ) -> InferenceRow:
        model, image = record.model, record.input
        name = (model.name, model.version, model.sha256, record.task, record.team or "")
        model_id = self._names.id("model", *name)
        metadata_json = bytes(record.metadata).decode()
        return InferenceRow(
            seq=record.seq,
            request_id=storable_text(record.request_id),
            image_no=record.image_no,
            model_id=model_id,
            action=storable_text(record.action),
            status=record.status,
            latency_us=round(record.latency_ms * 1000),
            input_name=storable_text(image.name),
            input_hash=image.hash,
            input_width=image.width,
            input_height=image.height,
            input_mime=image.mime,
            input_bytes=image.bytes,
            input_kept=int(image.kept),
            prediction_count=None if predictions is None else len(predictions),
            predictions=bytes(record.predictions).decode(),
            meta=metadata_json,
            meta_flat=self._names.flat_beside(paths, metadata_json),
            standard=bytes(record.standard).decode(),
        )


class ModelRow(NamedTuple):
    """Row of `model`."""

    id: int
    name: str
    version: str
    sha256: str
    task: str
    team: str
    """Team whose inferences refer to the row; empty for none."""

    @property
    def reference(self) -> ModelReference:
        """What records have of it."""
        return ModelReference(self.name, self.version, self.sha256)


SELECT_MODELS = f"SELECT {', '.join(ModelRow._fields)} FROM model"
"""Selects a `ModelRow` of each model."""


def models_by_id(connection: sa.Connection, ids: Iterable[int]) -> dict[int, ModelRow]:
    """Return models by id, at least those of the given ids.

    They never change, and are cached with the connection.
    """
    cached: dict[int, ModelRow] = connection.info.setdefault("models", {})
    missing = set(ids) - cached.keys()
    for row in execute_in(connection, f"{SELECT_MODELS} WHERE id IN ({{}})", missing):
        cached[row.id] = ModelRow(*row)
    return cached


def read_records(connection: sa.Connection, seqs: Collection[int]) -> list[JournaledRecord]:
    """Read inferences as they were journaled, but with their current metadata."""
    statement = f"SELECT {RECORD_COLUMNS} FROM inference AS i WHERE i.seq IN ({{}})"
    rows = [RecordRow(*row) for row in execute_in(connection, statement, seqs)]
    models = models_by_id(connection, (row.model_id for row in rows))
    return [_record_of(row, models[row.model_id]) for row in rows]


def _record_of(row: RecordRow, model: ModelRow) -> JournaledRecord:
    return JournaledRecord(
        seq=row.seq,
        request_id=row.request_id,
        image_no=row.image_no,
        model=model.reference,
        task=model.task,
        action=row.action,
        latency_ms=row.latency_us / 1000,
        input=row.input(),
        predictions=msgspec.Raw(row.predictions.encode()),
        metadata=msgspec.Raw(row.meta.encode()),
        status=row.status,
        standard=msgspec.Raw(row.standard.encode()),
        team=model.team or msgspec.UNSET,
    )


_DERIVED_FROM = "SELECT i.seq, (SELECT team FROM model WHERE id = i.model_id), i.meta"
DERIVED_FROM = f"{_DERIVED_FROM}, i.predictions FROM inference AS i"
"""Selects what index rows are derived from."""

METADATA_OF = f"{_DERIVED_FROM} FROM inference AS i WHERE i.seq IN ({{}})"
"""Selects what those of metadata are derived from, of some inferences."""


def derived_rows(
    names: NameIds, inferences: Iterable[Sequence[Any]]
) -> dict[str, list[tuple[Any, ...]]]:
    """Return the index rows of stored inferences by table, given what `DERIVED_FROM` selects of them.

    Without predictions, the last column, only the rows of their metadata are returned.
    """
    rows = RowBatch(names)
    for seq, team, meta, *predictions in inferences:
        label_scores = (
            decode_label_scores(msgspec.Raw(predictions[0].encode())) if predictions else None
        )
        rows.derive(seq, team, metadata.index_paths(metadata.decode(meta)), label_scores or ())
    return rows.by_table


def remove_inferences(connection: sa.Connection, names: NameIds, seqs: Collection[int]) -> None:
    """Remove inferences and their index rows, which follow from their metadata."""
    rows = derived_rows(names, execute_in(connection, METADATA_OF, seqs))
    for table in ("meta_num", "meta_str"):
        delete(connection, table, rows[table])
    for table in ("pred", "inference"):
        execute_in(connection, f"DELETE FROM {table} WHERE seq IN ({{}})", seqs)


def flat_json(paths: dict[str, Any]) -> str:
    """Return metadata as JSON, path to value, in which equal numbers are written identically."""
    large_integers = {
        path: int(value)
        for path, value in paths.items()
        if isinstance(value, float) and _EXACT <= abs(value) < _FROM_64_BITS
    }
    return json_text(paths | large_integers)


def _indexed(value: Any) -> tuple[KeyType, Any]:
    """Return the type of a metadata value and its indexed form."""
    if isinstance(value, str):
        return KeyType.STR, value[:INDEXED_CHARACTERS]
    if isinstance(value, bool):
        return KeyType.BOOL, float(value)
    if isinstance(value, int | float):
        return KeyType.NUM, float(value)
    return KeyType.OTHER, 0.0


def is_number(value: object) -> TypeGuard[float]:
    """Check whether a JSON value is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def storable_text(value: str) -> str:
    """Return a string in a form that every database accepts."""
    return value.replace("\0", "\ufffd")


def decode_label_scores(predictions: msgspec.Raw) -> list[LabelScore] | None:
    """Return labels and scores, or None if the predictions are not a list of objects, such as raw tensors."""
    try:
        return _PREDICTIONS.decode(predictions)
    except msgspec.ValidationError:
        return None


def stored_inference(row: RecordRow, model: ModelRow) -> StoredInference:
    """Convert a row of the database; JSON that was not read, or is damaged, is left out and named."""
    try:
        predictions, meta, standard = _raw(row.predictions), _raw(row.meta), _raw(row.standard)
        ground_truth = None if row.annotations is None else _raw(row.annotations)
    except msgspec.DecodeError:
        names = [name for name in _EMPTY_TEXTS if _is_damaged(getattr(row, name))]
        readable = row._replace(**{name: _EMPTY_TEXTS[name] for name in names})
        left_out = [_FIELDS.get(name, name) for name in names]
        return msgspec.structs.replace(stored_inference(readable, model), left_out=left_out)
    return StoredInference(
        id=str(row.seq),
        request_id=row.request_id,
        image_no=row.image_no,
        model=model.reference,
        task=model.task,
        action=row.action,
        created_at=timestamp_text(time_ms(row.seq)),
        latency_ms=row.latency_us / 1000,
        input=row.input(),
        predictions=predictions,
        metadata=meta,
        status=row.status,
        standard_metadata=standard,
        team=model.team or msgspec.UNSET,
        ground_truth=ground_truth,
        ground_truth_review=row.review or msgspec.UNSET,
    )


def _is_damaged(text: str | None) -> bool:
    try:
        _raw("null" if text is None else text)
    except msgspec.DecodeError:
        return True
    return False


def uncommitted_inference(record: JournaledRecord) -> StoredInference:
    """Convert a record of the journal to what the database will return for it."""
    fields = msgspec.structs.asdict(record)
    seq, standard = fields.pop("seq"), fields.pop("standard")
    fields["latency_ms"] = round(record.latency_ms * 1000) / 1000  # as the database has it
    created_at = timestamp_text(time_ms(seq))
    return StoredInference(
        id=str(seq), created_at=created_at, standard_metadata=standard, feedback=[], **fields
    )

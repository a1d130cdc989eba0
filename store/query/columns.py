"""Columns of many stored inferences at once, for evaluations and drift reports; SQL stays in the store.

Each function reads one state of the database and raises a StoreError where it does not answer.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from quadriga.store.database.database import execute, execute_in
from quadriga.store.database.rollups import DAY, decode_counts, minute_of, rows_of
from quadriga.store.database.rows import models_by_id
from quadriga.store.database.schema import INDEXED_CHARACTERS, KeyType
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.names import Catalog, label_names
from quadriga.store.records.records import REJECTED, ModelReference, StoredInference
from quadriga.store.records.scope import Scope

PAGE_SIZE = 1000
"""Inferences that one query names."""

_ROWS = (
    "SELECT seq, model_id, status, latency_us, input_width, input_height, input_bytes,"
    " predictions, coalesce(CAST(meta_flat AS TEXT), meta) FROM inference WHERE seq IN ({})"
)
_ROLLUP_LABELS = (
    f"SELECT labels FROM {rows_of(DAY)} model_id IN (SELECT id FROM model WHERE name = ?)"
    " AND minute BETWEEN ? AND ?"
)
_LABELLED = "SELECT label, seq FROM pred WHERE seq BETWEEN ? AND ? AND label IN ({})"
_LABEL_COUNTS = "SELECT label, count(*) FROM pred WHERE seq IN ({}) GROUP BY label"
_BEST = " AND NOT EXISTS (SELECT 1 FROM pred p WHERE p.seq = pred.seq AND p.score > pred.score)"
_HAS_GROUND_TRUTH = (
    "FROM ground_truth AS g JOIN truth AS t ON t.id = g.truth_id"
    f" WHERE t.review <> '{REJECTED}' AND g.seq IN ({{}})"
)
_WITH_GROUND_TRUTH = f"SELECT g.seq {_HAS_GROUND_TRUTH}"
_GROUND_TRUTH = f"SELECT g.seq, t.annotations {_HAS_GROUND_TRUTH}"
_OTHER_TRUTH = (
    "SELECT o.seq, t.task, t.model FROM other_truth AS o JOIN truth AS t ON t.id = o.truth_id"
    " WHERE o.seq IN ({})"
)

_IMAGES = (
    "SELECT i.seq, i.status, i.input_hash, i.input_kept, (SELECT max(1) FROM ground_truth AS g"
    f" JOIN truth AS t ON t.id = g.truth_id WHERE g.seq = i.seq AND t.review <> '{REJECTED}')"
    " FROM inference AS i WHERE i.seq IN ({})"
)
_SCORED = (
    "SELECT i.seq, m.task, i.predictions, i.standard FROM inference AS i"
    " JOIN model AS m ON m.id = i.model_id WHERE i.seq IN ({})"
)
_EMBEDDED = (
    "SELECT seq, space, length(embedding) FROM signal"
    " WHERE embedding IS NOT NULL AND length(embedding) > 0 AND seq IN ({})"
)


class TruthScope(NamedTuple):
    """The task and the model that a statement of ground truth is about; empty for any."""

    task: str
    model: str


class InferenceColumns(NamedTuple):
    """The columns of an inference that signals are taken from."""

    id: int
    model: ModelReference
    task: str
    status: int
    latency_us: int
    width: int | None
    height: int | None
    size_bytes: int | None
    predictions: str
    """JSON text."""
    metadata: str
    """JSON text; flat where the database has it so."""


class ImageColumns(NamedTuple):
    """What says whether the image of an inference can be labelled."""

    id: int
    status: int
    hash: str | None
    """Hash of the image's bytes."""
    is_kept: bool
    has_truth: bool
    """Whether there is ground truth that nobody rejected."""


class ScoredColumns(NamedTuple):
    """What says how sure a model was of an inference."""

    id: int
    task: str
    predictions: str
    """JSON text."""
    standard: str
    """JSON text of what the engine wrote itself, such as the semantic score."""


class EmbeddedColumns(NamedTuple):
    """The kind of embedding that an inference has."""

    id: int
    space: str
    size_bytes: int


class MetadataValue(NamedTuple):
    """A value of a metadata key, with the inferences that have it."""

    value: str | float | bool
    ids: list[int]


def scan(reader: InferenceReader, ids: Sequence[int]) -> list[InferenceColumns]:
    """Read columns of those inferences that are still there, oldest first."""
    with reader.snapshot() as connection:
        rows = sorted(tuple(row) for row in execute_in(connection, _ROWS, ids))
        models = models_by_id(connection, (model_id for _, model_id, *_ in rows))
    return [
        InferenceColumns(inference_id, models[model_id].reference, models[model_id].task, *columns)
        for inference_id, model_id, *columns in rows
    ]


def scan_images(reader: InferenceReader, ids: Collection[int]) -> list[ImageColumns]:
    """Read which images of those inferences that are still there can be labelled, oldest first."""
    return [
        ImageColumns(int(id_), status, hash_, bool(is_kept and hash_), has_truth=truth is not None)
        for id_, status, hash_, is_kept, truth in _rows(reader, _IMAGES, ids)
    ]


def scan_scores(reader: InferenceReader, ids: Collection[int]) -> list[ScoredColumns]:
    """Read the predictions of those inferences that are still there, oldest first."""
    return [ScoredColumns(*row) for row in _rows(reader, _SCORED, ids)]


def scan_embeddings(reader: InferenceReader, ids: Collection[int]) -> list[EmbeddedColumns]:
    """Read which embeddings those inferences have that have any, oldest first; not the embeddings."""
    rows = _rows(reader, _EMBEDDED, ids)
    return [EmbeddedColumns(int(id_), space or "", size) for id_, space, size in rows]


def read_inferences(reader: InferenceReader, ids: Sequence[int]) -> list[StoredInference]:
    """Return those inferences that are still there, whole, oldest first."""
    return [*reader.by_id(map(str, ids)).values()]


def ground_truths(reader: InferenceReader, ids: Iterable[int]) -> dict[int, msgspec.Raw]:
    """Return the annotations of those inferences that have ground truth, not a rejected one, as JSON by id."""
    rows = _rows(reader, _GROUND_TRUTH, list(ids))
    return {int(id_): msgspec.Raw(annotations.encode()) for id_, annotations in rows}


def with_ground_truth(reader: InferenceReader, ids: Collection[int]) -> list[int]:
    """Return the ids of those inferences that have ground truth, not a rejected one, ascending."""
    return [int(id_) for (id_,) in _rows(reader, _WITH_GROUND_TRUTH, ids)]


def other_truths(reader: InferenceReader, ids: Collection[int]) -> dict[int, TruthScope]:
    """Return what the ground truth is of that inferences are joined to and that does not apply, by id.

    Inferences with ground truth of their own have none.
    """
    rows = _rows(reader, _OTHER_TRUTH, ids)
    return {int(id_): TruthScope(task, model) for id_, task, model in rows}


def label_counts(reader: InferenceReader, ids: Collection[int]) -> dict[str, int]:
    """Return how many predictions of some inferences have each label, in the order of the labels."""
    counts: Counter[str] = Counter()
    with reader.snapshot() as connection:
        names = _label_names(connection, reader.scope)
        for label_id, count in execute_in(connection, _LABEL_COUNTS, ids):
            counts[names[label_id]] += count
    return dict(sorted(counts.items()))


def labelled_ids(
    reader: InferenceReader,
    model: str,
    start_id: int,
    end_id: int,
    *,
    exclude: Collection[str],
    best: bool = False,
) -> list[tuple[str, int]]:
    """Return label and id of each prediction with a label that is not excluded; ids from start to end.

    The labels are those that the rollups of the model's days name: rare ones. With `best`, only predictions
    count that no other of the same inference surpasses in score.
    """
    with reader.snapshot() as connection:
        names = _label_names(connection, reader.scope)
        counted: set[int] = set()
        first = minute_of(start_id)
        bounds = (model, first - first % DAY, minute_of(end_id))
        for (labels,) in execute(connection, _ROLLUP_LABELS, bounds):
            counted.update(decode_counts(labels))
        selected = [id_ for id_ in sorted(counted) if id_ in names and names[id_] not in exclude]
        rows = execute_in(connection, _LABELLED + _BEST * best, selected, (start_id, end_id))
    return [(names[label_id], id_) for label_id, id_ in rows]


def source_values(
    reader: InferenceReader, key: str, start_id: int, end_id: int
) -> list[MetadataValue]:
    """Return the indexed values of a metadata key among inferences from start to end."""
    values: list[MetadataValue] = []
    with reader.snapshot() as connection:
        catalog = Catalog(connection, reader.scope, [key])
        keys = [
            (type_, key_id)
            for type_ in (KeyType.NUM, KeyType.STR, KeyType.BOOL)
            for key_id in catalog.key_ids(key, type_)
        ]
        for type_, key_id in keys:
            table = "meta_str" if type_ == KeyType.STR else "meta_num"
            rows = execute(
                connection,
                f"SELECT val, seq FROM {table} WHERE key = ? AND seq BETWEEN ? AND ?",
                (key_id, start_id, end_id),
            ).cursor.fetchall()  # plain tuples: there may be a million
            ids: dict[Any, list[int]] = {}
            for value, id_ in rows:
                ids.setdefault(value, []).append(id_)
            for value, of_value in ids.items():
                is_bool = type_ == KeyType.BOOL
                values.append(MetadataValue(bool(value) if is_bool else value, of_value))
    return values


def _rows(reader: InferenceReader, statement: str, ids: Collection[int]) -> list[Any]:
    """Return what a statement selects of some inferences, in the order of their ids."""
    with reader.snapshot() as connection:
        return sorted(execute_in(connection, statement, ids))


def _label_names(connection: sa.Connection, scope: Scope) -> dict[int, str]:
    names = label_names(connection, scope).items()
    return {label_id: name[:INDEXED_CHARACTERS] for label_id, name in names}

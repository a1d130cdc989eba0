"""Inferences as Arrow tables, a row each: Parquet of exports and imports, and the tables of a running server; an extra (pyarrow).

The types are the same for any inferences. What no column has a place for stands as JSON beside it.

Source: Apache Arrow, "Arrow Columnar Format", "Serialization and Interprocess Communication".
"""

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from datetime import datetime
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from quadriga.store.blobs.interface import Blobs
from quadriga.store.changes.ground_truth import join_text
from quadriga.store.exchange.archives import stored_image
from quadriga.store.exchange.datasets import OWN, Pages, nested
from quadriga.store.exchange.predictions import decode_objects, label_of, score_of
from quadriga.store.records import metadata
from quadriga.store.records.errors import JSON_ERRORS, MetadataError, QueryError
from quadriga.store.records.ids import time_ms
from quadriga.store.records.records import StoredInference, parse_time, timestamp_text
from quadriga.tasks.predictions import BOX_KEYS, ORIENTED_BOX_KEYS, shape_of_json

ROW_GROUP_ROWS = 10_000
ROW_GROUP_BYTES = 16 << 20
EXPORT_GROUP_ROWS = 50_000
EXPORT_GROUP_BYTES = 64 << 20

_TEXT, _NUMBER, _FLAG = pa.string(), pa.float64(), pa.bool_()
_TEXTS = pa.list_(_TEXT)
_BOX = pa.struct([(edge, _NUMBER) for edge in BOX_KEYS])
OBJECT = pa.struct(
    [
        *((name, _TEXT) for name in ("label", "prompt", "answer")),
        *((name, _NUMBER) for name in ("score", *BOX_KEYS, *ORIENTED_BOX_KEYS, "area")),
        ("contour", pa.list_(pa.list_(pa.struct([("x", _NUMBER), ("y", _NUMBER)])))),
        ("answers", _TEXTS),
        *((name, _FLAG) for name in ("crowd", "difficult")),
    ]
)
"""A prediction, or an annotation of the ground truth: fields as in a response, null where it has none."""


class _Row:
    """An inference, whose JSON is decoded once for all columns."""

    def __init__(self, record: StoredInference) -> None:
        self.record = record

    @cached_property
    def items(self) -> list[dict[str, Any]]:
        """Predictions; empty if they are tensors."""
        return decode_objects(self.record.predictions)

    @cached_property
    def predictions(self) -> tuple[list[dict[str, Any]] | None, str | None]:
        """Predictions as `OBJECT`, and their JSON if that says more."""
        return _objects(self.record.predictions)

    @cached_property
    def truth(self) -> tuple[list[dict[str, Any]] | None, str | None]:
        """Ground truth as `OBJECT`, and its JSON if that says more."""
        return _objects(self.record.ground_truth)

    def box(self, item: dict[str, Any]) -> dict[str, float] | None:
        """Return the upright box around a prediction."""
        image = self.record.input
        box = shape_of_json(item).upright_box(image.width, image.height)
        return None if box is None else dict(zip(BOX_KEYS, box, strict=True))


def _of(field: str, type_: pa.DataType = _TEXT) -> tuple[pa.DataType, Callable[[_Row], Any]]:
    get = attrgetter(field)
    return type_, lambda row: get(row.record)


def _json(field: str) -> tuple[pa.DataType, Callable[[_Row], Any]]:
    return _TEXT, lambda row: _text_of(getattr(row.record, field))


_Columns = dict[str, tuple[pa.DataType, Callable[[_Row], Any]]]
_TYPES = {
    **dict.fromkeys(("image_no", "status", "input.width", "input.height"), pa.int32()),
    "latency_ms": _NUMBER,
    "input.kept": _FLAG,
    "input.bytes": pa.int64(),
}
"""Types of the fields of a record that are no texts."""

RECORD_FIELDS = {
    "model" if field == "model.name" else field.replace(".", "_"): field
    for field in OWN
    if field != "id"
}
"""Columns, and the fields of a record that they have."""

_COMMON: _Columns = {
    "id": (pa.int64(), lambda row: int(row.record.id)),
    "created_at": (pa.timestamp("ms", tz="UTC"), lambda row: time_ms(int(row.record.id))),
    **{name: _of(field, _TYPES.get(field, _TEXT)) for name, field in RECORD_FIELDS.items()},
}
_REVIEW = "ground_truth_review"
_REVIEW_COLUMN = (_TEXT, lambda row: row.record.ground_truth_review or None)
_JSON = ("predictions", "metadata", "standard_metadata", "ground_truth")
_EXPORTED: _Columns = {
    **_COMMON,
    "labels": (_TEXTS, lambda row: [*map(label_of, row.items)]),
    "scores": (pa.list_(_NUMBER), lambda row: [*map(score_of, row.items)]),
    "boxes": (pa.list_(_BOX), lambda row: [*map(row.box, row.items)]),
    **{name: _json(name) for name in _JSON},
    _REVIEW: _REVIEW_COLUMN,
}
_STREAMED: _Columns = {
    **_COMMON,
    "team": (_TEXT, lambda row: row.record.team or None),
    "predictions": (pa.list_(OBJECT), lambda row: row.predictions[0]),
    "predictions_json": (_TEXT, lambda row: row.predictions[1]),
    "ground_truth": (pa.list_(OBJECT), lambda row: row.truth[0]),
    "ground_truth_json": (_TEXT, lambda row: row.truth[1]),
    _REVIEW: _REVIEW_COLUMN,
    "metadata": (pa.map_(_TEXT, _TEXT), lambda row: _flat(row.record.metadata)),
    "metadata_json": _json("metadata"),
    "standard_metadata_json": _json("standard_metadata"),
}
"""Columns of a table. `…_json` of predictions and ground truth is null unless they have what `OBJECT` has no field for."""


def _schema(columns: _Columns) -> pa.Schema:
    return pa.schema([(name, type_) for name, (type_, _) in columns.items()])


EXPORT_SCHEMA = _schema(_EXPORTED)
SCHEMA = _schema(_STREAMED)


def _batch(records: Iterable[StoredInference], columns: _Columns) -> pa.RecordBatch:
    rows = [*map(_Row, records)]
    arrays = [pa.array([*map(value, rows)], type_) for type_, value in columns.values()]
    return pa.record_batch(arrays, _schema(columns))


record_batch = partial(_batch, columns=_STREAMED)
"""Returns inferences as a record batch of `SCHEMA`."""


class _ParquetWriter:
    """Writes Parquet, compressed with zstd; a row group has so many rows or bytes of the batches that are gathered."""

    def __init__(self, target: Any, schema: pa.Schema, max_rows: int, max_bytes: int) -> None:
        self._writer = pq.ParquetWriter(target, schema, compression="zstd")
        self._limits = max_rows, max_bytes
        self._batches: list[pa.RecordBatch] = []

    def write_batch(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        sizes = (
            sum(batch.num_rows for batch in self._batches),
            sum(batch.nbytes for batch in self._batches),
        )
        if any(size >= limit for size, limit in zip(sizes, self._limits, strict=True)):
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._batches:
            table = pa.Table.from_batches(self._batches)
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
            self._batches = []


class _Sink(io.RawIOBase):
    """A file whose bytes are taken away as they are written."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._pieces.append(piece)
        self._position += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self._position

    def take(self) -> bytes:
        """Return what was written since the last time."""
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)


class TableStream:
    """Writes inferences as a table whose bytes come out piece by piece.

    Args:
        form: An Arrow IPC stream, a record batch for each call of `add`; or Parquet, a row group for some thousand rows.
    """

    def __init__(self, form: Literal["arrow", "parquet"]) -> None:
        self._sink = _Sink()
        self._writer: Any
        if form == "parquet":
            self._writer = _ParquetWriter(self._sink, SCHEMA, ROW_GROUP_ROWS, ROW_GROUP_BYTES)
        else:
            self._writer = pa.ipc.new_stream(self._sink, SCHEMA)

    def add(self, records: Sequence[StoredInference]) -> bytes:
        """Write inferences; return the bytes that are complete, which may be none."""
        if records:
            self._writer.write_batch(record_batch(records))
        return self._sink.take()

    def finish(self) -> bytes:
        """Return the last bytes, without which no reader takes the table for whole."""
        self._writer.close()
        return self._sink.take()


def write_parquet(pages: Pages, target: Path, images: Blobs | None) -> None:
    """Write a Parquet file; with images there is a column `image`."""
    columns = _EXPORTED
    if images is not None:
        columns = columns | {"image": (pa.binary(), lambda row: stored_image(row.record, images))}
    step = 1000 if images is None else 50
    parquet = _ParquetWriter(target, _schema(columns), EXPORT_GROUP_ROWS, EXPORT_GROUP_BYTES)
    with closing(parquet) as writer:
        for page in pages:
            for start in range(0, len(page), step):
                writer.write_batch(_batch(page[start : start + step], columns))


def count_row_groups(path: Path) -> int:
    """Return how many parts a file has that can be read by themselves; a QueryError if none."""
    try:
        with pq.ParquetFile(path) as file:
            return int(file.num_row_groups)
    except pa.ArrowInvalid as error:
        raise QueryError(f"expected {path.name} to be Parquet, got: {error}") from error


def read_parquet(
    path: Path, group: int | None = None, *, images: bool = True
) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield each row, of a row group or of all, as the JSON that the API answers, and its image.

    Raises:
        QueryError: It is no Parquet file, or none of inferences.
    """
    try:
        with pq.ParquetFile(path) as file:
            missing = {"id", "model", "task", "predictions"} - set(file.schema_arrow.names)
            if missing:
                raise QueryError(
                    f"expected Parquet with a column {min(missing)}, got {file.schema_arrow.names}"
                )
            names = (*_EXPORTED, "image") if images else (*_EXPORTED,)
            columns = [name for name in names if name in file.schema_arrow.names]
            groups = None if group is None else [group]
            for batch in file.iter_batches(200, groups, columns):
                for row in batch.to_pylist():
                    yield _line(row), row.get("image")
    except pa.ArrowInvalid as error:
        raise QueryError(f"expected {path.name} to be Parquet, got: {error}") from error


def _line(row: dict[str, Any]) -> bytes:
    values = {field: row.get(name) for name, field in RECORD_FIELDS.items()}
    document = nested({field: value for field, value in values.items() if value is not None})
    document["id"] = str(row["id"])
    created = row.get("created_at")
    if isinstance(created, datetime):
        created = timestamp_text(round(parse_time(str(created)).timestamp() * 1000))
    document |= {} if created is None else {"created_at": created}
    for name in _JSON:
        if (text := row.get(name)) is not None:
            document[name] = msgspec.Raw(text.encode())
    document |= {_REVIEW: row[_REVIEW]} if row.get(_REVIEW) else {}
    return msgspec.json.encode(document)


def _text_of(value: Any) -> str | None:
    """Return JSON of a record as text; None where there is none."""
    return None if value is None else bytes(value).decode()


def _flat(text: Any) -> list[tuple[str, str]]:
    """Return metadata by their dotted paths, each value as text; empty if they break the rules of today."""
    try:
        flat = metadata.flatten(metadata.decode(text))
    except (MetadataError, *JSON_ERRORS):
        return []
    return [(path, join_text(value)) for path, value in flat.items()]


def _objects(text: Any) -> tuple[list[dict[str, Any]] | None, str | None]:
    """Return the objects of a list in JSON, and the JSON itself if that says more, as that of tensors does."""
    if text is None:
        return None, None
    try:
        decoded = msgspec.json.decode(text)
    except JSON_ERRORS:
        return None, _text_of(text)
    if not isinstance(decoded, list) or not all(isinstance(item, dict) for item in decoded):
        return None, _text_of(text)
    objects = [
        {name: value for name, value in item.items() if _CHECKS.get(name, _is_nothing)(value)}
        for item in decoded
    ]
    is_complete = [*map(len, objects)] == [*map(len, decoded)]
    return objects, None if is_complete else _text_of(text)


def _is_nothing(_: Any) -> bool:
    return False


def _is_number(value: Any) -> bool:
    """Check whether a value is a number that a float64 holds exactly."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) <= 1 << 53
    return isinstance(value, float)


_SCALARS: dict[Any, Callable[[Any], bool]] = {
    _TEXT: lambda value: isinstance(value, str),
    _FLAG: lambda value: isinstance(value, bool),
    _NUMBER: _is_number,
}


def _check_of(type_: pa.DataType) -> Callable[[Any], bool]:
    """Return the check whether a value of JSON is of a type."""
    if pa.types.is_list(type_):
        is_item = _check_of(type_.value_type)
        return lambda value: isinstance(value, list) and all(map(is_item, value))
    if pa.types.is_struct(type_):  # a point
        names, is_number = {field.name for field in type_}, _check_of(type_[0].type)
        return lambda value: (
            isinstance(value, dict)
            and value.keys() == names
            and all(map(is_number, value.values()))
        )
    return _SCALARS[type_]


_CHECKS = {field.name: _check_of(field.type) for field in OBJECT}

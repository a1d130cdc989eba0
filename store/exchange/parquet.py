"""Inferences as Parquet: a row each, with labels, scores and boxes as lists; an extra (pyarrow)."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from quadriga.store.blobs.interface import Blobs
from quadriga.store.exchange.archives import stored_image
from quadriga.store.exchange.datasets import OWN, Pages, nested
from quadriga.store.exchange.predictions import decode_objects, label_of, score_of
from quadriga.store.records.errors import QueryError
from quadriga.store.records.ids import time_ms
from quadriga.store.records.records import StoredInference, parse_time, timestamp_text
from quadriga.tasks.predictions import BOX_KEYS, shape_of_json

ROW_GROUP_BYTES = 64 << 20
ROW_GROUP_ROWS = 50_000
_BOX = pa.struct([(edge, pa.float64()) for edge in BOX_KEYS])

COLUMN_KINDS = {
    "image_no": pa.int32(),
    "status": pa.int32(),
    "latency_ms": pa.float64(),
    "input_width": pa.int32(),
    "input_height": pa.int32(),
    "input_kept": pa.bool_(),
    "input_bytes": pa.int64(),
}
"""Types of columns."""

RECORD_FIELDS = {
    "model" if field == "model.name" else field.replace(".", "_"): field
    for field in OWN
    if field != "id"
}
"""Columns, and the fields of a record that they have: text where `COLUMN_KINDS` says nothing."""

_REVIEW = "ground_truth_review"
_JSON = ("predictions", "metadata", "standard_metadata", "ground_truth")
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("created_at", pa.timestamp("ms", tz="UTC")),
        *((name, COLUMN_KINDS.get(name, pa.string())) for name in RECORD_FIELDS),
        ("labels", pa.list_(pa.string())),
        ("scores", pa.list_(pa.float64())),
        ("boxes", pa.list_(_BOX)),
        *((name, pa.string()) for name in _JSON),
        (_REVIEW, pa.string()),
    ]
)
_IMAGE = pa.field("image", pa.binary())


def write_parquet(pages: Pages, target: Path, images: Blobs | None) -> None:
    """Write a Parquet file, compressed with zstd; with images there is a column `image`."""
    schema = SCHEMA if images is None else SCHEMA.append(_IMAGE)
    step = 1000 if images is None else 50
    with pq.ParquetWriter(target, schema, compression="zstd") as writer:
        groups = RowGroups(writer, ROW_GROUP_ROWS, ROW_GROUP_BYTES)
        for page in pages:
            for start in range(0, len(page), step):
                groups.add(_batch(page[start : start + step], schema, images))
        groups.flush()


class RowGroups:
    """Gathers record batches, and writes them as a row group once they have so many rows or bytes."""

    def __init__(self, writer: pq.ParquetWriter, max_rows: int, max_bytes: int) -> None:
        self._writer = writer
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._batches: list[pa.RecordBatch] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch."""
        self._batches.append(batch)
        rows = sum(batch.num_rows for batch in self._batches)
        if (
            rows >= self._max_rows
            or sum(batch.nbytes for batch in self._batches) >= self._max_bytes
        ):
            self.flush()

    def flush(self) -> None:
        """Write what is gathered."""
        if self._batches:
            table = pa.Table.from_batches(self._batches)
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
            self._batches = []


def _batch(
    page: Sequence[StoredInference], schema: pa.Schema, images: Blobs | None
) -> pa.RecordBatch:
    predictions = [decode_objects(record.predictions) for record in page]
    columns: dict[str, list[Any]] = {
        "id": [int(record.id) for record in page],
        "created_at": [time_ms(int(record.id)) for record in page],
        **{name: list(map(attrgetter(field), page)) for name, field in RECORD_FIELDS.items()},
        "labels": [[label_of(item) for item in items] for items in predictions],
        "scores": [[score_of(item) for item in items] for items in predictions],
        "boxes": [
            [_box(item, record) for item in items]
            for items, record in zip(predictions, page, strict=True)
        ],
        **{name: [text_of(getattr(record, name)) for record in page] for name in _JSON},
        _REVIEW: [record.ground_truth_review or None for record in page],
    }
    if images is not None:
        columns["image"] = [stored_image(record, images) for record in page]
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    return pa.record_batch(arrays, schema)


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
            names = (*SCHEMA.names, "image") if images else SCHEMA.names
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


def _box(item: dict[str, Any], record: StoredInference) -> dict[str, float] | None:
    box = shape_of_json(item).upright_box(record.input.width, record.input.height)
    return None if box is None else dict(zip(BOX_KEYS, box, strict=True))


def text_of(value: Any) -> str | None:
    """Return JSON of a record as text; None where there is none."""
    return None if value is None else bytes(value).decode()

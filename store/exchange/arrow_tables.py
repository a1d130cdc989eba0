"""Inferences as Arrow tables with nested predictions, batch by batch: an IPC stream, or Parquet; an extra (pyarrow).

The types are the same for any inferences. What no column has a place for stands as JSON beside it.

Source: Apache Arrow, "Arrow Columnar Format", "Serialization and Interprocess Communication".
"""

import io
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from quadriga.store.changes.ground_truth import join_text
from quadriga.store.exchange.parquet import COLUMN_KINDS, RECORD_FIELDS, RowGroups, text_of
from quadriga.store.records import metadata
from quadriga.store.records.errors import JSON_ERRORS, MetadataError
from quadriga.store.records.ids import time_ms
from quadriga.store.records.records import StoredInference
from quadriga.tasks.predictions import BOX_KEYS, ORIENTED_BOX_KEYS

ROW_GROUP_ROWS = 10_000
ROW_GROUP_BYTES = 16 << 20

_POINT = pa.struct([("x", pa.float64()), ("y", pa.float64())])
_NUMBERS = ("score", *BOX_KEYS, *ORIENTED_BOX_KEYS, "area")
_TEXTS = ("label", "prompt", "answer")
_FLAGS = ("crowd", "difficult")
OBJECT = pa.struct(
    [
        *((name, pa.string()) for name in _TEXTS),
        *((name, pa.float64()) for name in _NUMBERS),
        ("contour", pa.list_(pa.list_(_POINT))),
        ("answers", pa.list_(pa.string())),
        *((name, pa.bool_()) for name in _FLAGS),
    ]
)
"""A prediction, or an annotation of the ground truth: fields as in a response, null where it has none."""

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("created_at", pa.timestamp("ms", tz="UTC")),
        *((name, COLUMN_KINDS.get(name, pa.string())) for name in RECORD_FIELDS),
        ("team", pa.string()),
        ("predictions", pa.list_(OBJECT)),
        ("predictions_json", pa.string()),
        ("ground_truth", pa.list_(OBJECT)),
        ("ground_truth_json", pa.string()),
        ("ground_truth_review", pa.string()),
        ("metadata", pa.map_(pa.string(), pa.string())),
        ("metadata_json", pa.string()),
        ("standard_metadata_json", pa.string()),
    ]
)
"""Columns of a table. `…_json` of predictions and ground truth is null unless they have what `OBJECT` has no field for."""

_Objects = tuple[list[dict[str, Any]] | None, str | None]


class TableWriter(Protocol):
    """Writes inferences as a table, whose bytes come out piece by piece."""

    def add(self, records: Sequence[StoredInference]) -> bytes:
        """Write inferences; return the bytes that are complete, which may be none."""

    def finish(self) -> bytes:
        """Return the last bytes, without which no reader takes the table for whole."""


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


class ArrowStreamWriter:
    """Writes an IPC stream, a record batch for each call of `add`."""

    def __init__(self) -> None:
        self._sink = _Sink()
        self._writer = pa.ipc.new_stream(self._sink, SCHEMA)

    def add(self, records: Sequence[StoredInference]) -> bytes:
        """Write a record batch; see `TableWriter.add`."""
        if records:
            self._writer.write_batch(record_batch(records))
        return self._sink.take()

    def finish(self) -> bytes:
        """Write the end of the stream; see `TableWriter.finish`."""
        self._writer.close()
        return self._sink.take()


class ParquetStreamWriter:
    """Writes Parquet, a row group for some thousand rows, compressed with zstd."""

    def __init__(self) -> None:
        self._sink = _Sink()
        self._writer = pq.ParquetWriter(self._sink, SCHEMA, compression="zstd")
        self._groups = RowGroups(self._writer, ROW_GROUP_ROWS, ROW_GROUP_BYTES)

    def add(self, records: Sequence[StoredInference]) -> bytes:
        """Write inferences, once a row group is full; see `TableWriter.add`."""
        if records:
            self._groups.add(record_batch(records))
        return self._sink.take()

    def finish(self) -> bytes:
        """Write the last row group and the directory; see `TableWriter.finish`."""
        self._groups.flush()
        self._writer.close()
        return self._sink.take()


def record_batch(records: Sequence[StoredInference]) -> pa.RecordBatch:
    """Return inferences as a record batch of `SCHEMA`."""
    predictions = [_objects(record.predictions) for record in records]
    truths = [_objects(record.ground_truth) for record in records]
    columns: dict[str, list[Any]] = {
        "id": [int(record.id) for record in records],
        "created_at": [time_ms(int(record.id)) for record in records],
        **{name: list(map(attrgetter(field), records)) for name, field in RECORD_FIELDS.items()},
        "team": [record.team or None for record in records],
        "predictions": [objects for objects, _ in predictions],
        "predictions_json": [text for _, text in predictions],
        "ground_truth": [objects for objects, _ in truths],
        "ground_truth_json": [text for _, text in truths],
        "ground_truth_review": [record.ground_truth_review or None for record in records],
        "metadata": [_flat(record.metadata) for record in records],
        "metadata_json": [text_of(record.metadata) for record in records],
        "standard_metadata_json": [text_of(record.standard_metadata) for record in records],
    }
    arrays = [pa.array(columns[field.name], field.type) for field in SCHEMA]
    return pa.record_batch(arrays, SCHEMA)


def _flat(text: Any) -> list[tuple[str, str]]:
    """Return metadata by their dotted paths, each value as text; empty if they break the rules of today."""
    try:
        flat = metadata.flatten(metadata.decode(text))
    except (MetadataError, *JSON_ERRORS):
        return []
    return [(path, join_text(value)) for path, value in flat.items()]


def _objects(text: Any) -> _Objects:
    """Return the objects of a list in JSON, and the JSON itself if that says more, as that of tensors does."""
    if text is None:
        return None, None
    try:
        decoded = msgspec.json.decode(text)
    except JSON_ERRORS:
        return None, text_of(text)
    if not isinstance(decoded, list) or not all(isinstance(item, dict) for item in decoded):
        return None, text_of(text)
    pairs = [_object(item) for item in decoded]
    is_whole = all(is_whole_item for _, is_whole_item in pairs)
    return [item for item, _ in pairs], None if is_whole else text_of(text)


def _object(item: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the fields of `OBJECT` that an item has, and whether these are all that it has."""
    fields = {name: value for name, value in item.items() if _fits(name, value)}
    return fields, len(fields) == len(item)


def _fits(name: str, value: Any) -> bool:
    if name in _TEXTS:
        return isinstance(value, str)
    if name in _NUMBERS:
        return _is_number(value)
    if name in _FLAGS:
        return isinstance(value, bool)
    if name == "answers":
        return isinstance(value, list) and all(isinstance(answer, str) for answer in value)
    return name == "contour" and _is_contour(value)


def _is_contour(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(ring, list)
        and all(
            isinstance(point, dict)
            and point.keys() == {"x", "y"}
            and _is_number(point["x"])
            and _is_number(point["y"])
            for point in ring
        )
        for ring in value
    )


def _is_number(value: Any) -> bool:
    """Check whether a value is a number that a float64 holds exactly."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) <= 1 << 53
    return isinstance(value, float)

"""The tables in ClickHouse, and their rows, as JSON, from what is journaled."""

import logging
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import asdict

from quadriga.store.database.rows import decode_label_scores, is_number
from quadriga.store.records import metadata
from quadriga.store.records.errors import MetadataError
from quadriga.store.records.ids import EPOCH_MS, TIME_SHIFT
from quadriga.store.records.records import (
    Deletion,
    Feedback,
    JournaledChange,
    JournaledRecord,
    MetadataChange,
    TruthStatement,
    is_change,
    json_text,
)
from quadriga.store.records.truth_scope import derived_task

_TIME = (
    "time DateTime64(3, 'UTC') DEFAULT "
    f"fromUnixTimestamp64Milli(bitShiftRight({{}}, {TIME_SHIFT}) + {EPOCH_MS}, 'UTC')"
)
_NAME = "LowCardinality(String)"
_TABLES = {
    "inference": (
        "seq",
        """
        TIME, seq Int64, request_id String, image_no Int64, model NAME, version NAME, sha256 NAME,
        task NAME, action NAME, status Int64, latency_ms Float64, input_name String,
        input_hash Nullable(String), input_width Nullable(Int64), input_height Nullable(Int64),
        input_mime Nullable(String), input_bytes Nullable(Int64), input_kept Bool,
        predictions String CODEC(ZSTD), metadata String CODEC(ZSTD), standard String CODEC(ZSTD),
        labels Array(NAME), scores Array(Nullable(Float64)), meta_num Map(NAME, Float64), team NAME,
        meta_str Map(NAME, String), meta_bool Map(NAME, Bool),
        INDEX labels labels TYPE bloom_filter
        """,
        "model, seq",
    ),
    "metadata_change": (
        "id",
        "id Int64, seq Int64, `set` String, remove Array(String), TIME",
        "seq, id",
    ),
    "truth": (
        "id",
        """
        id Int64, join_on NAME, value String, annotations Nullable(String), source String, TIME,
        task NAME, model String, owner NAME, expected Nullable(Int64), review NAME
        """,
        "join_on, value, id",
    ),
    "feedback": (
        "id",
        "id Int64, seq Int64, kind NAME, value Nullable(Float64), comment String, source String, TIME",
        "seq, id",
    ),
    "deletion": ("id", "id Int64, seq Int64, TIME", "seq, id"),
}
"""The id that is the time, columns and order of each table."""

_ADDED = {
    "inference": ("team NAME",),
    "truth": (
        "task NAME", "model String", "owner NAME", "expected Nullable(Int64)", "review NAME",
    ),
}  # fmt: skip
"""Columns that tables of earlier releases lack."""

Row = dict[str, Any]  # a value for each column; `time` comes by itself
_log = logging.getLogger(__name__)
_record = msgspec.json.Decoder(JournaledRecord)
_change = msgspec.json.Decoder(JournaledChange)


def create_table_statements() -> list[str]:
    """Return what makes the tables and their columns, where they are not there yet."""
    statements = []
    for table, (id_, columns, order) in _TABLES.items():
        within = columns.replace("NAME", _NAME).replace("TIME", _TIME.format(id_))
        statements.append(
            f"CREATE TABLE IF NOT EXISTS {table} ({within}) ENGINE = ReplacingMergeTree "
            f"ORDER BY ({order}) PARTITION BY toYYYYMM(time)"
        )
        statements += [
            f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {column.replace('NAME', _NAME)}"
            for column in _ADDED.get(table, ())
        ]
    return statements


def rows_by_table(payloads: Iterable[bytes]) -> dict[str, list[Row]]:
    """Return rows; what makes no row is logged and left out, as its like in the database."""
    tables: dict[str, list[Row]] = {}
    for payload in payloads:
        try:
            if is_change(payload):
                table, rows = _changed(_change.decode(payload))
            else:
                table, rows = "inference", [inference_row(_record.decode(payload))]
        except (msgspec.MsgspecError, MetadataError, ValueError) as error:
            _log.error("a record cannot be sent to ClickHouse: %s: %.100r", error, payload)
            continue
        if rows:
            tables.setdefault(table, []).extend(rows)
    return tables


def inference_row(record: JournaledRecord) -> Row:
    """Return the row of a record; errors as of `Rows.add`."""
    paths = metadata.flatten(metadata.decode(record.metadata))
    labels = [
        label_score
        for label_score in decode_label_scores(record.predictions) or []
        if isinstance(label_score.label, str)
    ]
    row = asdict(record) | {f"input_{name}": value for name, value in asdict(record.input).items()}
    del row["input"], row["input_url"]
    return {
        name: bytes(value).decode() if isinstance(value, msgspec.Raw) else value
        for name, value in row.items()
    } | {
        "team": record.team or "",
        "model": record.model.name,
        "version": record.model.version,
        "sha256": record.model.sha256,
        "labels": [label_score.label for label_score in labels],
        "scores": [
            label_score.score if is_number(label_score.score) else None for label_score in labels
        ],
        "meta_num": {path: value for path, value in paths.items() if is_number(value)},
        "meta_str": {path: value for path, value in paths.items() if isinstance(value, str)},
        "meta_bool": {path: value for path, value in paths.items() if isinstance(value, bool)},
    }


def _changed(journaled: JournaledChange) -> tuple[str, list[Row]]:
    """Return a table and rows for a change; no rows for signals, nor for retention: tables here have a TTL."""
    change, row = journaled.change, {"id": journaled.seq, **asdict(journaled.change)}
    match change:
        case MetadataChange():
            row |= {"seq": row.pop("target"), "set": json_text(change.set)}
            return "metadata_change", [row]
        case TruthStatement(annotations=said):
            task = change.task
            row |= {
                "join_on": row.pop("join"),
                "task": derived_task(said, None) if task is None else task,
                "annotations": None if said is None else json_text(said),
            }
            return "truth", [row]
        case Feedback():
            row["seq"] = row.pop("target")
            return "feedback", [row]
        case Deletion():
            return "deletion", [{"id": journaled.seq, "seq": target} for target in change.targets]
        case _:
            return "", []

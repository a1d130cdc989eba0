"""The tables in ClickHouse, and their rows, as JSON, from what is journaled."""

import logging
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import msgspec

from store import metadata
from store.errors import MetadataError
from store.ids import EPOCH_MS, TIME_SHIFT
from store.records import (
    Deletion,
    Feedback,
    JournaledChange,
    JournaledRecord,
    MetadataChange,
    TruthStatement,
    is_change,
)
from store.rows import scored

_TIME = (
    "DateTime64(3, 'UTC') DEFAULT "
    f"fromUnixTimestamp64Milli(bitShiftRight({{}}, {TIME_SHIFT}) + {EPOCH_MS}, 'UTC')"
)
_NAME = "LowCardinality(String)"
_FIELDS = {
    "seq": ("Int64", "seq"),
    "request_id": ("String", "request_id"),
    "image_no": ("Int64", "image_no"),
    "model": (_NAME, "model.name"),
    "version": (_NAME, "model.version"),
    "sha256": (_NAME, "model.sha256"),
    "task": (_NAME, "task"),
    "action": (_NAME, "action"),
    "status": ("Int64", "status"),
    "latency_ms": ("Float64", "latency_ms"),
    "input_name": ("String", "input.name"),
    "input_hash": ("Nullable(String)", "input.hash"),
    "input_width": ("Nullable(Int64)", "input.width"),
    "input_height": ("Nullable(Int64)", "input.height"),
    "input_mime": ("Nullable(String)", "input.mime"),
    "input_bytes": ("Nullable(Int64)", "input.bytes"),
    "input_kept": ("Bool", "input.kept"),
    "predictions": ("String CODEC(ZSTD)", "predictions"),
    "metadata": ("String CODEC(ZSTD)", "metadata"),
    "standard": ("String CODEC(ZSTD)", "standard"),
}
"""Columns, their types, and the fields of a record that they have."""

_FOUND_BY = {
    "labels": f"Array({_NAME})",
    "scores": "Array(Nullable(Float64))",
    "meta_num": f"Map({_NAME}, Float64)",
    "meta_str": f"Map({_NAME}, String)",
    "meta_bool": f"Map({_NAME}, Bool)",
}
_ID = {"id": "Int64"}
_OF_ONE = {**_ID, "seq": "Int64"}
_TABLES = {
    "inference": (
        {
            "time": _TIME.format("seq"),
            **{name: kind for name, (kind, _) in _FIELDS.items()},
            **_FOUND_BY,
        },
        "model, seq",
    ),
    "metadata_change": ({**_OF_ONE, "set": "String", "remove": "Array(String)"}, "seq, id"),
    "truth": (
        {
            **_ID,
            "join_on": _NAME,
            "value": "String",
            "annotations": "Nullable(String)",
            "source": "String",
        },
        "join_on, value, id",
    ),
    "feedback": (
        {
            **_OF_ONE,
            "kind": _NAME,
            "value": "Nullable(Float64)",
            "comment": "String",
            "source": "String",
        },
        "seq, id",
    ),
    "deletion": (_OF_ONE, "seq, id"),
}
"""Columns and order of each table."""

Row = dict[str, Any]
"""A value for each column; `time` comes by itself."""

_log = logging.getLogger(__name__)
_record = msgspec.json.Decoder(JournaledRecord)
_change = msgspec.json.Decoder(JournaledChange)
_encode = msgspec.json.encode


def statements() -> list[str]:
    """Return what makes the tables, where they are not there yet."""
    made = []
    for table, (columns, order) in _TABLES.items():
        timed = columns if "time" in columns else {**columns, "time": _TIME.format("id")}
        within = ", ".join(f"`{name}` {kind}" for name, kind in timed.items())
        index = ", INDEX labels labels TYPE bloom_filter" if table == "inference" else ""
        made.append(
            f"CREATE TABLE IF NOT EXISTS {table} ({within}{index}) ENGINE = ReplacingMergeTree "
            f"ORDER BY ({order}) PARTITION BY toYYYYMM(time)"
        )
    return made


def rows_by_table(payloads: Iterable[bytes]) -> dict[str, list[Row]]:
    """Return rows; what makes no row is logged and left out, as its like in the database."""
    found: dict[str, list[Row]] = {}
    for payload in payloads:
        try:
            if is_change(payload):
                rows = _changed(_change.decode(payload))
            else:
                rows = [("inference", inference(_record.decode(payload)))]
        except (msgspec.MsgspecError, MetadataError, ValueError) as error:
            _log.error("a record cannot be sent to ClickHouse: %s: %.100r", error, payload)
            continue
        for table, row in rows:
            found.setdefault(table, []).append(row)
    return found


def inference(record: JournaledRecord) -> Row:
    """Return the row of a record.

    Raises:
        MetadataError: The metadata breaks a rule.
        msgspec.MsgspecError: The metadata is no JSON object.
    """
    paths = metadata.flatten(metadata.decode(record.metadata))
    found = [each for each in scored(record.predictions) or [] if isinstance(each.label, str)]
    row = {name: attrgetter(field)(record) for name, (_, field) in _FIELDS.items()}
    return {
        name: bytes(value).decode() if isinstance(value, msgspec.Raw) else value
        for name, value in row.items()
    } | {
        "labels": [each.label for each in found],
        "scores": [each.score if _is_number(each.score) else None for each in found],
        "meta_num": {path: value for path, value in paths.items() if _is_number(value)},
        "meta_str": {path: value for path, value in paths.items() if isinstance(value, str)},
        "meta_bool": {path: value for path, value in paths.items() if isinstance(value, bool)},
    }


def _changed(journaled: JournaledChange) -> list[tuple[str, Row]]:
    """Return rows for a change; none for signals, nor for rules of retention: tables here have a TTL."""
    change, id_ = journaled.change, {"id": journaled.seq}
    match change:
        case MetadataChange():
            added = _encode(change.set).decode()
            row = {**id_, "seq": change.target, "set": added, "remove": change.remove}
            return [("metadata_change", row)]
        case TruthStatement():
            said = None if change.annotations is None else _encode(change.annotations).decode()
            row = {**id_, "join_on": change.join, "value": change.value, "source": change.source}
            return [("truth", {**row, "annotations": said})]
        case Feedback():
            row = {**id_, "seq": change.target, "kind": change.kind, "value": change.value}
            return [("feedback", {**row, "comment": change.comment, "source": change.source})]
        case Deletion():
            return [("deletion", {**id_, "seq": target}) for target in change.targets]
        case _:
            return []


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

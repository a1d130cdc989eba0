"""Sends the journal to ClickHouse too, and what a database holds already.

Nothing is updated there: what is said later of an inference is a row of its own, and the latest
holds. An insert that may have arrived, in whole or in part, is repeated with the rows that
ClickHouse does not have. A token to drop repeated inserts is not to be relied on: the log of tokens
is written before the rows are, so of one that was cut short the repeat is lost. ReplacingMergeTree
merges what arrives twice all the same, as where the first was still running.

Source: ClickHouse, `MergeTreeSink::finishDelayedChunk`.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import clickhouse_connect
import msgspec
import sqlalchemy as sa
from clickhouse_connect.driver.exceptions import Error
from msgspec.structs import asdict

from quadriga.store.changes.annotations import derived_task
from quadriga.store.database.database import ReaderPool
from quadriga.store.database.rows import decode_label_scores, is_number, read_records
from quadriga.store.journal import journal
from quadriga.store.maintenance.copying import (
    FEEDBACK,
    INFERENCES,
    TRUTH,
    ComparedTable,
    CopyProgress,
    day_text,
    key_page,
    open_readers,
    select_rows,
)
from quadriga.store.records import metadata
from quadriga.store.records.disk import write_atomically
from quadriga.store.records.errors import MetadataError, StoreError
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
from quadriga.store.records.redaction import redact, without_secrets

BATCH_RECORDS = 10_000
BATCH_BYTES = 32 << 20
POLL_S = 1.0  # ClickHouse takes few large inserts rather than many small ones
MAX_BACK_OFF_S = 30.0
_FILLED_AT_ONCE = 5000
_ERASED_AT_ONCE = 10_000
_OF_INFERENCES = ("inference", "metadata_change", "feedback", "deletion")
"""Tables whose rows are each of one inference."""

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
_record = msgspec.json.Decoder(JournaledRecord)
_change = msgspec.json.Decoder(JournaledChange)
_log = logging.getLogger(__name__)
ByteRange = tuple[int, int]  # bytes of a segment, from and to


class SendPosition(msgspec.Struct):
    """How far the journal is sent."""

    offsets: dict[str, int] = {}  # by segment
    sending: dict[str, ByteRange] = {}  # what may have arrived already, or in part


class ClickHouseSender:
    """Sends what workers journal to a ClickHouse; for one thread, except where a method says otherwise.

    Beside the journal stands `clickhouse.json` with the position. The URL is such as
    `https://user:password@host:8443/database`; the database is there.
    """

    def __init__(self, journal_directory: Path, url: str) -> None:
        self._directory = journal_directory
        self._url = url
        self._file = journal.clickhouse_position_path(journal_directory)
        self._client: Any = None
        self._position = SendPosition()
        if self._file.exists():
            self._position = msgspec.json.decode(self._file.read_bytes(), type=SendPosition)
        self.records_sent = 0

    def run(self, stop: threading.Event) -> None:
        """Send records as they come until `stop` is set, then once more, and return.

        A ClickHouse that does not answer is asked again, ever more slowly; the journal keeps the rest.
        """
        pause_s, failing = POLL_S, False
        while True:
            stopping = stop.is_set()
            try:
                self.drain()
            except Exception as error:  # noqa: BLE001 - whatever it is, the database's writer goes on
                lag = journal.lag_bytes(self._directory, self._position.offsets)
                reason = redact(str(error), [self._url])
                _log.warning("%d bytes of the journal wait for ClickHouse: %.300s", lag, reason)
                failing, pause_s = True, min(pause_s * 2, MAX_BACK_OFF_S)
            else:
                if failing:
                    _log.warning("ClickHouse answers again")
                failing, pause_s = False, POLL_S
            if stopping:
                return
            stop.wait(pause_s)

    def drain(self) -> int:
        """Send everything that is in the journal now and return how many records that was."""
        sent_before = self.records_sent
        if self._client is None:
            self._client = _connect(self._url)
        while sending := self._position.sending or self._next():
            is_repeat = bool(self._position.sending)
            self._note(SendPosition(self._position.offsets, sending))
            self._send(sending, is_repeat=is_repeat)
            ends = {segment: end for segment, (_, end) in sending.items()}
            there = journal.segment_sizes(self._directory)
            offsets = {**self._position.offsets, **ends}
            self._note(SendPosition({name: end for name, end in offsets.items() if name in there}))
        return self.records_sent - sent_before

    def has_unsent(self, segment: Path) -> bool:
        """Tell whether a closed segment holds what is not sent yet; safe to call from any thread."""
        offset = self._position.offsets.get(segment.name, 0)
        return next(journal.read_frames(segment, offset), None) is not None

    def sent_until(self, segment: Path) -> int:
        """Return the offset up to which a segment is sent; safe to call from any thread."""
        return self._position.offsets.get(segment.name, 0)

    def erase(self, ids: Sequence[int], joins: Sequence[tuple[str, str]]) -> None:
        """Remove inferences, and what was said of them, from all replicas, and wait until they are gone.

        Safe to call from any thread.

        Args:
            ids: Ids of the inferences.
            joins: Fields and values of statements of ground truth to be removed.

        Raises:
            StoreError: It does not answer, or refuses.
        """
        settings = {"mutations_sync": 2, "max_query_size": 16 << 20}
        try:
            client = _connect(self._url)
            for start in range(0, len(ids), _ERASED_AT_ONCE):
                batch = ids[start : start + _ERASED_AT_ONCE]
                listed, texts = ", ".join(map(str, batch)), ", ".join(f"'{id_}'" for id_ in batch)
                conditions = dict.fromkeys(_OF_INFERENCES, f"seq IN ({listed})")
                conditions["truth"] = f"join_on = 'id' AND value IN ({texts})"
                for table, condition in conditions.items():
                    client.command(
                        f"ALTER TABLE {table} DELETE WHERE {condition}", settings=settings
                    )
            for join, value in joins:
                client.command(
                    "ALTER TABLE truth DELETE WHERE join_on = %(join)s AND value = %(value)s",
                    {"join": join, "value": value},
                    settings=settings,
                )
            client.close()
        except Error as error:
            raise StoreError(
                "ClickHouse does not answer", detail=redact(str(error), [self._url])
            ) from error

    def _next(self) -> dict[str, ByteRange]:
        ranges: dict[str, ByteRange] = {}
        records = size = 0
        for path in journal.segment_paths(self._directory):
            start = self._position.offsets.get(path.name, 0)
            for _, payload, end in journal.read_frames(path, start):
                ranges[path.name] = (start, end)
                records, size = records + 1, size + len(payload)
                if records >= BATCH_RECORDS or size >= BATCH_BYTES:
                    return ranges
        return ranges

    def _note(self, position: SendPosition) -> None:
        write_atomically(self._file, msgspec.json.encode(position))
        self._position = position

    def _send(self, sending: dict[str, ByteRange], *, is_repeat: bool) -> None:
        payloads: list[bytes] = []
        for segment, (start, end) in sorted(sending.items()):
            for _, payload, position in journal.read_frames(self._directory / segment, start):
                if position > end:
                    break
                payloads.append(payload)
        for table, rows in _rows_by_table(payloads).items():
            _insert(self._client, table, _missing(self._client, table, rows) if is_repeat else rows)
        self.records_sent += len(payloads)


def _connect(url: str) -> Any:
    """Connect to a ClickHouse, and make tables where missing; `Error` if it does not answer."""
    try:
        client = clickhouse_connect.get_client(
            dsn=url,
            interface=urlsplit(url).scheme,
            connect_timeout=5,
            send_receive_timeout=20,
            autogenerate_session_id=False,
        )
    except ValueError:  # its text has parts of the URL
        raise StoreError(f"expected a URL of ClickHouse, got {without_secrets(url)!r}") from None
    for statement in _create_table_statements():
        client.command(statement)
    return client


def _insert(client: Any, table: str, rows: list[Row]) -> None:
    if rows:
        block = msgspec.json.Encoder().encode_lines(rows)
        client.raw_insert(table, insert_block=block, fmt="JSONEachRow")


def _missing(client: Any, table: str, rows: list[Row]) -> list[Row]:
    key = [name for name in ("id", "seq") if name in rows[0]]
    first = ",".join({str(row[key[0]]) for row in rows})  # 20 bytes each, of 256 kiB that are read
    text = f"SELECT {', '.join(key)} FROM {table} WHERE {key[0]} IN ({first})"
    lines = client.raw_query(text, fmt="TabSeparated").splitlines()
    there = {tuple(map(int, line.split())) for line in lines}
    return [row for row in rows if tuple(row[name] for name in key) not in there]


def backfill(
    source: str, url: str, report: Callable[[CopyProgress], None] = lambda _: None
) -> CopyProgress:
    """Send inferences, as their metadata is today, truth and feedback; reports after each insert.

    Rows that ClickHouse holds already are passed over, so a copy that was killed goes on when it is repeated.

    Raises:
        StoreError: The source is no database of ours, or one of the two does not answer.
    """
    began = time.monotonic()
    progress = CopyProgress("", "", {}, removed=0, seconds=0.0)
    try:
        with open_readers(source) as (readers,):
            client = _connect(url)
            for table in (INFERENCES, TRUTH, FEEDBACK):
                sent = 0
                for first, rows in _lacking(readers, client, table):
                    _insert(client, table.name, rows)
                    sent += len(rows)
                    copied = {**progress.copied, table.name: sent}
                    at, seconds = (table.name, day_text(first)), time.monotonic() - began
                    progress = CopyProgress(*at, copied, removed=0, seconds=seconds)
                    report(progress)
    except Error as error:
        raise StoreError(f"expected ClickHouse to answer, got: {error}") from error
    return progress


def _lacking(
    readers: ReaderPool, client: Any, table: ComparedTable
) -> Iterator[tuple[int, list[Row]]]:
    """Yield the rows that are not there, some at a time, each with the first key among which they were looked for."""
    text = f"SELECT uniqExact({table.key}) FROM {table.name} WHERE {table.key} BETWEEN "
    position = 0
    while True:
        with readers.snapshot() as connection:
            keys = [*key_page(connection, table, position, _FILLED_AT_ONCE)]
            if not keys:
                return
            sent_count = int(client.command(f"{text}{keys[0]} AND {keys[-1]}"))
            rows = _rows(connection, table, keys) if sent_count < len(keys) else []
        if rows:
            yield keys[0], _missing(client, table.name, rows) if sent_count else rows
        position = keys[-1] + 1


def _rows(connection: sa.Connection, table: ComparedTable, keys: list[int]) -> list[Row]:
    if table is INFERENCES:
        return [_inference_row(record) for record in read_records(connection, keys)]
    return [dict(row) for row in select_rows(connection, table, keys).mappings()]


def _create_table_statements() -> list[str]:
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


def _rows_by_table(payloads: Iterable[bytes]) -> dict[str, list[Row]]:
    """Return rows; what makes no row is logged and left out, as its like in the database."""
    tables: dict[str, list[Row]] = {}
    for payload in payloads:
        try:
            if is_change(payload):
                table, rows = _changed(_change.decode(payload))
            else:
                table, rows = "inference", [_inference_row(_record.decode(payload))]
        except (msgspec.MsgspecError, MetadataError, ValueError) as error:
            _log.error("a record cannot be sent to ClickHouse: %s: %.100r", error, payload)
            continue
        if rows:
            tables.setdefault(table, []).extend(rows)
    return tables


def _inference_row(record: JournaledRecord) -> Row:
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

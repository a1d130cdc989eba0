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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import clickhouse_connect
import msgspec
import sqlalchemy as sa
from clickhouse_connect.driver.exceptions import Error

from quadriga.store.database.database import ReaderPool
from quadriga.store.database.rows import read_records
from quadriga.store.journal import journal
from quadriga.store.records.disk import write_atomically
from quadriga.store.records.errors import StoreError
from quadriga.store.records.redaction import redact, without_secrets
from quadriga.store.replication.clickhouse_rows import (
    Row,
    create_table_statements,
    inference_row,
    rows_by_table,
)
from quadriga.store.replication.copying import (
    FEEDBACK,
    IDS_PER_DAY,
    INFERENCES,
    TRUTH,
    ComparedTable,
    CopyProgress,
    day_summary,
    day_text,
    days_with_rows,
    key_page,
    open_readers,
    select_rows,
)

BATCH_RECORDS = 10_000
BATCH_BYTES = 32 << 20
POLL_S = 1.0  # ClickHouse takes few large inserts rather than many small ones
MAX_BACK_OFF_S = 30.0
_FILLED_AT_ONCE = 5000
_ERASED_AT_ONCE = 10_000
_OF_INFERENCES = ("inference", "metadata_change", "feedback", "deletion")
"""Tables whose rows are each of one inference."""

_log = logging.getLogger(__name__)
ByteRange = tuple[int, int]  # bytes of a segment, from and to


class SendPosition(msgspec.Struct):
    """How far the journal is sent."""

    offsets: dict[str, int] = {}  # by segment
    sending: dict[str, ByteRange] = {}  # what may have arrived already, or in part


class ClickHouseSender:
    """Sends what workers journal to a ClickHouse; for one thread, but for `needs`.

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
        for table, rows in rows_by_table(payloads).items():
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
    for statement in create_table_statements():
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


def erase(url: str, ids: Sequence[int], joins: Sequence[tuple[str, str]]) -> None:
    """Remove inferences, and what was said of them, from all replicas, and wait until they are gone.

    Args:
        url: The ClickHouse.
        ids: Ids of the inferences.
        joins: Fields and values of statements of ground truth to be removed.

    Raises:
        StoreError: It does not answer, or refuses.
    """
    settings = {"mutations_sync": 2, "max_query_size": 16 << 20}
    try:
        client = _connect(url)
        for start in range(0, len(ids), _ERASED_AT_ONCE):
            batch = ids[start : start + _ERASED_AT_ONCE]
            listed, texts = ", ".join(map(str, batch)), ", ".join(f"'{id_}'" for id_ in batch)
            conditions = dict.fromkeys(_OF_INFERENCES, f"seq IN ({listed})")
            conditions["truth"] = f"join_on = 'id' AND value IN ({texts})"
            for table, condition in conditions.items():
                client.command(f"ALTER TABLE {table} DELETE WHERE {condition}", settings=settings)
        for join, value in joins:
            client.command(
                "ALTER TABLE truth DELETE WHERE join_on = %(join)s AND value = %(value)s",
                {"join": join, "value": value},
                settings=settings,
            )
        client.close()
    except Error as error:
        raise StoreError("ClickHouse does not answer", detail=redact(str(error), [url])) from error


def backfill(
    source: str, url: str, report: Callable[[CopyProgress], None] = lambda _: None
) -> CopyProgress:
    """Send inferences, as their metadata is today, truth and feedback; reports after each insert.

    Days of which ClickHouse holds as much as the database are passed over, and of the others it is
    sent what it lacks, so a copy that was killed goes on when it is repeated.

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
                for day in days_with_rows([readers], table):
                    for rows in _lacking(readers, client, table, day):
                        _insert(client, table.name, rows)
                        sent += len(rows)
                        copied = {**progress.copied, table.name: sent}
                        at, seconds = (table.name, day_text(day)), time.monotonic() - began
                        progress = CopyProgress(*at, copied, removed=0, seconds=seconds)
                        report(progress)
    except Error as error:
        raise StoreError(f"expected ClickHouse to answer, got: {error}") from error
    return progress


def _lacking(
    readers: ReaderPool, client: Any, table: ComparedTable, day: int
) -> Iterator[list[Row]]:
    """Yield the rows of a day that are not there, some at a time."""
    position, stop = day * IDS_PER_DAY, (day + 1) * IDS_PER_DAY
    text = f"SELECT uniqExact({table.key}) FROM {table.name} WHERE {table.key} "
    sent_count = int(client.command(f"{text} >= {position} AND {table.key} < {stop}"))
    with readers.snapshot() as connection:
        if day_summary(connection, table, day)[0] <= sent_count:
            return
    while True:
        with readers.snapshot() as connection:
            keys = [*key_page(connection, table, position, stop, limit=_FILLED_AT_ONCE)]
            if not keys:
                return
            rows = _rows(connection, table, keys)
        yield _missing(client, table.name, rows) if sent_count else rows
        position = keys[-1] + 1


def _rows(connection: sa.Connection, table: ComparedTable, keys: list[int]) -> list[Row]:
    if table is INFERENCES:
        return [inference_row(record) for record in read_records(connection, keys)]
    return [dict(row) for row in select_rows(connection, table, keys).mappings()]

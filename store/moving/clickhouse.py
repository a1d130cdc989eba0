"""Sends the journal to ClickHouse too: one wide table of inferences, and one for each kind of change.

Nothing is updated there: what is said later of an inference is a row of its own, and the latest holds.
The journal's position stands in a file of its own. An insert that may have arrived, in whole or in part,
is repeated with the rows that ClickHouse does not have. A token to drop repeated inserts is not to be relied
on: the log of tokens is written before the rows are, so of one that was cut short the repeat is lost.
ReplacingMergeTree merges what arrives twice all the same, as where the first was still running.
Source: ClickHouse, `MergeTreeSink::finishDelayedChunk`.
"""

import logging
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import clickhouse_connect
import msgspec

from store import journal
from store.disk import write_whole
from store.moving.clickhouse_rows import Row, rows_by_table, statements

BATCH_RECORDS = 10_000
BATCH_BYTES = 32 << 20
POLL_S = 1.0
"""ClickHouse takes few large inserts rather than many small ones."""

MAX_BACK_OFF_S = 30.0
_log = logging.getLogger(__name__)
Range = tuple[int, int]
"""Bytes of a segment, from and to."""


class Position(msgspec.Struct):
    """How far the journal is sent."""

    offsets: dict[str, int] = {}
    """By segment."""
    sending: dict[str, Range] = {}
    """What may have arrived already, or in part."""


class Sink:
    """Sends what workers journal to a ClickHouse; for one thread, but for `needs`.

    Beside the journal stands `clickhouse.json` with the position. The URL is such as
    `https://user:password@host:8443/database`; the database is there.
    """

    def __init__(self, journal_directory: Path, url: str) -> None:
        self._directory = journal_directory
        self._url = url
        self._file = journal.sent_file(journal_directory)
        self._client: Any = None
        self._position = Position()
        if self._file.exists():
            self._position = msgspec.json.decode(self._file.read_bytes(), type=Position)
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
                _log.warning("%d bytes of the journal wait for ClickHouse: %.300s", lag, error)
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
        before = self.records_sent
        if self._client is None:
            self._client = connect(self._url)
        while sending := self._position.sending or self._next():
            is_repeat = bool(self._position.sending)
            self._note(Position(self._position.offsets, sending))
            self._send(sending, is_repeat=is_repeat)
            ends = {segment: end for segment, (_, end) in sending.items()}
            there = journal.sizes(self._directory)
            offsets = {**self._position.offsets, **ends}
            self._note(Position({name: end for name, end in offsets.items() if name in there}))
        return self.records_sent - before

    def needs(self, segment: Path) -> bool:
        """Tell whether a closed segment holds what is not sent yet; safe to call from any thread."""
        offset = self._position.offsets.get(segment.name, 0)
        return next(journal.frames(segment, offset), None) is not None

    def _next(self) -> dict[str, Range]:
        """Return the parts of segments that one insert takes."""
        found: dict[str, Range] = {}
        records = size = 0
        for path in journal.segments(self._directory):
            start = self._position.offsets.get(path.name, 0)
            for _, payload, end in journal.frames(path, start):
                found[path.name] = (start, end)
                records, size = records + 1, size + len(payload)
                if records >= BATCH_RECORDS or size >= BATCH_BYTES:
                    return found
        return found

    def _note(self, position: Position) -> None:
        write_whole(self._file, msgspec.json.encode(position))
        self._position = position

    def _send(self, sending: dict[str, Range], *, is_repeat: bool) -> None:
        payloads: list[bytes] = []
        for segment, (start, end) in sorted(sending.items()):
            for _, payload, position in journal.frames(self._directory / segment, start):
                if position > end:
                    break
                payloads.append(payload)
        for table, rows in rows_by_table(payloads).items():
            insert(self._client, table, missing(self._client, table, rows) if is_repeat else rows)
        self.records_sent += len(payloads)


def connect(url: str) -> Any:
    """Connect to a ClickHouse, and make tables where missing; `Error` if it does not answer."""
    client = clickhouse_connect.get_client(
        dsn=url,
        interface=urlsplit(url).scheme,
        connect_timeout=5,
        send_receive_timeout=20,
        autogenerate_session_id=False,
    )
    for statement in statements():
        client.command(statement)
    return client


def insert(client: Any, table: str, rows: list[Row]) -> None:
    """Insert rows, if there are any."""
    if rows:
        block = msgspec.json.Encoder().encode_lines(rows)
        client.raw_insert(table, insert_block=block, fmt="JSONEachRow")


def missing(client: Any, table: str, rows: list[Row]) -> list[Row]:
    """Return those rows that a ClickHouse does not have."""
    key = [name for name in ("id", "seq") if name in rows[0]]
    first = ",".join({str(row[key[0]]) for row in rows})  # 20 bytes each, of 256 kiB that are read
    text = f"SELECT {', '.join(key)} FROM {table} WHERE {key[0]} IN ({first})"
    lines = client.raw_query(text, fmt="TabSeparated").splitlines()
    there = {tuple(map(int, line.split())) for line in lines}
    return [row for row in rows if tuple(row[name] for name in key) not in there]

"""New ids for records whose id the database has for another record.

Servers with the same worker numbers give out the same ids. The record that comes second gets an id of the same
millisecond that follows from its content, so that moving the same journal again finds it there. Where two servers answered
one request, each with an id of its own, the first record is stored, and the id of the other leads to it.
"""

import logging
import zlib
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from quadriga.store.database.database import execute_in, lock_repeated, stored_ids
from quadriga.store.database.rows import read_records, storable_text
from quadriga.store.records.errors import StoreError
from quadriga.store.records.ids import COUNTER_BITS, TIME_SHIFT, replacement_id
from quadriga.store.records.records import (
    IDEMPOTENCY_KEY,
    ImageSignals,
    JournaledChange,
    JournaledRecord,
    SignalsOfImages,
    json_text,
)

_FILE = "renumbered.jsonl"
_LINE_BYTES = 80  # each line is padded to as many, so that the size of the file is a count
REPEATED_WITHIN_MS = 3_600_000
"""Time within which another server finds that a request was sent before."""

_MAX_OF_REQUESTS = 10_000
"""Inferences of requests that are read to find repeated ones, at most."""

_MARK = f'"{IDEMPOTENCY_KEY}":"'.encode()
_MAX_TRIES = 1 << COUNTER_BITS
_decoder = msgspec.json.Decoder(JournaledRecord)
_standard_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_log = logging.getLogger(__name__)


class _Renumbered(msgspec.Struct, frozen=True):
    """A line of the file."""

    id: str
    stored_as: str


class JournaledPayload(NamedTuple):
    """A record as it stands in the journal."""

    seq: int
    payload: bytes
    is_imported: bool = False
    """Imported records keep the id that the file gives them: importing twice is importing once."""


class NewRecords(NamedTuple):
    """What records of the journal add to the database."""

    records: list[JournaledRecord]
    """Records that are not stored yet, each with the id to store it by."""
    repeated: dict[int, int]
    """Ids of records that are not stored, as another of the same request is, each with the id of that one."""


class Renumbering:
    """Chooses ids for the records of one journal, and keeps the new ones in a file of the data folder."""

    def __init__(self, data_directory: Path) -> None:
        self._path = data_directory / _FILE
        self._new_ids: dict[int, int] = {}
        if self._path.exists():
            for line in self._path.read_bytes().splitlines(keepends=True):
                # One cut short by a crash was never committed; a damaged one may stop no record.
                with suppress(msgspec.MsgspecError, ValueError):
                    renumbered = msgspec.json.decode(line, type=_Renumbered)
                    self._new_ids[int(renumbered.id)] = int(renumbered.stored_as)

    def new_records(
        self, connection: sa.Connection, payloads: Iterable[JournaledPayload]
    ) -> NewRecords:
        """Return the records that are not stored yet, those whose id belongs to another record with a new id.

        Raises:
            StoreError: There is no free id for a record.
            OSError: A new id cannot be written to the file.
        """
        payloads, repeated = self._first_of_repeated(connection, list(payloads))
        accepted: dict[int, JournaledRecord] = {}
        existing_ids = stored_ids(connection, {entry.seq for entry in payloads})
        conflicts: list[tuple[JournaledPayload, JournaledRecord]] = []
        existing = {record.seq: record for record in read_records(connection, existing_ids)}
        for entry in payloads:
            known = existing.get(entry.seq) or accepted.get(entry.seq)
            if known is not None and entry.is_imported:
                continue
            record = _decoder.decode(entry.payload)
            if known is None:
                accepted[record.seq] = record
            elif _content(known) != _content(record) and not _is_repeated(known, record):
                conflicts.append((entry, record))
        for entry, record in conflicts:
            self._renumber(connection, entry, record, accepted)
            repeated = {seq: first for seq, first in repeated.items() if first != entry.seq}
        return NewRecords(list(accepted.values()), repeated)

    def _first_of_repeated(
        self, connection: sa.Connection, payloads: list[JournaledPayload]
    ) -> tuple[list[JournaledPayload], dict[int, int]]:
        """Leave out records whose request another server has stored, under the same idempotency key, with another id.

        One server's own claims give the same id to both; so only a database that servers share is searched.

        Returns:
            The other records, and the ids that lead to one of these or to a stored one, as `NewRecords.repeated`. An id
            of another image leads nowhere: servers do not know of each other that a key was used with another request.
        """
        marked = [entry for entry in payloads if _MARK in entry.payload]
        if connection.dialect.name == "sqlite" or not marked:
            return payloads, {}
        lock_repeated(connection)
        records = {entry.seq: _decoder.decode(entry.payload) for entry in marked}
        wanted = {storable_text(record.request_id) for record in records.values()}
        oldest = min(records) - _ids_of_ms(REPEATED_WITHIN_MS)
        stored = _records_of_requests(connection, wanted, after=oldest)
        first_by_name = {_name(record): record for record in reversed(stored)}
        to_store, repeated = [], {}
        for entry in payloads:
            record = records.get(entry.seq)
            name = None if record is None else _name(record)
            if record is None or name is None:
                to_store.append(entry)
                continue
            first = first_by_name.setdefault(name, record)
            if first.seq == record.seq:
                to_store.append(entry)
                continue
            _log.info("id %d is a repetition of %d", record.seq, first.seq)
            self._new_ids[record.seq] = first.seq
            if record.input.hash == first.input.hash:
                repeated[record.seq] = first.seq
        return to_store, repeated

    def follow(self, change: JournaledChange) -> JournaledChange:
        """Return a change with the signals of records under the ids that these were stored with."""
        signals = change.change
        if not self._new_ids or not isinstance(signals, SignalsOfImages):
            return change
        moved = [self._follow_signals(signals_of_image) for signals_of_image in signals.of]
        return JournaledChange(change.seq, SignalsOfImages(moved))

    def _follow_signals(self, signals: ImageSignals) -> ImageSignals:
        new_id = self._new_ids.get(signals.seq, signals.seq)
        return msgspec.structs.replace(signals, seq=new_id)

    def _renumber(
        self,
        connection: sa.Connection,
        entry: JournaledPayload,
        record: JournaledRecord,
        accepted: dict[int, JournaledRecord],
    ) -> None:
        """Add a record with a new id to those accepted, unless it is stored with that id already."""
        standard = _standard_decoder.decode(record.standard)
        standard["acknowledged_id"] = msgspec.Raw(json_text(str(entry.seq)).encode())
        renumbered = msgspec.structs.replace(
            record, standard=msgspec.Raw(msgspec.json.encode(standard))
        )
        key = zlib.crc32(entry.payload)
        for attempt in range(_MAX_TRIES):
            new_id = replacement_id(entry.seq, key + attempt)
            other = accepted.get(new_id) or next(iter(read_records(connection, [new_id])), None)
            if other is None:
                accepted[new_id] = msgspec.structs.replace(renumbered, seq=new_id)
                self._note(entry.seq, new_id)
                return
            if _content(other) == _content(renumbered):
                return
        raise StoreError(f"expected a free id beside {entry.seq}, got none")

    def _note(self, seq: int, new_id: int) -> None:
        if self._new_ids.get(seq) == new_id:  # the transaction is repeated
            return
        _log.error(
            "id %d belongs to another record: stored as %d; another server with the same worker numbers, or a copy "
            "of the data folder, writes the same database",
            seq,
            new_id,
        )
        line = msgspec.json.encode(_Renumbered(str(seq), str(new_id))).ljust(_LINE_BYTES - 1)
        with self._path.open("ab") as file:
            file.truncate(file.tell() // _LINE_BYTES * _LINE_BYTES)
            file.write(line + b"\n")
        self._new_ids[seq] = new_id


def _ids_of_ms(duration_ms: int) -> int:
    """Return how far ids are apart that were made so many milliseconds one after the other."""
    return duration_ms << TIME_SHIFT


def _records_of_requests(
    connection: sa.Connection, request_ids: Collection[str], *, after: int
) -> list[JournaledRecord]:
    """Read the inferences of requests in the order of their ids, from an id on; the newest, if they are very many."""
    statement = (
        "SELECT seq FROM inference WHERE seq > ? AND request_id IN ({}) "
        f"ORDER BY seq DESC LIMIT {_MAX_OF_REQUESTS}"
    )
    seqs = {seq for (seq,) in execute_in(connection, statement, request_ids, (after,))}
    return sorted(read_records(connection, seqs), key=lambda record: record.seq)


def _name(record: JournaledRecord) -> str | None:
    """Return the name that a record has by its idempotency key; None without one."""
    standard = _standard_decoder.decode(record.standard)
    name = standard.get(IDEMPOTENCY_KEY)
    return None if name is None else bytes(name).decode()


def _is_repeated(known: JournaledRecord, record: JournaledRecord) -> bool:
    """Check whether two records with one id come from one request that was sent twice."""
    name = _name(record)
    return name is not None and name == _name(known)


def renumbered_count(data_directory: Path) -> int:
    """Return how many records of a data folder were stored under another id than acknowledged."""
    path = data_directory / _FILE
    return path.stat().st_size // _LINE_BYTES if path.exists() else 0


def _content(record: JournaledRecord) -> tuple[Any, ...]:
    """Return what two records with one id agree in if they are the same.

    Metadata changes later, and retention removes images; both are left out.
    """
    image = record.input
    return (
        storable_text(record.request_id),
        record.image_no,
        record.model,
        record.task,
        record.team,
        storable_text(record.action),
        round(record.latency_ms * 1000),
        (storable_text(image.name), image.hash, image.width, image.height, image.mime, image.bytes),
        bytes(record.predictions),
        record.status,
        bytes(record.standard),
    )

"""The writer: the one process, or thread, that commits the journal to the database.

Rows and the journal's offset are committed together, and rows are keyed by ids assigned before the record
was journaled, so after a crash anywhere the same work is simply repeated.
"""

import logging
import os
import re
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import compress, groupby
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec
import sqlalchemy as sa

from quadriga.store.changes.applying import apply_changes
from quadriga.store.changes.ground_truth import keep_repeated, link_new
from quadriga.store.database import database
from quadriga.store.database.damaged_files import is_sign_of_damage, set_aside_if_damaged
from quadriga.store.database.lease import Lease
from quadriga.store.database.rows import NameIds, RowBatch, read_records, storable_text
from quadriga.store.database.sqlite import database_path
from quadriga.store.journal import dead_records, journal
from quadriga.store.journal.journal_lag import CommitPace, write_offsets
from quadriga.store.maintenance.eraser import Eraser
from quadriga.store.maintenance.retention import RetentionCleaner
from quadriga.store.records.disk import try_lock
from quadriga.store.records.errors import (
    MissingPartitionError,
    NotReadyError,
    OtherVersionError,
    StoreError,
    full_text,
)
from quadriga.store.records.ids import COUNTER_BITS, IMPORT_WORKER, TIME_SHIFT, replacement_id
from quadriga.store.records.records import (
    IDEMPOTENCY_KEY,
    JournaledChange,
    JournaledRecord,
    SignalsOfImages,
    is_add_only,
    is_change,
)

BATCH_RECORDS = 10_000
"""Maximum records of a transaction: large ones, because neighbours in an index share pages."""

BATCH_BYTES = 16 << 20
POLL_S = 0.04
SMALL_BATCH = 256  # records up to which a batch is followed by a pause, as a commit takes as long as many records
CLEANUP_INTERVAL_S = 1.0  # how often finished segments are removed while nothing is journaled
MAX_BACK_OFF_S = 5.0

REPEATED_WITHIN_MS = 3_600_000
"""Time within which another server finds that a request was sent before."""

_MAX_OF_REQUESTS = 10_000
"""Inferences of requests that are read to find repeated ones, at most."""

_log = logging.getLogger(__name__)
_IMPORTED = f"{IMPORT_WORKER:04d}-"
_MARK = f'"{IDEMPOTENCY_KEY}":"'.encode()
_change_decoder = msgspec.json.Decoder(JournaledChange)
_decoder = msgspec.json.Decoder(JournaledRecord)
_standard_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_SEQ_TEXT = re.compile(rb'\{"seq":(\d{1,19}),"(?:request_id|change)":')


class _Frame(NamedTuple):
    segment: str
    seq: int
    payload: bytes
    end: int  # offset of the next frame


class Writer:
    """Commits the workers' journal to a database.

    Args:
        journal_directory: Journal of the workers. Beside it are `writer.lock`, `dead.jsonl` with the
            records that the database rejected, and `dead/` with the damaged parts of segments.
        url: The database.
        retention: Removes expired data between batches.
        is_segment_needed: Whether a committed segment has another reader that is not finished.
        lease: The numbers of the workers, which the writer holds while it runs.
        eraser: Carries out erasures between batches.
        on_commit: Called with the frames of records and changes that were committed, and begin and end in ns since 1970.
        on_wait: Called by `run` with the error when the database begins to be away or of another version, and with None
            when it answers.

    Raises:
        StoreError: Another writer works on the same journal, or the URL is no database of ours.

    `run` and `drain` raise one too where another server has the workers' numbers.
    """

    def __init__(
        self,
        journal_directory: Path,
        url: str,
        retention: RetentionCleaner | None = None,
        is_segment_needed: Callable[[Path], bool] = lambda _: False,
        *,
        lease: Lease | None = None,
        eraser: Eraser | None = None,
        on_wait: Callable[[Exception | None], object] = lambda _: None,
        on_commit: Callable[[Sequence[bytes], int, int], object] | None = None,
    ) -> None:
        self._on_commit = on_commit
        self._on_wait = on_wait
        self._reported: type | None = None  # kind of the last error, NoneType for none
        self._lease = lease
        self._retention = retention
        self._eraser = eraser
        self._directory = journal_directory
        self._is_segment_needed = is_segment_needed
        self._data_directory = journal_directory.parent
        self._journal_id = journal.journal_id(journal_directory)
        self._engine = database.open_writer(url)
        self._lock = _lock(self._data_directory / "writer.lock")
        self._new_ids: dict[int, int] = {}  # of records whose id another record had
        self._pace = CommitPace(journal_directory)
        self._offsets: dict[str, int] | None = None
        self._published_offsets: dict[str, int] | None = None  # offsets that workers can read
        self._names: NameIds | None = None
        self._was_current = False  # the tables were those of this release once
        self.records_committed = 0
        self.records_rejected = 0
        self.damaged_parts = 0
        self.freed_blob_keys: set[str] = set()
        """Blob keys that lost a reference since last collected."""

    def run(self, stop: threading.Event) -> None:
        """Commit records as they arrive until `stop` is set, then those that remain, and return.

        If the database does not answer, this retries with growing pauses; records wait in the journal.
        """
        pause_s, failing, drained_at = POLL_S, False, 0.0
        while True:
            stopping = stop.is_set()
            try:
                if (
                    stopping
                    or self._is_commit_due(at_once=failing)
                    or time.monotonic() - drained_at > CLEANUP_INTERVAL_S
                ):
                    self.drain(may_pause=not stopping)
                    drained_at = time.monotonic()
                if not stopping:
                    self._run_retention()
                    self.erase()
            except (sa.exc.DBAPIError, OSError, StoreError, UnicodeDecodeError) as error:
                if self._set_aside(error):
                    continue
                if not _may_pass(error):
                    raise
                if not failing:
                    _log.warning("the journal waits for the database: %s", full_text(error))
                failing, pause_s = True, min(pause_s * 2, MAX_BACK_OFF_S)
                self._report(error)
            else:
                if failing:
                    _log.warning("the database answers again")
                failing, pause_s = False, POLL_S
                self._report(None)
            if stopping:
                if self._lease is not None:
                    self._lease.release(self._engine)
                return
            stop.wait(pause_s)

    def _report(self, error: Exception | None) -> None:
        """Tell `on_wait` of an error that is not of the kind of the last, or that the database answers.

        While it does not, the workers have the numbers of the last run.
        """
        if error is not None and self._lease is not None:
            self._lease.remember()
        if type(error) is not self._reported:
            self._reported = type(error)
            self._on_wait(error)

    def _set_aside(self, error: Exception) -> bool:
        """Set the database aside if an error shows that its file is damaged; return whether a new one may begin."""
        path = database_path(self._engine.url)
        if path is None:
            return False
        is_wrong_schema = isinstance(error, StoreError) and not isinstance(error, NotReadyError)
        if not is_wrong_schema and not is_sign_of_damage(error):
            return False
        self._reset()
        is_ours = self._was_current or path == self._data_directory.absolute() / "store.db"
        try:
            return set_aside_if_damaged(path, is_ours=is_ours) is not None
        except OSError as failure:
            _log.error("the damaged database cannot be set aside: %s", failure)
            return False

    def _run_retention(self) -> None:
        """Do a step of the retention; its failures do not stop the writer."""
        if self._retention is None or self._names is None:
            return
        try:
            self._retention.step(self._engine, self._names, self.freed_blob_keys)
        except Exception as error:
            self._reset()
            if database.is_unavailable(error) or isinstance(error, NotReadyError):
                raise
            _log.exception("retention failed and is retried later")

    def erase(self) -> bool:
        """Do a step of the erasures; return whether any is not complete. Its failures do not stop the writer."""
        if self._eraser is None or self._names is None or self._offsets is None:
            return False
        try:
            return self._eraser.step(self._engine, self._names, self._offsets)
        except Exception as error:
            self._reset()
            if database.is_unavailable(error) or isinstance(error, NotReadyError):
                raise
            _log.exception("an erasure failed and is retried later")
            return True

    def _is_commit_due(self, *, at_once: bool) -> bool:
        """Check whether to move what is in the journal, if there is anything: now, or as the pace says."""
        is_wanted = self._pace.take_request() or at_once
        waiting_bytes = journal.lag_bytes(self._directory, self._offsets or {})
        return waiting_bytes > 0 if is_wanted else self._pace.is_due(waiting_bytes)

    def drain(self, *, may_pause: bool = False) -> int:
        """Commit everything in the journal and return the number of records.

        With `may_pause` it ends after a batch if an erasure is due, or steady load would keep that waiting; and after a small
        one, so that the next is larger.
        """
        previous_count = self.records_committed
        try:
            try:
                self._commit_journal(may_pause=may_pause)
            except NotReadyError as error:
                if self._offsets is None or isinstance(error, MissingPartitionError):
                    raise  # the tables are not right yet
                _log.warning("the journal is moved again from where it is: %s", full_text(error))
                self._reset()
                self._commit_journal()
        except Exception:
            self._reset()
            raise
        return self.records_committed - previous_count

    def _reset(self) -> None:
        self._offsets = self._names = None
        self._engine.dispose()

    def _commit_journal(self, *, may_pause: bool = False) -> None:
        journal_id = journal.journal_id(self._directory)
        if journal_id != self._journal_id:  # the folder was removed, and began anew
            self._journal_id, self._offsets = journal_id, None
        if self._offsets is None:
            self._offsets = self._begin()
            waiting_bytes = journal.lag_bytes(self._directory, self._offsets)
            if waiting_bytes and self._published_offsets is None:  # at the start alone
                _log.info("%d bytes of the journal are left from before", waiting_bytes)
        while True:
            if self._lease is not None:
                self._lease.hold(self._engine)
            self._publish(self._offsets)
            closed = [
                path for path in journal.segment_paths(self._directory) if journal.is_closed(path)
            ]
            batch = self._batch(self._offsets)
            if batch:
                self._commit(batch, self._offsets)
                self._pace.note_commit()
            if not batch or (may_pause and len(batch) < SMALL_BATCH):
                self._remove(closed, self._offsets)
                self._publish(self._offsets)
                return
            if may_pause and self._eraser is not None and self._eraser.is_due():
                self._publish(self._offsets)
                return

    def _publish(self, offsets: dict[str, int]) -> None:
        """Publish the committed offsets to the workers; on a full disk this is repeated later."""
        if offsets != self._published_offsets:
            with suppress(OSError):
                write_offsets(self._directory, offsets)
                self._published_offsets = dict(offsets)

    def close(self) -> None:
        """Close the database and release the lock for another writer."""
        self._engine.dispose()
        self._lock.close()

    def _begin(self) -> dict[str, int]:
        self._upgrade()
        existing = {path.name for path in journal.segment_paths(self._directory)}
        with self._engine.begin() as connection:
            self._names = NameIds(connection)
            offsets = database.journal_offsets(connection, self._journal_id)
            # A segment is removed before its offset, so these were finished when a writer died.
            finished = [segment for segment in offsets if segment not in existing]
            self._forget_offsets(connection, finished)
        return {segment: offset for segment, offset in offsets.items() if segment in existing}

    def _upgrade(self) -> None:
        """Migrate the tables; once they were right, wait until they are so again."""
        try:
            revisions = database.upgrade(self._engine)
        except StoreError as error:
            if not self._was_current:
                raise
            raise OtherVersionError(str(error)) from error
        if revisions.is_newer and not self._was_current:
            _log.warning(
                "the database is at revision %s of a newer version: this one, of %s, may run on it",
                revisions.database, revisions.own,
            )  # fmt: skip
        self._was_current = True

    def _batch(self, offsets: dict[str, int]) -> list[_Frame]:
        batch: list[_Frame] = []
        size_bytes = 0
        for path in journal.segment_paths(self._directory):
            position = offsets.get(path.name, 0)
            for seq, payload, end in journal.read_frames(path, position):
                start = end - len(payload) - journal.HEADER_BYTES
                if start > position:
                    self._set_part_aside(path, position, start)
                position = end
                batch.append(_Frame(path.name, seq, payload, end))
                size_bytes += len(payload)
                if len(batch) >= BATCH_RECORDS or size_bytes >= BATCH_BYTES:
                    return batch
        return batch

    def _commit(
        self, batch: list[_Frame], offsets: dict[str, int], *, is_repeated: bool = False
    ) -> None:
        ends = {frame.segment: frame.end for frame in batch}
        committed = len(batch)
        begun_ns = time.time_ns()
        try:
            self._insert(batch, ends)
        except (OSError, NotReadyError):
            raise
        except Exception as error:  # a failing record must not stop the others
            if database.is_unavailable(error):
                raise
            self._names = None
            if isinstance(error, sa.exc.IntegrityError) and not is_repeated:
                # Another server stored one of the ids meanwhile: now it is seen.
                self._commit(batch, offsets, is_repeated=True)
                return
            if len(batch) > 1:
                middle = len(batch) // 2
                self._commit(batch[:middle], offsets)
                self._commit(batch[middle:], offsets)
                return
            self._reject(batch[0], error)
            self._insert([], ends)
            committed = 0
        offsets.update(ends)
        self.records_committed += committed
        if self._on_commit is not None and committed:
            self._on_commit([frame.payload for frame in batch], begun_ns, time.time_ns())

    def _insert(self, batch: list[_Frame], ends: dict[str, int]) -> None:
        if self._names is None:
            with self._engine.connect() as connection:
                self._names = NameIds(connection)
        freed: set[str] = set()
        are_changes = [is_change(frame.payload) for frame in batch]
        exclusive = not all(is_add_only(frame.payload) for frame in compress(batch, are_changes))
        seqs = [frame.seq for frame in batch]
        with self._names.transaction(self._engine, seqs, exclusive=exclusive) as connection:
            kinds = iter(are_changes)
            for is_of_changes, frames in groupby(batch, lambda _: next(kinds)):
                if is_of_changes:
                    decoded = (_change_decoder.decode(frame.payload) for frame in frames)
                    changes = [self._with_new_ids(change) for change in decoded]
                    freed |= apply_changes(connection, self._names, changes)
                else:
                    self._add(connection, self._names, frames)
            if ends:
                offsets = [(self._key(name), end) for name, end in ends.items()]
                database.upsert(connection, "journal_offset", offsets)
        self.freed_blob_keys |= freed

    def _add(self, connection: sa.Connection, names: NameIds, frames: Iterable[_Frame]) -> None:
        """Insert records except those that exist already, as when the journal is replayed.

        A record whose id another record has is stored under a new one. Where two servers answered one request, each with
        an id of its own, the first record is stored, and the id of the other leads to it.
        """
        first_frames, repeated = _without_repeated(connection, list(frames))
        existing_ids = database.stored_ids(connection, {frame.seq for frame in first_frames})
        existing = {record.seq: record for record in read_records(connection, existing_ids)}
        new: dict[int, JournaledRecord] = {}
        for frame in first_frames:
            known = existing.get(frame.seq) or new.get(frame.seq)
            # An import keeps the id that its file gives: importing twice is importing once.
            if known is not None and frame.segment.startswith(_IMPORTED):
                continue
            record = _decoder.decode(frame.payload)
            if known is None:
                new[frame.seq] = record
            elif not _is_same(known, record):
                self._add_beside(connection, frame, record, new)
                repeated = {seq: first for seq, first in repeated.items() if first != frame.seq}
        RowBatch(names).insert(connection, [*new.values()])
        link_new(connection, [*new.values()])
        keep_repeated(connection, repeated)

    def _add_beside(
        self,
        connection: sa.Connection,
        frame: _Frame,
        record: JournaledRecord,
        new: dict[int, JournaledRecord],
    ) -> None:
        """Add a record whose id another one has under an id of the same millisecond, unless it is stored under that already.

        The id follows from the content: the same journal leads to the same id again.
        """
        standard = _standard_decoder.decode(record.standard)
        standard["acknowledged_id"] = msgspec.Raw(b'"%d"' % frame.seq)
        record = msgspec.structs.replace(
            record, standard=msgspec.Raw(msgspec.json.encode(standard))
        )
        key = zlib.crc32(frame.payload)
        for attempt in range(1 << COUNTER_BITS):
            new_id = replacement_id(frame.seq, key + attempt)
            other = new.get(new_id) or next(iter(read_records(connection, [new_id])), None)
            if other is None:
                new[new_id] = msgspec.structs.replace(record, seq=new_id)
                _log.error("id %d belongs to another record: stored as %d", frame.seq, new_id)
            if other is None or _content(other) == _content(record):
                self._new_ids[frame.seq] = new_id
                return
        raise StoreError(f"expected a free id beside {frame.seq}, got none")

    def _with_new_ids(self, change: JournaledChange) -> JournaledChange:
        """Return a change with the signals of records under the ids that these were stored with."""
        signals = change.change
        if not self._new_ids or not isinstance(signals, SignalsOfImages):
            return change
        moved = [
            msgspec.structs.replace(of_image, seq=self._new_ids.get(of_image.seq, of_image.seq))
            for of_image in signals.of
        ]
        return JournaledChange(change.seq, SignalsOfImages(moved))

    def _key(self, segment: str) -> str:
        return f"{self._journal_id}/{segment}"

    def _forget_offsets(self, connection: sa.Connection, segments: list[str]) -> None:
        keys = [self._key(segment) for segment in segments]
        database.execute_in(connection, "DELETE FROM journal_offset WHERE segment IN ({})", keys)

    def _reject(self, frame: _Frame, error: Exception) -> None:
        _log.error("record %d cannot be stored: %s", frame.seq, error)
        line = {"id": str(frame.seq), "segment": frame.segment}
        line["error"] = f"{type(error).__name__}: {error}"
        line["record"] = frame.payload.decode(errors="backslashreplace")
        with (self._data_directory / dead_records.FILE).open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
        self.records_rejected += 1

    def _remove(self, closed: list[Path], offsets: dict[str, int]) -> None:
        if journal.are_segments_held(self._directory):  # they are copied together with the database
            closed = []
        closed = [path for path in closed if not self._is_segment_needed(path)]
        # A commit to a file that is gone succeeds: only a look after it proves that it is kept.
        with self._engine.connect() as connection:
            database.check_in_place(connection)
            if closed:  # until here the journal is what survives a loss of power
                database.make_durable(connection)
        for path in closed:
            offset, size = offsets.get(path.name, 0), path.stat().st_size
            if size > offset:
                self._set_part_aside(path, offset, size)
            path.unlink()
            if offsets.pop(path.name, None) is not None:
                with self._engine.begin() as connection:
                    self._forget_offsets(connection, [path.name])

    def _set_part_aside(self, path: Path, start: int, end: int) -> None:
        """Save a damaged part of a segment to a file, once, however often it is read again."""
        target = self._data_directory / dead_records.FOLDER / f"{path.name}.{start}"
        if target.exists() and target.stat().st_size == end - start:
            return
        with path.open("rb") as file:
            file.seek(start)
            data = file.read(end - start)
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(data)
        self.damaged_parts += 1
        seqs = [match.decode() for match in _SEQ_TEXT.findall(data)]
        _log.error(
            "segment %s is damaged from byte %d to %d, with what seem to be %d records (%s): kept as %s",
            path.name, start, end, len(seqs), ", ".join(seqs[:10]), target,
        )  # fmt: skip


def _may_pass(error: Exception) -> bool:
    """Check whether an error may end by itself, so that the writer waits."""
    if isinstance(error, sa.exc.DBAPIError):
        return database.is_unavailable(error)
    return not isinstance(error, StoreError) or isinstance(error, NotReadyError)


def _lock(path: Path) -> IO[str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = try_lock(path)
    if file is None:
        holder = path.read_text().strip()
        raise StoreError(
            f"expected to be the only writer of {path.parent}, got process {holder} at work"
        )
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file


def _without_repeated(
    connection: sa.Connection, frames: list[_Frame]
) -> tuple[list[_Frame], dict[int, int]]:
    """Leave out records whose request another server has stored, under the same idempotency key, with another id.

    One server's own claims give the same id to both; so only a database that servers share is searched.

    Returns:
        The other records; and the ids of those left out, each with that of the record that it leads to.
    """
    records = [_decoder.decode(frame.payload) for frame in frames if _MARK in frame.payload]
    if connection.dialect.name == "sqlite" or not records:
        return frames, {}
    database.lock_repeated(connection)
    statement = (
        "SELECT seq FROM inference WHERE seq > ? AND request_id IN ({}) "
        f"ORDER BY seq DESC LIMIT {_MAX_OF_REQUESTS}"
    )
    requests = {storable_text(record.request_id) for record in records}
    oldest = min(record.seq for record in records) - (REPEATED_WITHIN_MS << TIME_SHIFT)
    rows = database.execute_in(connection, statement, requests, (oldest,))
    stored = sorted(
        read_records(connection, {seq for (seq,) in rows}), key=lambda record: record.seq
    )
    first: dict[Any, int] = {}
    for record in (*stored, *records):
        first.setdefault(_request_of(record), record.seq)
    to_store, leads = [], {}
    for frame in frames:
        request = _request_of(_decoder.decode(frame.payload)) if _MARK in frame.payload else None
        if request is None or first[request] == frame.seq:
            to_store.append(frame)
        else:
            leads[frame.seq] = first[request]
            _log.info("id %d is a repetition of %d", frame.seq, first[request])
    return to_store, leads


def _request_of(record: JournaledRecord) -> tuple[str, str | None] | None:
    """Return what repetitions of a request share: name by its idempotency key, and image; None without a key."""
    name = _standard_decoder.decode(record.standard).get(IDEMPOTENCY_KEY)
    return None if name is None else (bytes(name).decode(), record.input.hash)


def _is_same(known: JournaledRecord, record: JournaledRecord) -> bool:
    """Check whether a record with a known id is the known one, or comes from its request, sent twice."""
    request = _request_of(record)
    is_repeated = request is not None and request == _request_of(known)
    return is_repeated or _content(known) == _content(record)


def _content(record: JournaledRecord) -> JournaledRecord:
    """Return what two records with one id agree in if they are the same, in the form of the database.

    Metadata changes later, and retention removes images; both are left out.
    """
    image = record.input
    return msgspec.structs.replace(
        record,
        seq=0,
        request_id=storable_text(record.request_id),
        action=storable_text(record.action),
        latency_ms=round(record.latency_ms * 1000),
        input=msgspec.structs.replace(image, name=storable_text(image.name), kept=False),
        metadata=msgspec.Raw(),
    )

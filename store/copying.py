"""Copies a store into another database: SQLite to PostgreSQL, or any other pair.

Nothing is noted of how far a copy came. Day by day the ids that both sides hold are compared, and what
the target lacks is added; so a copy that was killed goes on, and one that is repeated adds what a
server has written to the source in the meantime. What inferences are found by is derived again.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from store import database, metadata
from store.comparison import DAY_IDS, INFERENCES, TIMEOUT_S, Table, day_text, days, page, summary
from store.database import Readers, run, run_in
from store.errors import StoreError
from store.query.catalog import marks
from store.records import InputReference, JournaledRecord, ModelReference
from store.rows import Names, Rows

_BATCH = 1000
"""Rows of one transaction."""

_PAGE = 20_000
"""Ids compared at once."""


_CHANGES = Table("metadata_change", "id", columns=("id", "seq", "change", "before"))
TRUTH = Table("truth", "id", columns=("id", "join_on", "value", "source", "annotations"))
FEEDBACK = Table("feedback", "id", columns=("id", "seq", "kind", "value", "comment", "source"))
_HOLDING = Table("ground_truth", "seq", "truth_id", ("seq", "truth_id"))
_TABLES = (INFERENCES, _CHANGES, TRUTH, _HOLDING, FEEDBACK)
_RECORD = """
SELECT seq, request_id, image_no, name, version, sha256, task, action, latency_us, input_name,
       input_hash, input_width, input_height, input_mime, input_kept, input_bytes, predictions, meta,
       status, standard
FROM inference JOIN model ON model.id = model_id WHERE seq IN ({})"""
_SET_ROLLUP = """
INSERT INTO rollup (model_id, minute, n, errors, latency, labels, kept_bytes)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (model_id, minute) DO UPDATE SET n = excluded.n, errors = excluded.errors,
  latency = excluded.latency, labels = excluded.labels, kept_bytes = excluded.kept_bytes"""
_MINUTES = """
SELECT minute, n, errors, latency, labels, kept_bytes FROM rollup
WHERE model_id = ? AND minute > ? AND minute <= ? ORDER BY minute LIMIT ?"""
_SET_RETENTION = """
INSERT INTO retention (model, inputs_days, inferences_days) VALUES (?, ?, ?)
ON CONFLICT (model) DO UPDATE SET inputs_days = excluded.inputs_days,
  inferences_days = excluded.inferences_days"""
_SET_OFFSET = """
INSERT INTO journal_offset (segment, "offset") VALUES (?, ?)
ON CONFLICT (segment) DO UPDATE SET "offset" = excluded."offset"
"""


class Progress(NamedTuple):
    """What a copy has done so far."""

    table: str
    day: str
    copied: dict[str, int]
    """Rows by table; inferences whose metadata changed count again."""
    removed: int
    seconds: float

    def __str__(self) -> str:
        done = ", ".join(f"{name} {n:,}" for name, n in self.copied.items() if n)
        per_second = self.copied.get("inference", 0) / max(self.seconds, 0.001)
        return (
            f"{done or 'nothing'} copied, {self.removed:,} removed, {per_second:,.0f} inferences/s"
        )


def copy(
    source: str,
    target: str,
    *,
    delete: bool = False,
    report: Callable[[Progress], None] = lambda _: None,
) -> Progress:
    """Copy all that a store holds; inferences of others in the target stay as they are.

    Args:
        source: URL of the database to copy; a server may write it at the same time.
        target: URL of the other one; it is made and its tables brought up to date.
        delete: Remove from the target what the source does not hold, or no more.
        report: Called after each transaction.

    Raises:
        StoreError: One of the two is no database of ours, or does not answer.
    """
    with _away_is_an_error():
        database.migrate(target)
        copier = _Copier(source, target, report, delete=delete)
        try:
            return copier.run()
        finally:
            copier.close()


@contextmanager
def _away_is_an_error() -> Iterator[None]:
    try:
        yield
    except sa.exc.DBAPIError as error:
        raise StoreError(f"expected the database to answer, got: {error.orig}") from error


class _Copier:
    def __init__(
        self, source: str, target: str, report: Callable[[Progress], None], *, delete: bool
    ) -> None:
        self._source = Readers(source, 1, TIMEOUT_S)
        self._target = Readers(target, 1, TIMEOUT_S)
        self._engine = database.open_writer(target)
        self._report = report
        self._delete = delete
        self._began = time.monotonic()
        self._at = ("", "")
        self._copied = {table.name: 0 for table in _TABLES} | {"rollup": 0}
        self._removed = 0
        with self._engine.connect() as connection:
            self._names = Names(connection)

    def close(self) -> None:
        self._source.close()
        self._target.close()
        self._engine.dispose()

    def run(self) -> Progress:
        # Read first: what the source has committed up to here is in the target at the end.
        offsets = self._read('SELECT segment, "offset" FROM journal_offset')
        for table in _TABLES:
            for day in self._days(table):
                self._at = (table.name, day_text(day))
                self._copy_day(table, day)
        self._copy_rollups()
        retention = self._read("SELECT model, inputs_days, inferences_days FROM retention")
        with self._engine.begin() as connection:
            for text, rows in ((_SET_RETENTION, retention), (_SET_OFFSET, offsets)):
                if rows:
                    run(connection, text, rows)
        return self._progress()

    def _progress(self) -> Progress:
        seconds = time.monotonic() - self._began
        return Progress(*self._at, self._copied.copy(), self._removed, seconds)

    def _read(self, text: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._source.snapshot() as connection:
            return [(*row,) for row in run(connection, text, (*values,))]

    def _days(self, table: Table) -> list[int]:
        sides = [self._source, self._target] if self._delete else [self._source]
        found: set[int] = set()
        for side in sides:
            with side.snapshot() as connection:
                found.update(days(connection, table))
        return sorted(found)

    def _copy_day(self, table: Table, day: int) -> None:
        with self._source.snapshot() as source, self._target.snapshot() as target:
            if summary(source, table, day) == summary(target, table, day):
                return
        position, after = day * DAY_IDS, (day + 1) * DAY_IDS
        while position < after:
            with self._source.snapshot() as source, self._target.snapshot() as target:
                there = page(source, table, position, after, _PAGE)
                end = after if len(there) < _PAGE else max(there) + 1
                here = page(target, table, position, end)
            missing = [key for key, value in there.items() if here.get(key) != value]
            for keys in _batches(missing):
                self._copy_rows(table, keys, [key for key in keys if key in here])
            if self._delete:
                for keys in _batches([key for key in here if key not in there]):
                    self._remove_rows(table, keys)
            position = end

    def _copy_rows(self, table: Table, keys: list[int], replaced: list[int]) -> None:
        """Copy rows in one transaction; those replaced are removed before."""
        if table is INFERENCES:
            records = self._records(keys)
            with self._transaction(records, alone=bool(replaced)) as connection:
                self._remove_inferences(connection, replaced)
                self._add_inferences(connection, records)
        else:
            columns = ", ".join(table.columns)
            rows = self._read(
                f"SELECT {columns} FROM {table.name} WHERE {table.key} IN ({marks(keys)})", keys
            )
            # Changes are read before what they changed, which is then as new as they, or newer.
            records = self._records({row[1] for row in rows}) if table is _CHANGES else []
            with self._transaction(records) as connection:
                self._remove_inferences(connection, [record.seq for record in records])
                self._add_inferences(connection, records)
                _remove(connection, table, replaced)
                database.insert(connection, table.name, table.columns, rows)
        self._copied[table.name] += len(keys)
        self._report(self._progress())

    def _remove_rows(self, table: Table, keys: list[int]) -> None:
        with self._transaction() as connection:
            if table is INFERENCES:
                self._remove_inferences(connection, keys)
            else:
                _remove(connection, table, keys)
        self._removed += len(keys)
        self._report(self._progress())

    @contextmanager
    def _transaction(
        self, records: Sequence[JournaledRecord] = (), *, alone: bool = True
    ) -> Iterator[sa.Connection]:
        with self._engine.connect() as connection:
            database.make_room(connection, (record.seq for record in records))
        with self._engine.begin() as connection:
            database.check_in_place(connection)
            database.take_turn(connection, alone=alone)
            self._names.use(connection)
            yield connection

    def _records(self, seqs: Iterable[int]) -> list[JournaledRecord]:
        """Read inferences of the source as they were journaled, with their metadata of today."""
        with self._source.snapshot() as connection:
            return records(connection, [*seqs])

    def _add_inferences(self, connection: sa.Connection, added: Sequence[JournaledRecord]) -> None:
        rows = Rows(self._names)
        for record in added:
            rows.add(record)
        rows.insert(connection)

    def _remove_inferences(self, connection: sa.Connection, seqs: Sequence[int]) -> None:
        """Remove inferences and what they are found by, whose keys their own metadata tells."""
        derived = Rows(self._names)
        for record in records(connection, seqs):
            paths = metadata.index(msgspec.json.decode(record.metadata))
            for table, rows in derived.metadata_rows(record.seq, paths).items():
                database.delete(connection, table, ("key", "val", "seq"), rows)
        for table in ("pred", "inference"):
            run_in(connection, f"DELETE FROM {table} WHERE seq IN ({{}})", seqs)

    def _copy_rollups(self) -> None:
        """Set the target's minutes to those of the source, with its own ids of models and labels."""
        labels = dict(self._read("SELECT id, name FROM label"))
        for model, *name in self._read("SELECT id, name, version, sha256, task FROM model"):
            self._at = ("rollup", str(name[0]))
            last = -1
            while rows := self._read(_MINUTES, (model, last, 1 << 62, _BATCH)):
                with self._transaction() as connection:
                    own = self._names.id("model", *name)
                    were = run(connection, _MINUTES, (own, last, rows[-1][0], _BATCH))
                    there = {(*row,) for row in were}
                    ours = [(*row[:4], self._relabelled(row[4], labels), row[5]) for row in rows]
                    new = [(own, *row) for row in ours if row not in there]
                    if new:
                        run(connection, _SET_ROLLUP, new)
                last = rows[-1][0]
                self._copied["rollup"] += len(new)
                self._report(self._progress())

    def _relabelled(self, counts: str, labels: dict[int, str]) -> str:
        found = {
            str(self._names.id("label", labels[int(label)])): n
            for label, n in msgspec.json.decode(counts, type=dict[str, int]).items()
        }
        return msgspec.json.encode(found).decode()


def records(connection: sa.Connection, seqs: Sequence[int]) -> list[JournaledRecord]:
    """Read inferences as they were journaled, but with their metadata of today."""
    found = []
    row: Any
    for row in run_in(connection, _RECORD, seqs):
        name, sha, width, height, mime, kept, size = row[9:16]
        image = InputReference(name, sha, width, height, mime, bool(kept), size)
        predictions, given, standard = (
            msgspec.Raw(text.encode()) for text in (row[16], row[17], row[19])
        )
        found.append(
            JournaledRecord(
                row[0], row[1], row[2], ModelReference(*row[3:6]), row[6], row[7], row[8] / 1000,
                image, predictions, given, row[18], standard,
            )
        )  # fmt: skip
    return found


def _remove(connection: sa.Connection, table: Table, keys: Sequence[int]) -> None:
    run_in(connection, f"DELETE FROM {table.name} WHERE {table.key} IN ({{}})", keys)


def _batches(keys: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(keys), _BATCH):
        yield keys[start : start + _BATCH]

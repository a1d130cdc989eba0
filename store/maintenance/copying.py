"""Copies a store into another database: SQLite to PostgreSQL, or any other pair.

Nothing is noted of how far a copy came: day by day the ids of both sides are compared, and what the target
lacks is added. So a copy that was killed goes on, and one that is repeated adds what came in the meantime.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import sqlalchemy as sa

from quadriga.store.database import database
from quadriga.store.database.database import (
    ReaderPool,
    execute,
    execute_in,
    fetch_all,
    placeholders,
)
from quadriga.store.database.rollups import decode_counts, sum_again
from quadriga.store.database.rows import NameIds, RowBatch, read_records, remove_inferences
from quadriga.store.database.schema import COLUMNS
from quadriga.store.records.ids import time_ms
from quadriga.store.records.records import json_text, timestamp_text

READ_TIMEOUT_S = 3600.0


class ComparedTable(NamedTuple):
    """A table whose key is an id, which is a time."""

    name: str
    key: str
    compared_column: str = "0"  # an integer that tells whether a row of the same key is the same


INFERENCES = ComparedTable("inference", "seq", "input_kept")


@contextmanager
def open_readers(*urls: str) -> Iterator[list[ReaderPool]]:
    """Open databases for long reads, one at a time of each, and close them in the end."""
    sides = [ReaderPool(url, 1, READ_TIMEOUT_S) for url in urls]
    try:
        yield sides
    finally:
        for side in sides:
            side.close()


def key_page(
    connection: sa.Connection, table: ComparedTable, first: int, limit: int
) -> dict[int, int]:
    """Return the keys from `first` on, up to a limit, in order, and what is compared of their rows."""
    text = (
        f"SELECT {table.key}, {table.compared_column} FROM {table.name} "
        f"WHERE {table.key} >= ? ORDER BY {table.key} LIMIT ?"
    )
    return dict(fetch_all(connection, text, (first, limit)))


def day_text(key: int) -> str:
    """Return the day of a key as `2026-01-31`."""
    return timestamp_text(time_ms(key))[:10]


def select_rows(
    connection: sa.Connection, table: ComparedTable, keys: Sequence[int]
) -> sa.CursorResult[*tuple[Any, ...]]:
    """Return the rows with these keys, with all columns."""
    columns = ", ".join(COLUMNS[table.name])
    text = f"SELECT {columns} FROM {table.name} WHERE {table.key} IN ({placeholders(keys)})"
    return execute(connection, text, (*keys,))


_BATCH = 1000  # rows of one transaction
_PAGE = 20_000  # ids of each side compared at once
_CHANGES = ComparedTable("metadata_change", "id")
TRUTH = ComparedTable("truth", "id")
FEEDBACK = ComparedTable("feedback", "id")
_SIGNALS = ComparedTable(
    "signal", "seq", "coalesce(length(picture), 0) + coalesce(length(embedding), 0)"
)
_HOLDING = ComparedTable("ground_truth", "seq", "truth_id")
_OTHER_TRUTH = ComparedTable("other_truth", "seq", "truth_id")
_REPEATED = ComparedTable("repeated_id", "seq", "first_seq")
_TABLES = (INFERENCES, _CHANGES, TRUTH, _HOLDING, _OTHER_TRUTH, FEEDBACK, _SIGNALS, _REPEATED)
_MINUTES = (
    f"SELECT {', '.join(COLUMNS['rollup'][1:])} FROM rollup"
    " WHERE model_id = ? AND minute > ? AND minute <= ? ORDER BY minute LIMIT ?"
)
_SETTINGS = ("retention", "journal_offset")


class CopyProgress(NamedTuple):
    """What a copy has done so far."""

    table: str
    day: str
    copied: dict[str, int]  # rows by table; inferences whose metadata changed count again
    removed: int
    seconds: float

    def __str__(self) -> str:
        done = ", ".join(f"{name} {n:,}" for name, n in self.copied.items() if n)
        per_second = self.copied.get("inference", 0) / max(self.seconds, 0.001)
        done = f"{done or 'nothing'} copied, {self.removed:,} removed"
        return f"{done}, {per_second:,.0f} inferences/s"


def copy_store(
    source: str,
    target: str,
    *,
    delete: bool = False,
    report: Callable[[CopyProgress], None] = lambda _: None,
) -> CopyProgress:
    """Copy all that a store holds; inferences of others in the target stay as they are.

    Args:
        source: URL of the database to copy; a server may write it at the same time.
        target: URL of the other one; it is made and its tables brought up to date.
        delete: Remove from the target what the source does not hold, or no more.
        report: Called after each transaction.

    Raises:
        StoreError: One of the two is no database of ours, or does not answer.
    """
    with database.translate_database_errors():
        database.migrate(target)
        with open_readers(source, target) as sides, database.writer_engine(target) as engine:
            return _Copier(sides, engine, report, delete=delete).run()


def count_inferences(url: str) -> int:
    """Return how many inferences a database has; raise a `StoreError` if it is none of ours, or does not answer."""
    with open_readers(url) as (reader,), reader.snapshot() as connection:
        return int(execute(connection, "SELECT count(*) FROM inference").scalar() or 0)


class _Copier:
    def __init__(
        self,
        sides: Sequence[ReaderPool],
        engine: sa.Engine,
        report: Callable[[CopyProgress], None],
        *,
        delete: bool,
    ) -> None:
        self._source, self._target = sides
        self._engine = engine
        self._report = report
        self._delete = delete
        self._began = time.monotonic()
        self._at = ("", "")
        self._copied = {table.name: 0 for table in _TABLES} | {"rollup": 0}
        self._removed = 0
        with self._engine.connect() as connection:
            self._names = NameIds(connection)

    def run(self) -> CopyProgress:
        # Read first: what the source has committed up to here is in the target at the end.
        settings = {
            table: self._read(f"SELECT {', '.join(COLUMNS[table])} FROM {table}")
            for table in _SETTINGS
        }
        for table in _TABLES:
            self._copy_table(table)
        self._copy_rollups()
        with self._engine.begin() as connection:
            for name, rows in settings.items():
                database.upsert(connection, name, rows)
        return self._progress()

    def _progress(self) -> CopyProgress:
        seconds = time.monotonic() - self._began
        return CopyProgress(*self._at, self._copied.copy(), self._removed, seconds)

    def _read(self, text: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._source.snapshot() as connection:
            return [(*row,) for row in execute(connection, text, (*values,))]

    def _copy_table(self, table: ComparedTable) -> None:
        position: int | None = 0
        while position is not None:
            with self._source.snapshot() as source, self._target.snapshot() as target:
                pages = [key_page(side, table, position, _PAGE) for side in (source, target)]
            if not (pages[0] or self._delete):
                return
            # Behind the last key of a full page there may be more on its side.
            ends = [max(page) + 1 for page in pages if len(page) == _PAGE]
            position = min(ends, default=None)
            source_keys, target_keys = (
                {key: value for key, value in page.items() if position is None or key < position}
                for page in pages
            )
            self._at = (table.name, day_text(next(iter({**source_keys, **target_keys}), 0)))
            missing = [key for key, value in source_keys.items() if target_keys.get(key) != value]
            for keys in _batches(missing):
                self._copy_rows(table, keys, [key for key in keys if key in target_keys])
            if self._delete:
                for keys in _batches([key for key in target_keys if key not in source_keys]):
                    with self._names.transaction(self._engine, exclusive=True) as connection:
                        self._remove(connection, table, keys)
                    self._removed += len(keys)
                    self._report(self._progress())

    def _copy_rows(self, table: ComparedTable, keys: list[int], replaced: list[int]) -> None:
        """Copy rows in one transaction; those replaced are removed before."""
        rows: list[tuple[Any, ...]] = []
        inferences: Collection[int] = keys
        with self._source.snapshot() as connection:
            if table is not INFERENCES:
                rows = [(*row,) for row in select_rows(connection, table, keys)]
                # What changes changed is as new as they.
                inferences = {row[1] for row in rows} if table is _CHANGES else ()
            added = read_records(connection, inferences)
        seqs = [record.seq for record in added]
        alone = table is not INFERENCES or bool(replaced)
        with self._names.transaction(self._engine, seqs, exclusive=alone) as connection:
            if table is _CHANGES:
                remove_inferences(connection, self._names, seqs)
            self._remove(connection, table, replaced)
            RowBatch(self._names).insert(connection, added)
            database.insert(connection, table.name, rows)
        self._copied[table.name] += len(keys)
        self._report(self._progress())

    def _remove(self, connection: sa.Connection, table: ComparedTable, keys: list[int]) -> None:
        if table is INFERENCES:
            remove_inferences(connection, self._names, keys)
        else:
            execute_in(connection, f"DELETE FROM {table.name} WHERE {table.key} IN ({{}})", keys)

    def _copy_rollups(self) -> None:
        """Set the target's minutes to those of the source, with its own ids of models and labels."""
        labels = dict(self._read("SELECT id, name FROM label"))
        for model, *name in self._read("SELECT id, name, version, sha256, task, team FROM model"):
            self._at = ("rollup", str(name[0]))
            last = -1
            while rows := self._read(_MINUTES, (model, last, 1 << 62, _BATCH)):
                with self._names.transaction(self._engine, exclusive=True) as connection:
                    own = self._names.id("model", *name)
                    were = execute(connection, _MINUTES, (own, last, rows[-1][0], _BATCH))
                    there = {(*row,) for row in were}
                    ours = [
                        (*row[:4], self._relabelled(row[4], labels, name[-1]), row[5])
                        for row in rows
                    ]
                    new = [(own, *row) for row in ours if row not in there]
                    database.upsert(connection, "rollup", new)
                    sum_again(connection, [row[:2] for row in new])
                last = rows[-1][0]
                self._copied["rollup"] += len(new)
                self._report(self._progress())

    def _relabelled(self, counts: str, labels: dict[int, str], team: str) -> str:
        counts_by_label = decode_counts(counts).items()
        return json_text(
            {self._names.id("label", labels[label], team): n for label, n in counts_by_label}
        )


def _batches(keys: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(keys), _BATCH):
        yield keys[start : start + _BATCH]

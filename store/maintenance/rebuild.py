"""Rebuilds index tables and rollups from the rows of inferences, while servers are running.

Works in small steps, with pauses in which the writers proceed. Repeating a step has no further effect, so
an interrupted rebuild continues where it stopped. First missing index rows are added, then index rows
without an inference are removed, then the inferences are counted again; counts of inferences that
retention removed stay unchanged.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa

from quadriga.store.database import database, rollups
from quadriga.store.database.database import execute, execute_in
from quadriga.store.database.rollups import MINUTE_MS, Tally
from quadriga.store.database.rows import DERIVED_FROM, NameIds, derived_rows
from quadriga.store.database.schema import INDEX_TABLES, key_columns
from quadriga.store.maintenance.retention import limits_of
from quadriga.store.records.disk import write_atomically
from quadriga.store.records.ids import LARGEST_ID, smallest_id_at
from quadriga.store.records.redaction import redact

STEP_ROWS = 500
MINUTES_AT_ONCE = 50

_FIRST: dict[str, list[Any]] = {
    "inference": [-1],
    "meta_num": [-1, 0.0, -1],
    "meta_str": [-1, "", -1],
    "pred": [-1, -1, -1],
    "rollup": [-1, -1],
}
"""Tables in the order of the rebuild, and the key before the first row of each."""


class RebuildProgress(msgspec.Struct, frozen=True):
    """Progress of a rebuild."""

    database: str
    table: str
    after: list[Any]  # key of the last processed row


def rebuild(url: str, state_path: Path, on_progress: Callable[[RebuildProgress], None]) -> None:
    """Rebuild the derived tables of a database, whose tables are up to date.

    The file `state_path` holds the progress during the rebuild; `on_progress` is called after every step.

    Raises:
        NotReadyError: The database does not exist, or its tables are not up to date.
    """
    with closing(database.ReaderPool(url, connections=1)) as readers, readers.snapshot():
        pass  # checks that it exists and is up to date
    state_path.parent.mkdir(parents=True, exist_ok=True)
    name = redact(sa.make_url(url).render_as_string(hide_password=True))
    tables = list(_FIRST)
    progress = _read(state_path, name) or RebuildProgress(name, tables[0], _FIRST[tables[0]])
    with database.writer_engine(url) as engine:
        with engine.begin() as connection:
            names = NameIds(connection)
        while True:
            started_s = time.monotonic()
            next_key = _step(engine, names, progress)
            if next_key is None:
                remaining_tables = tables[tables.index(progress.table) + 1 :]
                if not remaining_tables:
                    break
                progress = RebuildProgress(name, remaining_tables[0], _FIRST[remaining_tables[0]])
            else:
                progress = RebuildProgress(name, progress.table, next_key)
            write_atomically(state_path, msgspec.msgpack.encode(progress))
            on_progress(progress)
            time.sleep(min(time.monotonic() - started_s, 1.0))  # lets the writers proceed
    state_path.unlink(missing_ok=True)


def _step(engine: sa.Engine, names: NameIds, progress: RebuildProgress) -> list[Any] | None:
    """Do one step and return the key of its last row, or None at the end of the table."""
    with names.transaction(engine, exclusive=True) as connection:
        if progress.table == "inference":
            return _add(connection, names, progress.after)
        if progress.table == "rollup":
            return _count(connection, progress.after)
        return _remove(connection, names, progress.table, progress.after)


def _add(connection: sa.Connection, names: NameIds, last_key: list[Any]) -> list[Any] | None:
    """Add the missing index rows of the next inferences."""
    statement = f"{DERIVED_FROM} WHERE i.seq > ? ORDER BY i.seq LIMIT ?"
    inferences = execute(connection, statement, (*last_key, STEP_ROWS)).all()
    rows = derived_rows(names, inferences)
    for table in INDEX_TABLES:
        database.upsert(connection, table, sorted(rows[table]))
    return [inferences[-1][0]] if inferences else None


def _remove(
    connection: sa.Connection, names: NameIds, table: str, last_key: list[Any]
) -> list[Any] | None:
    """Remove those of the next index rows that belong to no inference."""
    key = ", ".join(key_columns(table))
    statement = f"SELECT {key} FROM {table} WHERE ({key}) > (?, ?, ?) ORDER BY {key} LIMIT ?"
    index_rows = [(*row,) for row in execute(connection, statement, (*last_key, 2 * STEP_ROWS))]
    statement = f"{DERIVED_FROM} WHERE i.seq IN ({{}})"
    rows = derived_rows(names, execute_in(connection, statement, {row[2] for row in index_rows}))
    expected = {row[:3] for row in rows[table]}
    database.delete(connection, table, [row for row in index_rows if row not in expected])
    return list(index_rows[-1]) if index_rows else None


def _count(connection: sa.Connection, last_key: list[Any]) -> list[Any] | None:
    keys: list[tuple[int, int]] = []
    count = 0
    for key in _minutes(connection, *last_key):
        keys.append(key)
        tally = _tally(connection, *key)
        (stored,) = rollups.lock_tallies(connection, [key]).values()
        if stored != tally:
            rollups.write_tallies(connection, {key: tally})
        count += tally.n
        if count > STEP_ROWS or len(keys) >= MINUTES_AT_ONCE:
            break
    rollups.sum_again(connection, keys)
    return list(keys[-1]) if keys else None


def _minutes(connection: sa.Connection, model_id: int, minute: int) -> Iterator[tuple[int, int]]:
    """Yield the following models and minutes that have inferences, or a tally to replace."""
    limits = limits_of(connection, time.time_ns() // 1_000_000)
    cuts = {limit.model_id: limit.inferences for limit in limits}
    models = execute(connection, "SELECT id FROM model WHERE id >= ? ORDER BY id", (model_id,))
    for other_id in models.scalars().all():
        oldest = _minute_from(connection, other_id, 0)
        if oldest is None:
            continue
        start = minute + 1 if other_id == model_id else 0
        start = max(start, oldest, cuts.get(other_id, 0))  # before, retention has removed rows
        while (next_minute := _next(connection, other_id, start)) is not None:
            yield other_id, next_minute
            start = next_minute + 1


def _next(connection: sa.Connection, model_id: int, minute: int) -> int | None:
    statement = "SELECT min(minute) FROM rollup WHERE model_id = ? AND minute >= ?"
    counted_minute = execute(connection, statement, (model_id, minute)).scalar()
    minutes = (counted_minute, _minute_from(connection, model_id, minute))
    return min((candidate for candidate in minutes if candidate is not None), default=None)


def _minute_from(connection: sa.Connection, model_id: int, minute: int) -> int | None:
    """Return the first minute at or after `minute` with an inference, or None."""
    statement = "SELECT seq FROM inference WHERE model_id = ? AND seq >= ? ORDER BY seq LIMIT 1"
    seq = execute(connection, statement, (model_id, smallest_id_at(minute * MINUTE_MS))).scalar()
    return None if seq is None else rollups.minute_of(seq)


def _tally(connection: sa.Connection, model_id: int, minute: int) -> Tally:
    start_id = smallest_id_at(minute * MINUTE_MS)
    id_range = (model_id, start_id, min(smallest_id_at((minute + 1) * MINUTE_MS), LARGEST_ID))
    tally = Tally()
    condition = "WHERE model_id = ? AND seq >= ? AND seq < ?"
    statement = f"SELECT status, latency_us, input_kept, input_bytes FROM inference {condition}"
    for row in execute(connection, statement, id_range):
        tally.count(*row)
    statement = (
        "SELECT p.label, sum(p.n) FROM pred AS p JOIN inference AS i ON i.seq = p.seq"
        f" {condition.replace('seq', 'i.seq')} AND p.seq >= ? AND p.seq < ? GROUP BY p.label"
    )
    labels = execute(connection, statement, (*id_range, *id_range[1:]))
    for label, n in labels:
        tally.count_label(label, int(n))
    return tally


def _read(state_path: Path, name: str) -> RebuildProgress | None:
    try:
        progress = msgspec.msgpack.decode(state_path.read_bytes(), type=RebuildProgress)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
    return progress if progress.database == name and progress.table in _FIRST else None

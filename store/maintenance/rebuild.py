"""Derives again what inferences are found by and counted in, from their rows, while servers serve.

In small steps, with pauses in which the writers go on. A step that is done again does the same, so
a rebuild that was interrupted goes on where it was. First rows get what they lack, then what no row
has is removed, then inferences are counted again; counts of what retention removed stay as they
are.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa

from quadriga.store import database, rollups
from quadriga.store.database import execute, execute_in
from quadriga.store.disk import write_atomically
from quadriga.store.ids import LARGEST_ID, smallest_id_at
from quadriga.store.maintenance.retention import limits_of
from quadriga.store.rollups import MINUTE_MS, Tally
from quadriga.store.rows import NameIds, derived_rows
from quadriga.store.schema import INDEX_TABLES, key_columns

STEP_ROWS = 500
MINUTES_AT_ONCE = 50

_FIRST: dict[str, list[Any]] = {
    "inference": [-1],
    "meta_num": [-1, 0.0, -1],
    "meta_str": [-1, "", -1],
    "pred": [-1, -1, -1],
    "rollup": [-1, -1],
}
"""Tables in the order in which they are gone through, and where each begins."""


class RebuildProgress(msgspec.Struct, frozen=True):
    """How far a rebuild is."""

    database: str
    table: str
    after: list[Any]  # the key of the last row looked at


def rebuild(url: str, state: Path, show: Callable[[RebuildProgress], None]) -> None:
    """Rebuild the derived tables of a database, whose tables are up to date.

    The file `state` holds the progress while there is some, and is removed at the end; `show` is
    called after every step.

    Raises:
        NotReadyError: The database is not there, or its tables are not up to date.
    """
    with closing(database.ReaderPool(url, connections=1)) as readers, readers.snapshot():
        pass  # it is there, and up to date
    state.parent.mkdir(parents=True, exist_ok=True)
    name = sa.make_url(url).render_as_string(hide_password=True)
    tables = list(_FIRST)
    progress = _read(state, name) or RebuildProgress(name, tables[0], _FIRST[tables[0]])
    with database.writer_engine(url) as engine:
        with engine.begin() as connection:
            names = NameIds(connection)
        while True:
            began = time.monotonic()
            after = _step(engine, names, progress)
            if after is None:
                following = tables[tables.index(progress.table) + 1 :]
                if not following:
                    break
                progress = RebuildProgress(name, following[0], _FIRST[following[0]])
            else:
                progress = RebuildProgress(name, progress.table, after)
            write_atomically(state, msgspec.msgpack.encode(progress))
            show(progress)
            time.sleep(min(time.monotonic() - began, 1.0))  # in which the writers go on
    state.unlink(missing_ok=True)


def _step(engine: sa.Engine, names: NameIds, progress: RebuildProgress) -> list[Any] | None:
    """Do one step and return where it ended; None at the end of the table."""
    with names.transaction(engine, exclusive=True) as connection:
        if progress.table == "inference":
            return _add(connection, names, progress.after)
        if progress.table == "rollup":
            return _count(connection, progress.after)
        return _remove(connection, names, progress.table, progress.after)


def _add(connection: sa.Connection, names: NameIds, after: list[Any]) -> list[Any] | None:
    """Give the next rows what they are found by and lack."""
    text = "SELECT seq, meta, predictions FROM inference WHERE seq > ? ORDER BY seq LIMIT ?"
    found = execute(connection, text, (*after, STEP_ROWS)).all()
    rows = derived_rows(names, found)
    for table in INDEX_TABLES:
        database.upsert(connection, table, sorted(rows[table]))
    return [found[-1][0]] if found else None


def _remove(
    connection: sa.Connection, names: NameIds, table: str, after: list[Any]
) -> list[Any] | None:
    """Remove those of the next rows of an index that no inference has."""
    key = ", ".join(key_columns(table))
    text = f"SELECT {key} FROM {table} WHERE ({key}) > (?, ?, ?) ORDER BY {key} LIMIT ?"
    found = [(*row,) for row in execute(connection, text, (*after, 2 * STEP_ROWS))]
    text = "SELECT seq, meta, predictions FROM inference WHERE seq IN ({})"
    rows = derived_rows(names, execute_in(connection, text, {row[2] for row in found}))
    right = {row[:3] for row in rows[table]}
    database.delete(connection, table, [row for row in found if row not in right])
    return list(found[-1]) if found else None


def _count(connection: sa.Connection, after: list[Any]) -> list[Any] | None:
    keys: list[tuple[int, int]] = []
    counted = 0
    for key in _minutes(connection, *after):
        keys.append(key)
        tally = _tally(connection, *key)
        (there,) = rollups.lock_tallies(connection, [key]).values()
        if there != tally:
            rollups.write_tallies(connection, {key: tally})
        counted += tally.n
        if counted > STEP_ROWS or len(keys) >= MINUTES_AT_ONCE:
            break
    return list(keys[-1]) if keys else None


def _minutes(connection: sa.Connection, model_id: int, minute: int) -> Iterator[tuple[int, int]]:
    """Yield models and minutes behind one, of which there is a row or a count to be replaced."""
    limits = limits_of(connection, time.time_ns() // 1_000_000)
    cuts = {limit.model_id: limit.inferences for limit in limits}
    models = execute(connection, "SELECT id FROM model WHERE id >= ? ORDER BY id", (model_id,))
    for number in models.scalars().all():
        oldest = _minute_from(connection, number, 0)
        if oldest is None:
            continue
        at = minute + 1 if number == model_id else 0
        at = max(at, oldest, cuts.get(number, 0))  # before, retention has removed rows
        while (found := _next(connection, number, at)) is not None:
            yield number, found
            at = found + 1


def _next(connection: sa.Connection, model_id: int, minute: int) -> int | None:
    text = "SELECT min(minute) FROM rollup WHERE model_id = ? AND minute >= ?"
    counted = execute(connection, text, (model_id, minute)).scalar()
    found = (counted, _minute_from(connection, model_id, minute))
    return min((one for one in found if one is not None), default=None)


def _minute_from(connection: sa.Connection, model_id: int, minute: int) -> int | None:
    """Return the first minute from one on of which there is an inference."""
    text = "SELECT seq FROM inference WHERE model_id = ? AND seq >= ? ORDER BY seq LIMIT 1"
    seq = execute(connection, text, (model_id, smallest_id_at(minute * MINUTE_MS))).scalar()
    return None if seq is None else rollups.minute_of(seq)


def _tally(connection: sa.Connection, model_id: int, minute: int) -> Tally:
    first = smallest_id_at(minute * MINUTE_MS)
    window = (model_id, first, min(smallest_id_at((minute + 1) * MINUTE_MS), LARGEST_ID))
    tally = Tally()
    where = "WHERE model_id = ? AND seq >= ? AND seq < ?"
    text = f"SELECT status, latency_us, input_kept, input_bytes FROM inference {where}"
    for row in execute(connection, text, window):
        tally.count(*row)
    text = (
        "SELECT p.label, sum(p.n) FROM pred AS p JOIN inference AS i ON i.seq = p.seq"
        f" {where.replace('seq', 'i.seq')} AND p.seq >= ? AND p.seq < ? GROUP BY p.label"
    )
    labels = execute(connection, text, (*window, *window[1:]))
    for label, n in labels:
        tally.count_label(label, int(n))
    return tally


def _read(state: Path, name: str) -> RebuildProgress | None:
    try:
        progress = msgspec.msgpack.decode(state.read_bytes(), type=RebuildProgress)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
    return progress if progress.database == name and progress.table in _FIRST else None

"""What two stores hold, compared day by day."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from blake3 import blake3

from quadriga.store.database.database import ReaderPool, execute, placeholders
from quadriga.store.database.schema import COLUMNS
from quadriga.store.records.ids import TIME_SHIFT, time_ms

IDS_PER_DAY = 86_400_000 << TIME_SHIFT  # ids of one day in UTC; the first day begins at 0
READ_TIMEOUT_S = 3600.0
_PAGE = 5000
_ROWS = """
SELECT i.seq, i.predictions, i.meta, t.annotations
FROM inference i LEFT JOIN ground_truth g ON g.seq = i.seq LEFT JOIN truth t ON t.id = g.truth_id
WHERE i.seq >= ? AND i.seq < ? ORDER BY i.seq LIMIT ?"""


class ComparedTable(NamedTuple):
    """A table whose key is an id, which is a time."""

    name: str
    key: str
    compared_column: str = "0"  # an integer that tells whether a row of the same key is the same


INFERENCES = ComparedTable("inference", "seq", "input_kept")


class DaySum(NamedTuple):
    """What one side holds of a day."""

    inferences: int
    checksum: int  # 64 bits, over (id, predictions, metadata, ground truth) of each


class DayComparison(NamedTuple):
    """A day on both sides."""

    day: str
    source: DaySum
    target: DaySum


@contextmanager
def open_readers(*urls: str) -> Iterator[list[ReaderPool]]:
    """Open databases for long reads, one at a time of each, and close them in the end."""
    sides = [ReaderPool(url, 1, READ_TIMEOUT_S) for url in urls]
    try:
        yield sides
    finally:
        for side in sides:
            side.close()


def days_with_rows(sides: Iterable[ReaderPool], table: ComparedTable) -> list[int]:
    """Return the days, since that of the first id, on which a table has rows on any side, in order."""
    text = f"SELECT min({table.key}) FROM {table.name} WHERE {table.key} >= ?"
    days: set[int] = set()
    for side in sides:
        position = 0
        with side.snapshot() as connection:
            while (first := execute(connection, text, (position,)).scalar()) is not None:
                days.add(int(first) // IDS_PER_DAY)
                position = (int(first) // IDS_PER_DAY + 1) * IDS_PER_DAY
    return sorted(days)


def day_text(day: int) -> str:
    """Return a day as `2026-01-31`."""
    return datetime.fromtimestamp(time_ms(day * IDS_PER_DAY) / 1000, UTC).date().isoformat()


def day_summary(connection: sa.Connection, table: ComparedTable, day: int) -> tuple[int, ...]:
    """Return what differs between two sides where their rows of a day differ."""
    key, compared_column = table.key, table.compared_column
    text = (
        f"SELECT count(*), sum({key} % 2147483647), sum(({key} % 46337) * ({compared_column} % 46337 + 1)) "
        f"FROM {table.name} WHERE {key} >= ? AND {key} < ?"
    ).replace("%", "%%" if connection.dialect.name == "postgresql" else "%")
    summary = execute(connection, text, (day * IDS_PER_DAY, (day + 1) * IDS_PER_DAY)).one()
    return tuple(int(value or 0) for value in summary)


def key_page(
    connection: sa.Connection,
    table: ComparedTable,
    first: int,
    stop: int,
    *,
    limit: int | None = None,
) -> dict[int, int]:
    """Return keys, from `first` on and below `stop`, and what is compared of their rows."""
    text = (
        f"SELECT {table.key}, {table.compared_column} FROM {table.name} "
        f"WHERE {table.key} >= ? AND {table.key} < ? ORDER BY {table.key}"
    )
    if limit is not None:
        text += f" LIMIT {limit}"
    rows = execute(connection, text, (first, stop))
    return {int(key): int(value) for key, value in rows}


def select_rows(
    connection: sa.Connection, table: ComparedTable, keys: Sequence[int]
) -> sa.CursorResult[*tuple[Any, ...]]:
    """Return the rows with these keys, with all columns."""
    columns = ", ".join(COLUMNS[table.name])
    text = f"SELECT {columns} FROM {table.name} WHERE {table.key} IN ({placeholders(keys)})"
    return execute(connection, text, (*keys,))


def compare_stores(
    source: str, target: str, report: Callable[[DayComparison], None] = lambda _: None
) -> list[DayComparison]:
    """Compare two stores, by URL, and return the days on which they differ; reports after each day.

    Raises:
        StoreError: One of the two is no database of ours, or does not answer.
    """
    different = []
    with open_readers(source, target) as sides:
        for day in days_with_rows(sides, INFERENCES):
            compared = DayComparison(day_text(day), *(_sum(side, day) for side in sides))
            report(compared)
            if compared.source != compared.target:
                different.append(compared)
    return different


def _sum(side: ReaderPool, day: int) -> DaySum:
    inferences = checksum = 0
    with side.snapshot() as connection:
        for seq, *texts in _rows(connection, day * IDS_PER_DAY, (day + 1) * IDS_PER_DAY):
            texts_of_row = [str(seq), *("" if text is None else text for text in texts)]
            digest = blake3("\0".join(texts_of_row).encode()).digest(8)
            inferences += 1
            checksum += int.from_bytes(digest, "little")
    return DaySum(inferences, checksum & 0xFFFF_FFFF_FFFF_FFFF)


def _rows(connection: sa.Connection, position: int, stop: int) -> Iterator[tuple[Any, ...]]:
    rows: Any
    while rows := execute(connection, _ROWS, (position, stop, _PAGE)).all():
        yield from rows
        position = int(rows[-1][0]) + 1

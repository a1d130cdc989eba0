"""Sends a ClickHouse what a database holds already: what was stored before the journal was sent too."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import sqlalchemy as sa
from clickhouse_connect.driver.exceptions import Error

from store.database import Readers, marks, run
from store.errors import StoreError
from store.moving.clickhouse import connect, insert, missing
from store.moving.clickhouse_rows import Row, inference
from store.moving.comparison import (
    DAY_IDS,
    INFERENCES,
    Table,
    day_text,
    days,
    page,
    reading,
    summary,
)
from store.moving.copying import FEEDBACK, TRUTH, Progress, records

_PAGE = 5000


def copy(source: str, url: str, report: Callable[[Progress], None] = lambda _: None) -> Progress:
    """Send inferences, as their metadata is today, truth and feedback; reports after each insert.

    Days of which ClickHouse holds as much as the database are passed over, and of the others it is
    sent what it lacks, so a copy that was killed goes on when it is repeated.

    Raises:
        StoreError: The source is no database of ours, or one of the two does not answer.
    """
    began = time.monotonic()
    progress = Progress("", "", {}, 0, 0.0)
    try:
        with reading(source) as (readers,):
            client = connect(url)
            for table in (INFERENCES, TRUTH, FEEDBACK):
                sent = 0
                for day in days([readers], table):
                    for rows in _missing(readers, client, table, day):
                        insert(client, table.name, rows)
                        sent += len(rows)
                        copied = {**progress.copied, table.name: sent}
                        seconds = time.monotonic() - began
                        progress = Progress(table.name, day_text(day), copied, 0, seconds)
                        report(progress)
    except Error as error:
        raise StoreError(f"expected ClickHouse to answer, got: {error}") from error
    return progress


def _missing(readers: Readers, client: Any, table: Table, day: int) -> Iterator[list[Row]]:
    """Yield the rows of a day that are not there, some at a time."""
    position, after = day * DAY_IDS, (day + 1) * DAY_IDS
    text = f"SELECT uniqExact({table.key}) FROM {table.name} WHERE {table.key} "
    there = int(client.command(f"{text} >= {position} AND {table.key} < {after}"))
    with readers.snapshot() as connection:
        if summary(connection, table, day)[0] <= there:
            return
    while True:
        with readers.snapshot() as connection:
            keys = [*page(connection, table, position, after, _PAGE)]
            if not keys:
                return
            rows = _rows(connection, table, keys)
        yield missing(client, table.name, rows) if there else rows
        position = keys[-1] + 1


def _rows(connection: sa.Connection, table: Table, keys: list[int]) -> list[Row]:
    if table is INFERENCES:
        return [inference(record) for record in records(connection, keys)]
    columns = ", ".join(table.columns)
    text = f"SELECT {columns} FROM {table.name} WHERE {table.key} IN ({marks(keys)})"
    return [dict(row) for row in run(connection, text, (*keys,)).mappings()]

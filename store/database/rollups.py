"""Rollups: counts per model and minute, hour, day and all time, updated by the writer in the transaction that stores the rows.

Counts of minutes are in the table `rollup`, their sums over longer periods in `rollup_sum`. They outlive the rows
that retention removes, because they count what was served. Rows that a user deletes are subtracted.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from itertools import chain

import msgspec
import sqlalchemy as sa

from quadriga.store.database.database import execute, execute_in, fetch_all, placeholders, upsert
from quadriga.store.database.schema import COLUMNS, key_columns
from quadriga.store.records.ids import time_ms
from quadriga.store.records.records import json_text

MINUTE_MS = 60_000
HOUR, DAY = 60, 1440  # minutes
ALL_TIME = DAY << 30
"""Minutes from 1970 to a time beyond all ids."""

PERIODS = (HOUR, DAY, ALL_TIME)
"""Minutes of the periods of `rollup_sum`, each a multiple of the one before; they begin at multiples since 1970."""

BUCKET_GROWTH = 1.02
"""Growth of the sketch's buckets: a latency is known to (1.02 - 1) / (1.02 + 1), 0.99 %."""

FIRST_ERROR = 500  # the smallest status that counts as an error
_LOG_GROWTH = math.log(BUCKET_GROWTH)
_ZERO = -1
"""Bucket of less than a microsecond; bucket `i` holds values above BUCKET_GROWTH^(i-1), up to BUCKET_GROWTH^i."""

_KEYS_AT_ONCE = 1000
_counts = msgspec.json.Decoder(dict[int, int])


class Tally(msgspec.Struct):
    """Counts of a set of inferences."""

    n: int = 0
    errors: int = 0  # those with a status of `FIRST_ERROR` or more
    latency: dict[int, int] = {}  # inferences by bucket of the sketch
    labels: dict[int, int] = {}  # predictions by id of their label
    kept_bytes: int = 0  # size of stored inputs, see `kept_size`

    def count(
        self, status: int, latency_us: int, inputs_kept: int = 0, size: int | None = None
    ) -> None:
        """Count one inference; `kept` and `size` of its input as for `kept_size`."""
        self.n += 1
        self.errors += status >= FIRST_ERROR
        bucket = latency_bucket(latency_us)
        self.latency[bucket] = self.latency.get(bucket, 0) + 1
        self.kept_bytes += kept_size(inputs_kept, size)

    def count_label(self, label: int, n: int) -> None:
        """Count predictions with a label."""
        self.labels[label] = self.labels.get(label, 0) + n

    def add(self, tally: "Tally", sign: int = 1) -> None:
        """Add another tally, or subtract it (sign -1); nothing falls below 0."""
        self.n = max(self.n + sign * tally.n, 0)
        self.errors = max(self.errors + sign * tally.errors, 0)
        self.kept_bytes = max(self.kept_bytes + sign * tally.kept_bytes, 0)
        _add(self.latency, tally.latency, sign)
        _add(self.labels, tally.labels, sign)

    def latency_ms(self, quantile: float) -> float | None:
        """Return the latency at a quantile, by nearest rank.

        Within 1 % of the exact value; None if nothing was counted.
        """
        remaining = max(math.ceil(quantile * sum(self.latency.values())), 1)
        for bucket in sorted(self.latency):
            remaining -= self.latency[bucket]
            if remaining <= 0:
                return _middle_us(bucket) / 1000
        return None

    def mean_latency_ms(self) -> float | None:
        """Return the mean latency, within 1 % of the exact value; None if nothing was counted."""
        count = sum(self.latency.values())
        total_us = sum(_middle_us(bucket) * n for bucket, n in self.latency.items())
        return total_us / count / 1000 if count else None


class RollupChanges:
    """Changes of the rollups in one transaction."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[int, ...], Tally] = defaultdict(Tally)

    def tally_of(self, model_id: int, seq: int) -> Tally:
        """Return the tally of the model and minute of an inference."""
        return self._tallies[model_id, minute_of(seq)]

    def apply(self, connection: sa.Connection, sign: int = 1) -> None:
        """Add to the stored tallies, or subtract (sign -1); the last step of a transaction.

        If several servers share a database, the rows are locked, in order, until the commit.
        """
        sums: dict[tuple[int, ...], list[Tally]] = defaultdict(list)
        for (model_id, minute), change in self._tallies.items():
            if change.n:  # sums have no sizes of inputs
                for period in PERIODS:
                    sums[model_id, period, minute - minute % period].append(change)
        minutes = {key: [change] for key, change in self._tallies.items()}
        for table, changes in (("rollup", minutes), ("rollup_sum", sums)):
            tallies = lock_tallies(connection, changes, table)
            for key, tally in tallies.items():
                for change in changes[key]:
                    tally.add(change, sign)
            write_tallies(connection, tallies, table)


def subtract(connection: sa.Connection, seqs: Collection[int]) -> None:
    """Subtract inferences that this transaction, which is exclusive, is about to delete."""
    counts, tallies = RollupChanges(), {}
    columns = "seq, model_id, status, latency_us, input_kept, input_bytes"
    statement = f"SELECT {columns} FROM inference WHERE seq IN ({{}})"
    for seq, model_id, *values in execute_in(connection, statement, seqs):
        tallies[seq] = counts.tally_of(model_id, seq)
        tallies[seq].count(*values)
    statement = "SELECT seq, label, n FROM pred WHERE seq IN ({})"
    for seq, label, n in execute_in(connection, statement, seqs):
        if seq in tallies:
            tallies[seq].count_label(label, n)
    counts.apply(connection, -1)


def drop_input_sizes(
    connection: sa.Connection, rows: Iterable[tuple[int, int, int | None]]
) -> None:
    """Subtract inputs from `kept_bytes`, in the exclusive transaction that marks them as removed.

    Each row has the id of the inference, the id of its model and the size in bytes.
    """
    counts = RollupChanges()
    for seq, model_id, size in rows:
        counts.tally_of(model_id, seq).kept_bytes += kept_size(True, size)
    counts.apply(connection, -1)


def lock_tallies(
    connection: sa.Connection, keys: Iterable[tuple[int, ...]], table: str = "rollup"
) -> dict[tuple[int, ...], Tally]:
    """Return the tallies of the keys of a table, empty ones of missing rows, locked until the commit."""
    columns, key_list = ", ".join(COLUMNS[table]), ", ".join(key_columns(table))
    width, zeros = len(key_columns(table)), (0, 0, "{}", "{}", 0)
    ordered = sorted(keys)
    tallies = {key: Tally() for key in ordered}
    for start in range(0, len(ordered), _KEYS_AT_ONCE):
        chunk = ordered[start : start + _KEYS_AT_ONCE]
        for_update = ""
        if connection.dialect.name == "postgresql":  # what is locked has to be there
            rows = [(*key, *zeros)[: len(COLUMNS[table])] for key in chunk]
            empty = ", ".join([f"({placeholders(rows[0])})"] * len(rows))
            statement = f"INSERT INTO {table} ({columns}) VALUES {empty} ON CONFLICT DO NOTHING"
            execute(connection, statement, (*chain.from_iterable(rows),))
            for_update = " FOR UPDATE"
        values = ", ".join([f"({placeholders(chunk[0])})"] * len(chunk))
        statement = f"SELECT {columns} FROM {table} WHERE ({key_list}) IN (VALUES {values})"
        statement += f" ORDER BY {key_list}{for_update}"
        for row in fetch_all(connection, statement, (*chain.from_iterable(chunk),)):
            tallies[(*row[:width],)] = _tally(*row[width:])
    return tallies


def write_tallies(
    connection: sa.Connection, tallies: dict[tuple[int, ...], Tally], table: str = "rollup"
) -> None:
    """Write tallies to rows, which `lock_tallies` returned unless the transaction is exclusive."""
    rows = [
        (
            *key,
            tally.n,
            tally.errors,
            json_text(tally.latency),
            json_text(tally.labels),
            tally.kept_bytes,
        )[: len(COLUMNS[table])]
        for key, tally in tallies.items()
    ]
    upsert(connection, table, rows)


def sum_again(connection: sa.Connection, keys: Collection[tuple[int, ...]]) -> None:
    """Sum each period again that has one of these models and minutes, in an exclusive transaction."""
    counts = f"SELECT {', '.join(COLUMNS['rollup_sum'][3:])} FROM"
    shorter = 1
    for period in PERIODS:
        statement = f"{counts} {rows_of(shorter)} model_id = ? AND minute >= ? AND minute < ?"
        for model_id, start in sorted({(id_, minute - minute % period) for id_, minute in keys}):
            total = Tally()
            for row in execute(connection, statement, (model_id, start, start + period)):
                total.add(_tally(*row))
            write_tallies(connection, {(model_id, period, start): total}, "rollup_sum")
        shorter = period


def cover(
    first: int, after: int, group_minutes: int = 0, offset: int = 0
) -> Iterator[tuple[str, int, int]]:
    """Yield the fewest rows that count the minutes from `first` until before `after`: see `rows_of`, and their bounds.

    Args:
        first: Minutes since 1970.
        after: Minutes since 1970.
        group_minutes: Length of groups by time, of which no row may count two; 0 without such groups.
        offset: Minutes from 1970 to the beginning of a group.
    """
    gaps = [(first, after)]
    for period in reversed((1, *PERIODS)):
        if group_minutes % period or offset % period:
            continue
        remaining = []
        for start, stop in gaps:
            inner_start, inner_stop = -(-start // period) * period, stop // period * period
            if inner_start < inner_stop:
                yield rows_of(period), inner_start, inner_stop
                remaining += [(start, inner_start), (inner_stop, stop)]
            else:
                remaining.append((start, stop))
        gaps = remaining


def rows_of(period: int) -> str:
    """Return the table of a period and the beginning of a condition on its rows, for SQL."""
    return "rollup WHERE" if period == 1 else f"rollup_sum WHERE period = {period} AND"


def _tally(n: int, errors: int, latency: str, labels: str, kept_bytes: int = 0) -> Tally:
    return Tally(
        n=n,
        errors=errors,
        latency=decode_counts(latency),
        labels=decode_counts(labels),
        kept_bytes=kept_bytes,
    )


def decode_counts(text: str) -> dict[int, int]:
    """Decode counts by id or bucket."""
    return _counts.decode(text)


def minute_of(seq: int) -> int:
    """Return the minute of an id, in minutes since 1970."""
    return time_ms(seq) // MINUTE_MS


def kept_size(is_kept: int | bool, size: int | None) -> int:  # noqa: FBT001 - a column
    """Return the counted size of an input: never 0 if it is stored, so that its minute is found by it."""
    return max(size or 0, 1) if is_kept else 0


def latency_bucket(latency_us: int) -> int:
    """Return the bucket of the sketch that a latency falls into."""
    return math.ceil(math.log(latency_us) / _LOG_GROWTH) if latency_us >= 1 else _ZERO


def _middle_us(bucket: int) -> float:
    """Return the value that differs by at most 1 % from all values of a bucket."""
    return 2 * BUCKET_GROWTH**bucket / (1 + BUCKET_GROWTH) if bucket > _ZERO else 0.0


def _add(counts: dict[int, int], others: dict[int, int], sign: int) -> None:
    for key, n in others.items():
        total = counts.get(key, 0) + sign * n
        if total > 0:
            counts[key] = total
        else:
            counts.pop(key, None)

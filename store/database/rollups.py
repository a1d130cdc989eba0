"""Rollups: counts per model and minute, updated by the writer in the transaction that stores the rows.

They outlive the rows that retention removes, because they count what was served. Rows that a user deletes
are subtracted.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable
from itertools import chain

import msgspec
import sqlalchemy as sa

from quadriga.store.database.database import execute, execute_in, upsert
from quadriga.store.database.schema import COLUMNS
from quadriga.store.records.ids import time_ms
from quadriga.store.records.records import json_text

MINUTE_MS = 60_000
BUCKET_GROWTH = 1.02
"""Growth of the sketch's buckets: a latency is known to (1.02 - 1) / (1.02 + 1), 0.99 %."""

FIRST_ERROR = 500  # the smallest status that counts as an error
_LOG_GROWTH = math.log(BUCKET_GROWTH)
_ZERO = -1
"""Bucket of less than a microsecond; bucket `i` holds values above BUCKET_GROWTH^(i-1), up to BUCKET_GROWTH^i."""

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
        self._tallies: dict[tuple[int, int], Tally] = defaultdict(Tally)

    def tally_of(self, model_id: int, seq: int) -> Tally:
        """Return the tally of the model and minute of an inference."""
        return self._tallies[model_id, minute_of(seq)]

    def apply(self, connection: sa.Connection, sign: int = 1) -> None:
        """Add to the stored tallies, or subtract (sign -1); the last step of a transaction.

        If several servers share a database, the rows are locked, in order, until the commit.
        """
        tallies = lock_tallies(connection, self._tallies)
        for key, change in self._tallies.items():
            tallies[key].add(change, sign)
        write_tallies(connection, tallies)


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
    connection: sa.Connection, keys: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], Tally]:
    """Return the tallies of models and minutes, creating missing rows, locked until the commit."""
    ordered = sorted(keys)
    if not ordered:
        return {}
    columns, values = ", ".join(COLUMNS["rollup"]), tuple(chain.from_iterable(ordered))
    empty = ", ".join(["(?, ?, 0, 0, '{}', '{}', 0)"] * len(ordered))
    statement = f"INSERT INTO rollup ({columns}) VALUES {empty} ON CONFLICT DO NOTHING"
    execute(connection, statement, values)
    for_update = "" if connection.dialect.name == "sqlite" else " FOR UPDATE"
    pairs = ", ".join(["(?, ?)"] * len(ordered))
    statement = f"SELECT {columns} FROM rollup WHERE (model_id, minute) IN (VALUES {pairs})"
    rows = execute(connection, f"{statement} ORDER BY model_id, minute{for_update}", values)
    return {
        (model_id, minute): Tally(
            n=n,
            errors=errors,
            latency=decode_counts(latency),
            labels=decode_counts(labels),
            kept_bytes=kept_bytes,
        )
        for model_id, minute, n, errors, latency, labels, kept_bytes in rows
    }


def write_tallies(connection: sa.Connection, tallies: dict[tuple[int, int], Tally]) -> None:
    """Write tallies to the rows that `lock_tallies` returned."""
    rows = [
        (
            *key,
            tally.n,
            tally.errors,
            json_text(tally.latency),
            json_text(tally.labels),
            tally.kept_bytes,
        )
        for key, tally in tallies.items()
    ]
    upsert(connection, "rollup", rows)


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
